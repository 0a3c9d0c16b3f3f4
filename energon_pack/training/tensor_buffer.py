"""Keep the small tensors of a batch in one buffer: it crosses processes, is pinned and goes to a device at once."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import accumulate

import torch
from torch import Tensor

from energon_pack.training.kept_memory import SMALL_BYTES, kept

#: bytes to which the places in a buffer are rounded up
_ALIGNMENT_BYTES = 16


def copied_together(tensors: Iterable[Tensor]) -> dict[int, Tensor]:
    """Copy small tensors into one buffer, a worker's others into kept memory; return all by `id` of the originals."""
    listed = {id(one): one for one in tensors}
    small = [one for one in listed.values() if one.nbytes <= SMALL_BYTES]
    *starts, num_bytes = accumulate((-(-one.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for one in small), initial=0)
    buffer = torch.empty(num_bytes, dtype=torch.uint8)
    in_buffer = {key: kept(one) for key, one in listed.items() if one.nbytes > SMALL_BYTES}
    for start, one in zip(starts, small, strict=True):
        in_buffer[id(one)] = buffer[start : start + one.nbytes].view(one.dtype).view(one.shape).copy_(one)
    return in_buffer


def moved_together(tensors: Iterable[Tensor], move: Callable[[Tensor], Tensor]) -> dict[int, Tensor]:
    """Move tensors by a function, those that share a buffer in one call; return them by the `id` of their originals."""
    buffers: defaultdict[int, dict[int, Tensor]] = defaultdict(dict)
    for one in tensors:
        buffers[one.untyped_storage()._cdata][id(one)] = one
    results: dict[int, Tensor] = {}
    for sharing in buffers.values():
        storage = next(iter(sharing.values())).untyped_storage()
        if len(sharing) == 1 or storage.nbytes() > 2 * sum(one.nbytes for one in sharing.values()):
            results |= {key: move(one) for key, one in sharing.items()}
            continue
        whole = move(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)).untyped_storage()
        for key, one in sharing.items():
            empty = torch.empty(0, dtype=one.dtype, device=whole.device)
            results[key] = empty.set_(whole, one.storage_offset(), one.size(), one.stride())
    return results
