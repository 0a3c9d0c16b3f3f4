"""Run the frameworks' real code in environments of their own."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from support.environments import TORCHVISION_ON_CPU, python_of
from support.running import ROOT


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
    variables |= {"HOME": str(scratch), "MODELSCOPE_CACHE": str(scratch), "PYTHONPATH": str(TORCHVISION_ON_CPU)}
    arguments: list[str | Path] = [python_of(framework), script, given, folder, out, *names]
    done = subprocess.run(arguments, env=variables, cwd=scratch, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise OSError(f"{script.name} {folder.name} {' '.join(names)}: {done.stderr.strip()[-600:]}")
    rows: list[Any] = json.loads(out.read_text())
    return rows
