"""A sample's tokens are those of transformers' full processor, and labels are the assistant's turns.

Everything else in the package rests on this: a length that training does not see overflows a pack or wastes it.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from energon_pack.errors import PackError
from energon_pack.samples.media.medium import Media
from energon_pack.samples.placeholders import place_media
from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.full_processor import prepare_torchvision
from energon_pack.templates.preprocess import smart_resize
from energon_pack.templates.processor import build_uncached_template, load_saved_template, prepare_template
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template
from support.marks import slow
from support.models import of_model
from support.running import need_torchvision
from support.samples import structure


def turns(*texts: Any) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def supervised_text(template: Template, sample: Sample) -> list[str]:
    tokens = template.encode(sample)
    return [template._tokenizer.decode(tokens.ids[a:b], skip_special_tokens=False) for a, b in tokens.supervised]


def image_settings(template: Template) -> tuple[int, int, int]:
    settings = template.rules.settings
    return settings["factor"], settings["min_pixels"], settings["max_pixels"]


# ---------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (56, 84, (56, 84)),  # multiples of 28 within the budget stay
        (70, 70, (56, 56)),  # 2.5 rounds to the even 2, as Python and the processor do
        (71, 71, (84, 84)),
        (10, 10, (56, 56)),  # grown to min_pixels
        (1000, 4000, (476, 1988)),  # shrunk to max_pixels
    ],
)
def test_sizes_to_check_by_head(height: int, width: int, expected: tuple[int, int]) -> None:
    assert smart_resize(height, width, factor=28, min_pixels=3136, max_pixels=1_000_000) == expected


def test_sizes_are_transformers_own() -> None:
    """Against the image processor's own count on 2,000 random sizes and budgets."""
    prepare_torchvision()
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    rng = random.Random(0)
    for _ in range(2000):
        budget: dict[str, Any] = {
            "min_pixels": rng.choice([784, 3136, 200_704]),
            "max_pixels": rng.choice([401_408, 12_845_056]),
        }
        height, width = (int(2 ** rng.uniform(0, 12.5)) for _ in range(2))
        processor = Qwen2VLImageProcessorPil(patch_size=14, merge_size=2, **budget)
        try:
            expected = processor.get_number_of_image_patches(height, width)
        except ValueError:
            with pytest.raises(Skip):
                smart_resize(height, width, factor=28, **budget)
            continue
        resized = smart_resize(height, width, factor=28, **budget)
        assert (resized[0] // 14) * (resized[1] // 14) == expected, (height, width, budget)


# ----------------------------------------------------------------------------------------- against the full processor


@pytest.fixture(scope="module")
def full_processor(demo: tuple[Path, Path]) -> Any:
    """The demo's processor as training builds it."""
    need_torchvision()
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(demo[1])


def test_the_demo_processor_is_of_the_real_classes(full_processor: Any) -> None:
    assert type(full_processor).__name__ == "Qwen2_5_VLProcessor"


@given(
    texts=st.lists(st.text(max_size=40), min_size=2, max_size=6),
    sizes=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), max_size=4),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=60)
