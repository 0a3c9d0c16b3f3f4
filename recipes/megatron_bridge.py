"""Packs in Megatron-Bridge: a dataset provider, and what a recipe's config has to be beside it.

    from megatron.bridge.recipes.qwen_vl import ...            # any recipe that returns a ConfigContainer
    cfg = apply_to_recipe(recipe(), "packed/wds-qwen2_5_vl-thd-4096", processor="Qwen/Qwen2.5-VL-7B-Instruct")
    cfg.model.tensor_model_parallel_size = 4
    check(cfg)                                                 # again, after changes of your own
    finetune(cfg, forward_step_func=vlm_step.forward_step)

Bridge ≥ 0.6 takes layout `thd`. Bridge ≤ 0.5 takes `rows` (`apply_to_recipe(..., layout="rows")`), which it packs again
itself; not for Qwen-VL models, whose positions it does not start again with each member.

The step is vlm_step, for every model. Bridge's own runner, scripts/training/run_recipe.py, takes another for recipes
named qwen3_vl_*, which has no packs: `--step_func vlm_step`.

A micro-batch is a pack, so `train.global_batch_size` counts packs. Each data-parallel rank saves its place in the data
with a checkpoint, in the folder `dataset.dataloader_save` (before 0.7 also `checkpoint.dataloader_save`); 0.7 takes one
beside the checkpoint where none is named, and before, nothing is saved then. Bridge hands a rank its own file alone: so
a run goes on with as many data-parallel ranks as before, though with any number of workers, and packs are in the order
of their plan all the same. Keep packed_data.py beside this file.

Bridge does not install without a GPU: this was run against a stand-in of its interface (tests/test_recipes.py), written
after the sources of 0.3 to 0.7, and never in a training on GPUs.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron.energon import WorkerConfig
from packed_data import Endless, longest_pack, train_loader, val_loader

from energon_pack import PackedTaskEncoder, read_manifest

if TYPE_CHECKING:
    DatasetProvider: Any = object
else:
    try:
        from megatron.bridge.data.utils import DatasetProvider
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("megatron.bridge"):  # Bridge is there, and something of it is missing
            raise
        DatasetProvider = object


@dataclass(kw_only=True)
class PackedProvider(DatasetProvider):
    """Batches of packs for Bridge's training loop, one pack each."""

    path: str  # a packed dataset, or a Metadataset of several
    seq_length: int
    packed: str | None = None  # of a Metadataset: one of its datasets, if its own are not to be looked for
    val_path: str | None = None  # another packed dataset for validation; default: the part val of `path`
    processor: str | None = None
    layout: str = "thd"
    num_workers: int = 2
    dataloader_type: str | None = "external"  # Bridge hands the loaders on as they are
    dataloader_save: str | None = None  # folder for each rank's place in the data
    pad_to_max_length: bool = False  # Bridge turns this on for expert parallelism, up to 0.5 for pipelines too
    pad_to_multiple_of: int | None = None  # default: what it was packed with
    trust_remote_code: bool | None = None

    @property
    def pack_sequences_in_batch(self) -> bool:
        """What Bridge ≤ 0.5 asks for, to pack the rows of a batch; 0.7 has no such field."""
        return self.layout == "rows"

    @property
    def manifest(self) -> dict[str, Any]:
        return read_manifest(Path(self.packed or self.path))

    @property
    def has_text_packs(self) -> bool:
        """Some packs have no image or video, as far as the report says."""
        report = Path(self.packed or self.path, "report.json")
        return report.exists() and json.loads(report.read_text())["by_media"].get("text", {}).get("packs", 0) > 0

    def build_datasets(self, context: Any) -> tuple[Any, Any, None]:
        """Train and validation loaders of this rank; validation is None where there is no such data."""
        encoder = PackedTaskEncoder(
            self.packed or self.path,
            self.processor,
            layout=self.layout,
            pad_to=[longest_pack(self.manifest, self.val_path)] if self.pad_to_max_length else "longest",
            pad_to_multiple_of=self.pad_to_multiple_of,
            trust_remote_code=bool(self.trust_remote_code),
        )
        worker = worker_config(getattr(context, "pg_collection", None), self.num_workers)
        val = val_loader(self.path, encoder, worker, self.val_path) if context.valid_samples > 0 else None
        # The loader itself, not an iterator of it: Bridge looks for its save_state and restore_state.
        return train_loader(self.path, encoder, worker), None if val is None else Endless(val), None


