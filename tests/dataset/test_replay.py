"""What a dataset keeps for loaders of other versions: which samples, how much of each, and how they are read again."""

from pathlib import Path

import numpy as np
import pytest

from energon_pack.dataset.manifest import read_replays
from energon_pack.dataset.replay import draw
from energon_pack.plan.items import Items
from energon_pack.samples.media.medium import Media
from energon_pack.samples.placeholders import place_media
from energon_pack.templates import replay as replays
from energon_pack.templates.families.qwen_vl import QwenVL
from energon_pack.templates.replay import Compared, Replay, record
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template
from support.packed import demo_config, packed

_ANSWER = [{"role": "assistant", "content": "yes"}]


def test_a_slow_processor_is_asked_for_as_many_media_as_there_is_time_for(
    demo: tuple[Path, Path], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader would wait for minutes; texts cost nothing."""
    monkeypatch.setattr(QwenVL, "expand_ms", {"image": 500.0})
    folder = packed(demo_config(demo, cache, tmp_path))
    (found,) = read_replays(folder)
    assert found is not None
    assert sum(len(measured.sample.media) for measured in found.samples) == 3
    assert sum(not measured.sample.media for measured in found.samples) > 30


def test_what_is_kept_comes_back(template: Template) -> None:
    """Sizes, frames, tools, text of any kind; all that a length depends on, and nothing twice."""
    question = {"role": "user", "content": f"<video> ü\n<image>{'long ' * 99}"}
    messages, _, _ = place_media([question, *_ANSWER], ["video", "image"])
    clip = Media("video", 64, 48, "mp4", 30, 29.97, (0, 7, 9))
    samples = [
        Sample(messages, [clip, Media("image", 56, 84)]),
        Sample(messages, [clip, Media("image", 56, 84)]),
        Sample([{"role": "user", "content": [{"type": "text", "text": "a" * 2000}]}, *_ANSWER], [], [{"name": "tool"}]),
        Sample([{"role": "user", "content": f"{i} " * 50} for i in range(50)] + _ANSWER, [Media("image", 28, 28)]),
        Sample([{"role": "user", "content": f"{i} " * 50} for i in range(50)] + _ANSWER, []),
    ]
    made = record(template, samples)
    assert [(m.has_text, len(m.sample.media)) for m in made.samples] == [(True, 2), (True, 0), (False, 1)]
    assert made.samples[0].sample.media[0].frames == (0, 7, 9)
    again = Replay.from_bytes(made.to_bytes())
    assert again.to_bytes() == made.to_bytes()
    assert again.compare(template) == Compared(3, 3)
    assert len(template.encode(again.samples[0].sample).ids) == made.samples[0].token_len


def test_what_is_kept_has_bounds(template: Template) -> None:
    """It is read whenever a training starts."""
    texts = [[{"role": "user", "content": f"<image>{f'{i} ' * 80}"}, *_ANSWER] for i in range(replays.MOST_SAMPLES)]
    made = record(template, [Sample(messages, [Media("image", 500 + i, 600)]) for i, messages in enumerate(texts)])
    assert len(made.samples) == replays.MOST_SAMPLES
    assert {measured.has_text for measured in made.samples} == {True, False}
    assert 150_000 < len(made.to_bytes()) < 300_000


def test_long_lists_of_media_have_bounds(template: Template) -> None:
    """A video lists a thousand frames, a sample names hundreds of images: of those the first are kept."""
    question = {"role": "user", "content": "<image>" * 90}
    made = record(template, [Sample([question, *_ANSWER], [Media("image", 500 + i, 600)] * 90) for i in range(20)])
    assert {(measured.has_text, len(measured.sample.media)) for measured in made.samples} == {(False, 32)}
    assert len(made.samples) == 20
    clips = [Media("video", 56, 56, "mp4", 2000, 25.0, tuple(range(i, 1000))) for i in range(200)]
    made = record(template, [Sample([{"role": "user", "content": "<video>"}, *_ANSWER], [clip]) for clip in clips])
    assert len(made.to_bytes()) < 300_000


def test_the_draw_is_of_what_is_packed_with_the_extremes_first() -> None:
    """And the same whichever pack they are in: bytes depend on the source and the settings."""
    lens = np.arange(1, 5001)
    few = np.where(lens == 77, 9, 0)
    items = Items(
        counts={"token_len": lens, "num_visual_tokens": few, "num_images": few},
        **{name: np.zeros(5000, np.int32) for name in ("media", "shard", "dataset", "split", "num_supervised")},
    )
    packed = lens != 5000
    drawn = draw(items, packed, 0)
    assert not (draw(items, packed, 1) == drawn).all()
    assert len(drawn) == len(set(drawn.tolist())) == 100  # a fiftieth
    assert {4998, 0, 76} <= set(drawn[:48].tolist())
    assert 4999 not in drawn
    assert len(draw(items, packed & (lens <= 90), 0)) == 90


def test_sizes_are_drawn_beside_many_texts() -> None:
    """One image among a hundred texts: of the texts alone, no size would be known."""
    items = Items(
        counts={"token_len": np.full(5000, 9)},
        media=(np.arange(5000) % 100 == 0).astype(np.int8),
        **{name: np.zeros(5000, np.int32) for name in ("shard", "dataset", "split", "num_supervised")},
    )
    drawn = draw(items, np.ones(5000, np.bool_), 0)
    assert (drawn % 100 == 0).sum() >= 40  # of a hundred: after the extremes, every second one