def test_ids_are_those_of_the_full_processor(
    template: Template, full_processor: Any, texts: list[str], sizes: list[tuple[int, int]], seed: int
) -> None:
    rng = random.Random(seed)
    sizes = [(w, h) for w, h in sizes if max(w, h) <= 200 * min(w, h)]
    messages = turns(*texts[: len(texts) // 2 * 2])
    for _ in sizes:  # placeholders at random places of user turns
        message = rng.choice(messages[::2])
        at = rng.randint(0, len(message["content"]))
        message["content"] = message["content"][:at] + "<image>" + message["content"][at:]
    kinds = ["image"] * len(sizes)
    try:
        placed, _, _ = place_media(messages, kinds)
        tokens = template.encode(Sample(placed, [Media("image", *size) for size in sizes]))
    except Skip:  # the text spelt a placeholder or a media token by chance
        return

    structured = [{**m, "content": structure(m["content"], bool(kinds))} for m in placed]
    text = full_processor.apply_chat_template(structured, tokenize=False, add_generation_prompt=False)
    images = [Image.new("RGB", size) for size in sizes] or None
    assert tokens.ids == full_processor(text=[text], images=images)["input_ids"][0]


# ---------------------------------------------------------------------------------------------------------- labels


def test_labels_are_the_assistants_turns_with_their_end(template: Template) -> None:
    """Placeholders are expanded before tokenizing: label positions have to move with them."""
    sample = Sample(turns("one?", "1", "two?", " 2\n"), [])
    assert supervised_text(template, sample) == ["1<|im_end|>", " 2\n<|im_end|>"]
    placed, _, _ = place_media(turns("<image>what?", "a square"), ["image"])
    assert supervised_text(template, Sample(placed, [Media("image", 280, 280)])) == ["a square<|im_end|>"]


def test_visual_tokens_are_counted(template: Template) -> None:
    placed, _, _ = place_media(turns("<image><image>", "x"), ["image", "image"])
    rendered = template.render(Sample(placed, [Media("image", 56, 56), Media("image", 84, 56)]))
    assert rendered.num_visual_tokens == 4 + 6
    assert rendered.text.count("<|image_pad|>") == 10


# ---------------------------------------------------------------------------------------------------- odd text


def test_control_tokens_in_the_text(template: Template) -> None:
    """That of a medium the full processor would expand as one that is not there; marks of ours are refused."""
    for text, reason in (
        ("what is <|image_pad|>?", Reason.CONTROL_TOKEN), *((mark, None) for mark in ("\ufdd0", "\ufdd1", "a\ufdd0b")),
    ):  # fmt: skip
        with pytest.raises(Skip) as skip:
            template.render(Sample(turns(text, "a token"), []))
        assert reason in (None, skip.value.reason)
    assert template.render(Sample(turns("<|im_end|> and <|im_start|>", "x"), [])).num_control_tokens == 2


@pytest.mark.parametrize("name", [slow("granite_docling_idefics3"), slow("llava_onevision_qwen2_hf"), "qwen2_5_vl"])
def test_a_placeholder_is_no_control_token(real: Path, cache: Path, name: str) -> None:
    """`<image>` is a special token of some: every sample with an image was noted, and `control_tokens=skip` lost it."""
    of_name = load_saved_template(prepare_template(of_model("auto", real / "processors" / name), cache))
    for text, number in (("<image>What?", 0), ("<image>What <|im_end|><|end_of_text|>?", 1)):
        placed, _, _ = place_media(turns(text, "x"), ["image"])
        assert of_name.render(Sample(placed, [Media("image", 56, 56, "png", 100)])).num_control_tokens == number


def test_what_a_family_does_not_see_is_unsupported_not_free(demo: tuple[Path, Path], cache: Path) -> None:
    blind = load_saved_template(prepare_template(of_model("text", demo[1]), cache))
    placed, _, _ = place_media(turns("<image>", "x"), ["image"])
    with pytest.raises(Skip) as skip:
        blind.render(Sample(placed, [Media("image", 28, 28)]))
    assert skip.value.reason is Reason.UNSUPPORTED_MEDIA


# ---------------------------------------------------------------------------------------------------- the processor


def with_template(demo: tuple[Path, Path], chat_template: str, **more: Any) -> Template:
    return build_uncached_template(of_model("qwen_vl", demo[1], chat_template=chat_template, **more))


def test_generation_blocks_and_variables(demo: tuple[Path, Path]) -> None:
    """Templates made for training mark the assistant's text; the mark itself is no text."""
    text = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}"
        "{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}{{ end }}"
    )
    template = with_template(demo, text, chat_template_kwargs={"end": "!"})
    rendered = template.render(Sample(turns("q", "a"), []))
    assert (rendered.text, rendered.spans) == ("qa<|im_end|>!", [(1, 12)])


def test_a_template_that_leaves_out_an_image_costs_the_sample(demo: tuple[Path, Path]) -> None:
    template = with_template(demo, "{% for m in messages %}x{% endfor %}")
    placed, _, _ = place_media(turns("<image>", "x"), ["image"])
    with pytest.raises(Skip) as skip:
        template.render(Sample(placed, [Media("image", 56, 56)]))
    assert skip.value.reason is Reason.PROCESSOR_ERROR


def test_fingerprint_follows_what_lengths_depend_on(demo: tuple[Path, Path], template: Template) -> None:
    def fingerprints(**settings: Any) -> dict[str, str]:
        return build_uncached_template(of_model("qwen_vl", demo[1], **settings)).fingerprints

    base = fingerprints()
    assert base == template.fingerprints
    assert {k for k, v in fingerprints(max_pixels=200_704).items() if v != base[k]} == {"media"}
    text = template.spec.chat_template + "{{ a }}"
    one, other = (fingerprints(chat_template=text, chat_template_kwargs={"a": a}) for a in (1, 2))
    assert {k for k, v in one.items() if v != other[k]} == {"chat_template"}


def test_a_variable_that_no_template_reads_is_refused(demo: tuple[Path, Path]) -> None:
    """A slip of the pen in `enable_thinking` changed nothing, and nothing said so."""
    with pytest.raises(PackError, match=r"model\.chat_template_kwargs\.b: of these, the chat template reads a$"):
        build_uncached_template(
            of_model("text", demo[1], chat_template="{{ a }}{{ messages }}", chat_template_kwargs={"b": 1})
        )


