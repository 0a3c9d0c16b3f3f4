"""Every kind of damage is found and named, none hides another, and a whole dataset has none.

A check that never fails is worth nothing: each test below breaks one thing of a good dataset and nothing else, and asks
for the one check that has to see it.
"""

import json
import os
import random
import shutil
import sys
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from energon_pack.dataset.pack_json import ParsedPack
from energon_pack.dataset.pack_parts import PackFiles
from energon_pack.errors import PackError, escape_unprintable, quote
from energon_pack.samples.sample import Part
from energon_pack.verify import members
from energon_pack.verify.command import Options, main, verify
from energon_pack.verify.findings import CHECKS, Findings
from energon_pack.verify.pack_checks import check_packing_limits
from support.corruptions import CORRUPTIONS, cut_short, duplicate_pack, flip
from support.damage import (
    HOSTILE,
    change_file,
    change_files,
    found,
    grown,
    is_found,
    lines,
    packed_to_damage,
    places,
    read_shard,
    set_at,
    write_shard,
)
from support.films import film
from support.marks import slow
from support.packed import json_lines
from support.samples import chat, write_tar

Members = list[tuple[str, bytes]]
WORDS = "one two three four five six seven eight nine ten " * 8


@pytest.fixture(scope="module")
def packed(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed_to_damage(demo, cache, tmp_path_factory.mktemp("verify"))


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    """The dataset, to be damaged."""
    return Path(shutil.copytree(packed, tmp_path / "packed"))


def test_a_whole_dataset_has_no_defect(packed: Path, demo: tuple[Path, Path]) -> None:
    """Every check is asked, and none cries wolf: not of parts of samples, duplicates, or text that spells `<image>`."""
    clean = found(packed, decode=True, source=[], processor=str(demo[1]))
    assert lines(clean) == ""
    assert set(clean.num_checked) == set(CHECKS) - {"references"}  # which has tests of its own
    num_members = pq.read_metadata(packed / "pack_plan.parquet").num_rows
    assert clean.num_checked["source tokens"] == clean.num_checked["source text"] == num_members > 34
    assert clean.num_checked["source media"] == clean.num_checked["decode"] == 33


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_is_found(copy: Path, demo: tuple[Path, Path], name: str) -> None:
    """And nothing else is complained about, so that a user sees where the fault is."""
    is_found(copy, CORRUPTIONS[name], processor=str(demo[1]))


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
        "tar: packed-000001.tar: cut", "plan: packed: pack_plan.parquet can't be read", "line 4 is no entry",
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


@pytest.mark.parametrize(
    ("lens", "packing", "expected"),
    [
        ([300, 212], {}, []),
        ([300, 213], {}, ["513 > packing.max_token_len=512"]),
        ([300, 200], {"pad_to_multiple_of": 256}, ["768 > packing.max_token_len=512"]),
        ([600], {"overlong": "own_pack", "hard_limit": 600}, []),
        ([601], {"overlong": "own_pack", "hard_limit": 600}, ["601 > packing.hard_limit=600"]),
        ([300, 300], {"overlong": "own_pack", "hard_limit": 600}, ["600 > packing.max_token_len=512"]),
        ([600], {"hard_limit": 600}, ["600 > packing.max_token_len=512"]),
        ([1, 1, 1], {"max_members": 2, "max_attention_cost": 2}, ["members=2", "attention_cost=2"]),
    ],
)
def test_capacity(lens: list[int], packing: dict[str, Any], expected: list[str]) -> None:
    """Padding counts; one sample alone may be longer where the settings say so, two never."""
    one = ParsedPack(PackFiles("p_0", 0, 0, []), {}, meta={"token_lens": lens})
    defects = list(check_packing_limits(one, {"max_token_len": 512, "pad_to_multiple_of": 1, **packing}))
    assert len(defects) == len(expected)
    assert all(what.endswith(words) for what, words in zip(defects, expected, strict=True))


@pytest.mark.parametrize("seed", [0, 1, *map(slow, range(2, 6))])
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
    try:
        defects = found(copy, decode=True, source=[], processor=str(demo[1]))
    except PackError as error:  # the very setting that names the source is spoilt
        if "does not say how the source was read" not in str(error):
            raise
        defects = found(copy, decode=True)
    assert defects.num_defects.total() > 5
    assert escape_unprintable(lines(defects).replace("\n", " ")).isprintable()


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


def test_a_video_with_fewer_frames_than_its_header_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training would miss some: nothing else of a whole file shows it."""
    data = film()
    file: Any = SimpleNamespace(read=lambda offset, size: data[offset : offset + size])
    part = Part("s000.v00.mp4", 0, len(data))
    assert list(members.check_medium_decodes(file, part)) == []
    monkeypatch.setattr(members, "frame_times", lambda _: [0.0] * 11)
    assert list(members.check_medium_decodes(file, part)) == ["s000.v00.mp4: 11 frames decode, its header says 12"]


def test_text_in_the_plan_may_be_none(copy: Path) -> None:
    """A byte wrong in an uncompressed page of Parquet still opens as a table, of text that is no UTF-8."""
    path = copy / "pack_plan.parquet"
    pq.write_table(pq.read_table(path), path, compression="none", use_dictionary=False)
    path.write_bytes(path.read_bytes().replace(b"t05", b"t\xff5"))
    text = lines(found(copy, source=[]))
    assert "pack_plan.parquet can't be read: 'utf-8' codec" in text


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
    one, two = found(copy), verify(copy, Options(num_workers=2, max_errors=1000))
    assert lines(one) == lines(two)
    assert one.num_checked == two.num_checked


def run_tool(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["verify", *map(str, arguments)])
    return main()


def test_the_report_is_short(copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A check with a hundred defects must not fill the screen, nor hide the check with one."""
    change_file(".nv-meta/energon_pack.json", set_at("content", "packing", "max_token_len", to=1))(copy)
    change_file("report.json", grown("samples_in"))(copy)
    assert run_tool(monkeypatch, copy, "--max-errors", "3", "--num-workers", "1") == 1
    output = capsys.readouterr()
    shown = output.out.splitlines()
    assert [line.partition(":")[0] for line in shown[-4:-1]] == ["capacity", "metadata", "totals"]
    assert shown[-1].startswith("and ")
    assert shown[-1].endswith(" more")
    assert any(line.startswith("tar ") and line.rstrip().endswith("ok") for line in shown)
    assert output.err == ""


def test_all_is_well_is_exit_code_0(
    packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_tool(monkeypatch, packed, "--num-workers", "1") == 0
    assert "defect" not in capsys.readouterr().out


def test_no_dataset_is_refused(tmp_path: Path) -> None:
    """Whether nothing is there, a folder or a file."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for name in ("nothing", "folder", "file"):
        with pytest.raises(PackError, match=rf"{name} is no packed dataset: it has no \.nv-meta/energon_pack\.json"):
            found(tmp_path / name)


def test_findings_keep_the_first_of_each_check() -> None:
    """Memory and the screen hold so many lines; the numbers count them all."""
    findings, other = Findings(2), Findings(2)
    findings.add("tar", "a", ["1", "2", "3"])
    other.add("tar", "b", ["4"])
    other.add("totals", "b", ["5"])
    findings.merge(other)
    assert findings.num_defects == {"tar": 4, "totals": 1}
    assert [str(defect) for defect in findings.first_defects(2)] == ["tar: a: 1", "totals: b: 5"]
    assert quote(["x"] * 9) == "list of 9"
