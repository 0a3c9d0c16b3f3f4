"""What frameworks' real code trains of our own conversations, beside what we train.

    conversations ──ours, prefix, trl, ms-swift, LLaMA-Factory──► tokens with weights ──judge──► rows that differ

Where a source has our ids, what all of them train has to be trained, and nothing that none of them trains.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path
from typing import Any

from energon_pack.samples.skip import Skip
from energon_pack.templates.settings import EmptyAnswerPolicy
from energon_pack.templates.template import Template
from support.labels.folders import build_template
from support.labels.in_environments import run
from support.labels.prefix import Prefix
from support.labels.truth import Ours, render, sample_of, shown

Row = dict[str, Any]

#: our name of a template → the framework's
SWIFT = {
    "qwen2_5_text": "qwen2_5", "llama3_text": "llama3_2", "qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_5_vl",
    "qwen3_vl": "qwen3_vl", "internvl3_hf": "internvl_hf", "llava_onevision_qwen2_hf": "llava_onevision_hf",
    "gemma3": "gemma3_vision", "kimi_k25": "kimi_k25", "trl_qwen2_5": "qwen2_5", "trl_qwen3": "qwen3",
    "trl_qwen3_instruct_2507": "qwen3_nothinking", "trl_qwen3_5_nothink": "qwen3_5", "trl_qwen3_5_think": "qwen3_5",
    "trl_qwen3_6": "qwen3_5", "trl_qwen3_8": "qwen3_8", "trl_qwen3_vl": "qwen3_nothinking",
    "trl_glm4moe": "glm4_5", "trl_deepseekv3": "deepseek_v2_5", "trl_deepseek_r1_distill": "deepseek_r1",
    "trl_gptoss": "gpt_oss", "trl_gemma": "gemma", "trl_gemma3": "gemma3_text", "trl_gemma4_v5": "gemma4_nothinking",
    "trl_phi3": "phi3", "trl_phi3_5": "phi3", "trl_llama3": "llama3", "trl_llama3_2": "llama3_2",
    "trl_nemotron_3_nano": "nemotron_h", "trl_cohere": "c4ai", "trl_cohere2": "c4ai", "trl_lfm2": "chatml",
}  # fmt: skip
LLAMAFACTORY = {
    "qwen2_5_text": ("qwen",), "llama3_text": ("llama3",), "qwen2_vl": ("qwen2_vl",), "qwen2_5_vl": ("qwen2_vl",),
    "qwen3_vl": ("qwen3_vl_nothink",), "internvl3_hf": ("intern_vl",), "llava_onevision_qwen2_hf": ("llava_next_qwen",),
    "gemma3": ("gemma3",), "trl_qwen2_5": ("qwen",), "trl_qwen3": ("qwen3", "v1:qwen3"),
    "trl_qwen3_instruct_2507": ("qwen3_nothink", "v1:qwen3_nothink", "v1:chatml"), "trl_qwen3_5_think": ("qwen3_5",),
    "trl_qwen3_6": ("qwen3_5",), "trl_glm4moe": ("glm4_moe",), "trl_deepseekv3": ("deepseek3",),
    "trl_deepseek_r1_distill": ("deepseekr1",), "trl_gptoss": ("gpt_oss",), "trl_gemma": ("gemma",),
    "trl_gemma3": ("gemma3",), "trl_phi3": ("phi",), "trl_phi3_5": ("phi",), "trl_llama3": ("llama3",),
    "trl_cohere": ("cohere",), "trl_lfm2": ("lfm2",),
}  # fmt: skip


#: a tag that the prompt of some models writes, and its beginning or end where a token holds more
_THINK = re.compile(r"</?think(></?|>)?")


@dataclass
class Judged:
    """One conversation with one template."""

    name: str
    #: same, space, words, labels, text, skipped; refused: by the template itself; alone: no source has our ids
    status: str
    detail: str = ""
    ours: str = ""
    sources: dict[str, str] = field(default_factory=dict)
    #: sources that have our ids
    same_ids: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        return self.status in ("same", "space", "words", "alone", "refused")


@dataclass
class Tokens:
    """Tokens of one conversation with how much each counts, media as one placeholder each."""

    ids: list[int]
    weights: list[float]
    pieces: list[str]
    starts: list[int]


def our_tokens(template: Template, ours: Ours) -> Tokens:
    """Return the trained tokens of our labels."""
    encoding = template.tokenizer.encode(ours.text, add_special_tokens=False)
    spans = [ours.weights[start:end] for start, end in encoding.offsets]
    weights = [max(span, default=0.0) if all(span) else 0.0 for span in spans]
    pieces = [ours.text[start:end] for start, end in encoding.offsets]
    return Tokens(encoding.ids, weights, pieces, [start for start, _ in encoding.offsets])


def collapsed(row: Row, media: set[int]) -> tuple[list[int], list[float]]:
    """Ids and weights of a framework, with one placeholder for a run of them."""
    kept = [i for i, id_ in enumerate(row["ids"]) if not (i and id_ in media and row["ids"][i - 1] == id_)]
    return [row["ids"][i] for i in kept], [row["weights"][i] for i in kept]


def judge(name: str, tokens: Tokens, sources: dict[str, list[float]], media: set[int]) -> Judged:
    """Our weights beside those of the sources that have our ids."""
    text = {source: _shown(tokens, weights) for source, weights in sources.items()}
    judged = Judged(name, "same", "", _shown(tokens, tokens.weights), text, tuple(sources))
    if not sources:
        judged.status = "alone"
        return judged
    wrong = []
    for i, weight in enumerate(tokens.weights):
        theirs = {round(weights[i], 6) for weights in sources.values()}
        if tokens.ids[i] in media:
            if weight:
                judged.status, judged.detail = "media", f"{tokens.pieces[i]} is a label"
                return judged
        elif round(weight, 6) not in theirs and i:
            wrong.append(i)
    if wrong:
        pieces = [tokens.pieces[i] for i in wrong]
        judged.detail = f"{len(wrong)} tokens: {pieces[:8]}"
        has_words = any(character.isalnum() for character in _THINK.sub("", "".join(pieces)))
        judged.status = (
            "space" if not "".join(pieces).strip() else "labels" if has_words or len(sources) > 1 else "words"
        )
    return judged


def _without_headers(tokens: Tokens, weights: Sequence[float]) -> list[float]:
    """Weights without those of the headers of roles, which LLaMA-Factory's version 1 trains, and nobody else."""
    result = list(weights)
    for i in range(len(result) - 2):
        if tokens.pieces[i] == "<|im_start|>" and tokens.pieces[i + 2] == "\n":
            result[i : i + 3] = [0.0] * 3
    return result


