"""What a record means, said a second time: which turns are written, what each counts, how they look in a template.

Written from the trackers' meaning (`../shared/research/labels.md` §4), not from `energon_pack.samples`: the fuzzer
compares the two. `TEMPLATE` is a chat template that writes all that a record can say; `written` is the same in Python.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TEMPLATE = """
{%- if mood %}{{ '[' ~ mood ~ ']' }}{% endif -%}
{%- if tools %}{{ '<|im_start|>tools\\n' ~ tools | tojson ~ '<|im_end|>\\n' }}{% endif -%}
{%- for m in messages -%}
{{ '<|im_start|>' ~ m.role ~ '\\n' }}
{%- if m.reasoning_content %}{{ '<think>' ~ m.reasoning_content ~ '</think>' }}{% endif -%}
{%- if m.content is string %}{{ m.content }}{% else -%}
{%- for part in m.content -%}
{%- if part.type == 'text' %}{{ part.text }}
{%- else %}{{ '<|vision_start|><|' ~ part.type ~ '_pad|><|vision_end|>' }}{% endif -%}
{%- endfor -%}
{%- endif -%}
{%- for call in m.tool_calls or [] -%}
{{ '<call>' ~ call.function.name ~ call.function.arguments | tojson ~ '</call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""
_ANY_ROLE = ("loss_weight", "train", "training", "masked", "mask")
_FACTORS = ("loss_scale", "weight", "loss_weight")
_SWITCHES = ("loss", "train", "training", "loss_mask", "trainable")
_MASKS = ("masked", "mask")
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")


class Refused(Exception):
    """A record that can't be honoured: it has to cost the sample."""


@dataclass
class Turn:
    """One turn of the written conversation."""

    role: str
    #: pieces of text, and `image` or `video` where a medium stands
    content: list[str]
    thought: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    #: what the turn says of its weight, as in the record
    said: dict[str, Any] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        """How much it counts; raises Refused for a value that says nothing."""
        answers = self.role == "assistant"
        weight, trained = 1.0, answers
        for key, value in self.said.items():
            if value is None or (not answers and key not in _ANY_ROLE):
                continue
            if not isinstance(value, (bool, int, float)) or value < 0:
                raise Refused(key)
            if key in _SWITCHES + _MASKS and value not in (0, 1):
                raise Refused(key)
            if key in _FACTORS:
                weight *= float(value)
            else:
                weight *= float(value if key in _SWITCHES else not value)
            trained |= key in _ANY_ROLE
        return weight if trained else 0.0


@dataclass
class Meaning:
    """A whole record."""

    turns: list[Turn]
    tools: list[Any] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)
    weight: float = 1.0

    def written(self) -> tuple[str, list[float | None]]:
        """The text, and how much each character counts; None: that is left open (headers, space after the end)."""
        text, weights = "", []

        def add(piece: str, weight: float | None) -> None:
            nonlocal text
            text += piece
            weights.extend([weight] * len(piece))

        if self.variables.get("mood"):
            add(f"[{self.variables['mood']}]", 0.0)
        if self.tools:
            add(f"<|im_start|>tools\n{json.dumps(self.tools, ensure_ascii=False)}<|im_end|>\n", 0.0)
        for turn in self.turns:
            weight = turn.weight
            is_answer = turn.role == "assistant"
            add(f"<|im_start|>{turn.role}\n", 0.0 if is_answer or not weight else None)
            if turn.thought:
                add("<think>", weight if is_answer or not weight else None)  # of a question, its text alone is told
                add(f"{turn.thought}</think>", weight)
            for piece in turn.content:
                if piece in ("image", "video"):
                    add(f"<|vision_start|><|{piece}_pad|><|vision_end|>", 0.0)
                else:
                    add(piece, weight)
            for name, arguments in turn.calls:
                add(f"<call>{name}{json.dumps(arguments, ensure_ascii=False)}</call>", weight)
            add("<|im_end|>", weight if is_answer or not weight else None)
            add("\n", None)
        return text, weights


def say(meaning: Meaning, place: str, index: int, key: str, value: Any) -> bool:
    """Add what a key says to a meaning.

    Args:
        index: of the turn it stands in.

    Returns:
        Whether this implementation knows the key.

    Raises:
        Refused: it has to cost the sample.
    """
    if place == "turn":
        return _of_turn(meaning.turns[index], key, value)
    return _of_sample(meaning, key, value) if place == "sample" else False


def _of_turn(turn: Turn, key: str, value: Any) -> bool:
    if key in _FACTORS + _SWITCHES + _MASKS:
        turn.said[key] = value
        turn.weight  # noqa: B018 - a value that says nothing is refused
    elif key in _THOUGHTS:
        if value is not None and not isinstance(value, str):
            raise Refused(key)
        turn.thought = turn.thought or value or ""
    elif key == "tool_calls":
        if value is not None and not (isinstance(value, list) and all(isinstance(call, dict) for call in value)):
            raise Refused(key)
        turn.calls += [(call["function"]["name"], _object(call["function"]["arguments"])) for call in value or []]
    elif key == "function_call" and turn.role == "assistant":
        if value is not None and not (isinstance(value, dict) and isinstance(value.get("name"), str)):
            raise Refused(key)
        turn.calls += [(value["name"], _object(value["arguments"]))] if value else []
    else:
        return False
    return True


def _of_sample(meaning: Meaning, key: str, value: Any) -> bool:
    if key == "weight":
        if value is not None and (not isinstance(value, (bool, int, float)) or value < 0):
            raise Refused(key)
        meaning.weight = 1.0 if value is None else float(value)
    elif key in ("system", "system_prompt") and (value is None or isinstance(value, str)):
        first = meaning.turns[0]
        if value and first.role == "system" and first.content != [value]:
            raise Refused(key)  # two system prompts that differ
        if value and first.role not in ("system", "document"):
            meaning.turns.insert(0, Turn("system", [value]))
    elif key in ("tools", "functions"):
        if key == "functions" and meaning.tools:
            return True
        if value is not None and not isinstance(value, list):
            raise Refused(key)
        meaning.tools = meaning.tools or [_schema(item) for item in value or []]
    elif key == "chat_template_kwargs":
        if value is not None and not isinstance(value, Mapping):
            raise Refused(key)
        meaning.variables |= value or {}
    elif key in ("rejected_response", "rejected_messages", "rejected_images"):
        if value is not None:
            raise Refused(key)
    elif key in ("label", "kto_tag") and str(value).lower() in ("true", "false", "1", "0"):
        raise Refused(key)
    else:
        return False
    return True


def _object(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


def _schema(item: Any) -> Any:
    return item if "function" in item or "type" in item else {"type": "function", "function": item}
