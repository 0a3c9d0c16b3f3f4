"""The loss and gradients of TRL's own DPOTrainer over pairs, beside those of packs of the same pairs and ids.

    python dpo_identity.py OUT SHARED WHOLE MODEL sigmoid,ipo,hinge

SHARED and WHOLE are the same pairs, packed with and without shared prompts. TRL is given the ids, labels and media of
the members of WHOLE as rows of one padded batch, chosen before rejected, as its collators make them. Its kernel
computes log-probabilities in float32 whatever the model has; in float64 it is run widened, so that the truth is one.
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

prepare_torchvision()  # before TRL imports transformers

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM, AutoTokenizer  # noqa: E402
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


def models(name: str) -> tuple[Any, Any]:
    """A policy, and a reference that is another."""
    has_media = hasattr(AutoConfig.from_pretrained(name), "vision_config")
    kind = AutoModelForMultimodalLM if has_media else AutoModelForCausalLM
    policy, reference = (kind.from_pretrained(name, attn_implementation="sdpa") for _ in range(2))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return policy.eval(), reference.eval()


def cast(inputs: Any, dtype: torch.dtype) -> dict[str, Any]:
    return {k: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in inputs.items()}


def padded(members: list[Any], dtype: torch.dtype) -> dict[str, Any]:
    """A batch as TRL's collators make it: all chosen sides, then all rejected ones."""
    ordered = members[::2] + members[1::2]
    width = max(len(member.tokens) for member in ordered)

    def rows(values: list[torch.Tensor], fill: int) -> torch.Tensor:
        return torch.stack([torch.nn.functional.pad(row, (0, width - len(row)), value=fill) for row in values])

    tokens = [member.tokens for member in ordered]
    batch: dict[str, Any] = {
        "input_ids": rows([member.ids for member in tokens], 0),
        "attention_mask": rows([torch.ones_like(member.ids) for member in tokens], 0),
        "completion_mask": rows([(member.labels != IGNORE).long() for member in tokens], 0),
    }
    names = {name for member in ordered for name in member.media}
    for name in names:
        batch[name] = torch.cat([member.media[name] for member in ordered if name in member.media])
    if {"image_grid_thw", "video_grid_thw"} & names:  # classes with M-RoPE take them
        batch["mm_token_type_ids"] = rows([member.types for member in tokens], 0)
    return cast(batch, dtype)


def of_trl(trainer: Any, pairs: list[list[Any]], dtype: torch.dtype) -> float:
    """The mean loss of all pairs by TRL, a few pairs at a time; gradients are added up."""
    loss, number = 0.0, sum(map(len, pairs)) / 2
    for members in pairs:
        part = trainer._compute_loss(trainer.model, padded(members, dtype), False) * (len(members) / 2 / number)
        part.backward()
        loss += float(part.detach())
    return loss


def of_packs(packs: PackedDataset, policy: Any, reference: Any, kind: str, dtype: torch.dtype) -> float:
    """The same by packs."""
    batches = [packs.collate([packs[number]]) for number in range(len(packs))]
    total, loss = torch.stack([num_pairs(batch) for batch in batches]).sum(), 0.0
    for batch in batches:
        with torch.no_grad():
            before = member_logps(reference(**cast(batch.model_inputs(reference), dtype)).logits, batch)
        logps = member_logps(policy(**cast(batch.model_inputs(policy), dtype)).logits, batch)
        part = preference_loss(logps, before, batch, BETA, kind, total)
        part.backward()
        loss += float(part.detach())
    return loss


def gradients(model: Any) -> list[torch.Tensor]:
    found = [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for parameter in model.parameters()
    ]
    model.zero_grad()
    return [gradient.double() for gradient in found]


def largest(gradients: list[torch.Tensor], others: list[torch.Tensor] | None = None) -> float:
    both = zip(gradients, others or [torch.zeros(())] * len(gradients), strict=True)
    return max(float((one - other).abs().max()) for one, other in both)


def main() -> None:
    out, shared, whole, name, kinds = sys.argv[1:6]
    torch.set_num_threads(1)
    datasets = {"shared": shared, "whole": whole}
    packs = {key: PackedDataset(path, name, attention_mask="positions") for key, path in datasets.items()}
    members = {}
    for number in range(len(packs["whole"])):
        for member in packs["whole"].members(0, number):
            assert isinstance(member, MemberInput)
            members[member.sample_id] = packs["whole"].encoder.members.encode(member)
    ids = sorted(members)  # chosen before rejected
    step = 2 * PAIRS_OF_A_STEP
    pairs = [[members[one] for one in ids[start : start + step]] for start in range(0, len(ids), step)]
    tokenizer = AutoTokenizer.from_pretrained(name)
    one = Dataset.from_dict({"prompt_ids": [[1]], "chosen_ids": [[2]], "rejected_ids": [[3]]})
    found: dict[str, Any] = {"pairs": len(ids) // 2, "kinds": {}, "tokens": {}}
    for name_of, dataset in packs.items():
        batches = [dataset.collate([dataset[number]]) for number in range(len(dataset))]
        found["tokens"][name_of] = sum(batch["num_tokens"] for batch in batches)
        found.setdefault("images", {})[name_of] = int(sum(batch["n_images_per_sample"].sum() for batch in batches))
    rows = [padded(members, torch.float32)["input_ids"] for members in pairs]
    found["tokens"]["TRL, padded"] = sum(row.numel() for row in rows)
    for kind in kinds.split(","):
        grads, losses = {}, {}
        for dtype in (torch.float64, torch.float32):
            policy, reference = (model.to(dtype) for model in models(name))
            args = DPOConfig(
                str(Path(out).parent), loss_type=[kind], beta=BETA, report_to="none", use_cpu=True, bf16=False,
                gradient_checkpointing=False, max_length=None,
            )  # fmt: skip
            trainer = Tokenised(policy, reference, args, train_dataset=one, processing_class=tokenizer)
            precision = str(dtype).removeprefix("torch.")
            narrow = utils._ChunkedLogProbFunction
            utils._ChunkedLogProbFunction = wide_kernel() if dtype == torch.float64 else narrow
            losses[f"TRL {precision}"] = of_trl(trainer, pairs, dtype)
            utils._ChunkedLogProbFunction = narrow
            grads[f"TRL {precision}"] = gradients(policy)
            use_tree_attention(policy)
            use_tree_attention(reference)
            for name_of, dataset in packs.items():
                losses[f"{name_of} {precision}"] = of_packs(dataset, policy, reference, kind, dtype)
                grads[f"{name_of} {precision}"] = gradients(policy)
        true = grads["TRL float64"]
        found["kinds"][kind] = {
            way: [losses[way], abs(losses[way] - losses["TRL float64"]) / abs(losses["TRL float64"]),
                  largest(grads[way], true) / largest(true)]
            for way in losses
        }  # fmt: skip
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
