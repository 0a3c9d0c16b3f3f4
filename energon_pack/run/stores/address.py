"""Addresses on object stores, and how Energon names the same place.

s3://bucket/key   gs://bucket/key   msc://profile/key
"""

import os
import posixpath
import re
from functools import lru_cache
from typing import NamedTuple

from energon_pack.errors import PackError, refuse_password

_ADDRESS = re.compile(r"(s3|gs|msc)://([^/]+)/*(.*)", re.DOTALL | re.IGNORECASE)  # `S3://…` is `s3://…`


class Place(NamedTuple):
    """Where multi-storage-client finds an object."""

    profile: str  # of its configuration, or one it makes of a bucket: `_s3-bucket`
    key: str


def is_address(path: str | os.PathLike[str]) -> bool:
    """Whether a path is one on an object store."""
    return isinstance(path, str) and _ADDRESS.fullmatch(path) is not None


def tidy(address: str) -> str:
    """An address with its scheme in lower case, and no slash at its end."""
    address = address.rstrip("/")
    scheme, mark, path = address.partition("://")
    return f"{scheme.lower()}{mark}{path}" if is_address(address) else address


def parent(address: str) -> str:
    """The folder that an address lies in; of a bucket, itself."""
    above, _, _ = tidy(address).rpartition("/")
    return above if is_address(above) else tidy(address)


def bucket_of(address: str) -> str:
    """The bucket or profile that an address lies in, as an address; of a path, nothing."""
    matched = _ADDRESS.fullmatch(address)
    return f"{matched[1].lower()}://{matched[2]}" if matched else ""


def joined(folder: str, name: str) -> str:
    """A name in a folder, as a path has it: `..` is the folder above; an address stays one."""
    if is_address(name):
        return name
    scheme, _, path = tidy(folder).partition("://")
    bucket, _, key = path.partition("/")
    return f"{scheme}://{bucket}/{posixpath.normpath(f'/{key}/{name}').lstrip('/')}"


def lies_in(address: str, folder: str) -> bool:
    """Whether an address is that of a folder, or of something in it."""
    return f"{tidy(address)}/".startswith(f"{tidy(folder)}/")


@lru_cache(maxsize=4096)
def place_of(address: str) -> Place:
    """Profile and key, as multi-storage-client resolves them, `path_mapping` of its configuration among it."""
    matched = _ADDRESS.fullmatch(address)
    if matched is None:
        raise PackError(f"{address} is no address on an object store: s3://bucket/…, gs://bucket/… or msc://profile/…")
    refuse_password("", address)
    scheme, name, key = matched[1].lower(), matched[2], matched[3]
    if scheme == "msc":
        return Place(name, key)
    from multistorageclient import StorageClientConfig

    mapped = StorageClientConfig.read_path_mapping().find_mapping(f"{scheme}{address[len(scheme) :]}")
    return Place(*mapped) if mapped else Place(f"_{scheme}-{name}", key)


def energon_address(address: str) -> str:
    """The same place as Energon names it, to which only `msc://` is a store."""
    place = place_of(address)
    return tidy(f"msc://{place.profile}/{place.key}")
