"""Kept memory: a worker writes memory again, and no value that a training still has changes."""

import gc
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from energon_pack.training import kept_memory
from energon_pack.training.kept_memory import copy_into_kept_memory, make_empty_in_kept_memory
from support.marks import slow
from support.running import ROOT, command

ROWS, COLUMNS = 1100, 1000  # 4.4 MB: more than SMALL_BYTES


class Numbers(Dataset[Any]):
    """Item `i` is a big tensor of `i` and a small one; some are made in fresh memory first."""

    def __len__(self) -> int:
        return 14

    def __getitem__(self, number: int) -> dict[str, Any]:
        big = (
            make_empty_in_kept_memory((ROWS, COLUMNS)).fill_(number)
            if number % 3
            else copy_into_kept_memory(torch.full((ROWS, COLUMNS), float(number)))
        )
        return {"big": big, "small": torch.full((3,), number), "twice": big[5:7]}


def loader(num_workers: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(), batch_size=None, num_workers=num_workers, **options)


def are_right(items: Any) -> bool:
    return all(bool((one[name] == one["small"][0]).all()) for one in items for name in ("big", "twice"))


def addresses(items: Any) -> set[int]:
    return {one["big"].data_ptr() for one in items}


@pytest.fixture(autouse=True)
def nothing_is_mapped() -> Iterator[None]:
    yield
    gc.collect()
    kept_memory._unmap_of_dead()
    assert kept_memory._mapped == {}


@pytest.mark.parametrize("num_workers", [0, 1, slow(4)])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_who_keeps_every_batch_sees_no_value_change(num_workers: int) -> None:
    """Memory that was used again too soon would change values of a batch that a training still has."""
    items = [*loader(num_workers)]
    assert len(addresses(items)) == len(items) == 14
    assert are_right(items)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"multiprocessing_context": "spawn"}, {"pin_memory": True}], ids=["spawn", "pinned"]
)
@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
def test_no_value_changes_in_other_loaders(options: dict[str, Any]) -> None:
    items = []
    for one in loader(2, **options):
        items += [one] if int(one["small"][0]) % 2 else []
        assert are_right([one, *items])


def test_no_value_changes_where_memory_is_shared_by_files() -> None:
    """Who shares by files has few descriptors: nothing is kept then."""
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        assert are_right([*loader(1)])
        assert kept_memory._mapped == {}
    finally:
        torch.multiprocessing.set_sharing_strategy(before)


def test_memory_is_written_again_when_its_batch_is_gone() -> None:
    """Fresh pages for each batch cost more than its pixels."""
    used = [one["big"].data_ptr() for one in loader(1)]
    assert len(used) == 14
    assert len({*used}) <= 5  # two are ahead, one is read, one is written


@pytest.mark.parametrize("hold", ["view", "numpy", "dlpack", "graph"])
def test_what_is_made_of_a_tensor_keeps_its_memory(hold: str) -> None:
    def held(value: Tensor) -> Any:
        if hold == "graph":
            weights = torch.ones(ROWS, COLUMNS, requires_grad=True)
            return weights, (weights * value).sum()
        return {"view": value[1:3], "numpy": value.numpy(), "dlpack": value.__dlpack__()}[hold]

    holds = [(int(one["small"][0]), held(one["big"])) for one in loader(1)]
    for number, value in holds[:3]:
        if hold == "dlpack":
            value = torch.utils.dlpack.from_dlpack(value)
        elif hold == "graph":
            weights, loss = value
            loss.backward()
            value = weights.grad
        assert value.min() == value.max() == number


