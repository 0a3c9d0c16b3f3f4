"""torchtitan on packs of text: a loader that replaces its own, and a configuration with this loader.

PYTHONPATH=recipes/trainers torchrun --nproc-per-node 8 -m torchtitan.train --module torchtitan_packs --config packs \
    --hf_assets_path MODEL --dataloader.dataset_path packed/demo --training.seq_len 4096
"""

from dataclasses import dataclass

from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.models.qwen3 import config_registry, model_registry

from energon_pack import PackedDataset, PackSampler, plain_batch


class PackLoader(ParallelAwareDataloader):
    """Packs of one width, in an order with even steps, epoch after epoch without end."""

    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        """`dataset_path` is the path of the packs."""

    def __init__(self, config, *, dp_rank, dp_world_size, tokenizer, seq_len, local_batch_size, **settings):  # type: ignore
        packs = PackedDataset(
            config.dataset_path, tokenizer.tokenizer_path, layout="neat", labels="shifted", pad_to="max_token_len"
        )
        if packs.config.packing.max_token_len != seq_len:
            raise ValueError(f"training.seq_len={seq_len}: packs have {packs.config.packing.max_token_len} tokens")

        def collate(rows):  # type: ignore[no-untyped-def]
            batch = plain_batch(packs, rows, "torchtitan")
            if batch["media_keys"]:
                raise ValueError(f"{batch['__key__']}: these packs have media, and torchtitan takes texts alone")
            positions = batch["position_ids"].view(-1, *batch["input_ids"].shape)[0]  # texts count alike in all rows
            return {"input": batch["input_ids"], "positions": positions}, batch["labels"]

        settings |= {"sampler": PackSampler(packs, dp_rank, dp_world_size), "num_workers": config.num_workers}
        super().__init__(packs, dp_rank, dp_world_size, batch_size=local_batch_size, collate_fn=collate, **settings)

    def __iter__(self):  # type: ignore[no-untyped-def]
        while True:
            yield from super().__iter__()


def packs():  # type: ignore[no-untyped-def]
    config = config_registry.qwen3_0_6b()
    config.model_spec = model_registry("0.6B", attn_backend="flex")  # "sdpa" would not keep members apart
    config.dataloader = PackLoader.Config()
    return config
