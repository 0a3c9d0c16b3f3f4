"""Ranks of Megatron on CPUs: `python gpt_ranks.py FOLDER TP,CP,PP...`; those of each are processes that meet in gloo.

What each rank made is in FOLDER/TP-CP-PP-RANK.pt; with 1,1,1 each member goes through the model by itself.
"""

import math
import multiprocessing
import re
import sys
import warnings
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from energon_pack.training.fixed_shapes import packed_seq_params
from energon_pack.training.layout import IGNORE, Member, RowForm
from energon_pack.training.megatron_layouts import thd
from support.gpt import NUM_LAYERS, VOCABULARY, cpu_for_cuda, tiny_gpt
from support.shards import Group, megatron_shards

MROPE: dict[str, Any] = {"mrope_section": [1, 1, 2]}
DEPTH = 2  # of multi-token prediction
WIDTH = 48  # of each micro-batch of a pipeline
#: members of its micro-batches: unequally many, in packs of unequal length
MICRO_BATCHES = ((0, 1), (2,), (3, 4, 1), (2, 0))


def make_members() -> list[Member]:
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(1, VOCABULARY, (n,), generator=generator) for n in (9, 5, 14, 3, 1)]
    rows = [torch.randint(0, 20, (3, len(x)), generator=generator) for x in ids]  # as an image's, in no order
    labels = [torch.where(torch.arange(len(x)) > 0, x, IGNORE) for x in ids]
    return [Member(x, y, torch.zeros_like(x), z) for x, y, z in zip(ids, labels, rows, strict=True)]


def multiple(tp: int, cp: int) -> int:
    """Of each member, as conf/packing/thd.yaml says; wherever tensors are parallel, sequences are."""
    return math.lcm(2 * cp if cp > 1 else 1, cp * tp if tp > 1 else 1)


