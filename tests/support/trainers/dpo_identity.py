"""The loss and gradients of TRL's own DPOTrainer over pairs, beside those of packs of the same pairs and ids.

    python dpo_identity.py OUT SHARED WHOLE MODEL sigmoid,ipo,hinge

SHARED and WHOLE are the same pairs, packed with and without shared prompts. TRL is given the ids, labels and media of
the members of WHOLE as rows of one padded batch, chosen before rejected, as its collators make them; both models have
the ids alone that are there. TRL's kernel computes log-probabilities in float32 whatever the model has; in float64 it
is run widened, so that the truth is one. Weights are the same in both precisions, those of float32.
"""

import inspect
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from datasets import Dataset

from energon_pack import (
    PackedDataset,
    member_logps,
    num_pairs,
    preference_loss,
    prepare_torchvision,
    use_tree_attention,
)
from energon_pack.samples.member import MemberInput
from energon_pack.training.encoded import IGNORE
from support.few_ids import FewIds, cast

prepare_torchvision()  # before TRL imports transformers

from transformers import AutoTokenizer  # noqa: E402
from trl import DPOConfig, DPOTrainer  # noqa: E402
from trl.kernels import chunked_logprob  # noqa: E402
from trl.trainer import utils  # noqa: E402

BETA, PAIRS_OF_A_STEP = 0.1, 4


class Tokenised(DPOTrainer):
    """TRL's own trainer, of rows that are tokens already."""

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset


def wide_kernel() -> Any:
    """TRL's own kernel with float64 where it has float32."""
    code = inspect.getsource(chunked_logprob).replace("torch.float32", "torch.float64").replace(".float()", ".double()")
    module = ModuleType("trl.kernels.wide")
    module.__package__ = "trl.kernels"
    exec(compile(code, "wide", "exec"), vars(module))
    return module.ChunkedLogProbFunction


def padded(members: list[Any], models: FewIds, dtype: torch.dtype) -> dict[str, Any]:
    """A batch as TRL's collators make it: all chosen sides, then all rejected ones."""
    ordered = members[::2] + members[1::2]
    width = max(len(member.tokens) for member in ordered)

    def rows(values: list[torch.Tensor], fill: int) -> torch.Tensor:
        return torch.stack([torch.nn.functional.pad(row, (0, width - len(row)), value=fill) for row in values])

    tokens = [member.tokens for member in ordered]
    batch: dict[str, Any] = {
        "input_ids": rows([models.renumbered(member.ids) for member in tokens], 0),
        "attention_mask": rows([torch.ones_like(member.ids) for member in tokens], 0),
        "completion_mask": rows([(member.labels != IGNORE).long() for member in tokens], 0),
    }
    names = {name for member in ordered for name in member.media}
    for name in names:
        batch[name] = torch.cat([member.media[name] for member in ordered if name in member.media])
    if {"image_grid_thw", "video_grid_thw"} & names:  # classes with M-RoPE take them
        batch["mm_token_type_ids"] = rows([member.types for member in tokens], 0)
    return cast(batch, dtype)


def of_trl(trainer: Any, pairs: list[list[Any]], models: FewIds, dtype: torch.dtype) -> float:
    """The mean loss of all pairs by TRL, a few pairs at a time; gradients are added up."""
    loss, number = 0.0, sum(map(len, pairs)) / 2
    for members in pairs:
        part = trainer._compute_loss(trainer.model, padded(members, models, dtype), False) * (len(members) / 2 / number)
        part.backward()
        loss += float(part.detach())
    return loss


def of_packs(batches: list[Any], models: FewIds, kind: str, dtype: torch.dtype) -> float:
    """The same by packs, one a batch."""
    total, loss = torch.stack([num_pairs(batch) for batch in batches]).sum(), 0.0
    for batch in batches:
        policy, reference = (cast(batch.model_inputs(model), dtype) for model in (models.policy, models.reference))
        with torch.no_grad():
            before = member_logps(models.reference(**reference).logits, batch)
        logps = member_logps(models.policy(**policy).logits, batch)
        part = preference_loss(logps, before, batch, BETA, kind, total)
        part.backward()
        loss += float(part.detach())
    return loss


