"""What a user may do otherwise in code, done to the names that a recipe uses before it runs."""

from typing import Any

import energon_pack
from energon_pack.trainers import on_disk
from energon_pack.trainers.collator import Collator

#: names that are replaced, so that no type holds for them
_PACKAGE: Any = energon_pack
_ALL: Any = on_disk.PackDatasetBase
_NUMBERED: Any = on_disk.PacksByNumber
_STREAMED: Any = energon_pack.StreamingPackedDataset


class Changed:
    """A collator around that of packs, as a user writes one."""

    def __init__(self, data_collator: Any, change: Any):
        self.data_collator, self.change = data_collator, change

    def __call__(self, rows: Any, **more: Any) -> Any:
        return self.change(self.data_collator(rows, **more))


def _change_batches(change: Any) -> None:
    _ALL.collator = lambda self, model, weights=False: Changed(Collator(self, model, weights), change)


def no_positions() -> None:
    _change_batches(lambda batch: {name: value for name, value in batch.items() if name != "position_ids"})


def mask_2d() -> None:
    """A 2-D mask of ones, as padding collators add."""
    _change_batches(lambda batch: {**batch, "attention_mask": (batch["input_ids"] >= 0).long()})


def their_collator() -> None:
    """The trainer's own collator, or none."""
    import sys

    if "swift.pipelines.train.sft" in sys.modules:  # its templates have one
        from swift.template import Template

        def set_(self: Any, name: str, value: Any) -> None:
            if name != "data_collator":
                object.__setattr__(self, name, value)

        Template.__setattr__ = set_
    _ALL.collator = lambda self, model: None


def no_denominator() -> None:
    """Without the line that makes the loss the mean over all trained tokens of a step."""
    import transformers

    _ALL.loss_func = lambda self: None
    name_of_line = "model_accepts_loss_kwargs"

    def set_(self: Any, name: str, value: Any) -> None:
        if name != name_of_line or value is not True or name not in vars(self):  # the first is the trainer's own
            object.__setattr__(self, name, value)

    trainer: Any = transformers.Trainer
    trainer.__setattr__ = set_


def retokenises() -> None:
    """Rows go through the trainer's own preprocessing."""
    import sys

    if "swift.pipelines.train.sft" in sys.modules:
        from swift.dataset import LazyLLMDataset
        from swift.trainers.mixin import SwiftMixin

        init = SwiftMixin.__init__

        def encoded(self: Any, *arguments: Any, train_dataset: Any, template: Any, **more: Any) -> None:
            lazy = LazyLLMDataset(train_dataset, template.encode)
            init(self, *arguments, train_dataset=lazy, template=template, **more)

        SwiftMixin.__init__ = encoded
    elif "llamafactory.train.tuner" in sys.modules:
        import llamafactory.train.tuner as tuner
        from llamafactory.data.loader import _get_preprocessed_dataset
        from llamafactory.train.sft import workflow

        run_sft = tuner.run_sft

        def again(model_args: Any, data_args: Any, training_args: Any, *more: Any) -> None:
            rows = workflow.get_dataset()["train_dataset"]

            def get(template: Any, *_: Any, stage: str, **module: Any) -> Any:
                made = _get_preprocessed_dataset(rows, data_args, training_args, stage, template=template, **module)
                return {"train_dataset": made}

            workflow.get_dataset = get
            run_sft(model_args, data_args, training_args, *more)

        tuner.run_sft = again
    elif "axolotl.train" in sys.modules:
        from types import SimpleNamespace

        import axolotl_packs
        from axolotl.datasets import TokenizedPromptDataset

        plugin: Any = axolotl_packs.Packs
        load = plugin.load_datasets

        def tokenised(self: Any, cfg: Any, preprocess: bool = False) -> Any:
            meta = load(self, cfg, preprocess)
            strategy: Any = SimpleNamespace(supports_batched=False, tokenize_prompt=dict)
            meta.train_dataset = TokenizedPromptDataset(strategy, meta.train_dataset)
            return meta

        plugin.load_datasets = tokenised
    else:
        as_dataset = _NUMBERED.as_dataset
        _NUMBERED.as_dataset = lambda self, **more: as_dataset(self, **more).map(dict)


def _sample_by(make: Any) -> None:
    import importlib
    import sys

    import transformers

    kinds: list[Any] = [transformers.Trainer]
    for started, module, name in (
        ("llamafactory.train.tuner", "llamafactory.train.sft.trainer", "CustomSeq2SeqTrainer"),
        ("axolotl.train", "axolotl.core.trainers.base", "AxolotlTrainer"),
    ):
        if started in sys.modules:
            kinds.append(getattr(importlib.import_module(module), name))
    for kind in kinds:
        kind._get_train_sampler = lambda self, *_: make(self.train_dataset)


def distributed_sampler() -> None:
    """torch's sampler that knows ranks, inside a loader that deals its share once more."""
    from torch.utils.data import DistributedSampler

    _sample_by(lambda rows: DistributedSampler(rows, shuffle=False))


def pack_sampler() -> None:
    """This package's sampler that knows ranks, on the dataset itself."""
    packs_as_they_are()
    _sample_by(energon_pack.PackSampler)


def packs_as_they_are() -> None:
    """The dataset in place of `as_dataset()`."""
    _NUMBERED.as_dataset = lambda self, **_: self
    _STREAMED.as_dataset = lambda self, **_: self


def lazy() -> None:
    """Packs made while loading, in place of those on disk; settings come from the environment."""
    _in_place_of_packs(energon_pack.LazyPackedDataset)


def stream() -> None:
    _in_place_of_packs(energon_pack.StreamingPackedDataset)


def _in_place_of_packs(kind: Any) -> None:
    import json
    import os

    settings = json.loads(os.environ["LAZY"])
    as_dataset, is_stream = kind.as_dataset, kind is energon_pack.StreamingPackedDataset
    if is_stream:
        kind.as_dataset = lambda self, **_: as_dataset(self)
    _PACKAGE.PackedDataset = lambda dataset, processor, **_: kind([*settings, f"model.processor={processor}"])


def by_sample() -> None:
    """`loss_weight="sample"` in packs and collator, and a trainer that is `weighted`."""
    import energon_pack.trainers.check as checks

    kind, check = _PACKAGE.PackedDataset, checks.check_trainer
    _PACKAGE.PackedDataset = lambda *given: kind(*given, loss_weight="sample")
    _ALL.collator = lambda self, model: Collator(self, model, weights=True)
    checking: Any = checks
    checking.check_trainer = lambda trainer: check(energon_pack.weighted(trainer))
