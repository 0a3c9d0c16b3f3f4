"""Virtual environments with other projects' real code, and what this package needs beside it, each made once."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from filelock import FileLock

from support.running import ROOT

#: environments that a machine keeps between runs of the slow tests
HOME = Path(os.environ.get("FRAMEWORKS_ENVS", "/tmp/energon_pack_environments"))
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
#: of each environment what pip installs, call by call
PACKAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "witnesses": (("qwen-vl-utils==0.0.14", "decord==0.6.0", "soundfile==0.14.0", "pillow"),),
    # what LoongForge, LLaVA-OneVision-2 and Megatron-LM import, which have no packages of their own
    "loongforge": (
        ("megatron-energon==5.0.0", "transformers==5.2.0", "datasets", "einops", "hydra-core", "scipy", "tiktoken"),
        ("triton", "pillow", "qwen_vl_utils"),
    ),
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
#: environments where this package does not run
_WITHOUT_THIS_PACKAGE = ("loongforge", "witnesses")
#: a folder for PYTHONPATH, with which torchvision can be imported in these environments
TORCHVISION_ON_CPU = ROOT / "tests" / "support" / "torchvision_on_cpu"


def needed_here() -> list[str]:
    """What this package needs, without torch and transformers, of which each trainer has its own."""
    text = (ROOT / "pyproject.toml").read_text().partition("dependencies = [")[2].partition("\n]")[0]
    names = re.findall(r'^    "([^"]+)"', text, re.MULTILINE)
    return [name for name in names if not re.match("torch|transformers|tokenizers|huggingface_hub|numpy", name)]


def python_of(name: str) -> Path:
    """The interpreter of an environment, made where it is not there.

    Raises:
        OSError: pip can't install it.
    """
    beside = () if name in _WITHOUT_THIS_PACKAGE else (*_BESIDE, *needed_here())
    groups = (_TORCH, *PACKAGES[name], beside)
    return made_once(HOME / name, partial(_make_environment, groups)) / "bin" / "python"


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder, made where it is not there whole: tests of several processes may ask for it at once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "whole").exists():
            make(folder)
            (folder / "whole").touch()
    return folder


def _make_environment(groups: Iterable[Sequence[str]], folder: Path) -> None:
    """Make a virtual environment, and install each group of packages by a call of pip.

    Raises:
        OSError: pip can't install a group.
    """
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    for packages in groups:
        _pip_install(folder / "bin" / "python", *packages)
    _drop_cuda_library_of_torchaudio(next(folder.glob("lib/python*/site-packages")))


def _pip_install(python: str | Path, *words: str) -> None:
    """Install with an environment's pip.

    Raises:
        OSError: it can't.
    """
    done = subprocess.run([python, "-m", "pip", "install", "-q", *words], capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise OSError(f"pip can't install {words}: {done.stderr.strip()[-300:]}")


def packages_of_processors() -> Path:
    """A folder with packages that some processors import, beside this environment's torch; made where it is not there.

    Raises:
        OSError: pip can't install them.
    """

    def make(folder: Path) -> None:
        _pip_install(sys.executable, "--no-deps", "--target", str(folder), "torchaudio==2.11.1", "num2words==0.5.14")
        _drop_cuda_library_of_torchaudio(folder)

    return made_once(HOME / "processors", make)


def _drop_cuda_library_of_torchaudio(site: Path) -> None:
    """Remove the library that a CPU build of torch can't load: the package index has a CUDA build alone.

    torchaudio computes features in Python, and imports without this library.
    """
    for library in site.glob("torchaudio/lib/*.so"):
        library.unlink()
