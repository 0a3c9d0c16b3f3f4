"""The built-in demo of sounds: tones to be named and counted, and a small processor of Qwen2-Audio, both made here."""

import io
import json
import os
import random
import tarfile
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from energon_pack.run.files import make_once
from energon_pack.sources.demo import add_file, chat_template, write_json, write_tokenizer

#: raised when the content changes: a cached demo is then made again
_VERSION = 1

NUM_SAMPLES = 120
_NUM_SHARDS = 2
_RATE = 16_000
_PITCHES = {"low": 220, "middle": 440, "high": 880}  # in Hz
_TOKENS = ("<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>")


def make_sounds(folder: Path) -> tuple[str, str]:
    """Make the demo in a folder, or find it there: its folder of tars, and its processor's folder."""
    finished = folder / f"sounds-v{_VERSION}"
    make_once(finished, _make)
    return os.fspath(finished / "source"), os.fspath(finished / "processor")


def _make(folder: Path) -> None:
    samples = list(_samples(random.Random(0)))
    (folder / "source").mkdir()
    for number in range(_NUM_SHARDS):
        with tarfile.open(folder / "source" / f"sounds-{number:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for index in range(number, len(samples), _NUM_SHARDS):
                question, answer, sounds = samples[index]
                turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
                names = [f"{place}.wav" for place in range(len(sounds))]
                for name, sound in zip(names, sounds, strict=True):
                    add_file(tar, f"demo_{index:05d}.{name}", sound)
                record = {"messages": turns, **({"audios": names} if names else {})}
                add_file(tar, f"demo_{index:05d}.json", json.dumps(record).encode())
    _write_processor(folder / "processor", [text for question, answer, _ in samples for text in (question, answer)])


def _samples(rng: random.Random) -> Iterator[tuple[str, str, list[bytes]]]:
    """Yield question, answer and sounds: one sound, two, or none."""
    for _ in range(NUM_SAMPLES):
        kind = rng.random()
        names = [rng.choice([*_PITCHES]) for _ in range(rng.randint(1, 7))]
        if kind < 0.15:
            yield "How many tones are low, then high?", "Two: one is low, and one is high.", []
        elif kind < 0.75:
            yield "<audio>Which tones do you hear?", f"{len(names)} tones: {', '.join(names)}.", [_tones(names, rng)]
        else:
            others = [rng.choice([*_PITCHES]) for _ in range(rng.randint(1, 7))]
            answer = f"The first has {len(names)}, the second {len(others)}."
            yield "<audio><audio>How many tones has each?", answer, [_tones(names, rng), _tones(others, rng)]


def _tones(names: list[str], rng: random.Random) -> bytes:
    """A WAV of tones, each of 0.1 to 0.5 seconds, with as much silence between them."""
    times = np.arange(rng.randint(_RATE // 10, _RATE // 2)) / _RATE
    pieces = [piece for name in names for piece in (np.sin(2 * np.pi * _PITCHES[name] * times), 0 * times)]
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, _RATE, 0, "NONE", ""))
        writer.writeframes((9000 * np.concatenate(pieces)).round().astype("<i2").tobytes())
    return file.getvalue()


def _write_processor(folder: Path, texts: list[str]) -> None:
    """The files of a Qwen2AudioProcessor, whose spectrograms have 8 bins in place of 128."""
    name = "Qwen2AudioProcessor"
    write_tokenizer(folder, texts, _TOKENS, name)
    extractor = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 8, "processor_class": name}
    write_json(folder / "preprocessor_config.json", extractor)
    (folder / "chat_template.jinja").write_text(chat_template({"audio": "".join(_TOKENS)}))
