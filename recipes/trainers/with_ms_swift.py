"""ms-swift's SFT pipeline on packs: packs replace its dataset.

python recipes/trainers/with_ms_swift.py packed/demo --model MODEL --max_steps 20 --learning_rate 1e-5
"""

import sys

from swift.pipelines.train.sft import SwiftSft

from energon_pack import PackedDataset, check_trainer, guard


class PackedSft(SwiftSft):
    """Reads packs; `--dataset` is given only because the pipeline requires it."""

    def _prepare_dataset(self):  # type: ignore[no-untyped-def]
        packs = PackedDataset(sys.argv[1], self.args.model)  # or LazyPackedDataset([…])
        guard(self.model, packs.encoder)
        self.template.data_collator = packs.collator(self.model)
        return [packs.as_dataset(micro_batches=self.args.gradient_accumulation_steps), None]

    def train(self, trainer):  # type: ignore[no-untyped-def]
        self.model.config.get_text_config().use_cache = False  # packs need this, and ms-swift drops it from batches
        self.template.register_post_encode_hook([self.model])  # as in training: the hook rewrites each batch
        print(check_trainer(trainer))
        self.template.remove_post_encode_hook()
        return super().train(trainer)


if __name__ == "__main__":
    fixed = ["--dataset", "none", "--split_dataset_ratio", "0", "--per_device_train_batch_size", "1"]
    PackedSft([*fixed, "--train_dataloader_shuffle", "false", *sys.argv[2:]]).main()