def gradients(model: Any) -> torch.Tensor:
    """All in one row."""
    found = [torch.zeros_like(one) if one.grad is None else one.grad for one in model.parameters()]
    row = torch.cat([gradient.flatten() for gradient in found]).double()
    model.zero_grad()
    return row


def encoded_members(packs: PackedDataset) -> dict[str, Any]:
    """Each member of a dataset by its id."""
    inputs = [member for number in range(len(packs)) for member in packs.members(0, number)]
    return {one.sample_id: packs.encoder.members.encode_alone(one) for one in inputs if isinstance(one, MemberInput)}


def trained(
    kind: str, first: FewIds, pairs: list[list[Any]], ways: dict[str, list[Any]], tokenizer: Any, folder: str
) -> dict[str, list[float]]:
    """Return for each way and precision the loss, and its distance and that of the gradients from TRL's in float64.

    Gradients: the largest distance by the largest gradient, and the length of their difference by their length.
    """
    losses, grads = {}, {}
    one = Dataset.from_dict({"prompt_ids": [[1]], "chosen_ids": [[2]], "rejected_ids": [[3]]})
    for dtype in (torch.float64, torch.float32):
        models = first.to(dtype)
        args = DPOConfig(
            folder, loss_type=[kind], beta=BETA, report_to="none", use_cpu=True, bf16=False,
            gradient_checkpointing=False, max_length=None,
        )  # fmt: skip
        trainer = Tokenised(models.policy, models.reference, args, train_dataset=one, processing_class=tokenizer)
        precision = str(dtype).removeprefix("torch.")
        narrow = utils._ChunkedLogProbFunction
        utils._ChunkedLogProbFunction = wide_kernel() if dtype == torch.float64 else narrow
        losses[f"TRL {precision}"] = of_trl(trainer, pairs, models, dtype)
        utils._ChunkedLogProbFunction = narrow
        grads[f"TRL {precision}"] = gradients(models.policy)
        use_tree_attention(models.policy)
        use_tree_attention(models.reference)
        for way, batches in ways.items():
            losses[f"{way} {precision}"] = of_packs(batches, models, kind, dtype)
            grads[f"{way} {precision}"] = gradients(models.policy)
    loss, true = losses["TRL float64"], grads["TRL float64"]
    apart = {way: grad - true for way, grad in grads.items()}
    return {
        way: [
            losses[way], abs(losses[way] - loss) / abs(loss), float(apart[way].abs().max() / true.abs().max()),
            float(apart[way].norm() / true.norm()),
        ]
        for way in losses
    }  # fmt: skip


def main() -> None:
    out, shared, whole, name, kinds = sys.argv[1:6]
    torch.set_num_threads(1)
    datasets = {"shared": shared, "whole": whole}
    packs = {key: PackedDataset(path, name, attention_mask="positions") for key, path in datasets.items()}
    members = encoded_members(packs["whole"])
    models = FewIds(Path(name), torch.cat([member.tokens.ids for member in members.values()]))
    ids = sorted(members)  # chosen before rejected
    step = 2 * PAIRS_OF_A_STEP
    pairs = [[members[one] for one in ids[start : start + step]] for start in range(0, len(ids), step)]
    found: dict[str, Any] = {"pairs": len(ids) // 2, "kinds": {}, "tokens": {}, "images": {}}
    ways = {way: [dataset.collate([dataset[n]]) for n in range(len(dataset))] for way, dataset in packs.items()}
    for way, batches in ways.items():
        for batch in batches:
            batch |= {key: models.renumbered(batch[key]) for key in ("input_ids", "labels")}
        found["tokens"][way] = sum(batch["num_tokens"] for batch in batches)
        found["images"][way] = int(sum(batch["n_images_per_sample"].sum() for batch in batches))
    rows = [padded(members, models, torch.float32)["input_ids"] for members in pairs]
    found["tokens"]["TRL, padded"] = sum(row.numel() for row in rows)
    tokenizer = AutoTokenizer.from_pretrained(name)
    folder = str(Path(out).parent)
    found["kinds"] = {kind: trained(kind, models, pairs, ways, tokenizer, folder) for kind in kinds.split(",")}
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
