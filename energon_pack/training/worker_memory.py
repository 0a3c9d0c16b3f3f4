"""Let a loader's worker keep the pages that a processor's large tensors lie in.

A pack of images is hundreds of MB of float32, made anew for each pack. By default glibc returns such memory to the
kernel, which has to fill each page with zeros when it is asked again: two thirds of the time of a pack.
"""

import ctypes
import os

from torch.utils.data import get_worker_info

#: parameters of glibc's mallopt(3): do not map large blocks; return the heap's end only above; let it grow by
_MMAP_MAX, _TRIM_THRESHOLD, _TOP_PAD = -4, -1, -2
_VALUES = {_MMAP_MAX: 0, _TRIM_THRESHOLD: (1 << 31) - 1, _TOP_PAD: 256 << 20}
#: the process in which this was done
_kept_in = [0]


def keep_pages_in_worker() -> None:
    """Keep pages from now on, if this process is a loader's worker; in a user's own process nothing changes.

    The worker then holds as much memory as its largest pack took. Another allocator than glibc's is left alone.
    """
    if _kept_in[0] == os.getpid() or get_worker_info() is None:
        return
    _kept_in[0] = os.getpid()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _VALUES.items():
            mallopt(parameter, value)
