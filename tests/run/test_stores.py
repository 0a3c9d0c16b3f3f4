"""Object stores: addresses, profiles, their clients, and the cache of read blocks."""

import os
from datetime import datetime, timedelta, timezone
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from botocore.credentials import RefreshableCredentials

from energon_pack.config.compose import compose_config
from energon_pack.errors import PackError, hide_passwords_in_text, refuse_password
from energon_pack.run import stores
from energon_pack.run.address import energon_address, is_address, join_address, lies_in, parent
from energon_pack.run.stores import requests
from energon_pack.run.stores.blocks import BLOCK_BYTES, BlockCache
from energon_pack.run.stores.by_msc import MscObjects
from energon_pack.run.stores.by_obstore import ObstoreObjects
from energon_pack.run.stores.requests import StoreError
from support.running import run_here
from support.stores import Bucket


def test_an_address_is_told_from_a_path() -> None:
    addresses = "s3://b", "s3://b/x y", "gs://b/k", "msc://profile/k"
    assert [address for address in addresses if not is_address(address)] == []
    paths = "/s3://b", "s3:/b", "http://b/k", "s3://", Path("s3://b")
    assert [path for path in paths if is_address(path)] == []


def test_folders_of_addresses_are_those_of_paths() -> None:
    assert [parent("s3://b/x/y/"), parent("s3://b/x"), parent("s3://b")] == ["s3://b/x", "s3://b", "s3://b"]
    assert join_address("s3://b/x", "../y/./z.png") == "s3://b/y/z.png"
    assert join_address("s3://b/x", "gs://c/z.png") == "gs://c/z.png"
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
    assert isinstance(stores.client_of_profile("mine"), ObstoreObjects if is_known else MscObjects)
    data = bytes(range(256)) * 100
    bucket.put("deep/in/a.bin", data)
    found = stores.find("msc://mine/in/a.bin")
    assert found.size == len(data)
    assert stores.list_recursively("msc://mine/in") == {"msc://mine/in/a.bin": found}
    assert bytes(stores.read("msc://mine/in/a.bin", 5, 1000)[0]) == data[5:1000]
    (tmp_path / "b").write_bytes(data)
    stores.put_file("msc://mine/out/b", tmp_path / "b")
    stores.put("msc://mine/out/c", b"c")
    assert bucket.files("deep/out") == {"b": data, "c": b"c"}
    assert stores.find("msc://mine/out/b").version == found.version  # of the same bytes
    stores.delete_in_profile(["msc://mine/out/b", "msc://mine/out/c"])
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
    for name, seconds in {"FIRST_WAIT_SECONDS": 0.001, "REQUEST_SECONDS": 0.4, "MAX_RETRY_SECONDS": 1.0}.items():
        monkeypatch.setattr(requests, name, seconds)
    monkeypatch.setattr(stores, "client_of_profile", MscObjects)
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
    blocks = BlockCache(most=200)
    for number in range(300):
        blocks.keep("k", number, memoryview(bytes([number % 256]) * 10))
    there = [number for number in range(300) if BlockCache().has("k", number)]
    assert there[:128] == list(range(128))
    assert 128 <= len(there) <= 200
    assert BlockCache().read_if_cached("k", 7, 2, 5) == b"\x07\x07\x07"
    assert BLOCK_BYTES == 1 << 20


@pytest.fixture(params=["obstore", "multi-storage-client"])
def either_client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.001)
    if request.param != "obstore":
        monkeypatch.setattr(stores, "_objects_of", MscObjects)


