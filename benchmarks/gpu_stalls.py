"""What stalls a GPU, for `benchmarks/gpu.py --stalls`: host reads, transfers, shapes; and a step as a CUDA graph."""

import argparse
import gc
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from gpu_model import make_model, wait_for
from megatron.energon import WorkerConfig
from rich.table import Table
from timing import at_least, at_most

from energon_pack import PackedTaskEncoder
from energon_pack.training.batch import PackedBatch
from energon_pack.training.guards import guard
from energon_pack.training.host_reads import HostReadCounter
from energon_pack.training.masks import BOUNDARY_MARK

#: options of the encoder, and whether batches bring the values for the tower
VARIANTS: dict[str, tuple[dict[str, Any], bool]] = {
    "as it was": ({}, False),
    "values for the tower": ({}, True),
    "and pad_to=512": ({"pad_to": 512}, True),
    "and pad_segments=128": ({"pad_to": 512, "pad_segments": 128}, True),
}
#: steps at the start that are no measure
WARM = 3
#: of the first loss beside the first variant's, relative
LOSS_TOLERANCE = 1e-3


@dataclass
class Stalls:
    """What a variant was seen to do."""

    #: of the transfers, a forward and a backward
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    #: reads by the host in a forward, by place
    reads: Mapping[str, int] = field(default_factory=dict)
    #: None: not on a GPU
    num_kernels: int | None = None
    #: widths and numbers of boundaries that batches have
    shapes: set[tuple[int, int]] = field(default_factory=set)
    #: tensors' bytes of the last batch
    num_bytes: int = 0

    @property
    def rate(self) -> float:
        """Steps a second."""
        own = self.seconds[WARM:] or self.seconds
        return len(own) / sum(own)


def batches_of(dataset: Path, encoder: PackedTaskEncoder, number: int) -> list[PackedBatch]:
    """The first packs of the plan, laid out; made before, so that no loader is timed."""
    from packed_data import train_loader

    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    return list(islice(iter(train_loader(dataset, encoder, worker)), number))


def step(model: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
    loss: torch.Tensor = model(**inputs).loss
    loss.backward()
    return loss.detach()


def stalls_of(model: Any, batches: Sequence[PackedBatch]) -> Stalls:
    """Steps without an optimizer, whose time is the same for all."""
    found, device = Stalls(), model.device
    is_cuda = device.type == "cuda"
    batches = [batch.pin_memory() for batch in batches] if is_cuda else batches
    for batch in batches:
        found.shapes.add((batch["input_ids"].shape[1], len(batch["cu_seq_lens_q"])))
        wait_for(device)
        start = time.perf_counter()
        loss = step(model, batch.to(device, non_blocking=True).model_inputs(model))
        wait_for(device)
        found.seconds.append(time.perf_counter() - start)
        found.losses.append(float(loss))
        model.zero_grad()
    seen = max(batches, key=lambda batch: len(batch.get("image_grid_thw", ())))
    found.num_bytes = seen.num_bytes
    inputs = seen.to(device).model_inputs(model)
    found.reads = reads_in(model, inputs, [value for name, value in inputs.items() if BOUNDARY_MARK in name])
    found.num_kernels = kernels_of(model, seen) if is_cuda else None
    return found


@torch.no_grad()
def reads_in(model: Any, inputs: Mapping[str, Any], kept: Iterable[Any] = ()) -> Counter[str]:
    """Reads of a forward, by the line: on a GPU the waits that PyTorch reports, else as they are counted anywhere.

    Args:
        kept: inputs that stay on the host.
    """
    if model.device.type != "cuda":
        with HostReadCounter(kept, model.device) as reads:
            model(**inputs)
        return reads.reads_by_line
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model(**inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [one for one in caught if "synchronizing" in str(one.message)]
    return Counter(f"{Path(one.filename).name}:{one.lineno}" for one in waits)


def kernels_of(model: Any, batch: PackedBatch) -> int:
    """Kernels of a forward and backward."""
    inputs = batch.to(model.device).model_inputs(model)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step(model, inputs)
        wait_for(model.device)
    model.zero_grad()
    return sum("mem" not in one.name.lower() for one in profile.events() if one.device_type.name == "CUDA")


# ----------------------------------------------------------------------------------------------------- a step's graph


@dataclass(frozen=True)
class Graph:
    """Steps by themselves, and as replays of one graph."""

    eager: float
    replayed: float
    #: largest difference of their losses, relative
    apart: float
    num_steps: int


def graph_of(model: Any, batches: Sequence[PackedBatch]) -> Graph:
    """Capture the step of the first pack of text, and replay it for all of one shape.

    Raises:
        RuntimeError: the step reads something on the host.
    """
    every = [batch.to(model.device).model_inputs(model) for batch in batches]
    static = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in every[0].items()}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM):
            step(model, static)
            model.zero_grad()
    torch.cuda.current_stream().wait_stream(stream)
    by_itself, eager = _timed(model, every, lambda inputs: step(model, inputs))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(model, static)

    def replay(inputs: Mapping[str, Any]) -> torch.Tensor:
        for name, value in inputs.items():
            if isinstance(value, torch.Tensor):
                static[name].copy_(value)
        graph.replay()
        return loss.clone()

    replayed, losses = _timed(model, every, replay)
    apart = max(abs(one - other) / abs(other) for one, other in zip(losses, eager, strict=True))
    return Graph(by_itself, replayed, apart, len(every))


