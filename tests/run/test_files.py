"""A file that is trusted later is whole."""

import fcntl
import gc
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from energon_pack.errors import PackError
from energon_pack.run.bounded_memory import LruCache, Scratch, split_into_blocks
from energon_pack.run.executors import JobFolder
from energon_pack.run.executors.admission import enter_and_check_machine, terms_with_mark_files
from energon_pack.run.files import is_intact, make_folder_atomically, user_temporary_folder, write_atomically
from energon_pack.run.workshop import one_process_at_a_time
from support.running import ROOT


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "f", b"old")

    def fail(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_atomically(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-1], lambda data: b"x" + data[1:], None])
def test_a_folder_that_was_damaged_is_made_again(tmp_path: Path, damage: Callable[[bytes], bytes] | None) -> None:
    """Whichever of its files was cut, changed or lost; one that is whole is left alone."""

    def make(folder: Path) -> None:
        with make_folder_atomically(folder) as new:
            (new / "in").mkdir()
            (new / "in" / "a").write_bytes(b"content")
            (new / "b").write_bytes(b"more")

    folder = tmp_path / "made"
    make(folder)
    content = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    assert len(content) == 3
    for path, data in content.items():
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage(data))
        assert not is_intact(folder)
        make(folder)
        assert {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()} == content
    assert is_intact(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_the_folder_of_a_faster_run_stays(tmp_path: Path) -> None:
    """It works with it: two jobs of a sweep made the demo at once, and one of them said that its source had changed."""
    folder = tmp_path / "made"
    with make_folder_atomically(folder) as slow:
        with make_folder_atomically(folder) as fast:
            (fast / "file").write_text("same")
        inode = (folder / "file").stat().st_ino
        (slow / "file").write_text("same")
    assert (folder / "file").stat().st_ino == inode


def test_a_lock_follows_no_link_and_empties_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name can be foretold: in a folder that all may write, another user's link had a file of the user emptied."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    precious, folder = tmp_path / "precious", tmp_path / f"energon_pack-{os.getuid()}"
    precious.write_text("precious")
    with one_process_at_a_time(tmp_path):
        (lock,) = (path for path in folder.rglob("*") if path.is_file())
        held = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, lock.parent, lock)}
    assert list(held.values()) == [0o700, 0o700, 0o600]
    lock.unlink()
    lock.symlink_to(precious)
    with pytest.raises(OSError, match="symbolic link"), one_process_at_a_time(tmp_path):
        pass
    shutil.rmtree(folder)
    (tmp_path / "theirs").mkdir()
    folder.symlink_to(tmp_path / "theirs")
    with pytest.raises(PackError, match="set TMPDIR to a folder of your own"), one_process_at_a_time(tmp_path):
        pass
    assert precious.read_text() == "precious"
    assert not list((tmp_path / "theirs").iterdir())


def test_a_folder_that_was_open_to_others_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier versions left it to the umask; and one of another user is not used."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"energon_pack-{os.getuid()}").mkdir(0o755)
    assert stat.S_IMODE(user_temporary_folder("blocks").parent.stat().st_mode) == 0o700
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    (tmp_path / "energon_pack-4321").mkdir()
    with pytest.raises(PackError, match="belongs to another user"):
        user_temporary_folder("blocks")


def test_one_process_of_a_machine_works_and_others_wait(tmp_path: Path) -> None:
    """Otherwise eight ranks measure the same; with a barrier, ranks admitted one after another would wait for ever."""
    script = (
        "import sys, time; from pathlib import Path; from energon_pack.run.workshop import one_process_at_a_time\n"
        "with one_process_at_a_time(Path(sys.argv[1])): print('in', flush=True); time.sleep(600)"
    )
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=variables
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "in\n"
        entered = threading.Event()

        def enter() -> None:
            with one_process_at_a_time(tmp_path):
                entered.set()

        waiting = threading.Thread(target=enter, daemon=True)
        waiting.start()
        assert not entered.wait(0.3)
        with one_process_at_a_time(tmp_path / "other"):
            pass
        holder.kill()
        assert entered.wait(60)


