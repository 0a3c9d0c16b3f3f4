"""Lists the keys of a record: those that are read, harmless ones, and those that mean something in another tool. Pure.

`_READ` has the keys that are read, `_HARMLESS` those that change nothing that is trained, each with its meaning.
`_ELSEWHERE` has keys that change what another tool trains and that this package can't follow: such a key costs the
sample, unless its value has no effect. Every other key is unknown: the report lists it with a sample that has it.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from energon_pack.samples.dialects.pairs import without_sides
from energon_pack.samples.media.kinds import KINDS, MEDIA_KEYS, PART_TYPES
from energon_pack.samples.media.medium import RATE_KEYS, SETTING_KEYS
from energon_pack.samples.options import OPTION_KEYS
from energon_pack.samples.preference import LABELS, PREFERENCE_KEYS
from energon_pack.samples.sample import MESSAGE_KEYS, REASONING_KEYS
from energon_pack.samples.skip import Reason, Skip, one_value
from energon_pack.samples.weights import TURN_WEIGHT_KEYS

_LONGEST = 60  # most characters of an unknown key
_NEAR = 0.8  # likeness of two spellings of a key, as difflib measures it


class _Elsewhere(NamedTuple):
    """A key by which other tools change what is trained, and which this package does not support."""

    meaning: str
    silent: tuple[Any, ...] = (None, False, "", [], {})  # values without effect
    reason: Reason = Reason.BAD_MESSAGE


#: levels of a record (sample, turn, content part), with the prefix of their unknown keys
_PLACES = ("", "messages[].", "content[].")

_READ: tuple[frozenset[str], ...] = (
    frozenset(
        (
            *MESSAGE_KEYS,
            *("prompts", "captions", "caption", "question", "context", "answer"),
            *("answers", "text", "system", "system_prompt", "tools", "functions"),
            *("name", "media_files", "media", "media_type"),
            *MEDIA_KEYS,
            *("fps", *RATE_KEYS, "timestamp_decimal", "patch_positions", "video_frames", "objects"),
            *OPTION_KEYS,
            *(PREFERENCE_KEYS - {"chosen", "rejected", *LABELS}),  # these are read if they make preference data
        )
    ),
    frozenset(
        (
            *("role", "from", "content", "value", "name"),
            *("reasoning", "thinking", "reasoning_content", "tool_calls", "function_call", "tool_call_id", "tool_plan"),
            *TURN_WEIGHT_KEYS,
        )
    ),
    frozenset(
        (
            *("type", "text", "value", "thinking", *PART_TYPES, "path", "url", "source"),
            *("name", "id", "input", "tool_call", "tool_use_id", "content"),
            *SETTING_KEYS,
        )
    ),
)

_HARMLESS: tuple[Mapping[str, str], ...] = (
    {
        **dict.fromkeys(("id", "uuid", "uid", "idx", "index", "key", "__key__", "sample_id", "prompt_id"), "a name"),
        **dict.fromkeys(("question_id", "image_id", "video_id", "conversation_id", "file_name"), "a name"),
        **dict.fromkeys(("source", "dataset", "dataset_name", "data_source", "origin", "url", "link"), "an origin"),
        **dict.fromkeys(("license", "copyright", "author", "authors"), "whose it is"),
        **dict.fromkeys(("metadata", "meta", "extra", "extra_info", "info", "tags", "_meta"), "remarks"),
        **dict.fromkeys(("category", "task", "task_type", "type", "domain", "subject", "topic", "subset"), "a kind"),
        **dict.fromkeys(("split", "fold", "version", "created", "created_at", "timestamp", "date"), "a state"),
        **dict.fromkeys(("lang", "language", "languages", "difficulty", "level"), "a kind"),
        **dict.fromkeys(("score", "rating", "quality", "score_chosen", "score_rejected"), "a mark"),
        **dict.fromkeys(("width", "height", "num_tokens", "num_turns", "length", "token_count"), "a size"),
        **dict.fromkeys(
            ("status", "error_message", "original_width", "original_height", "exif"), "img2dataset: a download"
        ),
        **dict.fromkeys(("sha256", "md5", "NSFW", "LICENSE", "similarity", "punsafe", "pwatermark"), "LAION: an image"),
        **dict.fromkeys(("hash", "aesthetic", "watermark_score", "face_bboxes"), "LAION, DataComp: an image"),
        **dict.fromkeys(("clip_b32_similarity_score", "clip_l14_similarity_score"), "DataComp: an image"),
        **dict.fromkeys(("channel",), "ms-swift: the group in which the loss is logged"),
        **dict.fromkeys(("solution", "ground_truth", "reward_model", "ability", "verifier"), "for rewards"),
        **dict.fromkeys(("prompt", "completion", "instruction", "input", "output"), "the conversation in another form"),
        **dict.fromkeys(("query", "response", "history"), "the conversation in another form"),
        **dict.fromkeys(("model", "temperature", "top_p", "max_tokens", "seed", "stop", "n", "user"), "of a request"),
        **dict.fromkeys(("tool_choice", "parallel_tool_calls", "response_format", "function_call"), "of a request"),
    },
    {
        **dict.fromkeys(("id", "uuid", "index"), "a name"),
        **dict.fromkeys(("timestamp", "time", "created_at", "metadata", "source", "model", "annotations"), "remarks"),
        **dict.fromkeys(("usage", "finish_reason", "stop_reason", "end_turn"), "of a response"),
        **dict.fromkeys(("score", "rating", "lang", "language"), "a mark"),
    },
    {
        **dict.fromkeys(("cache_control", "citations", "index"), "of a request"),
        **dict.fromkeys(("detail",), "OpenAI: for its own models"),
        **dict.fromkeys(("is_error", "signature"), "Anthropic: beside the text"),
    },
)

#: keys that say the same thing, at each level; the first is read
_ALIKE: tuple[tuple[tuple[str, ...], ...], ...] = (
    (*(medium.keys for medium in KINDS.values()), ("tools", "functions"), ("system", "system_prompt")),
    (("content", "value"), REASONING_KEYS),
    (("text", "value"),),
)
_PAIRED = tuple(frozenset(key for keys in alike for key in keys) for alike in _ALIKE)

_IN_A_TURN = _Elsewhere("media of a turn: content parts say where they stand", reason=Reason.UNSUPPORTED_MEDIA)
_CHARACTERS = _Elsewhere("axolotl: characters that are trained; a turn is trained whole")
_TOKENIZED = _Elsewhere("TRL: a sample that is tokens already")
_ELSEWHERE: tuple[Mapping[str, _Elsewhere], ...] = (
    {
        "margin": _Elsewhere("ms-swift, TRL: of preference data"),
        "positive_messages": _Elsewhere("ms-swift: of embedding data"),
        "negative_messages": _Elsewhere("ms-swift: of embedding data"),
        "mm_processor_kwargs": _Elsewhere("ms-swift: settings of media, which stand in content parts here"),
        "input_ids": _TOKENIZED,
        "completion_mask": _TOKENIZED,
        "assistant_masks": _TOKENIZED,
        "segments": _Elsewhere("axolotl: the conversation in another form"),
    },
    {
        "train_detail": _CHARACTERS,
        "training_detail": _CHARACTERS,
        "message_field_training_detail": _CHARACTERS,
        "eot": _Elsewhere("torchtune: a turn without its end", silent=(None, True)),
        "ipython": _Elsewhere("torchtune: a tool call as text"),
        "refusal": _Elsewhere("OpenAI: the answer itself, which belongs in content"),
        **dict.fromkeys(MEDIA_KEYS, _IN_A_TURN),
    },
    {
        "train": _Elsewhere("axolotl: which parts of a turn are trained; a turn is trained whole", silent=(None, True)),
        "weight": _Elsewhere("axolotl: which parts of a turn are trained; a turn is trained whole", silent=(None, 1)),
        "loss_scale": _Elsewhere("ms-swift: which parts of a turn are trained; a turn is trained whole", (None, 1)),
        "token_ids": _Elsewhere("ms-swift: a part that is tokens already"),
    },
)
_KNOWN = tuple(read.union(harmless) for read, harmless in zip(_READ, _HARMLESS, strict=True))


@lru_cache(4096)
def meant(unknown: str) -> str | None:
    """Return the key that is spelled most like an unknown one (`image` for `imgae`); None: no key is spelled alike."""
    place = max(number for number, prefix in enumerate(_PLACES) if unknown.startswith(prefix))
    known = sorted(_READ[place].union(MEDIA_KEYS))
    return next(iter(difflib.get_close_matches(unknown.removeprefix(_PLACES[place]).lower(), known, 1, _NEAR)), None)


def hint(unknown: str) -> str:
    """Return `: did you mean image?`, the end of a message about an unknown key; empty: no key is spelled alike."""
    near = meant(unknown)
    return f": did you mean {near}?" if near and not unknown.endswith(near) else ""


def is_of_media(key: str) -> bool:
    """Tell whether a key, of a sample or a content part, names media."""
    return key in MEDIA_KEYS or key in PART_TYPES


def is_known(key: str) -> bool:
    """Tell whether a key at a sample's top level is read, or harmless."""
    return key in _KNOWN[0]


