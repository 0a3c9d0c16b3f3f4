"""Let a model train on packs only after a test showed that it keeps members apart, and only on inputs that do."""

import inspect
import logging
import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from energon_pack.training.finding import MaskTry
from energon_pack.training.forward_inputs import (
    MEDIA_KEYS,
    PROVEN_MASKS,
    MixingError,
    attention_implementation_of,
    branch_starts,
    check_inputs,
    mask_kind_of,
    takes_rope_rows,
    text_positions,
)
from energon_pack.training.guarded_calls import InputCheck, hook_check_before_calls
from energon_pack.training.model_wrappers import class_of, is_transformers_model, unwrapped

if TYPE_CHECKING:
    from energon_pack.training.batch_members import MemberSizes
    from energon_pack.training.class_proof import ClassProof, EncoderForGuard
    from energon_pack.training.model_trial import ModelTrial
    from energon_pack.training.trials import ModelTrials

__all__ = ["Guard", "MixingError", "check_inputs", "guard"]

_log = logging.getLogger(__name__)
#: the hooks of each guarded model, and a function that says at its end that it was never tried
_HOOKS_BY_MODEL: weakref.WeakKeyDictionary[Module, tuple[Sequence[RemovableHandle], Any]] = weakref.WeakKeyDictionary()
#: names of methods that encode media
_GETTERS = re.compile(r"get_(?!text)\w+_features")


@dataclass(eq=False)
class Guard:
    """The hooks on a guarded model and the tests that it passed; `remove()` removes the hooks."""

    #: every test of the class; the last one is the result
    proofs: Sequence[MaskTry]
    #: the test of the class with trees; None: the encoder's packs have none
    trees: MaskTry | None
    #: tests of the model itself; empty until its first batch, and always with `first_batch=False`
    trials: "Sequence[ModelTrial]"
    handles: Sequence[RemovableHandle]
    model: Module

    def remove(self) -> None:
        """Remove the hooks, so that the model takes any inputs again; warn if it was to be tried, and never was."""
        for handle in self.handles:
            handle.remove()
        handles, end = _HOOKS_BY_MODEL.get(self.model, ((), None))
        if handles is self.handles:  # else it was guarded anew
            PROVEN_MASKS.pop(self.model, None)
            end()


def guard(
    model: Any,
    encoder: Any = None,
    trust: str | None = None,
    first_batch: bool = True,
    batches: Sequence[Mapping[str, Any]] | None = None,
    members: "Sequence[MemberSizes] | None" = None,
) -> Guard:
    """Test that a model keeps members of packs apart, then check every forward of it and of its parts.

    A model that is guarded already is guarded anew.

    The test runs a small model of the same class and config, which takes seconds. Then the model itself is tried with
    members of its own batches, for as long as it trains: their outputs, loss and gradients are those of each alone. A
    guarded model refuses `generate`, which needs a cache of keys and values; with `batches` only for rows with several
    members.

    Args:
        model: a model of transformers; it may be wrapped (DDP, FSDP, torch.compile, PEFT).
        encoder: the encoder of the packs, or an object that has it; its processor makes the media for the test. None:
            the packs are text only.
        trust: the name of a class to train even if the test fails.
        first_batch: test the model itself, too. False: adapters, replaced code and hooks are not tested.
        batches: in place of an encoder, a few batches of any collator, with all that the trainer passes to the model.
            The model itself is tried with them now, and with later ones as with packs. Their members are read from
            `cu_seq_lens…`, positions that start anew, or an attention mask that numbers them.
        members: for each of the `batches` a list of rows, each a list of its members' lengths, if no input tells them.
            A length may be a mapping instead: `tokens`, and by name the member's number of rows in each media input.

    Raises:
        ValueError: `batches` with an encoder, trust or first_batch=False.
        MixingError: the test failed; it says what was tried, and what keeps members apart instead. The model's first
            forward may raise it, too.
    """
    model = _model_to_guard(model)
    if batches is not None or members is not None:
        if encoder is not None or trust is not None or not first_batch:
            raise ValueError("guard(model, batches=…) takes no encoder, trust or first_batch: those are of packs")
        return _guard_batches(model, batches or (), members)
    inner = getattr(encoder, "encoder", encoder)  # of a task encoder, of packs
    return _guard_packs(model, inner, trust == class_of(model).__name__, first_batch)


