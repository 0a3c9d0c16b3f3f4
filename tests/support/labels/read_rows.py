"""Reads rows of any dialect with a framework's own reading: run inside an environment that has it.

`python read_rows.py ROWS.json FOLDER OUT.json FRAMEWORK TEMPLATE`. OUT.json: the ids of each row, or an error.
"""

import itertools
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["DISABLE_VERSION_CHECK"] = "1"

from transformers import AutoTokenizer

Row = dict[str, Any]
Ids = list[int]


def trl(folder: Path, _: str) -> Callable[[Row], Ids]:
    from trl.data_utils import maybe_apply_chat_template

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def ids(row: Row) -> Ids:
        made = maybe_apply_chat_template(row, tokenizer)
        text = made["prompt"] + made["completion"] if "prompt" in made else made["text"]
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    return ids


def swift(folder: Path, name: str) -> Callable[[Row], Ids]:
    from run_swift import processor_of  # type: ignore[import-not-found]  # it lies beside this script
    from swift.dataset import load_dataset
    from swift.template import get_template

    processor = processor_of(folder)
    processor.model_meta = SimpleNamespace(is_multimodal=False, template=name, model_type=name)
    template = get_template(processor, template_type=name)
    template.set_mode("train")
    numbers = itertools.count()

    def ids(row: Row) -> Ids:
        file = Path(f"{next(numbers)}.jsonl")
        file.write_text(json.dumps(row) + "\n")
        made = load_dataset([str(file)], strict=True, split_dataset_ratio=0)[0][0]
        return list(map(int, template.encode({"messages": made["messages"]})["input_ids"]))

    return ids


def llamafactory(folder: Path, name: str) -> Callable[[Row], Ids]:
    from llamafactory.data.converter import get_dataset_converter
    from llamafactory.data.parser import DatasetAttr
    from llamafactory.data.processor.supervised import SupervisedDatasetProcessor
    from llamafactory.data.template import get_template_and_fix_tokenizer
    from llamafactory.hparams import DataArguments

    arguments = DataArguments(template=name, cutoff_len=1 << 20)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    template = get_template_and_fix_tokenizer(tokenizer, arguments)
    encoder = SupervisedDatasetProcessor(template, tokenizer, None, arguments)

    def ids(row: Row) -> Ids:
        is_alpaca = "instruction" in row
        said: Row = {"formatting": "alpaca" if is_alpaca else "sharegpt"}
        said |= {"system": "system" if "system" in row else None}
        if is_alpaca:
            said |= {"history": "history"}
        elif "messages" in row:  # as its own dataset_info.json says it of such files
            said |= {"messages": "messages", "role_tag": "role", "content_tag": "content"}
            said |= {"user_tag": "user", "assistant_tag": "assistant", "system_tag": "system"}
        attributes = DatasetAttr("file", "x")
        for key, value in said.items():
            setattr(attributes, key, value)
        made = get_dataset_converter(attributes.formatting, attributes, arguments)(row)
        return list(
            encoder._encode_data_example(
                made["_prompt"], made["_response"], made["_system"], made["_tools"], [], [], []
            )[0]
        )

    return ids


def main(rows: Path, folder: Path, out: Path, framework: str, template: str) -> None:
    logging.disable(logging.WARNING)
    read = {"trl": trl, "swift": swift, "llamafactory": llamafactory}[framework](folder, template)
    found: list[Any] = []
    for row in json.loads(rows.read_text()):
        try:
            found.append(read(row))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}"[:300])
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], sys.argv[5])