def worker_config(groups: Any, num_workers: int) -> WorkerConfig:
    """This rank among those that read different data: ranks of one context-, tensor- or pipeline-parallel group read
    the same, so it is the group `dp`, never `dp_cp`.
    """
    group = None if groups is None else groups.dp
    if group is None:
        from megatron.core import parallel_state

        group = parallel_state.get_data_parallel_group()  # without context parallelism
    return WorkerConfig(rank=group.rank(), world_size=group.size(), num_workers=num_workers, data_parallel_group=group)


def apply_to_recipe(cfg: Any, path: str | Path, **provider: Any) -> Any:
    """Have a recipe's config train on packs; the config, changed.

    Sets the dataset, the sequence length, a micro-batch of one pack, and a loss by trained tokens.

    Args:
        cfg: a ConfigContainer.
        path: of a packed dataset, or of a Metadataset.
        provider: fields of `PackedProvider`.

    Raises:
        ValueError: see `check`.
    """
    packed = read_manifest(Path(provider.get("packed") or path))
    longest = longest_pack(packed, provider.get("val_path"))
    cfg.dataset = PackedProvider(path=str(path), **{"seq_length": longest, **provider})
    cfg.model.seq_length = cfg.dataset.seq_length
    cfg.dataset.pad_to_max_length |= _needs_fixed_width(cfg.model)
    # Packs have unequal numbers of trained tokens: the mean over ranks of means would be another loss.
    cfg.model.calculate_per_token_loss = True
    cfg.ddp.average_in_collective = False
    if cfg.dataset.layout == "rows":  # Bridge ≤ 0.5 packs only what it takes for several samples
        cfg.train.global_batch_size *= 2
        cfg.train.micro_batch_size = 2
    else:
        cfg.train.micro_batch_size = 1
        if getattr(getattr(cfg, "validation", None), "eval_micro_batch_size", None):
            cfg.validation.eval_micro_batch_size = 1
    check(cfg)
    return cfg


