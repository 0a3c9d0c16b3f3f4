"""Rows of M-RoPE that a class makes by a rule of its own: asked of the class, member by member, without weights."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from energon_pack.training.layout import Member

#: what `forward` takes a medium as, and `get_rope_index` by another name
_OTHER_NAMES = {"second_per_grids": "video_second_per_grid"}
NUM_ROWS = 3


class RowsError(ValueError):
    """A class makes no rows of M-RoPE of what its processor gives."""


class OwnRope:
    """The rows of one class of models."""

    def __init__(self, make: Any, config: Any):
        """Make a model of a class, without weights.

        Args:
            make: with a module that has `get_rope_index`.
            config: for a small model of it.

        Raises:
            Exception: whatever the class raises for the config.
        """
        self._make, self._config = make, config
        with torch.device("meta"):
            model = make._from_config(config)
        self._ask = next(part for part in model.modules() if hasattr(part, "get_rope_index")).get_rope_index
        self._takes = frozenset(inspect.signature(self._ask).parameters)

    def __reduce__(self) -> tuple[type["OwnRope"], tuple[Any, Any]]:
        """Another process makes a model of its own."""
        return OwnRope, (self._make, self._config)

    def __call__(self, ids: Tensor, types: Tensor, media: Mapping[str, Tensor]) -> Tensor:
        """The rows of one member.

        Args:
            ids: [L].
            types: [L]: 0 text, 1 image, 2 video.
            media: its own media inputs.

        Returns:
            [3, L] int64.

        Raises:
            RowsError: the class makes none, or others.
        """
        if not media:
            return torch.arange(len(ids)).expand(NUM_ROWS, -1)
        given = {
            "input_ids": ids[None],
            "mm_token_type_ids": types[None],
            "attention_mask": torch.ones_like(ids)[None],
            **media,
            **{name: media[other] for name, other in _OTHER_NAMES.items() if other in media},
        }
        try:
            rows: Tensor = self._ask(**{name: value for name, value in given.items() if name in self._takes})[0]
        except Exception as error:  # foreign code, with a config that may say too little
            said = " ".join(f"{type(error).__name__} {error}".split())[:200]
            raise RowsError(f"{self._make.__name__} makes no positions of its processor's tokens: {said}") from None
        if rows.shape != (NUM_ROWS, 1, len(ids)):
            raise RowsError(
                f"{self._make.__name__} has {len(rows)} rows of positions, batches have room for {NUM_ROWS} beside that"
                " of the text: train it on unpacked samples"
            )
        return rows[:, 0].long()

    def check(self, members: Sequence[Member]) -> None:
        """Look at the rows of some members.

        Raises:
            RowsError: media have no place of their own in them: the class looks for other tokens.
        """
        for member in members:
            if member.types.any() and member.rope is not None and bool((member.rope == member.rope[0]).all()):
                raise RowsError(
                    f"{self._make.__name__} finds no media in the tokens of this processor: config.json of the model in"
                    " the processor's folder says which tokens it looks for"
                )
