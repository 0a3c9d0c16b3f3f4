"""Lists the keys of a record: those that are read, harmless ones, and those that mean something in another tool. Pure.

`_READ_KEYS` has the keys that are read, `_HARMLESS_KEYS` those that change nothing that is trained, each with its
meaning. `_FOREIGN_KEYS` has keys that change what another tool trains and that this package can't follow: such a key
costs the sample, unless its value has no effect. Every other key is unknown: the report lists it with a sample that has
it.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from energon_pack.samples.dialects.pairs import OPTIONS_KEYS, without_question_and_answer_keys
from energon_pack.samples.media.kinds import KIND_OF_MEDIA_KEY, KINDS, MEDIA_KEYS, PART_TYPES
from energon_pack.samples.media.medium import RATE_KEYS, SETTING_KEYS
from energon_pack.samples.preference import LABEL_KEYS, PREFERENCE_KEYS
from energon_pack.samples.sample import ARGUMENT_KEYS, CONTENT_KEYS, MESSAGE_KEYS, REASONING_KEYS, ROLE_KEYS
from energon_pack.samples.skip import Reason, Skip, key_of_synonyms, value_of_synonyms
from energon_pack.samples.turns import (
    find_tool_calls_in_turn,
    has_argument_key,
    is_tool_call_part,
    objects_with_call_keys,
)
from energon_pack.samples.weights import MASK_KEYS, PART_WEIGHTS, TURN_WEIGHT_KEYS

_MAX_KEY_CHARACTERS = 60  # most characters of an unknown key
_MIN_LIKENESS = 0.8  # likeness of two spellings of a key, as difflib measures it


class _ForeignKey(NamedTuple):
    """The meaning of a key by which other tools change what is trained, and which this package does not support."""

    meaning: str
    harmless_values: tuple[Any, ...] = (None, False, "", [], {})  # values without effect
    reason: Reason = Reason.BAD_MESSAGE


#: levels of a record (sample, turn, content part, tool call), with the prefix of their unknown keys
CALL_PREFIX = "calls[]."
_LEVEL_PREFIXES = ("", "messages[].", "content[].", CALL_PREFIX)

#: the fields of a sample that are its options (`conversation.options_of`)
OPTION_KEYS = (
    "weight", "chat_template_kwargs", "media_settings", "label_settings", "use_audio_in_video", "token_range",
)  # fmt: skip
_READ_KEYS: tuple[frozenset[str], ...] = (
    frozenset(
        (
            *MESSAGE_KEYS,
            *("prompts", "captions", "caption", "question", "context", "answer"),
            *("answers", "text", "system", "system_prompt", "tools", "functions"),
            *("name", "media_files", "media", "media_type"),
            *MEDIA_KEYS,
            *("fps", *RATE_KEYS, "timestamp_decimal", "patch_positions", "video_frames", "objects"),
            *OPTION_KEYS,
            *(PREFERENCE_KEYS - {"chosen", "rejected", *LABEL_KEYS}),  # these are read if they make preference data
        )
    ),
    frozenset(
        (
            *(*ROLE_KEYS, *CONTENT_KEYS, "name"),
            *("reasoning", "thinking", "reasoning_content", "tool_calls", "function_call", "tool_call_id", "tool_plan"),
            *(PART_WEIGHTS, *TURN_WEIGHT_KEYS),
        )
    ),
    frozenset(
        (
            *("type", "text", "value", "thinking", *PART_TYPES, "path", "url", "source"),
            *("name", "id", "index", "tool_call", "tool_use_id", "content"),
            *SETTING_KEYS,
        )
    ),
    frozenset(("name", "function", "type", "id", *ARGUMENT_KEYS)),
)

_HARMLESS_KEYS: tuple[Mapping[str, str], ...] = (
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
        **dict.fromkeys(("general_metadata", "similarity_matrix", "could_have_url_duplicate"), "OBELICS, MMC4: a page"),
        **dict.fromkeys(("channel",), "ms-swift: the group in which the loss is logged"),
        **dict.fromkeys(("ground_truth", "reward_model", "ability", "verifier"), "for rewards"),
        **dict.fromkeys(("solution",), "for rewards, unless it is a longer answer (`refuse_lost_texts`)"),
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
        **dict.fromkeys(("cache_control", "citations"), "of a request"),
        **dict.fromkeys(("detail",), "OpenAI: for its own models"),
        **dict.fromkeys(("is_error", "signature"), "Anthropic: beside the text"),
    },
    {
        **dict.fromkeys(("index", "call_id", "tool_call_id"), "a name"),
        **dict.fromkeys(("status",), "OpenAI: of a response"),
        **dict.fromkeys(("cache_control", "caller"), "Anthropic: of a request"),
        **dict.fromkeys(("thought_signature", "signature", "extra_content"), "Gemini: beside the call"),
        **dict.fromkeys(("provider_specific_fields",), "LiteLLM: of a response"),
    },
)

#: keys that say the same thing, at each level; the first is read
_SYNONYMS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (*(medium.keys for medium in KINDS.values()), ("tools", "functions"), ("system", "system_prompt")),
    (CONTENT_KEYS, REASONING_KEYS),
    (("text", "value"),),
    (),  # `tool_calls` compares the synonyms of arguments, which may stand in a call and in its `function`
)
_KEYS_WITH_SYNONYMS = tuple(frozenset(key for keys in alike for key in keys) for alike in _SYNONYMS)

_MEDIA_OF_TURN = _ForeignKey("media of a turn: content parts say where they stand", reason=Reason.UNSUPPORTED_MEDIA)
_TRAINED_CHARACTERS = _ForeignKey("axolotl: characters that are trained; a turn is trained whole")
_ALREADY_TOKENIZED = _ForeignKey("TRL: a sample that is tokens already")
_FOREIGN_KEYS: tuple[Mapping[str, _ForeignKey], ...] = (
    {
        "margin": _ForeignKey("ms-swift, TRL: of preference data"),
        "positive_messages": _ForeignKey("ms-swift: of embedding data"),
        "negative_messages": _ForeignKey("ms-swift: of embedding data"),
        "mm_processor_kwargs": _ForeignKey("ms-swift: settings of media, which stand in content parts here"),
        "input_ids": _ALREADY_TOKENIZED,
        "completion_mask": _ALREADY_TOKENIZED,
        "assistant_masks": _ALREADY_TOKENIZED,
        "segments": _ForeignKey("axolotl: the conversation in another form"),
    },
    {
        "train_detail": _TRAINED_CHARACTERS,
        "training_detail": _TRAINED_CHARACTERS,
        "message_field_training_detail": _TRAINED_CHARACTERS,
        "eot": _ForeignKey("torchtune: a turn without its end", harmless_values=(None, True)),
        "ipython": _ForeignKey("torchtune: a tool call as text"),
        "refusal": _ForeignKey("OpenAI: the answer itself, which belongs in content"),
        **dict.fromkeys(MEDIA_KEYS, _MEDIA_OF_TURN),
    },
    {
        "train": _ForeignKey(
            "axolotl: which parts of a turn are trained; a turn is trained whole", harmless_values=(None, True)
        ),
        "weight": _ForeignKey(
            "axolotl: which parts of a turn are trained; a turn is trained whole", harmless_values=(None, 1)
        ),
        "loss_scale": _ForeignKey("ms-swift: which parts of a turn are trained; a turn is trained whole", (None, 1)),
        "token_ids": _ForeignKey("ms-swift: a part that is tokens already"),
    },
    {
        key: _ForeignKey("a weight of a call: a turn has one", (None, 0 if key in MASK_KEYS else 1))
        for key in sorted(TURN_WEIGHT_KEYS)
    },
)
_KNOWN_KEYS = tuple(read.union(harmless) for read, harmless in zip(_READ_KEYS, _HARMLESS_KEYS, strict=True))


@lru_cache(4096)
def similar_key(unknown: str) -> str | None:
    """Return the key that is spelled most like an unknown one (`image` for `imgae`); None: no key is spelled alike."""
    if unknown in OPTIONS_KEYS:  # they are spelled like `captions`
        return None
    level = max(number for number, prefix in enumerate(_LEVEL_PREFIXES) if unknown.startswith(prefix))
    known = sorted(_READ_KEYS[level].union(MEDIA_KEYS if _LEVEL_PREFIXES[level] != CALL_PREFIX else ()))
    return next(
        iter(difflib.get_close_matches(unknown.removeprefix(_LEVEL_PREFIXES[level]).lower(), known, 1, _MIN_LIKENESS)),
        None,
    )


def similar_key_hint(unknown_key: str) -> str:
    """Return `: did you mean image?`, the end of a message about an unknown key; empty: no key is spelled alike."""
    near = similar_key(unknown_key)
    return f": did you mean {near}?" if near and not unknown_key.endswith(near) else ""


def kind_of_media_key(key: str) -> str | None:
    """Return the kind of media that a key, of a sample or a content part, names; None: it names none."""
    return KIND_OF_MEDIA_KEY.get(key) or PART_TYPES.get(key)


def is_known_sample_key(key: str) -> bool:
    """Tell whether a key at a sample's top level is read, or harmless."""
    return key in _KNOWN_KEYS[0]


