"""The settings of `labels` as caches and datasets record them: without later ones that have their defaults."""

from collections.abc import Mapping, Sequence
from typing import Any

from energon_pack.run.plain_data import dataclass_from_plain, plain
from energon_pack.templates.settings import FINAL_END_AUTO, FINAL_END_NONE, LabelSettings

#: settings of `labels` of later versions, with their defaults
_LATER_LABELS = {
    "untrained": "drop",
    "cut_end": True,
    "empty": "drop",
    "template_drops": "skip",
    "final_end": FINAL_END_AUTO,
}


def labels_without_new_defaults(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of `labels`, as JSON, without later ones that have their defaults.

    Caches and datasets from before these settings stay valid so.
    """
    return {name: value for name, value in labels.items() if value != _LATER_LABELS.get(name, ...)}


def recorded_labels(labels: LabelSettings, final_ends: Sequence[str]) -> dict[str, Any]:
    """Return the settings of `labels` as caches and datasets record them.

    `final_end` is left out where no token is added: by `auto`, and by all that was packed before this setting existed.
    """
    values = labels_without_new_defaults(plain(labels))
    return {**values, "final_end": labels.final_end} if final_ends else values


def labels_from_recorded(values: Mapping[str, Any]) -> LabelSettings:
    """Return the settings that `recorded_labels` made values of."""
    return dataclass_from_plain(LabelSettings, {"final_end": FINAL_END_NONE, **values})
