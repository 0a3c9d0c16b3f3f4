"""Lay made samples out in rows of the shape of a training batch, among random words, with other boundaries."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import torch

from energon_pack.training.encoded import Encoded, text_of
from energon_pack.training.inputs import PROVEN
from energon_pack.training.layout import Form
from energon_pack.training.probe import Probe, probe_of, twins_of
from energon_pack.training.trial_inputs import members_of, special_ids
from energon_pack.training.watch import tokens_of

#: inputs of packs that some trainers leave out
_BOUNDARIES = frozenset(("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"))


def made_rows(model: Any, inputs: Mapping[str, Any], members: Sequence[Encoded], longest: int | None) -> Probe:
    """Lay samples and their twins out at the end of the first row; texts fill the other places that the batch fills.

    Texts are as long as the members of the batch; the first and shortest is compared, too.

    Args:
        model: a guarded model of transformers.
        inputs: of the batch.
        members: at least two.
        longest: tokens of a row up to which the model keeps members apart; None: any.
    """
    num_rows, width = tokens_of(inputs).shape[:2]
    spans = members_of(inputs)
    end = max((span.end for span in spans), default=width)
    compared = [*members, *twins_of(members)]
    compared = compared if longest is None or _length(compared) <= longest else [*members]
    lengths = sorted(span.end - span.start for span in spans) or [width]
    texts = _Texts(model, members)
    first = texts.filling(lengths, end - _length(compared))
    rows = [[*first, *compared], *(texts.filling(lengths[::-1], end) for _ in range(1, num_rows))]
    form = Form(width=max(width, _length(rows[0])), shifted=inputs.get("shift_labels") is not None)
    return probe_of(model, rows, PROVEN[model], [*first[:1], *compared], form)


def _length(row: Sequence[Encoded]) -> int:
    return sum(len(one.tokens) for one in row)


def made_inputs(model: Any, inputs: Mapping[str, Any], probe: Probe) -> dict[str, Any]:
    """Return the inputs of made rows, with the boundaries and switches that a batch has."""
    own = probe.batch.to(inputs["position_ids"].device).model_inputs(model, labels=False)
    return switches_of(inputs) | {
        name: value for name, value in own.items() if name in inputs or name not in _BOUNDARIES
    }


def switches_of(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a batch that are no data."""
    return {name: value for name, value in inputs.items() if isinstance(value, (bool, str))}


class _Texts:
    """Samples of random words, of those that some members have."""

    def __init__(self, model: Any, members: Sequence[Encoded]):
        ids = torch.cat([one.tokens.ids[one.tokens.types == 0] for one in members]).unique()
        self._words = ids[~torch.isin(ids, torch.tensor(special_ids(model.config)))]
        self._rows = members[0].tokens.rows
        self._random = torch.Generator().manual_seed(0)

    def filling(self, lengths: Sequence[int], space: int) -> list[Encoded]:
        """Return texts that fill some tokens; the last one is cut."""
        texts: list[Encoded] = []
        for length in cycle(lengths):
            if space < 2:
                return texts
            texts.append(self._text(min(max(length, 2), space)))
            space -= len(texts[-1].tokens)
        return texts

    def _text(self, length: int) -> Encoded:
        ids = self._words[torch.randint(len(self._words), (length,), generator=self._random)]
        return text_of(ids, self._rows)