def _guard_packs(model: Any, encoder: "EncoderForGuard | None", is_trusted: bool, first_batch: bool) -> Guard:
    """Prove a model's class now, and try the model itself with members of its batches."""
    from energon_pack.training.class_proof import prove_class_separates_members
    from energon_pack.training.proof import find_added_part_classes, replaced_forwards

    name = class_of(model).__name__
    if not first_batch and not is_trusted and (replaced := replaced_forwards(model) or find_added_part_classes(model)):
        raise MixingError(
            f"the forward of {', '.join(replaced[:3])} was replaced in this model alone; no copy of it can be tried:"
            f" first_batch=True tries the model itself (trust={name!r} trains it all the same)"
        )
    shown = prove_class_separates_members(model, encoder, is_trusted)
    if not first_batch:
        _log.warning("%s itself is not tried, its class alone: first_batch=False", name)
    PROVEN_MASKS[model] = shown.proofs[-1].mask
    for_tower: frozenset[str] = frozenset()
    if encoder is not None:
        from energon_pack.training.tower import enable_tower_inputs

        for_tower = enable_tower_inputs(model, encoder, shown.samples, shown.proofs[-1].mask)
    tried = for_tower.union(name for member in shown.samples for name in member.media)
    media = MEDIA_KEYS | _media_argument_names(model) | tried
    _remove_earlier_hooks(model)
    first = None
    if first_batch and not is_trusted:
        from energon_pack.training.trials import ModelTrials, pack_batch_handling

        joins = {name: rule for one in shown.samples for name, rule in one.joins.items()}
        first = ModelTrials(model, pack_batch_handling(joins))
    check = _forward_check(model, shown, media, tried, first)
    handles, _ = hook_check_before_calls(model, check)
    return _register_guard(model, handles, first.trials if first else None, shown.proofs, shown.tree_proof)


def _guard_batches(model: Any, batches: Sequence[Mapping[str, Any]], members: "Sequence[MemberSizes] | None") -> Guard:
    """Try a model with these batches of any collator now, and with later ones as with packs."""
    from energon_pack.training.foreign_batches import make_foreign_batch_handling, try_given_batches
    from energon_pack.training.trials import ModelTrials

    _remove_earlier_hooks(model)
    made: list[ModelTrials] = []
    made.append(trials := ModelTrials(model, make_foreign_batch_handling(model, made)))
    handles, check = hook_check_before_calls(model, trials.try_if_due)
    guarded, goes_on = _register_guard(model, handles, trials.trials), False
    try:
        goes_on = try_given_batches(trials, model, check, batches, members)
    finally:
        if not goes_on:
            _remove_earlier_hooks(model)
    return guarded


def _register_guard(
    model: Module,
    handles: Sequence[RemovableHandle],
    trials: "Sequence[ModelTrial] | None",
    proofs: Sequence[MaskTry] = (),
    trees: MaskTry | None = None,
) -> Guard:
    """Keep the hooks of a model; if it is to be tried (`trials`), say at its end or at exit that it never was."""
    end = (lambda: None) if trials is None else weakref.finalize(model, _say_untried, class_of(model).__name__, trials)
    _HOOKS_BY_MODEL[model] = handles, end
    return Guard(proofs, trees, () if trials is None else trials, handles, model)


def _say_untried(name: str, trials: "Sequence[ModelTrial]") -> None:
    if not trials:
        _log.warning(
            "%s was guarded, and never tried: no row of its batches had two members, or it was called past its hooks",
            name,
        )


def _remove_earlier_hooks(model: Module) -> None:
    """Remove the hooks of an earlier guard, which would refuse the test runs of a new one."""
    handles, end = _HOOKS_BY_MODEL.pop(model, ((), None))
    for handle in handles:
        handle.remove()
    if isinstance(end, weakref.finalize):
        end.detach()


