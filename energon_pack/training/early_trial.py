"""Try processors in a process that is about to fork workers, and leave no trace in it but what the trials showed."""

import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

#: what asked to take part in forks while one had begun
_late: list[dict[str, Any]] = []


def run_trials_ignoring_errors(trials: Iterable[Callable[[], None]]) -> None:
    """Call these trials; an error is left to the worker that tries it again, which says whose pack it is."""
    with _one_thread(), _same_chance(), _later_fork_functions():
        for trial in trials:
            with suppress(Exception):  # any class of any processor may be behind it
                trial()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch and tokenizers compute in one thread: their others would not survive a fork."""
    name, num_threads = "TOKENIZERS_PARALLELISM", torch.get_num_threads()
    parallelism = os.environ.get(name)
    os.environ[name] = "false"
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
        os.environ.pop(name)
        os.environ.update({} if parallelism is None else {name: parallelism})


@contextmanager
def _same_chance() -> Iterator[None]:
    """Leave what Python, NumPy and torch on the CPU draw at random as it was."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


@contextmanager
def _later_fork_functions() -> Iterator[None]:
    """Let packages that are imported take part in forks from the next one on, as this one has begun without them."""
    register = os.register_at_fork
    os.register_at_fork = lambda **functions: _late.append(functions)
    try:
        yield
    finally:
        os.register_at_fork = register


def _register_late() -> None:
    while _late:
        os.register_at_fork(**_late.pop())


os.register_at_fork(after_in_parent=_register_late, after_in_child=_register_late)
