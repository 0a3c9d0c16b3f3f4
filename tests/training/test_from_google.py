"""Google's store, by an emulator on this machine: packed from it and to it, and loaded from there through Energon."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from energon_pack.config import PackConfig
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.run import stores
from energon_pack.run.address import energon_address
from energon_pack.run.stores import client_of_profile, requests
from energon_pack.run.stores.blocks import BlockCache
from energon_pack.sources import store_objects
from support.from_stores import batches, equal
from support.packed import files
from support.running import ROOT, command, need_torchvision

pytest.importorskip("gcp_storage_emulator", reason="gcp-storage-emulator is not installed")
pytest.importorskip("google.cloud.storage", reason="google-cloud-storage is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

Make = Callable[..., PackConfig]
_SERVER = """
import sys
from gcp_storage_emulator.server import create_server
server = create_server("127.0.0.1", int(sys.argv[1]), in_memory=True, default_bucket="my-data")
server.start()
print("started", flush=True)
"""


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty bucket."""
    need_torchvision()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder, monkeypatch.context() as patch:
        told = {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}", "GOOGLE_CLOUD_PROJECT": "tests"}
        for name, value in {**told, "MSC_CONFIG": f"{folder}/none.yaml", "TMPDIR": folder}.items():
            patch.setenv(name, value)
        patch.setattr(tempfile, "tempdir", None)
        patch.setattr(store_objects, "BLOCKS", BlockCache())
        client_of_profile.cache_clear()
        server = [sys.executable, "-c", _SERVER, port]
        with subprocess.Popen(server, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n"
            yield "gs://my-data"
            process.kill()
    client_of_profile.cache_clear()


def put_folder(folder: Path, address: str) -> str:
    for name, data in files(folder).items():
        stores.put(f"{address}/{name}", data)
    return address


def same(found: dict[str, bytes]) -> dict[str, bytes]:
    """What is promised to be the same."""
    return {name: data for name, data in found.items() if not name.startswith("report")}


def test_a_demo_is_packed_from_google_to_google_and_loaded_from_there(
    config: Make, demo: tuple[Path, Path], google: str, tmp_path: Path
) -> None:
    settings = {"packing__max_token_len": 1024, "output__max_shard_packs": 9, "source__limit": 80}
    source = put_folder(demo[0], f"{google}/data")
    run = config(source, output__dir=f"{google}/out", cache_dir=str(tmp_path / "cache"), **settings)
    pack(run)
    pack(config(demo[0], **settings))
    local = tmp_path / "out" / "packed"
    found = {
        name.removeprefix(f"{google}/out/packed/"): name for name in stores.list_recursively(f"{google}/out/packed")
    }
    assert same({name: stores.read_whole(there) for name, there in found.items()}) == same(files(local))
    assert list(stores.list_recursively(f"{google}/out/.staging")) == []
    before = stores.list_recursively(f"{google}/out/packed")
    pack(run)
    assert stores.list_recursively(f"{google}/out/packed") == before  # there already
    again = pack(replace(run, output=replace(run.output, name="again")))  # compares the source
    assert again["cache"]["shards_measured"] == 0
    address = energon_address(f"{google}/out/packed")
    equal(batches(address, demo[1], 0), batches(str(local), demo[1], 0))
    path = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"
    arguments = ("-m", "support.from_stores", "packs", address, str(local), str(demo[1]))
    loaded = command(*arguments, cwd=tmp_path, PYTHONPATH=path)  # by workers that are forked
    assert loaded.returncode == 0, loaded.stderr


def test_an_object_has_one_version_however_it_is_asked(google: str, tmp_path: Path) -> None:
    """And another once it was written again."""
    stores.put(f"{google}/in/a", b"one")
    listed = stores.list_recursively(f"{google}/in")
    assert listed == {f"{google}/in/a": stores.find(f"{google}/in/a")}
    stores.put(f"{google}/in/a", b"two")
    assert stores.find(f"{google}/in/a") != listed[f"{google}/in/a"]
    large = tmp_path / "large"
    large.write_bytes(os.urandom(1 << 20) * 20)  # not in parts, which begin at 64 MiB: the emulator knows none
    stores.put_file(f"{google}/in/large", large)
    assert stores.read_whole(f"{google}/in/large") == large.read_bytes()
    assert bytes(stores.read(f"{google}/in/large", 5, 9)[0]) == large.read_bytes()[5:9]
    stores.delete_in_profile([f"{google}/in/a", f"{google}/in/large"])
    with pytest.raises(FileNotFoundError):
        stores.find(f"{google}/in/a")
    assert stores.list_recursively(f"{google}/in") == {}


def test_a_bucket_that_there_is_not_is_said(
    config: Make, google: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.001)
    with pytest.raises(PackError, match=r"gs://nowhere-at-all") as caught:
        pack(config(None, output__dir="gs://nowhere-at-all/out", cache_dir=str(tmp_path / "cache")))
    assert "\n" not in str(caught.value)
    with pytest.raises(PackError, match="nothing: no such folder or object"):
        pack(config(f"{google}/nothing"))


@pytest.mark.usefixtures("google")
def test_credentials_that_there_are_not_are_said(config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # it would look for a machine of Google's around this one
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nonexistent")
    with pytest.raises(PackError, match=r"gs://my-data: DefaultCredentialsError: .*not found"):
        pack(config("gs://my-data/x"))
