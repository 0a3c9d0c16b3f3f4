"""Tries the hint of a sample that is left out: the sample is read again, with the setting that the hint names.

{"input": {…}, "preferred_output": [{"role": "assistant", …}]}
Skip: … source.messages_key=preferred_output reads its turns ──► without the hint: it loses the question
"""

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.documents import DOCUMENT
from energon_pack.samples.settings import PreferenceTake, ReadSettings
from energon_pack.samples.skip import Hint, Reason, Skip

_TYPES = {"take": PreferenceTake}
#: reasons that tell the next fault of a medium, when its field is read
_FAULTS_OF_MEDIA = (Reason.MISSING_MEDIA, Reason.UNREADABLE_MEDIA, Reason.UNSUPPORTED_MEDIA)


def without_useless_hint(skip: Skip, read: Callable[[Callable[[ReadSettings], ReadSettings]], ReadSample]) -> Skip:
    """Return why a sample is left out, without the hint if the sample can't be read with it, or loses its question.

    `read`: reads the sample again, with the settings that the function it is called with returns; raises Skip.
    """
    return skip if skip.hint is None or _are_useful(read, (skip.hint,)) else skip.without_hint()


def _are_useful(read: Callable[[Callable[[ReadSettings], ReadSettings]], ReadSample], hints: tuple[Hint, ...]) -> bool:
    """Tell whether a sample is read whole with hints, or with these and the hint of another setting it has then."""
    names_media = all(hint.setting.startswith("columns.") for hint in hints)
    try:
        sample = read(lambda settings: reduce(_with_value, hints, settings))
    except Skip as another:
        if names_media and another.reason in _FAULTS_OF_MEDIA:
            return True
        more = another.hint
        return (
            more is not None
            and all(more.setting != hint.setting for hint in hints)
            and _are_useful(read, (*hints, more))
        )
    begins = next((message["role"] for message in sample.messages if message["role"] != "system"), None)
    keeps_question = names_media or begins not in ("assistant", DOCUMENT)
    kept = (name for hint in hints for name in hint.keeps)
    return keeps_question and {part.name for part in sample.parts}.issuperset(kept)


def _with_value(settings: ReadSettings, hint: Hint) -> ReadSettings:
    group, _, name = hint.setting.rpartition(".")
    value: Any = _TYPES.get(name, str)(hint.value)
    if not group:
        return replace(settings, **{name: value})
    return replace(settings, **{group: replace(getattr(settings, group), **{name: value})})
