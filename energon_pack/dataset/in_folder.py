"""A dataset in a folder of a file system: written to a staging folder, and renamed at the end.

    <output.dir>/.staging/NAME/               of one user: no other can write into it
                 .staging/NAME/lock           exclusive: plan or publish; shared: write shards
                 .staging/NAME/<identity>.<run>/        the shards of a run, and all other files of its dataset
                 .staging/NAME/<identity>.<run>.parts/  files that are not whole yet
                 .staging/NAME/<inode>.old/             the old dataset, replaced by the folder with this inode
                 .staging/NAME/<any>.gone/              a folder that is being removed

A run takes over, or removes, another run's folder by renaming it first. If the other run still works in it, it finds
nothing there, and ends. So a run that lost its lock (on a file system without locks) may lose its own work, but never
a dataset that another run published.
"""

import errno
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from energon_pack.dataset import staging_files
from energon_pack.dataset.destination import PlanMissing, concurrent_run_error
from energon_pack.dataset.files import PAGE
from energon_pack.dataset.ledger import ledger_path_of_unpublished, page_path_of_unpublished
from energon_pack.dataset.manifest import MANIFEST
from energon_pack.dataset.shards import ShardJob, WrittenShard, unfinished_files_folder, write_shard
from energon_pack.errors import PackError, format_bytes
from energon_pack.run.address import only_local_paths
from energon_pack.run.files import META_FOLDER, sync_file_system
from energon_pack.run.stores.requests import StoreError
from energon_pack.samples.flavors.base import Flavor
from energon_pack.sources.find import Source

_LOCK_FILE, _OLD_SUFFIX = "lock", ".old"
_NAME_TAKEN_ERRORS = {errno.ENOTEMPTY, errno.EEXIST}  # errors of a rename to a name that exists
_NO_LOCK_ERRORS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}  # errors of cluster file systems without locks


