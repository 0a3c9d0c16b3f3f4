"""Lightning's loop, watched: see steps.py."""

# ruff: noqa: I001
from typing import Any

from support.trainers.steps import Steps, noted, read, run  # first: it prepares torchvision

import lightning

_init = lightning.Trainer.__init__


class Watch(lightning.Callback):
    """Compares every step."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        read.clear()
        self.steps = Steps.like(module.model)

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.steps.begin(module.model.state_dict(), len(batch))

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        noted["losses"].append(float(trainer.callback_metrics["loss"]))


def init(self: Any, *arguments: Any, callbacks: Any = (), **more: Any) -> None:
    _init(self, *arguments, callbacks=[*callbacks, Watch()], **more)


if __name__ == "__main__":
    lightning.Trainer.__init__ = init
    run()
