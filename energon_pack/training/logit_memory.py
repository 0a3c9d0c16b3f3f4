"""Say before a model's first forward that the logits of a batch take more memory than is free."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.nn import Module

from energon_pack.errors import format_bytes
from energon_pack.training.forward_inputs import ids_or_embeddings

#: bytes for each logit of a step: the logits, and in float32 their softmax and both gradients; without gradients
_LOGIT_BYTES, _LOGIT_BYTES_WITHOUT_GRADIENTS = 16, 8
#: the controller of memory in /proc/self/cgroup (of cgroups 2 it has no name) → a group's files of its limit and use
_GROUP_FILES = {"": ("memory.max", "memory.current"), "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes")}
_log = logging.getLogger(__name__)


def warn_of_shortage(name: str, part: Module, inputs: Mapping[str, Any]) -> bool:
    """Warn if the logits of a batch take more memory than is free; say whether they do. `name`: the model's class."""
    config: Any = getattr(part, "config", None)
    vocabulary = getattr(config.get_text_config(), "vocab_size", 0) if hasattr(config, "get_text_config") else 0
    tokens, parameter = ids_or_embeddings(inputs), next(part.parameters(), None)
    if not vocabulary or parameter is None or getattr(part, "get_output_embeddings", lambda: None)() is None:
        return False
    rows, width = tokens.shape[:2]
    each = _LOGIT_BYTES if torch.is_grad_enabled() else _LOGIT_BYTES_WITHOUT_GRADIENTS
    needed, free = rows * width * vocabulary * each, free_bytes(parameter.device)
    if free is None or needed <= free:
        return False
    _log.warning(
        f"{name}: the logits of {rows} × {width:,} tokens and {vocabulary:,} ids take about {format_bytes(needed)} with"
        f" their loss{' and gradients' if torch.is_grad_enabled() else ''}, and {format_bytes(free)} are free on"
        f" {parameter.device.type}, so the memory may not do: shorter packs (packing.max_token_len) or fewer of them in"
        " a batch take less"
    )
    return True


def free_bytes(device: torch.device) -> int | None:
    """Return how much memory this process may still take on a device; None: it is not known."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    if device.type != "cpu":
        return None
    free = [int(psutil.virtual_memory().available)]
    with suppress(OSError, ValueError, KeyError):  # a container may hide them, or show other forms
        free.extend(free_bytes_in_cgroups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")))
    return min(free)


def free_bytes_in_cgroups(group_list_file: Path, mount_folder: Path) -> Iterator[int]:
    """Yield what each control group around this process leaves free, as Docker, Kubernetes and Slurm limit memory.

    Args:
        group_list_file: the kernel's list of the process's groups.
        mount_folder: the folder in which groups are mounted.
    """
    for line in group_list_file.read_text().splitlines():
        _, controller, name = line.split(":", 2)
        if controller not in _GROUP_FILES:
            continue
        group, (limit, used) = mount_folder / controller / name.strip("/"), _GROUP_FILES[controller]
        for folder in (group, *group.parents):  # the group above holds for it, too; a container sees only its own
            most = (folder / limit).read_text().strip() if (folder / limit).is_file() else "max"
            if most != "max":
                kept = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                cache = kept.get("total_inactive_file", kept["inactive_file"])  # files that the kernel drops
                yield int(most) - int((folder / used).read_text()) + int(cache)
