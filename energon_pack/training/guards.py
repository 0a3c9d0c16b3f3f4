"""Let a model train on packs only after a test showed that it keeps members apart, and only on inputs that do."""

import inspect
import logging
import re
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from energon_pack.training.class_trial import Samples
from energon_pack.training.encoded import Encoded, text_of
from energon_pack.training.first_batch import FirstBatch
from energon_pack.training.hooks import Check, hook
from energon_pack.training.inputs import (
    PROVEN,
    MixingError,
    attention_of,
    check_inputs,
    forks_of,
    has_rope_rows,
    mask_of,
    text_row,
)
from energon_pack.training.made_trial import Packs
from energon_pack.training.makeup import replaced_in
from energon_pack.training.media_keys import MEDIA_KEYS
from energon_pack.training.probe_tree import ProbeTree
from energon_pack.training.proof import Proof, kept_proofs
from energon_pack.training.trial import Trial
from energon_pack.training.trial_inputs import members_of
from energon_pack.training.wrapped import class_of, is_whole, unwrapped

if TYPE_CHECKING:
    from energon_pack.training.batch_members import GivenRows

__all__ = ["Guard", "MixingError", "check_inputs", "guard"]

_log = logging.getLogger(__name__)
#: the hooks of each guarded model
_HANDLES: weakref.WeakKeyDictionary[Module, Sequence[RemovableHandle]] = weakref.WeakKeyDictionary()
#: methods that make features of media
_FEATURES = re.compile(r"get_(?!text)\w+_features")


class Encoder(Protocol):
    """The part of a `PackedTaskEncoder` that the guard uses."""

    @property
    def mask(self) -> str:
        """How its batches keep members apart; `auto`: whatever the guard finds."""

    @property
    def max_token_len(self) -> int | None:
        """Tokens of the longest pack; None: not known."""

    def probe_members(self) -> list[Encoded]:
        """Return members with each kind of media that the encoder makes."""


@runtime_checkable
class TreeEncoder(Protocol):
    """An encoder whose packs may have trees."""

    def probe_tree(self, members: Sequence[Encoded]) -> ProbeTree | None:
        """Return trees of such members; None: its packs have none."""


class Guard:
    """The hooks on a model; `remove()` ends them."""

    def __init__(
        self,
        proofs: Sequence[Proof],
        trees: Proof | None,
        trials: Sequence[Trial],
        handles: Sequence[RemovableHandle],
        model: Module,
    ):
        #: every test of the class; the last one counts
        self.proofs = proofs
        #: the test of the class with trees; None: the encoder's packs have none
        self.trees = trees
        #: tests of the model itself; empty until its first batch, and always with `first_batch=False`
        self.trials = trials
        self._handles = handles
        self._model = model

    def remove(self) -> None:
        """Remove the hooks, so that the model takes any inputs again."""
        for handle in self._handles:
            handle.remove()
        if _HANDLES.get(self._model) is self._handles:  # else it was guarded anew
            PROVEN.pop(self._model, None)


