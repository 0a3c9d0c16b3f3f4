"""The rows of pack_plan.parquet: one for each member, in the order of writing.

Some columns are for people who query the file, the others are read by this package.
"""

from dataclasses import dataclass

import pyarrow as pa

from energon_pack.lengths.schema import LENGTHS_SCHEMA
from energon_pack.samples.cut import EXPANDED_TYPE, TEXT_TYPE, split_id
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
#: the schema with the column that names the tar of a pack
WRITTEN_SCHEMA = PLAN_SCHEMA.append(pa.field("output_shard", pa.string()))
#: columns that only a plan with `packing.share` has
_SHARED = ("shared_len", "num_shared_images", "num_shared_videos", "num_shared_visual_tokens")
SHARED_SCHEMA = pa.schema([(name, pa.int32()) for name in _SHARED])
#: the column that only a plan of samples with sounds has
SOUNDS_SCHEMA = pa.schema([LENGTHS_SCHEMA.field("num_audio_tokens")])
#: columns that a plan may have, or not
OPTIONAL = (*SHARED_SCHEMA.names, *SOUNDS_SCHEMA.names)
#: other types that a column may have instead of its type in `PLAN_SCHEMA`
OTHER_TYPES = {"cut": (EXPANDED_TYPE, TEXT_TYPE)}


@dataclass(slots=True)
class PlanRow(MeasuredRow):
    """One sample of a pack: a row of `PLAN_SCHEMA`."""

    pack: str
    shard: str
    shared_len: int = 0  # how many of its first tokens it shares with the member before it
    num_shared_images: int = 0  # how many of its first images are in these tokens; the next likewise for videos
    num_shared_videos: int = 0
    num_shared_visual_tokens: int = 0
    num_audio_tokens: int = 0  # that hold features of sounds; 0, too, in a plan that does not tell them

    @property
    def num_shared_media(self) -> int:
        """Return how many of its first media it shares with the member before it."""
        return self.num_shared_images + self.num_shared_videos

    @property
    def sample(self) -> str:
        """Return `<shard>/<key>` for a sample of a tar, `<file>:<line>` for one of a JSONL file."""
        mark = JsonlShard.mark if self.record_part == LINE else TarShard.mark
        return f"{self.shard}{mark}{self.key}"

    @property
    def sample_id(self) -> str:
        """Return `sample`, with the number of a part; a whole sample whose name looks like a part's gets `#1of1`."""
        part = self.cut.part if self.cut else "1of1" if split_id(self.sample)[1] else None
        return f"{self.sample}#{part}" if part else self.sample