def _model_to_guard(model: Any) -> Any:
    inner = unwrapped(model)
    if hasattr(model, "_orig_mod"):
        torch.compiler.reset()  # code that is compiled already runs no hooks
    if not is_transformers_model(inner) and not hasattr(getattr(inner, "config", None), "get_text_config"):
        parts = inner.named_modules() if isinstance(inner, Module) else ()
        named = (f": its {name} is a {type(part).__name__}" for name, part in parts if is_transformers_model(part))
        within = next(named, "")
        raise MixingError(f"a {type(inner).__name__} is no model of transformers: guard the one within it{within}")
    heads = [part.get_output_embeddings() for part in inner.modules() if hasattr(part, "get_output_embeddings")]
    if heads and all(head is None for head in heads):  # NemotronH Omni's is that of a part
        raise MixingError(
            f"{class_of(inner).__name__} makes no logits, by which members are compared: guard the whole model that it"
            " is a part of (…ForCausalLM, …ForConditionalGeneration); its parts are guarded with it"
        )
    return inner


def _forward_check(
    model: Module, shown: "ClassProof", media: frozenset[str], tried: frozenset[str], first: "ModelTrials | None"
) -> InputCheck:
    """Return the check of each forward: its inputs keep members apart in the way that was proven."""
    attention, rope_rows, longest = attention_implementation_of(model), takes_rope_rows(model), shown.max_row_len
    masks = {shown.proofs[-1].mask}
    if shown.tree_proof is not None:
        from energon_pack.training.tree_inputs import tree_mask_kind

        masks.add(tree_mask_kind(model))

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # each read would make a graph of its own
    def check_inputs_of_batch(inputs: dict[str, Any]) -> None:
        check_inputs(inputs, attention)
        mask = mask_kind_of(inputs)
        if mask not in masks:
            by = " or ".join(sorted(masks))
            raise MixingError(f"inputs with mask={mask}, and {type(model).__name__} was shown with mask={by}")
        if shown.tree_proof is None and branch_starts(text_positions(inputs, inputs["position_ids"])):
            raise MixingError(
                f"a batch of trees, and {type(model).__name__} was not tried with any: guard(model, encoder) with the"
                " encoder of the packs that have them"
            )
        if untried := sorted(name for name in media & inputs.keys() - tried if isinstance(inputs[name], Tensor)):
            raise MixingError(f"{', '.join(untried)}: not tried with this model; guard(model, encoder) tries its media")
        if longest is not None and (length := _longest_row_len(inputs, longest)) > longest:
            raise MixingError(
                f"a row of {length} tokens: {type(model).__name__} was shown to keep members apart in packs of"
                f" {longest} tokens at most, the longest of the encoder's: in longer ones it mixes them"
            )
        if rope_rows and inputs["position_ids"].dim() != 3:
            raise MixingError(f"{type(model).__name__} takes M-RoPE rows [4, B, S]: model_inputs(model) makes them")

    def check(part: Module, inputs: dict[str, Any]) -> None:
        check_inputs_of_batch(inputs)
        if first is not None:
            first.try_if_due(part, inputs)

    return check


def _longest_row_len(inputs: dict[str, Any], longest: int) -> int:
    """Return the length of the longest row in tokens, without its pad tail; exact only if above `longest`."""
    from energon_pack.training.batch_members import find_member_places  # late: few models need it

    positions = inputs["position_ids"]
    members = find_member_places(inputs) if positions.shape[-1] > longest else []
    return max(int(positions.max()) + 1, *(int(member.places[-1]) + 1 for member in members), 0)


def _media_argument_names(model: Module) -> set[str]:
    """Return the argument names of the methods by which a model's parts encode media."""
    makes = {kind: [name for name in dir(kind) if _GETTERS.fullmatch(name)] for kind in map(type, model.modules())}
    methods = [getattr(kind, name) for kind, names in makes.items() for name in names]
    named = {name for method in methods for name in inspect.signature(method).parameters}
    return named - {"input_ids", "attention_mask"}
