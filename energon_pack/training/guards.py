"""Let a model train on packs only after a test showed that it keeps members apart, and only on inputs that do."""

import inspect
import logging
import threading
import weakref
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from energon_pack.samples.media.kinds import KINDS
from energon_pack.training.encoded import Encoded
from energon_pack.training.first_batch import FirstBatch
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
from energon_pack.training.layout import IGNORE, Member
from energon_pack.training.made_trial import Subject
from energon_pack.training.makeup import replaced_in
from energon_pack.training.media_keys import MEDIA_KEYS
from energon_pack.training.probe_tree import ProbeTree
from energon_pack.training.proof import Proof, kept_proofs, way_out
from energon_pack.training.trial import Trial
from energon_pack.training.trial_inputs import members_of
from energon_pack.training.wrapped import class_of, is_whole, unwrapped

__all__ = ["Guard", "MixingError", "check_inputs", "guard"]

_log = logging.getLogger(__name__)
#: the hooks of each guarded model
_HANDLES: weakref.WeakKeyDictionary[Module, Sequence[RemovableHandle]] = weakref.WeakKeyDictionary()
_FEATURES = tuple(f"get_{kind}_features" for kind in KINDS)


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


def guard(model: Any, encoder: Encoder | None = None, trust: str | None = None, first_batch: bool = True) -> Guard:
    """Test that a model keeps members of packs apart, then check every forward of it and of its parts.

    A model that is guarded already is guarded anew.

    The test runs a small model of the same class and config. It takes seconds the first time, and its result is kept in
    the user's cache. Then the model itself runs a few more times with the first batch of each kind: outputs, loss and
    gradients are compared. A guarded model refuses `generate`, which needs a cache of keys and values.

    Args:
        model: a model of transformers; it may be wrapped (DDP, FSDP, torch.compile, PEFT).
        encoder: the encoder of the packs; its processor makes the media for the test. None: the packs are text only.
        trust: the name of a class to train even if the test fails.
        first_batch: test the model itself, too. False: adapters, replaced code and hooks are not tested.

    Raises:
        MixingError: the test failed; it says what was tried, and what keeps members apart instead. The model's first
            forward may raise it, too.
    """
    model = _unwrapped(model)
    kind = class_of(model)
    attention = attention_of(model)
    mask, longest = (encoder.mask, encoder.max_token_len) if encoder else ("auto", None)
    members = encoder.probe_members() if encoder else _texts(model.config.get_text_config().vocab_size)
    device = model.device if model.device.type == "cuda" else torch.device("cpu")
    is_trusted = trust == kind.__name__
    if not first_batch and not is_trusted and (replaced := replaced_in(model)):
        raise MixingError(
            f"the forward of {', '.join(replaced[:3])} was replaced in this model alone; no copy of it can be tried:"
            f" first_batch=True tries the model itself (trust={kind.__name__!r} trains it all the same)"
        )
    proofs = kept_proofs(model, members, mask, attention, longest, device)
    images = [member for member in members if not member.num_videos]
    if all(proof.finding is None for proof in proofs) and len(images) < len(members):  # GLM-4.1V takes one or the other
        fewer = kept_proofs(model, images, mask, attention, longest, device)
        if fewer[-1].is_exact:
            _log.warning("%s is shown without videos: with them, %s", kind.__name__, proofs[-1].error)
            proofs, members = fewer, images
    if not proofs[-1].is_exact:
        said = f"{kind.__name__} is not shown to keep members of packs apart: {'; '.join(map(str, proofs))}"
        if not is_trusted:
            out = way_out(kind, model.config, members, attention, longest, proofs)
            raise MixingError(f"{said}. {out} (trust={kind.__name__!r} trains it all the same)")
        _log.warning("%s; trained all the same: trust=%s", said, trust)
    if not first_batch:
        _log.warning("%s itself is not tried, its class alone: first_batch=False", kind.__name__)
    tree = encoder.probe_tree(members) if isinstance(encoder, TreeEncoder) else None
    trees = _shown_trees(model, tree, attention, longest, device, is_trusted) if tree else None
    PROVEN[model] = proofs[-1].mask
    tried = frozenset(name for member in members for name in member.media)
    media = MEDIA_KEYS | _media_of(model) | tried
    for handle in _HANDLES.pop(model, ()):  # two guards would each refuse the other's test runs
        handle.remove()
    limits = [proof.longest for proof in (proofs[-1], trees) if proof and proof.longest]
    masks = {proofs[-1].mask}
    if trees:
        from energon_pack.training.tree_inputs import form_of

        masks |= {form_of(model)}
    longest = min(limits, default=None)
    first = FirstBatch(Subject(model, media, members, tree, longest)) if first_batch and not is_trusted else None
    _HANDLES[model] = handles = _hooks(model, attention, masks, trees is not None, media, tried, longest, first)
    return Guard(proofs, trees, first.trials if first else (), handles, model)