def unread_items_of_tool_call(tool_call: Mapping[str, Any]) -> dict[str, Any]:
    """Return what stands in a call, or in its `function`, under keys that are not read."""
    return {
        key: item for one in objects_with_call_keys(tool_call) for key, item in one.items() if key not in _READ_KEYS[3]
    }


def is_harmless_tool_call_key(key: str) -> bool:
    """Tell whether a key of a tool call changes nothing that is trained."""
    return key in _HARMLESS_KEYS[3]


def is_unknown_tool_call_key(key: str) -> bool:
    """Tell whether nothing is known of a key of a tool call."""
    return key not in _KNOWN_KEYS[3] and key not in _FOREIGN_KEYS[3]


def without_synonyms(value: dict[str, Any], level: int = 0) -> dict[str, Any]:
    """Return a sample with one key for each meaning: of two such as `tools` and `functions`, only one is kept.

    An empty one stays beside it, unless it is a thought: a template would write the empty one.

    Args:
        value: a sample (level 0), a turn (1) or a content part (2).

    Raises:
        Skip: `bad_message`: two keys of one meaning have different values.
    """
    if len(_KEYS_WITH_SYNONYMS[level].intersection(value)) < 2:
        return value
    for keys in _SYNONYMS[level]:
        value_of_synonyms(value, keys, _LEVEL_PREFIXES[level])
        first = key_of_synonyms(value, keys)
        drops_empty = keys is REASONING_KEYS and bool(value.get(first))
        spare = [
            key for key in keys if key != first and (value.get(key) or (drops_empty and value.get(key) is not None))
        ]
        value = {key: item for key, item in value.items() if key not in spare}
    return value


