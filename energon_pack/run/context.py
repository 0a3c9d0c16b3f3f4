"""The objects that every stage of a run gets."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from energon_pack.run.executors import Executor
from energon_pack.run.files import naming_place
from energon_pack.run.progress import Progress
from energon_pack.run.stores.mirror import Mirror


@dataclass(frozen=True)
class Run:
    """The executor, the progress display, and the cache for the next run."""

    executor: Executor
    progress: Progress
    cache_dir: Path | None = None  # None: results are not kept
    mirror: Mirror | None = None  # for a cache on an object store

    def cache(self, *names: str) -> Path:
        """Return the cache folder, or a folder in it."""
        assert self.cache_dir is not None, "a stage that keeps results needs a cache"
        if self.mirror is not None:
            self.mirror.fetch(*names)
        return self.cache_dir.joinpath(*names)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Time a stage that writes into the cache only; name `cache_dir` where its disk is full."""
        with self.progress.timed(stage), naming_place("cache_dir", self.cache()):
            yield
            if self.mirror is not None:
                self.mirror.put_new()