def _shown_trees(
    model: Any,
    tree: ProbeTree,
    attention: str | None,
    longest: int | None,
    device: torch.device,
    is_trusted: bool,
) -> Proof:
    """Test the class with trees.

    Raises:
        MixingError: it does not train on them as on samples alone, and is not trusted.
    """
    kind = class_of(model)
    from energon_pack.training.tree_inputs import refuse

    refuse(model)
    proofs = kept_proofs(model, tree, "", attention, longest, device)
    if (proof := proofs[-1]).is_exact:
        return proof
    said = f"{kind.__name__} is not shown to train on trees as on their samples alone: {proof}"
    if not is_trusted:
        out = way_out(kind, model.config, tree, attention, longest, proofs)
        raise MixingError(f"{said}. {out} (trust={kind.__name__!r} trains it all the same)")
    _log.warning("%s; trained all the same: trust=%s", said, kind.__name__)
    return proof


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


class _Calls(threading.local):
    """The calls of guarded parts in one thread."""

    def __init__(self) -> None:
        #: parts whose forward is running, the outermost first
        self.running: list[Module] = []
        #: whether the model runs a test
        self.is_trial = False


def _hooks(
    model: Module,
    attention: str | None,
    masks: Collection[str],
    has_trees: bool,
    media: frozenset[str],
    tried: frozenset[str],
    longest: int | None,
    first: FirstBatch | None,
) -> list[RemovableHandle]:
    """Hook every part that takes positions; of nested calls only the outermost is checked."""
    calls = _Calls()
    rope_rows = has_rope_rows(model)
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm)]

    def check(names: Sequence[str], part: Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if calls.is_trial:
            return
        if any(part is one for one in calls.running):  # no part runs inside itself: an interrupt ended the earlier call
            calls.running.clear()
        calls.running.append(part)
        if len(calls.running) > 1:
            return
        if (now := attention_of(model)) != attention:
            raise MixingError(f"attention is {now} now, and was {attention} when the model was tried: guard it again")
        if any(norm.training for norm in norms):
            raise MixingError("batch norm takes its statistics from all members while it is trained: call its eval()")
        inputs = {**dict(zip(names, args, strict=False)), **keywords}
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
            calls.is_trial = True
            try:
                first.check(part, inputs)
            finally:
                calls.is_trial = False

    def leave(*_: Any) -> None:
        if not calls.is_trial:
            del calls.running[-1:]

    handles = []
    for module in model.modules():
        takes = inspect.signature(module.forward).parameters
        names, takes_any = [*takes], any(one.kind is one.VAR_KEYWORD for one in takes.values())
        takes_positions = "position_ids" in names or (module is model and takes_any)
        if takes_positions and {"input_ids", "inputs_embeds"} & {*names}:
            handles.append(module.register_forward_pre_hook(partial(check, names), with_kwargs=True))
            handles.append(module.register_forward_hook(leave, always_call=True))
    return handles


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
    methods = [getattr(part, name) for part in model.modules() for name in _FEATURES if hasattr(part, name)]
    return {name for method in methods for name in inspect.signature(method).parameters}


def _texts(vocabulary: int) -> list[Encoded]:
    """Return members of random words, for models that train on text."""
    generator = torch.Generator().manual_seed(0)
    members = []
    for number, length in enumerate((19, 24, 16)):
        ids = torch.randint(min(10, vocabulary // 2), vocabulary, (length,), generator=generator)
        labels = torch.cat([torch.full((1,), IGNORE), ids[1:]])
        members.append(Encoded(str(number), Member(ids, labels, torch.zeros_like(ids))))
    return members