def unknown_keys(sample_json: Mapping[str, Any], turn_keys: Sequence[str]) -> dict[str, list[Any]]:
    """Find the unknown keys of a sample, its turns (`messages[].mood`), content parts (`content[].mood`) and calls.

    A key of media in a part that is a text is unknown, too.

    Args:
        turn_keys: the keys that hold turns; a value that is no list of turns has none.

    Returns:
        The values of each unknown key, by its name.
    """
    unknown: dict[str, list[Any]] = {}

    def add(strange: Iterator[tuple[str, Any]]) -> None:
        for key, item in strange:
            unknown.setdefault(key, []).append(item)

    if not _KNOWN_KEYS[0].issuperset(sample_json):
        add(_unknown_items({key: item for key, item in sample_json.items() if key not in turn_keys}, 0))
    for key in turn_keys:
        for turn in sample_json[key] if isinstance(sample_json[key], list) else ():
            if not isinstance(turn, dict):
                continue
            if not _KNOWN_KEYS[1].issuperset(turn):
                add(
                    _unknown_items(turn if any(map(turn.get, ROLE_KEYS)) else without_question_and_answer_keys(turn), 1)
                )
            for call, is_text in find_tool_calls_in_turn(turn):
                if not is_text or has_argument_key(call):  # else its own keys are arguments
                    add(_unknown_items(unread_items_of_tool_call(call), 3))
            content = turn.get(key_of_synonyms(turn, CONTENT_KEYS))
            for part in content if isinstance(content, list) else ():
                if isinstance(part, dict) and not is_tool_call_part(part) and not _KNOWN_KEYS[2].issuperset(part):
                    add(_unknown_items(part, 2))
                if isinstance(part, dict) and part.get("type", "text") == "text":
                    add((f"{_LEVEL_PREFIXES[2]}{key}", part[key]) for key in PART_TYPES if part.get(key))
    return unknown


def _unknown_items(value: Mapping[str, Any], level: int) -> Iterator[tuple[str, Any]]:
    for key in value:
        if key in _KNOWN_KEYS[level]:
            continue
        foreign = _FOREIGN_KEYS[level].get(key)
        if foreign is None:
            if value[key] is not None:
                yield f"{_LEVEL_PREFIXES[level]}{str(key)[:_MAX_KEY_CHARACTERS]}", value[key]
        elif not any(value[key] == harmless for harmless in foreign.harmless_values):
            raise Skip(foreign.reason, f"{_LEVEL_PREFIXES[level]}{key} is {str(value[key])[:60]} ({foreign.meaning})")
