"""What is neither a tar nor JSONL is named as what it is."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from energon_pack.errors import PackError
from energon_pack.pack import pack
from support.packed import Make


@pytest.mark.parametrize("num_rows", [1, 10_000], ids=["shorter than a header", "longer"])
def test_parquet_is_no_damaged_tar(config: Make, tmp_path: Path, num_rows: int) -> None:
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table({"a": list(range(num_rows))}), path)
    with pytest.raises(PackError, match=r"train\.parquet is not a tar file but Parquet: .*conversations\.md"):
        pack(config(path))
