"""What real frameworks train, row by row, beside what we train.

    a row of ../shared/real/labels/truth + its conversation ──check──► Verdict

`../shared/research/labels.md` §1 says how a row is to be read.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path
from typing import Any

from energon_pack.samples.conversation import match_placeholders_with_media, options_of
from energon_pack.samples.media.medium import Media
from energon_pack.samples.record import parse_record
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.templates.sample import Rendered, Sample
from energon_pack.templates.template import Template
from support.labels.folders import build_template, has_real_folder
from support.running import REAL

Row = dict[str, Any]
Spans = Sequence[Sequence[int]]

#: keys of a conversation that are no part of the sample
_OF_TRUTH = ("id", "kind", "train", "train_user")
_TAG = re.compile(
    r"</?think>|<[|\uff5c][^<>\s]{1,40}?[|\uff5c]>|<(?:start|end)_of_(?:turn|utterance)>|<(?:\|turn|turn\|)>|</?s>"
)
_HEADER = re.compile(r"^\s*(assistant|model|user|system|tool)\b:?\s*", re.IGNORECASE)


@dataclass
class Ours:
    """How we render one conversation; media are one placeholder each, as in the truth."""

    text: str
    ids: list[int]
    #: of each character of `text`, how much it counts
    weights: list[float]
    #: characters that stand for media
    media: list[tuple[int, int]]
    #: supervised tokens among those of media
    media_labels: int
    #: supervised tokens that are outside every span, and tokens inside that are not supervised
    wrong_tokens: list[str]


@dataclass
class Verdict:
    """The outcome of one row."""

    row: Row
    #: ok; space: other white space is trained; words: of a weaker row, the same words, other tags;
    #: skipped, text, ids, labels, weights, media, tokens
    status: str
    detail: str = ""
    ours: Ours | None = None
    #: of each character of the text, how much it counts in the truth
    wanted: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.row['template']}/{self.row['id']}"

    @property
    def is_right(self) -> bool:
        return self.status in ("ok", "space", "words")


def conversations() -> dict[str, Row]:
    """Those that truth was made of, by id."""
    return {item["id"]: item for item in json.loads((REAL / "labels" / "conversations.json").read_text())}


def truth_of(name: str) -> list[Row]:
    """The rows of one template."""
    lines = (REAL / "labels" / "truth" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def names() -> list[str]:
    """Templates that there is truth of: the real folders first."""
    found = sorted(path.stem for path in (REAL / "labels" / "truth").glob("*.jsonl"))  # none where it is not
    return sorted(found, key=lambda name: not has_real_folder(name))


def sample_of(conversation: Row) -> Sample:
    """A conversation as a source sample is read; raises Skip."""
    value = {key: item for key, item in conversation.items() if key not in _OF_TRUTH}
    sizes = value.pop("images", [])
    if sizes:
        value["images"] = [f"{i}.png" for i in range(len(sizes))]
    record = parse_record(value, ReadSettings())
    placed = match_placeholders_with_media(record, ["image"] * len(sizes))
    media = [Media("image", sizes[i][0], sizes[i][1], "png") for i in placed.order]
    return Sample(placed.messages, media, record.tools, options_of(record.fields))


def render(template: Template, sample: Sample) -> Ours:
    """Return our labels of a sample; raises Skip."""
    rendered = template.render(sample)
    weights = _weights(rendered)
    text, collapsed, media, cursor = "", [], [], 0
    for medium, (start, end) in zip(sample.media, rendered.media, strict=True):
        token = template.rules.media_tokens[medium.kind]
        text += rendered.text[cursor:start]
        collapsed += weights[cursor:start] + [0.0] * len(token)
        media.append((len(text), len(text) + len(token)))
        text += token
        cursor = end
    text, collapsed = text + rendered.text[cursor:], collapsed + weights[cursor:]
    tokens = template.tokenize([rendered])[0]
    ids = template.tokenizer.encode(text, add_special_tokens=False).ids if sample.media else tokens.ids
    supervised = {i for start, end in tokens.supervised for i in range(start, end)}
    feature_ids = {template.token_id(token) for token in template.rules.media_tokens.values()}
    feature_ids |= {template.token_id(token) for token in template.rules.feature_tokens.values()}
    media_labels = sum(tokens.ids[i] in feature_ids for i in supervised) if sample.media else 0
    wrong = [] if sample.media else _wrong_tokens(template, text, ids, collapsed, supervised)
    return Ours(text, ids, collapsed, media, media_labels, wrong)


def _weights(rendered: Rendered) -> list[float]:
    weights = [0.0] * len(rendered.text)
    counts = rendered.weights or [1.0] * len(rendered.spans)
    for (start, end), weight in zip(rendered.spans, counts, strict=True):
        weights[start:end] = [weight] * (end - start)
    return weights


def _wrong_tokens(
    template: Template, text: str, ids: Sequence[int], weights: Sequence[float], supervised: set[int]
) -> list[str]:
    """Tokens that are supervised though nothing of their text is trained, and the other way round."""
    encoding = template.tokenizer.encode(text, add_special_tokens=False)
    if encoding.ids != list(ids):  # special tokens are put around
        return []
    wrong = []
    for i, (start, end) in enumerate(encoding.offsets):
        here = [weight > 0 for weight in weights[start:end]]
        is_mixed = any(here) and not all(here)  # it stands across the beginning or the end of what is trained
        if i and not is_mixed and any(here) != (i in supervised) and text[start:end].strip():
            wrong.append(f"{text[start:end]!r} at {start}")
    return wrong


def check(template: Template, row: Row, conversation: Row) -> Verdict:
    """One row of truth beside ours."""
    try:
        sample = sample_of(conversation)
        ours = render(template, sample)
    except Skip as skip:
        trains_nothing = not any(row.get("turn_weights", [1]))
        return Verdict(row, "ok" if trains_nothing else "skipped", str(skip))
    parsed = "parsed_text_sha1" in row
    wanted = row["parsed_text_sha1" if parsed else "collapsed_sha1" if sample.media else "text_sha1"]
    if sha1(ours.text.encode()).hexdigest() != wanted and sample.media:
        _collapse(ours)
    if sha1(ours.text.encode()).hexdigest() != wanted:
        return Verdict(row, "text", "dated" if row.get("has_todays_date") else "", ours)
    ids_sha1 = sha1(",".join(map(str, ours.ids)).encode()).hexdigest()
    if not sample.media and ids_sha1 != row["parsed_ids_sha1" if parsed else "ids_sha1"]:
        return Verdict(row, "ids", f"{len(ours.ids)} tokens for {row['n_ids']}", ours)
    return _labels(template, row, ours, parsed)


def _collapse(ours: Ours) -> None:
    """Make one placeholder of those that stand beside each other, as the truth does where a processor's are alike."""
    for (start, end), (next_start, _) in reversed(list(zip(ours.media, ours.media[1:], strict=False))):
        if end == next_start:
            ours.text = ours.text[:start] + ours.text[next_start:]
            ours.weights = ours.weights[:start] + ours.weights[next_start:]
    ours.media = []


