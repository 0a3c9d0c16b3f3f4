"""Packs made while loading, beside the plan of all samples: `python benchmarks/online.py [--real DIR]`.

    offline     `plan_packs`, and the fewest packs that there can be (its lower bound)
    streaming   `StreamingPackedDataset`'s pool, one lane, over the same samples in a random order
    Energon     `PackedTaskEncoder(packing_buffer_size=N)`: N samples wait in Energon's buffer; full packs are made of
                them, and what is over waits
    all of a buffer   what Energon itself foresees: each buffer is packed whole

Lengths alone, no pixels. With --real those of the samples in a folder of WebDataset sets are measured by their headers.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from planner import SETS, K, lengths
from rich.console import Console
from rich.table import Table
from step_sets import documents, mixture

from energon_pack.online.samples import Samples
from energon_pack.online.stream_setup import prepare_stream
from energon_pack.plan.items import Items
from energon_pack.plan.plan import plan_packs
from energon_pack.plan.pool import WaitingPool, costs_of_sample
from energon_pack.plan.sample_measures import SampleMeasurer, SampleMeasures
from energon_pack.plan.settings import CAPPED_COLUMNS, GroupBy, PackingConfig
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.samples.settings import ControlTokens
from energon_pack.samples.skip import Skip
from energon_pack.templates.sample import Sample

BUFFERS = (20, 100, 1000)
#: costs of a sample, and its group
Costed = tuple[tuple[int, ...], int]


def text_items(name: str, num: int, capacity: int) -> Items:
    """Samples of a set of lengths, of one medium."""
    lens = lengths(name, num, capacity)
    zeros = np.zeros(len(lens), np.int64)
    return Items({"token_len": lens, "num_images": zeros, "num_visual_tokens": zeros}, zeros, zeros, zeros, zeros, lens)


def synthetic(num: int) -> Iterator[tuple[str, Items, PackingConfig]]:
    for name, capacity in (
        ("mixture", 8 * K), ("mixture", 32 * K), ("real-like", 8 * K), ("700-2600", 4 * K), ("256-token tiles", 8 * K),
        ("InternVL-like", 4 * K), ("video 4-16k", 16 * K), ("video 4-16k", 32 * K),
    ):  # fmt: skip
        assert name in SETS
        yield f"{name} @{capacity // K}k", text_items(name, num, capacity), PackingConfig(max_token_len=capacity)
    packing = PackingConfig(max_token_len=8 * K)
    yield "text, images, videos @8k", mixture(num), packing
    yield "the same, mixed", mixture(num), replace(packing, group_by=GroupBy.none)
    packing = PackingConfig(max_token_len=32 * K)
    yield "documents @32k", documents(num), packing
    yield "the same, ≤ 48 images", documents(num), replace(packing, max_images=48)


def real(folder: Path) -> Iterator[tuple[str, Items, PackingConfig]]:
    """Each set alone, and all together."""
    sets = sorted(path for path in (folder / "wds").iterdir() if path.is_dir() and path.name != "video_demo")
    processor = f"model.processor={folder / 'processors' / 'qwen2_5_vl'}"
    config = ["+model=qwen2_5_vl", processor, "cache_dir=/tmp/online-cache", "executor.num_workers=1"]
    begun = prepare_stream(config, [str(path) for path in sets])
    measuring = SampleMeasurer(begun.template, begun.config.packing, ControlTokens.keep, drop=True)
    found: dict[str, list[SampleMeasures]] = {}
    for path, samples in zip(sets, begun.datasets, strict=True):
        measured = measuring.measure([*looked(samples)])
        found[path.name] = [of for of in measured if isinstance(of, SampleMeasures)]
    for name, some in [*found.items(), ("all of these", [of for each in found.values() for of in each])]:
        if len(some) > 100:
            yield f"{name} @8k", items_of(some), begun.config.packing


def looked(samples: Samples) -> Iterator[Sample]:
    for number in range(len(samples)):
        with suppress(Skip):
            yield samples.sample_for_measuring(number)


def items_of(measured: list[SampleMeasures]) -> Items:
    lens = np.array([of.token_len for of in measured])
    media = np.array([MEDIA_TYPES.index(of.media_type) for of in measured])
    zeros = np.zeros(len(lens), np.int64)
    return Items({"token_len": lens, "num_images": zeros, "num_visual_tokens": zeros}, media, zeros, zeros, zeros, lens)


def in_order(items: Items, packing: PackingConfig) -> list[Costed]:
    """The samples as they are drawn, in a random order."""
    order = np.random.default_rng(3).permutation(len(items))
    groups = items.media if packing.group_by is GroupBy.media else np.zeros(len(items), np.int64)
    columns = [items.counts[name][order].tolist() for name in CAPPED_COLUMNS]
    counts = (dict(zip(CAPPED_COLUMNS, values, strict=True)) for values in zip(*columns, strict=True))
    return [(costs_of_sample(of, packing), group) for of, group in zip(counts, groups[order].tolist(), strict=True)]


def streaming(samples: Iterable[Costed], packing: PackingConfig, buffer_size: int) -> tuple[int, int, int]:
    """Packs, samples in them, and the longest wait."""
    pool = WaitingPool(packing, buffer_size)
    num = 0
    for number, (costs, group) in enumerate(samples):
        pool.add(number, costs, group)
        while not pool.num_samples_to_add:
            num += len(pool.take())
    pool.plan_rest()
    while len(pool):
        num += len(pool.take())
    return pool.num_packs, num, pool.longest_wait


def energon(samples: list[Costed], packing: PackingConfig, buffer_size: int, keep: bool) -> int:
    """Packs of Energon's buffers.

    Args:
        keep: what is over waits in the buffer, as with `PackedTaskEncoder`; else all of it is packed each time.
    """
    measuring = SampleMeasurer(cast(Any, None), packing, ControlTokens.keep, drop=False)
    waiting: list[tuple[int, SampleMeasures]] = []
    packs, taken = 0, 0
    while taken < len(samples) or waiting:
        room = buffer_size - len(waiting)
        some = samples[taken : taken + room]
        waiting += [(taken + i, SampleMeasures(0, costs, MEDIA_TYPES[group])) for i, (costs, group) in enumerate(some)]
        taken += len(some)
        ages = [taken - 1 - number for number, _ in waiting]
        measured = [of for _, of in waiting]
        chosen = measuring.choose_packs(
            measured, [0] * len(waiting), ages, at_end=not keep or len(waiting) < buffer_size
        )
        packs += len(chosen)
        gone = {i for pack in chosen for i in pack}
        waiting = [sample for i, sample in enumerate(waiting) if i not in gone]
    return packs


def fills(sets: Iterable[tuple[str, Items, PackingConfig]]) -> Table:
    table = Table("set", "samples", "lower bound", "offline", box=None)
    for buffer_size in BUFFERS:
        table.add_column(f"streaming {buffer_size}")
    for whose in ("Energon", "all of a buffer"):
        for buffer_size in BUFFERS:
            table.add_column(f"{whose} {buffer_size}")
    for name, items, packing in sets:
        plan = plan_packs(items, packing)
        samples = in_order(items, packing)
        tokens = int(items.lens.sum())

        def cell(packs: int, tokens: int = tokens, packing: PackingConfig = packing) -> str:
            return f"{packs:,} ({tokens / packs / packing.max_token_len:.2%})"

        ours = []
        for buffer_size in BUFFERS:
            packs, num, wait = streaming(samples, packing, buffer_size)
            assert num == len(samples), "a sample was lost"
            ours.append(f"{cell(packs)} wait {wait}")
        theirs = [
            cell(energon(samples, packing, buffer_size, keep)) for keep in (True, False) for buffer_size in BUFFERS
        ]
        table.add_row(name, f"{len(items):,}", f"{plan.lower_bound:,}", cell(plan.num_packs), *ours, *theirs)
    return table


def speed(num: int) -> Table:
    """Of the pool alone, drawing and reading aside."""
    table = Table("set", *(f"packs/s, buffer {buffer_size}" for buffer_size in BUFFERS), box=None)
    for name, items, packing in synthetic(num):
        samples, row = in_order(items, packing), []
        for buffer_size in BUFFERS:
            seconds = best(partial(streaming, samples, packing, buffer_size))
            packs = streaming(samples, packing, buffer_size)[0]
            row.append(f"{packs / seconds:,.0f}")
        table.add_row(name, *row)
    return table


def best(work: Callable[[], object]) -> float:
    """CPU seconds, the better of two."""
    found = []
    for _ in range(2):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", type=Path, help="a folder with wds/ and processors/")
    parser.add_argument("--num", type=int, default=20_000, help="samples of each set")
    args = parser.parse_args()
    console = Console(width=330)
    console.print(fills(synthetic(args.num)))
    if args.real:
        console.print(fills(real(args.real)))
    console.print(speed(args.num // 4))


if __name__ == "__main__":
    main()
