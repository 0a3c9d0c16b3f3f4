"""Run a recipe with its framework's own code, and note each step's loss beside that of its samples alone.

    python watched.py OUT.json RECIPE ARGUMENTS…

An unguarded copy of the model runs each sample alone, in transformers' plain way, with the weights before each step.
WATCH=positions: with the positions of the packs, where that version of transformers gives a video others than now.
WATCH=time: nothing is compared.
"""

import copy
import functools
import json
import os
import runpy
import sys
import time
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
from energon_pack.training.wrapped import unwrapped  # noqa: E402

noted: dict[str, Any] = {"losses": [], "expected": [], "checks": [], "tokens": 0}
calls: list[tuple[Any, list[Any]]] = []
_lay_out, _check, _init = Collator.__call__, checks.check_trainer, theirs.Trainer.__init__


@functools.wraps(_init)  # ms-swift asks for its parameters
def init(self: Any, *arguments: Any, **more: Any) -> None:
    _init(self, *arguments, **more)
    self.add_callback(Watch())


def lay_out(self: Collator, rows: Any, **more: Any) -> Any:
    calls.append((self.packs, [(int(row["epoch"]), int(row["pack"])) for row in rows]))
    return _lay_out(self, rows, **more)


def check(trainer: Any) -> str:
    line = _check(trainer)
    noted["checks"].append(line)
    return line


@torch.no_grad()
def alone(model: Any, packs: Any, rows: list[tuple[int, int]]) -> tuple[float, int]:
    """Σ ce of the samples of some packs, and their trained tokens."""
    ce, trained = 0.0, 0
    for epoch, number in rows:
        for member in packs.members(epoch, number):
            encoded = packs.encoder.members.encode(member)
            tokens = encoded.tokens
            inputs = {"input_ids": tokens.ids[None], "attention_mask": torch.ones_like(tokens.ids[None])}
            if hasattr(model.config, "vision_config"):
                inputs |= {"mm_token_type_ids": tokens.types[None], **encoded.media}
                if os.environ.get("WATCH") == "positions":
                    inputs["position_ids"] = packs.collate([packs.encoder.encode("", [member])])["position_ids"][1:]
            logits = model(**inputs, use_cache=False).logits[0, :-1]
            ce += float(cross_entropy(logits.double(), tokens.labels[1:], ignore_index=-100, reduction="sum"))
            trained += int((tokens.labels[1:] != -100).sum())
            noted["tokens"] += len(tokens)
    return ce, trained


class Watch(transformers.TrainerCallback):
    """Compares every step."""

    def __init__(self) -> None:
        self.plain: Any = None
        self.done = 0
        self.seconds = self.begun = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        calls.clear()
        inner = unwrapped(model)
        if os.environ.get("WATCH") != "time":
            self.plain = type(inner)(copy.deepcopy(inner.config)).eval()

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        num = args.gradient_accumulation_steps
        if self.plain is not None:
            self.plain.load_state_dict(unwrapped(model).state_dict())
            packs = calls[0][0]
            rows = [row for _, some in calls[self.done : self.done + num] for row in some]
            total = torch.tensor(alone(self.plain, packs, rows), dtype=torch.float64)
            if dist.is_initialized():
                dist.all_reduce(total)
            noted["expected"].append(float(total[0] / total[1]))
        self.done += num
        self.begun = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        noted.setdefault("seconds", []).append(time.perf_counter() - self.begun)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        noted["losses"] = [entry["loss"] for entry in state.log_history if "loss" in entry]
        noted["losses"] = [float(loss) for loss in noted["losses"][len(noted["losses"]) - len(noted["expected"]) :]]


def main() -> None:
    out, recipe = Path(sys.argv[1]), sys.argv[2]
    Collator.__call__ = lay_out  # type: ignore[method-assign]
    checks.check_trainer = check
    vars_of: Any = theirs.Trainer
    vars_of.__init__ = init
    sys.argv = sys.argv[2:]
    sys.path.insert(0, str(Path(recipe).parent))
    runpy.run_path(recipe, run_name="__main__")
    if int(os.environ.get("RANK", "0")) == 0:
        out.write_text(json.dumps(noted))


if __name__ == "__main__":
    main()
