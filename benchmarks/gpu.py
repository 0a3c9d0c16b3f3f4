"""Packs on a GPU: are members kept apart, what packing gains, and does a loader keep up?

    python benchmarks/gpu.py --save gpu.md             # Qwen3-VL of 2B's size, random weights, bfloat16
    python benchmarks/gpu.py packed/mine --processor FOLDER --attention flash_attention_2 sdpa --save gpu.md
    python benchmarks/gpu.py --stalls --family qwen2_5_vl            # what stalls it: host reads, shapes, a CUDA graph
    python benchmarks/gpu.py --family qwen3 --only members training  # a text model of 1.1B; two of the three tables
    python benchmarks/gpu.py --dry --steps 6                         # whether this script runs, in a minute, on a CPU

Packs are those of a dataset of the family; without one, the real sets beside the checkout are packed into a temporary
folder (full), or the demo (tiny, or where there are none). `padded` trains on the same samples a step, each a row of
its own, padded to the longest; `flattened` on the same samples in all, as the Trainer's own collator packs them. The
first steps are left out of the rates. `--save` writes the page, and beside it FILE.csv: seconds, tokens, Σ len², visual
tokens and loss of every step.
"""

import argparse
import csv
import gc
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from gpu_exact import exactness
from gpu_loader import loader_rate, loading
from gpu_model import REAL, SIZES, Padded, config_of, flattened, make_model, make_packs, model_class, wait_for
from gpu_stalls import stalls
from megatron.energon import WorkerConfig
from rich.console import Console
from rich.table import Table
from timing import at_least, at_most

from energon_pack import PackedTaskEncoder
from energon_pack.training.batch import PackedBatch
from energon_pack.training.guards import guard
from energon_pack.training.layout import IGNORE

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))

from packed_data import train_loader

#: steps at the start that are no measure: kernels are chosen, memory is asked for
WARM = 3
TABLES = ("loader", "members", "training")
#: of the loss of a first step, packed and padded, relative
LOSS_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 5e-4}


@dataclass(frozen=True)
class Step:
    """One step of training, as a line of the CSV."""

    attention: str
    layout: str
    step: int
    #: of samples
    tokens: int
    #: tokens and padding
    places: int
    #: Σ len² over the members: what attention costs
    len_squares: int
    visual_tokens: int
    #: Σ over the images of their visual tokens²: what the encoder's attention costs
    visual_squares: int
    seconds: float
    loss: float


@dataclass(frozen=True)
class Run:
    """Some steps; none where they did not fit into memory."""

    steps: list[Step]
    #: None: not on a GPU
    peak_bytes: int | None
    #: of `guard`, before it trained
    proof: str

    def rate(self, what: str) -> float:
        """Of a number of each step, so much a second; `1` counts steps."""
        counted = self.steps[WARM:] or self.steps[-1:]
        return sum(1 if what == "1" else getattr(step, what) for step in counted) / sum(s.seconds for s in counted)


# ------------------------------------------------------------------------------------------------------------- speed


