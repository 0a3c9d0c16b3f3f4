"""What LLaMA-Factory trains: run inside an environment that has it.

`python run_llamafactory.py CONVERSATIONS.json FOLDER OUT.json NAME`: NAME is one of its templates, or `v1:qwen3` for
one of version 1, or `v1:chatml`. Version 0: its ShareGPT form, as its own data sets are. OUT.json: for each
conversation `{"id", "ids", "weights"}`, one weight a token, or `{"id", "error"}`.
"""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

os.environ["DISABLE_VERSION_CHECK"] = "1"

from PIL import Image
from transformers import AutoProcessor, AutoTokenizer

Row = dict[str, Any]
_ROLES = {"user": "human", "assistant": "gpt", "tool": "observation", "system": "system"}


def sharegpt(item: Row) -> Row:
    """A conversation as LLaMA-Factory's own data sets have it."""
    turns: list[Row] = []
    for message in item["messages"]:
        calls = message.get("tool_calls")
        if not isinstance(message["content"], str):
            raise ValueError("content parts are no form of its own")
        if calls:
            if message["content"]:
                raise ValueError("text before a call has no form of its own")
            called = [call["function"] for call in calls]
            turns.append({"from": "function_call", "value": json.dumps(called, ensure_ascii=False)})
        elif message["role"] == "tool" and turns and turns[-1]["from"] == "observation":
            turns[-1]["value"] += "\n</tool_response>\n<tool_response>\n" + message["content"]
        else:
            turns.append({"from": _ROLES[message["role"]], "value": message["content"]})
    return {"conversations": turns, "tools": json.dumps(item["tools"]) if item.get("tools") else ""}


def parts(message: Row) -> list[Row]:
    """A message's content in the form of version 1."""
    content = message["content"]
    texts = [content] if isinstance(content, str) else [part["text"] for part in content]
    thought = next((message[key] for key in ("reasoning_content",) if message.get(key)), None)
    made = [{"type": "reasoning", "value": thought}] if thought else []
    made += [{"type": "text", "value": text} for text in texts if text or not message.get("tool_calls")]
    for call in message.get("tool_calls") or []:
        made.append({"type": "tool_call", "value": json.dumps(call["function"], ensure_ascii=False)})
    return made


class VersionOne:
    def __init__(self, folder: Path, name: str):
        from llamafactory.v1.core.utils.rendering import Renderer

        self.renderer = Renderer(name, AutoTokenizer.from_pretrained(folder))

    def encode(self, item: Row) -> tuple[list[int], list[float]]:
        messages = [
            {"role": m["role"], "content": parts(m), **{k: m[k] for k in ("loss_weight",) if k in m}}
            for m in item["messages"]
        ]
        tools = json.dumps([tool["function"] for tool in item["tools"]]) if item.get("tools") else None
        made = self.renderer.render_messages(messages, tools)
        weights = [w if label != -100 else 0.0 for w, label in zip(made["loss_weights"], made["labels"], strict=True)]
        return made["input_ids"], weights


class VersionZero:
    def __init__(self, folder: Path, name: str):
        from llamafactory.data.converter import SharegptDatasetConverter
        from llamafactory.data.parser import DatasetAttr
        from llamafactory.data.processor.supervised import SupervisedDatasetProcessor
        from llamafactory.data.template import get_template_and_fix_tokenizer
        from llamafactory.hparams import DataArguments

        arguments = DataArguments(template=name, cutoff_len=1 << 20)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        is_full = any((folder / file).exists() for file in ("preprocessor_config.json", "processor_config.json"))
        self.processor = AutoProcessor.from_pretrained(folder) if is_full else None
        if self.processor is not None:
            self._settings_of_the_loader()
        template = get_template_and_fix_tokenizer(tokenizer, arguments)
        attributes = DatasetAttr("hf_hub", "x", formatting="sharegpt", tools="tools")
        self.converter = SharegptDatasetConverter(attributes, arguments)
        self.encoder = SupervisedDatasetProcessor(template, tokenizer, self.processor, arguments)

    def _settings_of_the_loader(self) -> None:
        """As `patch_processor` sets them (model/patcher.py)."""
        defaults: Row = {"image_max_pixels": 768 * 768, "image_min_pixels": 32 * 32, "image_do_pan_and_scan": False}
        defaults |= {"crop_to_patches": False, "video_max_pixels": 256 * 256, "video_min_pixels": 16 * 16}
        defaults |= {"video_fps": 2.0, "video_maxlen": 128, "use_audio_in_video": False}
        for key, value in defaults.items():
            setattr(self.processor, key, value)

    def encode(self, item: Row) -> tuple[list[int], list[float]]:
        aligned = self.converter(sharegpt(item))
        if len(aligned["_prompt"]) % 2 != 1 or len(aligned["_response"]) != 1:
            raise ValueError("dropped: no pairs of question and answer")
        images = [Image.new("RGB", tuple(size), (90, 120, 150)) for size in item.get("images", [])]
        ids, labels = self.encoder._encode_data_example(
            aligned["_prompt"], aligned["_response"], aligned["_system"], aligned["_tools"], images, [], []
        )
        return ids, [float(label != -100) for label in labels]


def main(conversations: Path, folder: Path, out: Path, name: str) -> None:
    logging.disable(logging.WARNING)
    version = VersionOne(folder, name[3:]) if name.startswith("v1:") else VersionZero(folder, name)
    rows = []
    for item in json.loads(conversations.read_text()):
        try:
            ids, weights = version.encode(item)
            rows.append({"id": item["id"], "ids": list(map(int, ids)), "weights": weights})
        except Exception as error:
            rows.append({"id": item["id"], "error": f"{type(error).__name__}: {error}"[:300]})
    out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