def spread(model: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """This rank's part of a batch through the model.

    Returns:
        place [tokens]: where its tokens stand in the batch; for each depth of prediction (the next token is the first)
        logits [tokens, vocabulary], labels and mask [tokens].
    """
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region
    from megatron.core.transformer.multi_token_prediction import roll_tensor

    group, params = parallel_state.get_context_parallel_group(), packed_seq_params(batch, physical=True)
    is_mrope = batch["position_ids"].dim() == 3
    tensors = {name: batch[name] for name in ("input_ids", "labels", "loss_mask")}
    if not is_mrope:
        tensors["position_ids"] = batch["position_ids"]
    tensors["place"] = torch.arange(batch["total_tokens"])[None]
    own = megatron_shards(batch, tensors, group.size())[group.rank()]
    logits: list[Tensor] = []
    labels: list[Tensor] = []
    compute = model.compute_language_model_loss

    def record(targets: Tensor, made: Tensor) -> Tensor:
        labels.append(targets[0])
        logits.append(gather_from_tensor_model_parallel_region(made)[:, 0].clone())  # the loss writes into them
        loss: Tensor = compute(targets, made)
        return loss

    positions = batch["position_ids"] if is_mrope else own["position_ids"]  # of M-RoPE, the model takes its own part
    kwargs = {"labels": own["labels"], "loss_mask": own["loss_mask"], "packed_seq_params": params}
    with patch.object(model, "compute_language_model_loss", record), torch.no_grad():
        model(own["input_ids"], positions, None, **kwargs)
    masks = [own["loss_mask"]]
    for _ in range(DEPTH):
        masks.append(roll_tensor(masks[-1], cp_group=group, packed_seq_params=params)[0])
    order = [-1, *range(len(logits) - 1)]  # the main head's loss is the last to be computed
    return {
        "place": own["place"][0],
        "logits": [logits[i] for i in order],
        "labels": [labels[i] for i in order],
        "masks": [mask[0] for mask in masks],
    }


def beside(tp: int, cp: int) -> dict[str, Any]:
    """A batch on ranks that are tensor and context parallel; with M-RoPE, too."""
    settings: dict[str, Any] = {"tensor_model_parallel_size": tp, "sequence_parallel": tp > 1}
    settings["context_parallel_size"] = cp
    found = spread(tiny_gpt(mtp_num_layers=DEPTH, **settings), thd(make_members(), RowForm(multiple=multiple(tp, cp))))
    model, batch = tiny_gpt(**MROPE, **settings), thd(make_members(), RowForm(multiple=multiple(tp, cp), rope=True))
    if cp == 2:  # megatron-core cuts the rows as if they were of one text; with more ranks that may not even run
        found["mrope_cut"] = spread(model, batch)
    model.rotary_pos_emb.cp_group = Group(1, 0)  # rows left whole, as in Megatron-Bridge's Qwen3-VL
    return found | {"mrope": spread(model, batch)}


def loss_of(batch: dict[str, Any], num_trained: float, losses: Tensor) -> tuple[Tensor, float]:
    loss = (losses * batch["loss_mask"]).sum() / num_trained
    return loss, float(loss.detach())


def forward(batch: dict[str, Any], model: Any) -> Tensor:
    params = packed_seq_params(batch)
    losses: Tensor = model(
        batch["input_ids"], batch["position_ids"], None, labels=batch["labels"], packed_seq_params=params
    )
    return losses


def alone(folder: Path) -> dict[str, Any]:
    """Each member by itself: what every depth predicts; loss and gradients of what the pipeline trains on."""
    model = tiny_gpt(mtp_num_layers=DEPTH)
    found: dict[str, Any] = {"members": [spread(model, thd([member], RowForm())) for member in make_members()]}
    model = tiny_gpt(**MROPE)
    found["mrope"] = [spread(model, thd([member], RowForm(rope=True))) for member in make_members()]
    model, members = tiny_gpt(), make_members()
    trained = [members[i] for micro_batch in MICRO_BATCHES for i in micro_batch]
    batches = [thd([member], RowForm()) for member in trained]
    num_trained = sum(int(batch["loss_mask"].sum()) for batch in batches)
    found["loss"] = 0.0
    for batch in batches:
        loss, value = loss_of(batch, num_trained, forward(batch, model))
        loss.backward()
        found["loss"] += value
    torch.save(model.state_dict(), folder / "state.pt")
    return found | {"gradients": {name: p.grad for name, p in model.named_parameters()}}


def pipeline(folder: Path, pp: int) -> dict[str, Any]:
    """One stage: loss of each micro-batch, where it is the last, and gradients by their names in the whole model."""
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import get_forward_backward_func

    stage, members = parallel_state.get_pipeline_model_parallel_rank(), make_members()
    settings: dict[str, Any] = {"pipeline_model_parallel_size": pp, "pipeline_dtype": torch.float32}
    model = tiny_gpt(first=stage == 0, last=stage == pp - 1, **settings)
    first = stage * NUM_LAYERS // pp
    whole = torch.load(folder / "state.pt", weights_only=False)
    names = {
        name: re.sub(r"layers\.(\d+)", lambda number: f"layers.{int(number[1]) + first}", name)
        for name in model.state_dict()
    }
    model.load_state_dict({name: whole[of] for name, of in names.items()})
    batches = [thd([members[i] for i in pack], RowForm(multiple=8, width=WIDTH)) for pack in MICRO_BATCHES]
    num_trained = sum(int(batch["loss_mask"].sum()) for batch in batches)

    def step(data: Any, model: Any) -> tuple[Tensor, Any]:
        batch = next(data)
        return forward(batch, model), partial(loss_of, batch, num_trained / len(batches))

    losses = get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=iter(batches),
        model=model,
        num_microbatches=len(batches),
        seq_length=WIDTH,
        micro_batch_size=1,
    )
    found = {names[name]: p.grad for name, p in model.named_parameters()}
    return {"losses": [loss / len(batches) for loss in losses], "gradients": found}


def rank_main(folder: Path, shape: tuple[int, int, int], rank: int) -> None:
    """One process."""
    from megatron.core import parallel_state

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    tp, cp, pp = shape
    name = "-".join(map(str, shape))
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=tp * cp * pp, timeout=timedelta(minutes=2)
    )
    with cpu_for_cuda():
        parallel_state.initialize_model_parallel(tp, pp, context_parallel_size=cp)
        found = pipeline(folder, pp) if pp > 1 else alone(folder) if tp * cp == 1 else beside(tp, cp)
        torch.save(found, folder / f"{name}-{rank}.pt")
        torch.distributed.barrier()


def main() -> None:
    folder, *shapes = sys.argv[1:]
    import_module("megatron.core.models.gpt")  # once for all ranks

    fork = multiprocessing.get_context("fork")
    for text in shapes:
        tp, cp, pp = map(int, text.split(","))
        ranks = [fork.Process(target=rank_main, args=(Path(folder), (tp, cp, pp), r)) for r in range(tp * cp * pp)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            sys.exit(f"{text}: a rank failed")


if __name__ == "__main__":
    main()
