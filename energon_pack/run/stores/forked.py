"""Give forked processes, such as loader workers, connections of their own.

Two processes that share a connection get each other's answers: cut packs, or the wrong bytes. In a forked process,
multi-storage-client makes new clients on request, but Energon's paths keep the clients they were made with
(`megatron.energon.epathlib.EPath.fs`). This module replaces those.
"""

import os
import sys
from typing import Any

_PROCESS = os.getpid()
_clients: list[Any] = []


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