def test_a_loader_that_is_left_early_goes_on_rightly() -> None:
    """By `break`, and by an exception; with persistent workers what was sent ahead is dropped."""
    persistent = loader(2, persistent_workers=True)
    items = []
    for _ in range(3):
        for one, _ in zip(persistent, range(4), strict=False):
            items.append(one)
    with pytest.raises(ZeroDivisionError):
        items += [one for one in persistent if 1 // (3 - int(one["small"][0]))]
    assert are_right([*items, *persistent])
    del persistent


_KILLS_A_WORKER = """
import os, signal
from training.test_kept_memory import are_right, loader
iterator = iter(loader(1))
items = [next(iterator) for _ in range(3)]
try:
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    iterator._workers[0].join()  # torch names a worker that it sees dead, and raises the socket's error before that
    items.extend(iterator)
except RuntimeError as error:
    print(are_right(items), error)
"""


def test_a_killed_worker_takes_no_value_along(tmp_path: Path) -> None:
    """In a process of its own: torch raises the error again where any other child of the process ends."""
    done = command("-c", _KILLS_A_WORKER, cwd=tmp_path, PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}")
    assert re.match(r"True .*(exited unexpectedly|killed by signal)", done.stdout), done.stdout + done.stderr


def test_a_saved_tensor_has_only_its_own_bytes() -> None:
    """A storage as large as the memory behind it would be written with each of its tensors."""
    for one in loader(1):
        sizes = []
        for name in ("big", "small"):
            torch.save(one[name], file := io.BytesIO())
            sizes.append(file.tell())
        assert sizes[0] < 4 * ROWS * COLUMNS + 5000 < sizes[0] + 5000
        assert sizes[1] < 5000


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_frees_nothing_and_keeps_its_values() -> None:
    """A child that drops its copy, or ends, would let a worker write what its parent reads; and the other way round."""
    iterator = iter(loader(1))
    items = [next(iterator) for _ in range(3)]
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(writer)  # else it would wait for itself where the parent fails
        right = are_right(items)
        os.read(reader, 1)  # until the parent has dropped its own, and read on
        os._exit(0 if right and are_right(items) else 1)
    if (other := os.fork()) == 0:
        items.clear()
        gc.collect()
        os._exit(0)
    os.waitpid(other, 0)
    try:
        first = items.pop(0)
        rest = [next(iterator) for _ in range(3)]
        assert are_right([first, *items, *rest])
        items.clear()
        rest += [*iterator]
    finally:
        os.close(writer)
    assert os.waitpid(pid, 0)[1] == 0
    assert are_right([first, *rest])
    del iterator


def test_a_tensor_that_is_sent_twice_is_copied() -> None:
    """Two processes may have it: nobody could say when both are through."""
    items = [*DataLoader(Twice(), batch_size=None, num_workers=1)]
    assert len(items) == 14
    assert are_right(items)


class Twice(Numbers):
    sent: Any = None

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number % 2 == 0:
            Twice.sent = super().__getitem__(number)
        return Twice.sent  # type: ignore[no-any-return]


def test_without_files_in_memory_batches_are_as_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(name: str) -> int:
        raise OSError("Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refused)
    kept_memory._can_make_files.cache_clear()
    assert are_right([*loader(1)])
    assert not [kept_memory._can_make_files() for _ in range(2)][1]
    assert caplog.messages == [
        "batches are in fresh memory, which costs time: no file in memory can be made (Function not implemented)"
    ]
    kept_memory._can_make_files.cache_clear()
    assert kept_memory._mapped == {}


_KILLED = """
import sys, time
sys.path[:0] = [{tests!r}, {root!r}]
from training.test_kept_memory import loader
items = []
for one in loader(2):
    items.append(one)
    if len(items) == 5:
        print("ready", flush=True)
        time.sleep(60)
"""


@pytest.mark.slow
def test_nothing_is_left_when_a_run_is_killed() -> None:
    """`/dev/shm` of a machine would fill up, run by run."""
    before = {*os.listdir("/dev/shm")}
    code = _KILLED.format(tests=str(ROOT / "tests"), root=str(ROOT))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        os.killpg(run.pid, signal.SIGKILL)
    time.sleep(0.5)
    left = {*os.listdir("/dev/shm")} - before
    mapped = ""  # by processes that live: other runs of the machine
    for path in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            mapped += path.read_text()
    assert not [name for name in left if f"/dev/shm/{name}" not in mapped]
