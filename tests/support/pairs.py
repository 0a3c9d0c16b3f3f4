"""Preference pairs that tests pack, and the sides that a dataset has of them."""

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_pack.config.compose import compose_config
from energon_pack.pack import pack
from support.packed import samples
from support.running import ROOT, command, need_torchvision
from support.samples import picture, video

WORDS = ("tide", "rises", "twice", "a", "day", "near", "an", "island", "boats", "wait", "for", "water", "and", "wind")


def text(chance: random.Random, number: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(number))


def write_pairs(
    folder: Path, number: int, longest: int = 40, with_media: bool = True, num_videos: int = 0, thinks: bool = False
) -> Path:
    """Write pairs as lines: of texts, of several turns, of one image and of two; each sixth has no medium.

    Args:
        num_videos: the first pairs have a video instead.
        thinks: whether each fifth pair has a thought before both answers, the same one.
    """
    chance = random.Random(number)
    lines = []
    for index in range(number):
        images = index % 3 if with_media and index % 6 else 0
        names = [f"{(index + n) % 5}.png" for n in range(images)]
        before = [("user", "Is it far?"), ("assistant", "It is near.")] if index % 4 == 1 else []
        shown = "<video>" if index < num_videos else "<image>" * images
        asked = [*before, ("user", shown + text(chance, chance.randint(1, longest)))]
        begins = text(chance, chance.randint(0, 8))  # both answers begin alike
        if thinks and index % 5 == 2:
            begins = f"<think>{text(chance, 5)}</think>\n\n{begins}"
        line: dict[str, Any] = {"prompt": [{"role": role, "content": content} for role, content in asked]}
        line |= {side: [answer(f"{begins} {word}{text(chance, chance.randint(1, longest))}")] for side, word in SIDES}
        media = {"videos": [f"{index}.mp4"]} if index < num_videos else {"images": names} if images else {}
        lines.append(line | media)
    for index in range(5 if with_media else 0):
        (folder / f"{index}.png").write_bytes(picture(56 + 28 * index, 84, "PNG"))
    for index in range(num_videos):
        (folder / f"{index}.mp4").write_bytes(video(num_frames=10 + 5 * index))
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


SIDES = (("chosen", "good "), ("rejected", "bad "))


def answer(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def sides_in_packs(folder: Path) -> list[list[str]]:
    """The ids of the members of each pack of a dataset."""
    metas = [json.loads(parts["json"])["_meta"] for parts in samples(folder).values()]
    return [meta["sample_ids"] for meta in metas]


def check_whole(rows: Iterable[Sequence[str]]) -> Counter[str]:
    """Both sides of each pair stand side by side in these packs; return how often each pair comes."""
    seen = Counter[str]()
    for row in rows:
        for chosen, rejected in zip(row[::2], row[1::2], strict=True):
            pair = chosen.removesuffix("+chosen")
            assert (chosen, rejected) == (f"{pair}+chosen", f"{pair}+rejected")
            seen[pair] += 1
    return seen


@dataclass(frozen=True)
class PairsOfClass:
    """Pairs by a real processor, packed with and without shared prompts."""

    #: the tiny model's folder
    model: Path
    #: the lines
    source: Path
    #: what they were packed with, but for sharing
    words: list[str]
    #: whole, shared → a packed dataset
    datasets: dict[str, Path]


#: of a model class: its processor, its family, how many pairs have a video, and what else its packs are made with
CLASSES: dict[str, tuple[str, str, int, list[str]]] = {
    "qwen2_5_vl": ("qwen2_5_vl", "qwen2_5_vl", 4, []),
    "qwen3_vl": ("qwen3_vl", "qwen3_vl", 4, []),
    "internvl": ("internvl3_hf", "internvl3", 0, ["+model.processor_kwargs.max_patches=1"]),
    "qwen2_5_text": ("qwen2_5_text", "text", 0, []),
}
SHARED = ["packing.share=prefix", "packing.share_min_tokens=1"]


def pack_pairs_of(name: str, number: int, real: Path, folder: Path) -> PairsOfClass:
    """Pack pairs of one of `CLASSES`, of media where it has some, several turns and thoughts.

    Args:
        real: the folder of real processors.
    """
    need_torchvision()
    processor, family, num_videos, more = CLASSES[name]
    model = folder / "model"
    done = command(ROOT / "recipes" / "tiny_folder.py", real / "processors" / processor, model, cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "source").mkdir()
    source = write_pairs(folder / "source", number, 15, family != "text", num_videos, thinks=True)
    words = [f"+model={family}", f"model.processor={model}", f"source.path={source}", "source.take=both", *more]
    words += [f"output.dir={folder}", "packing.max_token_len=1200", "packing.group_by=none", "executor.num_workers=1"]
    for dataset, own in {"whole": list[str](), "shared": SHARED}.items():
        pack(compose_config([*words, *own, f"output.name={dataset}"]))
    return PairsOfClass(model, source, words, {name: folder / name for name in ("whole", "shared")})
