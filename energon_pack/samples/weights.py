"""How much each turn counts in the loss, as the turn itself says. Pure.

Each key keeps the meaning it has where it comes from:

    loss          ms-swift          a switch, of answers; true trains an answer whatever `labels.train_on` says
    loss_scale    ms-swift          a factor, of answers
    weight        OpenAI            a factor, of answers
    loss_weight   LLaMA-Factory v1  a factor, of any turn: a question has 0 without it
    train, training                 axolotl: a switch, of any turn
    masked, mask                    torchtune: a switch, of any turn; true: not trained
    loss_mask, trainable            a switch, of answers
"""

from collections.abc import Mapping
from typing import Any

from energon_pack.samples.documents import DOCUMENT
from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip

_FACTORS = frozenset(("loss_scale", "weight", "loss_weight"))
_SWITCHES = frozenset(("loss", "train", "training", "loss_mask", "trainable"))
_MASKS = frozenset(("masked", "mask"))
#: keys by which any turn may be trained, not only an answer
_OF_ANY_TURN = frozenset(("loss_weight", "train", "training", "masked", "mask"))
#: keys that train an answer which `labels.train_on` leaves out
_OVERRIDE = _OF_ANY_TURN | {"loss"}
#: sums of products of larger ones would lose all others in float32
_MOST = 1_000_000
TURN_WEIGHT_KEYS = _FACTORS | _SWITCHES | _MASKS


def turn_weight(message: Message, chosen: bool) -> float:
    """How much a turn counts.

    Args:
        chosen: whether the run trains such turns (`labels.train_on`).

    Returns:
        0: it is not trained. Several keys are multiplied.

    Raises:
        Skip: `bad_message` for a value that says nothing: below 0, or no number.
    """
    is_answer = message["role"] in ("assistant", DOCUMENT)
    weight, overrides = 1.0, False
    for key in TURN_WEIGHT_KEYS.intersection(message):
        if message[key] is None or (not is_answer and key not in _OF_ANY_TURN):
            continue
        if key not in _FACTORS and message[key] not in (0, 1):
            raise Skip(Reason.BAD_MESSAGE, f"{key} of a turn is {message[key]!r}, neither true nor false")
        value = number(message[key], f"{key} of a turn")
        weight *= 1 - value if key in _MASKS else value
        overrides |= key in _OVERRIDE
    return weight if (chosen and is_answer) or overrides else 0.0


def has_weight(message: Message) -> bool:
    """Whether a turn says how much it counts."""
    return not TURN_WEIGHT_KEYS.isdisjoint(message)


def says_zero(message: Message) -> bool:
    """Whether a turn says itself that it is not trained; raises Skip as `turn_weight`."""
    return has_weight(message) and turn_weight({**message, "role": "assistant"}, True) == 0


def sample_weight(fields: Mapping[str, Any]) -> float:
    """The factor of a whole sample, its field `weight`; 1 without one.

    Raises:
        Skip: `bad_message`, as `turn_weight`.
    """
    value = fields.get("weight")
    return 1.0 if value is None else number(value, "the sample's weight")


def number(value: Any, name: str) -> float:
    """A number of at least 0.

    Raises:
        Skip: `bad_message`: it is none, or more than `_MOST`.
    """
    if not isinstance(value, (bool, int, float)) or value < 0:
        raise Skip(Reason.BAD_MESSAGE, f"{name} is {value!r}, no number of at least 0")
    if not value <= _MOST:
        raise Skip(Reason.BAD_MESSAGE, f"{name} is {str(value)[:40]}, more than {_MOST:,}")
    return float(value)
