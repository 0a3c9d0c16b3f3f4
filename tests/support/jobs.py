"""Jobs that processes of other interpreters can import: some do not end by themselves, or not well."""

import ctypes
import os
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any

from energon_pack.errors import SamplesLost


def sleep(path: Path) -> None:
    path.write_text(str(os.getpid()))
    time.sleep(600)


def hold(path: Path) -> None:
    """A deadlock as natural as it gets: no thread of this process can run Python any more, and none ever returns."""
    path.write_text(str(os.getpid()))
    ctypes.PyDLL(None).pause()


def double(number: int) -> int:
    return 2 * number


def where(seconds: float) -> tuple[int, str]:
    """The process that did it, and the node of a Ray cluster."""
    import ray

    time.sleep(seconds)
    return os.getpid(), ray.get_runtime_context().get_node_id()


def about(_: int) -> tuple[bool, str | None, str | None]:
    """Whether the process has imported torch, and how many threads its libraries start."""
    return "torch" in sys.modules, os.environ.get("OMP_NUM_THREADS"), os.environ.get("TOKENIZERS_PARALLELISM")


def refuse(number: int) -> int:
    """Fails for every number but 0."""
    if number:
        raise SamplesLost(f"number {number}", page="page")
    return number


def fail_beside(path: Path) -> None:
    """Fails once another one has begun, which does not end by itself."""
    began = path.with_name("began")
    if path == began:
        sleep(path)
    while not (began.exists() and began.read_text()):
        time.sleep(0.01)
    raise ValueError("mistake")


def die_once(path: Path) -> str:
    """Kills its process the first time."""
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return path.name


def die_where_first(path: Path) -> str:
    """Kills its process on the node of a Ray cluster that began it first, however often it comes there."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    if not path.exists():
        path.write_text(here)
    if path.read_text() == here:
        os.kill(os.getpid(), signal.SIGKILL)
    return path.name


def die(_: int) -> None:
    os._exit(9)


def large(number: int) -> bytes:
    return bytes([number % 256]) * 10_000_000


def listed(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def busy(seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return True


def late_error(_: int) -> None:
    time.sleep(0.3)
    raise TimeoutError("the disk")


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def pid(_: int) -> int:
    return os.getpid()


def half_a_result(_: int) -> None:
    """Ends in the middle of writing its result, as a worker that is killed may."""
    frame: Any = sys._getframe()
    while "result_queue" not in frame.f_locals:
        frame = frame.f_back
    os.write(frame.f_locals["result_queue"]._writer.fileno(), struct.pack("!i", 1000) + b"half")
    os.kill(os.getpid(), signal.SIGKILL)


def process(_: int) -> int:
    time.sleep(0.01)
    return os.getpid()


def slow(_: int) -> int:
    time.sleep(0.4)
    return os.getpid()


def half_of_the_second(job: tuple[int, bytes]) -> int:
    """The job behind it waits in the pool, as its thread waits for the other half."""
    if job[0] == 1:
        time.sleep(0.5)
        half_a_result(0)
    return job[0]


class SlowImage:
    """A rule of `media.image` that changes nothing, and takes its time to measure."""

    def __init__(self, settings: object, factor: int):
        pass

    def size(self, width: int, height: int) -> tuple[int, int]:
        time.sleep(0.01)
        return width, height

    def apply(self, image: Any) -> Any:
        return image
