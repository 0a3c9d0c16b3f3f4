"""Keep the memory of a worker's batches, and their small tensors in one buffer: page faults of fresh memory cost most.

A worker writes a batch's big tensors into files in memory, which the training's process maps once. A file is written
again only when the tensors over it are gone in both: `weakref.finalize` on their storage, which views, numpy, autograd
and DLPack keep alive, says so in the file's first byte. A file has no name: nothing is left when processes are killed.
"""

import ctypes
import logging
import mmap
import os
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate
from math import prod
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing import get_sharing_strategy, reductions
from torch.utils.data import get_worker_info

_log = logging.getLogger(__name__)
#: smaller tensors are not worth a file
SMALL_BYTES = 4 << 20
#: files that a worker keeps; while the training keeps tensors in all of them, others are used once
_MOST_FILES = 8
#: states of a file, in its first byte: it may be written, the training has it, it is never written again
_FREE, _SENT, _LEFT = range(3)
_num_forks = [0]
#: parameters of glibc's mallopt(3): the most large blocks that are mapped; map blocks from this size on; return the
#: heap's end above this
_MMAP_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -4, -3, -1
_RETURNED_BLOCK_BYTES, _KEPT_HEAP_BYTES = 256 << 20, 512 << 20


@cache
def keep_freed_memory() -> None:
    """Let glibc keep freed memory for later packs; for a worker of a DataLoader.

    Blocks of 256 MB and more are still returned: to allocate one for each pack costs little, and kept ones would add up
    to the largest ever needed. Another allocator than glibc's is left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        if not mallopt(_MMAP_THRESHOLD, _RETURNED_BLOCK_BYTES):  # an older glibc takes 32 MB at most
            mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, _KEPT_HEAP_BYTES)


def _count_fork() -> None:
    """Note that a child of this process shares its tensors from now on: their files are not written again."""
    _num_forks[0] += 1


os.register_at_fork(before=_count_fork)


class _KeptStorage(torch.UntypedStorage):
    """A storage in a worker's file; it crosses to another process without a copy."""


class _File:
    """A file in memory with room for one tensor, behind a page for its state.

    `is_kept`: whether it is used again; it then has room to grow: pages that are not written take no memory.
    """

    def __init__(self, num_bytes: int, is_kept: bool):
        self._is_kept, self.room = is_kept, 1 << (num_bytes - 1).bit_length() if is_kept else num_bytes
        self._descriptor = os.memfd_create("energon_pack")
        weakref.finalize(self, os.close, self._descriptor)
        os.ftruncate(self._descriptor, mmap.PAGESIZE + self.room)
        self._memory = mmap.mmap(self._descriptor, mmap.PAGESIZE + self.room)
        self._forks, self._address = _num_forks[0], 0
        self._storage: Any = lambda: None

    @property
    def state(self) -> int:
        return _LEFT if self._forks != _num_forks[0] else self._memory[0]

    @property
    def is_free(self) -> bool:
        return self.state == _FREE and self._storage() is None

    def storage(self, num_bytes: int) -> torch.UntypedStorage:
        """Return a storage over the file's memory."""
        storage = _storage_over(self._memory, num_bytes)
        storage.__class__, storage.file = _KeptStorage, self  # type: ignore[attr-defined]
        self._storage, self._address = weakref.ref(storage), storage.data_ptr()
        return storage

    def reduced(self, storage: torch.UntypedStorage) -> tuple[Any, ...] | None:
        """Return how another process gets this storage; None: another has it, or its values lie elsewhere by now."""
        if self.state != _FREE or storage.data_ptr() != self._address:
            return None
        self._memory[0] = _SENT
        return _received, (DupFd(self._descriptor), storage.nbytes(), os.getpid(), self._is_kept)


