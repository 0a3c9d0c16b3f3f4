"""The columns of the table of lengths, which has a row for each measured sample."""

import pyarrow as pa

from energon_pack.samples.cut import CUT_TYPE
from energon_pack.samples.flavors.fit import FIT_RULES
from energon_pack.sources import wds

_PART_TYPE = pa.list_(
    pa.struct(
        [
            ("name", pa.large_string()),
            ("offset", pa.int64()),
            ("size", pa.int64()),
            ("kind", pa.string()),  # one of `media.kinds.KINDS`
            ("extension", pa.string()),  # the extension of the content
        ]
    )
)
_FILES_TYPE = pa.list_(pa.struct([("name", pa.large_string()), ("size", pa.int64()), ("version", pa.string())]))
_DOES_NOT_FIT_TYPE = pa.struct([(name, pa.large_string()) for name in FIT_RULES])
LENGTHS_SCHEMA = pa.schema(
    [
        ("key", pa.large_string()),
        ("record_part", pa.string()),
        ("record_offset", pa.int64()),
        ("record_size", pa.int64()),
        ("parts", _PART_TYPE),  # the media, in the order of their placeholders
        ("positions", wds.PART_TYPE),  # in its tar: the .npy files of its images, and a txt beside its JSON
        ("files", _FILES_TYPE),  # its files beside the shard, to notice changes; null: it can have none
        ("media_type", pa.string()),
        ("token_len", pa.int32()),
        ("num_supervised", pa.int32()),
        ("num_visual_tokens", pa.int32()),
        ("num_images", pa.int32()),
        ("num_audio_tokens", pa.int32()),
        ("num_audios", pa.int32()),
        ("clip_frames", pa.int32()),  # frames of each of its clips, if only such clips share a batch; else 0
        ("num_bytes", pa.int64()),  # bytes of its JSON and media as members of a tar
        ("num_control_tokens", pa.int32()),
        ("placeholders_put_in", pa.bool_()),
        ("placeholders_as_text", pa.list_(pa.string())),  # kinds that its questions ask for and it lacks; null: none
        ("assistant_first", pa.bool_()),  # no question stands before the first answer
        ("does_not_fit", _DOES_NOT_FIT_TYPE),  # what each rule of `fit.FIT_RULES` has no place for; null: nothing
        ("num_weighted", pa.int32()),  # trained tokens whose weight in the loss is not 1
        ("tools_left_out", pa.bool_()),  # the chat template leaves its tools out
        ("unknown_keys", pa.list_(pa.string())),  # unknown keys of its JSON (`samples.keys.unknown_keys`); null: none
        ("image_modes", pa.list_(pa.string())),  # modes of its images with more than 8 bits a channel; null: none
        ("reasoning_left_out", pa.bool_()),  # the chat template leaves out thoughts of its earlier answers
        ("words_left_out", pa.bool_()),  # the chat template leaves out other words of it
        ("nulls_dropped", pa.bool_()),  # nulls of a table were taken out of its calls and tools
        ("num_empty_answers", pa.int32()),  # answers that say nothing, beside others: they are not trained
        ("checksum", pa.uint32()),  # hash of its JSON and the ends of its media: `reader.checksum`
        ("kept", pa.uint64()),  # where its tokens are kept (`kept_tokens`); 0: they are not
        ("reason", pa.string()),  # null: it was measured
        ("detail", pa.large_string()),
        ("cut", CUT_TYPE),  # null: a whole sample
    ]
)
_BEGINNINGS_TYPE = pa.list_(
    pa.struct(
        [
            ("high", pa.uint64()),
            ("low", pa.uint64()),
            ("token_len", pa.int32()),
            ("num_images", pa.int32()),
            ("num_videos", pa.int32()),
            ("num_visual_tokens", pa.int32()),
            ("may_fork", pa.bool_()),
            ("ends_medium", pa.bool_()),
        ]
    )
)
#: Lengths that are measured for `packing.share` have two more columns.
SHARED_SCHEMA = LENGTHS_SCHEMA.append(
    pa.field("beginnings", _BEGINNINGS_TYPE)  # beginnings of the sample, ascending (`templates.beginnings`); null: none
).append(pa.field("first_medium", pa.uint64()))  # hash of the first medium's bytes; null: a sample without media
#: Lengths that are measured for `source.missing_media=remove` have one more: pictures whose places were removed.
REMOVED_FIELD = pa.field("num_removed", pa.int32())
