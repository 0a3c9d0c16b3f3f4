"""Two runs with one output, a step at a time, in every order: no published dataset is lost or spoilt.

The code of `in_folder.py` and `in_store.py` runs as it is; what a step is, is said by the two worlds. A
stop for ever at any step is an order, too. Without this a run that was stopped and goes on, or a lock that a file
system does not have, could destroy what the next run published.
"""

import fcntl
import os
import threading
import uuid
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import md5
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from energon_pack.dataset import in_folder, in_store
from energon_pack.dataset.in_folder import FolderDestination
from energon_pack.dataset.in_store import StoreDestination
from energon_pack.dataset.shards import WrittenPacks
from energon_pack.dataset.tar_writer import size_of_finished_tar
from energon_pack.errors import PackError
from energon_pack.run import stores
from energon_pack.run.stores.requests import SizeAndVersion, StoreClient
from support.interleaved import Stepper, World, every_order

STEPPER = Stepper()
_DATASET = ".nv-meta/dataset.yaml"
_META = (".nv-meta/energon_pack.json", _DATASET)


@dataclass(frozen=True)
class Wish:
    """The task of one of the runs."""

    identity: str
    overwrite: bool = False
    fails: bool = False  # its check finds the shards wrong


#: The two runs, and whose dataset is there before; "": nobody's.
Case = tuple[Wish, Wish, str]
CASES: dict[str, Case] = {
    "same": (Wish("a"), Wish("a"), ""),
    "same, one fails": (Wish("a"), Wish("a", fails=True), ""),
    "other": (Wish("a"), Wish("b"), ""),
    "other, one fails": (Wish("a"), Wish("b", fails=True), ""),
    "other, one overwrites": (Wish("a"), Wish("b", overwrite=True), ""),
    "other, one overwrites and fails": (Wish("a"), Wish("b", overwrite=True, fails=True), ""),
    "both overwrite": (Wish("a", overwrite=True), Wish("b", overwrite=True), "o"),
    "both overwrite with the same": (Wish("a", overwrite=True), Wish("a", overwrite=True), "o"),
}


def shard_names(identity: str) -> list[str]:
    """One has a shard more: nothing of it may be left where the other is published."""
    return ["0.tar", "1.tar"] if identity == "a" else ["0.tar"]


def refuse_spoilt(files: dict[str, str]) -> None:
    """A dataset that can be seen is whole, and of one run."""
    if _DATASET in files:
        identity = files[_DATASET]
        shards = shard_names(identity)
        assert files == dict.fromkeys([*shards, *(f"{name}.idx" for name in shards), *_META], identity)


def refuse_long_stories(errors: Sequence[BaseException | None]) -> None:
    """A run that does not publish says why in one line."""
    for error in errors:
        assert error is None or (isinstance(error, PackError) and "\n" not in str(error)), repr(error)


def is_published(errors: Sequence[BaseException | None], is_over: Sequence[bool]) -> bool:
    """Whether some run ended well."""
    return any(over and error is None for error, over in zip(errors, is_over, strict=True))


def run(destination: FolderDestination, wish: Wish, write: Callable[[Path], None]) -> None:
    """Do the part of `pack` that comes after the plan."""
    destination.refuse_existing(wish.overwrite)
    with destination.open_staging(wish.identity) as staging:
        destination.begin_writing(staging, wish.identity, 0, wish.overwrite)
        write(staging)
        with destination.discard_shards_on_error(staging, wish.identity):
            if wish.fails:
                raise PackError("wrong")
        destination.publish(staging, wish.identity, wish.overwrite)


# ------------------------------------------------------------------------------------------------------- a folder


class Folder(World):
    """A folder without locks. Steps are changes, listings, and reads of a folder's owner."""

    stepper = STEPPER

    def __init__(self, folder: Path, case: Case):
        self._final, self._wishes, self._before = folder / "NAME", case[:2], case[2]
        folder.mkdir()
        LABELS.clear()
        if self._before:
            self._write(self._final, self._before)

    def _write(self, folder: Path, identity: str) -> None:
        _mkdir(folder / ".nv-meta", parents=True)
        for name in (*(f"{shard}{end}" for shard in shard_names(identity) for end in ("", ".idx")), *_META):
            if name in ("0.tar.idx", _DATASET):
                self.stepper.step()
            (folder / name).write_text(identity)

    def bodies(self) -> list[Callable[[], None]]:
        def body(wish: Wish) -> None:
            run(FolderDestination(self._final), wish, lambda staging: self._write(staging, wish.identity))

        return [lambda wish=wish: body(wish) for wish in self._wishes]  # type: ignore[misc]

    def state(self) -> Hashable:
        return frozenset(self._tree(str(self._final.parent), ""))

    def _tree(self, folder: str, name: str) -> Iterator[tuple[str, str]]:
        with _scandir(folder) as entries:
            for entry in entries:
                number, end = os.path.splitext(entry.name)
                its = f"{name}/{LABELS.get(int(number), number) if end == '.old' else number}{end}"
                is_folder = entry.is_dir(follow_symlinks=False)
                yield its, LABELS.get(entry.inode(), "") if is_folder and entry.name != ".nv-meta" else ""
                if is_folder:
                    yield from self._tree(entry.path, its)

    def judge(self, errors: list[BaseException | None], is_over: list[bool]) -> None:
        refuse_long_stories(errors)
        with FolderDestination(self._final).open_staging("next"):
            found = {
                path.relative_to(self._final).as_posix(): path.read_text()
                for path in self._final.rglob("*")
                if path.is_file()
            }
        refuse_spoilt(found)
        if self._before or is_published(errors, is_over):
            assert _DATASET in found
        if not any(wish.overwrite for wish in self._wishes):
            assert not all(is_over) or errors != [None, None]  # without a lock, each may remove the other's work


