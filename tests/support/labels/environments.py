"""Virtual environments with the frameworks' real code, each made once, and how a script is run inside one."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from support.running import ROOT

#: environments that a machine keeps between runs of the slow tests
HOME = Path(os.environ.get("FRAMEWORKS_ENVS", "/tmp/envs"))
#: the newest that truth was made with
PACKAGES = {
    "trl": "trl==1.16.0",
    "swift": "ms-swift==4.6.0",
    "llamafactory": "llamafactory==0.9.5",
    # what LoongForge, LLaVA-OneVision-2 and Megatron-LM import, which have no packages of their own
    "loongforge": "megatron-energon==5.0.0 transformers==5.2.0 datasets einops hydra-core scipy tiktoken triton",
    "witnesses": "qwen-vl-utils==0.0.14 decord==0.6.0 soundfile==0.14.0",
}
_TORCH = ("torch==2.13.0", "torchvision")
#: a CUDA build of torchvision imports beside a CPU build of torch once its two operators have schemas
_SCHEMAS = """
import torch
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def python_of(framework: str) -> Path:
    """The interpreter of a framework's environment, made where it is not there.

    Raises:
        OSError: pip can't install it.
    """
    return made_once(HOME / framework, partial(_make_environment_of_framework, framework)) / "bin" / "python"


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder, made where it is not there whole: tests of several processes may ask for it at once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "whole").exists():
            make(folder)
            (folder / "whole").touch()
    return folder


def make_environment(groups: Iterable[Sequence[str]], folder: Path) -> None:
    """Make a virtual environment, and install each group of packages by a call of pip.

    Raises:
        OSError: pip can't install a group.
    """
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    for packages in groups:
        _pip_install(folder / "bin" / "python", *packages)
    _drop_cuda_library_of_torchaudio(next(folder.glob("lib/python*/site-packages")))


def _make_environment_of_framework(framework: str, folder: Path) -> None:
    make_environment((_TORCH, (*PACKAGES[framework].split(), "pillow", "qwen_vl_utils")), folder)
    next(folder.glob("lib/python*/site-packages")).joinpath("sitecustomize.py").write_text(_SCHEMAS)


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


def run(
    framework: str, conversations: list[Any], folder: Path, scratch: Path, *names: str, script_name: str = ""
) -> list[Any]:
    """What `run_FRAMEWORK.py`, or another script, makes of conversations with a processor's folder.

    Raises:
        OSError: the environment can't be made, or the script ends with an error; its last lines are the message.
    """
    given, out = scratch / "conversations.json", scratch / f"{framework}.json"
    given.write_text(json.dumps(conversations))
    script = ROOT / "tests" / "support" / "labels" / (script_name or f"run_{framework}.py")
    variables = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "USE_HF": "1", "PATH": os.environ["PATH"]}
    variables |= {"HOME": str(scratch), "MODELSCOPE_CACHE": str(scratch)}
    arguments: list[str | Path] = [python_of(framework), script, given, folder, out, *names]
    done = subprocess.run(arguments, env=variables, cwd=scratch, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise OSError(f"{script.name} {folder.name} {' '.join(names)}: {done.stderr.strip()[-600:]}")
    rows: list[Any] = json.loads(out.read_text())
    return rows
