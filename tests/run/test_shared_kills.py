"""Tasks, nodes and drivers are killed, or away for a while, at any moment: the run ends well, with the same bytes.

Four "nodes" on this machine are the same command four times, as `srun`, `pdsh` or any scheduler starts it.
"""

import shutil
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil
import pytest

from support.nodes import LOST_AFTER, Nodes, Task, write_texts
from support.packed import files
from support.running import ROOT, run_here

SETTINGS = ("output.name=packed", "output.max_shard_packs=60", "packing.max_token_len=4096", "measure.verify=0")
_RUN_SECONDS = 400.0
_AWAY_SECONDS = LOST_AFTER + 2


class _Killer:
    """Kills by chance, the same chances for the same seed."""

    def __init__(self, nodes: Nodes, seed: int):
        self._nodes, self._random = nodes, Random(seed)
        self._again: list[tuple[float, Task]] = []  # when a task that was killed is started again
        self._awake: list[tuple[float, Task]] = []  # when one that was stopped goes on
        self.done: Counter[tuple[str, str]] = Counter()  # what was done, in which stage

    def look(self) -> None:
        """Start again what was killed, and wake what was stopped, if it is time."""
        now = time.monotonic()
        for when, task in [item for item in self._again if item[0] < now]:
            self._again.remove((when, task))
            task.start()
        for when, task in [item for item in self._awake if item[0] < now]:
            self._awake.remove((when, task))
            task.signal(signal.SIGCONT)

    def kill(self, writes: bool) -> bool:
        """One process, or all of a task; False: there was none of the kind that was to be killed."""
        stage = "write" if writes else self._nodes.line.partition(":")[0].partition(" ")[0] or "start"
        stopped = [task for _, task in self._awake]
        tasks = [task for task in self._nodes.tasks if task.is_alive and task not in stopped]
        if len(tasks) < 2:
            return False
        what = self._random.choice(("worker", "node", "task", "driver", "beside", "away"))
        task = self._nodes.driver if what in ("driver", "beside", "away") else self._random.choice(tasks)
        if task is None or task not in tasks:
            return False
        if what in ("worker", "node", "beside"):
            of_task = {"worker": task.worker, "node": task.node, "beside": task.beside}
            process = of_task[what]
            if process is None:
                return False
            with suppress(psutil.NoSuchProcess):
                process.kill()
        elif what == "away":
            task.signal(signal.SIGSTOP)
            self._awake.append((time.monotonic() + _AWAY_SECONDS, task))
        else:
            task.end()
            self._again.append((time.monotonic() + self._random.uniform(0.5, 3), task))
        self.done[what, stage] += 1
        return True

    @property
    def is_over(self) -> bool:
        return not (self._nodes.are_at_work or self._again or self._awake)


def _kill_and_compare(
    folder: Path, command: tuple[str, ...], expected: dict[str, bytes], most: tuple[int, int], seed: int, pause: float
) -> Counter[tuple[str, str]]:
    """One run with some kills.

    Args:
        most: kills until it writes, and from then on.
        pause: the longest between two, in seconds; a quarter of it while it writes.
    """
    template = folder.parent / "undisturbed" / ".cache" / "templates"
    shutil.copytree(template, folder / "shared" / ".cache" / "templates")
    with Nodes(folder, command) as nodes:
        killer, random = _Killer(nodes, seed), Random(seed)
        begun = time.monotonic()
        following = begun + 3 + random.uniform(0, pause)
        nums = [0, 0]
        while not killer.is_over:
            assert time.monotonic() - begun < _RUN_SECONDS, "\n".join(task.said[-3000:] for task in nodes.tasks)
            killer.look()
            writes = any(nodes.shared.glob(".staging/*/*.tar.idx"))
            if nums[writes] < most[writes] and time.monotonic() > following and killer.kill(writes):
                nums[writes] += 1
                following = time.monotonic() + random.uniform(0.3, pause / 4 if writes else pause)
            elif writes and not nums[True]:
                following = min(following, time.monotonic() + random.uniform(0, 1))
            time.sleep(0.05)
        said = "\n".join(f"--- {task.num_started}\n{task.said[-3000:]}" for task in nodes.tasks)
        assert [task.process.returncode for task in nodes.tasks] == [0] * 4, said
        assert files(nodes.shared / "packed") == expected, said
        assert not (nodes.shared / ".staging").exists(), said
        time.sleep(0.5)
        assert nodes.left == []
    return killer.done


def _undisturbed(folder: Path, demo: tuple[Path, Path], size: tuple[int, int, int]) -> tuple[tuple[str, ...], Path]:
    """A source of that size, packed by one machine: the command without its executor, and where the runs are to be."""
    source = write_texts(folder / "texts", *size)
    command = ("+model=qwen2_5_vl", f"model.processor={demo[1]}", f"source.path={source}", *SETTINGS)
    code, _, errors = run_here(*command, f"output.dir={folder / 'runs' / 'undisturbed'}", cwd=ROOT)
    assert code == 0, errors
    return command, folder / "runs"


@pytest.mark.slow
def test_a_few_kills(demo: tuple[Path, Path], tmp_path: Path) -> None:
    command, runs = _undisturbed(tmp_path, demo, (6, 2000, 40))
    expected = files(runs / "undisturbed" / "packed")
    assert sum(_kill_and_compare(runs / "few", command, expected, (3, 1), 7, 3.0).values()) >= 1


@pytest.mark.slow
def test_fifty_kills(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Spread over some runs, over measuring and writing."""
    command, runs = _undisturbed(tmp_path, demo, (30, 2000, 120))
    expected = files(runs / "undisturbed" / "packed")
    done: Counter[tuple[str, str]] = Counter()
    number = 0
    while sum(done.values()) < 50:
        number += 1
        here = _kill_and_compare(runs / str(number), command, expected, (4, 4), number, 6.0)
        print(f"run {number}: {dict(here)}", flush=True)
        done += here
    print(f"{sum(done.values())} kills in {number} runs: {dict(done)}")
    assert {stage for _, stage in done} >= {"measure", "write"}