def check(cfg: Any) -> None:
    """What Bridge checks for its own datasets, and skips for those of others.

    Raises:
        ValueError: names the value, and what to set.
    """
    data, model, packed = cfg.dataset, cfg.model, cfg.dataset.manifest
    rope, longest = packed["content"]["model"].get("rope") or "", longest_pack(packed, data.val_path)
    is_thd, mbs = data.layout == "thd", cfg.train.micro_batch_size
    _need(data.layout in ("thd", "rows"), f"dataset.layout={data.layout}", "thd for Bridge ≥ 0.6, rows for ≤ 0.5")
    _need(
        is_thd or not rope.startswith("qwen"),
        f"dataset.layout=rows with positions {rope}, which Bridge ≤ 0.5 does not start again with each member",
        "Bridge ≥ 0.6 with dataset.layout=thd",
    )
    _need(mbs == 1 or not is_thd, f"train.micro_batch_size={mbs}, but a pack is a micro-batch of its own", "1")
    _need(mbs > 1 or is_thd, f"train.micro_batch_size={mbs}, but Bridge ≤ 0.5 packs rows only of several", "2")
    _need(
        model.calculate_per_token_loss, "model.calculate_per_token_loss=False, but packs train unequally many", "True"
    )
    _need(not cfg.ddp.average_in_collective, "ddp.average_in_collective=True, but the loss is by tokens", "False")
    pp = _size(model, "pipeline_model_parallel_size")
    _need(pp == 1 or not is_thd, f"model.pipeline_model_parallel_size={pp}, for which Bridge has no packs", "1")

    lengths = f"dataset.seq_length={data.seq_length} with model.seq_length={model.seq_length}"
    _need(data.seq_length == model.seq_length, lengths, "both to the same")
    _need(data.seq_length >= longest, f"{lengths}, but packs have up to {longest} tokens", f"both to {longest}")
    is_fixed = data.pad_to_max_length
    _need(data.seq_length == longest or not is_fixed, f"{lengths}, but packs are padded to {longest}", "both to that")
    wanted = "dataset.pad_to_max_length=False, but expert and pipeline parallelism want batches of one width"
    _need(is_fixed or not _needs_fixed_width(model), wanted, "True")
    for name in ("cuda_graph_impl", "vision_cuda_graph_impl"):
        graphs = getattr(model, name, None)
        _need(graphs in (None, "none"), f"model.{name}={graphs}, but packs have unequally many members", "none")
    num_mtp = getattr(model, "mtp_num_layers", None)
    _need(not num_mtp, f"model.mtp_num_layers={num_mtp}, which looks into the next member", "None")
    for part in ("model", "comm_overlap"):
        overlaps = getattr(getattr(cfg, part, None), "overlap_moe_expert_parallel_comm", None)
        found = f"{part}.overlap_moe_expert_parallel_comm={overlaps}, with which vlm_step hands on neither images nor"
        _need(not overlaps, f"{found} boundaries of members", "False")
    splits = getattr(getattr(model, "dist_train", None), "use_dist_train", False)
    _need(not splits, f"model.dist_train.use_dist_train={splits}, for which Bridge has no packs", "False")
    fsdp2 = getattr(getattr(cfg, "dist", None), "use_torch_fsdp2", False)
    _need(not fsdp2, f"dist.use_torch_fsdp2={fsdp2}, which waits for ranks whose pack has no image", "False")

    cp, tp = _size(model, "context_parallel_size"), _size(model, "tensor_model_parallel_size")
    eval_cp = _size(getattr(cfg, "dist", None), "eval_context_parallel_size", cp)
    has_sp = tp > 1 and bool(getattr(model, "sequence_parallel", False))
    multiple = math.lcm(*(math.lcm(2 * n if n > 1 else 1, n * tp if has_sp else 1) for n in (cp, eval_cp)))
    aligned = data.pad_to_multiple_of or packed["pad_to_multiple_of"]
    sizes = f"context_parallel_size={cp}, tensor_model_parallel_size={tp}, sequence_parallel={has_sp}"
    is_qwen2, most = rope in ("qwen2_vl", "qwen2_5_vl"), max(cp, eval_cp)
    _need(most == 1 or not is_qwen2, f"model.context_parallel_size={most}, which Bridge's {rope} has not", "1")
    _need(
        aligned % multiple == 0 or not is_thd,
        f"members are multiples of {aligned}, but {sizes} want {multiple}",
        f"packing.pad_to_multiple_of={math.lcm(aligned, multiple)} and pack again",
    )
    _need(data.seq_length % multiple == 0, f"{lengths}, but {sizes} want a multiple of {multiple}", "both to one")

    is_fsdp = any(getattr(part, "use_megatron_fsdp", False) for part in (cfg.ddp, getattr(cfg, "dist", None)))
    is_overlapping = is_fsdp or getattr(cfg.ddp, "overlap_grad_reduce", False)
    trains_vision = getattr(model, "freeze_vision_model", True) is False
    _need(
        not (trains_vision and is_overlapping and data.has_text_packs),
        "ddp.overlap_grad_reduce or FSDP wait for gradients that packs of text do not give the vision tower",
        "ddp.overlap_grad_reduce=False, or packing.group_by=none packing.need_image=true and pack again",
    )


def _need(is_right: Any, found: str, knob: str) -> None:
    if not is_right:
        raise ValueError(f"{found}: set {knob}")


def _size(of: Any, name: str, default: int = 1) -> int:
    return int(getattr(of, name, None) or default)


def _needs_fixed_width(model: Any) -> bool:
    return max(_size(model, "pipeline_model_parallel_size"), _size(model, "expert_model_parallel_size")) > 1
