"""Virtual environments with a trainer's real code and what this package needs beside it, each made once."""

import re
from functools import partial
from pathlib import Path

from support.labels.environments import HOME, made_once, make_environment
from support.running import ROOT

_TORCH = ("torch==2.13.0", "torchvision==0.28.0")
_BESIDE = ("pillow", "av", "qwen_vl_utils", "accelerate", "datasets", "peft")
#: axolotl pins CUDA kernels, and another parser than Hydra's: what it imports on a CPU
_OF_AXOLOTL = (
    "addict", "fire", "einops", "colorama", "evaluate==0.4.1", "scipy", "art", "python-dotenv", "zstandard", "fastcore",
    "langdetect", "immutabledict", "schedulefree", "openenv-core==0.1.0", "axolotl-contribs-lgpl==0.0.7",
    "axolotl-contribs-mit==0.0.6", "posthog==6.7.11", "optimum==1.16.2", "sentencepiece", "numba", "trackio", "wandb",
)  # fmt: skip
#: what tests/conftest.py imports, where a trainer's environment runs pytest
_OF_CONFTEST = ("pytest", "pytest-timeout", "hypothesis", "psutil", "filelock", "moto[s3]", "flask", "flask-cors")
#: of each trainer what pip installs, call by call
PACKAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "trl": (("trl==1.16.0", "transformers==5.23.0"),),
    "llamafactory": (("llamafactory==0.9.5",),),
    "swift": (("ms-swift==4.6.0",),),
    "axolotl": (
        ("transformers==5.16.1", "trl==1.9.0", *_OF_AXOLOTL),
        ("--no-deps", "axolotl==0.19.0", "bitsandbytes", "triton"),
    ),
    "lightning": (("lightning==2.6.6", "transformers==5.23.0", "torchdata==0.11.0"),),
    "torchtune": (("torchtune==0.6.1", "torchao==0.13.0", "transformers==5.23.0"),),
    "torchtitan": (("torchtitan==0.3.0", "transformers==5.23.0"), ("--no-deps", "triton")),
    "verl": (("verl==0.9.1", "fastapi", "uvicorn"),),
    "weights": (
        ("transformers==5.23.0", "bitsandbytes==0.50.2", "torchao==0.18.0", "optimum-quanto==0.2.7", "ninja"),
        ("hqq==0.2.8.post1",),
    ),
    "bridge": (
        ("transformers==5.23.0", "einops"),
        ("--no-deps", "--ignore-requires-python", "megatron-bridge==0.6.2", "megatron-core==0.19.2", "triton"),
    ),
    "automodel": (
        ("transformers==5.18.0", "torchdata==0.11.0", "torchao==0.18.0", "mistral-common", "tiktoken", "timm", "numba"),
        ("--no-deps", "nemo_automodel==0.7.0", "megatron-fsdp==0.5.0"),
        _OF_CONFTEST,
    ),
}


def needed_here() -> list[str]:
    """What this package needs, without torch and transformers, of which each trainer has its own."""
    text = (ROOT / "pyproject.toml").read_text().partition("dependencies = [")[2].partition("\n]")[0]
    names = re.findall(r'^    "([^"]+)"', text, re.MULTILINE)
    return [name for name in names if not re.match("torch|transformers|tokenizers|huggingface_hub|numpy", name)]


def python_of(trainer: str) -> Path:
    """The interpreter of a trainer's environment, made where it is not there.

    Raises:
        OSError: pip can't install it.
    """
    groups = (_TORCH, *PACKAGES[trainer], (*_BESIDE, *needed_here()))
    return made_once(HOME / "trainers" / trainer, partial(make_environment, groups)) / "bin" / "python"
