"""The columns of a packed dataset's plan, pack_plan.parquet."""

import pyarrow as pa

from energon_pack.lengths.schema import LENGTHS_SCHEMA
from energon_pack.samples.cut import EXPANDED_CUT_TYPE, TEXT_CUT_TYPE

MEASURED_COLUMNS = (
    "key", "media_type", "token_len", "num_supervised", "num_visual_tokens", "record_part", "record_offset",
    "record_size", "parts", "positions", "cut",
)  # fmt: skip
PLAN_SCHEMA = pa.schema(
    [("pack", pa.string()), ("shard", pa.string()), *(LENGTHS_SCHEMA.field(name) for name in MEASURED_COLUMNS)]
)
#: the schema with the column that names the tar of a pack
WRITTEN_SCHEMA = PLAN_SCHEMA.append(pa.field("output_shard", pa.string()))
#: columns that only a plan with `packing.share` has
_SHARED_COLUMNS = ("shared_len", "num_shared_images", "num_shared_videos", "num_shared_visual_tokens")
SHARED_SCHEMA = pa.schema([(name, pa.int32()) for name in _SHARED_COLUMNS])
#: the column that only a plan of samples with sounds has
SOUNDS_SCHEMA = pa.schema([LENGTHS_SCHEMA.field("num_audio_tokens")])
#: columns that a plan may have, or not
OPTIONAL_COLUMNS = (*SHARED_SCHEMA.names, *SOUNDS_SCHEMA.names)
#: other types that a column may have instead of its type in `PLAN_SCHEMA`
ALTERNATIVE_TYPES = {"cut": (EXPANDED_CUT_TYPE, TEXT_CUT_TYPE)}