def _timed(model: Any, every: Sequence[Any], run: Any) -> tuple[float, list[float]]:
    """Steps a second, and their losses."""
    wait_for(model.device)
    start = time.perf_counter()
    losses = [run(inputs) for inputs in every]
    wait_for(model.device)
    return len(every) / (time.perf_counter() - start), [float(loss) for loss in losses]


def of_one_shape(batches: Sequence[PackedBatch]) -> list[PackedBatch]:
    """The packs of text that have the shape of most of them."""
    texts = [batch for batch in batches if "pixel_values" not in batch]
    shapes = [(batch["input_ids"].shape, len(batch["cu_seq_lens_q"]), batch["max_length_q"]) for batch in texts]
    most = max(shapes, key=shapes.count, default=None)
    return [batch for batch, shape in zip(texts, shapes, strict=True) if shape == most]


# ------------------------------------------------------------------------------------------------------------- tables


def stalls(config: Any, dataset: Path, processor: str | None, options: argparse.Namespace) -> Iterator[Table]:
    """A table of the variants for each attention, and one of the graph."""
    device = torch.device(options.device)
    for attention in options.attention:
        model = make_model(config, attention, options.dtype, device, options.checkpointing)
        found: dict[str, Stalls] = {}
        for name, (form, has_values) in VARIANTS.items():
            encoder = PackedTaskEncoder(dataset, processor, layout="neat", **form)
            # Its checks of each forward read inputs on the host, too: the model alone is measured.
            guard(model, encoder, trust=type(model).__name__, first_batch=False).remove()
            if not has_values:
                encoder.encoder.use_tower(None)
            batches = batches_of(dataset, encoder, options.steps)
            found[name] = stalls_of(model, batches)
        yield table_of(attention, found)
        yield graph_table(attention, model, of_one_shape(batches))
        del model
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def table_of(attention: str, found: Mapping[str, Stalls]) -> Table:
    """The variants beside the first one."""
    table = Table(
        attention, "steps/s", "beside", "reads", "kernels", "shapes", "MB", "first loss, holds", "most reads at"
    )
    first = next(iter(found.values()))
    for name, own in found.items():
        apart = abs(own.losses[0] - first.losses[0]) / abs(first.losses[0])
        times = at_least(own.rate / first.rate, 1, "×") if own.num_kernels is not None else "no goal on a CPU"
        places = sorted(own.reads.items(), key=lambda one: -one[1])[:3]
        table.add_row(
            name,
            f"{own.rate:.2f}",
            f"{own.rate / first.rate:.3f}: {times}",
            str(sum(own.reads.values())),
            "of a GPU only" if own.num_kernels is None else f"{own.num_kernels:,}",
            str(len(own.shapes)),
            f"{own.num_bytes / 1e6:.1f}",
            f"{apart:.1e} {at_most(apart, LOSS_TOLERANCE)}",
            "\n".join(f"{number} {place.removeprefix('modeling_')}" for place, number in places),
        )
    return table


def graph_table(attention: str, model: Any, batches: Sequence[PackedBatch]) -> Table:
    """A step of text as one graph."""
    title = f"{attention}, a step of text as one graph"
    table = Table(title, "packs", "eager steps/s", "replayed steps/s", "loss, holds")
    if model.device.type != "cuda" or not batches:
        table.add_row("of a GPU only" if batches else "no pack of text", str(len(batches)), "", "", "")
        return table
    try:
        own = graph_of(model, batches)
    except RuntimeError as error:
        table.add_row(f"not captured: {' '.join(str(error).split())[:100]}", str(len(batches)), "", "", "")
        return table
    cells = f"{own.eager:.2f}", f"{own.replayed:.2f}", f"{own.apart:.1e} {at_most(own.apart, LOSS_TOLERANCE)}"
    table.add_row("captured", str(own.num_steps), *cells)
    return table
