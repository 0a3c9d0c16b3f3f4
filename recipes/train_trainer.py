"""Training with transformers.Trainer on packs: loss, accumulation and ranks as for the same samples unpacked.

    pip install accelerate
    python recipes/train_trainer.py packed/demo --processor packed/.cache/demo/v1/processor --output out
    torchrun --nproc-per-node 2 recipes/train_trainer.py packed/demo --processor FOLDER --output out
    python recipes/train_trainer.py --lazy +model=qwen2_5_vl packing.max_token_len=2048 --output out

With `--lazy` or `--streaming` nothing is packed before: what follows are settings as of `python -m energon_pack`.
Without `--model` it trains the tiny random Qwen2.5-VL of train_tiny.py.
What to take over is `PackedTrainer`:

- The loader is Energon's own, or one of online_data.py, from `get_train_dataloader`. Accelerate never prepares it: it
  would cut each batch to its first rows (`dispatch_batches`, its default for an IterableDataset), or have each rank
  skip the packs of the others, though they have been dealt out already. Columns are not removed either, as they are of
  a `train_dataset`.
- Losses are divided by what all ranks and all accumulated packs train together, in tokens or by `--loss-weight`.
- Beside each checkpoint of the Trainer lies the state of each rank's loader: the samples after `--resume` are those of
  a run that was never stopped, also with other numbers of ranks and workers.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
import transformers
from megatron.energon import WorkerConfig
from online_data import LazyLoader, StreamLoader
from packed_data import TrainLoader, saved_states, train_loader, val_loader
from train_tiny import evaluate, model_of

from energon_pack import (
    LazyPackedDataset,
    PackedBatch,
    PackedTaskEncoder,
    PackEncoder,
    StreamingPackedDataset,
    guard,
    prepare_torchvision,
    total_weight,
    touch_vision,
    weighted_loss,
)

Loader = TrainLoader | LazyLoader | StreamLoader
prepare_torchvision()  # a CUDA build of it beside a CPU build of torch stops the import of the Trainer


class PackedTrainer(transformers.Trainer):
    """A Trainer on batches of packs.

    Args:
        loader: packs without end, those of this rank alone.
    """

    def __init__(self, model: Any, args: transformers.TrainingArguments, loader: Loader):
        super().__init__(model, args, callbacks=[LoaderState(loader)])
        self.loader = loader
        self.model_accepts_loss_kwargs = True  # else the Trainer divides by the accumulated packs once more

    def get_train_dataloader(self) -> Any:
        return self.loader

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Nothing: the model was loaded from it. The Trainer takes the names in the file for those in the model."""

    def _get_num_items_in_batch(self, batch_samples: list[PackedBatch], device: Any) -> Any:
        """The weights of all ranks in a step; also in evaluation, of one batch of each rank."""
        total = torch.stack([total_weight(batch) for batch in batch_samples]).sum()
        return self.accelerator.reduce(total.to(device), "sum")

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs.model_inputs(self.model, labels=False))
        share = num_items_in_batch / self.accelerator.num_processes  # DDP takes the mean of the ranks' gradients
        loss = weighted_loss(outputs.logits, inputs, share) + touch_vision(self.model, inputs)
        return (loss, outputs) if return_outputs else loss


class LoaderState(transformers.TrainerCallback):
    """Saves where the loader is beside each checkpoint."""

    def __init__(self, loader: Loader):
        self.loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        torch.save(self.loader.save_state(), folder / f"loader_{args.process_index}.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, nargs="?", help="folder of a packed dataset, or a Metadataset")
    parser.add_argument("--lazy", nargs="+", metavar="SETTING", help="packs planned here: settings of energon_pack")
    parser.add_argument("--streaming", nargs="+", metavar="SETTING", help="packs of a stream: settings as well")
    parser.add_argument("--processor", help="folder or hub id; default: the files that the dataset holds")
    parser.add_argument("--model", help="folder or hub id of a model of transformers; default: tiny and random")
    parser.add_argument("--output", type=Path, required=True, help="folder of checkpoints")
    parser.add_argument("--resume", type=Path, metavar="CHECKPOINT", help="go on from this checkpoint")
    parser.add_argument("--max-steps", type=int, default=30)
    parser.add_argument("--save-every", type=int, default=500, metavar="STEPS")
    parser.add_argument("--accumulate", type=int, default=2, metavar="PACKS", help="of each rank in a step (2)")
    parser.add_argument("--loss-weight", default="token", choices=("token", "sample", "sqrt"))
    parser.add_argument("--lr", type=float, help="(1e-5; 2e-3 for the tiny model)")
    parser.add_argument("--num-workers", type=int, default=0, help="of each rank (0)")
    arguments = parser.parse_args()
    transformers.logging.disable_progress_bar()  # of weights that are read or written in no time
    online = arguments.lazy or arguments.streaming
    if [arguments.dataset, arguments.lazy, arguments.streaming].count(None) != 2:
        parser.error("the folder of a packed dataset, or --lazy with settings, or --streaming with settings")

    settings = transformers.TrainingArguments(
        str(arguments.output),
        max_steps=arguments.max_steps,
        gradient_accumulation_steps=arguments.accumulate,
        learning_rate=arguments.lr or (1e-5 if arguments.model else 2e-3),
        lr_scheduler_type="constant",
        save_steps=arguments.save_every,
        logging_steps=1,
        ddp_find_unused_parameters=False,  # there are none: the vision tower has gradients in every pack
        ignore_data_skip=True,  # the loader's state says where to go on
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),  # else, on a CPU, each rank would train by itself
        report_to="none",
    )
    options: dict[str, Any] = {"layout": "neat", "dummy_image": True, "loss_weight": arguments.loss_weight}
    states = saved_states(lambda rank: arguments.resume / f"loader_{rank}.pt") if arguments.resume else []
    encoder: PackedTaskEncoder | PackEncoder
    if online:
        given = [*online, *([f"model.processor={arguments.processor}"] if arguments.processor else [])]
        packs = (
            LazyPackedDataset(given, **options)
            if arguments.lazy
            else StreamingPackedDataset(given, states=states, **options)
        )
        encoder = packs.encoder
    else:
        encoder = PackedTaskEncoder(arguments.dataset, arguments.processor, **options)
    model = model_of(arguments.resume or arguments.model, encoder)
    guard(model, encoder)  # a model or a batch in which samples would see each other is an error
    worker = WorkerConfig(
        rank=settings.process_index, world_size=settings.world_size, num_workers=arguments.num_workers
    )
    loader: Loader
    if not online:
        loader = train_loader(arguments.dataset, encoder, worker, states, arguments.accumulate)
    elif isinstance(packs, LazyPackedDataset):
        loader = LazyLoader(packs, arguments.num_workers, states, arguments.accumulate)
    else:
        loader = StreamLoader(packs, arguments.num_workers, states)
    trainer = PackedTrainer(model, settings, loader)
    trainer.train(resume_from_checkpoint=arguments.resume and str(arguments.resume))

    val = None if online else val_loader(arguments.dataset, encoder, worker)
    if val is not None:  # ranks may have different numbers of packs: they meet after them
        sums = torch.tensor(evaluate(model, val), dtype=torch.float64, device=model.device)
        loss, weight = trainer.accelerator.reduce(sums, "sum").tolist()
        if worker.rank == 0:
            print(f"validation loss {loss / weight:.3f} over {weight:,.0f} tokens by weight")


if __name__ == "__main__":
    main()
