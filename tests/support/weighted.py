"""Conversations whose turns say how much they count."""

from typing import Any


def turns(*weights: float) -> list[dict[str, Any]]:
    """A conversation whose answers have these weights."""
    made: list[dict[str, Any]] = []
    for number, weight in enumerate(weights):
        made += [
            {"role": "user", "content": f"Ask {number}"},
            {"role": "assistant", "content": f"Say {number}", "loss_scale": weight},
        ]
    return made