_scandir = os.scandir


def _mkdir(path: Path, parents: bool = False) -> None:
    """Make a folder as a run does inside its own folder; this is no step."""
    if parents and not path.parent.exists():
        os.mkdir(path.parent)
    with suppress(FileExistsError):
        _os_mkdir(path)


_os_mkdir = os.mkdir
#: Of each folder, by its inode, who made it: the same in every world, which inodes are not.
LABELS: dict[int, str] = {}


@pytest.fixture
def no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks, where each change and each look is a step."""

    def no_flock(*_: object) -> None:
        raise OSError(38, "no locks")

    monkeypatch.setattr(fcntl, "flock", no_flock)
    monkeypatch.setattr(in_folder, "sync_file_system", lambda _: None)
    monkeypatch.setattr(uuid, "uuid4", lambda: SimpleNamespace(hex=STEPPER.name()))
    for module, name in (
        *((os, name) for name in ("rename", "unlink", "mkdir", "rmdir", "listdir", "scandir")),
        *((in_folder, name) for name in ("_inode", "_identity_of")),
    ):
        monkeypatch.setattr(module, name, _stepping(getattr(module, name)))


def _stepping(function: Callable[..., Any]) -> Callable[..., Any]:
    def step(*args: Any, **kwargs: Any) -> Any:
        if not _is_out_of_reach(function.__name__, args, kwargs):
            STEPPER.step()
        try:
            result = function(*args, **kwargs)
        except OSError as error:
            STEPPER.saw(error.errno)
            raise
        if function.__name__ == "mkdir":
            LABELS[os.stat(args[0]).st_ino] = STEPPER.name()
        STEPPER.saw(LABELS.get(result, "") if isinstance(result, int) else str(result or ""))
        return result

    return step


def _is_out_of_reach(function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it is in a folder that is being removed, or a list of the files of one run."""
    if function in ("listdir", "scandir"):
        return not str(args[0]).endswith(".staging/NAME")
    if (folder := kwargs.get("dir_fd")) is not None:
        return ".gone" in os.readlink(f"/proc/self/fd/{folder}")
    return ".gone" in str(args[0])


# -------------------------------------------------------------------------------------------------------- a store


