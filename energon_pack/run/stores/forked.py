"""Processes that are forked, as loader workers are, make connections of their own.

Two processes with one connection get each other's answers: packs that are cut, or others' bytes. In a process that was
forked, multi-storage-client makes new clients for who asks it, but paths of Energon keep those they were made with
(`megatron.energon.epathlib.EPath.fs`). These become the new ones.
"""

import os
import sys
from typing import Any

_PROCESS = os.getpid()
_clients: list[Any] = []


def is_forked() -> bool:
    """Whether this process is a copy of one that may have used obstore: its threads are not in the copy."""
    return os.getpid() != _PROCESS


def _remember() -> None:
    shortcuts = sys.modules.get("multistorageclient.shortcuts")
    if shortcuts is not None:  # in the new process it has forgotten them
        _clients[:] = shortcuts._STORAGE_CLIENT_CACHE.values()


def _renew() -> None:
    for client in _clients:
        if not client.is_default_profile():  # files of this machine
            from multistorageclient import resolve_storage_client

            vars(client).update(vars(resolve_storage_client(f"msc://{client.profile}")[0]))
    _clients.clear()


os.register_at_fork(before=_remember, after_in_parent=_clients.clear, after_in_child=_renew)
