"""Refuse packs that a layout, mask or trainer has no place for; the message names the first member."""

from collections.abc import Callable, Sequence

from energon_pack.training.encoded import BadPack, EncodedMembers, Member, Members, TrainingPack


def refuse_trees_and_weights(packs: Sequence[TrainingPack], layout: str, num_segments: int | None, mask: str) -> None:
    """Raise BadPack if members share tokens or have weights, for which a layout, or else a mask, has no place."""
    if layout == "mlm":
        refuse_weights(packs, "layout=mlm", "layout=thd and rows have: their loss_mask")
    in_neat = f"mask={mask}" if num_segments is None else f"pad_segments={num_segments}"
    refuse_trees(packs, in_neat if layout == "neat" else f"layout={layout}")


def refuse_trees(packs: Sequence[TrainingPack], where: str) -> None:
    """Raise BadPack if members share tokens, which `where` (a layout, mask or trainer) does not support."""
    why = f"it shares tokens with the sample before it, for which {where} has no place: pack with packing.share=none"
    _refuse(packs, lambda tokens: tokens.is_tree, lambda tokens: bool(tokens.shared_len), why)


def refuse_weights(packs: Sequence[TrainingPack], where: str, way_out: str) -> None:
    """Raise BadPack if a sample or turn has a weight that `where` does not support; the message ends with `way_out`."""
    why = f"it or one of its turns has a weight other than 1, and {where} has no place for it; {way_out}"
    _refuse(packs, lambda tokens: tokens.is_weighted, lambda tokens: tokens.is_weighted, why)


def _refuse(
    packs: Sequence[TrainingPack], any_is_bad: Callable[[Members], bool], is_bad: Callable[[Member], bool], why: str
) -> None:
    for pack in packs:
        if any_is_bad(EncodedMembers.of(pack.members).tokens):
            bad = next(member for member in pack.members if is_bad(member.tokens))
            raise BadPack(f"{bad.sample_id} in {pack.key}: {why}")
