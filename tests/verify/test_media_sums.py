"""Media of copies are held against the checksums that packing wrote, without the source."""

import json
import random
import shutil
import struct
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from energon_pack.config import MediaIn, PackConfig, Stage
from energon_pack.dataset.files import checksums_to_bytes, join_checksums_of_shards
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.verify.command import main
from support.damage import found, lines, read_shard
from support.packed import Make, files, packed
from support.running import ROOT
from support.samples import chat, picture, write_tar
from support.stores import Bucket

KEPT = ROOT / "tests/dataset/kept"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Six JPEGs and two texts; the last JPEG is larger than the buffer of the tar writer."""
    filling = random.Random(0).randbytes(300_000)
    jpegs = [picture(60 + 28 * i, 56) for i in range(5)]
    jpegs.append(picture(56, 56)[:-2] + filling.replace(b"\xff", b"\0") + b"\xff\xd9")
    files = {"t.json": chat("a", "b"), "u.json": chat("c", "d")}
    for i, jpeg in enumerate(jpegs):
        files |= {f"{i}.json": chat("<image>what?", f"the {i}th"), f"{i}.jpg": jpeg}
    write_tar(tmp_path / "source" / "a.tar", files)
    return tmp_path / "source"


@pytest.fixture
def run(config: Make, source: Path) -> PackConfig:
    return config(source, output__max_shard_packs=1, packing__max_token_len=128)


def sums_of(folder: Path) -> dict[str, list[int]]:
    """Read media.crc32 as docs/formats.md says: by pack, in the order of the shards."""
    data = (folder / ".nv-meta/media.crc32").read_bytes()
    number = struct.unpack_from("<Q", data)[0] // 8
    places = struct.unpack_from(f"<{number}Q", data)
    keys = [name.partition(".")[0] for path in sorted(folder.glob("*.tar")) for name, _ in read_shard(path)]
    ends = pairwise(places)
    return {
        key: [*struct.unpack_from(f"<{(end - start) // 4}I", data, start)]
        for key, (start, end) in zip(dict.fromkeys(keys), ends, strict=True)
    }


def media_of(folder: Path) -> dict[str, list[bytes]]:
    media: dict[str, list[bytes]] = {}
    for path in sorted(folder.glob("*.tar")):
        for name, data in read_shard(path):
            key, _, part = name.partition(".")
            media.setdefault(key, []).extend([data] * (part not in ("json", "tokens")))
    return media


@pytest.mark.parametrize("which", [0, -1])
def test_one_byte_in_the_middle_of_a_jpeg_is_noticed(
    run: PackConfig, which: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It still is a JPEG, and decodes: without the source nothing saw it."""
    folder = packed(run)
    jpegs = [(path, *it) for path in sorted(folder.glob("*.tar")) for it in read_shard(path) if it[0].endswith("jpg")]
    path, name, data = sorted(jpegs, key=lambda it: len(it[2]))[which]
    whole = bytearray(path.read_bytes())
    whole[whole.index(data) + len(data) // 2] ^= 1
    path.write_bytes(whole)
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["verify", str(folder), "--num-workers", "1"])
    assert main() == 1
    key, _, part = name.partition(".")
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("media:")]
    assert said == [f"media: {path.name}: {key}: {part} has other bytes than those that were packed"]


def test_the_file_holds_the_checksum_of_each_medium(run: PackConfig) -> None:
    """And it is among the hashes of energon_pack.json, so that a damaged one is not taken for the truth."""
    folder = packed(run)
    assert sums_of(folder) == {key: [*map(crc32, media)] for key, media in media_of(folder).items()}
    assert sorted(map(len, sums_of(folder).values()))[0] == 0  # a pack of texts
    assert sum(map(len, sums_of(folder).values())) == 6
    assert "media.crc32" in json.loads((folder / ".nv-meta/energon_pack.json").read_text())["hashes"]
    assert found(folder).num_checked["media"] == 6
    assert found(folder).notes == []


