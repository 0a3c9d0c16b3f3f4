"""The rows of pack_plan.parquet: one a member, in the order of writing.

What is written for whoever asks the file, and what this package reads of it.
"""

from dataclasses import dataclass

import pyarrow as pa

from energon_pack.lengths.schema import LENGTHS_SCHEMA
from energon_pack.samples.cut import split_id
from energon_pack.sources.jsonl.index import LINE
from energon_pack.sources.rows import MeasuredRow
from energon_pack.sources.shard import JsonlShard, TarShard

COLUMNS = (
    "key", "media_type", "token_len", "num_supervised", "num_visual_tokens", "record_part", "record_offset",
    "record_size", "parts", "positions", "cut",
)  # fmt: skip
PLAN_SCHEMA = pa.schema(
    [("pack", pa.string()), ("shard", pa.string()), *(LENGTHS_SCHEMA.field(name) for name in COLUMNS)]
)
#: with what joins a row to the tar that its pack is in
WRITTEN_SCHEMA = PLAN_SCHEMA.append(pa.field("output_shard", pa.string()))


@dataclass(slots=True)
class PlanRow(MeasuredRow):
    """One sample of a pack: a row of `PLAN_SCHEMA`."""

    pack: str
    shard: str

    @property
    def sample(self) -> str:
        """`<shard>/<key>` in a tar, `<file>:<line>` in a JSONL file."""
        mark = JsonlShard.mark if self.record_part == LINE else TarShard.mark
        return f"{self.shard}{mark}{self.key}"

    @property
    def sample_id(self) -> str:
        """As `sample`, of a part with its number; a whole one that is called like a part is `#1of1` of its name."""
        part = self.cut.part if self.cut else "1of1" if split_id(self.sample)[1] else None
        return f"{self.sample}#{part}" if part else self.sample
