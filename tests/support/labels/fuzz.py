"""Keys of seven trackers put into records of every form: each is honoured, harmless, or named; none is silent.

a form + keys ──fuzzed──► record ──ours──► text, weights, unknown keys, or a Skip
                  └──meaning──► text, weights ──judge──► honoured, harmless, unknown, skipped, or wrong
"""

import random
from dataclasses import dataclass, field
from typing import Any

from energon_pack.samples import keys as table
from energon_pack.samples.conversation import match_placeholders_with_media, options_of
from energon_pack.samples.media.kinds import media_kind_by_extension
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.read_media import with_requested_settings
from energon_pack.samples.member import SampleOptions
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.sources.jsonl.dialects import RowSettings, parse_row
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template
from support.labels.forms import FORMS, Form, fresh
from support.labels.meaning import Refused, say
from support.labels.media_meaning import num_tokens
from support.labels.tracker_keys import KEYS, PART, SAMPLE, TURN, Key, values_of
from support.labels.truth import render

#: sizes of the files that records name
FILES = {
    "a.png": Media("image", 112, 84, "png"),
    "v.mp4": Media("video", 112, 84, "mp4", 40, 10.0),
    "a.wav": Media("audio", extension="wav", num_samples=16_000, rate=16_000),
}
#: read by templates, or beside marks in texts that none of these records has
_OF_NO_WEIGHT = {(TURN, "name"), (TURN, "tool_call_id"), (SAMPLE, "objects")}
FILES_OF = {"image": "a.png", "video": "v.mp4"}
_PLACES = {SAMPLE: 0, TURN: 1, PART: 2}
_NAMED_AS = {SAMPLE: "", TURN: "messages[].", PART: "content[]."}


@dataclass
class Added:
    """A key that was put into a record."""

    key: Key
    value: Any
    is_good: bool
    turn: int = 0
    #: of the part that it stands in
    kind: str = ""

    @property
    def says_nothing(self) -> bool:
        return self.value is None

    def __str__(self) -> str:
        return f"{_NAMED_AS[self.key.place]}{self.key.name}={self.value!r}"


@dataclass
class Fuzzed:
    """A record with keys put in."""

    form: Form
    added: list[Added] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.form.name} + {', '.join(map(str, self.added))}: {self.form.value}"


@dataclass
class Outcome:
    """Return our reading of a record."""

    skip: str = ""
    #: what is no Skip, and ends the run
    crash: str = ""
    text: str = ""
    weights: list[float] = field(default_factory=list)
    media_lengths: list[int] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    options: SampleOptions = field(default_factory=SampleOptions)
    media_labels: int = 0


def fuzzed(chance: random.Random) -> Fuzzed:
    """A record with one key, or two or three, at places of which it has some."""
    result = Fuzzed(fresh(chance.choice(FORMS)))
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        key = chance.choice(KEYS)
        value, is_good = chance.choice(list(values_of(key)))
        add(result, key, value, is_good, chance)
    return result


def add(result: Fuzzed, key: Key, value: Any, is_good: bool, chance: random.Random) -> None:
    """Put a key into a record; nothing where there is no such place, or the place has the key."""
    form = result.form
    added = Added(key, value, is_good)
    if key.place == SAMPLE:
        target = form.value
    elif key.place == TURN and form.turns:
        target, added.turn = chance.choice(form.turns)
    elif key.place == PART and form.parts:
        target, added.kind = chance.choice(form.parts)
    else:
        return
    if key.name not in target:
        target[key.name] = value
        result.added.append(added)


def ours(template: Template, value: Any) -> Outcome:
    """Return our reading of a line of JSONL."""
    try:
        record = parse_row(value, RowSettings(""), ReadSettings())
        names = record.listed_media or []
        placed = match_placeholders_with_media(record, [str(media_kind_by_extension(name)) for name in names])
        options = options_of(placed.record.fields)
        media = with_requested_settings(
            [FILES[names[i]] for i in placed.order], placed.record.fields.get("video_frames"), options
        )
        made = render(template, Sample(placed.timed_messages([]), media, record.tools, options))
        lengths = template.num_features(media)
    except Skip as skip:
        return Outcome(skip=str(skip))
    except Exception as error:  # whatever it is, it would end the run
        return Outcome(crash=f"{type(error).__name__}: {error}")
    return Outcome("", "", made.text, made.weights, lengths, [*record.unknown], options, made.media_labels)


