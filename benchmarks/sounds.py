"""Are sounds counted as training hears them? Compares headers with the decoder, and tokens with full processors.

    python benchmarks/sounds.py                   # 1,000 clips, thirteen classes of transformers: ten minutes
    python benchmarks/sounds.py --clips 100 --classes MOSS

Clips hold tones, noise and, if espeak-ng is installed, speech. They have the containers and encoders of `FORMATS`, 8 to
96 kHz, mono to 5.1, and last 10 ms to two minutes; some are cut short. The script prints for each container how many
clips have other samples than the decoder gives, and for each class how many have other tokens than the full processor
makes of the decoded sound. The exit code is 1 if any clip has.
"""

import argparse
import io
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.prepared import PreparedMedia, processor_arguments
from energon_pack.samples.media.read_media import probe
from energon_pack.samples.media.streams import decode_audio, resampled_length
from energon_pack.samples.skip import Skip
from energon_pack.templates.choose_rules import build_with_best_rules
from energon_pack.templates.full_processor import load_full_processor
from energon_pack.templates.processor_inputs import full_processor_ids
from energon_pack.templates.sample import Sample
from energon_pack.templates.settings import ModelConfig, TemplateSettings
from support import hearing, processors

#: container, encoder, and the rates that the encoder takes
FORMATS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("wav", "pcm_s16le", (8000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000)),
    ("wav", "pcm_s24le", (16_000, 44_100)),
    ("wav", "pcm_f32le", (16_000, 48_000)),
    ("wav", "pcm_mulaw", (8000,)),
    ("aiff", "pcm_s16be", (16_000, 22_050, 44_100)),
    ("flac", "flac", (8000, 16_000, 44_100, 96_000)),
    ("mp3", "libmp3lame", (16_000, 22_050, 44_100, 48_000)),
    ("ogg", "libopus", (8000, 16_000, 48_000)),
    ("webm", "libopus", (48_000,)),
    ("ipod", "aac", (16_000, 44_100, 48_000)),
    ("adts", "aac", (16_000, 44_100)),
)
CLASSES: dict[str, Callable[[Path], Path]] = {
    "Qwen2-Audio": processors.qwen2_audio,
    "Qwen2.5-Omni": processors.qwen2_5_omni,
    "Qwen3-Omni": processors.qwen3_omni,
    "Gemma 3n": processors.gemma3n,
    "Gemma 4": hearing.gemma4,
    "AudioFlamingo3": partial(processors.hearing, name="AudioFlamingo3", token="<sound>"),
    "GLM-ASR": partial(processors.hearing, name="GlmAsr", token="<|pad|>"),
    "Qwen3-ASR": partial(processors.hearing, name="Qwen3ASR", extractor="Qwen3ASR", more=("<|abos|>", "<|aeos|>")),
    "Music Flamingo": partial(
        processors.hearing, name="MusicFlamingo", token="<sound>", more=("<|sound_bos|>", "<|sound_eos|>")
    ),
    "VibeVoice-ASR": hearing.vibevoice_asr,
    "MOSS": hearing.moss,
    "Phi-4": hearing.phi4,
}
SECONDS = (0.01, 120)
CUT = 0.05  # share of clips that are cut short


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--clips", type=int, default=1000)
    arguments.add_argument("--classes", nargs="+", choices=CLASSES, default=list(CLASSES), metavar="CLASS")
    given = arguments.parse_args()
    clips = list(made(given.clips))
    print(f"{len(clips)} clips of {sum(len(data) for _, data in clips) / 1e6:.0f} MB")
    sounds = list(heard(clips))
    wrong = sum([compared(name, CLASSES[name], sounds) for name in given.classes])
    sys.exit(bool(wrong or any(found.num_samples != len(own) for found, own, _ in sounds)))


