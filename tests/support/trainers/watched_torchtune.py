"""torchtune's loop, watched: see steps.py.

    python watched_torchtune.py OUT.json RECIPE.py --config CONFIG.yaml

RECIPE.py is one of torchtune's own; its model is a Qwen2.
"""

# ruff: noqa: I001
import sys
from typing import Any

from support.trainers.steps import Steps, noted, run, whole  # first: it prepares torchvision

import torch
import torchtune.training as training
import transformers
from omegaconf import OmegaConf
from torchtune.models.qwen2._convert_weights import qwen2_tune_to_hf
from torchtune.modules import TransformerDecoder
from torchtune.training.metric_logging import DiskLogger

_log, _call = DiskLogger.log_dict, TransformerDecoder.__call__
state: dict[str, Any] = {"forwards": 0}


def call(self: Any, *arguments: Any, **more: Any) -> Any:
    """Hold the weights at the first forward of a step; compare at the last, when its packs are all read."""
    if state["forwards"] % state["num"] == 0:
        state["weights"] = whole(self)
    state["forwards"] += 1
    if state["forwards"] % state["num"] == 0:
        state["steps"].begin(qwen2_tune_to_hf(state["weights"], *state["sizes"]), state["num"])
    return _call(self, *arguments, **more)


def log_dict(self: Any, payload: Any, step: int) -> None:
    noted["losses"].append(float(payload["loss"]))
    _log(self, payload, step)


if __name__ == "__main__":
    settings: Any = OmegaConf.load(sys.argv[sys.argv.index("--config") + 1])
    config = transformers.AutoConfig.from_pretrained(settings.checkpointer.checkpoint_dir)
    state.update(num=settings.gradient_accumulation_steps, steps=Steps(transformers.Qwen2ForCausalLM(config)))
    state["sizes"] = config.num_attention_heads, config.num_key_value_heads, config.hidden_size
    if not torch.cuda.is_available():  # its recipe for ranks asks a GPU
        for name in ("get_memory_stats", "log_memory_stats", "cleanup_before_training"):
            setattr(training, name, lambda *_, **__: {})
    DiskLogger.log_dict, TransformerDecoder.__call__ = log_dict, call
    run()
