"""Each model with each real processor: refused before any sample is read, or right."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import interpolate

from energon_pack.errors import PackError
from energon_pack.samples.media.medium import Media
from energon_pack.samples.skip import Skip
from energon_pack.templates.build import build
from energon_pack.templates.choose_rules import build_with_best_rules
from energon_pack.templates.families import AUTO
from energon_pack.templates.families.asked_processor import ProcessorProbe
from energon_pack.templates.families.meta_tensors import ShapesOnly
from energon_pack.templates.families.sound_steps import LengthRangeCache
from energon_pack.templates.families.stand_ins import BlankMedia
from energon_pack.templates.full_processor import processor_class
from energon_pack.templates.models import packaged_models, read_model_config
from energon_pack.templates.processor import (
    build_uncached_template,
    load_saved_template,
    prepare_template,
    read_media_rules_choice,
)
from energon_pack.templates.sample import Sample
from energon_pack.templates.settings import MediaConfig
from support.models import of_model
from support.processors import glm4v
from support.running import need_torchvision

#: Real processors, and the models they may be used with. `text` takes any, and `auto` any with media.
GOOD = {
    "gemma3": set(),
    "granite_docling_idefics3": set(),
    "internvl3_hf": {"internvl3", "internvl3_5"},
    "kimi_k25": {"kimi_k2_5", "kimi_vl"},
    "llama3_text": set(),
    "llava_onevision_qwen2_hf": {"llava_onevision"},
    "qwen2_5_text": set(),
    "qwen2_5_vl": {"llava_onevision1_5", "llava_onevision2", "qwen2_5_vl", "qwen2_vl"},
    "qwen2_vl": {"llava_onevision1_5", "llava_onevision2", "qwen2_5_vl", "qwen2_vl"},  # the same rules
    "qwen3_vl": {"qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe"},
}


#: Their tokenizers take seconds to build, for each family again; or another processor has the same rules.
LATER = ("gemma3", "kimi_k25", "llama3_text", "llava_onevision_qwen2_hf", "qwen2_5_text", "qwen2_vl")


@pytest.mark.parametrize("processor", [pytest.param(p, marks=[pytest.mark.slow] * (p in LATER)) for p in GOOD])
def test_another_familys_processor_is_refused_at_once(real: Path, processor: str) -> None:
    """All images were measured first, and each was in the ledger for a token that the processor does not know."""
    same: dict[tuple[object, ...], bool] = {}  # models that differ in their names alone
    taken = set()
    for model in set(packaged_models()) - {"text"}:
        node = read_model_config(model)
        if node["template"] == AUTO:
            continue
        how = node["template"], node.get("factor"), node.get("add_special_tokens")
        if how not in same:
            same[how] = _is_taken(str(real / "processors" / processor), *how)
        if same[how]:
            taken.add(model)
    assert taken == GOOD[processor]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processor", "family", "kinds"),
    [
        ("internvl3_hf", "internvl", {"image", "video", "mixed"}),
        ("kimi_k25", "kimi", {"image"}),
        ("llava_onevision_qwen2_hf", "llava_onevision", {"image", "video", "mixed"}),
        ("qwen2_5_vl", "qwen_vl", {"image", "video", "mixed", "uneven"}),
        ("qwen2_vl", "qwen_vl", {"image", "video", "mixed", "uneven"}),
        ("qwen3_vl", "qwen3_vl", {"image", "video", "mixed", "uneven"}),
    ],
)
def test_a_real_processor_keeps_its_rules(
    real: Path, tmp_path: Path, processor: str, family: str, kinds: set[str]
) -> None:
    """Rules that make tokens where the processor refuses would be put aside: slower, or without videos at all."""
    settings = of_model(family, real / "processors" / processor, trust_remote_code=True)
    choice = read_media_rules_choice(prepare_template(settings, tmp_path))
    assert choice.template == family
    assert choice.num_compared.keys() == kinds
    assert choice.left_out.keys() <= {"uneven"}


@pytest.mark.slow
def test_videos_that_are_no_one_tensor_cost_their_sample(real: Path, tmp_path: Path) -> None:
    """The processor stacks all videos of a sample: with other numbers of frames, training would end at that sample."""
    settings = of_model("internvl", real / "processors" / "internvl3_hf")
    template = load_saved_template(prepare_template(settings, tmp_path))
    messages = [{"role": "user", "content": "<video><video>"}, {"role": "assistant", "content": "Two."}]
    even, uneven = ([Media("video", 320, 240, "mp4", number, 10.0) for number in counts] for counts in ((8, 8), (8, 9)))
    assert template.encode(Sample(messages, even)).num_supervised
    with pytest.raises(Skip, match="several lengths"):
        template.encode(Sample(messages, uneven))


def _is_taken(processor: str, template: str, factor: int | None, add_special_tokens: bool | None) -> bool:
    settings = of_model(
        template, processor, factor=factor, add_special_tokens=add_special_tokens, trust_remote_code=True
    )
    try:
        build_uncached_template(settings)
    except PackError:
        return False
    return True


@pytest.mark.parametrize("edge", ["shortest", "longest"])
def test_one_edge_of_a_videos_size_leaves_it_its_other(tmp_path: Path, edge: str) -> None:
    """The processor's call was given a size with one edge alone, refused it, and all videos were left out."""
    need_torchvision()
    media = MediaConfig(video_min_pixels=10_000) if edge == "shortest" else MediaConfig(video_max_pixels=100_000)
    folder = glm4v(tmp_path)
    own, changed = (build(of_model("shapes", folder, given), folder) for given in (None, media))
    size = changed.spec.processor.changed["video"]["size"]
    assert size == {**own.spec.processor.video["size"], f"{edge}_edge": 10_000 if edge == "shortest" else 100_000}
    clip = [Media("video", 320, 240, "mp4", 16, 2.0)]
    turns = [{"role": "user", "content": "<video>"}, {"role": "assistant", "content": "A cat."}]
    lengths = [len(template.encode(Sample(turns, clip)).ids) for template in (own, changed)]
    assert (lengths[1] > lengths[0]) == (edge == "longest")


