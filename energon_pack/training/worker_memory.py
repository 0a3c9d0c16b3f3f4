"""Let a loader's worker keep the pages that a processor's large tensors lie in.

A pack of images is hundreds of MB of float32, made anew for each pack. By default glibc returns such memory to the
kernel, which has to fill each page with zeros when it is asked again: two thirds of the time of a pack.
"""

import ctypes
import os

from torch.utils.data import get_worker_info

#: parameters of glibc's mallopt(3): the most large blocks that are mapped; map blocks from this size on; return the
#: heap's end above this
_MMAP_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -4, -3, -1
_LARGE, _KEPT = 256 << 20, 512 << 20
#: the process in which this was done
_kept_in = [0]


def keep_pages_in_worker() -> None:
    """Keep pages from now on, if this process is a loader's worker; in a user's own process nothing changes.

    Blocks of 256 MB and more are still returned: one a pack costs little, and the worker would hold the most there ever
    were. Another allocator than glibc's is left alone.
    """
    if _kept_in[0] == os.getpid() or get_worker_info() is None:
        return
    _kept_in[0] = os.getpid()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        if not mallopt(_MMAP_THRESHOLD, _LARGE):  # an older glibc takes 32 MB at most
            mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, _KEPT)
