"""Parse addresses on object stores, and translate them to Energon's.

s3://bucket/key   gs://bucket/key   msc://profile/key
"""

import os
import posixpath
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from energon_pack.errors import PackError, refuse_password

_ADDRESS = re.compile(r"(s3|gs|msc)://([^/]+)/*(.*)", re.DOTALL | re.IGNORECASE)  # `S3://…` is `s3://…`


class ObjectPlace(NamedTuple):
    """An object as multi-storage-client finds it: by the profile of its configuration, and by a key."""

    profile: str  # a profile of its configuration, or one that it makes for a bucket: `_s3-bucket`
    key: str


def is_address(path: str | os.PathLike[str]) -> bool:
    """Say whether a path is an address on an object store."""
    return isinstance(path, str) and _ADDRESS.fullmatch(path) is not None


def only_local_paths(paths: Iterable[str | None]) -> set[str]:
    """Return the paths of this machine: None and addresses of object stores are left out."""
    return {path for path in paths if path and not is_address(path)}


def tidy_address(address: str) -> str:
    """Return an address with its scheme in lower case, and without slashes at its end."""
    address = address.rstrip("/")
    scheme, mark, path = address.partition("://")
    return f"{scheme.lower()}{mark}{path}" if is_address(address) else address


def parent(address: str) -> str:
    """Return the folder that an address lies in; a bucket is its own parent."""
    above, _, _ = tidy_address(address).rpartition("/")
    return above if is_address(above) else tidy_address(address)


def bucket_of(address: str) -> str:
    """Return the address of the bucket or profile in which an address lies; "" for a path."""
    matched = _ADDRESS.fullmatch(address)
    return f"{matched[1].lower()}://{matched[2]}" if matched else ""


def join_address(folder_address: str, relative_name: str) -> str:
    """Join an address and a relative name as paths are joined (`..` goes up); an address as the name is returned."""
    if is_address(relative_name):
        return relative_name
    scheme, _, path = tidy_address(folder_address).partition("://")
    bucket, _, key = path.partition("/")
    return f"{scheme}://{bucket}/{posixpath.normpath(f'/{key}/{relative_name}').lstrip('/')}"


def lies_in(address: str, folder: str) -> bool:
    """Say whether an address names a folder, or something in it."""
    return f"{tidy_address(address)}/".startswith(f"{tidy_address(folder)}/")


@lru_cache(maxsize=4096)
def find_profile_and_key(address: str) -> ObjectPlace:
    """Return profile and key as multi-storage-client resolves them, `path_mapping` of its configuration included."""
    matched = _ADDRESS.fullmatch(address)
    if matched is None:
        raise PackError(f"{address} is no address on an object store: s3://bucket/…, gs://bucket/… or msc://profile/…")
    refuse_password("", address)
    scheme, name, key = matched[1].lower(), matched[2], matched[3]
    if scheme == "msc":
        return ObjectPlace(name, key)
    from multistorageclient import StorageClientConfig

    mapped = StorageClientConfig.read_path_mapping().find_mapping(f"{scheme}{address[len(scheme) :]}")
    return ObjectPlace(*mapped) if mapped else ObjectPlace(f"_{scheme}-{name}", key)


def energon_address(address: str) -> str:
    """Return the `msc://` address of the same object: Energon knows no other scheme."""
    place = find_profile_and_key(address)
    return tidy_address(f"msc://{place.profile}/{place.key}")
