"""Videos that are heard, in training: joined, placed and guarded as their class does it, whatever else is in a pack."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.prepared import PreparedMedia
from energon_pack.templates.build import build
from energon_pack.templates.template import Template
from energon_pack.training.encoded import has_audio_in_video
from energon_pack.training.media_inputs import MediaProcessor
from energon_pack.training.member_encoder import Encoded, MemberEncoder
from energon_pack.training.processor_calls import MediaProcessorCaller, _random_medium
from energon_pack.training.proof import try_masks
from energon_pack.training.rope import OwnRope
from energon_pack.training.rope_rule import rope_rule_of
from support import omni, processors
from support.models import of_model
from support.running import need_torchvision
from support.tiny import tf

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of tensors, in transformers
]
CLASSES = {
    "Qwen2_5OmniThinkerForConditionalGeneration": (processors.qwen2_5_omni, omni.qwen2_5_omni),
    "Qwen3OmniMoeThinkerForConditionalGeneration": (processors.qwen3_omni, omni.qwen3_omni),
}
NAMES = [next(iter(CLASSES)), pytest.param([*CLASSES][1], marks=pytest.mark.slow)]


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    need_torchvision()


@pytest.fixture
def template(tmp_path: Path, name: str) -> Template:
    folder = CLASSES[name][0](tmp_path / "processor")
    return build(of_model("shapes", folder), folder)


def config_of(name: str, template: Template) -> Any:
    def token(spelled: str) -> int:
        number = template.token_id(spelled)
        assert number is not None
        return number

    return CLASSES[name][1](token)


def members_of(template: Template) -> list[Encoded]:
    rope = rope_rule_of("auto", template.input_rules)
    assert isinstance(rope, OwnRope)
    return MemberEncoder(template.input_rules, rope).probe_members()


@pytest.mark.parametrize(
    ("types", "is_heard"),
    [
        ([0, 2, 2, 3, 3, 0], True),
        ([0, 3, 2], True),
        ([2, 0, 3], False),
        ([1, 3, 0], False),
        ([2, 2], False),
        ([], False),
    ],
)
def test_a_heard_video_is_known_by_its_tokens(types: list[int], is_heard: bool) -> None:
    """Its tokens touch those of its sound; between a video and a sound of its own stand the marks of both."""
    assert has_audio_in_video(torch.tensor(types)) == is_heard


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_guard_shows_packs_with_them(template: Template, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members see none of each other, and have the logits that the class gives each by itself.

    Positions without the sounds, and a model that adds what came before, are seen.
    """
    make = getattr(tf, name)
    config, members = config_of(name, template), members_of(template)
    assert [has_audio_in_video(member.tokens.types) for member in members] == [
        False,
        False,
        False,
        False,
        False,
        True,
        False,
    ]
    proof = try_masks(make, config, members, "positions")[-1]
    assert proof.is_exact, proof

    class Leaky(make):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            out = super().forward(*args, **kwargs)
            out.logits = out.logits + 1e-2 * out.logits.cumsum(1)
            return out

    assert not try_masks(Leaky, config, members, "positions")[-1].is_exact
    monkeypatch.setattr("energon_pack.training.rope.has_audio_in_video", lambda types: False)
    assert not try_masks(make, config, members_of(template), "positions")[-1].is_exact


@pytest.mark.parametrize("name", NAMES)
def test_inputs_of_members_are_joined_as_the_processor_shows(template: Template, name: str) -> None:
    """One call for all, or a call for each: sounds of videos and others are in the order of their tokens."""
    members = list(given(template))
    alone = [MediaProcessorCaller(template.input_rules)([member]) for member in members]
    together = MediaProcessor(template.input_rules)(members)
    for key, value in together.items():
        if key != "input_features":  # whose last frames see the padding
            assert torch.equal(value, torch.cat([_grown(part[key], value) for part in alone if key in part])), key
    lengths = together["feature_attention_mask"].sum(-1).tolist()
    assert lengths == [270, 60, 130, 110]  # hundreds a second


def given(template: Template) -> Iterator[PreparedMedia]:
    (film,) = template.seen([Media("video", 96, 64, "mp4", 4, 2.0, (0, 1, 2, 3))])
    clips = [_random_medium(template.input_rules, film, number) for number in range(3)]
    tracks = [track(template, seconds, 7) for seconds in (2.7, 1.3)]
    heard = [one._replace(sound=track) for one, track in zip(clips, tracks, strict=False)]
    first, last = (track(template, seconds, 8) for seconds in (0.6, 1.1))
    yield PreparedMedia(["video"], [heard[0]])
    yield PreparedMedia(["video"], [clips[2]])
    yield PreparedMedia(["audio", "video", "audio"], [first, heard[1], last])


def track(template: Template, seconds: float, seed: int) -> Any:
    rate = template.rules.rate
    (sound,) = template.seen([Media("audio", num_samples=round(seconds * rate), rate=rate)])
    return _random_medium(template.input_rules, sound, seed)


def _grown(value: Tensor, like: Tensor) -> Tensor:
    missing = like.shape[-1] - value.shape[-1] if value.dim() == 2 else 0
    return torch.nn.functional.pad(value, (0, missing))
