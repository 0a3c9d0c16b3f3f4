"""Packs in Megatron-LM's multimodal example (examples/multimodal): its dataloader provider.

In the example's train.py, instead of its own `dataloader_provider`, with packed_data.py beside this file:

    from megatron_lm import add_packed_args, train_valid_test_dataloaders_provider

    train_valid_test_dataloaders_provider.is_distributed = True       # each rank calls it
    pretrain(train_valid_test_dataloaders_provider, ..., extra_args_provider=...)   # and add_packed_args(parser)

    --data-path packed/wds-internvl3-neat-4096 --packed-processor FOLDER --dataloader-type external --micro-batch-size 1
    --train-iters 10000 --eval-iters 20 --eval-interval 500 --dataloader-save checkpoints/data
    --calculate-per-token-loss

The example's model (LLaVAModel) puts an image's features in place of one token, and takes tiles of one size: so runs of
feature tokens become one token each here, which fits models with whole tiles (InternVL, LLaVA-1.5) and text. That token
is `<image>` of Megatron's own tokenizer: `--special-tokens "<image>"`, and a `--tokenizer-model` with the processor's
ids. Lengths in `cu_lengths` stay those with all features, as the example has them. A model that takes every feature
token itself (AIAK's Qwen-VL) wants the batch as layout `mlm` makes it: `--packed-keep-feature-tokens`.

Megatron-LM's trainer needs a GPU: this was run against a stand-in of its interface (tests/test_recipes.py), written
after the sources of its example, and never in a training on GPUs.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from megatron.energon import WorkerConfig, stateless
from megatron.energon.errors import FatalSampleError
from packed_data import Endless, longest_pack, parts, saved_states, train_loader, val_loader

from energon_pack import EncodedPack, PackedBatch, PackedTaskEncoder, read_manifest

IMAGE_TOKEN = "<image>"  # as in megatron.core.models.multimodal.llava_model


def add_packed_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Arguments beside Megatron's own."""
    group = parser.add_argument_group("energon_pack")
    group.add_argument("--packed-processor", help="folder or hub id; default: the files that the dataset holds")
    group.add_argument("--packed-val", help="another packed dataset for validation; default: the part val")
    group.add_argument("--packed-keep-feature-tokens", action="store_true", help="for models other than LLaVAModel")
    return parser


class OneTokenPerImage(PackedTaskEncoder):
    """Batches of layout `mlm` as LLaVAModel takes them.

    Args:
        image_token: the id that the model looks for; see `megatrons_image_token`.
    """

    def __init__(self, *dataset: Any, image_token: int, **settings: Any):
        super().__init__(*dataset, **settings)
        self.image_token = image_token

    @stateless
    def batch(self, samples: list[EncodedPack]) -> PackedBatch:
        batch = super().batch(samples)
        try:
            return one_token_per_image(batch, self.rules.feature_token_id("image"), self.image_token)
        except ValueError as error:  # any other error is only logged by Energon
            raise FatalSampleError(f"{', '.join(batch['__key__'])}: {error}") from None


