"""What their own loaders take of a mixture: InternVL's and LLaVA-NeXT's code, cut out of clones of their repositories.

The classes that read files run as they are; stand-ins are for what plays no part in reading: torch's Dataset, the
logger, ranks. Clones, bare or not, are named by INTERNVL_CLONE and LLAVA_NEXT_CLONE.
"""

import __future__

import ast
import json
import logging
import math
import os
import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

INTERNVL, LLAVA_NEXT = "INTERNVL_CLONE", "LLAVA_NEXT_CLONE"
_CODE = {INTERNVL: "internvl_chat/internvl/train/internvl_chat_finetune.py", LLAVA_NEXT: "llava/train/train.py"}


def file_of(clone: str, name: str) -> str:
    """Return a file of a clone; skips the test where there is none. `clone`: the variable that names it."""
    if not (folder := os.environ.get(clone)):
        pytest.skip(f"{clone} names no clone")
    return subprocess.run(
        ["git", "-C", folder, "show", f"HEAD:{name}"], capture_output=True, text=True, check=True
    ).stdout


def _defined(clone: str, names: set[str], stand_ins: dict[str, Any]) -> dict[str, Any]:
    """Run these definitions of their training script, and nothing else of it."""
    body = [node for node in ast.parse(file_of(clone, _CODE[clone])).body if getattr(node, "name", None) in names]
    assert {node.name for node in body} == names  # type: ignore[attr-defined]
    values = {"json": json, "math": math, "np": np, "os": os, "random": random, "re": re, "yaml": yaml, **stand_ins}
    flags = __future__.annotations.compiler_flag  # annotations name classes of torch and transformers
    exec(compile(ast.Module(body, []), _CODE[clone], "exec", flags, True), values)
    return values


def rows_of_internvl(meta: Path) -> dict[str, list[Any]]:
    """Return by name of an entry the rows that InternVL's `build_datasets` takes, in their order."""
    ranks = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: 1)
    stand_ins = {"Dataset": object, "ConcatDataset": list, "dist": ranks, "logger": logging.getLogger("internvl")}
    values = _defined(INTERNVL, {"LazySupervisedDataset", "build_datasets"}, stand_ins)
    arguments = SimpleNamespace(
        meta_path=str(meta), conv_style="internvl2_5", force_image_size=448, pad2square=False, use_packed_ds=False,
        use_data_resampling=False,
    )  # fmt: skip
    tokenizer, model = SimpleNamespace(model_max_length=8192), SimpleNamespace(num_image_token=256)
    datasets = values["build_datasets"](arguments, tokenizer, None, model)
    return {each.ds_name: [json.loads(row) for row in each.raw_data] for each in datasets}


def rows_of_llava(path: Path, place_of: Callable[[str], str]) -> list[Any]:
    """Return the rows that LLaVA-NeXT's dataset takes. `place_of`: where a file of their machine lies here."""

    def opened(name: str, mode: str) -> Any:
        return Path(place_of(name)).open(mode)

    stand_ins = {"Dataset": object, "rank0_print": lambda text: None, "open": opened}
    values = _defined(LLAVA_NEXT, {"LazySupervisedDataset"}, stand_ins)
    return list(values["LazySupervisedDataset"](str(path), None, SimpleNamespace()).list_data_dict)