def made(number: int) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each clip."""
    rng = random.Random(0)
    while number:
        container, codec, rates = rng.choice(FORMATS)
        rate = rng.choice(rates)
        seconds = SECONDS[0] * (SECONDS[1] / SECONDS[0]) ** (rng.random() * rng.random() ** 0.5)
        samples = of_speech(rng, rate) if rng.random() < 0.2 else of_tones(rng, round(seconds * rate), rate)
        layout = (
            rng.choice(("mono", "mono", "stereo", "5.1")) if codec != "libmp3lame" else rng.choice(("mono", "stereo"))
        )
        try:
            data = encoded(samples, rate, container, codec, layout)
        except av.FFmpegError:  # some encoders refuse very short sounds, or many channels
            continue
        number -= 1
        yield (f"cut {container}", data[: round(len(data) * rng.random())]) if rng.random() < CUT else (container, data)


def of_tones(rng: random.Random, num_samples: int, rate: int) -> Any:
    """Return a tone under noise, float32 [n]."""
    times = np.arange(max(num_samples, 1)) / rate
    noise = np.random.default_rng(num_samples).normal(0, 0.05, len(times))
    return (0.3 * np.sin(2 * np.pi * rng.uniform(100, 3000) * times) + noise).astype(np.float32)


def of_speech(rng: random.Random, rate: int) -> Any:
    """Return a spoken sentence; tones if espeak-ng is not installed."""
    if shutil.which("espeak-ng") is None:
        return of_tones(rng, rate, rate)
    words = ["packs", "hold", "samples", "of", "many", "lengths", "and", "none", "sees", "another"]
    said = " ".join(rng.sample(words, len(words)))
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        subprocess.run(["espeak-ng", "-w", file.name, said], check=True)
        return decode_audio(Path(file.name).read_bytes(), rate)


def encoded(samples: Any, rate: int, container: str, codec: str, layout: str) -> bytes:
    """Return a file of a sound with the same samples in every channel."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as writer:
        stream: Any = writer.add_stream(codec, rate=rate)
        stream.layout = layout
        channels = np.repeat(samples[None], stream.codec_context.layout.nb_channels, axis=0)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(channels), format="fltp", layout=layout)
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        writer.mux(stream.encode(frame))
        writer.mux(stream.encode(None))
    return file.getvalue()


def heard(clips: list[tuple[str, bytes]]) -> Iterator[tuple[Media, Any, bytes]]:
    """Yield each sound's measured medium, its samples as training decodes them, and its bytes."""
    refused: Counter[str] = Counter()
    counts: dict[str, Counter[str]] = {}
    seconds = 0.0
    for name, data in clips:
        start = time.process_time()
        try:
            found = probe(io.BytesIO(data))
        except Skip as skip:
            refused[f"{name}: {skip.detail.partition(':')[0]}"] += 1
            continue
        finally:
            seconds += time.process_time() - start
        samples = decode_audio(data, found.rate)
        is_same = len(samples) == found.num_samples and all(
            len(decode_audio(data, rate)) == resampled_length(found.num_samples, found.rate, rate)
            for rate in (16_000, 24_000)
        )
        counts.setdefault(name, Counter())["equal" if is_same else "differ"] += 1
        yield found, samples, data
    print(f"measured at {len(clips) / seconds:,.0f} clips a CPU second")
    for name, count in sorted(counts.items()):
        print(f"  {name:12} {count['equal']:5} equal {count['differ']:3} differ")
    for what, number in sorted(refused.items()):
        print(f"  refused: {number} {what}")


def compared(name: str, write: Callable[[Path], Path], sounds: list[tuple[Media, Any, bytes]]) -> int:
    """Return how many sounds have other tokens than the full processor of the class makes."""
    with tempfile.TemporaryDirectory() as folder:
        processor = write(Path(folder) / "processor")
        template, _ = build_with_best_rules(
            TemplateSettings(ModelConfig(template="auto", processor=str(processor))), processor
        )
        full, by = load_full_processor(template.spec.processor), template.spec.family
        differ = refused = 0
        asked = called = 0.0
        for found, _, data in sounds:
            text = [{"role": "user", "content": "<audio>What is it?"}, {"role": "assistant", "content": "A tone."}]
            sample = Sample(text, [found])
            start = time.process_time()
            try:
                ids: list[int] | None = template.encode(sample).ids
            except Skip:
                ids = None
            asked += time.process_time() - start
            samples = decode_audio(data, template.rules.rate)
            media = PreparedMedia(["audio"], [samples])
            start = time.process_time()
            try:
                truth: list[int] | None = full_processor_ids(
                    full, template, sample, processor_arguments(template.input_rules, media)
                )
            except Exception:  # any class of any processor may be behind it
                truth = None
            called += time.process_time() - start
            differ += ids != truth
            refused += ids is None
        number = len(sounds)
        times = f"{asked / number * 1e3:.2f} ms a clip, the full processor {called / number * 1e3:.1f}"
        print(f"  {name:16} by {by}: {number} clips, {differ} differ, {refused} refused by both; {times}", flush=True)
        return differ


if __name__ == "__main__":
    main()
