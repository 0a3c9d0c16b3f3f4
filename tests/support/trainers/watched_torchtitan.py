"""torchtitan's loop, watched: see steps.py.

torchtitan asks for a GPU by name. Without one it is told that its device is the CPU, and its attention, whose kernel
has no backward on a CPU, is computed by pairs of tokens with torchtitan's own rule for which pair is seen.
"""

# ruff: noqa: I001
from types import SimpleNamespace
from typing import Any

from support.trainers.steps import Steps, noted, read, run, whole  # first: it prepares torchvision

import torch
import transformers
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention.flex_attention import create_mask
from torch.nn.functional import scaled_dot_product_attention

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    utils: Any = torch._utils
    utils._get_available_device_type = lambda: "cpu"
    answers = {"device_name": "CPU", "device_properties": SimpleNamespace(total_memory=1)}
    for name, answer in answers.items():
        setattr(torch.cpu, f"get_{name}", lambda *_, answer=answer: answer)
    for name in ("reset_peak_memory_stats", "empty_cache", "memory_stats"):
        setattr(torch.cpu, name, lambda *_: {})

import torchtitan.distributed.utils as distributed  # noqa: E402
import torchtitan.models.qwen3 as qwen3  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.models.common import CosSinRoPE, Embedding, Linear  # noqa: E402
from torchtitan.models.common.attention import FlexAttention  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

SIZES: dict[str, int] = {"dim": 64, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "hidden_dim": 128, "n_layers": 2}
_VOCABULARY = 1100
_log, _train_step, _train = MetricsProcessor.log, Trainer.train_step, Trainer.train


def tiny(attn_backend: str) -> Any:
    """A Qwen3 of two layers, as torchtitan describes its own."""
    vocabulary, dim = _VOCABULARY, SIZES["dim"]
    return qwen3.Qwen3Model.Config(
        vocab_size=vocabulary,
        dim=dim,
        norm=qwen3._qwen3_norm(dim),
        enable_weight_tying=False,
        tok_embeddings=Embedding.Config(num_embeddings=vocabulary, embedding_dim=dim, param_init=qwen3._EMBEDDING_INIT),
        lm_head=Linear.Config(in_features=dim, out_features=vocabulary, param_init=qwen3._LINEAR_INIT),
        layers=qwen3._build_qwen3_layers(
            **SIZES, attn_backend=attn_backend, rope=CosSinRoPE.Config(dim=16, max_seq_len=1024, theta=1e6)
        ),
    )


def by_pairs(query: Any, key: Any, value: Any, *, block_mask: Any, scale: Any = None, **more: Any) -> Any:
    """Attention [B, H, S, D] over the pairs that torchtitan's mask sees."""
    seen = create_mask(block_mask.mask_mod, len(query), 1, query.shape[2], key.shape[2], device="cpu")
    out = scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scale, enable_gqa=True)
    return out, None


def train(self: Any) -> None:
    read.clear()
    config = transformers.Qwen3Config(
        vocab_size=_VOCABULARY, hidden_size=SIZES["dim"], intermediate_size=SIZES["hidden_dim"], num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )  # fmt: skip
    for module in self.model_parts[0].modules():
        if isinstance(module, FSDPModule) and not ON_GPU:
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    self.steps = Steps(transformers.Qwen3ForCausalLM(config))
    _train(self)


def train_step(self: Any, batches: Any) -> None:
    held = [next(batches) for _ in range(self.gradient_accumulation_steps)]
    (model,) = self.model_parts
    weights = qwen3.Qwen3StateDictAdapter(self.model_config, None).to_hf(whole(model))
    self.steps.begin(weights, len(held))
    _train_step(self, iter(held))


def log(self: Any, step: int, global_avg_loss: float, *rest: Any, **more: Any) -> None:
    noted["losses"].append(float(global_avg_loss))
    _log(self, step, global_avg_loss, *rest, **more)


if __name__ == "__main__":
    qwen3.qwen3_configs["0.6B"] = tiny
    if not ON_GPU:
        distributed.set_pg_timeouts = lambda **_: None  # its barrier names a GPU
        FlexAttention._compiled_flex_attn = staticmethod(by_pairs)
    Trainer.train, Trainer.train_step, MetricsProcessor.log = train, train_step, log
    run()
