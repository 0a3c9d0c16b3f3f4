"""Lightning on packs, of text or with images and videos.

python recipes/trainers/with_lightning.py packed/demo MODEL --max_steps 20 --accumulate 2 --learning_rate 1e-5
"""

from argparse import ArgumentParser

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM

from energon_pack import PackedDataset, guard

parser = ArgumentParser(description=__doc__)
parser.add_argument("dataset")
parser.add_argument("model")
for name, default in (("accumulate", 1), ("max_steps", 20), ("save_steps", 10), ("learning_rate", 1e-5)):
    parser.add_argument(f"--{name}", type=type(default), default=default)
parser.add_argument("--ckpt_path")
parser.add_argument("--accelerator", default="auto")
parser.add_argument("--devices", default="auto")
options = parser.parse_args()


class Packed(LightningModule):
    """Takes a whole step at a time: the loss is divided by the trained tokens of all packs and ranks of the step."""

    automatic_optimization = False  # else Lightning takes the mean of the packs' means

    def __init__(self):  # type: ignore[no-untyped-def]
        super().__init__()
        config = AutoConfig.from_pretrained(options.model)
        has_media = hasattr(config, "vision_config") or hasattr(config, "audio_config")
        kind = AutoModelForMultimodalLM if has_media else AutoModelForCausalLM
        self.model = kind.from_pretrained(options.model)
        self.packs = PackedDataset(options.dataset, options.model)  # or LazyPackedDataset([…])
        guard(self.model, self.packs.encoder)

    def train_dataloader(self):  # type: ignore[no-untyped-def]
        num, collate = options.accumulate, self.packs.collator(self.model)
        rows = self.packs.as_dataset(micro_batches=num)  # Lightning deals rows to ranks in this order
        return StatefulDataLoader(rows, batch_size=num, collate_fn=lambda step: [collate([row]) for row in step])

    def configure_optimizers(self):  # type: ignore[no-untyped-def]
        return torch.optim.AdamW(self.parameters(), options.learning_rate)

    def training_step(self, batches, _):  # type: ignore[no-untyped-def]
        trained = torch.stack([(batch["labels"] != -100).sum() for batch in batches]).sum()
        total = self.all_gather(trained).float().mean()  # DDP takes the mean over ranks
        losses = []
        for batch in batches:
            labels = batch.pop("labels")
            losses.append(self.packs.loss_func()(self.model(**batch), labels, total))
            self.manual_backward(losses[-1])
        self.optimizers().step()
        self.optimizers().zero_grad()
        self.log("loss", torch.stack(losses).sum().detach(), prog_bar=True, sync_dist=True)


trainer = Trainer(
    accelerator=options.accelerator,
    devices=options.devices,
    max_steps=options.max_steps,
    strategy="ddp_find_unused_parameters_true",  # packs of text give the vision tower no gradients
    callbacks=[ModelCheckpoint("out", filename="{step}", every_n_train_steps=options.save_steps, save_top_k=-1)],
)
trainer.fit(Packed(), ckpt_path=options.ckpt_path)  # type: ignore[no-untyped-call]
