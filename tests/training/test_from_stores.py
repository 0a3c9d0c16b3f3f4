"""Training on what lies on an object store: the batches are those of a folder, through Energon and without."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from energon_pack.config import PackConfig
from energon_pack.dataset.manifest import read_manifest
from energon_pack.online.lazy import LazyPackedDataset
from energon_pack.pack import pack
from energon_pack.run.address import energon_address
from support.from_stores import batches, equal, lazy_batches
from support.running import ROOT, command, need_torchvision
from support.stores import Bucket

pytestmark = pytest.mark.usefixtures("one_thread")
Make = Callable[..., PackConfig]
LEN = 1024


@pytest.fixture(autouse=True)
def _torchvision() -> None:
    need_torchvision()


def compare(*arguments: str | Path, cwd: Path) -> None:
    """In a process of its own, as training is: it forks workers, and has no threads of tests."""
    path = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"
    done = command("-m", "support.from_stores", *arguments, cwd=cwd, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_energon_reads_the_same_batches_from_a_bucket(
    config: Make, demo: tuple[Path, Path], bucket: Bucket, tmp_path: Path
) -> None:
    """Workers are forked from a process that has read its manifest from there; a blend may name it, too."""
    run = config(demo[0], packing__max_token_len=LEN, source__limit=40)
    pack(run)
    pack(replace(run, output=replace(run.output, dir=f"{bucket.address}/out"), cache_dir=str(tmp_path / "cache")))
    address = energon_address(f"{bucket.address}/out/packed")
    local = str(tmp_path / "out" / "packed")
    equal(batches(address, demo[1], 0), batches(local, demo[1], 0))
    compare("packs", address, local, demo[1], cwd=tmp_path)
    assert read_manifest(address) == read_manifest(f"{bucket.address}/out/packed") == read_manifest(local)
    blend = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {"train": {"blend": [{"path": address, "weight": 1}]}},
    }
    (tmp_path / "blend.yaml").write_text(yaml.safe_dump(blend))
    assert read_manifest(str(tmp_path / "blend.yaml")) == read_manifest(address)


@pytest.mark.slow
def test_each_worker_has_a_connection_of_its_own(bucket: Bucket, tmp_path: Path) -> None:
    """With that of the process they were forked from, workers get each other's bytes: packs that are cut, or wrong."""
    for name in "abc":
        bucket.put(name, name.encode())
    bucket.seen()
    compare("forked", *(energon_address(f"{bucket.address}/{name}") for name in "abc"), cwd=tmp_path)
    requests = bucket.seen().requests
    of_a, of_b, of_c = ({one.connection for one in requests if one.path[-1] == name} for name in "abc")
    assert of_a
    assert of_b
    assert of_c
    assert len(of_a | of_b | of_c) == len(of_a) + len(of_b) + len(of_c)


def test_packs_are_made_of_a_source_in_a_bucket_while_they_are_loaded(
    config: Make, demo: tuple[Path, Path], bucket: Bucket
) -> None:
    source = bucket.put_folder(demo[0], "data")
    stored, local = (LazyPackedDataset(config(path, packing__max_token_len=LEN)) for path in (source, demo[0]))
    equal(lazy_batches(stored, 0), lazy_batches(local, 0))


@pytest.mark.slow
def test_forked_workers_make_packs_of_a_source_in_a_bucket(
    demo: tuple[Path, Path], cache: Path, bucket: Bucket, tmp_path: Path
) -> None:
    """The threads of a client are not in them."""
    source = bucket.put_folder(demo[0], "data")
    about = json.dumps([str(demo[1]), str(cache), str(tmp_path / "out"), LEN])
    compare("lazy", source, demo[0], about, cwd=tmp_path)


def test_what_is_no_dataset_in_a_bucket_is_said(bucket: Bucket) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing is no dataset that energon_pack packed: there is no s3://"):
        read_manifest(f"{bucket.address}/nothing")