def _reduced(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    file = getattr(storage, "file", None)
    if file is None or (reduced := file.reduced(storage)) is None:
        return reductions.reduce_storage(torch.UntypedStorage(storage.nbytes()).copy_(storage))  # type: ignore[no-any-return]
    return reduced  # type: ignore[no-any-return]


ForkingPickler.register(_KeptStorage, _reduced)


def _storage_over(memory: mmap.mmap, num_bytes: int) -> torch.UntypedStorage:
    return torch.frombuffer(memory, dtype=torch.uint8, count=num_bytes, offset=mmap.PAGESIZE).untyped_storage()


@cache
def _files_of_process(pid: int) -> list[_File]:
    """Return the files of this process; a child that was forked has its own."""
    return []


def make_empty_in_kept_memory(shape: Sequence[int]) -> Tensor:
    """Return a float32 tensor without values, in kept memory if it is big and there is some."""
    num_bytes, files = 4 * prod(shape), _files_of_process(os.getpid())
    if num_bytes <= SMALL_BYTES or get_sharing_strategy() != "file_descriptor" or not _can_make_files():
        return torch.empty(*shape)
    files[:] = [file for file in files if file.state != _LEFT]
    free = [file for file in files if file.is_free]
    if (file := next((file for file in free if file.room >= num_bytes), None)) is None:
        if free:
            files.remove(free[0])
        is_kept = len(files) < _MOST_FILES
        try:
            file = _File(num_bytes, is_kept)
        except OSError:  # too many open files
            return torch.empty(*shape)
        files += [file] if is_kept else []
    return torch.empty(0).set_(file.storage(num_bytes), 0, tuple(shape))  # type: ignore[call-overload, no-any-return]


def copy_into_kept_memory(tensor: Tensor) -> Tensor:
    """Return a worker's tensor in kept memory, copied if it is not there; others, and integers, unchanged."""
    if get_worker_info() is None or tensor.dtype != torch.float32 or isinstance(tensor.untyped_storage(), _KeptStorage):
        return tensor
    return make_empty_in_kept_memory(tensor.shape).copy_(tensor)


@cache
def _can_make_files() -> bool:
    """Say whether this machine has files in memory; if not, log it."""
    try:
        _File(1, is_kept=False)
    except (AttributeError, OSError) as error:
        _log.warning("batches are in fresh memory, which costs time: no file in memory can be made (%s)", error)
        return False
    return True


# ------------------------------------------------------------------------------------------- in the training's process


class _Mapped(NamedTuple):
    memory: mmap.mmap
    pid: int  # of the worker


#: files that this process maps, by device and inode
_mapped: dict[tuple[int, int], _Mapped] = {}


def _received(descriptor: Any, num_bytes: int, pid: int, is_kept: bool) -> torch.UntypedStorage:
    """Return a worker's storage in this process; its file may be written again when it is gone."""
    number = descriptor.detach()
    try:
        status = os.fstat(number)
        mapped = _mapped.get((status.st_dev, status.st_ino))
        if mapped is None:
            mapped = _Mapped(mmap.mmap(number, status.st_size), pid)
            if is_kept:
                _unmap_of_dead()
                _mapped[status.st_dev, status.st_ino] = mapped
    finally:
        os.close(number)
    storage = _storage_over(mapped.memory, num_bytes)
    # no handler at exit: a child that was forked would free what its parent reads
    weakref.finalize(storage, _free, mapped.memory, os.getpid(), _num_forks[0]).atexit = False
    return storage


def _free(memory: mmap.mmap, pid: int, num_forks: int) -> None:
    """Let a worker write its file again, or none, if a child of this process may still read it."""
    if os.getpid() == pid:
        memory[0] = _FREE if num_forks == _num_forks[0] else _LEFT
        _unmap_of_dead()


def _unmap_of_dead() -> None:
    """Forget files of workers that have ended, and files that their worker has left."""
    for key, (memory, pid) in [*_mapped.items()]:
        try:
            os.kill(pid, 0)
        except OSError:
            _mapped.pop(key, None)
        else:
            if memory[0] == _LEFT:
                _mapped.pop(key, None)


#: bytes to which the places in a buffer are rounded up
_ALIGNMENT_BYTES = 16


def copy_into_one_buffer(tensors: Iterable[Tensor]) -> dict[int, Tensor]:
    """Copy small tensors into one buffer, a worker's others into kept memory; return all by `id` of the originals."""
    listed = {id(one): one for one in tensors}
    small = [one for one in listed.values() if one.nbytes <= SMALL_BYTES]
    *starts, num_bytes = accumulate((-(-one.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for one in small), initial=0)
    buffer = torch.empty(num_bytes, dtype=torch.uint8)
    in_buffer = {key: copy_into_kept_memory(one) for key, one in listed.items() if one.nbytes > SMALL_BYTES}
    for start, one in zip(starts, small, strict=True):
        in_buffer[id(one)] = buffer[start : start + one.nbytes].view(one.dtype).view(one.shape).copy_(one)
    return in_buffer


def move_buffers_once(tensors: Iterable[Tensor], move: Callable[[Tensor], Tensor]) -> dict[int, Tensor]:
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
            moved = torch.empty(0, dtype=one.dtype, device=whole.device)
            results[key] = moved.set_(whole, one.storage_offset(), one.size(), one.stride())
    return results
