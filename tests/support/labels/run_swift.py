"""What ms-swift trains: run inside an environment that has it.

`python run_swift.py CONVERSATIONS.json FOLDER OUT.json NAME`: NAME is one of its templates. Its defaults:
`Template.encode`, and `ignore_empty_think` for models that think on demand (template_args.py, `_set_loss_scale`);
floats of `loss_scale` are kept (`is_binary_loss_scale=False`).
OUT.json: for each conversation `{"id", "ids", "weights"}`, one weight a token, or `{"id", "error"}`.
"""

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image
from swift.template import TEMPLATE_MAPPING, get_template
from transformers import AutoConfig, AutoProcessor, AutoTokenizer

_MULTIMODAL = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl_hf", "llava_onevision_hf", "gemma3_vision", "kimi_k25")


def processor_of(folder: Path) -> Any:
    """The processor with what ms-swift puts on it when it loads a model."""
    is_full = any((folder / name).exists() for name in ("preprocessor_config.json", "processor_config.json"))
    processor = (AutoProcessor if is_full else AutoTokenizer).from_pretrained(folder)
    try:
        config = AutoConfig.from_pretrained(folder)
    except (ValueError, KeyError, OSError):
        config = SimpleNamespace(**json.loads((folder / "config.json").read_text()))
    processor.model_info = SimpleNamespace(
        config=config, task_type="causal_lm", max_model_len=1 << 20, model_dir=str(folder), torch_dtype=torch.float32
    )
    return processor


def main(conversations: Path, folder: Path, out: Path, name: str) -> None:
    logging.disable(logging.WARNING)
    processor = processor_of(folder)
    processor.model_meta = SimpleNamespace(is_multimodal=name in _MULTIMODAL, template=name, model_type=name)
    meta = TEMPLATE_MAPPING[name]
    scale = "default" + "+ignore_empty_think" * bool(meta.is_thinking and meta.non_thinking_prefix)
    template = get_template(processor, template_type=name, loss_scale=scale, is_binary_loss_scale=False)
    template.set_mode("train")
    rows = []
    for item in json.loads(conversations.read_text()):
        images = [Image.new("RGB", tuple(size), (90, 120, 150)) for size in item.get("images", [])]
        value = {key: item[key] for key in ("messages", "tools", "chat_template_kwargs") if item.get(key)}
        try:
            made = template.encode({**value, **({"images": images} if images else {})})
            scales = made.get("loss_scale") or [1.0] * len(made["input_ids"])
            weights = [float(s) if label != -100 else 0.0 for s, label in zip(scales, made["labels"], strict=True)]
            rows.append({"id": item["id"], "ids": list(map(int, made["input_ids"])), "weights": weights})
        except Exception as error:
            rows.append({"id": item["id"], "error": f"{type(error).__name__}: {error}"[:300]})
    out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
