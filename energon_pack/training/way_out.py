"""Name what keeps members apart where a class was not shown to."""

import copy
from collections.abc import Sequence
from typing import Any

from energon_pack.training.finding import Proof
from energon_pack.training.inputs import TREE
from energon_pack.training.probe_tree import ProbeTree, Samples
from energon_pack.training.proof import masks_for, prove
from energon_pack.training.trial_inputs import SOUNDS
from energon_pack.training.wrapped import parts

#: attention implementations to try where another one fails, and those for trees
_ATTENTIONS = ("sdpa", "eager")
_OF_TREES = (TREE, *_ATTENTIONS)


def way_out(
    make: Any,
    config: Any,
    samples: Samples,
    attention: str | None,
    longest: int | None,
    tried: Sequence[Proof],
) -> str:
    """Name a mask or an attention implementation that keeps members apart, after probing it."""
    masks, seen = {proof.mask for proof in tried}, [*tried]
    is_partly_set = len({getattr(part, "_attn_implementation", None) is None for part in parts(config)}) > 1
    config = copy.deepcopy(config)
    config._attn_implementation = None  # a name that is given reaches all parts
    for name in dict.fromkeys([attention, *(_OF_TREES if isinstance(samples, ProbeTree) else _ATTENTIONS)]):
        for mask in masks_for(make, config, samples):
            if name == attention and mask in masks and not is_partly_set:
                continue
            proof = prove(make, config, samples, mask, name, longest)[-1]
            seen.append(proof)
            if proof.is_exact:
                settings = [f"PackedTaskEncoder(attention_mask={mask!r})"] if mask not in masks else []
                settings += [_setting(name)] if name != attention or is_partly_set else []
                return f"{' and '.join(settings)} keeps them apart ({proof.finding})"
    if isinstance(samples, ProbeTree):
        return "nothing tried here keeps them apart: pack with packing.share=none"
    members = [*samples]
    sounds = [number for number, member in enumerate(members) if any(name.startswith(SOUNDS) for name in member.media)]
    if len(sounds) > 1:
        fewer = [member for number, member in enumerate(members) if number not in sounds[1:]]
        if (proof := prove(make, config, fewer, tried[-1].mask, attention, longest)[-1]).is_exact:
            return f"packing.max_audios=1 and a pack a batch keep them apart: there is one sound ({proof.finding})"
    if not any(proof.finding for proof in seen):
        return "nothing could be tried here: does the encoder's processor go with this model?"
    return "nothing tried here keeps them apart: train this class on unpacked samples"


def _setting(attention: str | None) -> str:
    return "use_tree_attention(model)" if attention == TREE else f"attn_implementation={attention!r}"
