"""Stages know the protocol of an executor alone: one that runs jobs elsewhere packs the same bytes."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import PackConfig
from energon_pack.pack import pack
from energon_pack.run.context import Run
from energon_pack.run.executors import Executor, Folder, Job, Result
from energon_pack.run.progress import Progress
from energon_pack.sources.storage import counted
from support.packed import files


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


def test_an_executor_of_another_kind_packs_the_same_bytes(
    config: Callable[..., PackConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that can't be pickled, or that does something else the second time, would fail on a cluster alone."""
    settings: dict[str, Any] = {
        "packing__max_token_len": 512,
        "packing__overlong": "split_turns",
        "output__max_shard_packs": 8,
        "measure__verify": 0.01,
    }
    local = config(**settings, cache_dir=str(tmp_path / "cache"))
    pack(local)
    elsewhere = Elsewhere()
    monkeypatch.setattr("energon_pack.run.executors.choose.executor_of", lambda *_: elsewhere)
    remote = config(**settings, cache_dir=str(tmp_path / "other"), output__dir=str(tmp_path / "other" / "out"))
    pack(remote)
    assert files(Path(remote.output.dir) / "packed") == files(Path(local.output.dir) / "packed")
    stages = {"_index_some", "partial", "measure", "cut", "get_ready", "write_shard", "audit", "check"}
    assert elsewhere.names >= stages


def test_a_stage_that_keeps_results_needs_a_cache(tmp_path: Path) -> None:
    executor: Executor = Elsewhere()
    assert Run(executor, Progress(quiet=True), tmp_path).cache("lengths", "x") == tmp_path / "lengths" / "x"
    with pytest.raises(AssertionError, match="needs a cache"):
        Run(executor, Progress(quiet=True)).cache()
