"""Classes that have no rules here, from end to end: packed with model=auto, loaded by Energon, trained as alone.

Alone means: the full processor's call on one sample, in transformers' plain way, and a model that makes positions and
masks by itself.
"""

import io
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset
from PIL import Image
from torch.nn.functional import cross_entropy

from energon_pack.config import GroupBy, Mask, ModelConfig, PackConfig, Rope
from energon_pack.dataset.packing_template import load_template
from energon_pack.loading.task_encoder import PackedTaskEncoder, inputs_of
from energon_pack.pack import pack
from energon_pack.samples.media.prepared import prepare_media_for_processor, processor_arguments
from energon_pack.samples.placeholders import split_content_at_placeholders
from energon_pack.templates.full_processor import load_full_processor
from energon_pack.templates.model_inputs import sample_of
from energon_pack.templates.template import Template
from energon_pack.training.batch import PackedBatch
from energon_pack.training.forward_inputs import MixingError
from energon_pack.training.guards import guard
from energon_pack.training.layout import IGNORE
from support import processors
from support.doubled import doubled
from support.hearing import HEARING, QWEN_VISION, VISION, Class, Token, Values, mrope_config, text_config
from support.packed import train
from support.remote import OF_PICTURES, write_remote
from support.running import need_torchvision
from support.samples import chat, sound, video, video_with_sound, write_tar
from support.tiny import tf

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of tensors, in transformers
]


def _llava_next(token: Token) -> Any:
    vision = {**VISION, "model_type": "clip_vision_model", "image_size": 28, "projection_dim": 16}
    return tf.LlavaNextConfig(
        text_config=text_config(model_type="llama"), vision_config=vision, image_token_id=token("<image>"),
        image_grid_pinpoints=[[28, 56], [56, 28], [56, 56]],
    )  # fmt: skip


def _mistral3(token: Token) -> Any:
    vision = {**VISION, "model_type": "pixtral", "image_size": 112, "head_dim": 8}
    return tf.Mistral3Config(
        text_config=text_config(model_type="mistral", sliding_window=None), vision_config=vision,
        image_token_id=token("[IMG]"), spatial_merge_size=2, vision_feature_layer=-1,
    )  # fmt: skip


def _glm4v(token: Token) -> Any:
    names = {"image_token_id": "<|image|>", "video_token_id": "<|video|>"}
    for kind in ("image", "video"):
        names |= {f"{kind}_start_token_id": f"<|begin_of_{kind}|>", f"{kind}_end_token_id": f"<|end_of_{kind}|>"}
    ids = {name: token(spelled) for name, spelled in names.items()}
    return tf.Glm4vConfig(text_config=mrope_config(1, 1, 2), vision_config=QWEN_VISION, **ids)


def _ovis2(token: Token) -> Any:
    vision = {**VISION, "image_size": 28, "hidden_stride": 1, "vocab_size": 32, "num_visual_indicator_tokens": 5}
    marks = [token(f"<IMG_{name}>") for name in ("START", "GRID", "COL", "ROW", "END")]
    return tf.Ovis2Config(
        text_config=text_config(model_type="qwen2"), vision_config=vision, image_token_id=token("<IMG_ATOM>"),
        visual_indicator_token_ids=marks, vocab_size=320, hidden_size=32,
    )  # fmt: skip


def _paddleocr_vl(token: Token) -> Any:
    return tf.PaddleOCRVLConfig(
        text_config=mrope_config(1, 1, 2), vision_config={**VISION, "image_size": 112, "spatial_merge_size": 2},
        image_token_id=token("<|IMAGE_PLACEHOLDER|>"), video_token_id=319,
        vision_start_token_id=token("<|IMAGE_START|>"), vision_end_token_id=token("<|IMAGE_END|>"),
    )  # fmt: skip


def _llava(token: Token) -> Any:
    vision = {**VISION, "model_type": "clip_vision_model", "image_size": 8, "patch_size": 2, "projection_dim": 16}
    return tf.LlavaConfig(
        text_config=text_config(model_type="llama"), vision_config=vision, image_token_id=token("<image>")
    )


CLASSES = {
    "LlavaNextForConditionalGeneration": Class(processors.llava_next, _llava_next),
    "Mistral3ForConditionalGeneration": Class(processors.pixtral, _mistral3),
    "Glm4vForConditionalGeneration": Class(processors.glm4v, _glm4v, has_videos=True, mixes=False),
    "Ovis2ForConditionalGeneration": Class(processors.ovis2, _ovis2),
    "PaddleOCRVLForConditionalGeneration": Class(processors.paddleocr_vl, _paddleocr_vl),
    **HEARING,
}


