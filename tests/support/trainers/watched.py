"""Run a recipe with its framework's own code, and note each step's loss beside that of its samples alone.

    python watched.py OUT.json RECIPE ARGUMENTS…

An unguarded copy of the model runs each sample alone, in transformers' plain way, with the weights before each step.
WATCH=positions: with the positions of the packs, where that version of transformers gives a video others than now.
HOOKS=lazy,…: functions of hooks.py that are called first.
"""

import copy
import functools
import importlib
import json
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from energon_pack import prepare_torchvision

prepare_torchvision()  # before any framework: a CUDA build of torchvision beside a CPU build of torch stops imports

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import transformers  # noqa: E402
import transformers.trainer as theirs  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

import energon_pack.trainers.check as checks  # noqa: E402
from energon_pack.trainers.collator import Collator  # noqa: E402
from energon_pack.training.encoded import TrainingPack  # noqa: E402
from energon_pack.training.model_wrappers import class_of, unwrapped  # noqa: E402

torch.backends.cudnn.allow_tf32 = False  # a step on a GPU is compared with the samples on a CPU
noted: dict[str, Any] = {"losses": [], "expected": [], "checks": []}
calls: list[tuple[Any, list[Any]]] = []
_lay_out, _check, _init = Collator.__call__, checks.check_trainer, theirs.Trainer.__init__
_load: Any = torch.load


@functools.wraps(_init)  # ms-swift asks for its parameters
def init(self: Any, *arguments: Any, **more: Any) -> None:
    _init(self, *arguments, **more)
    self.add_callback(Watch())


def lay_out(self: Collator, rows: Any, **more: Any) -> Any:
    packs = [row if isinstance(row, TrainingPack) else row["pack"] for row in rows]  # of a stream, or a number
    named = [pack if isinstance(pack, TrainingPack) else (int(rows[i]["epoch"]), pack) for i, pack in enumerate(packs)]
    calls.append((self.packs, named))
    return _lay_out(self, rows, **more)


def load(*arguments: Any, map_location: Any = None, **more: Any) -> Any:
    """transformers 5.6 asks for "cpu:0" where several ranks go on from a checkpoint, which torch does not know."""
    location = "cpu" if str(map_location).startswith("cpu") else map_location
    return _load(*arguments, **more, map_location=location)


def check(trainer: Any) -> str:
    line = _check(trainer)
    noted["checks"].append(line)
    return line


@torch.no_grad()
def alone(model: Any, packs: Any, rows: list[Any]) -> tuple[float, float]:
    """Σ w·ce of the samples of some packs, and Σ w."""
    ce, total = 0.0, 0.0
    for tokens, inputs in (one for row in rows for one in samples_of(model, packs, row)):
        ids, labels = tokens.ids[None], tokens.labels[1:]
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs, use_cache=False).logits[0, :-1]
        each = cross_entropy(logits.double(), labels, ignore_index=-100, reduction="sum")
        trained = int((labels != -100).sum())
        weight = 1 / trained if os.environ.get("WATCH_WEIGHT") == "sample" else 1.0
        ce, total = ce + weight * float(each), total + weight * trained
    return ce, total


def of_all_ranks(sums: tuple[float, float]) -> torch.Tensor:
    """Sums over all ranks; NCCL adds on its GPU alone."""
    total = torch.tensor(sums, dtype=torch.float64)
    if dist.is_initialized():
        total = total.cuda() if dist.get_backend() == "nccl" else total
        dist.all_reduce(total)
    return total


def samples_of(model: Any, packs: Any, row: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The tokens of each sample of a pack, and what a model with images is given beside them."""
    if isinstance(row, TrainingPack):  # of a stream: texts alone
        yield from ((member.tokens, {}) for member in row.members)
        return
    for member in packs.members(*row):
        encoded = packs.encoder.members.encode_alone(member)
        inputs: dict[str, Any] = {}
        if hasattr(model.config, "vision_config"):
            inputs |= {"mm_token_type_ids": encoded.tokens.types[None], **encoded.media}
            if os.environ.get("WATCH") == "positions":
                inputs["position_ids"] = packs.collate([packs.encoder.encode("", [member])])["position_ids"][1:]
        yield encoded.tokens, inputs


class Watch(transformers.TrainerCallback):
    """Compares every step."""

    def __init__(self) -> None:
        self.plain: Any = None
        self.done = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        calls.clear()
        inner = unwrapped(model)
        self.plain = class_of(inner)(copy.deepcopy(inner.config)).eval()

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        num = args.gradient_accumulation_steps
        state = unwrapped(model).state_dict()  # of FSDP2: each rank's part
        self.plain.load_state_dict(
            {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in state.items()}
        )
        if not self.done:  # a stream that goes on has laid out what it skips; Accelerate's loaders are one batch ahead
            self.done = max(0, len(calls) - num - 1)
        packs = calls[0][0]
        rows = [row for _, some in calls[self.done : self.done + num] for row in some]
        total = of_all_ranks(alone(self.plain, packs, rows))
        noted["expected"].append(float(total[0] / total[1]))
        self.done += num

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        noted["losses"] = [entry["loss"] for entry in state.log_history if "loss" in entry]
        noted["losses"] = [float(loss) for loss in noted["losses"][len(noted["losses"]) - len(noted["expected"]) :]]


def main() -> None:
    out, recipe = Path(sys.argv[1]), sys.argv[2]
    Collator.__call__ = lay_out  # type: ignore[method-assign]
    checks.check_trainer = check
    torch.load = load
    vars_of: Any = theirs.Trainer
    vars_of.__init__ = init
    for name in filter(None, os.environ.get("HOOKS", "").split(",")):
        getattr(importlib.import_module("support.trainers.hooks"), name)()
    sys.argv = sys.argv[2:]
    sys.path.insert(0, str(Path(recipe).parent))
    runpy.run_path(recipe, run_name="__main__")
    if int(os.environ.get("RANK", "0")) == 0:
        out.write_text(json.dumps(noted))


if __name__ == "__main__":
    main()
