"""Conversations whose turns say how much they count, and their weights in what a template renders."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from energon_pack.samples.weights import turn_weight
from energon_pack.templates.template import Rendered, Sample, Template


def turns(*weights: float) -> list[dict[str, Any]]:
    """A conversation whose answers have these weights."""
    made: list[dict[str, Any]] = []
    for number, weight in enumerate(weights):
        made += [
            {"role": "user", "content": f"Ask {number}"},
            {"role": "assistant", "content": f"Say {number}", "loss_scale": weight},
        ]
    return made


def render_weights(patch: pytest.MonkeyPatch) -> None:
    """Have templates give the weights of spans, where they do not by themselves: each answer is one span."""
    patch.setattr(Template, "render", _with_weights(Template.render))


def _with_weights(render: Callable[[Template, Sample], Rendered]) -> Callable[[Template, Sample], Rendered]:
    def rendered(template: Template, sample: Sample) -> Rendered:
        made = render(template, sample)
        weights = [turn_weight(message, True) for message in sample.messages if message["role"] == "assistant"]
        if made.weights or len(weights) != len(made.spans):
            return made
        pairs = [(span, weight) for span, weight in zip(made.spans, weights, strict=True) if weight]
        return replace(made, spans=[span for span, _ in pairs], weights=[weight for _, weight in pairs])

    return rendered