def _shown(tokens: Tokens, weights: Sequence[float]) -> str:
    by_character: list[float] = []
    for piece, weight in zip(tokens.pieces, weights, strict=True):
        by_character += [weight] * len(piece)
    return shown("".join(tokens.pieces), by_character)


def prefix_weights(prefix: Prefix, conversation: Row, tokens: Tokens, text: str) -> list[float] | None:
    """The weights that prefix rendering gives our tokens; None where it does not tell."""
    spans = prefix.spans(conversation)
    counts = conversation.get("wanted", [1.0] * len(spans))
    if None in spans or prefix.text(conversation) != text:
        return None
    weights = [0.0] * len(tokens.ids)
    for (start, end), count in zip((span for span in spans if span), counts, strict=True):
        for i, (at, piece) in enumerate(zip(tokens.starts, tokens.pieces, strict=True)):
            if at >= start and at + len(piece) <= end:
                weights[i] = count
    return weights


def rows_of_frameworks(name: str, folder: Path, rows: list[Row], kept: Path) -> tuple[dict[str, Any], list[str]]:
    """By framework and template: the rows by id; and what could not be run. No code of ours is in them: they are kept.

    Args:
        kept: the folder where they are kept.
    """
    kept.mkdir(parents=True, exist_ok=True)
    version = sha1(json.dumps(rows).encode()).hexdigest()[:12]
    asked: list[tuple[str, tuple[str, ...]]] = [("trl", ())]
    asked += [("swift", (SWIFT[name],))] if name in SWIFT else []
    asked += [("llamafactory", (template,)) for template in LLAMAFACTORY.get(name, ())]
    made, failed = {}, []
    for framework, names_ in asked:
        label = " ".join((framework, *(n for n in names_ if framework == "llamafactory")))
        file = kept / f"{name} {label} {version}.json".replace(":", "_")
        if not file.exists():
            try:
                with tempfile.TemporaryDirectory() as scratch:
                    file.write_text(json.dumps(run(framework, rows, folder, Path(scratch), *names_)))
            except (OSError, subprocess.SubprocessError) as error:
                failed.append(str(error)[-300:])
                continue
        made[label] = {row["id"]: row for row in json.loads(file.read_text())}
    return made, failed


def judge_template(name: str, folder: Path, rows: list[Row], frameworks: dict[str, Any]) -> Iterator[Judged]:
    """All conversations with one template."""
    template = build_template(name, folder, after_turn=True, empty=EmptyAnswerPolicy.train)
    prefix = Prefix(folder, **dict(template.spec.chat_template_kwargs))
    media = {template.token_id(token) for token in template.rules.media_tokens.values()}
    media_ids = {id_ for id_ in media if id_ is not None}
    for conversation in rows:
        label = f"{name}/{conversation['id']}"
        given = {key: value for key, value in conversation.items() if key not in ("id", "wanted", "key")}
        true_text = prefix.text(conversation)
        try:
            ours = render(template, sample_of(given))
        except Skip as skip:
            yield Judged(label, "skipped" if true_text is not None else "refused", str(skip))
            continue
        tokens = our_tokens(template, ours)
        if true_text is not None and true_text != ours.text:
            yield Judged(label, "text", "", ours.text, {"transformers": true_text})
            continue
        sources: dict[str, list[float]] = {}
        by_prefix = prefix_weights(prefix, conversation, tokens, ours.text)
        if by_prefix is not None:
            sources["prefix"] = by_prefix
        for framework, made in frameworks.items():
            row = made.get(conversation["id"], {})
            if "ids" in row:
                ids, weights = collapsed(row, media_ids)
                if ids == tokens.ids:
                    sources[framework] = _without_headers(tokens, weights) if "v1:" in framework else weights
        if ours.media_labels:
            yield Judged(label, "media", f"{ours.media_labels} labels")
            continue
        yield judge(label, tokens, sources, media_ids)
