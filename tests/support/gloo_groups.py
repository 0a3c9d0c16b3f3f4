"""Ranks of this machine that meet in a gloo group, once for each way to train."""

import os
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from support.ports import free_ports


def run_each_way(check: Callable[[str, int], None], ways: Sequence[str], num_ranks: int) -> None:
    """Fork ranks; each calls `check(way, rank)` for all ways, in a new group each time."""
    start_processes(_run_rank, (check, ways, num_ranks, free_ports(len(ways))), num_ranks, start_method="fork")


def _run_rank(
    rank: int, check: Callable[[str, int], None], ways: Sequence[str], num_ranks: int, ports: Sequence[int]
) -> None:
    torch.set_num_threads(1)
    for way, port in zip(ways, ports, strict=True):
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("gloo", rank=rank, world_size=num_ranks)
        check(way, rank)
        dist.destroy_process_group()
