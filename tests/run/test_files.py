"""A file that is trusted later is whole."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from energon_pack.run.files import make_once, one_of_machine, write_whole
from support.running import ROOT


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "f", b"old")

    def fail(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_whole(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-1], lambda data: b"x" + data[1:], None])
def test_a_folder_that_was_damaged_is_made_again(tmp_path: Path, damage: Callable[[bytes], bytes] | None) -> None:
    """Whichever of its files was cut, changed or lost; one that is whole is left alone."""

    def make(folder: Path) -> None:
        (folder / "in").mkdir()
        (folder / "in" / "a").write_bytes(b"content")
        (folder / "b").write_bytes(b"more")

    folder = tmp_path / "made"
    make_once(folder, make)
    content = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    assert len(content) == 3
    for path, data in content.items():
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage(data))
        make_once(folder, make)
        assert {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()} == content
    make_once(folder, lambda _: pytest.fail("it is whole"))
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_the_folder_of_a_faster_run_stays(tmp_path: Path) -> None:
    """It works with it: two jobs of a sweep made the demo at once, and one of them said that its source had changed."""
    folder, inodes = tmp_path / "made", []

    def make(made: Path) -> None:
        (made / "file").write_text("same")

    def slowly(made: Path) -> None:
        make_once(folder, make)
        inodes.append((folder / "file").stat().st_ino)
        make(made)

    make_once(folder, slowly)
    assert inodes == [(folder / "file").stat().st_ino]


def test_one_process_of_a_machine_works_and_others_wait(tmp_path: Path) -> None:
    """Else eight ranks measure the same; with a barrier, those that are let in one after another wait for ever."""
    script = (
        "import sys, time; from pathlib import Path; from energon_pack.run.files import one_of_machine\n"
        "with one_of_machine(Path(sys.argv[1])): print('in', flush=True); time.sleep(600)"
    )
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=variables
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "in\n"
        entered = threading.Event()

        def enter() -> None:
            with one_of_machine(tmp_path):
                entered.set()

        waiting = threading.Thread(target=enter, daemon=True)
        waiting.start()
        assert not entered.wait(0.3)
        with one_of_machine(tmp_path / "other"):
            pass
        holder.kill()
        assert entered.wait(60)
