"""How the benchmarks measure: the machines are shared, so what counts is CPU seconds of things run in turn.

Each figure that has a goal is printed with it, and with whether it holds: `at_least`, `at_most`.
"""

import resource
import time
from collections.abc import Callable, Mapping


def cpu_and_wall_seconds(work: Callable[[], object], times: int = 3) -> tuple[float, float]:
    """CPU seconds (user and system, children included) and wall seconds, each the best of some.

    By getrusage, because os.times counts in steps of 10 ms.
    """
    results = []
    for _ in range(times):
        before, start = _used(), time.perf_counter()
        work()
        results.append((_used() - before, time.perf_counter() - start))
    return min(cpu for cpu, _ in results), min(wall for _, wall in results)


def cpu_seconds(work: Callable[[], object], times: int = 3) -> float:
    return cpu_and_wall_seconds(work, times)[0]


def cpu_seconds_in_turn(works: Mapping[str, Callable[[], object]], times: int = 3) -> dict[str, float]:
    """Each once, then each again: what slows the machine down for a while slows down all of them."""
    rounds = [{name: cpu_seconds(work, 1) for name, work in works.items()} for _ in range(times)]
    return {name: min(each[name] for each in rounds) for name in works}


def at_least(value: float, goal: float, unit: str = "") -> str:
    """The goal of a figure that should be large, and whether it holds."""
    return f"≥ {goal:g}{unit} {'yes' if value >= goal else 'NO'}"


def at_most(value: float, goal: float, unit: str = "") -> str:
    """The goal of a figure that should be small, and whether it holds."""
    return f"≤ {goal:g}{unit} {'yes' if value <= goal else 'NO'}"


def _used() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
