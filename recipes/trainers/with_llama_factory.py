"""LLaMA-Factory's SFT workflow on packs: this recipe replaces its dataset and its collator.

python recipes/trainers/with_llama_factory.py packed/demo train.yaml
"""

import sys
from pathlib import Path

import llamafactory.train.sft.workflow as workflow
import yaml
from llamafactory.train.tuner import run_exp

from energon_pack import PackedDataset, check_trainer, guard

dataset, settings = sys.argv[1], yaml.safe_load(Path(sys.argv[2]).read_text())
packs = PackedDataset(dataset, settings["model_name_or_path"])  # or LazyPackedDataset([…])
rows = packs.as_dataset(micro_batches=settings.get("gradient_accumulation_steps", 8))


class Trainer(workflow.CustomSeq2SeqTrainer):
    """Their trainer, with the loss of packs."""

    def train(self, *arguments, **more):  # type: ignore[no-untyped-def]
        guard(self.model, packs.encoder)
        self.data_collator, self.compute_loss_func = packs.collator(self.model), packs.loss_func()
        print(check_trainer(self))
        return super().train(*arguments, **more)


workflow.get_dataset = lambda *_, **__: {"train_dataset": rows}
workflow.CustomSeq2SeqTrainer = Trainer
run_exp({"stage": "sft", "dataset": "none", "disable_shuffling": True, "remove_unused_columns": False, **settings})
