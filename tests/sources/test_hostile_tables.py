"""Tables that lie, break off or expand: each costs its rows, by name, and no text is wrong."""

import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from energon_pack.errors import PackError
from energon_pack.sources.open_tables import _kept_rows
from support.read_source import read

ASKED = {"question": ["q0", "q1", "q2"], "answer": ["a0", "a1", "a2"]}


def write_arrow(path: Path, columns: dict[str, Any], rows: int | None = None) -> Path:
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def buffer(numbers: list[int], form: type = np.int32) -> pa.Buffer:
    return pa.py_buffer(np.array(numbers, form).tobytes())


def strings(offsets: list[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.string(), 3, [None, buffer(offsets), pa.py_buffer(b"abcdefgh")])


WORDS = pa.dictionary(pa.int32(), pa.string())
WILD: list[tuple[Callable[[], pa.Array], str]] = [
    (lambda: strings([0, -5, 3, 4]), "non-monotonic offset"),
    (lambda: strings([0, 5, 2, 4]), "non-monotonic offset"),
    (
        lambda: pa.DictionaryArray.from_buffers(WORDS, 3, [None, buffer([0, 1, 70_000_000])], pa.array(["a", "b"])),
        "out of bounds",
    ),
    (
        lambda: pa.Array.from_buffers(pa.string(), 3, [None, buffer([0, 1, 2, 3]), pa.py_buffer(b"a\xff\xfe")]),
        "Invalid UTF8",
    ),
    (
        lambda: pa.Array.from_buffers(
            pa.string_view(), 3, [None, pa.py_buffer(struct.pack("<iiii", 100, 0, 7, 1 << 30) * 3)]
        ),
        "references buffer 7",
    ),
]


@pytest.mark.parametrize(("wild", "said"), WILD)
def test_an_arrow_batch_that_points_outside_of_itself_costs_its_rows(
    wild: Callable[[], pa.Array], said: str, tmp_path: Path
) -> None:
    """Values that were not validated are read from anywhere in memory, or end the process."""
    path = write_arrow(tmp_path / "a.arrow", {"question": wild(), "answer": ASKED["answer"]})
    found = read(path)
    assert len(found) == 3
    assert all(str(why).startswith("invalid_json: row ") and said in str(why) for why in found.values())


@pytest.mark.parametrize("end", ["csv", "tsv", "arrow", "parquet"])
def test_a_table_that_is_cut_anywhere_is_refused_or_has_whole_rows(end: str, tmp_path: Path) -> None:
    """In a CSV the last cell stands in quotes: without them, half a text is as whole as all of it."""
    path = tmp_path / f"a.{end}"
    if end == "arrow":
        write_arrow(path, ASKED, rows=1)
    elif end == "parquet":
        pq.write_table(pa.table(ASKED), path, row_group_size=1)
    else:
        mark = "," if end == "csv" else "\t"
        rows = [("question", "answer"), *zip(*ASKED.values(), strict=True)]
        path.write_bytes("".join(f'"{ask}"{mark}"{answer}"\r\n' for ask, answer in rows).encode())
    data, whole = path.read_bytes(), read(path)
    assert [*whole.values()] == [([f"q{n}", f"a{n}"], []) for n in range(3)]
    for size in range(0, len(data), 1 + len(data) // 100):
        path.write_bytes(data[:size])
        found = {}
        with suppress(PackError):
            found = read(path)
        for key, sample in found.items():
            assert isinstance(sample, str) or sample == whole[key], size


def test_a_value_that_python_can_not_hold_costs_its_row_alone(tmp_path: Path) -> None:
    """A time in the year 36,000 ended the run, and rows before it are read together with it."""
    seconds = pa.array([0] * 18 + [1 << 60, 0], pa.timestamp("us"))
    columns = {"question": ["q"] * 20, "answer": ["a"] * 20, "at": seconds}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    write_arrow(tmp_path / "a.arrow", columns)
    for path in (tmp_path / "a.parquet", tmp_path / "a.arrow"):
        _kept_rows.clear()
        (bad,) = (key for key, sample in read(path).items() if isinstance(sample, str))
        assert bad == "18"


def test_a_header_of_many_columns(tmp_path: Path) -> None:
    """Each name was looked for in all: 100,000 columns took minutes."""
    names, cells = ",".join(f"c{n}" for n in range(30_000)), "1," * 30_000
    (tmp_path / "a.csv").write_text(f"{names},question,answer\n{cells}q,a\n")
    assert [*read(tmp_path / "a.csv").values()] == [(["q", "a"], [])]


@pytest.mark.parametrize("cell", ["[" * 100_000, "[" * 1_000 + "]" * 1_000, "{'a':" * 5_000, "[" + "9" * 9_999 + "]"])
def test_a_cell_of_turns_that_is_nested_without_end_costs_its_row(cell: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f'messages\n"{cell}"\n')
    (why,) = read(tmp_path / "a.csv").values()
    assert isinstance(why, str)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'question,answer\nq,a\n"q,a\n' + b"q,a\n" * 9_000, "record 1 has a quote without an end"),
        (b"question,answer\nq,a\nq,a\0\n", "NUL bytes in place of text"),
    ],
)
def test_damage_of_a_csv_is_named(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(data)
    with pytest.raises(PackError, match=said):
        read(path)
