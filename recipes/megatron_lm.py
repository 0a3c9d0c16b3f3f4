"""Packs in Megatron-LM's multimodal example (examples/multimodal): its dataloader provider.

In the example's train.py, instead of its own `dataloader_provider`, with packed_data.py beside this file:

    from megatron_lm import add_packed_args, train_valid_test_dataloaders_provider

    train_valid_test_dataloaders_provider.is_distributed = True       # each rank calls it
    pretrain(train_valid_test_dataloaders_provider, ..., extra_args_provider=...)   # and add_packed_args(parser)

    --data-path packed/wds-internvl3-4096 --packed-processor FOLDER --dataloader-type external --micro-batch-size 1
    --train-iters 10000 --eval-iters 20 --eval-interval 500 --dataloader-save checkpoints/data
    --calculate-per-token-loss

The example's model (LLaVAModel) puts an image's features in place of one token, and takes tiles of one size: so runs of
feature tokens become one token each here, which fits models with whole tiles (InternVL, LLaVA-1.5) and text.
Lengths in `cu_lengths` stay those with all features, as the example has them. A model that takes every feature token
itself (AIAK's Qwen-VL) wants the batch as layout `mlm` makes it: `--packed-keep-feature-tokens`.

Megatron-LM's trainer needs a GPU: this was run against a stand-in of its interface (tests/test_recipes.py), written
after the sources of its example, and never in a training on GPUs.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from megatron.energon import WorkerConfig, stateless
from megatron.energon.errors import FatalSampleError
from packed_data import Endless, train_loader, val_loader

from energon_pack.batch import PackedBatch
from energon_pack.manifest import read_manifest
from energon_pack.task_encoder import EncodedPack, PackedTaskEncoder


def add_packed_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Arguments beside Megatron's own."""
    group = parser.add_argument_group("energon_pack")
    group.add_argument("--packed-processor", help="folder or hub id; default: the model's published one")
    group.add_argument("--packed-val", help="another packed dataset for validation; default: the part val")
    group.add_argument("--packed-keep-feature-tokens", action="store_true", help="for models other than LLaVAModel")
    return parser


class OneTokenPerImage(PackedTaskEncoder):
    """Batches of layout `mlm` as LLaVAModel takes them."""

    @stateless
    def batch(self, samples: list[EncodedPack]) -> PackedBatch:
        batch = super().batch(samples)
        names = {**self.template.rules.media_tokens, **self.template.rules.feature_tokens}
        try:
            return one_token_per_image(batch, self.template.token_id(names.get("image", "")))
        except ValueError as error:  # any other error is only logged by Energon
            raise FatalSampleError(f"{', '.join(batch['__key__'])}: {error}") from None


def one_token_per_image(batch: PackedBatch, image_token: int | None) -> PackedBatch:
    """Each run of an image's feature tokens as one token, with its number of tiles.

    Images next to each other become one with the tiles of both: what takes their places is the same.

    Raises:
        ValueError: videos, or images that are not made of tiles of one size.
    """
    if "pixel_values_videos" in batch:
        raise ValueError("LLaVAModel takes no videos beside images")
    tokens, images = batch["tokens"][0], batch["imgs"]
    is_image = tokens == image_token
    if not is_image.any():
        return batch
    if images.dim() != 4:
        raise ValueError(f"images are no tiles [tiles, 3, height, width] but {list(images.shape)}: not for LLaVAModel")
    follows = torch.cat([torch.tensor([False]), is_image[:-1]])
    runs = torch.bincount((is_image & ~follows).cumsum(0)[is_image])[1:]  # tokens of each run
    per_tile, rest = divmod(int(is_image.sum()), len(images))
    if rest or (runs % per_tile).any():
        raise ValueError(f"images of {runs.tolist()} tokens are not made of {len(images)} equal tiles")
    keep = ~(is_image & follows)
    batch["tokens"] = tokens[keep].unsqueeze(0)
    batch["labels"] = batch["labels"][:, torch.cat([keep, torch.tensor([True])])]
    batch["num_tiles"] = (runs // per_tile).int()
    return batch


def train_valid_test_dataloaders_provider(
    train_val_test_num_samples: list[int], task_encoder: Any = None
) -> tuple[Any, Any, None]:
    """Loaders of this rank; none on ranks to which the example broadcasts the data.

    Raises:
        ValueError: names the argument that packs do not go with, and what to set.
    """
    from megatron.core import parallel_state
    from megatron.training import get_args

    args = get_args()
    path = args.data_path[0] if isinstance(args.data_path, list) else args.data_path
    check(args, read_manifest(Path(path)))
    num_stages = parallel_state.get_pipeline_model_parallel_world_size()
    is_end = parallel_state.get_pipeline_model_parallel_rank() in (0, num_stages - 1)
    if parallel_state.get_tensor_model_parallel_rank() > 0 or not is_end:
        return None, None, None
    if task_encoder is None:
        kind = PackedTaskEncoder if args.packed_keep_feature_tokens else OneTokenPerImage
        pad_to = "max_token_len" if num_stages > 1 else "longest"
        task_encoder = kind(path, args.packed_processor, layout="mlm", pad_to=pad_to)
    worker = WorkerConfig(
        rank=parallel_state.get_data_parallel_rank(),
        world_size=parallel_state.get_data_parallel_world_size(),
        num_workers=args.num_workers,
        data_parallel_group=parallel_state.get_data_parallel_group(),
    )
    train = Endless(train_loader(path, task_encoder, worker))
    if args.load and args.dataloader_save and args.iteration > 0:
        train.restore_state(_saved_state(args, worker.rank))
    val = val_loader(path, task_encoder, worker, args.packed_val)
    return train, None if val is None else [Endless(val)], None


def _saved_state(args: Any, rank: int) -> Any:
    """Where this rank was in the data; written by Megatron's checkpointing with `--dataloader-save`."""
    from megatron.training.checkpointing import get_checkpoint_name

    name = f"train_dataloader_dprank{rank:03d}.pt"
    file = get_checkpoint_name(args.dataloader_save, args.iteration, pipeline_rank=0, basename=name)
    return torch.load(file, map_location="cpu", weights_only=False)["dataloader_state_dict"]


def check(args: Any, packed: dict[str, Any]) -> None:
    """What the example does not ask.

    Raises:
        ValueError: see above.
    """
    length = getattr(args, "decoder_seq_length", None) or args.seq_length
    if args.dataloader_type != "external":
        raise ValueError(f"--dataloader-type {args.dataloader_type}: packs come from Energon; set external")
    if args.micro_batch_size != 1:
        raise ValueError(f"--micro-batch-size {args.micro_batch_size}: a pack is a micro-batch of its own; set 1")
    if length < packed["max_token_len"]:
        raise ValueError(
            f"--decoder-seq-length {length} is less than the {packed['max_token_len']} tokens of a pack: raise it,"
            " or pack with a smaller packing.max_token_len"
        )
    if args.context_parallel_size > 1 or args.sequence_parallel:
        raise ValueError(
            f"--context-parallel-size {args.context_parallel_size} --sequence-parallel {args.sequence_parallel}: the"
            " example then makes boundaries of its own, of the whole row, and members would see each other; set 1 and"
            " no sequence parallelism"
        )
    if not args.calculate_per_token_loss:
        raise ValueError("packs have unequal numbers of trained tokens: set --calculate-per-token-loss")
