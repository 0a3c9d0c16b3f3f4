"""verl's SFT trainer on packs, of text or with images and videos; the command line takes verl's own settings.

torchrun --nproc-per-node 8 recipes/trainers/with_verl.py data.train_files=packed/demo model.path=MODEL \
    data.train_batch_size=64 data.max_token_len_per_gpu=8192
"""

import torch.distributed as dist
import verl.trainer.sft_trainer as theirs

from energon_pack import PackedDataset, plain_batch


class Packs:
    """Makes each pack one sample of verl: positions start again with each member, which keeps members apart."""

    def __init__(self, parquet_files, tokenizer, config, processor=None, max_samples=-1):  # type: ignore[no-untyped-def]
        self.packs = PackedDataset(parquet_files, tokenizer.name_or_path, layout="neat")  # or LazyPackedDataset([…])
        self.rows = self.packs.as_dataset(micro_batches=config.train_batch_size // dist.get_world_size())

    def __len__(self):  # type: ignore[no-untyped-def]
        return len(self.rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        row = self.rows[index]
        batch = plain_batch(self.packs, [self.packs[row["epoch"], row["pack"]]], "verl")
        text = {"input_ids": batch["input_ids"][0], "position_ids": batch["position_ids"][..., 0, :]}
        media = {name: batch[name] for name in batch.keys() & {*batch.media_keys} - {"second_per_grid_ts"}}
        return {**text, "loss_mask": (batch["labels"][0] != -100).long(), "multi_modal_inputs": media}


class Trainer(theirs.SFTTrainer):
    """Their trainer without shuffling: it keeps the order of packs, in which steps are even."""

    def _build_dataloader(self):  # type: ignore[no-untyped-def]
        if not self.config.model.use_remove_padding:
            raise ValueError("its mask of padding would let members see each other: model.use_remove_padding=True")
        super()._build_dataloader()
        self.train_sampler.shuffle = False


theirs.SFTTrainer, theirs.MultiTurnSFTDataset = Trainer, Packs
theirs.main()