def noise(width: int, height: int) -> bytes:
    """An image like no other: in one colour, their order would not show."""
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_source(folder: Path, one: Class) -> Path:
    """Images of several sizes, two in a sample, one in a second turn, and text; videos, one with an image; sounds."""
    small, wide, high = noise(60, 50), noise(110, 40), noise(30, 90)
    members = {"b.json": chat("No picture at all?", "None, only words, and a few more of them.")}
    if one.has_images:
        members |= {
            "a.json": chat("<image>What is here?", "A wide picture."),
            "a.png": wide,
            "c.json": chat("<image> and <image>: which is higher?", "The second.", images=["0.png", "1.png"]),
            "c.0.png": small,
            "c.1.png": high,
            "d.json": chat("Hello.", "Yes?", "See <image>", "It is high."),
            "d.png": high,
        }
    if one.has_videos:
        members["e.json"] = chat("<video>What moves?", "Nothing, it grows bright.", videos=["mp4"])
        members["e.mp4"] = video(12)
        members["f.json"] = chat("<video>And here?", "Nothing.", videos=["mp4"])
        members["f.mp4"] = video(8, 48, 64)
    if one.has_videos and one.mixes:
        members["g.json"] = chat("<image><video>Which is it?", "The first.", images=["png"], videos=["mp4"])
        members |= {"g.png": small, "g.mp4": video(9)}
    if one.has_sounds:
        members |= {
            "h.json": chat("<audio>What is said?", "Nothing, it is noise."),
            "h.wav": sound(9000, 16_000),
            "k.json": chat("<audio>And here?", "Noise, and it is longer."),
            "k.wav": sound(70_000, 44_100, channels=2),
        }
    if one.has_sounds and one.hears_several:
        members |= {
            "i.json": chat("<audio><audio>", "Both.", "Which is longer?", "The second.", audios=["0.wav", "1.wav"]),
            "i.0.wav": sound(5000, 22_050),
            "i.1.wav": sound(30_001, 48_000),
        }
    if one.has_sounds and one.has_images:
        members["j.json"] = chat("<audio><image>What is it?", "Noise in both.", audios=["wav"], images=["png"])
        members |= {"j.wav": sound(4000, 8000), "j.png": wide}
    if one.hears_videos:
        heard = {"use_audio_in_video": True}
        members |= {
            "l.json": chat("<video>What is heard?", "Noise.", videos=["mp4"], **heard),
            "l.mp4": video_with_sound(12, 5, 50_000, 22_050),
            "m.json": chat("<image><audio><video>", "All.", images=["png"], audios=["wav"], videos=["mkv"], **heard),
            "m.png": small,
            "m.wav": sound(7000, 16_000),
            "m.mkv": video_with_sound(8, 4, 80_000, 48_000, "matroska", "libopus"),
            "n.json": chat("<video> and <video>", "Noise twice.", videos=["0.webm", "1.mp4"], **heard),
            "n.0.webm": video_with_sound(8, 2, 100_000, 16_000, "webm", "libopus"),
            "n.1.mp4": video_with_sound(16, 30, 9000, 44_100),
            "o.json": chat("<video>A video that has none.", "It is silent.", videos=["mp4"], **heard),
            "o.mp4": video(8),
            "p.json": chat("<video>Nobody listens.", "To this one.", videos=["mp4"]),
            "p.mp4": video_with_sound(10, 10, 40_000),
        }
    write_tar(folder / "shard-000.tar", members)
    return folder


#: processors of remote code: one takes tensors, the other pictures alone
REMOTE = {
    "shapes": Class(write_remote, _llava, runs_code=True),
    "pixels": Class(partial(write_remote, images=OF_PICTURES), _llava, tier="pixels", runs_code=True),
}


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    need_torchvision()


#: of the two kinds of positions one each, and videos; the others take as long again
QUICK = ("LlavaNextForConditionalGeneration", "Glm4vForConditionalGeneration", "shapes")


def slow_ones(names: Iterable[str]) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", slow_ones(CLASSES))
def test_packed_is_alone(tmp_path: Path, name: str) -> None:
    """A class is said to be packed exactly; were its media joined otherwise, or its positions, it would show here."""
    check(CLASSES[name], getattr(tf, name), tmp_path)


@pytest.mark.slow
def test_a_leak_between_sounds_is_caught(tmp_path: Path) -> None:
    """By the comparison above, and by the guard with the first batch: other words show nothing of it."""
    one = CLASSES["Qwen2AudioForConditionalGeneration"]

    def leaky(config: Any) -> Any:
        model = tf.Qwen2AudioForConditionalGeneration(config)
        model.model.multi_modal_projector.register_forward_hook(lambda _, __, out: out + 0.1 * out.mean((0, 1)))
        return model

    with pytest.raises(AssertionError, match="<= 1e-05"):
        check(one, leaky, tmp_path)
    encoder = PackedTaskEncoder(tmp_path / "packed", str(tmp_path / "processor"))
    config = one.config(lambda token: processors.token_id(tmp_path / "processor", token))
    for make, leaks in ((leaky, True), (tf.Qwen2AudioForConditionalGeneration, False)):
        model = make(config).float().train()
        guard(model, encoder)
        batch = next(batch for batch in loader(tmp_path / "packed", encoder) if len(batch["sample_ids"][0]) > 1)
        with pytest.raises(MixingError, match="other words and media move") if leaks else nullcontext():
            model(**batch.model_inputs(model))


