"""Are videos that are heard counted as training has them? Compares their tokens with those of full processors.

    python benchmarks/heard_videos.py             # 400 clips, two classes of transformers: ten minutes
    python benchmarks/heard_videos.py --clips 40 --classes Qwen3-Omni --frames fps=4

Clips are MP4 with AAC, Matroska with Opus, AAC, FLAC and PCM, and WebM with Opus and Vorbis. They have 4 to 60 frames,
1 to 60 a second, and sounds of 8 to 48 kHz that are shorter or longer than the pictures. The processor or `media.fps`
chooses frames. Each clip is alone, behind a sound, or beside another clip. The script prints for each class how many
samples have other tokens than the full processor makes of the decoded media. The exit code is 1 if any sample has.
"""

import argparse
import io
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.prepared import prepare_media_for_processor, processor_arguments
from energon_pack.samples.media.read_media import probe, with_requested_settings
from energon_pack.samples.media.streams import decode_audio, resampled_length
from energon_pack.samples.member import SampleOptions
from energon_pack.samples.skip import Skip
from energon_pack.templates.choose_rules import build_with_best_rules
from energon_pack.templates.full_processor import load_full_processor
from energon_pack.templates.processor_inputs import full_processor_ids
from energon_pack.templates.sample import Sample
from energon_pack.templates.settings import MediaConfig, ModelConfig, TemplateSettings
from support import processors
from support.samples import HEARD_IN, sound, video_with_sound

CLASSES: dict[str, Callable[[Path], Path]] = {
    "Qwen2.5-Omni": processors.qwen2_5_omni,
    "Qwen3-Omni": processors.qwen3_omni,
}
MEDIA = {
    "processor": MediaConfig(),
    "fps=1": MediaConfig(video="fps", fps=1.0),
    "fps=4": MediaConfig(video="fps", fps=4.0),
}
RATES = {"libopus": (8000, 16_000, 48_000), "vorbis": (16_000, 44_100, 48_000)}
HEARD = SampleOptions(use_audio_in_video=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--clips", type=int, default=400)
    arguments.add_argument("--classes", nargs="+", choices=CLASSES, default=list(CLASSES), metavar="CLASS")
    arguments.add_argument("--frames", nargs="+", choices=MEDIA, default=list(MEDIA), help="who chooses frames")
    given = arguments.parse_args()
    clips = list(made(given.clips))
    found, seconds, differ = [], 0.0, 0
    counts: Counter[str] = Counter()
    for name, data in clips:
        start = time.process_time()
        try:
            (video,) = looked_at(data)
        except Skip as skip:
            counts[f"refused: {name}: {skip.detail[:60]}"] += 1
            continue
        finally:
            seconds += time.process_time() - start
        is_same = all(
            len(decode_audio(data, rate)) == resampled_length(video.num_samples, video.rate, rate)
            for rate in (16_000, video.rate)
        )
        differ += not is_same
        counts[f"{name}: {'as many samples as training decodes' if is_same else 'other samples'}"] += 1
        found.append((video, data))
    print(f"{len(clips)} clips, measured at {len(clips) / seconds:,.0f} a CPU second")
    for name, number in sorted(counts.items()):
        print(f"  {number:4} {name}")
    differ += sum(compared(name, CLASSES[name], media, found) for name in given.classes for media in given.frames)
    sys.exit(bool(differ))


def looked_at(data: bytes) -> list[Media]:
    return with_requested_settings([probe(io.BytesIO(data))], None, HEARD, lambda _: io.BytesIO(data))


def made(number: int) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each clip."""
    rng = random.Random(0)
    kinds = [(format, codec) for format, (_, codecs) in HEARD_IN.items() for codec in codecs]
    for _ in range(number):
        format, codec = rng.choice(kinds)
        num_frames, fps = rng.randrange(4, 61), rng.choice((1, 5, 10, 23.976, 25, 29.97, 60))
        rate = rng.choice(RATES.get(codec, (8000, 11_025, 16_000, 22_050, 44_100, 48_000)))
        seconds = min(40.0, num_frames / fps * rng.choice((0.1, 0.5, 0.97, 1, 1.03, 2, 6)))
        width, height = rng.choice(((64, 48), (48, 96), (160, 120)))
        channels = rng.choice((1, 2))
        num_samples = round(seconds * rate) + rng.randrange(400)
        yield (
            f"{format} {codec}",
            video_with_sound(num_frames, fps, num_samples, rate, format, codec, width, height, channels),
        )


def compared(name: str, write: Callable[[Path], Path], media: str, clips: list[tuple[Media, bytes]]) -> int:
    """Return how many samples have other tokens than the full processor of the class makes."""
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        processor = write(Path(folder) / "processor")
        model = ModelConfig(template="auto", processor=str(processor))
        template, _ = build_with_best_rules(TemplateSettings(model, MEDIA[media]), processor)
        full = load_full_processor(template.spec.processor)
        differ = refused = 0
        asked = called = 0.0
        for number, (video, data) in enumerate(clips):
            of, files = [video], [data]
            if number % 3 == 1:
                files = [heard := sound(rng.randrange(2000, 60_000), 22_050), data]
                of = [probe(io.BytesIO(heard)), video]
            elif number % 3 == 2:
                other = clips[rng.randrange(len(clips))]
                of, files = [video, other[0]], [data, other[1]]
            text = "".join(f"<{medium.kind}>" for medium in of) + "What is it?"
            turns = [{"role": "user", "content": text}, {"role": "assistant", "content": "A clip."}]
            sample = Sample(turns, of)
            start = time.process_time()
            try:
                ids: list[int] | None = template.encode(sample).ids
            except Skip as skip:
                ids, why = None, str(skip)
            asked += time.process_time() - start
            start = time.process_time()
            try:
                truth: list[int] | None = full_processor_ids(
                    full,
                    template,
                    sample,
                    processor_arguments(
                        template.input_rules,
                        prepare_media_for_processor(template.input_rules, template.seen(of), files),
                    ),
                )
            except Exception as error:  # the class refuses the sample
                truth = None
                print(f"    {error}"[:160]) if ids is not None else None
            called += time.process_time() - start
            refused += ids is None
            if ids != truth:
                differ += ids is not None
                if ids is None:
                    print(f"    refused by name: {why}"[:160])
        ours, theirs = (seconds / len(clips) * 1e3 for seconds in (asked, called))
        times = f"{ours:.1f} ms a sample, decoding and the full processor {theirs:.0f}"
        print(
            f"  {name:13} frames by {media:9}: {len(clips)} samples, {differ} differ, {refused} refused; {times}",
            flush=True,
        )
        return differ


if __name__ == "__main__":
    main()
