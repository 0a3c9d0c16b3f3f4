"""Every kind of damage is found and named, none hides another, and a whole dataset has none.

A check that never fails is worth nothing: each test below breaks one thing of a good dataset and nothing else, and asks
for the one check that has to see it.
"""

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT, chat, command, json_lines, picture, write_tar

from energon_pack import findings as findings_module
from energon_pack.config import ModelConfig, OutputConfig, Overlong, PackConfig, SourceConfig
from energon_pack.findings import CHECKS, Findings, printable
from energon_pack.pack import pack
from energon_pack.packed import packs_in
from energon_pack.shards import TarWriter
from energon_pack.sources.tar import TarScan
from energon_pack.verify import verify

Members = list[tuple[str, bytes]]
WORDS = "one two three four five six seven eight nine ten " * 8


@pytest.fixture(scope="module")
def packed(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two source shards in four packed ones: text and images, one sample cut in parts, three in the ledger."""
    folder = tmp_path_factory.mktemp("verify")
    talk = [text for i in range(9) for text in (f"<image>question {i}", f"{i} {WORDS}")]
    long = {"talk.json": chat(*talk), **{f"talk.{i}.png": picture(28 * (i + 2), 56, "PNG") for i in range(9)}}
    texts = {f"t{i:02d}.json": chat(f"question {i} <image>", f"answer {i} {WORDS[:150]}", id=i) for i in range(20)}
    images: dict[str, bytes] = {}
    for i in range(12):
        images |= {f"i{i:02d}.b.jpg": picture(40 + i, 30), f"i{i:02d}.a.png": picture(28, 50 + i, "PNG")}
        images |= {f"i{i:02d}.json": chat("<image> or <image>?", f"the {i}th", name=["b.jpg", "a.png"])}
    bad = {"bad.json": b"{", "word.json": chat(WORDS * 30, "no")}
    write_tar(folder / "source" / "a.tar", [*texts.items(), ("t00.json", chat("again", "a duplicate")), *long.items()])
    write_tar(folder / "source" / "sub" / "b.tar", {**images, **bad})
    run = PackConfig(
        model=ModelConfig("qwen2_5_vl", "qwen_vl", "Qwen/Qwen2.5-VL-7B-Instruct", str(demo[1])),
        source=SourceConfig(path=str(folder / "source")),
        output=OutputConfig(dir=str(folder / "out"), name="packed", max_shard_packs=3),
        cache_dir=str(cache),
        max_skipped=0.5,
    )
    run.packing.max_token_len, run.packing.overlong = 512, Overlong.split_turns
    run.executor.num_workers, run.measure.verify = 1, 0.0
    figures = pack(run)
    assert figures["samples_cut"] == 1
    assert set(figures["skipped_by_reason"]) == {"duplicate_key", "invalid_json", "overlong"}
    assert len(list((folder / "out" / "packed").glob("*.tar"))) >= 4
    return folder / "out" / "packed"


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    """The dataset, to be damaged."""
    return Path(shutil.copytree(packed, tmp_path / "packed"))


def found(folder: Path, **options: Any) -> Findings:
    return verify(folder, num_workers=1, max_errors=1000, **options)


def lines(findings: Findings) -> str:
    return "\n".join(map(str, findings.first(1000)))


# ------------------------------------------------------------------------------------------- a dataset, taken apart


def read_shard(path: Path) -> Members:
    with open(path, "rb") as file:
        scan = TarScan(file.fileno(), path.stat().st_size)
        return [(name, os.pread(file.fileno(), size, offset)) for name, offset, size in scan]


def write_shard(path: Path, members: Members) -> None:
    """The shard anew, with the index that belongs to it."""
    with open(path, "wb", buffering=0) as file:
        tar = TarWriter(file.fileno())
        for name, data in members:
            tar.add(name, data)
        tar.end()
    write_index(path)


def write_index(path: Path) -> None:
    with open(path, "rb") as file:
        packs = list(packs_in(TarScan(file.fileno(), path.stat().st_size)))
    starts = [p.start for p in packs] + [p.end for p in packs[-1:]]
    path.with_suffix(".tar.idx").write_bytes(np.array(starts, "<u8").tobytes())


def shard_with(folder: Path, media_type: str) -> tuple[Path, int]:
    """A shard that has a pack of this type with several members, and where among its members that one's JSON is."""
    for path in sorted(folder.glob("*.tar")):
        for index, (name, data) in enumerate(read_shard(path)):
            if name.endswith(".json"):
                value = json.loads(data)
                if value["media_type"] == media_type and len(value["messages"]) > 1:
                    return path, index
    raise AssertionError


def change(change_json: Callable[[dict[str, Any]], None], media_type: str = "image") -> Callable[[Path], None]:
    """Something else in the JSON of one pack."""

    def damage(folder: Path) -> None:
        path, index = shard_with(folder, media_type)
        members = read_shard(path)
        value = json.loads(members[index][1])
        change_json(value)
        members[index] = (members[index][0], json.dumps(value).encode())
        write_shard(path, members)

    return damage


def change_files(change_members: Callable[[Members, int], None]) -> Callable[[Path], None]:
    """Other files in one shard; the function gets them all, and where the JSON of a pack with images is."""

    def damage(folder: Path) -> None:
        path, index = shard_with(folder, "image")
        members = read_shard(path)
        change_members(members, index)
        write_shard(path, members)

    return damage


def change_plan(change_rows: Callable[[list[dict[str, Any]]], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        table = pq.read_table(folder / "pack_plan.parquet")
        rows = table.to_pylist()
        change_rows(rows)
        pq.write_table(pa.Table.from_pylist(rows, table.schema), folder / "pack_plan.parquet")

    return damage


def change_file(name: str, change_value: Callable[[Any], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        is_json = path.suffix == ".json"
        value = json.loads(path.read_text()) if is_json else yaml.safe_load(path.read_text())
        change_value(value)
        path.write_text(json.dumps(value) if is_json else yaml.safe_dump(value))

    return damage


def flip(members: Members, index: int) -> None:
    """A bit in the pixels of the first PNG."""
    at = next(i for i, (name, _) in enumerate(members) if i > index and name.endswith(".png"))
    data = bytearray(members[at][1])
    data[data.index(b"IDAT") + 8] ^= 4
    members[at] = (members[at][0], bytes(data))


def swap(members: Members, index: int) -> None:
    """The bytes of two images change places; their sizes differ."""
    (name, data), (other, other_data) = members[index + 1], members[index + 2]
    members[index + 1 : index + 3] = [(name, other_data), (other, data)]


def stale_index(folder: Path) -> None:
    path = sorted(folder.glob("*.idx"))[0]
    entries = np.frombuffer(path.read_bytes(), "<u8").copy()
    entries[1] += 512
    path.write_bytes(entries.tobytes())


def cut_short(folder: Path) -> None:
    """In the JSON of the second pack."""
    path = sorted(folder.glob("*.tar"))[1]
    starts = np.frombuffer(path.with_suffix(".tar.idx").read_bytes(), "<u8")
    os.truncate(path, int(starts[1]) + 600)


def duplicate_pack(folder: Path) -> None:
    """A pack of one shard in another, too."""
    first, second = sorted(folder.glob("*.tar"))[:2]
    members = read_shard(first)
    end = next(i for i, (name, _) in enumerate(members) if i and name.endswith(".json"))
    write_shard(second, [*read_shard(second), *members[:end]])


def extra_shard(folder: Path) -> None:
    for end in ("tar", "tar.idx"):
        shutil.copy(folder / f"packed-000000.{end}", folder / f"packed-000099.{end}")


def lose_shard(folder: Path) -> None:
    (folder / "packed-000001.tar").unlink()
    (folder / "packed-000001.tar.idx").unlink()


def lose_ledger_line(folder: Path) -> None:
    path = folder / "skipped.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


def lose_part(folder: Path) -> None:
    """The pack of one part of the sample that was cut, from the shard and from all that counts it."""
    for path in sorted(folder.glob("*.tar")):
        members = read_shard(path)
        key = next((n.partition(".")[0] for n, d in members if n.endswith(".json") and b"#2of" in d), None)
        if key is not None:
            write_shard(path, [member for member in members if not member[0].startswith(f"{key}.")])
            change_plan(partial(without, key))(folder)
            return
    raise AssertionError


def lose_member(rows: list[dict[str, Any]]) -> None:
    """One of a pack that has several."""
    del rows[next(i for i, row in enumerate(rows) if i and row["pack"] == rows[i - 1]["pack"])]


def without(key: str, rows: list[dict[str, Any]]) -> None:
    rows[:] = [row for row in rows if row["pack"] != key]


def pack_of_two(value: dict[str, Any]) -> None:
    value["_meta"]["token_lens"][0] += 500
    value["_meta"]["total_token_len"] += 500


def other_text(value: dict[str, Any]) -> None:
    value["messages"][1]["messages"][1]["content"] += " indeed"


def other_order(value: dict[str, Any]) -> None:
    names = next(names for names in value["media_files"] if len(names) > 1)
    names.reverse()


def other_roles(value: dict[str, Any]) -> None:
    value["messages"][0]["messages"][0] = {"from": "human", "value": "<image>"}


def one_image_less_in_the_text(value: dict[str, Any]) -> None:
    index = next(i for i, names in enumerate(value["media_files"]) if names)
    message = value["messages"][index]["messages"][0]
    message["content"] = message["content"].replace("<image>", "", 1)


def set_at(*path: Any, to: Any) -> Callable[[Any], None]:
    def damage(value: Any) -> None:
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] = to

    return damage


def grown(*path: Any) -> Callable[[Any], None]:
    def damage(value: Any) -> None:
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] += 1

    return damage


BYTES = {"source": []}
#: name → what is done, the options, and the checks that find it with a word of what they say
CORRUPTIONS: dict[str, tuple[Callable[[Path], None], dict[str, Any], dict[str, str]]] = {
    "a bit of an image, by its source": (change_files(flip), BYTES, {"source media": "in the source at byte"}),
    "a bit of an image, by its pixels": (change_files(flip), {"decode": True}, {"decode": "does not decode"}),
    "two images swapped": (
        change_files(swap),
        {},
        {"kinds": "begins with", "plan": "bytes, in the plan"},
    ),
    "a missing part": (
        change_files(lambda members, i: members.pop(i + 1)),
        {},
        {"parts": "is named, but not there"},
    ),
    "an extra part": (
        change_files(lambda members, i: members.insert(i + 1, (members[i][0].replace("json", "npy"), b"x"))),
        {},
        {"parts": "npy is there, but not named"},
    ),
    "a part twice": (
        change_files(lambda members, i: members.insert(i + 1, members[i + 1])),
        {},
        {"parts": "comes 2 times"},
    ),
    "the JSON last": (
        change_files(lambda members, i: members.insert(i, members.pop(i + 1))),
        {},
        {"parts": "after the JSON"},
    ),
    "another format under a name": (
        change_files(lambda members, i: members.__setitem__(i + 1, (members[i + 1][0], b"GIF89a" + b"x" * 99))),
        {},
        {"kinds": "gif", "plan": "bytes, in the plan"},
    ),
    "a stale index": (stale_index, {}, {"index": "entry 1 of its .tar.idx"}),
    "no index": (
        lambda folder: (folder / "packed-000000.tar.idx").unlink(),
        {},
        {"index": "can't be read: No such file"},
    ),
    "a truncated shard": (
        cut_short,
        {},
        {
            "tar": "cut",
            "index": "entries",
            "keys": "in no shard",
            "metadata": "",
            "totals": "",
            "samples": "",
        },
    ),
    "a missing shard": (
        lose_shard,
        {},
        {"metadata": "packed-000001.tar', which is not there", "keys": "in no shard", "totals": "", "samples": ""},
    ),
    "an extra shard": (
        extra_shard,
        {},
        {"metadata": "of packed-000099.tar", "keys": "is there twice", "samples": "twice", "totals": ""},
    ),
    "a pack twice": (
        duplicate_pack,
        {},
        {"keys": "is there twice", "samples": "", "metadata": "packs of", "totals": ""},
    ),
    "a wrong total": (change(grown("_meta", "total_token_len")), {}, {"sums": "token_lens sum to"}),
    "a wrong token_len": (
        change(grown("_meta", "token_lens", 1)),
        {},
        {"sums": "total_token_len is", "plan": "token_lens: member 1 is", "totals": "tokens="},
    ),
    "a wrong num_supervised": (
        change(grown("_meta", "num_supervised", 0)),
        {},
        {"plan": "num_supervised: member 0", "totals": "num_supervised="},
    ),
    "another text": (change(other_text, "text"), BYTES, {"source text": "indeed"}),
    "a lost field": (
        change(lambda value: value["messages"][0].pop("id"), "text"),
        BYTES,
        {"source text": "id is missing"},
    ),
    "another order of media": (
        change(other_order),
        {},
        {"parts": "out of order", "plan": "media_files: member"},
    ),
    "roles as a source spells them": (change(other_roles), {}, {"placeholders": "not in the form"}),
    "a placeholder less": (change(one_image_less_in_the_text), {}, {"placeholders": "placeholder_mismatch"}),
    "a wrong media_type": (
        change(set_at("media_type", to="mix")),
        {},
        {"json": "its media make it image", "totals": "packs of 'mix'"},
    ),
    "another shard count": (
        change_file(".nv-meta/.info.json", grown("shard_counts", "packed-000000.tar")),
        {},
        {"metadata": "counts"},
    ),
    "a split without a shard": (
        change_file(".nv-meta/split.yaml", lambda value: value["split_parts"]["train"].pop()),
        {},
        {"metadata": "in 0 parts"},
    ),
    "a split with a shard that is not there": (
        change_file(".nv-meta/split.yaml", lambda value: value["split_parts"]["val"].append("packed-000077.tar")),
        {},
        {"metadata": "'packed-000077.tar', which is not there"},
    ),
    "a lost line of the ledger": (
        lose_ledger_line,
        BYTES,
        {"totals": "samples_skipped=3, there is 2", "source samples": "is in no pack, and not in the ledger"},
    ),
    "a packed sample in the ledger": (
        lambda folder: (folder / "skipped.jsonl").write_text(
            (folder / "skipped.jsonl").read_text().replace("b.tar/word", "b.tar/i00")
        ),
        {},
        {"ledger": "sub/b.tar/i00 is in a pack, too"},
    ),
    "a pack over capacity": (
        change(pack_of_two, "text"),
        {},
        {"capacity": "> packing.max_token_len=512", "plan": "token_lens", "totals": "tokens"},
    ),
    "broken JSON": (
        change_files(lambda members, i: members.__setitem__(i, (members[i][0], members[i][1][:-9]))),
        {},
        {"json": "can't be read", "samples": "", "totals": ""},
    ),
    "lists of unequal lengths": (
        change(lambda value: value["_meta"]["sample_ids"].pop()),
        {},
        {"json": "unequal lengths", "plan": "good rows in the plan", "samples": "", "totals": "parts="},
    ),
    "another fingerprint": (
        change(set_at("_meta", "fingerprint", to="0123")),
        {},
        {"fingerprint": "'0123', the manifest has"},
    ),
    "another manifest": (
        change_file(".nv-meta/energon_pack.json", set_at("fingerprint", to="0123")),
        {},
        {"fingerprint": "the manifest has '0123'", "totals": "fingerprint="},
    ),
    "another limit": (
        change_file(".nv-meta/energon_pack.json", set_at("content", "packing", "max_members", to=1)),
        {},
        {"capacity": "> packing.max_members=1"},
    ),
    "a sample lost from the plan": (
        change_plan(lose_member),
        {},
        {"plan": "good rows in the plan"},
    ),
    "a pack lost from the plan": (
        change_plan(lambda rows: without(rows[0]["pack"], rows)),
        {},
        {"plan": "it is not in the plan"},
    ),
    "a part of a cut sample lost": (
        lose_part,
        {},
        {"samples": "a.tar/talk has the parts", "metadata": "packs of", "totals": ""},
    ),
    "a stray file": (
        lambda folder: (folder / "notes.txt").write_text("mine"),
        {},
        {"files": "notes.txt is none"},
    ),
    "another count in the report": (change_file("report.json", grown("samples_in")), {}, {"totals": "samples_in="}),
    "no report": (lambda folder: (folder / "report.json").unlink(), {}, {"files": "report.json is missing"}),
    "another length than the template's": (
        change(lambda value: value["_meta"].update(token_lens=[n - 1 for n in value["_meta"]["token_lens"]]), "text"),
        {"lengths": 1000},
        {"lengths": "tokens measured again", "sums": "", "plan": "", "totals": ""},
    ),
}


# ---------------------------------------------------------------------------------------------------------- the tests


def test_a_whole_dataset_has_no_defect(packed: Path, demo: tuple[Path, Path]) -> None:
    """Every check is asked, and none cries wolf: not of parts of samples, duplicates, or text that spells `<image>`."""
    clean = found(packed, decode=True, source=[], lengths=1000, processor=str(demo[1]))
    assert lines(clean) == ""
    assert set(clean.num_looked_at) == set(CHECKS)
    num_members = pq.read_metadata(packed / "pack_plan.parquet").num_rows
    assert clean.num_looked_at["lengths"] == clean.num_looked_at["source text"] == num_members > 34
    assert clean.num_looked_at["source media"] == clean.num_looked_at["decode"] == 33


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_is_found(copy: Path, demo: tuple[Path, Path], name: str) -> None:
    """And nothing else is complained about, so that a user sees where the fault is."""
    damage, options, expected = CORRUPTIONS[name]
    damage(copy)
    defects = found(copy, processor=str(demo[1]), **options)
    assert set(defects.num_defects) == set(expected), lines(defects)
    for check, words in expected.items():
        assert any(words in str(defect) for defect in defects.defects[check]), lines(defects)


def test_a_defect_hides_no_other(copy: Path) -> None:
    """The report reads on after a truncated shard, a plan that is no Parquet, a manifest that is no JSON."""
    change_files(flip)(copy)
    cut_short(copy)
    (copy / "pack_plan.parquet").write_bytes(b"PAR1 no")
    (copy / ".nv-meta" / "energon_pack.json").write_text("{")
    (copy / ".nv-meta" / "split.yaml").write_text("{ [")
    with open(copy / "skipped.jsonl", "a") as file:
        file.write("no JSON\n")
    text = lines(found(copy, decode=True))
    for words in (
        "tar: packed-000001.tar: cut", "plan: pack_plan.parquet: it can't be read", "line 4 is no entry",
        "energon_pack.json: it can't be read", "split.yaml can't be read", "does not decode",
    ):  # fmt: skip
        assert words in text


def test_a_source_that_lost_or_gained_samples(packed: Path, tmp_path: Path) -> None:
    """The source is read anew: a sample that is there now and in no pack was lost, as far as anyone can tell."""
    source = Path(shutil.copytree(packed.parents[1] / "source", tmp_path / "source"))
    assert lines(found(packed, source=[str(source)])) == ""
    with open(source / "sub" / "b.tar", "ab") as file:
        os.truncate(file.fileno(), 0)
    write_tar(source / "sub" / "b.tar", {"new.json": chat("a", "b")})
    text = lines(found(packed, source=[str(source)]))
    assert "sub/b.tar/new is in no pack, and not in the ledger" in text
    assert "sub/b.tar/i03 is no sample of the source" in text
    assert "source media" in text
    (source / "a.tar").unlink()
    assert "the source has no shard 'a.tar'" in lines(found(packed, source=[str(source)]))


def test_own_packs_may_be_longer(copy: Path) -> None:
    """One member alone up to `hard_limit`; two never."""
    manifest = ".nv-meta/energon_pack.json"
    change_file(manifest, lambda v: v["content"]["packing"].update(max_token_len=1, overlong="own_pack"))(copy)
    change_file(manifest, set_at("content", "packing", "hard_limit", to=512))(copy)
    change_file(manifest, set_at("max_token_len", to=1))(copy)
    rows = pq.read_table(copy / "pack_plan.parquet", columns=["pack"])["pack"].to_pylist()
    several = {pack for pack in rows if rows.count(pack) > 1}
    defects = found(copy)
    assert set(defects.num_defects) == {"capacity"}
    assert defects.num_defects["capacity"] == len(several) < len(set(rows))


def test_capacity_counts_padding(copy: Path) -> None:
    """Members rounded up to a multiple: lengths that fit as they are may not fit so."""
    manifest = ".nv-meta/energon_pack.json"
    change_file(manifest, set_at("content", "packing", "pad_to_multiple_of", to=256))(copy)
    change_file(manifest, set_at("pad_to_multiple_of", to=256))(copy)
    assert set(found(copy).num_defects) == {"capacity"}


HOSTILE = [None, True, -1, 0, 1.5, 10**30, "", "\ud800", "a\nb", [], [[]], [None], [{}], {}, {"a": None}, [1, "1"]]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


@pytest.mark.parametrize("seed", range(6))
def test_any_json_is_survived(copy: Path, demo: tuple[Path, Path], seed: int) -> None:
    """Wrong types anywhere, in packs, ledger, report and metadata: found, and never a traceback."""
    rng = random.Random(seed)

    def spoil(value: Any) -> None:
        for path in rng.sample(sorted(places(value), key=str), 1 + seed):
            try:
                set_at(*path, to=deepcopy(rng.choice(HOSTILE)))(value)
            except (TypeError, KeyError, IndexError):
                continue  # what was around it is spoilt already

    for path in sorted(copy.glob("*.tar")):
        members = read_shard(path)
        for index, (name, data) in enumerate(members):
            if name.endswith(".json"):
                value = json.loads(data)
                spoil(value)
                members[index] = (name, json.dumps(value).encode())
        write_shard(path, members)
    meta = [".nv-meta/energon_pack.json"] if seed % 2 else []  # without it, nothing can be measured again
    for name in (*meta, ".nv-meta/.info.json", "report.json"):
        change_file(name, spoil)(copy)
    entries = json_lines(copy / "skipped.jsonl")
    spoil(entries)
    (copy / "skipped.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    defects = found(copy, decode=True, lengths=1000, processor=str(demo[1]))
    assert defects.num_defects.total() > 5
    assert printable(lines(defects).replace("\n", " ")).isprintable()


def test_bytes_anywhere_are_survived(packed: Path, tmp_path: Path) -> None:
    """Random bytes in any file: the tool says something or finds nothing, and never fails or hangs."""
    rng = random.Random(0)
    for number in range(12):
        folder = Path(shutil.copytree(packed, tmp_path / str(number)))
        for path in sorted(folder.rglob("*")):
            if path.is_file() and rng.random() < 0.5 and path.stat().st_size:
                data = bytearray(path.read_bytes())
                for _ in range(rng.randint(1, 30)):
                    data[rng.randrange(len(data))] = rng.randrange(256)
                path.write_bytes(data[: rng.choice([len(data), len(data), rng.randrange(len(data))])])
        source = [str(packed.parents[1] / "source")]
        (folder / "report.json").write_bytes((packed / "report.json").read_bytes())
        found(folder, decode=True, source=source)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_nothing_is_waited_for(copy: Path) -> None:
    """Reading a pipe under a shard's name would never end."""
    (copy / "packed-000001.tar").unlink()
    os.mkfifo(copy / "packed-000001.tar")
    (copy / "skipped.jsonl").unlink()
    os.mkfifo(copy / "skipped.jsonl")
    text = lines(found(copy))
    assert "packed-000001.tar: it can't be read: not a regular file" in text
    assert "skipped.jsonl: it can't be read: not a regular file" in text


def test_workers_find_the_same(copy: Path) -> None:
    duplicate_pack(copy)
    one, two = found(copy), verify(copy, num_workers=2, max_errors=1000)
    assert lines(one) == lines(two)
    assert one.num_looked_at == two.num_looked_at


def run_tool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return command("-m", "energon_pack.verify", *arguments, cwd=ROOT)


def test_the_report_is_short(copy: Path) -> None:
    """A check with a hundred defects must not fill the screen, nor hide the check with one."""
    change_file(".nv-meta/energon_pack.json", set_at("content", "packing", "max_token_len", to=1))(copy)
    change_file("report.json", grown("samples_in"))(copy)
    result = run_tool(copy, "--max-errors", "3")
    assert result.returncode == 1
    assert result.stderr == ""
    shown = result.stdout.splitlines()
    assert [line.partition(":")[0] for line in shown[-4:-1]] == ["capacity", "capacity", "totals"]
    assert shown[-1].startswith("and ")
    assert shown[-1].endswith(" more")
    assert any(line.startswith("tar ") and line.rstrip().endswith("ok") for line in shown)


def test_all_is_well_is_exit_code_0(packed: Path) -> None:
    result = run_tool(packed)
    assert (result.returncode, result.stderr) == (0, "")
    assert "defect" not in result.stdout


@pytest.mark.parametrize("what", ["nothing", "a folder", "a file"])
def test_no_dataset_is_one_line(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    if what == "a folder":
        path.mkdir()
    elif what == "a file":
        path.touch()
    result = run_tool(path)
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        f"energon_pack.verify: {path} is no packed dataset: it has no .nv-meta/energon_pack.json"
    ]


def test_findings_keep_the_first_of_each_check() -> None:
    """Memory and the screen hold so many lines; the numbers count them all."""
    findings, other = Findings(2), Findings(2)
    findings.add("tar", "a", ["1", "2", "3"])
    other.add("tar", "b", ["4"])
    other.add("totals", "b", ["5"])
    findings.merge(other)
    assert findings.num_defects == {"tar": 4, "totals": 1}
    assert [str(defect) for defect in findings.first(2)] == ["tar: a: 1", "totals: b: 5"]
    assert findings_module.short(["x"] * 9) == "list of 9"
