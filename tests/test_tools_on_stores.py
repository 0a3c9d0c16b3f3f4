"""The tools for packed datasets give the same results for an address as for a folder, and read only what they need."""

import re
import shutil
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from megatron.energon import WorkerConfig, get_loader, get_val_dataset

from energon_pack.config import Format, MediaIn, PackConfig
from energon_pack.dataset.manifest import read_manifest
from energon_pack.errors import PackError
from energon_pack.run.address import energon_address
from energon_pack.run.stores import blocks, requests
from energon_pack.sources import store_objects
from energon_pack.verify import Options, verify
from energon_pack.verify import shard_checks as verify_shard
from support.corruptions import CORRUPTIONS
from support.damage import found, lines, packed_to_damage
from support.marks import slow
from support.packed import files, packed
from support.running import command_here
from support.samples import chat, noise, write_source, write_tar
from support.stores import Bucket, Request

Make = Callable[..., PackConfig]


@pytest.fixture(scope="module")
def dataset(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts and images in four shards, one sample cut in parts, three in the ledger."""
    return packed_to_damage(demo, cache, tmp_path_factory.mktemp("stored"))


def said(tool: str, place: Path | str, *arguments: str | Path, cwd: Path) -> tuple[int, str, str]:
    """Exit code and whole output, with DIR for the dataset, however it is named."""
    result = command_here(f"energon_pack.{tool}", place, *arguments, cwd=cwd)
    out, errors = (re.sub(r"\s+", " ", text.replace(str(place), "DIR")) for text in (result.stdout, result.stderr))
    return result.returncode, out, errors


def ranges(bucket: Bucket) -> dict[str, list[tuple[int, int]]]:
    """What was read of each object since this was asked the last time: where each range begins and ends."""
    found = defaultdict(list)
    for request in bucket.seen().requests:
        if request.method == "GET" and request.range:
            first, last = request.range.removeprefix("bytes=").split("-")
            found[request.path.rpartition("/")[2]].append((int(first), int(last) + 1))
    return {name: sorted(places) for name, places in found.items()}


# ------------------------------------------------------------------------------------------------- the same is said


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("verify", ["--decode", "--source", "--num-workers", "1"]),
        slow("inspect", ["5", "--full"]),
        ("inspect", ["sub/b.tar/i03"]),
    ],
)
def test_a_tool_says_of_an_address_what_it_says_of_a_folder(
    tool: str, arguments: list[str], dataset: Path, bucket: Bucket, tmp_path: Path
) -> None:
    address = bucket.put_folder(dataset, "out/packed")
    here = said(tool, dataset, *arguments, cwd=tmp_path)
    assert here[0] == 0
    assert said(tool, address, *arguments, cwd=tmp_path) == here


@pytest.mark.parametrize(
    "name",
    [
        "a bit of an image, by its pixels", "a truncated shard",
        *map(slow, ["a stray file", "no index", "a missing shard", "a pack twice", "broken JSON", "no report"]),
        slow("a packed sample in the ledger"),
    ],
)  # fmt: skip
def test_a_damage_is_found_in_a_bucket_as_on_disk(name: str, dataset: Path, bucket: Bucket, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(dataset, tmp_path / "packed"))
    damage, options, _ = CORRUPTIONS[name]
    damage(folder)
    here = found(folder, **options)
    there = found(bucket.put_folder(folder, "out/packed"), **options)
    assert lines(there) == lines(here) != ""
    assert there.num_checked == here.num_checked


def test_lines_and_an_sqlite_index_are_verified_in_a_bucket_as_on_disk(
    config: Make, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of packs that refer to them, after the lines and their media have moved."""
    meta = write_source(tmp_path / "source")
    settings = {"output__sqlite": True, "output__media": MediaIn.reference, "max_skipped": 0.9}
    folder = packed(config(meta, source__format=Format.jsonl, **settings))
    shutil.move(meta.parent, tmp_path / "moved")
    monkeypatch.setenv("ENERGON_PACK_SOURCE", bucket.put_folder(tmp_path / "moved", "data"))
    places = folder, bucket.put_folder(folder, "packed")
    assert [lines(found(place, source=[], decode=True)) for place in places] == ["", ""]
    with closing(sqlite3.connect(folder / ".nv-meta" / "index.sqlite")) as index, index:
        index.execute("DELETE FROM sample_parts WHERE rowid = 1")
    here, there = (lines(found(place)) for place in (folder, bucket.put_folder(folder, "packed")))
    assert here == there
    assert "index.sqlite has" in there


def test_a_folder_in_a_bucket_that_is_none_of_the_dataset(dataset: Path, bucket: Bucket) -> None:
    """And the object by which consoles say that there is a folder is no file of it."""
    address = bucket.put_folder(dataset, "out/packed")
    bucket.put("out/packed/", b"")
    bucket.put("out/packed/.nv-meta/", b"")
    assert lines(found(address)) == ""
    bucket.put("out/packed/mine/deep/notes.txt", b"")
    assert lines(found(address)) == "files: packed: mine is a folder"


# ----------------------------------------------------------------------------------------------- how much is read


def test_verify_reads_each_shard_once_whatever_is_kept_of_it(
    config: Make, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of shards that are larger than what is kept in memory, and with no room on the disk."""
    folder = packed(config(noises(tmp_path / "source", 48), packing__max_token_len=512))
    address = bucket.put_folder(folder, "packed")
    keep_little(monkeypatch)
    bucket.seen()
    assert lines(found(address, decode=True)) == ""
    seen = bucket.proxy.seen.counts
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert num_bytes > 9 << 20
    assert seen["bytes read"] < 1.02 * num_bytes
    assert seen["HEAD"] <= 1  # all else was told by the list
    places = ranges(bucket)["packed-000000.tar"]
    assert len(places) > 5
    assert all(end <= start for (_, end), (start, _) in pairwise(places))


def noises(folder: Path, number: int) -> Path:
    """A source of samples of 200 kB."""
    pictures = {f"{i:02d}.png": noise(i) for i in range(number)}
    texts = {f"{i:02d}.json": chat("<image>?", f"the {i}th") for i in range(number)}
    return write_tar(folder / "x.tar", dict(sorted({**pictures, **texts}.items()))).parent


def keep_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a large dataset is to memory and disk, a small one is to less."""
    monkeypatch.setattr(blocks, "_MAX_MEMORY_BLOCKS", 6)
    monkeypatch.setattr(store_objects, "BLOCKS", blocks.BlockCache(most=0))
    monkeypatch.setattr(store_objects, "_MAX_REQUEST_BLOCKS", 2)
    monkeypatch.setattr(verify_shard, "_MAX_GROUP_BYTES", 1 << 20)


@pytest.mark.parametrize("media", [slow(MediaIn.copy), MediaIn.reference])
def test_a_source_in_a_bucket_is_read_for_its_headers_and_once_more(
    config: Make, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, media: MediaIn
) -> None:
    """Samples that lie anywhere in it are read by their own ranges, those of a pack together."""
    source = noises(tmp_path / "source", 20)
    folder = packed(config(source, packing__max_token_len=512, output__media=media))
    monkeypatch.setenv("ENERGON_PACK_SOURCE", address := bucket.put_folder(source, "data"))
    keep_little(monkeypatch)
    times = {MediaIn.copy: 2, MediaIn.reference: 3}[media]  # headers, the sample, and where the pack says it is
    given: list[str] = [address] if media is MediaIn.copy else []
    bucket.seen()
    assert lines(found(folder, source=given, decode=True)) == ""
    seen = bucket.seen().counts
    num_bytes = sum(path.stat().st_size for path in source.iterdir())
    assert num_bytes > 3 << 20
    assert seen["bytes read"] < (times + 0.1) * num_bytes
    assert seen["GET"] < 20 * times


def test_one_pack_is_read_without_the_others(dataset: Path, bucket: Bucket, tmp_path: Path) -> None:
    address = bucket.put_folder(dataset, "packed")
    bucket.seen()
    assert said("inspect", address, "4", cwd=tmp_path)[0] == 0
    ((name, places),) = ((name, places) for name, places in ranges(bucket).items() if name.endswith(".tar"))
    ends = np.fromfile(dataset / f"{name}.idx", "<u8").tolist()
    assert len(ends) > 2
    assert places in ([pack] for pack in pairwise(ends))


# -------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("tool", ["verify", "inspect", "unpack", "metadataset"])
def test_what_is_no_dataset_in_a_bucket_is_said_in_one_line(
    tool: str, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.001)
    bucket.put("data/notes.txt", b"mine")

    def refused(address: str) -> str:
        given = {"unpack": [address, "out"], "metadataset": ["blend.yaml", address]}.get(tool, [address])
        result = command_here(f"energon_pack.{tool}", *given, cwd=tmp_path)
        assert (result.returncode, result.stdout, list(tmp_path.iterdir())) == (1, "", [])
        (line,) = result.stderr.splitlines()
        return line

    for name in ("nothing", "data", "data/notes.txt"):
        line = refused(f"{bucket.address}/{name}")
        assert f"{bucket.address}/{name}" in line
        assert re.search("no such folder|is no (packed )?dataset|is not a dataset|is a file|by its folder", line)
    assert "404" in refused("s3://no-such-bucket-at-all/packed")
    bucket.proxy.fault = lambda request: 403
    assert re.search("PermissionDenied|403", refused(f"{bucket.address}/data"))


@pytest.mark.parametrize(
    "name",
    [*map(slow, (".nv-meta/split.yaml", "pack_plan.parquet", "skipped.jsonl")), "report.json", "packed-000002.tar"],
)
def test_no_fault_of_a_network_is_a_defect_of_a_dataset(
    name: str, dataset: Path, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever object it is that can't be read: the one line says so, and no table is printed."""
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.001)
    address = bucket.put_folder(dataset, "packed")
    bucket.proxy.fault = lambda request: 500 if request.path.endswith(name) else None
    result = command_here("energon_pack.verify", address, "--num-workers", "1", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(rf"energon_pack.verify: {address}/{name}: GET failed 7 times: .*\n", result.stderr)


def test_a_shard_that_is_written_over_meanwhile_is_no_defect(dataset: Path, bucket: Bucket, tmp_path: Path) -> None:
    address = bucket.put_folder(dataset, "packed")
    other = (dataset / "packed-000001.tar").read_bytes()

    def written_over(request: Request) -> None:
        if request.path.endswith("packed-000000.tar"):
            bucket.put("packed/packed-000000.tar", other)

    bucket.proxy.fault = written_over
    with pytest.raises(PackError, match=r"packed-000000.tar changed while it was read"):
        found(address)


# --------------------------------------------------------------------------------------------- unpack, metadataset


@pytest.mark.parametrize("room", [0, slow(1000)])
def test_unpacked_from_a_bucket_are_the_same_tars(
    room: int, dataset: Path, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In few requests, too, where nothing is kept of what was read for the texts."""
    address = bucket.put_folder(dataset, "packed")
    here = said("unpack", dataset, tmp_path / "here", cwd=tmp_path)
    monkeypatch.setattr(store_objects, "BLOCKS", blocks.BlockCache(most=room))
    bucket.seen()
    there = said("unpack", address, tmp_path / "there", cwd=tmp_path)
    assert there[0] == here[0] == 0
    assert files(tmp_path / "there") == files(tmp_path / "here") != {}
    assert bucket.proxy.seen.counts["GET"] < 30
    assert said("unpack", dataset, f"{bucket.address}/out", cwd=tmp_path)[2].startswith(
        f"energon_pack.unpack: {bucket.address}/out is on an object store"
    )


def keys_of(metadataset: str) -> Counter[str]:
    """Which packs Energon reads of a blend, and how often."""
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    blend = get_val_dataset(metadataset, split_part="train", worker_config=worker, batch_size=None)
    return Counter(pack.__key__.rpartition("/")[2] for pack in get_loader(blend))


def test_a_blend_of_addresses_is_one_that_energon_reads(
    dataset: Path, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written to a file or into the bucket, with whole paths or relative ones; and it says what one of folders says."""
    for name in ("a=1", "b"):
        shutil.copytree(dataset, tmp_path / "here" / name / "packed")
    there = bucket.put_folder(tmp_path / "here", "there")
    shown = []
    for root in (str(tmp_path / "here"), there):
        out = f"{root}/blend.yaml"
        result = command_here("energon_pack.metadataset", out, f"{root}/a=1/packed", f"{root}/b/packed", cwd=tmp_path)
        assert (result.returncode, result.stderr) == (0, "")
        shown.append(result.stdout.replace(root, "ROOT"))
    assert shown[0] == shown[1]
    text = bucket.read("there/blend.yaml").decode()
    assert text.replace(energon_address(there), "ROOT") == (tmp_path / "here" / "blend.yaml").read_text().replace(
        str(tmp_path / "here"), "ROOT"
    )
    packs = keys_of(str(tmp_path / "here" / "blend.yaml"))
    assert set(packs.values()) == {2}
    given = f"{there}/b/packed=2", f"{energon_address(there)}/a=1/packed=1"
    assert command_here("energon_pack.metadataset", f"{there}/two.yaml", *given, "--relative", cwd=tmp_path).stdout
    assert 'path: "a=1/packed"' in bucket.read("there/two.yaml").decode()
    assert keys_of(energon_address(f"{there}/two.yaml")) == packs
    for name in ("blend", "two"):
        assert read_manifest(f"{there}/{name}.yaml") == read_manifest(dataset)
    line = command_here("energon_pack.metadataset", "x.yaml", *given, "--relative", cwd=tmp_path).stderr
    assert re.fullmatch(r"energon_pack.metadataset: --relative: from \S+ there is no relative path to \S+: .*\n", line)
    line = command_here("energon_pack.metadataset", f"{there}/x.yaml", f"{dataset}=1", *given, cwd=tmp_path).stderr
    assert f"{dataset} is not: a blend there is of datasets on stores alone" in line
    line = command_here("energon_pack.metadataset", f"{there}/two.yaml", *given, cwd=tmp_path).stderr
    assert line == f"energon_pack.metadataset: {there}/two.yaml exists; --overwrite replaces it\n"


# ------------------------------------------------------------------------------------- packs that refer to a source


def test_verify_looks_for_the_source_where_loading_does(
    config: Make, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENERGON_PACK_SOURCE is heeded by `--source`, too: for packs that refer to their source, as loading does."""
    for name in ("a", "sub/b"):
        write_tar(tmp_path / "old" / f"{name}.tar", {"k.json": chat("<image>?", name), "k.png": noise(len(name), 32)})
    folder = packed(config(str(tmp_path / "old" / "**" / "*.tar"), output__media=MediaIn.reference))
    copied = packed(config(tmp_path / "old", output__name="copied"))
    address = bucket.put_folder(folder, "packed")
    assert lines(found(folder, source=[])) == lines(found(address, source=[], decode=True)) == ""
    source = bucket.put_folder(tmp_path / "old", "moved")
    shutil.move(tmp_path / "old", tmp_path / "new")
    with pytest.raises(PackError, match=r"old.*no .*\(--source PATH says where it is now"):
        verify(folder, Options(source=[]))
    for root, place in ((str(tmp_path / "new"), address), (source, folder)):
        monkeypatch.setenv("ENERGON_PACK_SOURCE", root)
        clean = found(place, source=[], decode=True)
        assert lines(clean) == ""
        assert clean.num_checked["source media"] == clean.num_checked["source samples"] == 2
    with pytest.raises(PackError, match="old"):  # a copy is read by nobody's loader from there
        verify(copied, Options(source=[]))
    monkeypatch.setenv("ENERGON_PACK_SOURCE", str(tmp_path / "nowhere"))
    assert lines(found(folder, source=[str(tmp_path / "new")])) == ""
    with pytest.raises(PackError, match=r"nowhere.*no "):
        verify(folder, Options(source=[]))
