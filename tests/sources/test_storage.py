"""Whatever holds the bytes of a source: they are packed the same, by their places alone."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from energon_pack.config import Format, PackConfig
from energon_pack.pack import pack
from energon_pack.samples.bytes import Range, as_file
from energon_pack.sources import storage
from energon_pack.sources.storage import File, InMemory, State, open_file, state_of
from support.packed import files
from support.samples import chat, picture, write_tar

Make = Callable[..., PackConfig]


class Remote(File):
    """A file that gives only its state and the bytes at a place."""

    def __init__(self, fd: int, state: State):
        super().__init__(state)
        self._file = os.fdopen(fd, "rb")

    def read(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(size)

    def close(self) -> None:
        self._file.close()


def write_source(folder: Path, source: Format) -> Path:
    large = picture(700, 800) + bytes(5 << 20) + b"\xff\xd9"  # larger than what is copied through the buffer
    if source is Format.wds:
        members = {"a.json": chat("<image>?", "yes"), "a.jpg": large, "b.json": chat("what?", "no")}
        return write_tar(folder / "x.tar", {**members, "c.json": chat("<image>?", "c"), "c.png": picture(format="PNG")})
    (folder / "large.jpg").write_bytes(large)
    (folder / "small.png").write_bytes(picture(format="PNG"))
    texts = ("<image>?", "<image>!", "<image>.")
    names = ("large.jpg", "small.png", "large.jpg")
    samples = [{"image": name, **json.loads(chat(text, "yes"))} for name, text in zip(names, texts, strict=True)]
    if source is Format.table:
        rows = [{**sample, "image": (folder / sample["image"]).read_bytes()} for sample in samples]
        pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet", row_group_size=2)
        pq.write_table(pa.Table.from_pylist(rows), folder / "b.parquet", compression="zstd")
        return folder
    (folder / "array.json").write_text(json.dumps(samples))
    (folder / "lines.jsonl").write_text("".join(f"{json.dumps(sample)}\n" for sample in samples))
    return folder


@pytest.mark.parametrize("source", [Format.auto, Format.wds, Format.jsonl, Format.table])
def test_a_storage_that_only_reads_by_place_packs_the_same_bytes(
    config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Format
) -> None:
    """A file as over a network: without a descriptor, so nothing is mapped and the kernel copies nothing."""
    (tmp_path / "in").mkdir()
    path = write_source(tmp_path / "in", source)
    paths = [str(path)] if source in (Format.wds, Format.table) else [str(path), str(path / "array.json")]
    packed = []
    for name in ("local", "remote"):
        if name == "remote":
            monkeypatch.setattr(storage, "LocalFile", Remote)
        run = config(paths, source__format=source, output__name=name, cache_dir=str(tmp_path / name))
        figures = pack(run)
        assert figures["samples_in"] == figures["samples_packed"] == (3 if source is Format.wds else 6)
        written = files(tmp_path / "out" / name)
        packed.append({name: data for name, data in written.items() if not name.startswith("report")})
    assert packed[0] == packed[1]


def test_a_range_ends_where_its_part_ends() -> None:
    part = Range(InMemory(b"before, here, after", ""), 8, 4)
    assert (part.size, part.read(0, 100), part.read(2, 1), part.read(4, 1), part.read(9, 1)) == (
        4,
        b"here",
        b"r",
        b"",
        b"",
    )
    stream = as_file(part, 3)
    assert (stream.read(), stream.seek(1), stream.read(2)) == (b"here", 1, b"er")


def test_a_version_is_another_once_a_file_was_written_to(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"one")
    before = state_of(str(path))
    with open_file(path) as file:
        assert before == (file.size, file.version)
    os.utime(path, ns=(0, 1))
    assert state_of(str(path)) != before
    assert state_of(str(tmp_path)) is None


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "", "gone"):
        with pytest.raises(FileNotFoundError):
            open_file(tmp_path / name)