class FolderDestination:
    """A dataset that a run makes in a staging folder, and that appears in its own folder at the end, complete.

    Args:
        final: the dataset's folder; if it goes to an object store, a local folder. Pages and ledgers of runs that
            publish nothing lie beside it.
    """

    #: its shards are written to an object store
    is_stored = False

    def __init__(self, final: Path):
        self.final = final
        #: the dataset as the user named it: a folder, or an address
        self.place = str(final)
        #: the job that writes a shard
        self.write_shard: Callable[[ShardJob], WrittenShard] = write_shard
        self._folder = final.parent / ".staging" / final.name
        self._replaced_inode: int | None = None  # the inode of the dataset that was there when the run began

    def refuse_source_inside_dataset(self, source: Source) -> None:
        """Raise PackError if the source lies in the dataset: a run must not read its own output."""
        media = {Path(root).resolve() for root in only_local_paths(source.media_places)}
        final = self.final.resolve()
        if around := next((path for path in sorted(source.parent_folders | media) if path.is_relative_to(final)), None):
            raise PackError(f"the source {around} lies in {self.final}: choose another output.dir or output.name")

    def refuse_unwritable(self) -> None:
        """Raise PackError if the folder can't be written, before hours of measuring."""
        staging_files.refuse_unwritable_folder("output.dir", self.final.parent)

    def is_free(self) -> bool:
        """Say whether the dataset's place is empty, so that a run overwrites nothing."""
        return not self.final.exists() or (self.final.is_dir() and not any(self.final.iterdir()))

    def has_file(self, name: str) -> bool:
        return (self.final / name).exists()

    def refuse_existing(self, overwrite: bool) -> None:
        """Raise PackError unless the dataset's place is empty, or `overwrite` is set and a packed dataset is there."""
        if self.is_free():
            return
        if not overwrite:
            raise PackError(
                f"{self.place} exists; output.overwrite=true replaces it, output.name=NAME writes beside it"
            )
        if not self.has_file(f"{META_FOLDER}/{MANIFEST}"):
            raise PackError(
                f"{self.place} is not a packed dataset, output.overwrite does not replace it: choose another name"
            )

    @contextmanager
    def open_staging(self, identity: str, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
        """Open the staging folder for this run alone, with the finished shards of an earlier run of the same identity.

        The folder is removed once the dataset is published, or if it holds nothing useful. After a kill or an error it
        stays for the next run of the same command.

        Args:
            identity: a hash of everything that the bytes of the shards depend on.
            check: called while the run has the lock; raises an error if a plan in the folder must not be removed.
        """
        with self._alone():
            check()
            with self._take_over_staging(identity) as staging:
                yield staging

    def remove_leftovers_of_killed_runs(self, identity: str) -> None:
        """Remove what runs of this identity left beside their published dataset, if they were killed before the end.

        What another run has there stays, and if one is at work, everything does.
        """
        if not self._folder.exists():
            return
        with suppress(PackError, OSError), self._alone():
            self._restore_old()
            for path in (*self._folder.glob(f"{identity}.*"), *self._folder.glob(f"*{staging_files.GONE_SUFFIX}")):
                staging_files.remove_folder(path)
            self._remove_ledger_and_page()
            if os.listdir(self._folder) == [_LOCK_FILE]:
                (self._folder / _LOCK_FILE).unlink()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep all other runs out of the folder, and remove it if nothing is left in it."""
        try:
            with self._locked(fcntl.LOCK_EX):
                yield
        finally:
            for folder in (self._folder, self._folder.parent):
                with suppress(OSError):  # it is not empty
                    folder.rmdir()

    @contextmanager
    def _take_over_staging(self, identity: str) -> Iterator[Path]:
        staging = self._folder / f"{identity}.{uuid.uuid4().hex[:8]}"
        try:
            self._restore_old()
            for earlier in sorted(self._folder.glob(f"{identity}.*")):
                if _identity_of(earlier) == identity and not staging.exists():
                    with suppress(FileNotFoundError):  # another run was faster
                        os.rename(earlier, staging)
            if _identity_of(staging) != identity:  # no run left one, or it was about to be published
                staging_files.remove_folder(staging)
            staging_files.remove_all_but_shards(staging, identity)
            for path in self._folder.iterdir():
                if path.name not in (staging.name, _LOCK_FILE) and path.suffix != _OLD_SUFFIX:
                    staging_files.remove_folder(path)
            self._replaced_inode = _inode(self.final)
            yield staging
        except FileNotFoundError:
            if staging.exists():
                raise
            raise concurrent_run_error(
                self.place
            ) from None  # another run took it over or removed it: the lock was lost
        finally:
            if not (any(staging.glob("*.tar.idx")) or (staging / staging_files.JOBS_FOLDER).exists()):
                staging_files.remove_folder(staging)
            staging_files.remove_folder(unfinished_files_folder(staging))
            if not staging.exists():
                (self._folder / _LOCK_FILE).unlink(missing_ok=True)

    def find_plan_folder(self) -> Path | None:
        """Return the staging folder in which `stage=plan` left a whole plan; None if there is none."""
        plans = (
            about.parents[1] for about in self._folder.glob(f"*/{staging_files.JOBS_FOLDER}/{staging_files.ABOUT_FILE}")
        )
        return next((staging for staging in plans if _identity_of(staging) == staging.stem), None)

    @contextmanager
    def open_plan_folder(self) -> Iterator[Path]:
        """Yield `find_plan_folder` to write shards into it, by several processes at once. Raises PlanMissing."""
        missing = PlanMissing(f"no plan for {self.place}: stage=plan with the same settings makes it")
        if self.find_plan_folder() is None:
            raise missing
        with self._locked(fcntl.LOCK_SH):
            if (staging := self.find_plan_folder()) is None:
                raise missing
            yield staging

    def begin_writing(self, staging: Path, identity: str, num_bytes: int, overwrite: bool) -> None:
        """Prepare to write about `num_bytes` of shards (0: not known); PackError: the disk has less room."""
        num_written = sum(path.stat().st_size for path in staging.glob("*.tar"))
        free = shutil.disk_usage(staging).free
        if num_bytes - num_written > free:
            raise PackError(
                f"output.dir: the shards take about {format_bytes(num_bytes - num_written)},"
                f" and {format_bytes(free)} are free beside {staging}: nothing is written"
            )

    def has_shard(self, job: ShardJob) -> bool:
        """Say whether a process of the same run has finished this shard; the shard is not read."""
        return staging_files.is_shard_done(job.path, job.identity)

    def prepare_for_check(self, staging: Path, shards: Sequence[WrittenShard], flavor: Flavor) -> Path | str:
        """Make the dataset readable for Energon before it is published; return its path or address there."""
        return staging

    def mark_shards_unusable(self, staging: Path, identity: str) -> None:
        """Mark all finished shards as unusable, so that the next run writes them anew."""
        for index in staging.glob("*.tar.idx"):
            index.unlink()

    @contextmanager
    def discard_shards_on_error(self, staging: Path, identity: str) -> Iterator[None]:
        """Discard the shards if the `with` block raises an error, other than a StoreError: then they are not wrong."""
        try:
            yield
        except StoreError:
            raise
        except Exception:
            self.mark_shards_unusable(staging, identity)
            raise

    def publish(self, staging: Path, identity: str, overwrite: bool) -> None:
        """Sync the staging folder to disk, and rename it to the dataset; PackError: another run did so meanwhile."""
        self.refuse_existing(overwrite)
        try:
            sync_file_system(staging)  # may take long: after a kill the next run continues from these shards
        except OSError:
            (staging / staging_files.IDENTITY_FILE).unlink()  # no shard can be trusted
            raise
        inode = _inode(staging)
        if inode is None or _identity_of(staging) != identity:
            raise concurrent_run_error(self.place)
        staging_files.remove_run_files(staging)
        old = self._folder / f"{inode}{_OLD_SUFFIX}"
        self._move_old_away(old)
        try:
            os.rename(staging, self.final)
        except OSError as error:
            self._restore_old()
            if error.errno not in (*_NAME_TAKEN_ERRORS, errno.ENOENT):
                raise
            raise concurrent_run_error(self.place) from None
        staging_files.remove_folder(old)
        self._remove_ledger_and_page()

    def _remove_ledger_and_page(self) -> None:
        """Remove the ledger and the page of a run that published nothing."""
        for path in (ledger_path_of_unpublished(self.final), page_path_of_unpublished(self.final, PAGE)):
            path.unlink(missing_ok=True)

    def _move_old_away(self, old: Path) -> None:
        """Move the old dataset to the path `old`; PackError: another run has replaced it since this run began."""
        inode = _inode(self.final)
        if inode is None:
            return
        if inode == self._replaced_inode:
            with suppress(FileNotFoundError):
                os.rename(self.final, old)
            if _inode(old) in (inode, None):
                return
            self._restore_old()
        raise concurrent_run_error(self.place)

    def _restore_old(self) -> None:
        """Move datasets that `_move_old_away` moved back, if no new dataset took their place; else remove them."""
        moved = [*self._folder.glob(f"*{_OLD_SUFFIX}")]
        published = {str(_inode(path)) for path in (self.final, *moved)}
        for old in moved:
            try:
                if old.stem not in published:
                    os.rename(old, self.final)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in _NAME_TAKEN_ERRORS:
                    raise
            staging_files.remove_folder(old)

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        path = self._folder / _LOCK_FILE
        while True:
            try:
                self._folder.mkdir(0o700, parents=True, exist_ok=True)
                self._refuse_other_users()
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            except FileNotFoundError:  # its last owner removed the folder
                continue
            try:
                try:
                    fcntl.flock(lock, how | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise concurrent_run_error(self.place) from None
                except OSError as error:
                    if error.errno not in _NO_LOCK_ERRORS:
                        raise
                if _inode(path) == os.fstat(lock).st_ino:  # otherwise its last owner removed it meanwhile
                    yield
                    return
            finally:
                with suppress(OSError):  # the file system has no locks
                    fcntl.flock(lock, fcntl.LOCK_UN)  # a process forked meanwhile would keep it
                os.close(lock)

    def _refuse_other_users(self) -> None:
        """Raise PackError if another user can write into the folder: a plan or shards in it may be that user's.

        It is compared with a file of this process, because a file system may know no modes, or call root nobody.
        """
        folder = self._folder.stat()
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                own_file = os.fstat(file.fileno())
        except PermissionError:
            own_file = None
        if own_file is None or folder.st_uid != own_file.st_uid or folder.st_mode & ~own_file.st_mode & 0o022:
            raise PackError(
                f"{self._folder} is of another user, or others can write into it: output.name=NAME writes elsewhere;"
                " if all in it is yours, remove it, or chmod 700 it to go on from it"
            )


def _identity_of(staging: Path) -> str | None:
    try:
        return (staging / staging_files.IDENTITY_FILE).read_text()
    except FileNotFoundError:
        return None


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
