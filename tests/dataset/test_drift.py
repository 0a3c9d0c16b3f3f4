"""A dataset is refused in training if and only if a length changes there: other versions, another processor."""

import json
import logging
import shutil
import time
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

from energon_pack.config import Stage
from energon_pack.dataset.manifest import read_replays
from energon_pack.errors import PackError
from energon_pack.lengths.measure import LengthsWrong
from energon_pack.loading import load_template
from energon_pack.pack import pack
from energon_pack.samples.media.medium import Media
from energon_pack.templates import drift
from energon_pack.templates import replay as replays
from energon_pack.templates.families.qwen_vl import QwenVL
from energon_pack.templates.families.shapes import Shapes
from energon_pack.templates.processor import load_saved
from energon_pack.templates.replay import Compared, Replay
from energon_pack.templates.template import Template
from support.packed import demo_config, packed
from support.running import need_torchvision
from support.samples import chat, picture, write_tar

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def dataset(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo, packed."""
    return packed(demo_config(demo, cache, tmp_path_factory.mktemp("replay")))


@pytest.fixture
def replay(dataset: Path) -> Replay:
    (found,) = read_replays(dataset)
    assert found is not None
    return found


@pytest.fixture
def upgraded(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Another transformers is here than there was when the dataset was packed."""
    here = {**replays.versions(), "transformers": "99.0"}
    monkeypatch.setattr(drift, "versions", lambda: here)
    return here


def one_more(monkeypatch: pytest.MonkeyPatch, width: int, height: int) -> None:
    """Have images of one size make a token more: what another version of a processor may do."""
    expand = QwenVL.expand

    def changed(rules: QwenVL, media: Media, frames: list[int]) -> tuple[str, int]:
        text, number = expand(rules, media, frames)
        return (
            (f"{text}<|image_pad|>", number + 1) if (media.width, media.height) == (width, height) else (text, number)
        )

    monkeypatch.setattr(QwenVL, "expand", changed)


def other(demo: tuple[Path, Path], tmp_path: Path, change: Change) -> str:
    """A copy of the processor that is not quite the same."""
    folder = tmp_path / "processor"
    shutil.copytree(demo[1], folder)
    change(folder)
    return str(folder)


def setting(name: str, value: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / "preprocessor_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))

    return change


def replaced(name: str, old: str, new: str) -> Change:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


def one_token_more(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    tokens = config["added_tokens_decoder"]
    number, token = max(((int(number), token) for number, token in tokens.items()), key=itemgetter(0))
    tokens[str(number + 1)] = {**token, "content": "<|of no text|>"}
    path.write_text(json.dumps(config))


def swapped_ids(folder: Path) -> None:
    """A tokenizer that gives other tokens for every text, but the same number."""
    vocabulary = json.loads((folder / "vocab.json").read_text())
    vocabulary["e"], vocabulary["t"] = vocabulary["t"], vocabulary["e"]
    (folder / "vocab.json").write_text(json.dumps(vocabulary))


def test_nothing_is_measured_where_all_is_as_it_was(
    dataset: Path, demo: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise each start of a training would take this time again, and print a needless message."""
    monkeypatch.setattr(Replay, "compare", lambda *_: pytest.fail("measured"))
    load_template(dataset, str(demo[1]))
    assert caplog.messages == []


def test_other_versions_that_make_the_same_lengths_are_taken(
    dataset: Path,
    demo: tuple[Path, Path],
    replay: Replay,
    upgraded: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "energon_pack"):
        load_template(dataset, str(demo[1]))
    (line,) = caplog.messages
    assert f"packed with transformers {replay.versions['transformers']} (here 99.0): 100 of 100 samples" in line
    assert line.endswith("none has another length")


def test_one_length_that_changed_is_refused_by_name(
    dataset: Path,
    demo: tuple[Path, Path],
    replay: Replay,
    upgraded: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A size of image, both lengths, both versions, and what to do; without it, a training ends at that member."""
    of_one = next(measured for measured in replay.samples if len(measured.sample.media) == 1)
    (media,) = of_one.sample.media
    one_more(monkeypatch, media.width, media.height)
    with pytest.raises(ValueError, match="was packed with transformers") as refused:
        load_template(dataset, str(demo[1]))
    first = next(m for m in replay.samples if any(item == media for item in m.sample.media))
    there = replay.versions["transformers"]
    num_more = sum(item == media for item in first.sample.media)
    assert str(refused.value).startswith(f"{dataset} was packed with transformers {there} (here 99.0): a sample of an")
    for word in (
        f"image of {media.width}×{media.height} pixels",
        f"has {first.token_len + num_more} tokens here, {first.token_len} when it was packed.",
        f"Train with transformers=={there}, or pack again",
    ):
        assert word in str(refused.value)


def test_code_of_the_processors_own_has_no_version(
    dataset: Path, demo: tuple[Path, Path], replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change in its folder, and no fingerprint has it."""
    load_template(dataset, str(demo[1]), trust_remote_code=True)
    media = next(measured for measured in replay.samples if measured.sample.media).sample.media[0]
    one_more(monkeypatch, media.width, media.height)
    with pytest.raises(ValueError, match="packed with other code of its processor: a sample of an image"):
        load_template(dataset, str(demo[1]), trust_remote_code=True)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (setting("max_pixels", 2_000_000), "media"),  # no image is as large
        (replaced("chat_template.jinja", "{%- for message", "{# the same #}{%- for message"), "chat_template"),
        (one_token_more, "tokenizer"),
    ],
    ids=["a limit that no image comes to", "a comment", "a token that no text has"],
)
def test_settings_that_are_written_differently_are_taken(
    dataset: Path,
    demo: tuple[Path, Path],
    tmp_path: Path,
    change: Change,
    what: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A refusal where no length changes costs a packing for nothing."""
    processor = other(demo, tmp_path, change)
    load_template(dataset, processor)
    (line,) = caplog.messages
    assert f"packed with another {what} than that of {processor}: 100 of 100 samples" in line


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            setting("max_pixels", 20_000),
            r"with another media than .*: a sample of .*image of \d+×\d+ pixels.* has",
        ),
        (
            replaced("chat_template.jinja", "<|im_start|>{{", "<|im_start|> {{"),
            "packed with another chat_template than",
        ),
        (swapped_ids, "packed with another tokenizer than .* as many tokens here, but others"),
        (replaced("merges.txt", "\nĠ t\n", "\n"), "packed with another tokenizer than .* tokens here"),
    ],
    ids=["a limit", "a space", "ids", "a merge"],
)
def test_another_processor_is_refused(
    dataset: Path, demo: tuple[Path, Path], tmp_path: Path, change: Change, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        load_template(dataset, other(demo, tmp_path, change))
    assert str(refused.value).endswith("Train with the processor it was packed with, or pack again")


def test_a_processor_that_can_not_be_built_here_names_the_versions(
    dataset: Path, demo: tuple[Path, Path], upgraded: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure most likely comes from what changed between the two versions."""
    monkeypatch.setattr(QwenVL, "marks", ("<|gone|>",))
    with pytest.raises(PackError, match=r"has no token <\|gone\|>.* packed with transformers .* \(here 99\.0\)\)"):
        load_template(dataset, str(demo[1]))


def test_rules_that_can_not_be_asked_here_are_chosen_anew(
    demo: tuple[Path, Path],
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The way a processor is called depends on its version; only its results are compared."""
    need_torchvision()
    config = demo_config(demo, cache, tmp_path, source__limit=20)
    config.model.template = "shapes"
    folder = packed(config)
    with monkeypatch.context() as patch:
        patch.setattr(Shapes, "_find_tokens", lambda *_: ({}, {}, {"image": "no meta tensors"}))
        load_template(folder, str(demo[1]))
    (line,) = caplog.messages
    assert "another media than" in line
    assert line.endswith("none has another length")


def test_an_old_dataset_is_refused_by_its_fingerprint(dataset: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Nothing is kept of it that could be measured: that no length changes can't be known."""
    old = tmp_path / "old"
    shutil.copytree(dataset, old)
    (old / ".nv-meta" / "replay.json").unlink()
    load_template(old, str(demo[1]))
    with pytest.raises(ValueError, match=r"packed with another media than .*: no samples are kept"):
        load_template(old, other(demo, tmp_path, setting("max_pixels", 2_000_000)))


def test_each_dataset_of_a_blend_is_measured(
    demo: tuple[Path, Path],
    cache: Path,
    tmp_path: Path,
    upgraded: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The size that changed is in the second alone."""
    for name, width in (("a", 56), ("b", 84)):
        write_tar(tmp_path / name / "a.tar", {"x.json": chat("<image>", "a"), "x.png": picture(width, 56, "PNG")})
        packed(demo_config(demo, cache, tmp_path, tmp_path / name, output__name=f"packed-{name}"))
    blend = tmp_path / "blend.yaml"
    parts = [{"path": f"packed-{name}", "weight": 1} for name in "ab"]
    blend.write_text(yaml.safe_dump({"splits": {"train": {"blend": parts}}}))
    load_template(blend, str(demo[1]))
    one_more(monkeypatch, 84, 56)
    load_template(tmp_path / "packed-a", str(demo[1]))
    with pytest.raises(ValueError, match="a sample of an image of 84×56 pixels and 'a' has 29 tokens here, 28 when"):
        load_template(blend, str(demo[1]))


def test_lengths_of_another_version_are_not_packed(
    demo: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache of lengths may be of other versions; a replay made by this one would then never differ from it."""
    write_tar(tmp_path / "in" / "a.tar", {"x.json": chat("<image>", "a"), "x.png": picture(56, 56, "PNG")})
    lengths = demo_config(demo, tmp_path / "cache", tmp_path, tmp_path / "in", stage=Stage.lengths)
    with monkeypatch.context() as patch:
        one_more(patch, 56, 56)
        load_saved.cache_clear()
        pack(lengths)
    load_saved.cache_clear()
    config = demo_config(demo, tmp_path / "cache", tmp_path, tmp_path / "in")
    with pytest.raises(LengthsWrong, match=r"a\.tar/x has \d+ tokens measured again, \d+ as measured before"):
        packed(config)
    assert packed(config).is_dir()


def test_a_processor_that_is_far_slower_here_is_not_waited_for(
    dataset: Path, template: Template, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first samples tell most; the lengths of all others are compared in training."""
    clock = iter(range(1000))
    monkeypatch.setattr(time, "thread_time", lambda: next(clock) / 4)
    assert replay.compare(template) == Compared(100, 8)
    assert replay.compare(template, 2) == Compared(100, 4)
