"""Find, read, list, write and delete objects on an object store.

address ──place_of──► profile, key ──► obstore, if it is installed and knows the profile; else multi-storage-client
"""

import errno
import os
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from energon_pack.errors import PackError
from energon_pack.run.address import find_profile_and_key, tidy_address
from energon_pack.run.packages import version_of
from energon_pack.run.stores.requests import (
    PART_BYTES,
    REQUEST_COUNTS,
    SizeAndVersion,
    StoreClient,
    StoreError,
    error_text,
    with_retries,
)

_PROCESS = os.getpid()
_clients: list[Any] = []


_MAX_READ_ATTEMPTS = 100  # how often an object is read that changes meanwhile
_DELETED_AT_ONCE = 1000
#: type of a storage provider → our extra, and the package in it that is needed to open the store
_PACKAGES_BY_PROVIDER = {"s3": ("s3", "boto3"), "gcs": ("gs", "google-cloud-storage")}
#: types for which multi-storage-client gives other etags in a listing than for one object
_PROVIDERS_WITH_OTHER_ETAGS = ("gcs",)
_PROVIDER_BY_SCHEME = {"s3": "s3", "gs": "gcs"}  # scheme → type
#: By scheme: which settings tell a client the store's address and credentials.
_STORE_HINTS = {
    "s3": "AWS_PROFILE, AWS_ENDPOINT_URL, AWS_REGION and ~/.aws say where it is and with which keys",
    "gs": "Google's default credentials say with which keys",
}
_PROFILES_HINT = "the file of MSC_CONFIG, or ~/.msc_config.yaml, describes profiles"


def ensure_client(address: str) -> None:
    """Create the client for an address, unless this process has it already."""
    _objects_and_key(address)


def find(address: str) -> SizeAndVersion:
    """Return size and version of an object.

    Raises:
        FileNotFoundError: there is no such object.
        StoreError: the store does not answer; all functions here raise it.
    """
    objects, key = _objects_and_key(address)
    if not key:
        raise FileNotFoundError(errno.ENOENT, "a bucket, and no object", address)
    return with_retries("HEAD", address, lambda: objects.find(key))


def read(address: str, start: int, end: int) -> tuple[memoryview, str | None]:
    """Return the bytes `start` to `end` of an object, and their version (None: the store does not report it)."""
    objects, key = _objects_and_key(address)
    data, version = with_retries("GET", address, lambda: objects.read(key, start, end))
    REQUEST_COUNTS["bytes read"] += len(data)
    return data, version


def read_whole(address: str) -> bytes:
    """Return all bytes of an object."""
    file = find(address)
    return bytes(read(address, 0, file.size)[0]) if file.size else b""


def read_with_version(address: str) -> tuple[bytes, str]:
    """Return all bytes of an object, and its version, for `put_if_unchanged`.

    Raises:
        StoreError: the object is written between the two requests each time.
    """
    for _ in range(_MAX_READ_ATTEMPTS):
        file = find(address)
        data, version = read(address, 0, file.size)
        if version in (None, file.version):
            return bytes(data), file.version
    raise StoreError(f"{address} is written again and again: is another run at work?")


def list_recursively(folder: str) -> dict[str, SizeAndVersion]:
    """Return all objects in a folder and its subfolders by address, in the order of their names."""
    objects, key = _objects_and_key(folder)
    prefix = f"{tidy_address(key)}/" if key else ""
    listed = with_retries("LIST", folder, lambda: dict(objects.list_recursively(prefix)))
    begin = folder[: len(folder) - len(key)] if key else f"{tidy_address(folder)}/"
    return {f"{begin}{name}": listed[name] for name in sorted(listed) if name.startswith(prefix)}


def names(folder: str) -> list[str]:
    """Return the names directly in a folder; those of folders end in a slash."""
    objects, key = _objects_and_key(folder)
    prefix = f"{tidy_address(key)}/" if key else ""
    return with_retries("LIST", folder, lambda: sorted(name[len(prefix) :] for name in objects.names(prefix)))


def put(address: str, data: bytes) -> None:
    """Write an object."""
    objects, key = _objects_and_key(address)
    with_retries("PUT", address, lambda: objects.put(key, data))
    REQUEST_COUNTS["bytes written"] += len(data)


def put_if_unchanged(address: str, data: bytes, version: str | None) -> bool:
    """Write a small object, unless another process wrote it meanwhile; say whether it was written.

    Args:
        data: must be unique to this call: if the answer to a request was lost, they tell whether it was written.
        version: the object's version when it was read; None: there was no object.
    """
    objects, key = _objects_and_key(address)
    is_put = with_retries("PUT", address, lambda: objects.put_if(key, data, version))
    REQUEST_COUNTS["bytes written"] += len(data)
    if is_put:
        return True
    try:
        return read_whole(address) == data
    except FileNotFoundError:
        return False


