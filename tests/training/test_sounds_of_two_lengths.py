"""Two sounds of different lengths in a pack: the shorter one is padded, and some classes see the padding."""

from pathlib import Path
from typing import Any

import pytest

from energon_pack.templates.build import build
from energon_pack.training.member_encoder import Encoded, MemberEncoder
from energon_pack.training.proof import find_remedy_for_mixing, try_masks
from support import processors
from support.hearing import HEARING, text_config
from support.models import of_model
from support.processors import template_of, write_dummy
from support.running import need_torchvision
from support.tiny import tf

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of tensors, in transformers
]
ONE_SOUND = "packing.max_audios=1 and a pack a batch keep them apart"


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    need_torchvision()


def made(folder: Path, name: str) -> tuple[Any, MemberEncoder]:
    """A config of a tiny model, and an encoder with its processor."""
    one = HEARING[name]
    pytest.importorskip(one.needs, reason=f"{one.needs} makes the features of {name}")
    one.write(folder)
    config = one.config(lambda token: processors.token_id(folder, token))
    return config, MemberEncoder(build(of_model("shapes", folder), folder).input_rules)


def test_an_encoder_that_sees_padding_is_refused(tmp_path: Path) -> None:
    """Beside a longer sound a sound has other features than alone, and a change of a member shows in itself alone."""
    make = tf.Qwen3ASRForConditionalGeneration

    class Padded(make):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any, input_features: Any = None, **kwargs: Any) -> Any:
            if input_features is not None:
                input_features = input_features + 1e-3 * input_features.shape[-1]
            return super().forward(*args, input_features=input_features, **kwargs)

    config, encoder = made(tmp_path, make.__name__)
    members = encoder.probe_members()
    assert try_masks(make, config, members, "positions")[-1].is_exact
    assert try_masks(Padded, config, encoder.probe_members(several_sounds=False), "positions")[-1].is_exact
    proofs = try_masks(Padded, config, members, "positions")
    assert not proofs[-1].is_exact
    assert find_remedy_for_mixing(Padded, config, members, "sdpa", None, proofs).startswith(ONE_SOUND)


def test_a_part_without_an_attention_implementation_is_seen(tmp_path: Path) -> None:
    """Fun-ASR-Nano's adaptor sees padding unless the model is loaded with `attn_implementation`; a small model that was
    made with it would be shown exact.
    """
    make = tf.FunAsrNanoForConditionalGeneration
    config, encoder = made(tmp_path, make.__name__)
    members = encoder.probe_members()
    assert try_masks(make, make(config).config, members, "positions", "sdpa")[-1].is_exact
    config.adaptor_config._attn_implementation = None
    model = make(config)
    proofs = try_masks(make, model.config, members, "positions", "sdpa")
    assert not proofs[-1].is_exact
    out = find_remedy_for_mixing(make, model.config, members, "sdpa", None, proofs)
    assert out.startswith("attn_implementation='sdpa' keeps them apart")


def test_nemotron_h_omni_takes_one_sound(tmp_path: Path) -> None:
    """The last token of a sound of 8 × n frames lies where its encoder sees padding alone. Its language model is a
    Llama here, as its own needs kernels.
    """
    members = [member for member in _nemotron_members(tmp_path) if not member.num_images]

    def token(spelled: str) -> int:
        return processors.token_id(tmp_path, spelled)

    sounds = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    sounds |= {"subsampling_conv_channels": 8, "num_mel_bins": 16, "projection_hidden_size": 24}
    views = {"model_type": "radio", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = tf.NemotronH_Omni_Reasoning_V3_Config(
        text_config=text_config(model_type="llama", num_nextn_predict_layers=0), vision_hidden_size=16,
        audio_config={**sounds, "initializer_range": 0.2, "projection_bias": False}, projector_hidden_size=16,
        vision_config={**views, "video_temporal_patch_size": 2}, image_token_id=token("<image>"),
        video_token_id=token("<video>"), audio_token_id=token("<so_embedding>"),
    )  # fmt: skip
    make = tf.NemotronH_Omni_Reasoning_V3
    assert [len(member.media) for member in members] == [0, 2, 2, 0]
    proofs = try_masks(make, config, members, "positions")
    assert proofs[-1].finding is not None
    assert proofs[-1].finding.output_difference > 0.01
    assert find_remedy_for_mixing(make, config, members, "sdpa", None, proofs).startswith(ONE_SOUND)


def _nemotron_members(folder: Path) -> list[Encoded]:
    names = {"image_token": "<image>", "video_token": "<video>", "audio_token": "<so_embedding>"}
    kind = "NemotronH_Omni_Reasoning_V3"
    parts = {"image_processor_type": f"{kind}ImageProcessor", "feature_extractor_type": "ParakeetFeatureExtractor"}
    clips = {"video_processor_type": f"{kind}VideoProcessor", "norm_mean": [0.5] * 3, "norm_std": [0.3] * 3}
    files: dict[str, Any] = {
        "preprocessor_config": {**parts, "feature_size": 16},
        "video_preprocessor_config": clips,
    }
    written = template_of("<image>", "<video>", "<so_embedding>")
    around = ("<so_start>", "<so_end>", "<img>", "</img>")
    write_dummy(folder, f"{kind}Processor", [*names.values(), *around], written, files, names)
    return MemberEncoder(build(of_model("shapes", folder), folder).input_rules).probe_members()