def judge(template: Template, record: Fuzzed) -> str:
    """What became of a record: `honoured`, `harmless`, `unknown`, `skipped`; else what is wrong with it."""
    made = ours(template, record.form.value)
    if made.crash:
        return f"ends the run: {made.crash}"
    meaning, known, refused = record.form.meaning, [], []
    for added in record.added:
        shift = sum(turn.role == "system" and i == 0 for i, turn in enumerate(meaning.turns)) - _has_system(record.form)
        try:
            if say(meaning, added.key.place, added.turn + max(0, shift), added.key.name, added.value):
                known.append(added)
        except Refused:
            refused.append(added)
    if made.skip:
        needless = [a for a in record.added if a.is_good and (a in known or not a.key.matters) and not _may_skip(a)]
        if len(needless) == len(record.added) and not refused:
            return f"refused, though all is good: {made.skip}"
        return "skipped"
    if refused:
        return f"silent: {refused[0]} is no such value"
    if made.media_labels:
        return f"{made.media_labels} tokens of media are labels"
    text, weights = meaning.written()
    if not meaning.weight:  # nothing of such a sample is trained
        weights = [0.0] * len(weights)
    if made.text != text:
        return f"another text: {made.text!r} for {text!r}"
    for i, (got, want) in enumerate(zip(made.weights, weights, strict=True)):
        if want is not None and abs(got - want) > 1e-9:
            return f"the character {text[max(0, i - 12) : i + 12]!r} at {i} counts {got}, not {want}"
    if abs(made.options.weight - meaning.weight) > 1e-9:
        return f"the sample counts {made.options.weight}, not {meaning.weight}"
    return _rest(record, made, known)


def _rest(record: Fuzzed, made: Outcome, known: list[Added]) -> str:
    """What became of the keys that the second implementation does not know."""
    verdict = "honoured" if known else "harmless"
    for added in record.added:
        if added in known or added.says_nothing:
            continue
        name = f"{_NAMED_AS[added.key.place]}{added.key.name}"
        if any(unknown.endswith(name) for unknown in made.unknown):
            if added.key.matters:
                return f"only listed, though it matters: {added}"
            verdict = "unknown"
        elif added.key.name in table._HARMLESS_KEYS[_PLACES[added.key.place]]:
            if added.key.matters:
                return f"harmless by the table, though it matters: {added}"
        elif added.key.place == PART and added.kind in FILES_OF and added.key.read_in.startswith("Q:"):
            if not added.is_good:
                return f"silent: {added} is no such value"
            if made.media_lengths != [_wanted_length(record, added)]:
                return f"{made.media_lengths} tokens of media, not {_wanted_length(record, added)}: {added}"
            verdict = "honoured"
        elif (added.key.place, added.key.name) in _OF_NO_WEIGHT:
            pass
        elif added.key.place == PART and added.kind == "text" and added.key.read_in.startswith("Q:"):
            pass  # of media, and no medium is there
        elif added.key.place == TURN and record.form.meaning.turns[added.turn].role != "assistant":
            pass  # a thought of a question, say: nobody trains it
        else:
            return f"silent: {added}"
    return verdict


def _wanted_length(record: Fuzzed, added: Added) -> int:
    """Tokens of the medium of a part, by all that is said of it."""
    part = next(part for part, kind in record.form.parts if kind == added.kind)
    said = {key: value for key, value in part.items() if isinstance(value, (int, float)) and value is not False}
    file = FILES[FILES_OF[added.kind]]
    return num_tokens(added.kind, file.height, file.width, file.num_frames, file.fps, said)


def _has_system(form: Form) -> bool:
    messages = form.value.get("messages", form.value.get("conversations", []))
    return bool(messages) and messages[0].get("role", messages[0].get("from")) == "system"


def _may_skip(added: Added) -> bool:
    """Good by themselves, and yet not where they stand: calls of a question, thoughts of a system prompt, a second
    conversation.
    """
    again = ("functions", "history", "prompt", "completion", "query", "response", "instruction", "input", "output")
    return added.key.name in ("tool_calls", "function_call", "reasoning", "reasoning_content", "thinking", *again)
