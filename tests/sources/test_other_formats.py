"""Files that are neither tars nor JSONL are refused with the name of their format."""

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.sources.settings import Format
from support.finding import find_lines, find_shards
from support.packed import Make
from support.running import ROOT


@pytest.mark.parametrize("num_rows", [1, 10_000], ids=["shorter than a header", "longer"])
def test_parquet_is_no_damaged_tar(config: Make, tmp_path: Path, num_rows: int) -> None:
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table({"a": list(range(num_rows))}), path)
    with pytest.raises(PackError, match=r"train\.parquet is .*Parquet: source=table reads it"):
        pack(config(path, source__format=Format.wds))


@pytest.mark.parametrize("find", [find_shards, find_lines])
def test_a_folder_of_parquet_says_so(tmp_path: Path, find: Callable[[str], object]) -> None:
    """The message was `no *.tar there`, without the files that are there or a remedy."""
    pq.write_table(pa.table({"a": [1]}), tmp_path / "train.parquet")
    with pytest.raises(PackError, match=r"no \*\.(tar|jsonl) there but Parquet: source=table reads it"):
        find(str(tmp_path))


def test_no_message_names_a_page_that_a_wheel_lacks() -> None:
    """A user of a wheel has no docs/: what a message tells it has to tell itself."""
    package = [path for path in (ROOT / "energon_pack").rglob("*.py") if "shipped" not in path.parts]
    texts = {path.name: path.read_text() for path in (*package, *(ROOT / "conf").rglob("*.yaml"))}
    assert [name for name, text in texts.items() if re.search(r"docs/[\w/]*\.md", text)] == []