def test_a_spelled_token_of_a_mediums_text_is_not_trained(real: Path) -> None:
    """The tokens that a processor writes around and between features: a model would learn to begin an image."""
    need_torchvision()
    folder = real / "processors" / "granite_docling_idefics3"
    template = build(of_model("shapes", folder), folder)
    question = {"role": "user", "content": "What?"}
    lengths = {
        said: (len(tokens.ids), tokens.num_supervised)
        for said in ("here.", "<row_1_col_1> here.", "<fake_token_around_image> here.")
        for tokens in [template.encode(Sample([question, {"role": "assistant", "content": said}], []))]
    }
    (length, trained), *spelled = lengths.values()
    assert spelled == [(length + 1, trained)] * 2


def test_a_family_that_is_asked_takes_no_other_familys_processor(real: Path) -> None:
    """`+model=phi4_multimodal` packed with any processor, whose media it counted right, for a model of another name."""
    need_torchvision()
    for name in packaged_models():
        node = read_model_config(name)
        if node["template"] != AUTO or name == AUTO:
            continue
        for processor in sorted((real / "processors").iterdir()):
            if node["processor_class"] != processor_class(processor):
                settings = of_model(node["template"], processor, processor_class=node["processor_class"])
                with pytest.raises(PackError, match=r"\+model=\w+ packs"):
                    build_with_best_rules(settings, processor)


class Sizes(BlankMedia):
    """Media that are their sizes."""

    def stand_in(self, medium: Media, num_frames: int) -> Any:
        return medium.width, medium.height


class Slow:
    """A processor that writes as many words as an image is wide; slower the second time."""

    def __init__(self) -> None:
        self.tokenizer = str.split
        self._seconds = iter((0.2, 0.4))
        self.begun = threading.Event()

    def __call__(self, text: list[str], images: list[tuple[int, int]], return_tensors: str) -> Any:
        self.begun.set()
        time.sleep(next(self._seconds))
        return self.tokenizer(text[0].replace("<image>", "x" * images[0][0]))


def test_two_threads_may_ask_one_processor() -> None:
    """The one that ended last put the other's tokenizer back: no later call was of the processor as it was."""
    processor = Slow()
    asking = ProcessorProbe(processor, Sizes(), {"image": {}, "video": {}})

    def written(width: int) -> list[str]:
        return asking.texts({"image": "<image>"}, [Media("image", width, 9)], [()])[0]

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(written, 3)
        assert processor.begun.wait(60)
        second = pool.submit(written, 5)
        assert (first.result(), second.result()) == (["xxx"], ["xxxxx"])
    assert processor.tokenizer is str.split


