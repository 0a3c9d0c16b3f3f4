"""44 preference pairs by model class: in packs they have the loss and the gradients that they have alone, in float64.

TRL's own trainer is compared with in tests/trainers/test_preference_recipes.py.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_pack import (
    PackedDataset,
    StreamingPackedDataset,
    member_logps,
    num_pairs,
    preference_loss,
    use_tree_attention,
)
from energon_pack.samples.member import MemberInput
from energon_pack.training.encoded import IGNORE
from support.few_ids import FewIds, cast
from support.pairs import CLASSES, SHARED, pack_pairs_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.usefixtures("one_thread")]
NUM_PAIRS, BETA = 44, 0.1
KINDS = ("sigmoid", "ipo", "hinge")


def logps_alone(both: FewIds, model: Any, member: Any) -> torch.Tensor:
    """The sum over the trained tokens of a sample alone, by transformers, in its own way."""
    tokens = member.tokens
    ids, labels = both.renumbered(tokens.ids), both.renumbered(tokens.labels)
    inputs = {"input_ids": ids[None], **member.media}
    if {"image_grid_thw", "video_grid_thw"} & member.media.keys():
        inputs["mm_token_type_ids"] = tokens.types[None]
    inputs = cast(inputs | {"attention_mask": torch.ones_like(ids[None])}, torch.float64)
    logits = model(**inputs, use_cache=False).logits[0, :-1]
    return -torch.nn.functional.cross_entropy(logits, labels[1:], ignore_index=IGNORE, reduction="sum")


def gradients(model: Any) -> dict[str, torch.Tensor]:
    found = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad()
    return found


def of_alone(both: FewIds, sides: Sequence[Any]) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """The losses of all pairs alone, and the gradients of the first kind's."""
    losses = dict.fromkeys(KINDS, 0.0)
    for pair in zip(sides[::2], sides[1::2], strict=True):
        logps, before = (
            torch.stack([logps_alone(both, model, one) for one in pair]) for model in (both.policy, both.reference)
        )
        ratios, counts = logps - before, torch.tensor([int((one.tokens.labels != IGNORE).sum()) for one in pair])
        margin, by_token = ratios[0] - ratios[1], (ratios / counts)[0] - (ratios / counts)[1]
        each = {
            "sigmoid": -torch.log(torch.sigmoid(BETA * margin)) / NUM_PAIRS,
            "ipo": (by_token - 1 / (2 * BETA)) ** 2 / NUM_PAIRS,
            "hinge": torch.clamp(1 - BETA * margin, min=0) / NUM_PAIRS,
        }
        each[KINDS[0]].backward()
        losses = {kind: losses[kind] + float(each[kind].detach()) for kind in KINDS}
    return losses, gradients(both.policy)


def of_packs(packs: Any, both: FewIds) -> tuple[dict[str, float], dict[str, torch.Tensor], int]:
    """The same of packs, one a batch; and their tokens."""
    losses, seen, tokens = dict.fromkeys(KINDS, 0.0), 0, 0
    total = torch.tensor(float(NUM_PAIRS), dtype=torch.float64)
    for encoded in packs:
        batch = packs.collate([encoded])
        seen, tokens = seen + int(num_pairs(batch)), tokens + batch["num_tokens"]
        batch |= {name: both.renumbered(batch[name]) for name in ("input_ids", "labels")}
        before, logps = (
            member_logps(model(**cast(batch.model_inputs(model), torch.float64)).logits, batch)
            for model in (both.reference, both.policy)
        )
        parts = {kind: preference_loss(logps, before, batch, BETA, kind, total) for kind in KINDS}
        parts[KINDS[0]].backward()
        losses = {kind: losses[kind] + float(parts[kind].detach()) for kind in KINDS}
    assert seen == NUM_PAIRS
    return losses, gradients(both.policy), tokens


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "qwen2_5_vl"])
def test_packs_of_a_class_have_the_loss_and_gradients_of_pairs_alone(name: str, real: Path, tmp_path: Path) -> None:
    """On disk with and without shared prompts, and in a stream."""
    made = pack_pairs_of(name, NUM_PAIRS, real, tmp_path)
    ways: dict[str, Any] = {way: PackedDataset(path, attention_mask="positions") for way, path in made.datasets.items()}
    whole = ways["whole"]
    inputs = [member for number in range(len(whole)) for member in whole.members(0, number)]
    sides = [whole.encoder.members.encode_alone(one) for one in inputs if isinstance(one, MemberInput)]
    both = FewIds(made.model, torch.cat([side.tokens.ids for side in sides])).to(torch.float64)
    losses, wanted = of_alone(both, sides)
    largest = max(float(one.abs().max()) for one in wanted.values())
    use_tree_attention(both.policy)
    use_tree_attention(both.reference)
    options: dict[str, Any] = {"replacement": False, "buffer_size": 16, "attention_mask": "positions"}
    ways["stream"] = StreamingPackedDataset([*made.words, *SHARED], **options)
    for way, packs in ways.items():
        found, grads, tokens = of_packs(packs, both)
        far = {kind: abs(found[kind] - losses[kind]) / abs(losses[kind]) for kind in KINDS}
        assert grads.keys() == wanted.keys()
        gradients_far = max(float((grads[key] - wanted[key]).abs().max()) for key in wanted) / largest
        print(f"| {name} | {way} | {tokens} | {losses[KINDS[0]]:.6f} | {max(far.values()):.1e} | {gradients_far:.1e} |")
        assert max(*far.values(), gradients_far) <= 1e-6, (way, far)