def put_file(address: str, path: Path) -> None:
    """Write an object from a file of this machine, in parts if it is large."""
    objects, key = _objects_and_key(address)
    size = path.stat().st_size
    with_retries("PUT", address, lambda: objects.put_file(key, path))
    REQUEST_COUNTS["PUT"] += max(0, -(-size // PART_BYTES) - 1)
    REQUEST_COUNTS["bytes written"] += size


def delete_in_profile(addresses: Iterable[str]) -> None:
    """Remove objects of one profile, in this order if the store keeps an order."""
    waiting = iter(addresses)
    while batch := list(islice(waiting, _DELETED_AT_ONCE)):
        objects, keys = _objects_and_key(batch[0])[0], [find_profile_and_key(address).key for address in batch]
        with_retries("DELETE", batch[0], partial(objects.delete, keys))


# ------------------------------------------------------------------------------------------------------------ clients


def _objects_and_key(address: str) -> tuple[StoreClient, str]:
    place = find_profile_and_key(address)
    return client_of_profile(place.profile), place.key


@lru_cache(maxsize=64)
def client_of_profile(profile: str) -> StoreClient:
    """Return the client for the objects of a profile."""
    try:
        return _objects_of(profile)
    except PackError:
        raise
    except Exception as error:  # any error of the clients: in a setting, in credentials, in a profile
        bucket = _bucket_of(profile)
        where, knobs = (
            (f"{bucket[0]}://{bucket[1]}", _STORE_HINTS[bucket[0]]) if bucket else (f"msc://{profile}", _PROFILES_HINT)
        )
        raise PackError(f"{where}: {error_text(error)}; {knobs}") from None


def _objects_of(profile: str) -> StoreClient:
    settings = _settings_of(profile)
    provider = settings.get("storage_provider", {})
    if provider.get("type") in _PACKAGES_BY_PROVIDER:
        extra, package = _PACKAGES_BY_PROVIDER[provider["type"]]
        if version_of(package) is None:
            raise PackError(f"msc://{profile} needs {package}: pip install 'energon-pack[{extra}]'")
    if provider.get("type") == "s3" and not is_forked() and version_of("obstore") is not None:
        from energon_pack.run.stores.by_obstore import KNOWN_OPTIONS, ObstoreObjects

        credentials = settings.get("credentials_provider", {})
        is_plain = settings.keys() <= {"storage_provider", "credentials_provider", "retry", "caching_enabled"}
        if (
            is_plain
            and provider["options"].keys() <= KNOWN_OPTIONS
            and credentials.get("type") in (None, "S3Credentials")
        ):
            return ObstoreObjects(provider["options"], credentials.get("options", {}))
    from energon_pack.run.stores.by_msc import MscObjects

    return MscObjects(profile, by_time=provider.get("type") in _PROVIDERS_WITH_OTHER_ETAGS)


def _settings_of(profile: str) -> Mapping[str, Any]:
    """Return a profile as the user wrote it; for a bucket named by its address, the few settings that define it."""
    from multistorageclient import StorageClientConfig
    from multistorageclient.utils import expand_env_vars

    written, _ = StorageClientConfig.read_msc_config()
    settings = (written or {}).get("profiles", {}).get(profile)
    if settings is not None:
        return dict(expand_env_vars(settings))
    if (named := _bucket_of(profile)) is not None:
        scheme, bucket = named
        return {"storage_provider": {"type": _PROVIDER_BY_SCHEME[scheme], "options": {"base_path": bucket}}}
    return {}  # it is rclone's, or does not exist: multi-storage-client reports that


def _bucket_of(profile: str) -> tuple[str, str] | None:
    """Return scheme and bucket of a profile that was made from an address; None: the user wrote the profile."""
    scheme, _, bucket = profile.removeprefix("_").partition("-")
    return (scheme, bucket) if profile.startswith("_") and scheme in _PROVIDER_BY_SCHEME else None


os.register_at_fork(after_in_child=client_of_profile.cache_clear)


def is_forked() -> bool:
    """Say whether this process is a fork of one that may have used obstore, whose threads are not copied."""
    return os.getpid() != _PROCESS


def _remember() -> None:
    shortcuts = sys.modules.get("multistorageclient.shortcuts")
    if shortcuts is not None:  # the new process does not have them
        _clients[:] = shortcuts._STORAGE_CLIENT_CACHE.values()


def _renew() -> None:
    for client in _clients:
        if not client.is_default_profile():  # the default profile is for files of this machine
            from multistorageclient import resolve_storage_client

            vars(client).update(vars(resolve_storage_client(f"msc://{client.profile}")[0]))
    _clients.clear()


os.register_at_fork(before=_remember, after_in_parent=_clients.clear, after_in_child=_renew)
