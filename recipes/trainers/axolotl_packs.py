"""A plugin of axolotl that trains on packs: `plugins: [axolotl_packs.Packs]` in its YAML, beside

datasets: [{path: packed/demo, type: chat_template}]
remove_unused_columns: false    # the columns name packs
curriculum_sampling: true       # keeps their order: even steps
sample_packing: false
micro_batch_size: 1

PYTHONPATH=recipes/trainers axolotl train config.yaml
"""

from axolotl.common.datasets import TrainDatasetMeta
from axolotl.integrations.base import BasePlugin

from energon_pack import PackedDataset, check_trainer, guard


class Packs(BasePlugin):
    """Reads packs in place of the datasets of the YAML."""

    def load_datasets(self, cfg, preprocess=False):  # type: ignore[no-untyped-def]
        processor = cfg.processor_config or cfg.base_model  # a checkpoint of axolotl lacks the image settings
        self.packs = PackedDataset(cfg.datasets[0]["path"], processor)  # or LazyPackedDataset([…])
        rows = self.packs.as_dataset(micro_batches=cfg.gradient_accumulation_steps)
        return TrainDatasetMeta(rows, None, cfg.max_steps)

    def post_trainer_create(self, cfg, trainer):  # type: ignore[no-untyped-def]
        guard(trainer.model, self.packs.encoder)
        trainer.data_collator = self.packs.collator(trainer.model)
        trainer.compute_loss_func = self.packs.loss_func()  # the mean over all trained tokens of a step
        trainer.args.average_tokens_across_devices = True  # over all ranks; axolotl always turns this off
        print(check_trainer(trainer))
