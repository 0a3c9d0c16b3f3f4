"""Object stores: addresses, profiles, their clients, and the cache of read blocks."""

import os
from pathlib import Path

import pytest
import yaml

from energon_pack.errors import PackError
from energon_pack.run import stores
from energon_pack.run.address import energon_address, is_address, joined, lies_in, parent
from energon_pack.run.stores import requests
from energon_pack.run.stores.blocks import BLOCK, Blocks
from energon_pack.run.stores.by_msc import MscObjects
from energon_pack.run.stores.by_obstore import ObstoreObjects
from energon_pack.run.stores.requests import StoreError
from support.stores import Bucket


def test_an_address_is_told_from_a_path() -> None:
    addresses = "s3://b", "s3://b/x y", "gs://b/k", "msc://profile/k"
    assert [address for address in addresses if not is_address(address)] == []
    paths = "/s3://b", "s3:/b", "http://b/k", "s3://", Path("s3://b")
    assert [path for path in paths if is_address(path)] == []


def test_folders_of_addresses_are_those_of_paths() -> None:
    assert [parent("s3://b/x/y/"), parent("s3://b/x"), parent("s3://b")] == ["s3://b/x", "s3://b", "s3://b"]
    assert joined("s3://b/x", "../y/./z.png") == "s3://b/y/z.png"
    assert joined("s3://b/x", "gs://c/z.png") == "gs://c/z.png"
    assert lies_in("s3://b/x/y", "s3://b/x/")
    assert not lies_in("s3://b/xy", "s3://b/x")


@pytest.mark.usefixtures("bucket")
def test_energon_is_told_the_profile_that_an_address_stands_for() -> None:
    assert energon_address("s3://data/x/") == "msc://_s3-data/x"
    assert energon_address("msc://mine/x") == "msc://mine/x"


def profile(folder: Path, **more: object) -> str:
    """A configuration of multi-storage-client with a profile of a bucket's folder, keys in the environment."""
    path = folder / "msc.yaml"
    credentials = {"access_key": "${AWS_ACCESS_KEY_ID}", "secret_key": "${AWS_SECRET_ACCESS_KEY}"}
    options = {"base_path": f"{more.pop('bucket')}/deep", "endpoint_url": os.environ["AWS_ENDPOINT_URL"], **more}
    node = {
        "storage_provider": {"type": "s3", "options": {**options, "region_name": "us-east-1"}},
        "credentials_provider": {"type": "S3Credentials", "options": credentials},
    }
    path.write_text(yaml.safe_dump({"profiles": {"mine": node}}))
    return str(path)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_profile_says_where_and_with_which_keys(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """Whoever is asked: obstore, or multi-storage-client where a profile has what obstore knows nothing of."""
    more = {} if is_known else {"checksum_algorithm": "SHA256"}
    monkeypatch.setenv("MSC_CONFIG", profile(tmp_path, bucket=bucket.name, **more))
    assert isinstance(stores.objects_of("mine"), ObstoreObjects if is_known else MscObjects)
    data = bytes(range(256)) * 100
    bucket.put("deep/in/a.bin", data)
    found = stores.find("msc://mine/in/a.bin")
    assert found.size == len(data)
    assert stores.entries("msc://mine/in") == {"msc://mine/in/a.bin": found}
    assert bytes(stores.read("msc://mine/in/a.bin", 5, 1000)[0]) == data[5:1000]
    (tmp_path / "b").write_bytes(data)
    stores.put_file("msc://mine/out/b", tmp_path / "b")
    stores.put("msc://mine/out/c", b"c")
    assert bucket.files("deep/out") == {"b": data, "c": b"c"}
    assert stores.find("msc://mine/out/b").version == found.version  # of the same bytes
    stores.delete(["msc://mine/out/b", "msc://mine/out/c"])
    assert bucket.names("deep/out") == []
    with pytest.raises(FileNotFoundError):
        stores.find("msc://mine/out/b")


def test_a_process_that_is_forked_asks_with_a_client_of_its_own(bucket: Bucket) -> None:
    """Threads of the one that was used are not in it: it would wait for them for ever."""
    bucket.put("a", b"here")
    assert stores.read_whole(f"{bucket.address}/a") == b"here"
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, stores.read_whole(f"{bucket.address}/a"))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 10) == b"here"
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("fault", ["slow", "drip"])
def test_multi_storage_client_is_not_waited_for_for_ever(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Its own clients wait for the next bytes as long as there come some."""
    for name, seconds in {"FIRST_WAIT": 0.001, "REQUEST_SECONDS": 0.4, "PATIENCE": 1.0}.items():
        monkeypatch.setattr(requests, name, seconds)
    monkeypatch.setattr(stores, "objects_of", MscObjects)
    bucket.put("a", bytes(range(100)))
    bucket.proxy.fault = lambda request: fault if request.range else None
    bucket.proxy.pause = {"slow": 2.0, "drip": 0.2}[fault]
    with pytest.raises(StoreError, match=r"/a: GET failed \d times: no whole answer within 0.4 s"):
        stores.read(f"{bucket.address}/a", 0, 40)


def test_what_is_not_installed_is_named(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "version_of", lambda name: None)
    with pytest.raises(PackError, match=r"pip install 'energon-pack\[s3\]'"):
        stores.find(f"{bucket.address}/a")


def test_a_profile_that_there_is_not_is_named(bucket: Bucket) -> None:
    with pytest.raises(PackError, match="nobodys"):
        stores.find("msc://nobodys/a")


def test_no_more_is_kept_than_there_is_room_for(bucket: Bucket) -> None:
    """The first blocks stay: with a larger source, each block would be removed before its second use."""
    blocks = Blocks(most=200)
    for number in range(300):
        blocks.keep("k", number, memoryview(bytes([number % 256]) * 10))
    there = [number for number in range(300) if Blocks().has("k", number)]
    assert there[:128] == list(range(128))
    assert 128 <= len(there) <= 200
    assert Blocks().read("k", 7, 2, 5) == b"\x07\x07\x07"
    assert BLOCK == 1 << 20
