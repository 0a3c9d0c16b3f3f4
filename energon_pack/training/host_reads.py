"""Count how often a forward reads tensors on the host: a GPU waits for each such read with all its work."""

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: methods that read a tensor without an operator that a dispatch mode sees
_READING_METHODS = (Tensor.tolist, Tensor.cpu, Tensor.numpy)
_INDEX_OPERATORS = ("aten::index.", "aten::index_put")
_SKIPPED_FILES = (__file__, str(Path(torch.__file__).parent))


class HostReadCounter(TorchFunctionMode):
    """Counts how often the host reads tensors while the block runs.

    On a CPU it counts the reads for which a GPU would have to finish its work, if all tensors were there. Tensors that
    are made on the host count, too, so the number is an upper bound.

    Args:
        kept: tensors that stay on the host although the model is on another device. Reads of them, and of tensors
            computed from them alone, do not count.
        device: the model's device.
    """

    def __init__(self, kept: Iterable[Any] = (), device: torch.device | str = "cpu"):
        super().__init__()
        #: reads by the line that makes them
        self.reads_by_line: Counter[str] = Counter()
        #: whether a kept tensor met others, which on a GPU is an error
        self.mixes_devices = False
        self._is_cpu = torch.device(device).type == "cpu"
        self._kept = {id(one): one for one in kept if isinstance(one, Tensor)}
        self._operators = _OperatorReads(self)

    @property
    def num_reads(self) -> int:
        """Number of reads so far."""
        return self.reads_by_line.total()

    def stays_on_host(self, tensor: Tensor) -> bool:
        """Say whether a tensor stays on the host."""
        return id(tensor) in self._kept or (not self._is_cpu and tensor.is_cpu)

    def count_read(self) -> None:
        """Count a read in `reads_by_line`, under the innermost line of code outside of PyTorch and this file."""
        frame: Any = sys._getframe(1)
        while frame.f_back and frame.f_code.co_filename.startswith(_SKIPPED_FILES):
            frame = frame.f_back
        self.reads_by_line[f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"] += 1

    def mark_outputs_on_host(self, inputs: list[Tensor], output: Any) -> None:
        """Treat an operator's outputs as kept on the host if all its input tensors are."""
        kept = [one for one in inputs if self.stays_on_host(one)]
        self.mixes_devices |= any(one.dim() and id(one) in self._kept for one in kept) and len(kept) < len(inputs)
        if inputs and len(kept) == len(inputs):
            self._kept |= {id(one): one for one in tree_leaves(output) if isinstance(one, Tensor)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function, and count it if it reads a tensor on the host."""
        if func in _READING_METHODS and not self.stays_on_host(args[0]):
            self.count_read()
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> "HostReadCounter":
        """Begin to count."""
        self._operators.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """End counting."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._operators.__exit__(*error)  # type: ignore[no-untyped-call]


class _OperatorReads(TorchDispatchMode):
    def __init__(self, reads: HostReadCounter):
        super().__init__()  # type: ignore[no-untyped-call]
        self._reads = reads

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        if _needs_host_values(func, args) and not all(map(self._reads.stays_on_host, inputs)):
            self._reads.count_read()
        output = func(*args, **(kwargs or {}))
        self._reads.mark_outputs_on_host(inputs, output)
        return output


def _needs_host_values(func: Any, args: Any) -> bool:
    """Say whether an operator needs values on the host: its output, or the output's size, depends on them."""
    if func.name().startswith(_INDEX_OPERATORS):
        return any(isinstance(one, Tensor) and one.dtype == torch.bool for one in args[1])
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
