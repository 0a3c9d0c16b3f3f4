"""Bytes of the packed shards: what tarfile would write, what Energon would index, always the same."""

import os
import shutil
import tarfile
from pathlib import Path
from types import SimpleNamespace
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.dataset import in_folder
from energon_pack.dataset.in_folder import FolderDestination
from energon_pack.dataset.tar_writer import TarWriter, tar_header
from energon_pack.errors import PackError, format_bytes
from energon_pack.sources.storage import open_file
from support.samples import write_tar


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=120), st.integers(0, 2**35))
def test_headers_are_tarfiles(name: str, size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size = size
    fits = len(name.encode()) <= 100 and size < 8 * 2**30
    assert tar_header(name, size) == info.tobuf(tarfile.USTAR_FORMAT if fits else tarfile.PAX_FORMAT)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 100_000, 3_000_000])
def test_a_tar_is_what_tarfile_writes(tmp_path: Path, size: int) -> None:
    """Members from memory and from a file, on both sides of the size of the buffer; what is copied has its checksum."""
    data = os.urandom(size)
    (tmp_path / "source").write_bytes(b"offset" + data)
    with open_file(tmp_path / "source") as source, open(tmp_path / "ours.tar", "wb", buffering=0) as file:
        tar = TarWriter(file.fileno())
        tar.add("a.json", b"{}")
        tar.copy("a.jpg", source, 6, size)
        tar.add("b.json", data)
        tar.finish()
    assert tar.checksums == [crc32(data)]
    write_tar(tmp_path / "theirs.tar", {"a.json": b"{}", "a.jpg": data, "b.json": data}, format=tarfile.USTAR_FORMAT)
    assert (tmp_path / "ours.tar").read_bytes() == (tmp_path / "theirs.tar").read_bytes()


@pytest.mark.parametrize("size", [100, 3_000_000])
def test_a_source_that_ends_early_is_noticed(tmp_path: Path, size: int) -> None:
    (tmp_path / "source").write_bytes(b"x" * (size - 1))
    with open_file(tmp_path / "source") as source, open(tmp_path / "x.tar", "wb", buffering=0) as file:
        tar = TarWriter(file.fileno())
        with pytest.raises(PackError, match="ends early"):
            tar.copy("a", source, 0, size)


# Checks before a dataset is written, and before it appears.


def test_little_room_is_said_in_units_that_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said that the shards took 0.0 GB, and 0.0 GB were free."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=8e6))
    (tmp_path / "packed-000000.tar").write_bytes(bytes(1_000_000))
    with pytest.raises(PackError, match=r"the shards take about 13\.1 MB, and 8\.0 MB are free beside"):
        FolderDestination(tmp_path / "packed").begin_writing(tmp_path, "identity", 14_060_000, overwrite=False)
    assert [format_bytes(number) for number in (12, 3_400, 2.5e9)] == ["12 bytes", "3.4 kB", "2.5 GB"]


def test_a_run_whose_folder_is_gone_does_not_move_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It moved it to `None.old`; stopped there, it left what the next run took for replaced, and removed."""
    final = tmp_path / "NAME"
    (final / ".nv-meta").mkdir(parents=True)
    (final / ".nv-meta/energon_pack.json").touch()
    rename, inode = os.rename, in_folder._inode
    run = FolderDestination(final)

    def stop_at_the_dataset(source: Path, target: Path) -> None:
        assert source != final
        rename(source, target)

    with run.open_staging("a") as staging:
        monkeypatch.setattr(in_folder, "_inode", lambda path: None if path == staging else inode(path))
        monkeypatch.setattr(os, "rename", stop_at_the_dataset)
        with pytest.raises(PackError, match="another run is writing"):
            run.publish(staging, "a", overwrite=True)


def test_a_half_written_mark_is_not_published(tmp_path: Path) -> None:
    """A worker that is killed between writing and renaming leaves it, and the dataset held it for ever."""
    run = FolderDestination(tmp_path / "NAME")
    with run.open_staging("a") as staging:
        for name in ("packed-000000.tar", "packed-000000.tar.done", "packed-000000.tar.done.4f2a.tmp"):
            (staging / name).touch()
        run.publish(staging, "a", overwrite=False)
    assert [path.name for path in (tmp_path / "NAME").iterdir()] == ["packed-000000.tar"]