def test_a_process_that_was_forked_meanwhile_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of a loader has its parent's lock, too: others waited for the worker's end, which may wait for them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with one_process_at_a_time(tmp_path):
        (path,) = user_temporary_folder("locks").iterdir()
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
    try:
        with open(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_what_was_not_used_for_the_longest_time_goes() -> None:
    closed: list[str] = []
    recent: LruCache[int, str] = LruCache(4, len, closed.append)
    recent.put(1, "aa")
    recent.put(2, "bb")
    assert recent.get(1) == "aa"
    assert recent.put(3, "c") == "c"  # 1 was used since
    assert (recent.get(2), closed) == (None, ["bb"])
    recent.put(1, "new")  # in place of another
    assert (closed, len(recent)) == (["bb", "aa"], 2)
    recent.put(4, "larger than all")
    assert (recent.get(4), len(recent)) == ("larger than all", 1)
    recent.clear()
    assert (len(recent), closed) == (0, ["bb", "aa", "c", "new", "larger than all"])
    assert recent.put(5, "d") == "d"


def test_without_sizes_each_counts_one() -> None:
    recent: LruCache[int, list[int]] = LruCache(2)
    for number in range(5):
        recent.put(number, [number])
    assert [recent.get(number) for number in range(5)] == [None, None, None, [3], [4]]


@pytest.mark.parametrize("folder", [None, Path("not/there/yet")])
def test_a_column_is_what_was_added(tmp_path: Path, folder: Path | None) -> None:
    column = Scratch(folder and tmp_path / folder).column(np.int32)
    for values in (np.arange(3), np.zeros(0, np.int64), np.array([-1])):
        column.add(values)
    found = column.array()
    assert found.tolist() == [0, 1, 2, -1]
    assert found.dtype == np.int32
    assert type(found) is np.ndarray


@pytest.mark.parametrize("on_disk", [False, True])
def test_an_array_of_zeros_can_be_written_to(tmp_path: Path, on_disk: bool) -> None:
    found = Scratch(tmp_path if on_disk else None).zeros(5, np.int64)
    found[np.array([4, 1])] = 7, 3
    assert found.tolist() == [0, 3, 0, 0, 7]


def test_arrays_may_be_empty(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    assert len(scratch.column(np.int8).array()) == len(scratch.zeros(0, np.int8)) == 0


def test_no_file_is_left_even_of_an_array_that_is_at_work(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    unfinished, column = scratch.column(np.int64), scratch.column(np.int64)
    unfinished.add(np.arange(5))
    column.add(np.arange(1000))
    found = column.array()
    assert [*tmp_path.iterdir()] == []
    del unfinished, column
    gc.collect()  # a file that was left open would be a warning here
    assert found.sum() == 499_500


def test_blocks_are_all_of_it_and_small_where_each_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_pack.run.bounded_memory.BLOCK_NUMBERS", 10)
    assert [*split_into_blocks(25)] == [slice(0, 10), slice(10, 20), slice(20, 25)]
    assert [*split_into_blocks(5, numbers_per_item=4.0)] == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert len([*split_into_blocks(3, numbers_per_item=99.0)]) == 3
    assert [*split_into_blocks(0)] == []


def test_a_folder_is_seen_by_the_file_that_lies_in_it_meanwhile(tmp_path: Path) -> None:
    with terms_with_mark_files([JobFolder("output.dir", tmp_path, True)]) as terms:
        assert enter_and_check_machine(terms) is None
        assert len(os.listdir(tmp_path)) == 1
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_is_removed_after_a_month(tmp_path: Path) -> None:
    """And nothing of a run that may be at work: its other machines would not find the folder."""
    for name, time in (("old", 1), ("new", None)):
        (tmp_path / f".seen-by-all-{name}").touch()
        if time is not None:
            os.utime(tmp_path / f".seen-by-all-{name}", (time, time))
    with terms_with_mark_files([JobFolder("output.dir", tmp_path, True)]):
        pass
    assert os.listdir(tmp_path) == [".seen-by-all-new"]
