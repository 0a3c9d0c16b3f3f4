"""Object stores: addresses as users and Energon write them, and requests that are tried again and counted."""

from energon_pack.run.address import (
    bucket_of,
    energon_address,
    is_address,
    joined,
    lies_in,
    on_this_machine,
    parent,
    place_of,
    tidy,
)
from energon_pack.run.stores.client import (
    delete,
    entries,
    find,
    meet,
    names,
    put,
    put_file,
    put_if,
    read,
    read_whole,
    read_with_version,
)
from energon_pack.run.stores.requests import COUNTS, Found, StoreError, losing_no_fault

__all__ = [
    "COUNTS",
    "Found",
    "StoreError",
    "bucket_of",
    "delete",
    "energon_address",
    "entries",
    "find",
    "is_address",
    "joined",
    "lies_in",
    "losing_no_fault",
    "meet",
    "names",
    "on_this_machine",
    "parent",
    "place_of",
    "put",
    "put_file",
    "put_if",
    "read",
    "read_whole",
    "read_with_version",
    "tidy",
]
