"""The objects that every stage of a run gets; a cache on an object store, mirrored in a folder of this machine; and a
lock for one process at a time.

A file's name is the hash of its bytes, so files with one name are equal, and nothing is overwritten.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from energon_pack.errors import PackError
from energon_pack.run import stores
from energon_pack.run.executors import Executor
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.run.executors.settings import ExecutorConfig, ExecutorKind
from energon_pack.run.executors.workers import QUIET_RAY_ENV, changed_environment
from energon_pack.run.files import reporting_full_disk, user_temporary_folder, write_atomically
from energon_pack.run.load_by_name import load_entry_point
from energon_pack.run.progress import Progress

#: The folders of a cache that are worth keeping for other machines.
_MIRRORED_FOLDERS = ("index", "lengths")
_PRIVATE_FILE_MODE = 0o600  # no other user can read


@dataclass(frozen=True)
class CacheMirror:
    """A cache on an object store, and the folder of this machine that mirrors it."""

    address: str
    folder: Path
    _in_store: set[str] = field(default_factory=set)  # names of files that the store has
    _fetched: set[str] = field(default_factory=set)  # names of folders

    def fetch(self, *path_parts: str) -> None:
        """Download the missing files of a folder of the cache, which has these parts of a path, once in a run."""
        name = "/".join(path_parts)
        if path_parts[:1] and path_parts[0] in _MIRRORED_FOLDERS and name not in self._fetched:
            self._fetched.add(name)
            for address in stores.list_recursively(f"{self.address}/{name}"):
                file = address[len(self.address) + 1 :]
                self._in_store.add(file)
                if not (self.folder / file).exists():
                    (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
                    write_atomically(self.folder / file, stores.read_whole(address), sync=False)

    def upload_new_files(self) -> None:
        """Upload the files of fetched folders that the store does not have."""
        for name in sorted(self._fetched):
            for path in sorted((self.folder / name).rglob("*.parquet")):
                file = path.relative_to(self.folder).as_posix()
                if file not in self._in_store:
                    stores.put_file(f"{self.address}/{file}", path)
                    self._in_store.add(file)


@dataclass(frozen=True)
class Workshop:
    """What every stage gets: the executor, the progress display, and the cache that later runs read, too."""

    executor: Executor
    progress: Progress
    cache_dir: Path | None = None  # None: results are not kept
    mirror: CacheMirror | None = None  # for a cache on an object store

    def cache(self, *path_parts: str) -> Path:
        """Return the cache's folder, or the one in it with these parts of a path, fetched from the cache's store."""
        assert self.cache_dir is not None, "a stage that keeps results needs a cache"
        if self.mirror is not None:
            self.mirror.fetch(*path_parts)
        return self.cache_dir.joinpath(*path_parts)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Time a stage that writes only into the cache, then upload what is new; on a full disk name `cache_dir`."""
        with self.progress.timed(stage), reporting_full_disk("cache_dir", self.cache()):
            yield
            if self.mirror is not None:
                self.mirror.upload_new_files()


@contextmanager
def one_process_at_a_time(folder: Path) -> Iterator[None]:
    """Let only one process of this machine at a time run the block for this folder; others wait.

    The lock is a file on the machine's own disk, because a shared file system may have no locks. It is freed when its
    process ends, however that happens, so nobody waits for ever.
    """
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    lock = os.open(
        user_temporary_folder("locks") / name,
        os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
        _PRIVATE_FILE_MODE,
    )
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # closing it would not free it while a process forked meanwhile has it open
        os.close(lock)


def executor_of(settings: ExecutorConfig) -> AbstractContextManager[Executor]:
    """Return the executor of these settings, as a context that ends with the run.

    `executor.kind` may name an entry point of an installed package, which makes it from the settings. Raises PackError
    for Slurm.
    """
    if settings.kind == ExecutorKind.slurm:
        raise PackError("executor=slurm submits commands: it is for the command line alone")
    if settings.kind == ExecutorKind.local:
        return LocalExecutor(settings.num_workers)
    if settings.kind != ExecutorKind.ray:
        settings.check()
        foreign: AbstractContextManager[Executor] = load_entry_point("executors", "executor.kind", settings.kind)(
            settings
        )
        return foreign
    try:
        with changed_environment(QUIET_RAY_ENV):
            from energon_pack.run.executors.ray import RayExecutor
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise PackError("executor=ray needs Ray: pip install 'energon-pack[ray]'") from None
    return RayExecutor(settings)
