"""Videos that are heard: tokens of their sounds stand among those of their frames as the class's own call puts them."""

import io
from collections.abc import Callable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_pack.errors import PackError
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.prepared import prepare_media_for_processor, processor_arguments, sound_arguments
from energon_pack.samples.media.read_media import probe, with_requested_settings
from energon_pack.samples.media.streams import decode_audio
from energon_pack.samples.member import SampleOptions
from energon_pack.samples.skip import Skip
from energon_pack.templates.build import build
from energon_pack.templates.choose_rules import build_with_best_rules
from energon_pack.templates.families.asked_processor import ProcessorProbe
from energon_pack.templates.families.stand_ins import blank_spectrogram_method
from energon_pack.templates.full_processor import load_full_processor
from energon_pack.templates.identity import HEARD_VIDEOS
from energon_pack.templates.processor_inputs import full_processor_ids
from energon_pack.templates.sample import Sample
from energon_pack.templates.settings import MediaConfig
from energon_pack.templates.template import Template
from energon_pack.templates.trial import ProcessorTrial
from support import processors
from support.models import of_model
from support.running import need_torchvision
from support.samples import HEARD_IN, sound, video, video_with_sound

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of tensors
ANSWER = {"role": "assistant", "content": "Noise."}


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    need_torchvision()


def template_of(write: Callable[[Path], Path], folder: Path, **settings: Any) -> Template:
    made = write(folder / "processor")
    return build(of_model("shapes", made, **settings), made)


def looked_at(*files: bytes, heard: bool = True) -> list[Media]:
    found = [probe(io.BytesIO(data)) for data in files]
    return with_requested_settings(
        found, None, SampleOptions(use_audio_in_video=heard), lambda index: io.BytesIO(files[index])
    )


def asked(media: list[Media]) -> Sample:
    text = "".join(f"<{medium.kind}>" for medium in media)
    return Sample([{"role": "user", "content": f"{text}What is it?"}, ANSWER], media)


def test_a_clip_by_head(tmp_path: Path) -> None:
    """Qwen2.5-Omni: 144 tokens and a second of each two frames; 3 seconds of 25 tokens, in chunks of 2 seconds."""
    template = template_of(processors.qwen2_5_omni, tmp_path)
    clip = Media("video", 56, 56, "mp4", 8, 2.0, num_samples=48_000, rate=16_000)
    rendered = template.render(asked([clip]))
    written = rendered.text.partition("<|audio_bos|>")[2].partition("<|audio_eos|>")[0]
    runs = [(token, len([*own])) for token, own in groupby(written.replace("|><|", "|> <|").split())]
    assert runs == [("<|VIDEO|>", 288), ("<|AUDIO|>", 50), ("<|VIDEO|>", 288), ("<|AUDIO|>", 25)]
    assert (rendered.num_visual_tokens, rendered.num_audio_tokens) == (576, 75)
    silent = template.render(asked([Media("video", 56, 56, "mp4", 8, 2.0)]))
    assert (silent.num_visual_tokens, silent.num_audio_tokens) == (576, 0)
    start, end = rendered.media[0]
    assert all(last <= start or end <= first for first, last in rendered.spans), "a token of a medium is a label"


CLIPS = [
    (format, codec, *rest)
    for format, (_, codecs) in HEARD_IN.items()
    for codec, rest in zip(
        codecs, ((12, 5, 9000, 48_000), (9, 29.97, 40_000, 16_000), (20, 10, 5000, 44_100)), strict=False
    )
]


