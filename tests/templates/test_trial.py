"""The samples that a processor is tried with, and what is said of what came of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from energon_pack.samples.media.medium import Media
from energon_pack.templates.build import build
from energon_pack.templates.choose import TemplateChoice
from energon_pack.templates.families.qwen_vl import QwenVL
from energon_pack.templates.identity import UNEVEN
from energon_pack.templates.processor import choice_of, load_template, prepare_template
from energon_pack.templates.trial import Trial
from support.models import of_model
from support.processors import glm4v, ovis2, pixtral
from support.running import need_torchvision


def test_videos_of_several_lengths_are_tried_with_enough_frames() -> None:
    """Clips of 11 frames are refused by processors that choose 32, or 2 a second: users' longer ones were, too."""
    [uneven] = [one.sample.media for one in Trial().tries if one.kind == UNEVEN]
    assert len({clip.num_frames for clip in uneven}) == 2
    assert all(clip.num_frames >= 32 and clip.num_frames / clip.fps >= 1 for clip in uneven)


def test_what_is_left_out_is_said_once_in_words() -> None:
    """Samples of videos with images go with the videos: three lines for one reason were said."""
    why = "no such token"
    alone = TemplateChoice(
        "kimi", "KimiProcessor", {"image": 50}, {"mixed": "it knows none", "uneven": "none", "video": why}
    )
    assert alone.lines("auto") == [
        "videos of KimiProcessor can't be measured: no such token",
        "media by kimi of KimiProcessor: 50 images as in its full call",
    ]
    several = TemplateChoice("internvl", "P", {"image": 50, "video": 5}, {"uneven": "stack expects equal sizes"})
    assert several.lines("auto") == [
        "videos of several lengths in one sample of P can't be measured: stack expects equal sizes",
        "media by internvl of P: 50 images, 5 videos as in its full call",
    ]


@pytest.mark.parametrize(
    ("write", "medium", "features"),
    [
        (pixtral, Media("image", 56, 84), 6),  # of two rows, two end in [IMG_BREAK], one in [IMG_END]
        (ovis2, Media("image", 56, 84), 20),  # four tiles and the whole, four <IMG_ATOM> each: it counted none
        (glm4v, Media("video", 56, 84, "mp4", 4, 2.0), 4),  # <|image|> stands for frames: it counted none
    ],
)
def test_a_feature_is_a_token_that_waits_for_one(
    tmp_path: Path, write: Callable[[Path], Path], medium: Media, features: int
) -> None:
    """A class lists tokens for rows and ends among those of its images, and `max_visual_tokens` counted them."""
    need_torchvision()
    folder = write(tmp_path / "processor")
    rules = build(of_model("shapes", folder), folder).rules
    ((text, number),) = rules.expand_all([medium], [range(medium.num_frames)])
    assert number == text.count(rules.feature_tokens[medium.kind]) == features


def test_rules_that_count_other_features_are_no_longer_exact(
    demo: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only texts were compared: `internvl` and `shapes` packed 3 and 0 of 19 samples of one set."""
    need_torchvision()
    template = load_template(of_model("qwen_vl", demo[1]))
    trial = Trial(lists=[(), ("image",)])
    assert trial.outcomes(template)["image"].is_exact
    own = QwenVL.expand
    monkeypatch.setattr(QwenVL, "expand", lambda *given: (own(*given)[0], own(*given)[1] + 2))
    template = load_template(of_model("qwen_vl", demo[1]))
    assert "features of media, and" in trial.outcomes(template)["image"].difference


@pytest.mark.parametrize("kept", [{"template": "of a later version", "tried": []}, {"template": "text"}, []])
def test_a_choice_that_means_nothing_here_is_made_again(
    tmp_path: Path, real: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kept: object
) -> None:
    """A later version had written the name of a family that is not here: no start came through any more."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = of_model("text", real / "processors" / "qwen2_5_text")
    prepare_template(settings, tmp_path / "first")
    (file,) = (tmp_path / "energon_pack" / "choices").iterdir()
    file.write_text(json.dumps(kept))
    assert choice_of(prepare_template(settings, tmp_path / "second")).template == "text"
    assert "is made again" in caplog.text
