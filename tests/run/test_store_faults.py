"""A failed request is repeated if that may help; otherwise one line names what to change."""

from datetime import datetime, timedelta, timezone
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.credentials import RefreshableCredentials

from energon_pack.config.compose import compose_config
from energon_pack.errors import PackError, refuse_password, without_passwords
from energon_pack.run import stores
from energon_pack.run.stores import requests
from energon_pack.run.stores.by_msc import MscObjects
from energon_pack.run.stores.requests import StoreError
from support.running import run_here
from support.stores import Bucket


@pytest.fixture(params=["obstore", "multi-storage-client"])
def either_client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FIRST_WAIT", 0.001)
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
    for ask in (stores.find, stores.read_whole, stores.entries):
        faults = chain([fault], repeat(None))
        bucket.proxy.fault = lambda _, faults=faults: next(faults)  # type: ignore[misc]
        assert ask(f"{bucket.address}/a") is not None


@pytest.mark.usefixtures("either_client")
def test_who_writes_first_wins(bucket: Bucket) -> None:
    """Two runs that each believe to be the only one publish over each other."""
    place = f"{bucket.address}/marker"
    assert stores.put_if(place, b"mine", None)
    assert not stores.put_if(place, b"yours", None)
    data, version = stores.read_with_version(place)
    assert data == b"mine"
    assert stores.put_if(place, b"mine again", version)
    assert not stores.put_if(place, b"yours", version)
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
        assert stores.put_if(place, b"mine", version)
        assert stores.read_whole(place) == b"mine"
        bucket.proxy.fault = lambda _: None
        bucket.delete("marker")


def test_a_store_that_knows_no_conditional_write_is_asked_first(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a store answers 501, no run could publish."""
    monkeypatch.setattr(requests, "FIRST_WAIT", 0.001)
    place = f"{bucket.address}/marker"
    faults = chain([(501, "NotImplemented"), None], repeat((501, "NotImplemented")))
    bucket.proxy.fault = lambda request: next(faults) if request.method == "PUT" else None
    assert stores.put_if(place, b"mine", None)
    assert not stores.put_if(place, b"yours", None)


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
        stores.entries(f"{bucket.address}/a")
    assert bucket.seen().counts["GET"] <= 2  # botocore looks for another region
    assert "goes on" not in str(caught.value)


def test_another_region_is_named_at_once(bucket: Bucket) -> None:
    bucket.proxy.fault = lambda _: 301
    with pytest.raises(StoreError, match=r"LIST: .*in another region: set AWS_REGION") as caught:
        stores.entries(f"{bucket.address}/a")
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
    assert without_passwords("ray://:word@head:10001") == "ray://***@head:10001"
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
