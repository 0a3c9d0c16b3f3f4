"""Bytes of samples by their places: what changed since it was measured is not read, few files are open at once."""

import os
from pathlib import Path

import pytest

from energon_pack.errors import PackError
from energon_pack.samples.record import Record
from energon_pack.samples.sample import Part
from energon_pack.samples.skip import Skip
from energon_pack.sources.find import shard_of
from energon_pack.sources.jsonl.dialects import Lines
from energon_pack.sources.reader import Reader
from energon_pack.sources.shard import JsonlShard, Shard
from support.samples import picture, write_tar


def lines_in(folder: Path, *lines: bytes) -> Shard:
    path = folder / "x.jsonl"
    path.write_bytes(b"\n".join(lines))
    return shard_of("x.jsonl", str(path), JsonlShard, {"lines": Lines(str(folder))})


def test_a_changed_shard_is_not_read(tmp_path: Path) -> None:
    shard = shard_of("x.tar", str(write_tar(tmp_path / "x.tar", {"a.jpg": picture()})))
    with Reader() as reader:
        assert reader.shard_file(shard).read(0, 5) == b"a.jpg"
    os.utime(shard.path, ns=(1, 1))
    with Reader() as reader, pytest.raises(PackError, match="changed"):
        reader.shard_file(shard)


def test_open_shards_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_pack.sources.inside._MOST_OPEN", 2)
    shards = {}
    for i in range(4):
        shards[i] = shard_of(f"{i}.tar", str(write_tar(tmp_path / f"{i}.tar", {f"k{i}": b""})))
    with Reader() as reader:
        for i in (0, 1, 0, 2, 3, 0):
            assert reader.shard_file(shards[i]).read(0, 2) == f"k{i}".encode()
            assert len(reader._open) <= 2


def test_media_are_files_of_their_own(tmp_path: Path) -> None:
    shard = lines_in(tmp_path, b"{}")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "ü 1.jpg").write_bytes(picture())
    record = Record([], listed_media=["deep/ü 1.jpg", str(tmp_path / "deep/ü 1.jpg")])
    with Reader() as reader:
        parts = reader.media(shard, record, "1", [])
        assert [reader.read(shard, part) for part in parts] == [picture()] * 2
        versions = [file["version"] for file in reader.files(shard, parts) or ()]
        assert versions == [str((tmp_path / "deep/ü 1.jpg").stat().st_mtime_ns)] * 2
        with pytest.raises(PackError, match="changed"):
            reader.part_file(shard, Part("deep/ü 1.jpg", 0, 7))
        with pytest.raises(PackError, match="run again"):
            reader.part_file(shard, Part("gone.jpg", 0, 7))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a.jpg", "missing_media"),
        ("deep", "missing_media"),  # a folder
        ("x.jsonl/a.jpg", "missing_media"),
        ("a\0.jpg", "missing_media"),
        ("a" * 300, "unreadable_media"),
        ("pipe", "missing_media"),  # would wait forever
    ],
)
def test_media_that_are_no_files(tmp_path: Path, name: str, reason: str) -> None:
    shard = lines_in(tmp_path, b"{}")
    (tmp_path / "deep").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with Reader() as reader, pytest.raises(Skip) as skip:
        reader.media(shard, Record([], listed_media=[name]), "1", [])
    assert skip.value.reason.value == reason
    assert str(tmp_path) not in skip.value.detail  # it stands in the ledger, whose bytes name no machine


@pytest.mark.parametrize("subdir", [True, False])
def test_images_of_an_lmdb(tmp_path: Path, subdir: bool) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "x.lmdb"), subdir=subdir) as database, database.begin(write=True) as transaction:
        transaction.put(b"k/1", picture())
    shard = lines_in(tmp_path, b"{}")
    with Reader() as reader:
        (part,) = reader.media(shard, Record([], listed_media=["x.lmdb::k/1"]), "1", [])
        (file,) = reader.files(shard, [part]) or [{}]
        assert reader.read(shard, part) == picture()
        path = tmp_path / "x.lmdb" / "data.mdb" if subdir else tmp_path / "x.lmdb"
        assert file["version"] == str(path.stat().st_mtime_ns)
        for name in ("x.lmdb::k/2", "y.lmdb::k/1"):
            with pytest.raises(Skip, match="missing_media"):
                reader.media(shard, Record([], listed_media=[name]), "1", [])


def test_an_lmdb_that_gives_no_image_costs_its_sample_alone(tmp_path: Path) -> None:
    """LMDB has no empty key: it raises, and a damaged one does."""
    lmdb = pytest.importorskip("lmdb")
    lmdb.open(str(tmp_path / "x.lmdb"), subdir=False).close()
    (tmp_path / "y.lmdb").write_bytes(b"no LMDB" * 1000)
    shard = lines_in(tmp_path, b"{}")
    with Reader() as reader:
        for name in ("x.lmdb::", "y.lmdb::k"):
            with pytest.raises(Skip, match="unreadable_media") as skip:
                reader.media(shard, Record([], listed_media=[name]), "1", [])
            assert str(tmp_path) not in skip.value.detail
