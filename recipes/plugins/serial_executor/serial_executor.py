"""Does all jobs in this process, where a debugger sees them: `pip install recipes/plugins/serial_executor`, then

energon-pack +model=qwen2_5_vl executor.kind=serial
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any


class SerialExecutor(AbstractContextManager["SerialExecutor"]):
    """What `energon_pack.run.executors.Executor` promises, for one process."""

    def __init__(self, settings: Any):
        pass

    def share(self, folders: Sequence[Any]) -> None:
        """This process sees all folders."""

    def map(self, function: Callable[[Any], Any], jobs: Iterable[Any], are_short: bool = False) -> Iterator[Any]:
        """Yield the result of each job."""
        return map(function, jobs)

    def start(self, function: Callable[[Any], Any], job: Any) -> "Future[Any]":
        """Do a job that others do beside the rest."""
        future: Future[Any] = Future()
        future.set_result(function(job))
        return future

    def result(self, future: "Future[Any]") -> Any:
        """Return the result of such a job."""
        return future.result()

    def __exit__(self, *_: object) -> None:
        """Nothing is left to end."""