def train(
    model: Any, stream: Iterator[PackedBatch], num_steps: int, learning_rate: float, attention: str, layout: str
) -> list[Step]:
    """Some steps, each timed from the batch on the host to the loss on the host."""
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate)
    steps = []
    for number in range(num_steps):
        batch = next(stream)
        pieces: list[PackedBatch] = batch.get("pieces", [batch])
        trained = sum(int((piece["labels"] != IGNORE).sum()) for piece in pieces)
        wait_for(model.device)
        start = time.perf_counter()
        loss = 0.0
        for piece in pieces:
            inputs = piece.to(model.device).model_inputs(None if layout == "flattened" else model)
            part = model(**inputs, num_items_in_batch=trained).loss
            part.backward()
            loss += float(part.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        wait_for(model.device)
        seconds = time.perf_counter() - start
        steps.append(Step(attention, layout, number, **_counts(pieces), seconds=round(seconds, 5), loss=loss))
    return steps


def _counts(pieces: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Of members, whose numbers begin at 1 in each row; 0 is padding."""
    lengths = [row.bincount()[1:] for piece in pieces for row in piece["doc_ids"]]
    grids = [piece[name] for piece in pieces for name in ("image_grid_thw", "video_grid_thw") if name in piece]
    return {
        "tokens": sum(int(row.sum()) for row in lengths),
        "places": sum(piece["doc_ids"].numel() for piece in pieces),
        "len_squares": sum(int((row**2).sum()) for row in lengths),
        "visual_tokens": sum(int((piece["mm_token_type_ids"] > 0).sum()) for piece in pieces),
        # A frame attends itself; 4 patches are a token.
        "visual_squares": sum(int((grid[:, 0] * (grid[:, 1] * grid[:, 2] // 4) ** 2).sum()) for grid in grids),
    }


def measure(
    config: Any, encoder: PackedTaskEncoder, dataset: Path, attention: str, layout: str, options: argparse.Namespace
) -> Run:
    """A fresh model, and its steps."""
    device = torch.device(options.device)
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
    model = make_model(config, attention, options.dtype, device, options.checkpointing)
    if isinstance(encoder, Padded):  # flattened takes each sample by itself
        encoder.max_places = 1 if layout == "flattened" else options.max_places
    stream: Iterator[Any] = iter(train_loader(dataset, encoder, WorkerConfig(rank=0, world_size=1, num_workers=0)))
    if layout == "flattened":
        shown, stream = "not asked", flattened(stream, options.steps)
    else:  # Even where it would be refused: what was tried is on the page.
        proof = guard(model, encoder, trust=type(model).__name__).proofs[-1]
        shown = f"{'holds' if proof.is_exact else 'REFUSED'}: {proof.mask}"
    try:
        steps = train(model, stream, options.steps, 1e-4 if options.size == "full" else 2e-3, attention, layout)
    except torch.OutOfMemoryError:
        steps = []
    peak = torch.cuda.max_memory_allocated() if is_cuda else None
    del model
    gc.collect()
    if is_cuda:
        torch.cuda.empty_cache()
    return Run(steps, peak, shown)


def speed(runs: Mapping[tuple[str, str], Run]) -> Table:
    """The three beside each other."""
    table = Table("training", "tokens/s", "steps/s", "places a token", "peak memory", "guard", "goal, holds")
    for (attention, layout), run in runs.items():
        peak = f"{run.peak_bytes / 2**30:.1f} GiB" if run.peak_bytes is not None else "of a GPU only"
        if not run.steps:
            advice = "out of memory: --checkpointing, --max-places"
            table.add_row(f"{attention}, {layout}", advice, "", "", peak, run.proof, "")
            continue
        padding = sum(step.places for step in run.steps) / sum(step.tokens for step in run.steps)
        values = f"{run.rate('tokens'):,.0f}", f"{run.rate('1'):.2f}", f"{padding:.2f}", peak, run.proof
        packed = runs.get((attention, "packed"))
        gain = ""
        if layout != "packed" and packed and packed.steps:
            times = packed.rate("tokens") / run.rate("tokens")
            least = 1 if layout == "padded" else 0.95  # of the same kernels, and what chance adds
            goal = at_least(times, least, "×") if run.peak_bytes is not None else "no goal on a CPU"
            gain = f"packed is {times:.2f}× this: {goal}"
        table.add_row(f"{attention}, {layout}", *values, gain)
    return table


def losses(runs: Mapping[tuple[str, str], Run], dtype: torch.dtype) -> Table:
    """How far packed is from padded, relative: the same samples, and in the first step the same weights."""
    longest = max((run.steps for run in runs.values()), key=len)
    shown = sorted({*range(0, len(longest), 10), len(longest) - 1} - {-1})
    table = Table("loss, step", *map(str, shown), "first step beside padded", "goal, holds", "all steps")
    for (attention, layout), run in runs.items():
        padded, cells = runs.get((attention, "padded")), ["", "", ""]
        if layout == "packed" and run.steps and padded and padded.steps:
            apart = []
            for ours, theirs in zip(run.steps, padded.steps, strict=True):
                assert (ours.tokens, ours.len_squares) == (theirs.tokens, theirs.len_squares), "other samples in a step"
                apart.append(abs(ours.loss - theirs.loss) / abs(theirs.loss))
            cells = [f"{apart[0]:.1e}", at_most(apart[0], LOSS_TOLERANCE[dtype]), f"≤ {max(apart):.1e}"]
        values = [f"{run.steps[i].loss:.4f}" for i in shown] if run.steps else [""] * len(shown)
        table.add_row(f"{attention}, {layout}", *values, *cells)
    return table


# ---------------------------------------------------------------------------------------------------------- the page


def dtype_on(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def machine(device: torch.device) -> str:
    """The device, and versions of what ran on it."""
    names = []
    for package in ("torch", "transformers", "flash-attn"):
        try:
            names.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            names.append(f"no {package}")
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})"
    return f"{where}, {torch.get_num_threads()} threads, {', '.join(names)}"


def save(path: Path, page: str, steps: Sequence[Step]) -> None:
    """The page as Markdown, and the steps as CSV."""
    path.write_text(f"# benchmarks/gpu.py {' '.join(sys.argv[1:])}\n\n```\n{page.rstrip()}\n```\n")
    with path.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Step)])
        writer.writeheader()
        writer.writerows(map(asdict, steps))


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, nargs="?", help="packed for this family, layout neat")
    parser.add_argument("--processor", help="of the dataset: folder or hub id")
    parser.add_argument("--real", type=Path, help="folder of the real sets: they are packed, whatever the size")
    parser.add_argument("--family", choices=SIZES, default="qwen3_vl")
    parser.add_argument("--size", choices=SIZES["qwen3_vl"], default="full")
    parser.add_argument("--folder", type=Path, help="packs are made there, and stay for the next call")
    parser.add_argument("--only", choices=TABLES, nargs="+", default=TABLES, help="some of the tables")
    parser.add_argument("--stalls", action="store_true", help="what stalls a GPU, in place of the other tables")
    parser.add_argument("--dry", action="store_true", help="--size tiny --device cpu")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--attention", nargs="+", help="default: flash_attention_2 where it is installed, and sdpa")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--max-token-len", type=int, help="of the packs that are made; default: 4096, tiny 512")
    parser.add_argument("--max-places", type=int, help="padded places of one forward; default: 4 packs' tokens")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2, 4], help="of the loader")
    parser.add_argument("--save", type=Path, metavar="FILE.md", help="the page, and beside it FILE.csv: each step")
    options = parser.parse_args()
    if options.dry:
        options.size, options.device = "tiny", "cpu"
    options.dtype = dtype_on(torch.device(options.device))
    if options.save and not options.save.parent.is_dir():
        parser.error(f"--save {options.save}: there is no folder {options.save.parent}")
    has_flash = options.device == "cuda" and find_spec("flash_attn") is not None
    options.attention = options.attention or [*["flash_attention_2"] * has_flash, "sdpa"]
    options.max_token_len = options.max_token_len or (4096 if options.size == "full" else 512)
    return options


def main() -> None:
    options = options_of()
    device = torch.device(options.device)
    with tempfile.TemporaryDirectory() as temporary:
        dataset, processor, real = options.dataset, options.processor, None
        if dataset is None:
            real = options.real or (REAL if options.size == "full" and REAL.is_dir() else None)
            with redirect_stdout(sys.stderr):
                folder = (options.folder or Path(temporary)) / options.family
                dataset, processor = make_packs(folder, options.max_token_len, real, options.family)
        packed = PackedTaskEncoder(dataset, processor, layout="neat")
        options.max_places = options.max_places or 4 * (packed.encoder.max_token_len or options.max_token_len)
        config = config_of(options.size, packed, options.family)
        console = Console(width=140, record=True)
        data = options.dataset or ("the real sets" if real else "the demo")
        console.print(machine(device))
        with torch.device("meta"):
            size = model_class(options.family)._from_config(config).num_parameters()
        about = f"{options.family}, {size / 1e6:,.1f}M parameters, random weights, {options.dtype}"
        console.print(f"{about}; packs of {packed.encoder.max_token_len}: {data}")
        if options.stalls:
            for table in stalls(config, dataset, processor, options):
                console.print(table)
        runs = {} if options.stalls else compared(console, config, dataset, packed, processor, options)
    if options.save:
        save(options.save, console.export_text(), [step for run in runs.values() for step in run.steps])


def compared(
    console: Console,
    config: Any,
    dataset: Path,
    packed: PackedTaskEncoder,
    processor: str | None,
    options: argparse.Namespace,
) -> dict[tuple[str, str], Run]:
    """Print exactness, packed beside padded and flattened, and the loader."""
    workers, device = options.workers if "loader" in options.only else (), torch.device(options.device)
    rates = {number: loader_rate(dataset, packed, number, options.steps) for number in workers}
    if "members" in options.only:
        console.print(exactness(model_class(options.family), config, packed.encoder.probe_members(), device))
    alone = Padded(dataset, processor, layout="neat") if "training" in options.only else packed
    runs = {
        (attention, layout): measure(config, encoder, dataset, attention, layout, options)
        for attention in (options.attention if "training" in options.only else ())
        for layout, encoder in (("packed", packed), ("padded", alone), ("flattened", alone))
    }
    if runs:
        console.print(speed(runs), losses(runs, options.dtype))
    if rates:
        model = max((run.rate("1") for (_, layout), run in runs.items() if layout == "packed" and run.steps), default=0)
        console.print(loading(rates, model))
    return runs


if __name__ == "__main__":
    main()
