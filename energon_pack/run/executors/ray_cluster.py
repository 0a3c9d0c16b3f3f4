"""The Ray of a run: a cluster that is there, or one of this machine alone, for the run alone."""

import logging
import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import ray
from ray._private import ray_constants
from ray._raylet import Config  # type: ignore[attr-defined]

from energon_pack.errors import PackError, one_line
from energon_pack.run.executors.settings import ExecutorConfig
from energon_pack.run.executors.workers import INTERRUPTS, RAY_IS_QUIET, environment

_ENDED = (
    "energon-pack: error: this process was ended by Ray, where the head of its cluster or the node of this machine was"
    " lost, or by the system; the same command goes on from what is there"
)
#: Who has it may run code in a Ray that this process starts. Ray keeps what it read first, so there is one.
_TOKEN = secrets.token_hex(32)


@contextmanager
def cluster_of(settings: ExecutorConfig) -> Iterator[None]:
    """The Ray of the settings, unless this process has one already; that one is used, and left.

    Raises:
        PackError: there is none at this address.
    """
    if ray.is_initialized():
        yield
        return
    own: dict[str, Any] = {"address": "local", "num_cpus": settings.num_workers, "include_dashboard": False}
    where = own if settings.address is None else {"address": settings.address}
    handlers = {number: signal.getsignal(number) for number in INTERRUPTS}
    with _private() if settings.address is None else nullcontext():
        try:
            with environment(RAY_IS_QUIET):
                ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise PackError(f"executor.address={settings.address}: no Ray there: {one_line(error)}") from None
        finally:
            if threading.current_thread() is threading.main_thread():
                for number, handler in handlers.items():  # Ray's own exits where a run would end well
                    signal.signal(number, handler)
        try:
            with last_words(_ENDED):
                yield
        finally:
            ray.shutdown()


@contextmanager
def _private() -> Iterator[None]:
    """Have a Ray that is started meanwhile listen on the loopback alone, and take orders from who has its token alone.

    Ray has no setting for the first: it does so by itself where it can't have more than one machine.
    """
    can_have_more, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        with environment({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN}):
            Config.initialize("")  # else this process believes what it read when Ray was imported
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = can_have_more
        Config.initialize("")


@contextmanager
def last_words(text: str) -> Iterator[None]:
    """Have a line said where this process is ended meanwhile, with no chance to say it: Ray does so in its C++ code."""
    with subprocess.Popen(["sh", "-c", 'read -r _ || echo "$0" >&2', text], stdin=subprocess.PIPE) as listener:
        try:
            yield
        finally:
            with suppress(BrokenPipeError):  # an interrupt that went to all processes of a terminal
                listener.communicate(b"\n")
