"""The built-in demo: a few hundred samples and a small processor, both made here from nothing.

The processor has the real classes (Qwen2_5_VLProcessor, its tokenizer and image processor) and a vocabulary of
about a thousand tokens, learnt from the samples' own text. It shows how packing works; no real model has its lengths.
"""

import io
import json
import os
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from energon_pack.run.files import is_intact, make_folder_atomically

#: Raise this number when the demo's content changes: a cached demo is then made again.
_VERSION = 1

_NUM_SHARDS = 3
_VOCABULARY_SIZE = 1024
_SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
)
_CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}
{%- if part.type == "image" %}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == "video" %}<|vision_start|><|video_pad|><|vision_end|>
{%- else %}{{ part.text }}{% endif %}
{%- endfor %}
{%- endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""


def make_demo_source_and_processor(folder: Path) -> tuple[str, str]:
    """Make the demo in a folder unless it is there; return the paths of its folder of tars and of its processor."""
    finished = folder / f"v{_VERSION}"
    if not is_intact(finished):
        samples = list(_make_samples(random.Random(0)))
        with make_folder_atomically(finished) as made:
            _write_source(made / "source", samples)
            _write_processor(made / "processor", samples)
    return os.fspath(finished / "source"), os.fspath(finished / "processor")


# ------------------------------------------------------------------------------------------------------------ samples

Turn = dict[str, str]
DemoSample = tuple[list[Turn], list[Image.Image]]

_COLORS = ("red", "green", "blue", "orange", "purple", "black")
_SHAPES = ("circle", "square", "triangle")
_UNIT_FACTORS = (("kilometre", "metre", 1000), ("hour", "minute", 60), ("kilogram", "gram", 1000), ("week", "day", 7))


def _make_samples(rng: random.Random) -> Iterator[DemoSample]:
    """Yield samples of text, with one image and with several images, with one turn and with several."""
    kinds = [(make, num_turns) for make, num_turns, number in _MAKERS for _ in range(number)]
    rng.shuffle(kinds)
    for make, num_turns in kinds:
        yield make(rng, num_turns)


def _turns(question: str, answer: str) -> list[Turn]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _make_text(rng: random.Random, num_turns: int) -> DemoSample:
    turns = [turn for _ in range(num_turns) for turn in rng.choice((_times_table, _conversion, _sorting))(rng)]
    if rng.random() < 0.2:
        turns.insert(0, {"role": "system", "content": "Show every step, then the result."})
    return turns, []


def _times_table(rng: random.Random) -> list[Turn]:
    factor, upto = rng.randint(2, 19), rng.randint(3, 30)
    lines = [f"{i} times {factor} is {i * factor}." for i in range(1, upto + 1)]
    return _turns(f"Write the multiplication table of {factor} up to {upto}.", "\n".join(lines))


def _conversion(rng: random.Random) -> list[Turn]:
    large, small, factor = rng.choice(_UNIT_FACTORS)
    number = rng.randint(2, 400)
    return _turns(
        f"How many {small}s are {number} {large}s?",
        f"One {large} has {factor} {small}s. So {number} {large}s have {number} × {factor} = {number * factor}.",
    )


def _sorting(rng: random.Random) -> list[Turn]:
    numbers = [rng.randint(1, 999) for _ in range(rng.randint(4, 40))]
    listed = ", ".join(map(str, numbers))
    return _turns(f"Sort these numbers: {listed}.", f"From small to large: {', '.join(map(str, sorted(numbers)))}.")


def _draw_shapes(rng: random.Random) -> tuple[Image.Image, dict[str, int]]:
    """Draw a picture of a few shapes; return it, and how many there are of each."""
    width, height = rng.randint(60, 420), rng.randint(60, 420)
    image = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(image)
    counts: dict[str, int] = {}
    for _ in range(rng.randint(1, 9)):
        color, shape = rng.choice(_COLORS), rng.choice(_SHAPES)
        size = rng.randint(8, 40)
        x, y = rng.randint(0, width - size), rng.randint(0, height - size)
        box = (x, y, x + size, y + size)
        if shape == "circle":
            pen.ellipse(box, fill=color)
        elif shape == "square":
            pen.rectangle(box, fill=color)
        else:
            pen.polygon([(x, y + size), (x + size, y + size), (x + size // 2, y)], fill=color)
        name = f"{color} {shape}"
        counts[name] = counts.get(name, 0) + 1
    return image, counts


def _make_image(rng: random.Random, num_turns: int) -> DemoSample:
    image, counts = _draw_shapes(rng)
    turns = _turns("<image>\nWhat was drawn here?", f"There are {_counts_as_text(counts)}.")
    for _ in range(num_turns - 1):
        name = rng.choice(list(counts))
        turns += _turns(f"How often did you draw a {name}?", f"{counts[name]} times, whether or not another covers it.")
    return turns, [image]


def _make_images(rng: random.Random, num_turns: int) -> DemoSample:
    drawn = [_draw_shapes(rng) for _ in range(rng.randint(2, 4))]
    answers = [f"Picture {i + 1}: {_counts_as_text(counts)}." for i, (_, counts) in enumerate(drawn)]
    question = "".join(f"Picture {i + 1}: <image>\n" for i in range(len(drawn))) + "What was drawn in each?"
    return _turns(question, "\n".join(answers)), [image for image, _ in drawn]


def _counts_as_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} {name}{'s' * (n > 1)}" for name, n in counts.items())


#: maker of a sample's content, its turns, and how many such samples there are
_MAKERS = ((_make_text, 1, 90), (_make_text, 4, 50), (_make_image, 1, 90), (_make_image, 3, 40), (_make_images, 1, 50))
NUM_SAMPLES = sum(number for _, _, number in _MAKERS)


# -------------------------------------------------------------------------------------------------- files of the demo


def _write_source(folder: Path, samples: list[DemoSample]) -> None:
    folder.mkdir()
    for number in range(_NUM_SHARDS):
        with tarfile.open(folder / f"demo-{number:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for index in range(number, len(samples), _NUM_SHARDS):
                turns, images = samples[index]
                names = [f"{i}.{'jpg' if (index + i) % 2 else 'png'}" for i in range(len(images))]
                for name, image in zip(names, images, strict=True):
                    _add_file(tar, f"demo_{index:05d}.{name}", _image_bytes(image, name))
                record: dict[str, Any] = {"messages": turns, "media": "image" if names else "text"}
                if names:
                    record["name"] = names
                _add_file(tar, f"demo_{index:05d}.json", json.dumps(record).encode())


def _add_file(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a file without an owner and a time."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _image_bytes(image: Image.Image, name: str) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG" if name.endswith("jpg") else "PNG")
    return file.getvalue()


def _write_processor(folder: Path, samples: list[DemoSample]) -> None:
    """Write the files of a Qwen2_5_VLProcessor, as `AutoProcessor.from_pretrained` reads them."""
    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY_SIZE, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator((turn["content"] for turns, _ in samples for turn in turns), trainer)
    tokenizer.model.save(os.fspath(folder))
    first, name = tokenizer.get_vocab_size(), "Qwen2_5_VLProcessor"
    off = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    specials = {str(first + i): {"content": token, **off, "special": True} for i, token in enumerate(_SPECIAL_TOKENS)}
    about: dict[str, Any] = {
        "tokenizer_class": "Qwen2Tokenizer",
        "processor_class": name,
        "added_tokens_decoder": specials,
    }
    about |= {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "model_max_length": 131072}
    sizes = {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "min_pixels": 3136, "max_pixels": 1003520}
    kinds = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": name}
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=1))
    (folder / "preprocessor_config.json").write_text(json.dumps({**sizes, **kinds}, indent=1))
    (folder / "chat_template.jinja").write_text(_CHAT_TEMPLATE)
