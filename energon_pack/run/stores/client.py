"""What is asked of an object store: size and version, bytes by place, what lies under a prefix, and to write.

address ──place_of──► profile, key ──► obstore, where it is there and knows the profile; else multi-storage-client
"""

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from energon_pack.errors import PackError
from energon_pack.run.stores.address import place_of, tidy
from energon_pack.run.stores.forked import is_forked
from energon_pack.run.stores.requests import COUNTS, StoreError, said, tried
from energon_pack.run.user_cache import version_of

#: A part of an object that is written in several; a store takes 10,000 of them.
PART_BYTES = 16 << 20
_MOST_LOOKS = 100  # at an object that changes meanwhile
_DELETED_AT_ONCE = 1000
#: type of a storage provider → our extra, and the package of it without which nobody opens the store
_NEEDS = {"s3": ("s3", "boto3"), "gcs": ("gs", "google-cloud-storage")}
#: types of which multi-storage-client lists other etags than it finds
_OTHER_ETAGS = ("gcs",)
_OF_BUCKETS = {"s3": "s3", "gs": "gcs"}  # scheme → type
#: Where a client is told where a store is and who asks it, by scheme.
_KNOBS = {
    "s3": "AWS_PROFILE, AWS_ENDPOINT_URL, AWS_REGION and ~/.aws say where it is and with which keys",
    "gs": "Google's default credentials say with which keys",
}
_OF_PROFILES = "the file of MSC_CONFIG, or ~/.msc_config.yaml, describes profiles"


class Found(NamedTuple):
    """What tells whether an object is still the same."""

    size: int
    version: str


class Objects(ABC):
    """The objects of a profile, by their keys. Raises FileNotFoundError, and what `tried` knows."""

    @abstractmethod
    def find(self, key: str) -> Found:
        """Size and version as they are now."""

    @abstractmethod
    def read(self, key: str, start: int, end: int) -> tuple[memoryview, str | None]:
        """Bytes, and of which version they are where the store says so."""

    @abstractmethod
    def entries(self, prefix: str) -> Iterator[tuple[str, Found]]:
        """Keys below a prefix, which is a folder; whole."""

    @abstractmethod
    def names(self, prefix: str) -> Iterator[str]:
        """Keys in a folder alone, and folders in it, which end in a slash."""

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Write an object; it is there whole, or as it was."""

    def put_if(self, key: str, data: bytes, version: str | None) -> bool:
        """Write an object where it is still of a version, or not there at all, and say whether that was so.

        A store that knows no conditional write is asked first: what comes between the two requests is overwritten.
        """
        try:
            now = self.find(key).version
        except FileNotFoundError:
            now = None
        if now == version:
            self.put(key, data)
        return now == version

    @abstractmethod
    def put_file(self, key: str, path: Path) -> None:
        """The same from a file, a large one in parts."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there, too."""


def meet(address: str) -> None:
    """Make the client of a store, where this process has none."""
    _of(address)


def find(address: str) -> Found:
    """Size and version of an object.

    Raises:
        FileNotFoundError: there is none.
        StoreError: the store does not answer, as all here.
    """
    objects, key = _of(address)
    if not key:
        raise FileNotFoundError(errno.ENOENT, "a bucket, and no object", address)
    return tried("HEAD", address, lambda: objects.find(key))


def read(address: str, start: int, end: int) -> tuple[memoryview, str | None]:
    """Bytes of an object, and of which version they are where the store says so."""
    objects, key = _of(address)
    data, version = tried("GET", address, lambda: objects.read(key, start, end))
    COUNTS["bytes read"] += len(data)
    return data, version


def read_whole(address: str) -> bytes:
    """All of an object."""
    found = find(address)
    return bytes(read(address, 0, found.size)[0]) if found.size else b""


def read_with_version(address: str) -> tuple[bytes, str]:
    """All of an object, and its version, which `put_if` takes.

    Raises:
        StoreError: it is written between the two requests each time.
    """
    for _ in range(_MOST_LOOKS):
        found = find(address)
        data, version = read(address, 0, found.size)
        if version in (None, found.version):
            return bytes(data), found.version
    raise StoreError(f"{address} is written again and again: is another run at work?")


def entries(folder: str) -> dict[str, Found]:
    """Addresses of all objects in a folder and in the folders in it, in the order of their names."""
    objects, key = _of(folder)
    prefix = f"{tidy(key)}/" if key else ""
    found = tried("LIST", folder, lambda: dict(objects.entries(prefix)))
    begin = folder[: len(folder) - len(key)] if key else f"{tidy(folder)}/"
    return {f"{begin}{name}": found[name] for name in sorted(found) if name.startswith(prefix)}