def test_pixel_limits_reach_the_rule(demo: tuple[Path, Path]) -> None:
    by_name = build_uncached_template(of_model("qwen_vl", demo[1], min_pixels=6272, max_pixels=200_704))
    by_kwargs = build_uncached_template(
        of_model("qwen_vl", demo[1], processor_kwargs={"min_pixels": 6272, "max_pixels": 200_704})
    )
    assert image_settings(by_name) == image_settings(by_kwargs) == (28, 6272, 200_704)


@pytest.mark.parametrize(
    ("written", "limits"),
    [
        ({"min_pixels": 6272, "max_pixels": 200_704.0}, (6272, 200_704)),
        ({"min_pixels": 6272, "max_pixels": None}, (6272, 1280 * 28 * 28)),  # the class's own, as transformers takes it
        ({"min_pixels": None, "max_pixels": None}, (56 * 56, 1280 * 28 * 28)),
        ({"size": {"shortest_edge": 6272, "longest_edge": 9000.0}}, (6272, 9000)),
    ],
)  # fmt: skip
def test_pixel_limits_may_be_null_or_floats(
    demo: tuple[Path, Path], tmp_path: Path, written: dict[str, Any], limits: tuple[int, int]
) -> None:
    """ "longest_edge of model.processor's settings is None": "it is another family's processor", which it was not."""
    for file in demo[1].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    settings = {
        key: value for key, value in settings.items() if key not in ("size", "min_pixels", "max_pixels")
    } | written
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    assert image_settings(build_uncached_template(of_model("qwen_vl", tmp_path))) == (28, *limits)


def test_the_cached_template_is_the_built_one(demo: tuple[Path, Path], tmp_path: Path) -> None:
    settings = of_model("qwen_vl", demo[1])
    folder = prepare_template(settings, tmp_path)
    assert prepare_template(settings, tmp_path) == folder
    sample = Sample(turns("q", "Sort these numbers."), [])
    assert load_saved_template(folder).encode(sample) == build_uncached_template(settings).encode(sample)


def test_a_changed_processor_is_not_the_cached_one(demo: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "processor"
    folder.mkdir()
    for file in demo[1].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    first = prepare_template(of_model("qwen_vl", folder), tmp_path)
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps({**settings, "max_pixels": 50_176}))
    second = prepare_template(of_model("qwen_vl", folder), tmp_path)
    assert load_saved_template(first).fingerprint != load_saved_template(second).fingerprint


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"template": "nope"}, "model.template=nope"),
        ({"processor": "/nowhere"}, "model.processor=/nowhere: no such folder"),
        ({"factor": 32}, r"model.factor=28 accepts it"),
    ],
)
def test_wrong_processors_are_refused(demo: tuple[Path, Path], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PackError, match=message):
        build_uncached_template(of_model(**{"template": "qwen_vl", "processor": demo[1], **settings}))


def test_a_folder_without_image_settings_is_refused(demo: tuple[Path, Path], tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((demo[1] / name).read_bytes())
    with pytest.raises(PackError, match="another family's"):
        build_uncached_template(of_model("qwen_vl", tmp_path))


def test_the_demo_is_made_the_same_every_time(demo: tuple[Path, Path], tmp_path: Path) -> None:
    from energon_pack.sources.demo import make_demo_source_and_processor

    source, processor = make_demo_source_and_processor(tmp_path)
    for again, first in ((Path(source), demo[0]), (Path(processor), demo[1])):
        assert {f.name: f.read_bytes() for f in again.iterdir()} == {f.name: f.read_bytes() for f in first.iterdir()}


@pytest.mark.parametrize(
    ("name", "image_processor", "settings"),
    [
        ("Ovis2Processor", "Ovis2ImageProcessor", {}),
        ("Idefics2Processor", "Idefics2ImageProcessor", {}),
        ("Blip2Processor", "BlipImageProcessor", {"num_query_tokens": 32}),
    ],
)
def test_a_processor_that_cannot_be_asked_is_named_at_once(
    demo: tuple[Path, Path], tmp_path: Path, name: str, image_processor: str, settings: dict[str, Any]
) -> None:
    """Every image was `unreadable_media`: the user looked for a fault in the data."""
    need_torchvision()
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(demo[1])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>", "<|image_start|>", "<|image_end|>"]})
    made = getattr(transformers, name)(getattr(transformers, image_processor)(), tokenizer, **settings)
    made.chat_template = tokenizer.chat_template
    made.save_pretrained(tmp_path / "processor")
    with pytest.raises(PackError, match=name):
        prepare_template(of_model("auto", tmp_path / "processor"), tmp_path)