def one_token_per_image(batch: PackedBatch, feature_token: int | None, image_token: int) -> PackedBatch:
    """Each run of an image's feature tokens as one image token, with its number of tiles.

    Images next to each other become one with the tiles of both: what takes their places is the same.

    Raises:
        ValueError: videos, images that are not made of tiles of one size, or an image token that means something else.
    """
    if "pixel_values_videos" in batch:
        raise ValueError("LLaVAModel takes no videos beside images")
    tokens, images = batch["tokens"][0], batch["imgs"]
    is_image = tokens == feature_token
    if ((tokens == image_token) & ~is_image).any():
        raise ValueError(
            f"{image_token} is Megatron's {IMAGE_TOKEN}, and another token of the processor's: the ids of"
            " --tokenizer-model have to be those of --packed-processor"
        )
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
    batch["tokens"] = torch.where(is_image, image_token, tokens)[keep].unsqueeze(0)
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
    paths = args.data_path if isinstance(args.data_path, list) else [args.data_path]
    if len(paths) > 1:
        raise ValueError(f"--data-path {' '.join(paths)}: one packed dataset, or the YAML of a blend of several")
    (path,) = paths
    packed = read_manifest(Path(path))
    check(args, packed)
    if args.eval_iters > 0 and args.packed_val is None and "val" not in parts(path):
        raise ValueError(
            f"--eval-iters {args.eval_iters}, but {path} has no part val: set --eval-iters 0 or --packed-val, or pack"
            " with output.splits.val"
        )
    num_stages = parallel_state.get_pipeline_model_parallel_world_size()
    is_end = parallel_state.get_pipeline_model_parallel_rank() in (0, num_stages - 1)
    if parallel_state.get_tensor_model_parallel_rank() > 0 or not is_end:
        return None, None, None
    if task_encoder is None:
        width = [longest_pack(packed, args.packed_val)] if num_stages > 1 else "longest"
        form: dict[str, Any] = {"layout": "mlm", "pad_to": width}
        if args.packed_keep_feature_tokens:
            task_encoder = PackedTaskEncoder(path, args.packed_processor, **form)
        else:
            task_encoder = OneTokenPerImage(path, args.packed_processor, image_token=megatrons_image_token(), **form)
    worker = WorkerConfig(
        rank=parallel_state.get_data_parallel_rank(),
        world_size=parallel_state.get_data_parallel_world_size(),
        num_workers=args.num_workers,
        data_parallel_group=parallel_state.get_data_parallel_group(),
    )
    goes_on = args.load and args.dataloader_save and args.iteration > 0
    states = saved_states(partial(_state_file, args), "dataloader_state_dict") if goes_on else []
    micro_batches = (getattr(args, "global_batch_size", None) or 0) // worker.world_size or None
    train = train_loader(path, task_encoder, worker, states, micro_batches)
    val = val_loader(path, task_encoder, worker, args.packed_val)
    return train, None if val is None else [Endless(val)], None


def megatrons_image_token() -> int:
    """The id by which the example's model finds images: `image_token_index` of examples/multimodal/model.py.

    Raises:
        ValueError: the tokenizer has no such token.
    """
    from megatron.training import get_tokenizer

    found = get_tokenizer().convert_tokens_to_ids(IMAGE_TOKEN)
    if found is None:
        raise ValueError(f'Megatron\'s tokenizer has no {IMAGE_TOKEN}: set --special-tokens "{IMAGE_TOKEN}"')
    return int(found)


def _state_file(args: Any, rank: int) -> Path:
    """Where a rank was in the data; written by Megatron's checkpointing with `--dataloader-save`.

    Its folder is named after ranks of the model, and with expert parallelism not by all versions alike; its own name
    is there once.

    Raises:
        FileNotFoundError: nothing was saved.
        ValueError: runs with different parallelism saved it.
    """
    folder, name = Path(args.dataloader_save, f"iter_{args.iteration:07d}"), f"train_dataloader_dprank{rank:03d}.pt"
    found = sorted(folder.glob(f"*/{name}"))
    if not found:
        raise FileNotFoundError(f"no {folder}/*/{name}: --dataloader-save is not the folder of the run to go on with")
    if len(found) > 1:
        raise ValueError(f"{' and '.join(map(str, found))} are both of this rank: remove that of the older run")
    return found[0]


def check(args: Any, packed: dict[str, Any]) -> None:
    """What the example does not ask.

    Raises:
        ValueError: see above.
    """
    if args.dataloader_type != "external":
        raise ValueError(f"--dataloader-type {args.dataloader_type}: packs come from Energon; set external")
    if args.micro_batch_size != 1:
        raise ValueError(f"--micro-batch-size {args.micro_batch_size}: a pack is a micro-batch of its own; set 1")
    length = getattr(args, "decoder_seq_length", None) or args.seq_length
    if length < (longest := longest_pack(packed, args.packed_val)):
        raise ValueError(
            f"--decoder-seq-length {length} is less than the {longest} tokens of a pack: raise it, or pack with a"
            " smaller packing.max_token_len, or packing.hard_limit"
        )
    if args.pipeline_model_parallel_size > 1 and length > longest:
        raise ValueError(
            f"--decoder-seq-length {length}: with pipeline stages the model pads to it, and batches have"
            f" {longest}, as they were packed: set that"
        )
    if args.context_parallel_size > 1 or args.sequence_parallel:
        raise ValueError(
            f"--context-parallel-size {args.context_parallel_size} --sequence-parallel {args.sequence_parallel}: the"
            " example then makes boundaries of its own, of the whole row, and members would see each other; set 1 and"
            " no sequence parallelism"
        )
    if not args.calculate_per_token_loss:
        raise ValueError("packs have unequal numbers of trained tokens: set --calculate-per-token-loss")