def guard(
    model: Any,
    encoder: Encoder | None = None,
    trust: str | None = None,
    first_batch: bool = True,
    batches: Sequence[Mapping[str, Any]] | None = None,
    members: "Sequence[GivenRows] | None" = None,
) -> Guard:
    """Test that a model keeps members of packs apart, then check every forward of it and of its parts.

    A model that is guarded already is guarded anew.

    The test runs a small model of the same class and config. It takes seconds the first time, and its result is kept in
    the user's cache. Then the model itself runs a few more times with the first batch of each kind: outputs, loss and
    gradients are compared. A guarded model refuses `generate`, which needs a cache of keys and values; with `batches`
    it refuses it of rows with several members.

    Args:
        model: a model of transformers; it may be wrapped (DDP, FSDP, torch.compile, PEFT).
        encoder: the encoder of the packs; its processor makes the media for the test. None: the packs are text only.
        trust: the name of a class to train even if the test fails.
        first_batch: test the model itself, too. False: adapters, replaced code and hooks are not tested.
        batches: in place of an encoder, a few batches of any collator, with all that the trainer passes to the model.
            The model itself is tried with them now, and with each later batch of another kind. Their members are read
            from `cu_seq_lens…`, positions that start anew, or an attention mask that numbers them.
        members: of each of the `batches` the rows, of each row the lengths of its members, where no input says them.
            In place of a length: its `tokens` and, by name, the member's rows of each media input.

    Raises:
        ValueError: `batches` with what is of packs.
        MixingError: the test failed; it says what was tried, and what keeps members apart instead. The model's first
            forward may raise it, too.
    """
    model = _unwrapped(model)
    if batches is not None or members is not None:
        if encoder is not None or trust is not None or not first_batch:
            raise ValueError("guard(model, batches=…) takes no encoder, trust or first_batch: those are of packs")
        return _guard_batches(model, batches or (), members)
    kind = class_of(model)
    attention = attention_of(model)
    mask, longest = (encoder.mask, encoder.max_token_len) if encoder else ("auto", None)
    samples = encoder.probe_members() if encoder else _texts(model.config.get_text_config().vocab_size)
    device = model.device if model.device.type == "cuda" else torch.device("cpu")
    is_trusted = trust == kind.__name__
    if not first_batch and not is_trusted and (replaced := replaced_in(model)):
        raise MixingError(
            f"the forward of {', '.join(replaced[:3])} was replaced in this model alone; no copy of it can be tried:"
            f" first_batch=True tries the model itself (trust={kind.__name__!r} trains it all the same)"
        )
    proofs = kept_proofs(model, samples, mask, attention, longest, device)
    images = [member for member in samples if not member.num_videos]
    if all(proof.finding is None for proof in proofs) and len(images) < len(samples):  # GLM-4.1V takes one or the other
        fewer = kept_proofs(model, images, mask, attention, longest, device)
        if fewer[-1].is_exact:
            _log.warning("%s is shown without videos: with them, %s", kind.__name__, proofs[-1].error)
            proofs, samples = fewer, images
    _refuse_unshown(
        model, "is not shown to keep members of packs apart", proofs, samples, attention, longest, is_trusted
    )
    if not first_batch:
        _log.warning("%s itself is not tried, its class alone: first_batch=False", kind.__name__)
    tree = encoder.probe_tree(samples) if isinstance(encoder, TreeEncoder) else None
    trees, masks = None, {proofs[-1].mask}
    if tree is not None:
        from energon_pack.training.tree_inputs import form_of, refuse

        refuse(model)
        of_trees = kept_proofs(model, tree, "", attention, longest, device)
        lacks = "is not shown to train on trees as on their samples alone"
        _refuse_unshown(model, lacks, of_trees, tree, attention, longest, is_trusted)
        trees, masks = of_trees[-1], masks | {form_of(model)}
    PROVEN[model] = proofs[-1].mask
    for_tower: frozenset[str] = frozenset()
    if encoder is not None:
        from energon_pack.training.tower_trial import use_tower

        for_tower = use_tower(model, encoder, samples, proofs[-1].mask, device)
    tried = for_tower.union(name for member in samples for name in member.media)
    media = MEDIA_KEYS | _media_of(model) | tried
    _end_earlier(model)
    limits = [proof.longest for proof in (proofs[-1], trees) if proof and proof.longest]
    longest = min(limits, default=None)
    first = FirstBatch(Packs(model, media, samples, tree, longest)) if first_batch and not is_trusted else None
    check = _check_of_packs(model, masks, trees is not None, media, tried, longest, first)
    _HANDLES[model], _ = hook(model, check)
    return Guard(proofs, trees, first.trials if first else (), _HANDLES[model], model)


def _guard_batches(model: Any, batches: Sequence[Mapping[str, Any]], members: "Sequence[GivenRows] | None") -> Guard:
    """Try a model with batches of any collator now, and with each later one that is of another kind.

    Raises:
        ValueError: there are no batches, or other numbers of them and of their members.
        MixingError: see `guard`.
    """
    from energon_pack.training.batch_trial import Batches

    _end_earlier(model)
    first = FirstBatch(subject := Batches(model))
    handles, check = hook(model, first.check)
    guarded, goes_on = Guard((), None, first.trials, handles, model), False
    try:
        goes_on = subject.try_all(check, batches, members)
    finally:
        if not goes_on:
            guarded.remove()
    _HANDLES[model] = handles
    return guarded


def _end_earlier(model: Module) -> None:
    """Remove the hooks of an earlier guard: each would refuse the other's test runs."""
    for handle in _HANDLES.pop(model, ()):
        handle.remove()


