"""An executor that treats jobs as one of other machines does."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial

from energon_pack.run.executors import Folder, Job, Result
from energon_pack.sources.storage import counted


class Elsewhere:
    """Runs each job as another machine would: functions, jobs and results cross over as bytes, and each job twice."""

    def __init__(self, *_: object):
        self.names: set[str] = set()

    def __enter__(self) -> "Elsewhere":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def share(self, folders: Sequence[Folder]) -> None:
        self.folders = {folder.knob: folder.path for folder in folders}

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job], are_short: bool = False) -> Iterator[Result]:
        for job in jobs:
            self._sent(function, job)
            yield self._sent(function, job)

    def start(self, function: Callable[[Job], Result], job: Job) -> "Future[Result]":
        future: Future[Result] = Future()
        future.set_result(self._sent(function, job))
        return future

    def result(self, future: "Future[Result]") -> Result:
        return future.result()

    def _sent(self, function: Callable[[Job], Result], job: Job) -> Result:
        run, sent = pickle.loads(pickle.dumps((function, job)))
        of = run.args[0] if isinstance(run, partial) and run.func is counted else run
        self.names.add(getattr(of, "__name__", "partial"))
        result: Result = pickle.loads(pickle.dumps(run(sent)))
        return result
