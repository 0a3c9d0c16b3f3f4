"""Sounds as tokens: as many as the full processor's call makes of the samples that training decodes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from energon_pack.errors import PackError
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.prepared import media_inputs, prepared_media
from energon_pack.samples.media.streams import decode_audio
from energon_pack.samples.skip import Skip
from energon_pack.templates.build import build
from energon_pack.templates.families.stand_ins import by_shape
from energon_pack.templates.full import full_processor
from energon_pack.templates.processor_inputs import full_ids
from energon_pack.templates.sample import Sample
from support import processors
from support.models import of_model
from support.running import need_torchvision
from support.samples import sound

TURNS = [{"role": "user", "content": "<audio>What is said?"}, {"role": "assistant", "content": "Nothing."}]


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    need_torchvision()


@pytest.mark.parametrize(
    ("write", "token", "second"),
    [
        (processors.qwen2_audio, "<|AUDIO|>", 25),
        pytest.param(processors.qwen3_omni, "<|audio_pad|>", 13, marks=pytest.mark.slow),
        pytest.param(processors.gemma3n, "<audio_soft_token>", 6, marks=pytest.mark.slow),
    ],
)
def test_lengths_are_the_processors(tmp_path: Path, write: Callable[[Path], Path], token: str, second: int) -> None:
    """A second of sound by head, and odd lengths and rates, beyond the 30 seconds that Qwen2-Audio hears, too."""
    template = build(of_model("shapes", folder := write(tmp_path / "processor")), folder)
    assert template.render(Sample(TURNS, [Media("audio", num_samples=16_000, rate=16_000)])).num_audio_tokens == second
    full = full_processor(template.spec.processor)
    for num_samples, rate in ((16_001, 16_000), (7000, 8000), (50_123, 48_000), (510_000, 16_000)):
        data = sound(num_samples, rate)
        sample = Sample(TURNS, [Media("audio", extension="wav", num_samples=num_samples, rate=rate)])
        made = media_inputs(
            template.input_rules, prepared_media(template.input_rules, template.seen(sample.media), [data])
        )
        assert template.encode(sample).ids == full_ids(full, template, sample, made)
        ids = template.encode(sample).ids
        assert sum(number == template.token_id(token) for number in ids) == template.render(sample).num_audio_tokens


def test_nobody_listens_to_them(tmp_path: Path) -> None:
    """The spectrogram takes 20 ms of each clip; without values it takes none, and has the same shape."""
    template = build(of_model("shapes", folder := processors.qwen2_audio(tmp_path / "processor")), folder)
    extractor = full_processor(template.spec.processor).feature_extractor
    ((name, stand_in),) = by_shape(extractor).items()
    samples = np.zeros((1, 12_345), np.float32)
    assert stand_in(samples, "cpu").shape == getattr(extractor, name)(samples, "cpu").shape == (1, 8, 77)
    assert by_shape(object()) == {}


def test_a_damaged_sound_is_not_trained_on(tmp_path: Path) -> None:
    """Its header tells of samples that the decoder does not find: tokens would stand for no features."""
    template = build(of_model("shapes", folder := processors.qwen2_audio(tmp_path / "processor")), folder)
    media = [Media("audio", extension="wav", num_samples=9000, rate=16_000)]
    with pytest.raises(ValueError, match="a sound has 8000 samples, and 9000 by its header"):
        prepared_media(template.input_rules, template.seen(media), [sound(8000)])
    assert len(decode_audio(sound(8000), 16_000)) == 8000


def test_what_is_not_heard_is_refused_by_name(tmp_path: Path) -> None:
    folder = processors.qwen2_audio(tmp_path / "processor")
    template = build(of_model("shapes", folder), folder)
    with pytest.raises(
        Skip, match=r"unsupported_media: model\.template=shapes sees no image: models that do are qwen3_vl, "
    ):
        template.render(Sample([{**TURNS[0], "content": "<image>"}, TURNS[1]], [Media("image", 9, 9)]))
    with pytest.raises(PackError, match=r"load_audio_from_video: source\.use_audio_in_video=true"):
        build(of_model("shapes", folder, processor_kwargs={"load_audio_from_video": True}), folder)
