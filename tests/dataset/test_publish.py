"""Checks before a dataset is written, and before it appears."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from energon_pack.dataset import in_folder
from energon_pack.dataset.in_folder import DatasetInFolder
from energon_pack.errors import PackError, sized


def test_little_room_is_said_in_units_that_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said that the shards took 0.0 GB, and 0.0 GB were free."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=8e6))
    (tmp_path / "packed-000000.tar").write_bytes(bytes(1_000_000))
    with pytest.raises(PackError, match=r"the shards take about 13\.1 MB, and 8\.0 MB are free beside"):
        DatasetInFolder(tmp_path / "packed").begin(tmp_path, "identity", 14_060_000, overwrite=False)
    assert [sized(number) for number in (12, 3_400, 2.5e9)] == ["12 bytes", "3.4 kB", "2.5 GB"]


def test_a_run_whose_folder_is_gone_does_not_move_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It moved it to `None.old`; stopped there, it left what the next run took for replaced, and removed."""
    final = tmp_path / "NAME"
    (final / ".nv-meta").mkdir(parents=True)
    (final / ".nv-meta/energon_pack.json").touch()
    rename, inode = os.rename, in_folder._inode
    run = DatasetInFolder(final)

    def stop_at_the_dataset(source: Path, target: Path) -> None:
        assert source != final
        rename(source, target)

    with run.staging("a") as staging:
        monkeypatch.setattr(in_folder, "_inode", lambda path: None if path == staging else inode(path))
        monkeypatch.setattr(os, "rename", stop_at_the_dataset)
        with pytest.raises(PackError, match="another run is writing"):
            run.publish(staging, "a", overwrite=True)
