"""Sources on an object store: packed as from disk, read in few requests, and no fault of the network costs a sample."""

import errno
import gc
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from energon_pack.config import Format, PackConfig, SourceConfig, Stage
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.run.stores import client_of_profile, requests
from energon_pack.run.stores.blocks import BlockCache
from energon_pack.run.stores.requests import StoreError
from energon_pack.sources import reader, store_objects
from energon_pack.sources.media_files import OpenFileCache
from energon_pack.sources.source_path import find_source
from energon_pack.sources.storage import open_file, read_ahead, state_of
from support.marks import slow
from support.packed import files
from support.samples import chat, noise, picture, write_tar
from support.stores import Bucket

Make = Callable[..., PackConfig]


def written(folder: Path) -> dict[str, bytes]:
    """Return the files that must be equal."""
    return {name: data for name, data in files(folder).items() if not name.startswith("report")}


def test_a_demo_in_a_bucket_is_packed_as_from_disk(
    config: Make, demo: tuple[Path, Path], bucket: Bucket, tmp_path: Path
) -> None:
    """Each byte is asked for once, many in a request."""
    source = bucket.put_folder(demo[0], "data")
    size = sum(path.stat().st_size for path in demo[0].rglob("*.tar"))
    bucket.seen()
    pack(config(source, output__name="stored", cache_dir=str(tmp_path / "cache")))
    seen = bucket.seen()
    pack(config(demo[0], output__name="local", cache_dir=str(tmp_path / "cache")))
    assert written(tmp_path / "out" / "stored") == written(tmp_path / "out" / "local")
    assert seen.counts["bytes read"] < 1.01 * size + 10_000


