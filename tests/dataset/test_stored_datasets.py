"""Datasets on an object store: the same bytes as on disk, there whole or not at all, and read by Energon from there."""

import gc
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count, cycle
from pathlib import Path

import pytest

from energon_pack.config import PackConfig, Stage
from energon_pack.dataset.in_store import RunMarkerOnStore
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.run.stores import by_obstore, requests
from support.packed import files
from support.running import run_here
from support.samples import chat, picture, write_tar
from support.stores import Bucket, Request

Make = Callable[..., PackConfig]


def same(found: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files that must be equal."""
    return {name: data for name, data in found.items() if not name.startswith("report")}


def small(config: Make, folder: str | Path, cache: Path, **settings: object) -> PackConfig:
    """A run of the demo in several shards."""
    shards = {"output__max_shard_packs": 3, "output__dir": str(folder), "cache_dir": str(cache)}
    return config(None, **{**shards, **settings})


def test_a_dataset_in_a_bucket_has_the_bytes_of_one_on_disk(
    config: Make, demo: tuple[Path, Path], bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = bucket.put_folder(demo[0], "data")
    pack(small(config, tmp_path / "out", tmp_path / "cache", source__path=source))
    pack(small(config, f"{bucket.address}/out/", tmp_path / "cache", source__path=source))
    assert same(bucket.files("out/packed")) == same(files(tmp_path / "out" / "packed"))
    assert bucket.names("out/.staging") == []
    assert f'get_train_dataset("msc://_s3-{bucket.name}/out/packed", ...)' in capsys.readouterr().out
    page = bucket.read("out/packed/report.html").decode()
    assert "Pack 0" in page
    assert f"msc://_s3-{bucket.name}/out/packed" in page


def test_metadata_come_last_and_what_makes_it_a_dataset_last_of_all(
    config: Make, bucket: Bucket, tmp_path: Path
) -> None:
    pack(small(config, f"{bucket.address}/out", tmp_path / "cache"))
    requests_seen = bucket.seen().requests
    puts = [request.path.partition("?")[0] for request in requests_seen if request.method == "PUT"]
    final = [path for path in dict.fromkeys(puts) if "/out/packed/" in path]
    is_meta = ["/.nv-meta/" in path for path in final]
    assert is_meta == sorted(is_meta)
    assert [path.rpartition("/")[2] for path in final[-2:]] == ["energon_pack.json", "dataset.yaml"]


def test_no_file_of_a_store_is_left_open(config: Make, bucket: Bucket, tmp_path: Path) -> None:
    """One in a cycle asks whether its thread lives when it is collected: as a thread started, this waited for ever."""
    gc.disable()  # else Python may collect them by chance
    try:
        pack(small(config, f"{bucket.address}/out", tmp_path / "cache"))
        assert not [each for each in gc.get_objects() if type(each).__name__ == "ObjectFile"]
    finally:
        gc.enable()


def failing_from(bucket: Bucket, number: int) -> None:
    """Let so many writes pass, and refuse all that come after them, as a store does whose keys are withdrawn."""
    numbers = count()

    def refuse(request: Request) -> int | None:
        return 403 if request.method in ("PUT", "POST", "DELETE") and next(numbers) >= number else None

    bucket.proxy.fault = refuse


def is_published(bucket: Bucket) -> bool:
    return "out/packed/.nv-meta/dataset.yaml" in bucket.names("out/packed/.nv-meta/")


def refused_at_each_write(
    config: Make, bucket: Bucket, tmp_path: Path, numbers: Iterable[int], replaced: bool
) -> tuple[int, int]:
    """How many runs failed, and at how many of their ends no dataset was there."""
    run = small(config, f"{bucket.address}/out", tmp_path / "cache", output__overwrite=replaced)
    pack(run)
    new = same(bucket.files("out/packed"))
    other = small(config, f"{bucket.address}/out", tmp_path / "cache", output__overwrite=replaced, seed=7)
    bucket.clear()
    if replaced:
        pack(other)
        old = same(bucket.files("out/packed"))
    num_failed = num_gone = 0
    said = "PermissionDenied"
    for number in numbers:
        failing_from(bucket, number)
        try:
            pack(run)
        except PackError as error:
            num_failed += 1
            said = str(error)
        bucket.proxy.fault = lambda request: None
        assert "PermissionDenied" in said
        if is_published(bucket):
            there = same(bucket.files("out/packed"))
            assert there == new or (replaced and there == old)
        else:
            num_gone += 1
        if not is_published(bucket) or replaced:
            pack(run)
        assert same(bucket.files("out/packed")) == new
        if replaced:
            pack(other)
        else:
            bucket.clear()
    return num_failed, num_gone


@pytest.mark.slow
@pytest.mark.parametrize("replaced", [False, True])
def test_a_store_that_refuses_a_write_leaves_no_half_of_a_dataset(
    config: Make, bucket: Bucket, tmp_path: Path, replaced: bool
) -> None:
    """At whichever write it ends, there is a whole dataset or none, and the same command goes on."""
    num_failed, num_gone = refused_at_each_write(config, bucket, tmp_path, (2, 16), replaced)
    assert num_failed == 2
    assert num_gone >= 1


@pytest.mark.slow
@pytest.mark.parametrize("replaced", [False, True])
def test_the_same_at_every_write_there_is(config: Make, bucket: Bucket, tmp_path: Path, replaced: bool) -> None:
    num_failed, _ = refused_at_each_write(config, bucket, tmp_path, range(60), replaced)
    assert 25 < num_failed < 60


def test_shards_that_are_there_are_not_written_again(config: Make, bucket: Bucket, tmp_path: Path) -> None:
    """Shards of the same identity stay; all shards of another one are removed."""
    run = small(config, f"{bucket.address}/out", tmp_path / "cache")
    failing_from(bucket, 11)  # a probe and its end, two markers, two shards and a third
    with pytest.raises(PackError, match="PermissionDenied"):
        pack(run)
    bucket.proxy.fault = lambda request: None
    assert [name for name in bucket.names("out/packed") if name.endswith(".idx")] == [
        "out/packed/packed-000000.tar.idx",
        "out/packed/packed-000001.tar.idx",
    ]
    bucket.seen()
    pack(run)
    written = {request.path.partition("?")[0] for request in bucket.seen().requests if request.method == "PUT"}
    assert [f"/{bucket.name}/out/packed/packed-00000{n}.tar" in written for n in range(4)] == [False, False, True, True]


def test_what_is_there_already_is_kept(config: Make, bucket: Bucket, tmp_path: Path) -> None:
    run = small(config, f"{bucket.address}/out", tmp_path / "cache")
    bucket.put("out/packed/mine.txt", b"mine")
    with pytest.raises(PackError, match=r"packed exists; output.overwrite=true replaces it"):
        pack(run)
    with pytest.raises(PackError, match="is not a packed dataset"):
        pack(replace(run, output=replace(run.output, overwrite=True)))
    assert bucket.read("out/packed/mine.txt") == b"mine"


def test_a_dataset_in_a_bucket_is_there_already_where_it_is_whole(
    config: Make, demo: tuple[Path, Path], bucket: Bucket, tmp_path: Path
) -> None:
    """Its shards were not looked for: one that was deleted, or cut, was `there already`."""
    run = small(config, f"{bucket.address}/out", tmp_path / "cache")
    run = replace(run, source=replace(run.source, path=str(demo[0])), model=replace(run.model, processor=str(demo[1])))
    identity = pack(run)["identity"]
    for name in ("packed-000001.tar", "packed-000001.tar.idx", "pack_plan.parquet"):
        whole = bucket.read(f"out/packed/{name}")
        bucket.put(f"out/packed/{name}", whole[:-8])
        with pytest.raises(PackError, match=r"packed exists; output.overwrite=true replaces it"):
            pack(run)
        bucket.delete(f"out/packed/{name}")
        with pytest.raises(PackError, match=r"packed exists; output.overwrite=true replaces it"):
            pack(run)
        bucket.put(f"out/packed/{name}", whole)
    assert pack(run)["identity"] == identity


def test_the_marker_that_a_kill_behind_publishing_left_is_removed_by_the_next_call(
    config: Make, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`.staging/packed` stayed in the bucket for ever: "there already" never looked there."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    run = small(config, f"{bucket.address}/out", tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr(RunMarkerOnStore, "remove_if_own", stop)
        with pytest.raises(KeyboardInterrupt):
            pack(run)
    expected, marker = bucket.files("out/packed"), "out/.staging/packed/identity"
    left = json.loads(bucket.read(marker))
    for of_another in ({"identity": "another"}, {"state": "writing"}):
        bucket.put(marker, json.dumps(left | of_another).encode())
        pack(run)
        assert json.loads(bucket.read(marker)) == left | of_another
    bucket.put(marker, json.dumps(left).encode())
    pack(run)
    assert bucket.names("out/.staging") == []
    assert bucket.files("out/packed") == expected


def test_nothing_is_written_into_a_source_in_a_bucket(
    config: Make, demo: tuple[Path, Path], bucket: Bucket, tmp_path: Path
) -> None:
    source = bucket.put_folder(demo[0], "data/deep")
    before = bucket.names()
    for folder, cache, named in (
        (source, tmp_path / "cache", "output.dir: .* lies in the source"),
        (f"{source}/more", tmp_path / "cache", "output.dir: .* lies in the source"),
        (tmp_path / "out", f"{source}/cache", "cache_dir: .* lies in the source"),
    ):
        with pytest.raises(PackError, match=named):
            pack(small(config, folder, Path("/"), source__path=source, cache_dir=str(cache)))
    around = small(config, bucket.address, tmp_path / "cache", source__path=source, output__name="data")
    with pytest.raises(PackError, match=r"the source .* lies in"):
        pack(replace(around, stage=Stage.plan))
    with pytest.raises(PackError, match=r"nowhere-at-all.*404 Not Found"):
        pack(small(config, "s3://nowhere-at-all", tmp_path / "cache", source__path=source))
    assert bucket.names() == before


def test_a_cache_in_a_bucket_serves_another_machine(
    config: Make, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which has nothing of its own: it measures no sample again."""
    run = config(None, cache_dir=f"{bucket.address}/cache")
    figures = pack(run)
    assert figures["cache"]["shards_reused"] == 0
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    again = pack(replace(run, output=replace(run.output, name="again")))
    assert again["cache"]["shards_measured"] == 0
    assert {name.split("/")[1] for name in bucket.names("cache")} == {"index", "lengths"}
    number = len(bucket.names("cache"))
    pack(replace(run, stage=Stage.plan))
    assert len(bucket.names("cache")) == number


def test_faults_while_a_dataset_is_written_are_passed_over(
    config: Make, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes shards that are written in parts."""
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(by_obstore, "PART_BYTES", 5 << 20)
    (tmp_path / "in").mkdir()
    large = picture(700, 800) + bytes(12 << 20) + b"\xff\xd9"
    write_tar(tmp_path / "in" / "x.tar", {"a.json": chat("<image>?", "yes"), "a.jpg": large})
    turns = cycle([None, 500, None, None, 503, "cut"])
    bucket.proxy.fault = lambda request: next(turns)
    figures = {}
    for place, folder in (("local", str(tmp_path / "out")), ("stored", f"{bucket.address}/out")):
        figures[place] = pack(config(tmp_path / "in", output__dir=folder, cache_dir=str(tmp_path / "cache")))
    assert any("uploadId" in request.path for request in bucket.proxy.seen.requests)
    bucket.proxy.fault = lambda request: None
    assert same(bucket.files("out/packed")) == same(files(tmp_path / "out" / "packed"))


def test_a_store_that_is_slow_to_take_what_is_written_ends_the_run(
    config: Make, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late request that the store still completes leaves no half of a dataset."""
    for name, seconds in {
        "FIRST_WAIT_SECONDS": 0.001,
        "REQUEST_SECONDS": 0.5,
        "READ_SECONDS": 0.5,
        "MAX_RETRY_SECONDS": 1.0,
    }.items():
        monkeypatch.setattr(requests, name, seconds)
    run = small(config, f"{bucket.address}/out", tmp_path / "cache")
    bucket.proxy.pause = 1.5
    bucket.proxy.fault = lambda request: "slow" if request.method == "PUT" and ".tar" in request.path else None
    start = time.monotonic()
    with pytest.raises(PackError, match=r"packed-000000.tar: PUT failed \d times: .*the same command goes on"):
        pack(run)
    assert time.monotonic() - start < 60
    assert not is_published(bucket)
    bucket.proxy.fault = lambda request: None
    pack(run)
    assert is_published(bucket)


@pytest.mark.slow
def test_a_sweep_into_a_bucket_has_a_folder_of_this_machine(bucket: Bucket, tmp_path: Path) -> None:
    """Hydra would make one that is called `s3:`, in the folder where one is."""
    arguments = ("-m", "+model=qwen2_5_vl", f"output.dir={bucket.address}/out", "packing.max_token_len=1400,2800")
    code, out, errors = run_here(*arguments, f"cache_dir={tmp_path}/cache", "source.limit=40", cwd=tmp_path)
    assert (code, errors) == (0, "")
    assert "sweep.html" in out
    assert len([name for name in bucket.names("out/") if name.endswith("/dataset.yaml")]) == 2
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("s3")] == []
