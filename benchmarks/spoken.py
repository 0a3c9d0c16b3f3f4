"""Speak 300 questions with espeak-ng, as JSONL with answers, and write a small Qwen2.5-Omni processor.

    python benchmarks/spoken.py spoken                       # folder of spoken.jsonl, its sounds, and processor/

`docs/sounds.md` packs and trains them. A line names its sounds in `audios`, in content parts, by `audio_url`, or holds
them in base64, by turns. Each fifth conversation has a second question. The same texts and voices come each time.
"""

import base64
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import processors

NUM_CONVERSATIONS = 300
_VOICES = ("en", "en-us", "en-gb-scotland")
_THINGS = ("apples", "letters", "boats", "stones", "lamps", "tickets", "horses", "keys")
Turn = dict[str, Any]


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    rng = random.Random(0)
    lines, seconds = [], 0.0
    for number in range(NUM_CONVERSATIONS):
        asked = [_question(rng) for _ in range(2 if number % 5 == 0 else 1)]
        names = [f"{number:03d}.{place}.wav" for place in range(len(asked))]
        for name, (question, _) in zip(names, asked, strict=True):
            spoken = ["-v", rng.choice(_VOICES), "-s", str(rng.randint(130, 200)), "-p", str(rng.randint(20, 80))]
            subprocess.run(["espeak-ng", *spoken, "-w", folder / name, question], check=True)
            seconds += ((folder / name).stat().st_size - 44) / 2 / 22_050
        lines.append(_record(number % 4, folder, names, [answer for _, answer in asked]))
    (folder / "spoken.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    processors.qwen2_5_omni(folder / "processor")
    print(f"{len(lines)} conversations, {seconds:,.0f} seconds of speech: {folder / 'spoken.jsonl'}")


def _question(rng: random.Random) -> tuple[str, str]:
    """A question, and its answer."""
    a, b, thing = rng.randint(2, 90), rng.randint(2, 90), rng.choice(_THINGS)
    kind = rng.randrange(3)
    if kind == 0:
        return f"How much is {a} plus {b}?", f"{a} plus {b} is {a + b}."
    if kind == 1:
        return (
            f"There are {a} {thing} on the table and {b} in the box. Where are more of them?",
            f"There are {'as many in both' if a == b else 'more on the table' if a > b else 'more in the box'}.",
        )
    others = ", ".join(rng.sample(_THINGS, 3))
    return f"Please say these words again: {others}.", f"{others[0].upper()}{others[1:]}."


def _record(form: int, folder: Path, names: list[str], answers: list[str]) -> dict[str, Any]:
    """A line of the JSONL.

    Args:
        form: 0 `audios`, 1 parts of the type `audio`, 2 `audio_url`, 3 `input_audio`.
    """
    turns: list[Turn] = []
    for name, answer in zip(names, answers, strict=True):
        parts: list[Any] = [
            {"type": "audio", "audio": name},
            {"type": "audio_url", "audio_url": {"url": name}},
            {"type": "input_audio", "input_audio": {"data": _base64(folder / name), "format": "wav"}},
        ]
        asked: Any = "<audio>" if form == 0 else [parts[form - 1]]
        turns += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    return {"messages": turns, **({"audios": names} if form == 0 else {})}


def _base64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


if __name__ == "__main__":
    main()
