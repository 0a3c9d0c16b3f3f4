"""What a small input may expand to is bounded, and nothing else is."""

import resource
from itertools import count
from threading import Event, Thread

import numpy as np
import pytest

from energon_pack.run import untrusted_input
from energon_pack.run.untrusted_input import BoundExceeded, bounded_memory_and_time

MB = 1 << 20


@pytest.fixture(autouse=True)
def _bounds_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted_input, "_is_enabled", [True])  # as in the command, and in workers


def test_memory_is_refused_before_it_is_touched() -> None:
    """Python's and numpy's alike; outside, and after it, as much may be had as before."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(BoundExceeded, match=r"it takes more than 67\.1 MB of memory"), bounded_memory_and_time(64 * MB):
        "".ljust(10**10)
    with pytest.raises(BoundExceeded), bounded_memory_and_time(64 * MB):
        np.ones(10**9)
    with bounded_memory_and_time(64 * MB):
        assert len(bytes(16 * MB)) == 16 * MB
    with pytest.raises(ZeroDivisionError), bounded_memory_and_time(64 * MB):
        _ = 1 // 0
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert len(bytes(128 * MB)) == 128 * MB


def test_the_smallest_bound_holds_and_none_is_left_behind() -> None:
    """One that ends after another thread's began would else leave that thread's to the whole process."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    is_in, may_end = Event(), Event()

    def other() -> None:
        with bounded_memory_and_time(1024 * MB):
            is_in.set()
            may_end.wait(20)

    thread = Thread(target=other)
    with bounded_memory_and_time(2048 * MB):
        thread.start()
        assert is_in.wait(20)
    with pytest.raises(BoundExceeded), bounded_memory_and_time(512 * MB), bounded_memory_and_time(64 * MB):
        bytes(1024 * MB)
    may_end.set()
    thread.join()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_trainers_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread of it, which writes a checkpoint, would be refused its memory."""
    monkeypatch.setattr(untrusted_input, "_is_enabled", [])
    with bounded_memory_and_time(1 * MB):
        assert len(bytes(64 * MB)) == 64 * MB


def test_time_of_the_cpu_is_bounded() -> None:
    with pytest.raises(BoundExceeded, match=r"it takes more than 0\.1 s"), bounded_memory_and_time(64 * MB, 0.1):
        any(number < 0 for number in count())