@pytest.mark.parametrize("media", ["default", pytest.param("fps", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "write", [processors.qwen2_5_omni, pytest.param(processors.qwen3_omni, marks=pytest.mark.slow)]
)
def test_tokens_are_the_processors(tmp_path: Path, write: Callable[[Path], Path], media: str) -> None:
    """Each container, sounds that are shorter and longer than the pictures; behind an image and a sound, too."""
    template = template_of(write, tmp_path, media=MediaConfig(video=media, fps=1.0 if media == "fps" else None))
    full = load_full_processor(template.spec.processor)
    for number, (format, codec, num_frames, fps, num_samples, rate) in enumerate(CLIPS):
        files = [video_with_sound(num_frames, fps, num_samples, rate, format, codec)]
        if number % 2:
            files = [sound(7000, 22_050), *files, video_with_sound(6, 2, 30_000)]
        sample = asked(looked_at(*files))
        given = processor_arguments(
            template.input_rules, prepare_media_for_processor(template.input_rules, template.seen(sample.media), files)
        )
        ids = template.encode(sample).ids
        assert ids == full_processor_ids(full, template, sample, given)
        heard = sum(number == template.token_id(template.rules.media_tokens["audio"]) for number in ids)
        assert heard == template.render(sample).num_audio_tokens > 0


def test_seconds_are_those_of_the_run(tmp_path: Path) -> None:
    """By `media.fps` the class places sounds, and numbers frames: with its default they would come too early."""
    template = template_of(processors.qwen2_5_omni, tmp_path, media=MediaConfig(video="fps", fps=1.0))
    data = video(30)
    made = load_full_processor(template.spec.processor)(
        text=["<|vision_bos|><|VIDEO|><|vision_eos|>"],
        return_tensors="pt",
        **processor_arguments(
            template.input_rules,
            prepare_media_for_processor(template.input_rules, template.seen(looked_at(data, heard=False)), [data]),
        ),
    )
    assert made["video_second_per_grid"].tolist() == [2.0]


def test_a_silent_video_stays_one(tmp_path: Path) -> None:
    """As in the processor's own call. Beside one that is heard the model's class has no positions for it."""
    template = template_of(processors.qwen2_5_omni, tmp_path)
    silent, spoken = looked_at(video(8), video_with_sound())
    assert silent == probe(io.BytesIO(video(8)))
    assert template.render(asked([silent, silent])).num_audio_tokens == 0
    with pytest.raises(Skip, match=r"unsupported_media: use_audio_in_video: a video has no sound beside one that has"):
        template.render(asked([silent, spoken]))


def test_what_can_not_be_heard_costs_its_sample(tmp_path: Path) -> None:
    spoken = looked_at(video_with_sound())
    template = template_of(processors.glm4v, tmp_path)
    with pytest.raises(Skip, match=r"unsupported_media: use_audio_in_video: model\.template=shapes hears no sound"):
        template.render(asked(spoken))
    template = template_of(processors.qwen2_5_omni, tmp_path / "omni")
    with pytest.raises(Skip, match="unreadable_media: use_audio_in_video: the sound of a video is too short"):
        template.render(asked([Media("video", 56, 56, "mp4", 8, 2.0, num_samples=100, rate=16_000)]))
    options = SampleOptions(use_audio_in_video=True, media=({"video_start": 0.2},))
    data = video_with_sound()
    with pytest.raises(Skip, match=r"unsupported_media: the sound of a part of a video is not heard"):
        with_requested_settings([probe(io.BytesIO(data))], None, options, lambda _: io.BytesIO(data))
    with pytest.raises(PackError, match=r"load_audio_from_video: source\.use_audio_in_video=true"):
        template_of(processors.qwen2_5_omni, tmp_path / "other", processor_kwargs={"load_audio_from_video": True})


def test_sounds_come_in_the_order_of_their_placeholders(tmp_path: Path) -> None:
    """Features take the places of tokens one after another; transformers lists sounds of a conversation as here."""
    found = sound_arguments(["audio", "image", "video", "video", "audio"], [None, "track"], ["first", "last"])
    assert (found["audio"], found["audio_from_video_indices"]) == (["first", "track", "last"], [None, 1, None])
    assert sound_arguments(["video", "audio"], [None], ["first"]) == {"audio": ["first"]}
    assert sound_arguments(["video"], [None], []) == {}
    full = load_full_processor(template_of(processors.qwen2_5_omni, tmp_path).spec.processor)
    parts = [{"type": "audio", "audio": np.zeros(9)}, {"type": "video", "video": "a.mp4"}]
    theirs = full._multimodal_inputs_from_conversations([[{"role": "user", "content": parts}]], {}, True)[-1]
    ours = sound_arguments(["audio", "video"], ["track"], ["first"])
    assert theirs == {name: ours[name] for name in theirs}


def _behind(text: str) -> str:
    """The tokens of a sound behind all of the frames."""
    return "".join(
        sorted(
            text.replace("><", "> <").split(),
            key=lambda token: [end in token for end in ("bos", "VIDEO", "AUDIO", "eos")].index(True),
        )
    )


@pytest.mark.long("two trials of random samples")
def test_a_wrong_interleaving_is_seen_before_any_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the tokens of a sound put behind those of the frames, lengths would be right, and all else wrong."""
    texts = ProcessorProbe.texts

    def behind(asking: ProcessorProbe, tokens: Any, media: Any, frames: Any) -> Any:
        written, around = texts(asking, tokens, media, frames)
        return [_behind(text) if medium.is_heard else text for text, medium in zip(written, media, strict=True)], around

    folder = processors.qwen2_5_omni(tmp_path / "processor")
    settings = of_model("auto", folder)
    monkeypatch.setattr(
        "energon_pack.templates.choose_rules.ProcessorTrial",
        partial(ProcessorTrial, lists=[(), ("video",), (HEARD_VIDEOS,)]),
    )
    template, choice = build_with_best_rules(settings, folder)
    assert choice.left_out.get(HEARD_VIDEOS) is None
    monkeypatch.setattr(ProcessorProbe, "texts", behind)
    template, choice = build_with_best_rules(settings, folder)
    assert "the full processor" in choice.left_out[HEARD_VIDEOS]
    with pytest.raises(Skip, match="hears no sound of a video"):
        template.render(asked(looked_at(video_with_sound())))


TURNS = [{"role": "user", "content": "<audio>What is said?"}, {"role": "assistant", "content": "Nothing."}]


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
    full = load_full_processor(template.spec.processor)
    for num_samples, rate in ((16_001, 16_000), (7000, 8000), (50_123, 48_000), (510_000, 16_000)):
        data = sound(num_samples, rate)
        sample = Sample(TURNS, [Media("audio", extension="wav", num_samples=num_samples, rate=rate)])
        made = processor_arguments(
            template.input_rules, prepare_media_for_processor(template.input_rules, template.seen(sample.media), [data])
        )
        assert template.encode(sample).ids == full_processor_ids(full, template, sample, made)
        ids = template.encode(sample).ids
        assert sum(number == template.token_id(token) for number in ids) == template.render(sample).num_audio_tokens


def test_nobody_listens_to_them(tmp_path: Path) -> None:
    """The spectrogram takes 20 ms of each clip; without values it takes none, and has the same shape."""
    template = build(of_model("shapes", folder := processors.qwen2_audio(tmp_path / "processor")), folder)
    extractor = load_full_processor(template.spec.processor).feature_extractor
    ((name, stand_in),) = blank_spectrogram_method(extractor).items()
    samples = np.zeros((1, 12_345), np.float32)
    assert stand_in(samples, "cpu").shape == getattr(extractor, name)(samples, "cpu").shape == (1, 8, 77)
    assert blank_spectrogram_method(object()) == {}


def test_a_damaged_sound_is_not_trained_on(tmp_path: Path) -> None:
    """Its header tells of samples that the decoder does not find: tokens would stand for no features."""
    template = build(of_model("shapes", folder := processors.qwen2_audio(tmp_path / "processor")), folder)
    media = [Media("audio", extension="wav", num_samples=9000, rate=16_000)]
    with pytest.raises(ValueError, match="a sound has 8000 samples, and 9000 by its header"):
        prepare_media_for_processor(template.input_rules, template.seen(media), [sound(8000)])
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
