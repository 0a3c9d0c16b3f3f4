"""Connect to the Ray of a run: an existing cluster, or a Ray on this machine, for this run only."""

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
from energon_pack.run.executors.workers import INTERRUPTS, QUIET_RAY_ENV, changed_environment

_ENDED_MESSAGE = (
    "energon-pack: error: this process was ended by Ray, where the head of its cluster or the node of this machine was"
    " lost, or by the system; the same command goes on from what is there"
)
#: A holder of the token may run code in a Ray that this process starts. There is only one, because Ray keeps the first.
_TOKEN = secrets.token_hex(32)


@contextmanager
def connected_to_ray(settings: ExecutorConfig) -> Iterator[None]:
    """Connect to the Ray of the settings; if this process has a Ray already, use that one and leave it running."""
    if ray.is_initialized():
        yield
        return
    private: dict[str, Any] = {"address": "local", "num_cpus": settings.num_workers, "include_dashboard": False}
    where = private if settings.address is None else {"address": settings.address}
    handlers = {number: signal.getsignal(number) for number in INTERRUPTS}
    with _private_ray_settings() if settings.address is None else nullcontext():
        try:
            with changed_environment(QUIET_RAY_ENV):
                ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise PackError(f"executor.address={settings.address}: no Ray there: {one_line(error)}") from None
        finally:
            if threading.current_thread() is threading.main_thread():
                for number, handler in handlers.items():  # Ray's own handlers exit where a run would end well
                    signal.signal(number, handler)
        try:
            with print_if_killed(_ENDED_MESSAGE):
                yield
        finally:
            ray.shutdown()


@contextmanager
def _private_ray_settings() -> Iterator[None]:
    """Make a Ray started here listen on the loopback only, and accept commands only with its token.

    Ray has no setting for the first: it does so only where it can't have more than one machine.
    """
    can_have_more, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        with changed_environment({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN}):
            Config.initialize("")  # else this process uses the token that Ray read when it was imported
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = can_have_more
        Config.initialize("")


@contextmanager
def print_if_killed(text: str) -> Iterator[None]:
    """Print a line even if Ray's C++ code ends this process meanwhile, which leaves Python no chance to print it."""
    with subprocess.Popen(["sh", "-c", 'read -r _ || echo "$0" >&2', text], stdin=subprocess.PIPE) as listener:
        try:
            yield
        finally:
            with suppress(BrokenPipeError):  # an interrupt may go to all processes of a terminal
                listener.communicate(b"\n")
