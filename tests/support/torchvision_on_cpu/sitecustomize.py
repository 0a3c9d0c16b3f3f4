"""A CUDA build of torchvision imports beside a CPU build of torch once its two operators have schemas."""

import torch

library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
