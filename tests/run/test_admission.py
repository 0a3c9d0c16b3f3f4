"""A run asks other machines whether they see its folders, and leaves nothing there."""

import os
from pathlib import Path

from energon_pack.run.executors import Folder
from energon_pack.run.executors.admission import terms_of, why_unfit


def test_a_folder_is_seen_by_the_file_that_lies_in_it_meanwhile(tmp_path: Path) -> None:
    with terms_of([Folder("output.dir", tmp_path, True)]) as terms:
        assert why_unfit(terms) is None
        assert len(os.listdir(tmp_path)) == 1
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_is_removed_after_a_month(tmp_path: Path) -> None:
    """And nothing of a run that may be at work: its other machines would not find the folder."""
    for name, time in (("old", 1), ("new", None)):
        (tmp_path / f".seen-by-all-{name}").touch()
        if time is not None:
            os.utime(tmp_path / f".seen-by-all-{name}", (time, time))
    with terms_of([Folder("output.dir", tmp_path, True)]):
        pass
    assert os.listdir(tmp_path) == [".seen-by-all-new"]
