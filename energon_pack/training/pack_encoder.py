"""Turn members into encoded packs, and packs into batches in which no member sees another.

    members of a pack ─encode─► each encoded alone ─batch─► one row a pack (neat), or one physical row (thd)

Every reader of packs uses it: Energon's task encoder, webdataset's stages, datasets that pack while loading.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import get_worker_info

from energon_pack.samples.input_rules import InputRules, max_pack_len
from energon_pack.samples.media.kinds import IMAGE
from energon_pack.samples.member import LengthChangedError, MemberInput
from energon_pack.samples.pack_reader import PackMembers
from energon_pack.training.batch import PackedBatch
from energon_pack.training.encoded import BadPack, EncodedMembers, Members, TrainingPack
from energon_pack.training.forward_inputs import refuse_missing_hybrid_kernels, refuse_several_rows
from energon_pack.training.joining import JoinError
from energon_pack.training.layout import IGNORE, Batch, RowForm, lay_out_neat_rows, seq_idx
from energon_pack.training.media_inputs import media_lens_of_packs
from energon_pack.training.member_encoder import Encoded, MemberEncoder, UnreadableMember
from energon_pack.training.rope import RopeRowsError
from energon_pack.training.rope_rule import rope_rule_of
from energon_pack.training.worker_start import keep_freed_memory_in_worker

if TYPE_CHECKING:
    from energon_pack.training.preference import PairBatchKeys
    from energon_pack.training.probe_batches import ProbeTree
    from energon_pack.training.tower import TowerInputMaker

_log = logging.getLogger(__name__)
_OPTION_VALUES = {
    "layout": ("neat", "thd", "rows", "mlm"),
    "labels": ("unshifted", "shifted"),
    "loss_weight": (None, "token", "sample", "sqrt"),
    "attention_mask": (None, "auto", "positions", "dict4d", "prefix4d", "hybrid", "indexed"),
    "on_bad_member": ("raise", "drop"),
}
#: errors that are no fault of a member
_SETUP_ERRORS = (ImportError, NotImplementedError, JoinError, RopeRowsError)
#: options that only some layouts support, with these layouts; a false value asks for nothing
_LAYOUTS_OF_OPTION = {
    "labels": ("unshifted", ("neat", "thd", "rows")),
    "loss_weight": (None, ("neat", "thd", "rows")),
    "attention_mask": (None, ("neat",)),
    "rope_rows": (False, ("neat", "thd")),
    "pad_segments": (None, ("neat", "thd")),
}


def check_options(options: Mapping[str, Any], layout: str) -> None:
    """Check options of `PackEncoder`: TypeError for an unknown one, ValueError for a value that a layout lacks."""
    names = [*signature(PackEncoder).parameters][2:]
    if unknown := next((name for name in options if name not in names), None):
        raise TypeError(f"{unknown}={options[unknown]}: no such option; there are: {', '.join(names)}")
    for name, choices in _OPTION_VALUES.items():
        if name in options and options[name] not in (*choices, *[None] * (name == "layout")):
            raise ValueError(f"{name}={options[name]}: one of {', '.join(map(str, choices))}")
    shapes = options.get("pad_to", "longest"), options.get("pad_segments")
    if shapes != ("longest", None):
        from energon_pack.training.fixed_shapes import check_padding_options

        check_padding_options(*shapes)
    layout = options.get("layout") or layout
    for name, (default, served) in _LAYOUTS_OF_OPTION.items():
        if options.get(name, default) != default and layout not in served:
            raise ValueError(f"{name}={options[name]}: layout={layout} has none; for {', '.join(served)}")


class PackEncoder:
    """Encodes packs for one model.

    Args:
        made: energon_pack.json of the dataset, which says how it was packed.
        rules: how the processor is called, and what it makes.
        layout: `neat`, `thd`, `rows` (Megatron-Bridge up to 0.5) or `mlm` (Megatron-LM's multimodal example); by
            default the one the dataset was packed for.
        pad_to: width of a batch: its `longest` row; always `max_token_len` (pipeline and expert parallelism, CUDA
            graphs); the next multiple of a number of tokens; or the next of a list of widths.
        pad_segments: number of segments (members and pad tail) of a batch, filled up with empty ones, so that the
            number of boundaries stays the same (neat, thd). The longest is then said to be as long as the row.
        labels: `unshifted`, as transformers wants them, or `shifted` within each member (neat; thd's always are).
        loss_weight: `token`, `sample` or `sqrt`: batches then have weights; they always have some if the samples do.
        attention_mask: how members are kept apart, in place of `model.mask` (the default): `positions`, `dict4d`,
            `prefix4d`, `hybrid`, `auto` (the one that `guard` finds), or `indexed` for stacks patched for it.
        pad_to_multiple_of: thd pads each member to a multiple of this, a divisor of the packing's, the default.
        rope_rows: `position_ids` of thd are the three rows of M-RoPE, [3, 1, T].
        on_bad_member: `raise` with its name, or `drop` only this member; `num_dropped` of the batch counts them.
        dummy_image: add a blank image's inputs, as `dummy_…`, to a batch without images: see `touch_vision`.
        tokens_per_second: `tokens_per_second` of Qwen2.5-VL's vision config, needed for videos if the processor's
            folder has no config.json: without either, a video ends the training.
        reference_logps: for preference pairs, a file of `recipes/reference_logps.py`: batches have its values.

    Raises:
        ValueError: an option has no such value; no rule joins this processor's media inputs.
        MixingError: a hybrid model whose kernels are missing.
    """

    def __init__(
        self,
        made: Mapping[str, Any],
        rules: InputRules,
        *,
        layout: str | None = None,
        pad_to: str | int | Sequence[int] = "longest",
        pad_segments: int | None = None,
        labels: str = "unshifted",
        loss_weight: str | None = None,
        attention_mask: str | None = None,
        pad_to_multiple_of: int | None = None,
        rope_rows: bool = False,
        on_bad_member: str = "raise",
        dummy_image: bool = False,
        tokens_per_second: float | None = None,
        reference_logps: str | None = None,
    ):
        self._options = options = {n: value for n, value in locals().items() if n not in ("self", "made", "rules")}
        self.made, self.layout, self.rules = made, layout or made["layout"], rules
        check_options(options, self.layout)
        #: whether the dataset's samples may share their beginnings
        self.has_trees = made["content"].get("packing", {}).get("share", "none") != "none"
        #: the keys that preference pairs add to a batch; None: the dataset has no pairs
        self.pairs: PairBatchKeys | None = None
        if made.get("pairs") or reference_logps is not None:
            from energon_pack.training import preference

            self.pairs = preference.PairBatchKeys(made, self.layout, options)
        #: whether labels stand where they are predicted
        self.labels_shifted = labels == "shifted"
        #: a kind of `layout.loss_weights`
        self.loss_weight = loss_weight
        #: how members are kept apart
        self.mask = attention_mask or made["mask"]
        self.max_token_len = max_pack_len(made)  # of a pack
        self._max_audios: int | None = made["content"].get("packing", {}).get("max_audios")
        self._pad_to, self._num_segments = pad_to, pad_segments
        #: makes values for the tower of a guarded model, if it has one
        self.tower: TowerInputMaker | None = None
        self._is_hybrid = (made["mask"] if self.mask == "indexed" else self.mask) == "hybrid"
        self._drop, self._dummy = on_bad_member == "drop", dummy_image and IMAGE.kind in rules.media_tokens
        is_neat, multiple, with_rows = self.layout == "neat", 1, rope_rows or self.layout == "neat"
        rope = rope_rule_of(made["content"]["model"].get("rope"), rules, tokens_per_second, with_rows)
        if not is_neat:
            from energon_pack.training.megatron_layouts import choose_pad_multiple

            multiple = choose_pad_multiple(pad_to_multiple_of, made["pad_to_multiple_of"])
        self._widths: Sequence[int] = ()
        if pad_to != "longest":
            from energon_pack.training.fixed_shapes import allowed_widths

            of_width = 1 if self.layout == "rows" else multiple  # each member is a row of its own
            self._widths = allowed_widths(pad_to, made["max_token_len"], self.max_token_len, of_width)
        self._form = RowForm(
            pad_id=rules.token_id(rules.tokens.get("pad_token", "")) or 0,
            multiple=multiple,
            shifted=self.labels_shifted,
            weights=loss_weight,
            rope=rope is not None and with_rows,
        )
        if is_neat and self._is_hybrid:
            refuse_missing_hybrid_kernels()
        self.members = MemberEncoder(rules, rope)
        self.members.check_processor()

    def encode(self, key: str, members: Iterable[MemberInput | UnreadableMember]) -> TrainingPack | None:
        """Encode the members of a pack; None: all were dropped. BadPack: a member can't be encoded."""
        keep_freed_memory_in_worker()
        dropped: list[str] = []

        def on_bad(member: MemberInput | UnreadableMember, error: Exception) -> None:
            fault = f"{member.sample_id} in {key}: {type(error).__name__}: {error}"
            if not self._drop or isinstance(error, _SETUP_ERRORS):
                raise BadPack(f"{fault} (on_bad_member=drop leaves such a member out)") from error
            _log.warning("left out: %s", fault)
            dropped.append(member.sample_id)

        try:
            listed = members if isinstance(members, PackMembers) else [*members]
            encoded, media = self.members.encode_together(listed, on_bad)
            alone = listed[0] if isinstance(listed, list) and len(listed) == 1 else None
            is_new = isinstance(alone, MemberInput) and alone.token_len is None
            widest = self._widths[-1] if self._widths else math.inf
            if alone is not None and is_new and encoded and self._padded_len(encoded.tokens) > widest:
                num = len(encoded.tokens.ids)
                on_bad(alone, ValueError(f"{num} tokens, more than pad_to={self._pad_to} has room for"))
                return None
        except (BadPack, LengthChangedError) as error:
            raise BadPack(str(error)) from error.__cause__
        except Exception as error:  # conversations and joined media raise anything
            raise BadPack(f"{key}: {type(error).__name__}: {error}") from error
        if encoded.tokens.is_tree:
            from energon_pack.training.tree_rows import refuse_invalid_trees

            try:
                refuse_invalid_trees([*encoded.tokens], encoded.sample_ids)
            except ValueError as error:
                raise BadPack(f"{key}: {error}") from None
        pack = TrainingPack(key, encoded, media, dropped) if encoded else None
        return pack if self.pairs is None else self.pairs.without_broken_pairs(pack, listed, partial(self.encode, key))

    def batch(self, packs: Sequence[TrainingPack]) -> PackedBatch:
        """Lay encoded packs out in one batch, in the encoder's layout. BadPack: they can't be."""
        members = [EncodedMembers.of(pack.members) for pack in packs]
        tokens = [one.tokens for one in members]
        if self.layout != "neat" or self._num_segments is not None or self.mask in ("hybrid", "prefix4d", "indexed"):
            from energon_pack.training.refusals import refuse_trees_and_weights

            refuse_trees_and_weights(packs, self.layout, self._num_segments, self.mask)
        try:
            if self.layout == "neat":
                batch = self._neat(tokens)
            elif len(tokens) > 1:
                raise ValueError(f"layout={self.layout} holds one pack a batch, not {len(tokens)}: batch_size=1")
            else:
                from energon_pack.training import megatron_layouts as layouts

                make = {"thd": layouts.thd, "rows": layouts.one_row_per_member, "mlm": layouts.multimodal}[self.layout]
                batch = PackedBatch(make(tokens[0], self._row_form_of(tokens)))
            if self._num_segments is not None:
                from energon_pack.training.fixed_shapes import padded_boundaries

                batch |= padded_boundaries(batch, self._num_segments)
            batch.mask = self.mask
            media = self._joined_media(packs)
        except ValueError as error:
            raise BadPack(f"{', '.join(pack.key for pack in packs)}: {error}") from None
        if media and self.layout == "neat":
            batch.media_lens = tuple(batch["cu_seq_lens_q"].tolist()), media_lens_of_packs(media, members)
        batch |= self._named_media(media, batch, any(map(any, (one.num_images for one in members))))
        batch |= {
            "n_images_per_sample": self._media_counts([one.num_images for one in members]),
            "n_videos_per_sample": self._media_counts([one.num_videos for one in members]),
            "num_tokens": sum(pack.num_tokens_in_row for pack in tokens),
            "num_trained": int((batch["labels"] != IGNORE).sum()),  # a member's first token is never trained
            "sample_ids": [[*one.sample_ids] for one in members],
            "num_dropped": sum(len(pack.dropped) for pack in packs),
            "__key__": [pack.key for pack in packs],
        }
        if self.pairs is not None:
            batch |= self.pairs(batch)
        if self.tower is not None and self.layout == "neat":
            batch |= self.tower(media)
        return batch.in_one_buffer() if get_worker_info() is not None else batch  # it crosses to another process

    def _joined_media(self, packs: Sequence[TrainingPack]) -> dict[str, torch.Tensor]:
        """Join the media inputs of a batch's packs; ValueError if no rule joins them."""
        try:
            return self.members.join_media_inputs(pack.media for pack in packs)
        except ValueError as error:
            cure = "a pack a batch (batch_size=1), or media.video=uniform: as many frames in all clips"
            raise ValueError(f"{error}; {cure}") from None

    def use_tower(self, tower: "TowerInputMaker | None") -> None:
        """Precompute a vision tower's inputs for each batch in `layout=neat`; None: stop that. `guard` calls this."""
        self.tower = tower

    def probe_members(self) -> list[Encoded]:
        """Return short samples for `guard` to try a model with: text, and random media of each kind."""
        return self.members.probe_members(several_sounds=self._max_audios != 1)

    def probe_tree(self, members: Sequence[Encoded]) -> "ProbeTree | None":
        """Return these samples as trees (samples that share beginnings); None: the dataset has no trees."""
        from energon_pack.training.probe_batches import make_probe_tree

        return make_probe_tree(members, self.members.concatenate) if self.has_trees else None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the arguments: a spawned worker makes a new encoder."""
        return _unpickle, (self.made, self.members.media_processor.rules_with_trial_results, self._options, self.tower)

    def _padded_len(self, pack: Members) -> int:
        """Return how many tokens a pack's members take, each rounded up, shared tokens once."""
        multiple = self._form.multiple
        return int((-(-pack.lens // multiple) * multiple).sum()) - len(pack.ids) + pack.num_tokens_in_row

    def _media_counts(self, counts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the counts of each pack in `neat`, else those of each member."""
        return torch.tensor(
            [sum(row) for row in counts] if self.layout == "neat" else [n for row in counts for n in row]
        )

    def _row_form_of(self, packs: Sequence[Members]) -> RowForm:
        """Return the row form with the least allowed width that has room for each pack; else the largest width."""
        if not self._widths:
            return self._form
        longest = max(map(self._padded_len, packs))
        return replace(self._form, width=next((width for width in self._widths if width >= longest), self._widths[-1]))

    def _neat(self, packs: Sequence[Members]) -> PackedBatch:
        make: Callable[[Sequence[Members], RowForm], Batch] = lay_out_neat_rows
        if any(pack.is_tree for pack in packs):
            from energon_pack.training.tree_rows import lay_out_neat_trees

            make = lay_out_neat_trees
        batch = PackedBatch(make(packs, self._row_form_of(packs)))
        if self._is_hybrid:
            refuse_several_rows(len(packs))
            batch["seq_idx"] = seq_idx(batch["cu_seq_lens_q"])
        if self.mask == "indexed":
            batch["attention_mask"] = batch["doc_ids"]
        return batch

    def _named_media(self, media: dict[str, torch.Tensor], batch: PackedBatch, has_images: bool) -> dict[str, Any]:
        """Return the media inputs under the names that the layout's trainers use."""
        of_tokens = {name for name in self.members.per_token_functions if name in batch} if media else set()
        named_media: dict[str, Any] = {**media, "media_keys": sorted({*media, *of_tokens})}
        if self._dummy and not has_images:
            named_media |= {f"dummy_{name}": value for name, value in self.members.blank_image_inputs().items()}
        if self.layout in ("thd", "mlm"):
            from energon_pack.training.megatron_layouts import add_media_for_megatron

            types = batch["mm_token_type_ids"] if media and self.layout == "thd" else None
            return add_media_for_megatron(self.layout, named_media, media, types)
        return named_media


def _unpickle(made: Mapping[str, Any], rules: InputRules, options: Any, tower: "TowerInputMaker | None") -> PackEncoder:
    encoder = PackEncoder(made, rules, **options)
    encoder.use_tower(tower)
    return encoder