def said_once(value: dict[str, Any], place: int = 0) -> dict[str, Any]:
    """Return a sample with one key for each meaning: of two such as `tools` and `functions`, only one is kept.

    Args:
        value: a sample (level 0), a turn (1) or a content part (2).

    Raises:
        Skip: `bad_message`: two keys of one meaning have different values.
    """
    if len(_PAIRED[place].intersection(value)) < 2:
        return value
    for keys in _ALIKE[place]:
        one_value(value, keys, _PLACES[place])
        spare = [key for key in keys if value.get(key)][1:]
        value = {key: item for key, item in value.items() if key not in spare}
    return value


def unknown_keys(value: Mapping[str, Any], conversation: Sequence[str]) -> dict[str, list[Any]]:
    """Find the unknown keys of a sample, of its turns (`messages[].mood`) and of content parts (`content[].mood`).

    A key of media in a part that is a text is unknown, too.

    Args:
        conversation: the keys that hold turns; a value that is no list of turns has none.

    Returns:
        The values of each unknown key, by its name.
    """
    unknown: dict[str, list[Any]] = {}

    def add(strange: Iterator[tuple[str, Any]]) -> None:
        for key, item in strange:
            unknown.setdefault(key, []).append(item)

    if not _KNOWN[0].issuperset(value):
        add(_strange({key: item for key, item in value.items() if key not in conversation}, 0))
    for key in conversation:
        for turn in value[key] if isinstance(value[key], list) else ():
            if not isinstance(turn, dict):
                continue
            if not _KNOWN[1].issuperset(turn):
                add(_strange(turn if "role" in turn or "from" in turn else without_sides(turn), 1))
            content = turn.get("content", turn.get("value"))
            for part in content if isinstance(content, list) else ():
                if isinstance(part, dict) and not _KNOWN[2].issuperset(part):
                    add(_strange(part, 2))
                if isinstance(part, dict) and part.get("type", "text") == "text":
                    add((f"{_PLACES[2]}{key}", part[key]) for key in PART_TYPES if part.get(key))
    return unknown


def _strange(value: Mapping[str, Any], place: int) -> Iterator[tuple[str, Any]]:
    for key in value:
        if key in _KNOWN[place]:
            continue
        elsewhere = _ELSEWHERE[place].get(key)
        if elsewhere is None:
            if value[key] is not None:
                yield f"{_PLACES[place]}{str(key)[:_LONGEST]}", value[key]
        elif not any(value[key] == silent for silent in elsewhere.silent):
            raise Skip(elsewhere.reason, f"{_PLACES[place]}{key} is {str(value[key])[:60]} ({elsewhere.meaning})")