def count(length: int, hop: int = 160, frames: int = 4, most: int = 1500) -> int:
    """Tokens of a rule like Whisper's."""
    return min(-(-(length // hop) // frames), most)


def drawn(number: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(400, 1_200_000) for _ in range(number)]


def test_a_step_is_asked_once() -> None:
    """Were each length asked, a set of a million clips would take half an hour of calls."""
    asked: list[int] = []

    def ask(length: int) -> int:
        asked.append(length)
        return count(length)

    answers = LengthRangeCache(ask, int)
    lengths = drawn(5000)
    assert [answers(length) for length in lengths] == [count(length) for length in lengths]
    assert len(asked) < 3 * 1500
    known = len(asked)
    assert [answers(length) for length in lengths] == [count(length) for length in lengths]
    assert len(asked) == known


@pytest.mark.parametrize("rule", [lambda n: n // 160 % 50, lambda n: -(n // 640), lambda n: (n // 640, n // 64 % 2)])
def test_what_does_not_grow_is_asked_each_time(rule: object) -> None:
    """Between two lengths with one answer others may lie, or one size may have two answers."""
    assert callable(rule)
    answers = LengthRangeCache(rule, lambda answer: answer[0] if isinstance(answer, tuple) else answer)
    assert all(answers(length) == rule(length) for length in drawn(400))


def test_what_is_refused_is_refused() -> None:
    """Lengths that the processor refuses, at the end of a step, cost none of the others."""

    def ask(length: int) -> int:
        if length < 5000 or length > 1_000_000:
            raise ValueError(f"{length} samples")
        return count(length)

    answers = LengthRangeCache(ask, int)
    for length in drawn(600):
        if 5000 <= length <= 1_000_000:
            assert answers(length) == count(length)
    for length in (4999, 1_000_001, 1_100_000):
        with pytest.raises(ValueError, match=f"{length} samples"):
            answers(length)


@given(st.integers(1, 700), st.integers(1, 9), st.integers(1, 4000), st.integers(0, 1 << 30))
def test_any_rule_of_steps(hop: int, frames: int, most: int, seed: int) -> None:
    answers = LengthRangeCache(lambda length: count(length, hop, frames, most), int)
    assert all(answers(length) == count(length, hop, frames, most) for length in drawn(150, seed))


Made = Callable[[Tensor], Any]

#: what processors do to images [3, 8, 6] of floats
SHAPES: dict[str, Made] = {
    "divided": lambda image: image / 255,
    "stacked at the end": lambda image: torch.stack([image, image], -1),
    "stacked before the end": lambda image: torch.stack([image, image], dim=-2),
    "joined at the end": lambda image: torch.cat([image, image[..., :2]], -1),
    "joined with none": lambda image: torch.cat([image[:0], image, image], dim=0),
    "resized": lambda image: interpolate(image[None], size=(4, 5), mode="bilinear"),
    "resized to a square": lambda image: interpolate(image[None], 4),
    "resized in time": lambda image: interpolate(image[None, None], size=(2, 4, 5)),
    "halved": lambda image: interpolate(image[None], scale_factor=0.5),
    "some of it": lambda image: image[torch.tensor([0, 2])],
    "as an array": lambda image: image.numpy(),
}


def half(side: int) -> Any:
    return side / 2


#: what torch refuses
REFUSED: dict[str, Made] = {
    "no pixels": lambda image: interpolate(image[None], size=(0, 5)),
    "a side too few": lambda image: interpolate(image, size=(4, 5)),
    "half a pixel": lambda image: interpolate(image[None], size=[*map(half, (5, 10))]),
    "no such dimension": lambda image: torch.stack([image, image], 7),
    "joined with another size": lambda image: torch.cat([image, image[:, :3, :3]], -1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_done_to_shapes_is_what_torch_does(name: str) -> None:
    """A processor counts tokens by shapes: one other shape, and each of its images has another length in training."""
    image = torch.zeros(3, 8, 6)
    with ShapesOnly():
        found = SHAPES[name](image.to("meta"))
    assert tuple(found.shape) == tuple(SHAPES[name](image).shape)


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_is_refused(name: str) -> None:
    """An image that its processor can't resize was counted and packed, and training met it."""
    for image, context in (
        (torch.zeros(3, 8, 6), nullcontext()),
        (torch.zeros(3, 8, 6, device="meta"), ShapesOnly()),
    ):
        with context, pytest.raises((RuntimeError, ValueError, TypeError, IndexError)):
            REFUSED[name](image)


def test_values_are_never_made_up() -> None:
    """A processor that looks at pixels would count by pixels that are not there."""
    image = torch.zeros(3, 8, 6, device="meta")
    with ShapesOnly(), pytest.raises(RuntimeError, match="meta"):
        image.sum().item()
