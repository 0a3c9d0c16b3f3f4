"""Reads how much each turn counts in the loss, from the turn's own keys. Pure.

Each key has the meaning of the tool it comes from:

    loss          ms-swift          a switch for answers; true trains an answer whatever `labels.train_on` says
    loss_scale    ms-swift          a factor for answers
    weight        OpenAI            a factor for answers
    loss_weight   LLaMA-Factory v1  a factor for any turn: a question has 0 without it
    train, training                 axolotl: a switch for any turn
    masked, mask                    torchtune: a switch for any turn; true: not trained
    loss_mask, trainable            a switch for answers

An answer that several turns write, each with a weight of its own, is one turn: its `part_weights` hold the weight keys
of each of its parts (`turns.join_tool_call_turns`).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from energon_pack.samples.documents import DOCUMENT
from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip

_FACTOR_KEYS = frozenset(("loss_scale", "weight", "loss_weight"))
_SWITCH_KEYS = frozenset(("loss", "train", "training", "loss_mask", "trainable"))
MASK_KEYS = frozenset(("masked", "mask"))
#: keys that can train any turn, not only an answer
_KEYS_OF_ANY_TURN = frozenset(("loss_weight", "train", "training", "masked", "mask"))
#: keys that train an answer even if `labels.train_on` leaves it out
_OVERRIDING_KEYS = _KEYS_OF_ANY_TURN | {"loss"}
#: with larger weights, float32 sums of losses would lose all other terms
MAX_WEIGHT = 1_000_000
TURN_WEIGHT_KEYS = _FACTOR_KEYS | _SWITCH_KEYS | MASK_KEYS
#: the key of a turn that says how much each of its parts counts: for each text and for the calls, as
#: `{"content": [[7, {"loss": false}]], "tool_calls": [[1, {}]]}`, the length of each part, and its weight keys
PART_WEIGHTS = "part_weights"
PART_KEYS = ("reasoning", "content", "tool_calls")


class PartWeights(NamedTuple):
    """The weights of the parts of a turn."""

    texts: list[float]  # of each part of the reasoning, and of the content
    calls: list[float]  # of each tool call


def turn_weight(message: Message, is_trained: bool) -> float:
    """Return a turn's weight in the loss: 1 if its own keys set none, 0 if it is not trained.

    The values of several keys are multiplied. Raises Skip (`bad_message`) for a value that is no weight.

    Args:
        is_trained: whether `labels.train_on` trains this turn if it is an answer; some keys override that.
    """
    if PART_WEIGHTS in message:
        parts = weights_of_parts(message, is_trained)
        return max(parts.texts + parts.calls)
    is_answer = message["role"] in ("assistant", DOCUMENT)
    weight, overrides = 1.0, False
    for key in TURN_WEIGHT_KEYS.intersection(message):
        if message[key] is None or (not is_answer and key not in _KEYS_OF_ANY_TURN):
            continue
        if key not in _FACTOR_KEYS and message[key] not in (0, 1):
            raise Skip(Reason.BAD_MESSAGE, f"{key} of a turn is {message[key]!r}, neither true nor false")
        value = checked_weight(message[key], f"{key} of a turn")
        weight *= 1 - value if key in MASK_KEYS else value
        overrides |= key in _OVERRIDING_KEYS
    return weight if (is_trained and is_answer) or overrides else 0.0


def weights_of_parts(message: Message, is_trained: bool) -> PartWeights:
    """Return the weights of the parts of a turn that has `part_weights`, times the weight that its own keys set.

    Raises Skip as `turn_weight` does; `is_trained`: as there.
    """
    turn = {key: message[key] for key in TURN_WEIGHT_KEYS.intersection(message)}
    own = turn_weight({"role": message["role"], **turn}, True)
    parts = {
        name: [(num, own * turn_weight({"role": message["role"], **keys}, is_trained)) for num, keys in parts]
        for name, parts in message[PART_WEIGHTS].items()
    }
    texts = [weight for name in PART_KEYS[:2] for _, weight in parts.get(name, ())]
    return PartWeights(texts, [weight for num, weight in parts.get(PART_KEYS[2], ()) for _ in range(num)])


def has_weight(message: Message) -> bool:
    """Tell whether a turn has a key for its weight."""
    return PART_WEIGHTS in message or not TURN_WEIGHT_KEYS.isdisjoint(message)


def has_zero_weight(message: Message) -> bool:
    """Tell whether a turn's own keys set its weight to 0; raises Skip as `turn_weight` does."""
    return has_weight(message) and turn_weight({**message, "role": "assistant"}, True) == 0


def with_zero_weight(message: Message) -> Message:
    """Return a turn with `loss_weight: 0`, so that it is not trained; a turn that is never trained stays unchanged."""
    return {**message, "loss_weight": 0} if turn_weight(message, True) else message


def sample_weight(fields: Mapping[str, Any]) -> float:
    """Return the weight of a whole sample in the loss: its field `weight`, or 1."""
    value = fields.get("weight")
    return 1.0 if value is None else checked_weight(value, "the sample's weight")


def checked_weight(value: Any, name: str) -> float:
    """Return a weight as a float; raises Skip unless it is a number from 0 to a million. `name`: for the message."""
    if not isinstance(value, (bool, int, float)) or not value >= 0:
        raise Skip(Reason.BAD_MESSAGE, f"{name} is {value!r}, no number of at least 0")
    if not value <= MAX_WEIGHT:
        raise Skip(Reason.BAD_MESSAGE, f"{name} is {str(value)[:40]}, more than {MAX_WEIGHT:,}")
    return float(value)
