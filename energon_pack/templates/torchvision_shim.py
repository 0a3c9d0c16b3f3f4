"""Make a CUDA build of torchvision work with a CPU build of torch."""

import importlib.metadata
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def prepare_torchvision() -> Any:
    """Let a CUDA build of torchvision be imported with a CPU build of torch, before transformers tries to.

    Its C++ operators cannot load there, and the import stops at registering the fake kernel of one of them. With
    the two schemas declared it goes through; resizing and video processing use torch's own kernels.

    Returns:
        The declared schemas, alive as long as they are cached here; None: nothing had to be done.
    """
    try:
        version = importlib.metadata.distribution("torchvision").locate_file("torchvision/version.py").read_text()
    except (importlib.metadata.PackageNotFoundError, OSError):
        return None
    import torch

    if "+cu" not in version or torch.version.cuda is not None:
        return None
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
