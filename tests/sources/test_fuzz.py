"""Bytes that nobody meant: mutated tars and JSON cost at most their own samples, are accounted for, and hang nothing.

Promise 1 and 6: one bad file among millions must not end a run of days, nor vanish.
"""

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from energon_pack.errors import PackError
from energon_pack.lengths.method import Method
from energon_pack.lengths.schema import LENGTHS_SCHEMA
from energon_pack.lengths.worker import MeasureJob, measure
from energon_pack.samples.media_parts import find_media_parts
from energon_pack.samples.placeholders import place_media
from energon_pack.samples.raw_record import parse_sample_json
from energon_pack.samples.record import parse_record
from energon_pack.samples.sample import Part
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.find import make_shard_of_file
from energon_pack.templates.processor import prepare_template
from support.models import of_model
from support.samples import chat, picture, write_tar

REASONS = {reason.value for reason in Reason}
VALUES: list[Any] = [None, True, -1, 0.5, 10**30, "", "<image>", "<video>", "0.jpg", "user", "assistant", [], {}, [[]]]
VALUES += ["\ud7ff\U0010ffff", "x" * 300, {"type": "image"}, {"type": "text", "text": None}, [{"role": "user"}], "\x00"]
SEEDS = [
    {"messages": [{"role": "user", "content": "<image>a"}, {"role": "assistant", "content": "b"}], "name": ["0.jpg"]},
    {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "loss": False}], "system": "s"},
    {"prompts": [["a", "c"]], "captions": [["b", "d"]], "media": "image", "images": ["0.jpg"]},
    {"texts": [{"role": "user", "content": [{"type": "image", "image": "0.jpg"}, {"type": "text", "text": "a"}]}]},
    {"question": "a", "answers": ["b", "c"], "tools": '[{"name": "f"}]', "video_frames": [[0, 1]]},
    {"caption": "c", "media_files": "0.jpg", "media_type": "image"},
]


def mutated_json(value: Any, rng: random.Random, depth: int = 0) -> Any:
    """The value with parts replaced, dropped, doubled or put elsewhere."""
    if depth > 6 or rng.random() < 0.08:
        return rng.choice(VALUES)
    if isinstance(value, dict):
        kept = [(key, mutated_json(item, rng, depth + 1)) for key, item in value.items() if rng.random() > 0.08]
        if rng.random() < 0.1:
            kept.append(
                (rng.choice(["messages", "texts", "name", "tools", "role", "content", "loss"]), rng.choice(VALUES))
            )
        return dict(kept)
    if isinstance(value, list):
        items = [mutated_json(item, rng, depth + 1) for item in value if rng.random() > 0.08]
        return items + items[: rng.choice([0, 0, 0, 1])]
    return value


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """Some bytes flipped, cut out, doubled or filled."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at, length = rng.randrange(len(changed) + 1), rng.choice([1, 1, 1, 8, 100, 512, 700])
        how = rng.randrange(5)
        if how == 0:
            changed[at : at + length] = bytes(rng.randrange(256) for _ in changed[at : at + length])
        elif how == 1:
            del changed[at : at + length]
        elif how == 2:
            changed[at:at] = changed[at : at + length]
        elif how == 3:
            changed[at : at + length] = bytes(len(changed[at : at + length]))
        else:
            header = at // 512 * 512 + rng.choice([0, 100, 124, 136, 148, 156, 157, 257, 345])
            changed[header : header + 8] = bytes(rng.choice(b"01234567\0 x/") for _ in range(8))
    return bytes(changed)


def fuzz_json(num: int) -> int:
    """Only `Skip`, whatever the JSON; the number of records that were good."""
    rng = random.Random(0)
    num_good = 0
    parts = [Part("0.jpg", 0, 9), Part("1.png", 9, 9)]
    for i in range(num):
        raw = json.dumps(mutated_json(SEEDS[i % len(SEEDS)], rng), ensure_ascii=rng.random() < 0.5).encode()
        if rng.random() < 0.3:
            raw = mutated_bytes(raw, rng)
        try:
            record = parse_record(parse_sample_json(raw), ReadSettings())
            chosen = find_media_parts(record, "key", parts)
            place_media(record.messages, ["image"] * len(chosen))
            num_good += 1
        except Skip:
            pass
    return num_good


def fuzz_tars(num: int, folder: Path, template_folder: str) -> int:
    """Every row of a mutated tar has a length or a reason; the number of tars that still had a good sample."""
    texts = {f"{i}.json": chat("<image>what?", "x" * (30 * i)) for i in range(4)}
    members = [
        (name, data)
        for i, (name, data) in enumerate(texts.items())
        for name, data in ((name, data), (f"{i}.jpg", picture(20 + i, 30)))
    ]
    whole = write_tar(
        folder / "whole.tar", [*members, ("t.json", chat("a", "b")), ("c.txt", b"c"), ("c.png", picture(9, 9, "PNG"))]
    )
    data, rng, num_good = whole.read_bytes(), random.Random(0), 0
    path = folder / "mutated.tar"
    for _ in range(num):
        path.write_bytes(mutated_bytes(data, rng))
        began = time.monotonic()
        shard = make_shard_of_file("mutated.tar", str(path))
        try:
            index = shard.index()
        except PackError as error:  # its first bytes now are those of a compressed file
            if "compressed" in str(error):
                continue
            raise
        table = measure(MeasureJob([shard] * index.num_rows, index, Method(template_folder, ReadSettings())))
        assert table.schema == LENGTHS_SCHEMA
        assert table.num_rows == index.num_rows
        for row in table.select(["key", "token_len", "reason"]).to_pylist():
            assert (row["token_len"] > 0) == (row["reason"] is None)
            assert row["reason"] is None or row["reason"] in REASONS
        num_good += any(reason is None for reason in table["reason"].to_pylist())
        assert time.monotonic() - began < 5
    os.unlink(path)
    return num_good


@pytest.fixture
def template_folder(demo: tuple[Path, Path], cache: Path) -> str:
    return prepare_template(of_model("qwen_vl", demo[1]), cache)


def test_json_of_any_kind() -> None:
    assert 200 < fuzz_json(3000) < 2900


def test_tars_of_any_kind(tmp_path: Path, template_folder: str) -> None:
    assert fuzz_tars(300, tmp_path, template_folder) > 100


@pytest.mark.slow
def test_much_json_of_any_kind() -> None:
    print(f"300,000 JSON texts, {fuzz_json(300_000):,} of them good samples")


@pytest.mark.slow
def test_many_tars_of_any_kind(tmp_path: Path, template_folder: str) -> None:
    print(f"20,000 tars, {fuzz_tars(20_000, tmp_path, template_folder):,} with a good sample left")