def _refuse_unshown(
    model: Any,
    lacks: str,
    proofs: Sequence[Proof],
    samples: Samples,
    attention: str | None,
    longest: int | None,
    is_trusted: bool,
) -> None:
    """Raise MixingError with what the class lacks if it was not shown; warn if it is trusted."""
    if proofs[-1].is_exact:
        return
    kind = class_of(model)
    said = f"{kind.__name__} {lacks}: {'; '.join(map(str, proofs))}"
    if not is_trusted:
        from energon_pack.training.way_out import way_out

        out = way_out(kind, model.config, samples, attention, longest, proofs)
        raise MixingError(f"{said}. {out} (trust={kind.__name__!r} trains it all the same)")
    _log.warning("%s; trained all the same: trust=%s", said, kind.__name__)


def _unwrapped(model: Any) -> Any:
    """Return the model of transformers inside its wrappers.

    Raises:
        MixingError: there is none, or it makes no logits.
    """
    inner = unwrapped(model)
    if hasattr(model, "_orig_mod"):
        torch.compiler.reset()  # code that is compiled already runs no hooks
    if not is_whole(inner) and not hasattr(inner, "config"):
        parts = inner.named_modules() if isinstance(inner, Module) else ()
        within = next((f": its {name} is a {type(part).__name__}" for name, part in parts if is_whole(part)), "")
        raise MixingError(f"a {type(inner).__name__} is no model of transformers: guard the one within it{within}")
    if getattr(inner, "get_output_embeddings", lambda: inner)() is None:
        raise MixingError(
            f"{class_of(inner).__name__} makes no logits, by which members are compared: guard the whole model that it"
            " is a part of (…ForCausalLM, …ForConditionalGeneration); its parts are guarded with it"
        )
    return inner


def _check_of_packs(
    model: Module,
    masks: Collection[str],
    has_trees: bool,
    media: frozenset[str],
    tried: frozenset[str],
    longest: int | None,
    first: FirstBatch | None,
) -> Check:
    """Return the check of each forward: its inputs keep members of packs apart in the way that was shown."""
    attention, rope_rows = attention_of(model), has_rope_rows(model)

    def check(part: Module, inputs: dict[str, Any]) -> None:
        check_inputs(inputs, attention)
        given = mask_of(inputs)
        if given not in masks:
            shown = " or ".join(sorted(masks))
            raise MixingError(f"inputs with mask={given}, and {type(model).__name__} was shown with mask={shown}")
        if not has_trees and forks_of(text_row(inputs, inputs["position_ids"])):
            raise MixingError(
                f"a batch of trees, and {type(model).__name__} was not tried with any: guard(model, encoder) with the"
                " encoder of the packs that have them"
            )
        if untried := sorted(name for name in media & inputs.keys() - tried if isinstance(inputs[name], Tensor)):
            raise MixingError(f"{', '.join(untried)}: not tried with this model; guard(model, encoder) tries its media")
        if longest is not None and (length := _length_of(inputs, longest)) > longest:
            raise MixingError(
                f"a row of {length} tokens: {type(model).__name__} was shown to keep members apart in packs of"
                f" {longest} tokens at most, the longest of the encoder's: in longer ones it mixes them"
            )
        if rope_rows and inputs["position_ids"].dim() != 3:
            raise MixingError(f"{type(model).__name__} takes M-RoPE rows [4, B, S]: model_inputs(model) makes them")
        if first is not None:
            first.check(part, inputs)

    return check


def _length_of(inputs: dict[str, Any], longest: int) -> int:
    """Return the tokens of the longest row, without padding that positions do not count.

    Args:
        longest: the limit that the result is compared with. Rows that are no wider can't exceed it, so members are
            not looked for in them.
    """
    positions = inputs["position_ids"]
    members = members_of(inputs) if positions.shape[-1] > longest else []
    return max(int(positions.max()) + 1, *(member.end for member in members), 0)


def _media_of(model: Module) -> set[str]:
    """Return the names of inputs of the methods by which the model makes features of media."""
    makes = {kind: [name for name in dir(kind) if _FEATURES.fullmatch(name)] for kind in map(type, model.modules())}
    methods = [getattr(kind, name) for kind, names in makes.items() for name in names]
    named = {name for method in methods for name in inspect.signature(method).parameters}
    return named - {"input_ids", "attention_mask"}


def _texts(vocabulary: int) -> list[Encoded]:
    """Return members of random words, for models that train on text."""
    generator = torch.Generator().manual_seed(0)
    first = min(10, vocabulary // 2)
    lengths = (19, 24, 16)
    return [text_of(torch.randint(first, vocabulary, (length,), generator=generator)) for length in lengths]