def test_checksums_of_shards_are_joined() -> None:
    """Shards of two packs (one and two media) and of one pack (without media, then one)."""
    one, two = checksums_to_bytes([0, 1, 3], [7, 8, 9]), checksums_to_bytes([0, 0, 1], [2**32 - 1])
    whole = struct.pack("<5Q4I", 40, 44, 52, 52, 56, 7, 8, 9, 2**32 - 1)
    assert join_checksums_of_shards([one, two]) == whole
    assert join_checksums_of_shards([whole]) == whole
    assert join_checksums_of_shards([checksums_to_bytes([0, 0], [])]) is None
    assert join_checksums_of_shards([]) is None


@pytest.mark.parametrize("which", ["texts", "references"])
def test_packs_without_media_of_their_own_have_no_such_file(config: Make, source: Path, which: str) -> None:
    """Nor a line about it."""
    if which == "texts":
        write_tar(source / "a.tar", {"t.json": chat("a", "b")})
    folder = packed(config(source, output__media=MediaIn.reference if which == "references" else MediaIn.copy))
    assert not (folder / ".nv-meta/media.crc32").exists()
    assert (lines(found(folder)), found(folder).notes) == ("", [])


def test_an_earlier_dataset_is_verified_and_says_what_was_not_compared() -> None:
    """That it has no checksums is no defect."""
    findings = found(KEPT / "images")
    assert lines(findings) == "files: images: report.json is missing"  # which was not kept
    number = sum(map(len, media_of(KEPT / "images").values()))
    assert findings.notes == [
        f"{number} media are not compared with a checksum: the dataset has no .nv-meta/media.crc32, which this version"
        " writes; --source compares them with their source"
    ]
    assert found(KEPT / "texts").notes == []


def test_shards_that_another_version_finished_are_finished_anew(run: PackConfig, tmp_path: Path) -> None:
    """Its mark of a finished shard has no checksums; without them the dataset would lack some."""
    whole = files(packed(run))
    shutil.rmtree(tmp_path / "out")
    for stage in (Stage.plan, Stage.write):
        pack(replace(run, stage=stage))
    marks = sorted((tmp_path / "out/.staging/packed").glob("*/*.done"))
    marks[1].write_bytes(marks[1].read_bytes().partition(b"\n")[0])
    with pytest.raises(PackError, match=r"1 of \d shards are not written, as packed-000001.tar: stage=write writes"):
        pack(replace(run, stage=Stage.publish))
    pack(replace(run, stage=Stage.write))
    pack(replace(run, stage=Stage.publish))
    assert files(tmp_path / "out/packed") == whole


@pytest.mark.slow
def test_a_shard_of_a_store_without_its_checksums_is_uploaded_anew(
    run: PackConfig, bucket: Bucket, tmp_path: Path
) -> None:
    """As one that another version uploaded."""
    stored: dict[str, Any] = {"dir": f"{bucket.address}/out", "name": "packed", "max_shard_packs": 1}
    run = replace(run, output=replace(run.output, **stored))
    for stage in (Stage.plan, Stage.write):
        pack(replace(run, stage=stage))
    sums = [name for name in bucket.names("out/.staging") if name.endswith(".crc32")]
    assert len(sums) == len([name for name in bucket.names("out/packed") if name.endswith(".tar")]) > 2
    bucket.delete(sums[1])
    with pytest.raises(PackError, match=r"1 of \d shards are not written, as packed-000001.tar"):
        pack(replace(run, stage=Stage.publish))
    pack(replace(run, stage=Stage.write))
    pack(replace(run, stage=Stage.publish))
    assert bucket.names("out/.staging") == []
    local = replace(run, output=replace(run.output, dir=str(tmp_path / "local")))
    assert bucket.read("out/packed/.nv-meta/media.crc32") == files(packed(local))[".nv-meta/media.crc32"]
    assert found(f"{bucket.address}/out/packed").num_checked["media"] == 6
