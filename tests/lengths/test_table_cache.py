"""Tables that are kept: what was written last is found, in few files, and what was damaged is missing again."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.lengths import table_cache
from energon_pack.lengths.table_cache import Piece, RowRun, TableCache, chunks_of_pieces


def table(*values: int) -> pa.Table:
    return pa.table({"x": pa.array(values, pa.int64())})


def found(cache: TableCache, key: str, num_rows: int) -> list[int | None]:
    """Return the rows of a key, None for each missing row."""
    pieces, missing = cache.find(key, num_rows)
    values: list[int | None] = [
        value for chunk in chunks_of_pieces([(0, pieces)]) for value in chunk.read()["x"].to_pylist()
    ]
    for row in missing.tolist():
        values.insert(row, None)
    return values


def test_what_is_forgotten_stays_forgotten(tmp_path: Path) -> None:
    cache = TableCache(tmp_path)
    cache.add(table(1, 2), [RowRun("a", 0, 1, {"note": "x"}), RowRun("b", 0, 1)])
    cache.forget(["a"])
    for there in (cache, TableCache(tmp_path)):
        assert (found(there, "a", 1), there.note("a"), found(there, "b", 1)) == ([None], None, [2])
    cache.add(table(3), [RowRun("a", 0, 1)])
    cache.flush()
    assert found(TableCache(tmp_path), "a", 1) == [3]


_WRITES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(0, 4), st.booleans()), max_size=8)


@given(_WRITES, st.integers(1, 4))
def test_what_was_written_last_is_found(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[str, int, int, bool]], max_rows: int
) -> None:
    """Otherwise a sample could get another sample's length, or its length from before its image changed."""
    folder = tmp_path_factory.mktemp("cache")
    cache = TableCache(folder)
    wanted: dict[str, list[int | None]] = {key: [None] * 10 for key in "ab"}
    for number, (key, start, size, ends_run) in enumerate(writes):
        wanted[key][start : start + size] = [number] * size
        cache.add(table(*[number] * size), [RowRun(key, start, size)])
        cache.flush()
        if ends_run:
            cache = TableCache(folder)
    cache = TableCache(folder)
    assert {key: found(cache, key, 10) for key in "ab"} == wanted
    pieces = [(number, cache.find(key, 10)[0]) for number, key in enumerate("ab")]
    chunks = list(chunks_of_pieces(pieces, max_rows))
    assert all(chunk.num_rows <= max_rows or len(chunk.pieces) == 1 for chunk in chunks)
    rows = [
        (number, value)
        for chunk in chunks
        for number, value in zip(chunk.owners_of_rows.tolist(), chunk.read()["x"].to_pylist(), strict=True)
    ]
    assert rows == [(n, value) for n, key in enumerate("ab") for value in wanted[key] if value is not None]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99, None])
def test_a_damaged_file_is_as_if_it_were_not_there(tmp_path: Path, share: float | None) -> None:
    """Cut at any place, or with one byte that changed."""
    cache = TableCache(tmp_path)
    cache.add(table(1), [RowRun("a", 0, 1)])
    cache.flush()
    [path] = tmp_path.iterdir()
    cache.add(table(2), [RowRun("b", 0, 1)])
    cache.flush()
    data = path.read_bytes()
    for place in range(0, len(data), 37) if share is None else [0]:
        flipped = bytes([*data[:place], data[place] ^ 1, *data[place + 1 :]])
        path.write_bytes(flipped if share is None else data[: int(len(data) * share)])
        there = TableCache(tmp_path)
        assert (found(there, "a", 1), found(there, "b", 1)) == ([None], [2])
        assert not path.exists()


def test_a_file_is_read_once_for_all_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading each of a hundred thousand keys by itself took minutes."""
    cache = TableCache(tmp_path)
    cache.add(table(*range(1000)), [RowRun(str(key), 0, 1) for key in range(1000)])
    cache.flush()
    reads: list[str] = []
    read = table_cache._read

    def spy(path: str, columns: Sequence[str] | None) -> pa.Table:
        reads.append(path)
        return read(path, columns)

    monkeypatch.setattr(table_cache, "_read", spy)
    order = [*range(999, -1, -2), *range(0, 1000, 2)]
    [chunk] = chunks_of_pieces((key, cache.find(str(key), 1)[0]) for key in order)
    assert chunk.read()["x"].to_pylist() == chunk.owners_of_rows.tolist() == order
    assert len(reads) == 1


def test_a_large_table_is_kept_when_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that wait in memory are lost by a kill, so they must stay few."""
    monkeypatch.setattr(table_cache, "_FILE_ROWS", 3)
    cache = TableCache(tmp_path)
    cache.add(table(1, 2), [RowRun("a", 0, 2)])
    assert not list(tmp_path.iterdir())
    cache.add(table(3), [RowRun("a", 2, 1)])
    assert cache.find("a", 3)[0] == [
        Piece(str(path), first, size) for path in tmp_path.iterdir() for first, size in ((0, 2), (2, 1))
    ]