@pytest.mark.parametrize("name", slow_ones(REMOTE))
def test_remote_code_comes_in_by_the_same_door(tmp_path: Path, name: str) -> None:
    """Its own call counts, and makes what is trained on."""
    check(REMOTE[name], tf.LlavaForConditionalGeneration, tmp_path)
    with pytest.raises(ValueError, match="trust_remote_code"):
        PackedTaskEncoder(tmp_path / "packed", str(tmp_path / "processor"))


def check(one: Class, make: Any, folder: Path) -> None:
    """Pack, load and train; compare with each sample alone."""
    pytest.importorskip(one.needs, reason=f"{one.needs} makes the features of {make.__name__}")
    processor = one.write(folder / "processor")
    model_config = ModelConfig("auto", "auto", processor=str(processor), trust_remote_code=one.runs_code)
    config = PackConfig(model=replace(model_config, mask=Mask.positions, rope=Rope.auto, add_special_tokens=None))
    config.source.path = str(write_source(folder / "source", one))
    config.output.dir, config.output.name, config.cache_dir = str(folder), "packed", str(folder / "cache")
    config.packing.max_token_len, config.packing.group_by = 2000, GroupBy.none if one.mixes else GroupBy.media
    if not one.joins_sounds:
        config.packing.max_audios = 1
    config.executor.num_workers, config.measure.verify = 1, 1.0
    pack(config)
    encoder = PackedTaskEncoder(folder / "packed", str(processor), trust_remote_code=one.runs_code)
    template = load_template(folder / "packed", str(processor), one.runs_code)
    assert template.spec.family == one.tier
    torch.manual_seed(0)
    model = make(one.config(lambda token: processors.token_id(processor, token))).float().eval()
    with doubled(model) if one.in_double else nullcontext():
        compare(one, model, folder / "packed", encoder, template)


def compare(one: Class, model: Any, packs: Path, encoder: PackedTaskEncoder, template: Template) -> None:
    """Compare logits and loss of packs with those of each sample alone."""
    single = dict(alone(packs, encoder, template, model))
    differences, num_packed = [], 0
    for batch in loader(packs, encoder):
        with torch.no_grad():
            out = model(**batch.model_inputs(model))
        ids, bounds = batch["sample_ids"][0], batch["cu_seq_lens_q"].tolist()
        num_packed += len(ids) - 1
        losses = []
        for sample, start, end in zip(ids, bounds[:-1], bounds[1:], strict=False):
            tokens, logits, labels = single.pop(sample)
            assert batch["input_ids"][0, start:end].tolist() == tokens
            differences.append(float((out.logits[0, start:end] - logits).abs().max()))
            trained = labels[1:] != IGNORE
            losses.append(cross_entropy(logits[:-1][trained], labels[1:][trained], reduction="none"))
        differences.append(float((out.loss - torch.cat(losses).mean()).abs()))
    print(f"{type(model).__name__} by {one.tier}: differences up to {max(differences):.1e}")
    assert not single
    assert num_packed > one.joins_sounds, "nothing is packed"
    assert max(differences) <= (1e-9 if one.in_double else 1e-5)


def loader(dataset: Path, encoder: PackedTaskEncoder) -> Iterator[PackedBatch]:
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    settings: Values = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    packs = get_train_dataset(dataset, worker_config=worker, batch_size=1, task_encoder=encoder, **settings)
    return iter(get_savable_loader(packs))


def alone(dataset: Path, encoder: PackedTaskEncoder, template: Template, model: Any) -> Iterator[tuple[str, Any]]:
    """Each sample by itself, from the full processor's own call: its ids and logits, and the labels of training."""
    processor = load_full_processor(encoder.rules)
    for packed in train(dataset):
        for member in inputs_of(packed):
            media = sample_of(member).media
            waiting = {kind: iter(own) for kind, own in member.media.items()}
            own = [next(waiting[medium.kind]) for medium in media]
            own = [data if isinstance(data, bytes) else data.convert("RGB") for data in own]
            messages = split_content_at_placeholders(
                member.messages, [kind for kind, own in member.media.items() for _ in own]
            )
            text = processor.apply_chat_template(messages, template.spec.chat_template, tokenize=False)
            given = {"text": [text], "text_kwargs": {"add_special_tokens": False}}
            made = processor_arguments(
                encoder.rules,
                prepare_media_for_processor(encoder.rules, template.seen(media), own),
            )
            if made:
                inputs = processor(**given, **made, return_tensors="pt")
            else:  # some take no text alone
                inputs = processor.tokenizer([text], add_special_tokens=False, return_tensors="pt")
            with torch.no_grad():
                heard = {"use_audio_in_video": True} if any(medium.is_heard for medium in media) else {}
                logits = model(**inputs, **heard, use_cache=False).logits[0]
            labels = encoder.members.encode_alone(member).tokens.labels
            yield member.sample_id, (inputs["input_ids"][0].tolist(), logits, labels)
