"""Before a trainer begins, guard its model with its own batches; what the guard says ends the program."""

import functools
import sys
import traceback
from contextlib import ExitStack
from typing import Any

import torch

from energon_pack import guard
from energon_pack.training.forward_inputs import MixingError
from energon_pack.training.model_wrappers import unwrapped

_kept = ExitStack()
_main: Any = sys.modules["__main__"]


class _Seen(BaseException):
    """The model was called; it need not run."""


def guard_their_batches() -> None:
    """Try the model with what the trainer passes to it of its first two batches, then train one step, guarded."""
    import transformers

    trainer: Any = transformers.Trainer
    train = trainer.train

    def guarded(self: Any, *arguments: Any, **more: Any) -> None:
        given = passed(self, 2)
        names = ", ".join(
            f"{name} {[*value.shape]}" if torch.is_tensor(value) else f"{name}={value}"
            for name, value in given[0].items()
            if value is not None
        )
        print("PASSED", names, flush=True)
        try:
            held = guard(self.model, batches=given)
            trainer.train = train
            train(self, *arguments, **more)
        except MixingError as error:
            traceback.print_exc()
            raise _main.Said(f"MixingError: {error}") from None
        raise _main.Said(f"kept apart ({len(held.trials)} trials): {held.trials[0]}")

    trainer.train = guarded


def passed(trainer: Any, num: int) -> list[dict[str, Any]]:
    """The inputs of the model of the first batches, as the trainer passes them and a guarded model gets them: hooks of
    the trainer's own run behind.
    """
    model, found = unwrapped(trainer.model), []

    def note(_: Any, arguments: Any, inputs: dict[str, Any]) -> None:
        found.append(dict(inputs))
        raise _Seen

    handle = model.register_forward_pre_hook(note, with_kwargs=True, prepend=True)
    for _, batch in zip(range(num), trainer.get_train_dataloader(), strict=False):
        try:
            trainer.compute_loss(trainer.model, trainer._prepare_inputs(batch))
        except _Seen:
            continue
    handle.remove()
    return found


def _change(change: Any) -> None:
    import transformers

    trainer: Any = transformers.Trainer
    make = trainer.__init__

    @functools.wraps(make)  # ms-swift asks for its parameters
    def init(self: Any, *arguments: Any, **more: Any) -> None:
        make(self, *arguments, **more)
        collate = self.data_collator
        self.data_collator = lambda rows, *rest, **named: change(collate(rows, *rest, **named))

    trainer.__init__ = init


def drop_positions() -> None:
    _change(lambda batch: {name: value for name, value in batch.items() if name != "position_ids"})


def drop_layout() -> None:
    _change(lambda batch: {k: v for k, v in batch.items() if k in ("input_ids", "labels", "attention_mask")})


def add_mask() -> None:
    """A 2-D mask of ones, as padding collators add."""
    _change(lambda batch: {**batch, "attention_mask": torch.ones_like(batch["input_ids"])})


def emulate_flash() -> None:
    from support.emulated_flash import emulated_flash

    _kept.enter_context(emulated_flash())
    for module in [*sys.modules.values()]:
        if "is_flash_attn_2_available" in vars(module):
            vars(module)["is_flash_attn_2_available"] = lambda: True