def test_keys_that_expire_are_asked_for_when_boto3_has_new_ones(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of roles last an hour, a run lasts eight: an invented date had each used for 25 minutes, expired or not."""
    names = iter(["first", "second", "third"])

    def fresh() -> dict[str, str]:
        until = datetime.now(timezone.utc) + timedelta(minutes=60)
        return {"access_key": next(names), "secret_key": "s", "token": "t", "expiry_time": until.isoformat()}

    keys = RefreshableCredentials.create_from_metadata(fresh(), fresh, "role")
    monkeypatch.setattr(boto3.Session, "get_credentials", lambda _: keys)
    signed: list[str] = []

    def note(handler: Any) -> bytes:
        signed.append(handler.headers["Authorization"])
        return b""

    monkeypatch.setattr("support.stores._Handler._body", note)
    bucket.put("a", b"here")
    for minutes_left in (60, 16, 14, 60):  # boto3 asks for others where less than 15 minutes are left
        keys._expiry_time = datetime.now(timezone.utc) + timedelta(minutes=minutes_left)
        stores.find(f"{bucket.address}/a")
    used = [key for line in signed for key in ("first", "second", "third") if f"Credential={key}/" in line]
    assert used == ["first", "first", "second", "second"]


@pytest.mark.usefixtures("either_client")
@pytest.mark.parametrize(
    "fault", [(400, "ExpiredToken"), (400, "RequestTimeout"), (409, "OperationAborted"), (503, "SlowDown")]
)
def test_what_may_go_well_the_next_time_is_tried_again(bucket: Bucket, fault: tuple[int, str]) -> None:
    """A run of hours ended with "400 Bad Request" where its keys were renewed a second later."""
    bucket.put("a", b"here")
    for ask in (stores.find, stores.read_whole, stores.list_recursively):
        faults = chain([fault], repeat(None))
        bucket.proxy.fault = lambda _, faults=faults: next(faults)  # type: ignore[misc]
        assert ask(f"{bucket.address}/a") is not None


@pytest.mark.usefixtures("either_client")
def test_who_writes_first_wins(bucket: Bucket) -> None:
    """Two runs that each believe to be the only one publish over each other."""
    place = f"{bucket.address}/marker"
    assert stores.put_if_unchanged(place, b"mine", None)
    assert not stores.put_if_unchanged(place, b"yours", None)
    data, version = stores.read_with_version(place)
    assert data == b"mine"
    assert stores.put_if_unchanged(place, b"mine again", version)
    assert not stores.put_if_unchanged(place, b"yours", version)
    assert stores.read_whole(place) == b"mine again"


@pytest.mark.usefixtures("either_client")
@pytest.mark.parametrize("fault", ["lost", (409, "ConditionalRequestConflict"), (503, "SlowDown")])
def test_who_wins_is_told_so_whatever_becomes_of_the_request(bucket: Bucket, fault: str | tuple[int, str]) -> None:
    """A run that had won and did not hear of it took its own marker for another run's, and ended."""
    place = f"{bucket.address}/marker"
    for before in (None, b"theirs"):
        version = None
        if before is not None:
            bucket.put("marker", before)
            version = stores.find(place).version
        faults = chain([fault], repeat(None))
        bucket.proxy.fault = lambda request, faults=faults: next(faults) if request.method == "PUT" else None  # type: ignore[misc]
        assert stores.put_if_unchanged(place, b"mine", version)
        assert stores.read_whole(place) == b"mine"
        bucket.proxy.fault = lambda _: None
        bucket.delete("marker")


def test_a_store_that_knows_no_conditional_write_is_asked_first(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a store answers 501, no run could publish."""
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.001)
    place = f"{bucket.address}/marker"
    faults = chain([(501, "NotImplemented"), None], repeat((501, "NotImplemented")))
    bucket.proxy.fault = lambda request: next(faults) if request.method == "PUT" else None
    assert stores.put_if_unchanged(place, b"mine", None)
    assert not stores.put_if_unchanged(place, b"yours", None)


def test_an_object_that_is_written_without_end_is_an_error(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store whose two requests never tell the same version would be asked for ever."""
    bucket.put("a", b"here")
    monkeypatch.setattr(stores, "read", lambda *_: (memoryview(b"here"), "another"))
    with pytest.raises(StoreError, match="again and again"):
        stores.read_with_version(f"{bucket.address}/a")


@pytest.mark.usefixtures("either_client")
@pytest.mark.parametrize(
    ("fault", "said"),
    [((400, "InvalidToken"), "InvalidToken"), ((403, "InvalidAccessKeyId"), "403"), ((404, "NoSuchBucket"), "Bucket")],
)
def test_what_never_goes_well_is_refused_at_once(bucket: Bucket, fault: tuple[int, str], said: str) -> None:
    """It was tried seven times, and then said to go on with the same command."""
    bucket.proxy.fault = lambda _: fault
    bucket.seen()
    with pytest.raises(StoreError, match=said) as caught:
        stores.list_recursively(f"{bucket.address}/a")
    assert bucket.seen().counts["GET"] <= 2  # botocore looks for another region
    assert "goes on" not in str(caught.value)


def test_another_region_is_named_at_once(bucket: Bucket) -> None:
    bucket.proxy.fault = lambda _: 301
    with pytest.raises(StoreError, match=r"LIST: .*in another region: set AWS_REGION") as caught:
        stores.list_recursively(f"{bucket.address}/a")
    assert "goes on" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("AWS_PROFILE", "nobody", r"profile \(nobody\)"), ("AWS_ENDPOINT_URL", "nonsense", "Invalid endpoint: nonsense")],
)
@pytest.mark.usefixtures("bucket", "either_client")
def test_what_is_wrong_in_the_environment_is_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    """They were tracebacks of boto3's."""
    monkeypatch.setenv(name, value)
    with pytest.raises(PackError, match=f"^s3://data: .*{said}.*; AWS_PROFILE, AWS_ENDPOINT_URL, AWS_REGION") as caught:
        stores.find("s3://data/a")
    assert "\n" not in str(caught.value)


def test_no_error_shows_a_password() -> None:
    error = PackError("http://me:se/cret@host/x and http://me:p@ss@host:80/x, s3://b/a:b@2x.png")
    assert str(error) == "http://me:se/cret@host/x and http://***@host:80/x, s3://b/a:b@2x.png"
    assert hide_passwords_in_text("ray://:word@head:10001") == "ray://***@head:10001"
    with pytest.raises(PackError, match=r"^source\.path=s3://\*\*\*@b/x: an address with a password"):
        refuse_password("source.path=", "s3://me:word@b/x")
    with pytest.raises(PackError, match=r"^s3://\*\*\*@b/x: "):
        stores.find("s3://me:word@b/x")


def test_a_password_on_the_command_line_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    """It would stand in report.json, in the manifest, and in what Hydra writes of a sweep."""
    given = ["+model=qwen2_5_vl", "source.path=s3://me:word@b/x", "output.dir=out"]
    for more in ([], ["-m", "seed=1,2"]):
        code, out, err = run_here(*more, *given, cwd=tmp_path)
        assert code == 1
        assert "source.path=s3://***@b/x: an address with a password in it is not taken" in err
        assert "me:word" not in out + err
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(PackError, match=r"source\.path=s3://\*\*\*@b/x"):  # as from a YAML
        compose_config(given)
