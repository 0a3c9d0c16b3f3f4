"""Try ways into a trainer, each in processes of its own, and note what `check_trainer`, or the trainer itself, says.

    python tried.py OUT.json MODULE WAYS.json

WAYS: name → {"words": [RECIPE, …], "folder": …, "ranks": …, "hooks": [names of hooks], "hooks_of": their module}.
MODULE is imported once, before each way forks. No way trains: a recipe ends where it is checked.
"""

import importlib
import json
import multiprocessing
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from energon_pack import prepare_torchvision

prepare_torchvision()  # before any framework

import energon_pack  # noqa: E402
import energon_pack.trainers.check as checks  # noqa: E402
from support.ports import free_ports  # noqa: E402


class Said(BaseException):
    """What the check said; no recipe goes on after it."""


def checked(trainer: Any) -> str:
    try:
        line = _check(trainer)
    except energon_pack.PackError as error:
        raise Said(f"PackError: {error}") from None
    raise Said(line)


_check = checks.check_trainer


def one_rank(way: dict[str, Any], rank: int, port: int, log: Path, said: Any) -> None:
    """Run the recipe as one rank."""
    os.chdir(way["folder"])
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if way["ranks"] > 1:
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": way["ranks"], "LOCAL_WORLD_SIZE": way["ranks"]}
        variables |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in variables.items()})
    hooks: Any = importlib.import_module(way.get("hooks_of", "support.trainers.hooks"))
    checks.check_trainer = energon_pack.check_trainer = checked
    for name in way.get("hooks", []):
        getattr(hooks, name)()
    sys.argv = [str(word) for word in way["words"]]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        text = "was not checked"
    except Said as line:
        text = str(line)
    except BaseException as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
    said.put((rank, text))
    said.close()
    said.join_thread()
    os._exit(0)


def tried(way: dict[str, Any], log: Path) -> str:
    """What the first rank is told."""
    fork = multiprocessing.get_context("fork")
    said, (port,) = fork.Queue(), free_ports(1)
    ranks = [
        fork.Process(target=one_rank, args=(way, rank, port, log.with_suffix(f".{rank}"), said))
        for rank in range(way["ranks"])
    ]
    for rank in ranks:
        rank.start()
    try:
        texts = dict(said.get(timeout=240) for _ in ranks)
    except Exception as error:
        texts = {0: f"no answer: {type(error).__name__}"}
    for rank in ranks:
        rank.join(5)
        if rank.is_alive():
            rank.kill()
    return str(texts.get(0, "no answer of the first rank"))


def main() -> None:
    out, module, ways = sys.argv[1:4]
    importlib.import_module("energon_pack.trainers.on_disk")
    importlib.import_module("transformers.trainer")
    importlib.import_module(module)
    found = {}
    for name, way in json.loads(Path(ways).read_text()).items():
        found[name] = tried(way, Path(out).with_name(f"{name.replace('/', '_').replace(' ', '_')}.log"))
        print(f"{name}: {found[name]}"[:400], flush=True)
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