def _labels(template: Template, row: Row, ours: Ours, parsed: bool) -> Verdict:
    if parsed:
        if "parsed_spans_with_space" not in row:
            return Verdict(row, "ok", "", ours)
        least = most = row["parsed_spans_with_space"]
    else:
        least, most = row["spans"], row["spans_with_space"]
    size = len(ours.text)
    factors = row.get("turn_weights")
    if factors and len(factors) != len(least):
        return Verdict(row, "weights", f"{len(factors)} weights for {len(least)} spans", ours)
    wanted, allowed = _filled(least, size, factors), _filled(most, size, factors)
    for start, end in ours.media:
        wanted[start:end] = allowed[start:end] = [0.0] * (end - start)
    verdict = Verdict(row, "ok", "", ours, wanted)
    if ours.media_labels:
        verdict.status, verdict.detail = "media", f"{ours.media_labels} tokens of media are labels"
    elif ours.wrong_tokens:
        verdict.status, verdict.detail = "tokens", ", ".join(ours.wrong_tokens[:4])
    else:
        verdict.status = _exact(ours, wanted, allowed)
        if not verdict.status and row["status"] != "agree":
            special = [t.content for t in template.tokenizer.get_added_tokens_decoder().values() if t.special]
            same = _words(ours.text, ours.weights, special) == _words(ours.text, wanted, special)
            verdict.status = "words" if same or row["status"] == "differ" else ""
    if not verdict.status:
        same = [bool(weight) for weight in ours.weights] == [bool(weight) for weight in wanted]
        verdict.status = "weights" if same else "labels"
    return verdict


def _filled(spans: Spans, size: int, factors: Sequence[float] | None) -> list[float]:
    weights = [0.0] * size
    for (start, end), factor in zip(spans, factors or [1.0] * len(spans), strict=True):
        weights[start:end] = [float(factor)] * (end - start)
    return weights


def _exact(ours: Ours, wanted: Sequence[float], allowed: Sequence[float]) -> str:
    """`ok` where all of `wanted` and no more than `allowed` is trained; `space` where white space differs."""
    wrong = [
        i
        for i, (weight, least, most) in enumerate(zip(ours.weights, wanted, allowed, strict=True))
        if weight not in (least, most)
    ]
    if not wrong:
        return "ok"
    return "space" if all(ours.text[i].isspace() for i in wrong) else ""


def _words(text: str, weights: Sequence[float], special: Sequence[str]) -> list[tuple[str, float]]:
    """Letters and digits of what is trained, with their weights; no tags, no headers of a role."""
    words = []
    for start, end, weight in ranges(weights):
        piece = text[start:end]
        for token in special:
            piece = piece.replace(token, "")
        piece = _HEADER.sub("", _TAG.sub("", piece))
        words += [(character, weight) for character in piece if character.isalnum()]
    return words


def ranges(weights: Sequence[float]) -> Iterator[tuple[int, int, float]]:
    """Runs of one weight above 0: start, end, weight."""
    start = 0
    for i in range(1, len(weights) + 1):
        if i == len(weights) or weights[i] != weights[start]:
            if weights[start]:
                yield start, i, weights[start]
            start = i


def shown(text: str, weights: Sequence[float]) -> str:
    """What is trained of a text, for people."""
    return " ⋯ ".join(
        repr(text[start:end]) + ("" if weight == 1 else f"×{weight:g}") for start, end, weight in ranges(weights)
    )


def rows_of(name: str, folder: Path, **labels: Any) -> Iterator[Verdict]:
    """All rows of one template.

    Args:
        labels: settings of the node `labels`.
    """
    template, spoken = build_template(name, folder, **labels), conversations()
    for row in truth_of(name):
        yield check(template, row, spoken[row["id"]])