def names(folder: str) -> list[str]:
    """Names of what is in a folder, and not of what is in the folders in it: these end in a slash."""
    objects, key = _of(folder)
    prefix = f"{tidy(key)}/" if key else ""
    return tried("LIST", folder, lambda: sorted(name[len(prefix) :] for name in objects.names(prefix)))


def put(address: str, data: bytes) -> None:
    """Write an object."""
    objects, key = _of(address)
    tried("PUT", address, lambda: objects.put(key, data))
    COUNTS["bytes written"] += len(data)


def put_if(address: str, data: bytes, version: str | None) -> bool:
    """Write a small object unless somebody else wrote it meanwhile; whether it was written.

    Args:
        data: bytes that nobody else writes: where the answer to a request was lost, they tell whether it was done.
        version: of the object as it was read; None: there was none.
    """
    objects, key = _of(address)
    is_put = tried("PUT", address, lambda: objects.put_if(key, data, version))
    COUNTS["bytes written"] += len(data)
    if is_put:
        return True
    try:
        return read_whole(address) == data
    except FileNotFoundError:
        return False


def put_file(address: str, path: Path) -> None:
    """Write an object from a file of this machine, in parts where it is large."""
    objects, key = _of(address)
    size = path.stat().st_size
    tried("PUT", address, lambda: objects.put_file(key, path))
    COUNTS["PUT"] += max(0, -(-size // PART_BYTES) - 1)
    COUNTS["bytes written"] += size


def delete(addresses: Iterable[str]) -> None:
    """Remove objects of one profile, in this order as far as a store keeps to one."""
    waiting = iter(addresses)
    while some := list(islice(waiting, _DELETED_AT_ONCE)):
        objects, keys = _of(some[0])[0], [place_of(address).key for address in some]
        tried("DELETE", some[0], partial(objects.delete, keys))


# ------------------------------------------------------------------------------------------------------- who is asked


def _of(address: str) -> tuple[Objects, str]:
    place = place_of(address)
    return objects_of(place.profile), place.key


@lru_cache(maxsize=64)
def objects_of(profile: str) -> Objects:
    """Who is asked for the objects of a profile.

    Raises:
        PackError: there is no such profile, what it says is wrong, or its client is not installed.
    """
    try:
        return _objects_of(profile)
    except PackError:
        raise
    except Exception as error:  # whatever the clients say: of a setting, of credentials, of a profile
        bucket = _bucket_of(profile)
        where, knobs = (
            (f"{bucket[0]}://{bucket[1]}", _KNOBS[bucket[0]]) if bucket else (f"msc://{profile}", _OF_PROFILES)
        )
        raise PackError(f"{where}: {said(error)}; {knobs}") from None


def _objects_of(profile: str) -> Objects:
    settings = _settings_of(profile)
    provider = settings.get("storage_provider", {})
    if provider.get("type") in _NEEDS:
        extra, package = _NEEDS[provider["type"]]
        if version_of(package) is None:
            raise PackError(f"msc://{profile} needs {package}: pip install 'energon-pack[{extra}]'")
    if provider.get("type") == "s3" and not is_forked() and version_of("obstore") is not None:
        from energon_pack.run.stores.by_obstore import KNOWN, ObstoreObjects

        credentials = settings.get("credentials_provider", {})
        is_plain = settings.keys() <= {"storage_provider", "credentials_provider", "retry", "caching_enabled"}
        if is_plain and provider["options"].keys() <= KNOWN and credentials.get("type") in (None, "S3Credentials"):
            return ObstoreObjects(provider["options"], credentials.get("options", {}))
    from energon_pack.run.stores.by_msc import MscObjects

    return MscObjects(profile, by_time=provider.get("type") in _OTHER_ETAGS)


def _settings_of(profile: str) -> Mapping[str, Any]:
    """A profile as the user wrote it; of a bucket named by its address, the least that names it."""
    from multistorageclient import StorageClientConfig
    from multistorageclient.utils import expand_env_vars

    written, _ = StorageClientConfig.read_msc_config()
    settings = (written or {}).get("profiles", {}).get(profile)
    if settings is not None:
        return dict(expand_env_vars(settings))
    if (named := _bucket_of(profile)) is not None:
        scheme, bucket = named
        return {"storage_provider": {"type": _OF_BUCKETS[scheme], "options": {"base_path": bucket}}}
    return {}  # rclone's, or none: multi-storage-client says


def _bucket_of(profile: str) -> tuple[str, str] | None:
    """Scheme and bucket of the profile that stands for one named by its address; None: it is a user's own."""
    scheme, _, bucket = profile.removeprefix("_").partition("-")
    return (scheme, bucket) if profile.startswith("_") and scheme in _OF_BUCKETS else None


os.register_at_fork(after_in_child=objects_of.cache_clear)