@pytest.mark.parametrize("way", ["obstore", "multi-storage-client"])
def test_media_are_found_around_their_file(
    tmp_path: Path, bucket: Bucket, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In few requests, whatever lies in the folders: LLaVA's file names images of another folder."""
    if way != "obstore":
        monkeypatch.setattr("energon_pack.run.stores.is_forked", lambda: True)
        client_of_profile.cache_clear()
    root = tmp_path / "in"
    for name in (
        "images/train/1.png",
        "images/train/2.png",
        "images/val/3.png",
        *(f"other/n{n}.png" for n in range(20)),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(picture(format="PNG"))
    (root / "annotations").mkdir()
    lines = ({"images": [f"{name}.png"], "prompts": ["<image>?"], "captions": ["yes"]} for name in (1, 2))
    (root / "annotations" / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = bucket.put_folder(root, "data")
    bucket.seen()
    (shard,) = find_source(SourceConfig(), f"{source}/annotations").shards
    assert shard.media_root == f"{source}/images/train"
    assert len(bucket.seen().requests) <= {"obstore": 20, "multi-storage-client": 40}[way]
    client_of_profile.cache_clear()


def test_parquet_in_a_bucket_is_packed_as_from_disk(
    config: Make, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of images are read by their places: of a compressed one too, not once for each image in it."""
    monkeypatch.setattr("energon_pack.run.stores.blocks._MAX_MEMORY_BLOCKS", 14)  # not all of 15 MB
    chance = random.Random(0)
    image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    rows = [
        {
            "images": [{"bytes": noise(number) + chance.randbytes(60_000), "path": None}],
            "texts": [{"user": "q", "assistant": str(number)}],
        }
        for number in range(60)
    ]
    schema = pa.schema(
        {"images": pa.list_(image), "texts": pa.list_(pa.struct({"user": pa.string(), "assistant": pa.string()}))}
    )
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=15)
    source, size = bucket.put_folder(tmp_path / "in", "data"), path.stat().st_size
    few = {"source__format": "table", "packing__max_token_len": 700, "cache_dir": str(tmp_path / "cache")}
    pack(config(tmp_path / "in", output__name="local", **few))
    bucket.seen()
    run = config(source, output__name="stored", **few)
    pack(replace(run, stage=Stage.lengths))
    measured = bucket.seen().counts
    assert measured["bytes read"] < 1.01 * size + 10_000
    assert measured["GET"] + measured["HEAD"] < 12  # of 15 MB, with 60 images
    pack(run)
    assert written(tmp_path / "out" / "stored") == written(tmp_path / "out" / "local")


@pytest.mark.parametrize("most", [32 << 20, slow(1 << 20), slow(1)])
def test_a_source_that_is_larger_than_what_is_kept_is_packed_the_same(
    config: Make, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """The samples of many packs are read together, in their order: in few requests, and no other bytes."""
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        members: dict[str, bytes] = {}
        for number in range(30):
            members |= {f"{number:03}.json": chat("<image>?", f"{name}{number}"), f"{number:03}.png": noise(number)}
        write_tar(tmp_path / "in" / f"{name}.tar", members)
    source = bucket.put_folder(tmp_path / "in", "data")
    few = {"packing__max_token_len": 700, "cache_dir": str(tmp_path / "cache")}
    pack(config(tmp_path / "in", output__name="local", **few))
    monkeypatch.setattr(store_objects, "BLOCKS", BlockCache(most=0))
    run = config(source, output__name="stored", **few)
    pack(replace(run, stage=Stage.lengths))
    monkeypatch.setattr(store_objects, "BLOCKS", BlockCache(most=0))
    monkeypatch.setattr(store_objects, "_MAX_MEMORY_BYTES", min(most, 2 << 20))  # else it is in a file
    monkeypatch.setattr(reader, "max_read_ahead_bytes", lambda: most)
    bucket.seen()
    pack(run)
    size = sum(path.stat().st_size for path in (tmp_path / "in").iterdir())
    seen = bucket.seen().counts
    assert seen["bytes read"] < 2.05 * size  # for the packs, and for the samples that are kept to measure them again
    assert seen["GET"] < 2.1 * size / 1e6
    assert written(tmp_path / "out" / "stored") == written(tmp_path / "out" / "local")


def test_what_is_read_ahead_needs_no_room_on_the_disk(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes without room in memory are read when needed, and few bytes are read in vain."""
    data = random.Random(7).randbytes(12 << 20)
    bucket.put("a.tar", data)
    monkeypatch.setattr(store_objects, "BLOCKS", BlockCache(most=0))
    monkeypatch.setattr(store_objects, "_MAX_MEMORY_BYTES", 1_500_000)
    monkeypatch.setattr(store_objects, "_NUM_PARALLEL_REQUESTS", 1)
    ranges = [(start, 300_000) for start in range(0, 12_000_000, 500_000)]
    with open_file(f"{bucket.address}/a.tar") as file, monkeypatch.context() as full:
        full.setattr(os, "pwrite", no_room)
        bucket.seen()
        read_ahead([(file, ranges)])
        assert bucket.seen().counts["GET"] == 6  # five in memory, and one in vain
        assert all(file.read(start, size) == data[start : start + size] for start, size in ranges)
        full.setattr(tempfile, "mkstemp", no_room)
        read_ahead([(file, ranges)])
        assert all(file.read(start, size) == data[start : start + size] for start, size in ranges)


def no_room(*_: object, **__: object) -> NoReturn:
    """Report a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_threads_that_read_ahead_share_a_client(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("a.tar", bytes(4 << 20))
    address = f"{bucket.address}/a.tar"
    state = state_of(address)
    made = client_of_profile.cache_info().misses
    client_of_profile.cache_clear()
    with open_file(address, state) as file:
        read_ahead([(file, [(start, 10) for start in range(0, 4 << 20, 1 << 18)])])
    assert client_of_profile.cache_info().misses == made == 1


def test_one_batch_that_was_read_ahead_is_held(bucket: Bucket) -> None:
    """Each object of many would hold the batch in which it came last."""
    files = OpenFileCache()
    for name in ("a.tar", "b.tar", "c.tar"):
        bucket.put(name, bytes(1 << 20))
        files.read_ahead([(files.open(f"{bucket.address}/{name}"), [(0, 1 << 20)])])
        assert sum(isinstance(one, store_objects._ReadAheadSpool) for one in gc.get_objects()) == 1


@pytest.mark.parametrize("source", [slow(Format.wds), Format.jsonl])
def test_a_source_of_any_kind_is_found_in_a_bucket(
    config: Make, tmp_path: Path, bucket: Bucket, source: Format
) -> None:
    """A folder, a glob, one object; media beside their lines, and above them."""
    (tmp_path / "in" / "lines").mkdir(parents=True)
    if source is Format.wds:
        write_tar(
            tmp_path / "in" / "lines" / "x.tar", {"a.json": chat("<image>?", "a"), "a.png": picture(format="PNG")}
        )
        write_tar(tmp_path / "in" / "y.tar", {"b.json": chat("?", "b")})
    else:
        (tmp_path / "in" / "p.png").write_bytes(picture(format="PNG"))
        line = {"image": "../p.png", **json.loads(chat("<image>?", "a"))}
        (tmp_path / "in" / "lines" / "x.jsonl").write_text(json.dumps(line) + "\n")
        (tmp_path / "in" / "y.jsonl").write_text(chat("?", "b").decode() + "\n")
    address = bucket.put_folder(tmp_path / "in", "some data")
    end = {Format.wds: "tar", Format.jsonl: "jsonl"}[source]
    for name, local, remote in (
        ("folder", str(tmp_path / "in"), address),
        ("glob", f"{tmp_path}/in/**/[x-y].{end}", f"{address}/**/[x-y].{end}"),
        ("one", f"{tmp_path}/in/lines/x.{end}", f"{address}/lines/x.{end}"),
    ):
        found = []
        for place, path in (("local", local), ("stored", remote)):
            run = config(path, source__format=source, output__name=f"{name}-{place}", cache_dir=str(tmp_path / "cache"))
            assert pack(run)["samples_packed"] == (1 if name == "one" else 2)
            found.append(written(tmp_path / "out" / f"{name}-{place}"))
        assert found[0] == found[1]


def test_faults_of_the_network_are_passed_over(
    config: Make, demo: tuple[Path, Path], bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second request fails in some way, and none of them costs a sample."""
    source = bucket.put_folder(demo[0], "data")
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.001)
    turns = cycle([500, None, "cut", None, 503, None])
    bucket.proxy.fault = lambda request: next(turns)
    before = requests.REQUEST_COUNTS["retries"]
    figures = pack(config(source, output__name="stored", cache_dir=str(tmp_path / "cache")))
    assert figures["samples_skipped"] == 0
    assert requests.REQUEST_COUNTS["retries"] - before > 4


@pytest.mark.parametrize("fault", [slow(500), "cut"])
def test_a_store_that_does_not_answer_ends_the_run_and_the_next_goes_on(
    config: Make,
    demo: tuple[Path, Path],
    bucket: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: int | str,
) -> None:
    source = bucket.put_folder(demo[0], "data")
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.001)
    run = config(source, output__name="stored", cache_dir=str(tmp_path / "cache"))
    bucket.proxy.fault = lambda request: fault if request.range else None
    with pytest.raises(PackError, match=r"GET failed 7 times.*the same command goes on"):
        pack(run)
    assert not (tmp_path / "out" / "stored").exists()
    bucket.proxy.fault = lambda request: None
    assert pack(run)["samples_skipped"] == 0


def test_slow_answers_are_waited_for(config: Make, demo: tuple[Path, Path], bucket: Bucket, tmp_path: Path) -> None:
    source = bucket.put_folder(demo[0], "data")
    turns = cycle(["slow", "drip", None])
    bucket.proxy.fault = lambda request: next(turns)
    before = requests.REQUEST_COUNTS["retries"]
    assert pack(config(source, cache_dir=str(tmp_path / "cache")))["samples_skipped"] == 0
    assert requests.REQUEST_COUNTS["retries"] == before


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds as in other tests are minutes here."""
    for name, seconds in {
        "FIRST_WAIT_SECONDS": 0.001,
        "READ_SECONDS": 0.3,
        "REQUEST_SECONDS": 0.8,
        "MAX_RETRY_SECONDS": 2.0,
    }.items():
        monkeypatch.setattr(requests, name, seconds)


@pytest.mark.parametrize("fault", [slow("slow"), "drip"])
def test_an_answer_that_comes_too_late_is_asked_for_again(
    config: Make, demo: tuple[Path, Path], bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    source = bucket.put_folder(demo[0], "data")
    impatient(monkeypatch)
    bucket.proxy.pause = {"slow": 1.0, "drip": 0.1}[fault]
    turns = cycle([fault, None, None])
    bucket.proxy.fault = lambda request: next(turns) if request.range else None
    before = requests.REQUEST_COUNTS["retries"]
    assert pack(config(source, cache_dir=str(tmp_path / "cache")))["samples_skipped"] == 0
    assert requests.REQUEST_COUNTS["retries"] > before


@pytest.mark.parametrize("fault", ["slow", slow("drip")])
def test_a_store_that_is_always_too_slow_ends_the_run(
    config: Make, demo: tuple[Path, Path], bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Whether nothing comes for long, or always a little; and it is not tried for ever."""
    source = bucket.put_folder(demo[0], "data")
    impatient(monkeypatch)
    bucket.proxy.pause = {"slow": 1.0, "drip": 0.1}[fault]
    bucket.proxy.fault = lambda request: fault if request.range else None
    run = config(source, cache_dir=str(tmp_path / "cache"))
    start = time.monotonic()
    with pytest.raises(PackError, match=r"GET failed \d times: .*the same command goes on") as caught:
        pack(run)
    assert time.monotonic() - start < 30
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out" / "packed").exists()
    bucket.proxy.fault = lambda request: None
    assert pack(run)["samples_skipped"] == 0


def test_a_fault_while_media_are_looked_at_is_no_damaged_medium(
    config: Make, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow takes whatever reading raises for a damaged picture, and the sample would be lost for ever."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "p.gif").write_bytes(picture(format="GIF"))
    (tmp_path / "in" / "x.jsonl").write_text(json.dumps({"image": "p.gif", **json.loads(chat("<image>?", "a"))}))
    run = config(bucket.put_folder(tmp_path / "in", "data"), source__format=Format.jsonl)
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.001)
    bucket.proxy.fault = lambda request: 503 if "p.gif" in request.path and request.range else None
    with pytest.raises(StoreError, match=r"p\.gif: GET failed 7 times"):
        pack(run)
    bucket.proxy.fault = lambda request: None
    assert pack(run)["samples_packed"] == 1


def test_an_object_that_changed_is_noticed(
    config: Make, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new object has the same size; its version reveals the change, between two runs and within one."""
    before, after = ({"a.json": chat("?", word), "b.json": chat("?", word)} for word in ("one", "two"))
    bucket.put("data/x.tar", write_tar(tmp_path / "x.tar", before).read_bytes())
    run = config(f"{bucket.address}/data", cache_dir=str(tmp_path / "cache"), output__overwrite=True)
    pack(replace(run, stage=Stage.lengths))

    def change(*_: object) -> int:
        bucket.put("data/x.tar", write_tar(tmp_path / "x.tar", after).read_bytes())
        monkeypatch.setattr(store_objects, "BLOCKS", BlockCache())
        return 0

    monkeypatch.setattr("energon_pack.dataset.in_folder.FolderDestination.begin_writing", change)
    with pytest.raises(PackError, match="changed"):
        pack(run)
    monkeypatch.undo()
    assert pack(replace(run, output=replace(run.output, name="again")))["samples_packed"] == 2


def test_an_object_that_goes_meanwhile_is_named(
    config: Make, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that changed: `verify` would call a file that is not there a defect."""
    bucket.put("data/x.tar", write_tar(tmp_path / "x.tar", {"a.json": chat("?", "one")}).read_bytes())
    run = config(f"{bucket.address}/data", cache_dir=str(tmp_path / "cache"))

    def remove(*_: object) -> int:
        bucket.delete("data/x.tar")
        monkeypatch.setattr(store_objects, "BLOCKS", BlockCache())
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # nothing is kept there
        return 0

    monkeypatch.setattr("energon_pack.dataset.in_folder.FolderDestination.begin_writing", remove)
    with pytest.raises(PackError, match=r"data/x\.tar changed while it was read"):
        pack(run)


def test_what_is_not_there_is_said(config: Make, bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(PackError, match="data: no such folder or object"):
        pack(config(f"{bucket.address}/data"))
    (tmp_path / "x.jsonl").write_text(
        json.dumps({"image": f"{bucket.address}/no.png", **json.loads(chat("<image>?", "a"))})
    )
    run = config(tmp_path / "x.jsonl", source__format=Format.jsonl, max_skipped=1.0)
    with pytest.raises(PackError, match="every image sample was skipped"):
        pack(replace(run, stage=Stage.plan))
