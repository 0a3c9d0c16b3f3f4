"""verl's SFT loop on a CPU, watched: see steps.py.

verl has a platform for each kind of GPU and none for a CPU: here is one. Its attention calls flash-attn, which has no
CPU: here documents are computed one by one, at the boundaries that verl hands over.
"""

# ruff: noqa: I001
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from support.trainers.steps import Steps, noted, read, run, whole  # first: it prepares torchvision

import torch
import transformers
import transformers.models.qwen2_5_vl.modeling_qwen2_5_vl as modeling
from torch.nn.functional import scaled_dot_product_attention
from verl.plugin.platform import set_platform
from verl.plugin.platform.platform_cuda import PlatformCUDA


class Module(ModuleType):
    """torch.cpu, with zeros for what is asked of a GPU's memory."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(
            torch.cpu, name, lambda *_, **__: {"mem_get_info": (0, 1), "get_device_name": "CPU"}.get(name, 0)
        )


class PlatformCPU(PlatformCUDA):
    """A CPU in place of a GPU."""

    device_name, device_module, vendor_name = "cpu", Module("cpu"), "none"

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def communication_backend_name(self) -> str:
        return "gloo"


set_platform(PlatformCPU())

import verl.models.transformers.qwen2_vl as qwen2_vl  # noqa: E402
import verl.trainer.sft_trainer as theirs  # noqa: E402
import verl.utils.distributed as distributed  # noqa: E402
from verl.utils.tracking import Tracking  # noqa: E402
from verl.workers.engine.base import EngineRegistry  # noqa: E402
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead  # noqa: E402
from verl.workers.engine_workers import TrainingWorker  # noqa: E402

PLAIN = {
    kind: kind.forward
    for kind in (modeling.Qwen2_5_VLForConditionalGeneration, modeling.Qwen2_5_VLModel, modeling.Qwen2_5_VLAttention)
}
_fit, _train_batch, _log = theirs.SFTTrainer.fit, TrainingWorker.train_batch, Tracking.log


def documents(q: Any, k: Any, v: Any, cu_seqlens_q: Any, softmax_scale: Any = None, **_: Any) -> Any:
    """Causal attention [S, H, D] within each document, as flash-attn has it."""
    lens = cu_seqlens_q.diff().tolist()
    pieces = zip(*(x.transpose(0, 1).split(lens, dim=1) for x in (q, k, v)), strict=True)
    done = [
        scaled_dot_product_attention(own_q, own_k, own_v, is_causal=True, scale=softmax_scale)
        for own_q, own_k, own_v in pieces
    ]
    return torch.cat(done, dim=1).transpose(0, 1)


def one_document(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Any:
    """Causal attention [B, S, H, D] of a pack with one member."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def fit(self: Any) -> None:
    read.clear()
    config = self.model_config.hf_config
    has_images = hasattr(config, "vision_config")
    kind: Any = transformers.AutoModelForImageTextToText if has_images else transformers.AutoModelForCausalLM
    self.training_client.steps = Steps(kind.from_config(config, attn_implementation="sdpa"))
    _fit(self)


@contextmanager
def unpatched() -> Iterator[None]:
    """transformers' own forwards, in place of those that verl gives the classes."""
    patched = [kind.forward for kind in PLAIN]
    for kind, forward in PLAIN.items():
        setattr(kind, "forward", forward)  # noqa: B010
    yield
    for kind, forward in zip(PLAIN, patched, strict=True):
        setattr(kind, "forward", forward)  # noqa: B010


def train_batch(self: Any, data: Any) -> Any:
    weights = whole(self.engine.module)
    with unpatched():
        self.steps.begin(weights, len(data))
    return _train_batch(self, data)


def log(self: Any, data: Any, step: int, **more: Any) -> None:
    noted["losses"].append(float(data["train/loss"]))
    _log(self, data=data, step=step, **more)


if __name__ == "__main__":
    distributed.initialize_global_process_group = lambda: torch.distributed.init_process_group("gloo")
    EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")(FSDPEngineWithLMHead)
    qwen2_vl.flash_attn_varlen_func, qwen2_vl._flash_attention_forward = documents, one_document
    qwen2_vl.fa_peft_integration_check = lambda q, k, v, **_: (q, k, v)  # flash-attn has no float32
    for name in ("supports_window_size", "supports_deterministic", "use_top_left_mask"):
        setattr(qwen2_vl, f"_flash_{name}", False)
    theirs.SFTTrainer.fit, TrainingWorker.train_batch, Tracking.log = fit, train_batch, log
    run()
