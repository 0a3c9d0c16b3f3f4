"""Get M-RoPE rows from a model class with its own rule: member by member, without weights."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from energon_pack.samples.input_rules import InputRules
from energon_pack.samples.media.kinds import IMAGE, VIDEO
from energon_pack.templates.folder import first_setting
from energon_pack.training.encoded import HEARD, are_heard
from energon_pack.training.layout import Member
from energon_pack.training.rope import ROPE_KINDS, Rope

#: name of an input in `forward` → its name in `get_rope_index`
_OTHER_NAMES = {"second_per_grids": "video_second_per_grid"}
#: lengths of sounds by their name in `get_rope_index`, and the mask that tells them
_LENGTHS = {"audio_seqlens": "feature_attention_mask"}
NUM_ROWS = 3
_SEEN = torch.tensor([IMAGE.token_type, VIDEO.token_type])


class RowsError(ValueError):
    """A class can't make M-RoPE rows from its processor's output."""


class OwnRope:
    """Makes M-RoPE rows as one model class does."""

    def __init__(self, make: Any, config: Any):
        """Make a model of a class, without weights."""
        self._make, self._config = make, config
        with torch.device("meta"):
            model = make._from_config(config)
        self._ask = next(part for part in model.modules() if hasattr(part, "get_rope_index")).get_rope_index
        self._takes = frozenset(inspect.signature(self._ask).parameters)

    def __reduce__(self) -> tuple[type["OwnRope"], tuple[Any, Any]]:
        """Pickle only the class and the config; another process makes its own model."""
        return OwnRope, (self._make, self._config)

    def __call__(self, ids: Tensor, types: Tensor, media: Mapping[str, Tensor]) -> Tensor:
        """Return the rows of one member.

        Args:
            ids: [L].
            types: [L]: 0 text, 1 image, 2 video, 3 sound.
            media: the member's media inputs.

        Returns:
            [3, L] int64.
        """
        if not media:
            return torch.arange(len(ids)).expand(NUM_ROWS, -1)
        given = {
            "input_ids": ids[None],
            "mm_token_type_ids": types[None],
            "attention_mask": torch.ones_like(ids)[None],
            **media,
            **{name: media[other] for name, other in _OTHER_NAMES.items() if other in media},
            **{name: media[mask].sum(-1) for name, mask in _LENGTHS.items() if mask in media},
            HEARD: are_heard(types),
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
        """Check that rows give images and videos other positions than text; sounds are numbered as text is."""
        for member in members:
            is_seen = bool(torch.isin(member.types, _SEEN).any())
            if is_seen and member.rope is not None and bool((member.rope == member.rope[0]).all()):
                raise RowsError(
                    f"{self._make.__name__} finds no media in the tokens of this processor: config.json of the model in"
                    " the processor's folder says which tokens it looks for"
                )


def rope_of(
    stated: str | None, rules: InputRules, tokens_per_second: float | None = None, is_needed: bool = True
) -> Rope | OwnRope | None:
    """Return the rule of M-RoPE for the batches of a dataset; None: plain positions.

    If the dataset states `none` or `auto`, the models that go with its processor are asked instead.

    Args:
        tokens_per_second: of Qwen2.5-VL's vision config; None: as the processor's folder says.
        is_needed: whether batches hold the rows.
    """
    if stated is None:
        raise ValueError("this dataset does not say what positions its model takes (model.rope): pack it again")
    folder = Path(rules.folder)
    kind: str | None = stated
    if stated not in ROPE_KINDS:
        from energon_pack.training.found_rope import found_rope  # builds small models

        kind = found_rope(folder) if rules.media_tokens else "none"
        if kind is None and is_needed:
            return _own_rope_of(rules)
    if kind not in ROPE_KINDS:
        return None
    vision = first_setting(folder, ("config.json",), "vision_config") or {}
    seconds = vision.get("tokens_per_second") if tokens_per_second is None else tokens_per_second
    return Rope(kind, int(rules.settings[IMAGE.kind]["merge_size"]), seconds)


def _own_rope_of(rules: InputRules) -> OwnRope:
    from energon_pack.training.found_rope import small_config, with_rows

    folder = Path(rules.folder)
    make = with_rows(folder)
    try:
        return OwnRope(make, small_config(make, rules))
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise ValueError(
            f"{make.__name__} of the processor in {folder} takes M-RoPE rows of its own, and can't be asked for them"
            f" ({' '.join(str(error).split())[:200]}): train with layout=thd in a framework that computes them, or on"
            " unpacked samples"
        ) from None