class Store(StoreClient):
    """Objects with versions, as S3 has them: a write may hang on the version that is there, or on there being none.

    Each request is a step, but for one that directly follows a look at the marker: what this leaves is said in
    `marker.py`.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.last: dict[int, str] = {}  # the last request of each thread

    def _begin(self, request: str, *after: str) -> None:
        here = threading.get_ident()
        if self.last.get(here) not in after:
            STEPPER.step()
        self.last[here] = request

    def _data(self, key: str) -> bytes:
        if key not in self.objects:
            STEPPER.saw("nothing")
            raise FileNotFoundError(key)
        STEPPER.saw(self.objects[key])
        return self.objects[key]

    def find(self, key: str) -> SizeAndVersion:
        self._begin("look" if key.endswith("/identity") else "find")
        data = self._data(key)
        return SizeAndVersion(len(data), md5(data).hexdigest())

    def read(self, key: str, start: int, end: int) -> tuple[memoryview, str | None]:
        self._begin("look" if key.endswith("/identity") else "read", "look", "find")  # one look
        data = self._data(key)
        return memoryview(data[start:end]), md5(data).hexdigest()

    def list_recursively(self, prefix: str) -> Iterator[tuple[str, SizeAndVersion]]:
        self._begin("list")
        names = sorted(key for key in self.objects if key.startswith(prefix))
        STEPPER.saw(tuple(names))
        yield from ((key, SizeAndVersion(len(self.objects[key]), "")) for key in names)

    def names(self, prefix: str) -> Iterator[str]:
        raise NotImplementedError

    def put(self, key: str, data: bytes) -> None:
        self._begin("put", "look")
        self.objects[key] = data

    def put_if(self, key: str, data: bytes, version: str | None) -> bool:
        self._begin("put if")
        now = self.objects.get(key)
        is_put = (None if now is None else md5(now).hexdigest()) == version
        if is_put:
            self.objects[key] = data
        STEPPER.saw(is_put)
        return is_put

    def put_file(self, key: str, path: Path) -> None:
        self.put(key, path.read_bytes())

    def delete(self, keys: Sequence[str]) -> None:
        self._begin("delete", "look")
        for key in keys:
            self.objects.pop(key, None)


class Stored(World):
    """A prefix of a bucket, and a machine for each run."""

    stepper = STEPPER

    def __init__(self, folder: Path, case: Case, store: Store):
        self._folder, self._wishes, self._before, self._store = folder, case[:2], case[2], store
        store.objects.clear()
        store.last.clear()
        if self._before:
            for name in (*(f"{shard}{end}" for shard in shard_names("o") for end in ("", ".idx")), *_META):
                store.objects[f"out/NAME/{name}"] = self._before.encode()

    def bodies(self) -> list[Callable[[], None]]:
        def body(number: int, wish: Wish) -> None:
            destination = StoreDestination("s3://bucket/out/NAME", self._folder / str(number) / "NAME")
            run(destination, wish, lambda staging: self._write(destination, wish.identity, staging))

        return [partial(body, number, wish) for number, wish in enumerate(self._wishes)]

    def _write(self, destination: StoreDestination, identity: str, staging: Path) -> None:
        for name in shard_names(identity):
            job: Any = SimpleNamespace(path=staging / name, plan=identity, row_group=0, identity=None)
            destination.write_shard(job)
        (staging / ".nv-meta").mkdir()
        for name in _META:
            (staging / name).write_text(identity)

    def state(self) -> Hashable:
        return frozenset(self._store.objects.items())

    def judge(self, errors: list[BaseException | None], is_over: list[bool]) -> None:
        refuse_long_stories(errors)
        files = {name: data for name, data in self._store.objects.items() if name.startswith("out/NAME/")}
        found = {name.removeprefix("out/NAME/"): data.decode("latin-1").rstrip("\0") for name, data in files.items()}
        for name in [name for name in found if name.endswith(".idx") and len(found[name]) > 1]:
            found[name] = found[name.removesuffix(".idx")]  # a real index, the same for all
        refuse_spoilt(found)
        overwrites = any(wish.overwrite for wish in self._wishes)
        if (is_published(errors, is_over) or self._before) and not overwrites:
            assert _DATASET in found
        if all(is_over) and not any(wish.fails for wish in self._wishes):
            assert _DATASET in found
            assert overwrites or errors.count(None) == 1
            assert is_published(errors, is_over)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """In the place of S3; shards are a few bytes that say whose they are."""

    def write_packs(tar: Any, job: Any, table: Any) -> WrittenPacks:
        os.write(tar.fileno, job.plan.encode().ljust(size_of_finished_tar(512), b"\0"))
        return WrittenPacks(np.array([0, 512], dtype="<u8").tobytes(), b"sums")

    one_pack = SimpleNamespace(read_row_group=lambda _: pa.table({"pack": ["a"]}))
    made = Store()
    monkeypatch.setattr(stores, "client_of_profile", lambda _: made)
    monkeypatch.setattr(in_store, "pq", SimpleNamespace(ParquetFile=lambda _: one_pack))
    monkeypatch.setattr(in_store, "TarWriter", lambda fileno: SimpleNamespace(fileno=fileno))
    monkeypatch.setattr(in_store, "write_packs", write_packs)
    monkeypatch.setattr(in_store, "shard_figures", lambda *_, was_there: None)
    monkeypatch.setattr(uuid, "uuid4", lambda: SimpleNamespace(hex=STEPPER.name()))
    return made


# ------------------------------------------------------------------------------------------------------- all orders


def cases(*quick: str) -> list[Any]:
    """Each case with one change of turns where it is quick, and with two."""
    slow = [pytest.param(name, 2, marks=pytest.mark.slow) for name in CASES]
    return [*((name, 1) for name in quick), *slow]


@pytest.mark.parametrize(("case", "most_switches"), cases("both overwrite"))
@pytest.mark.usefixtures("no_lock")
def test_two_runs_in_a_folder_lose_and_spoil_nothing(case: str, most_switches: int, tmp_path: Path) -> None:
    """Not even where the file system has no locks."""
    numbers = count()
    assert every_order(lambda: Folder(tmp_path / str(next(numbers)), CASES[case]), most_switches) > 50


@pytest.mark.parametrize(("case", "most_switches"), cases("same, one fails", "other, one overwrites and fails"))
def test_two_runs_in_a_store_lose_and_spoil_nothing(
    case: str, most_switches: int, tmp_path: Path, store: Store
) -> None:
    """A run whose check failed deleted the shards of the dataset that another had published meanwhile."""
    numbers = count()
    assert every_order(lambda: Stored(tmp_path / str(next(numbers)), CASES[case], store), most_switches) > 50
