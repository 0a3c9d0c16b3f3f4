"""Train a tiny model on packs of point clouds: `python cloud_model.py DATASET PROCESSOR` prints what a test asks."""

import json
import sys
from typing import Any

import torch
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset

from energon_pack import PackedTaskEncoder, guard, prepare_torchvision, train_arguments

prepare_torchvision()
import transformers as tf  # noqa: E402  # after torchvision is prepared


class CloudConfig(tf.Qwen2Config):
    model_type = "cloud_tiny"


class CloudModel(tf.Qwen2ForCausalLM):
    """A Qwen2 in which each piece of a cloud is a token: the mean of its points, projected."""

    config_class = CloudConfig

    def __init__(self, config: Any):
        super().__init__(config)
        self.look = torch.nn.Linear(3, config.hidden_size)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, input_ids: Any = None, cloud_values: Any = None, cloud_sizes: Any = None, **inputs: Any) -> Any:
        embeds = self.get_input_embeddings()(input_ids)
        if cloud_values is not None:
            assert int(cloud_sizes.sum()) == len(cloud_values)
            seen = self.look(cloud_values).mean(1)
            seen = seen + self.config.leak * seen.mean(0)  # not 0: each cloud is in all others
            embeds = embeds.masked_scatter((input_ids == self.config.cloud_token_id)[..., None], seen)
        return super().forward(inputs_embeds=embeds, **inputs)


def main(dataset: str, processor: str) -> None:
    encoder = PackedTaskEncoder(dataset, processor=processor, trust_remote_code=True)
    settings: dict[str, Any] = {"cloud_token_id": encoder.rules.token_id("<cloud>"), "leak": 0.0}
    config = CloudConfig(
        vocab_size=encoder.rules.num_ids, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2, **settings,
    )  # fmt: skip
    torch.manual_seed(0)
    model = CloudModel(config)
    finding = guard(model, encoder).proofs[-1].finding
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    loader = get_savable_loader(get_train_dataset(dataset, **train_arguments(dataset, encoder, worker)))
    optimizer, losses = torch.optim.AdamW(model.parameters(), 3e-3), []
    for _, batch in zip(range(20), loader, strict=False):
        loss = model(**batch.model_inputs(model)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    config.leak = 1.0
    leaky = CloudModel(config)
    try:
        guard(leaky, encoder)
        for _, batch in zip(range(4), loader, strict=False):
            leaky(**batch.model_inputs(leaky))
        caught = ""
    except ValueError as error:
        caught = str(error)
    print(json.dumps({"finding": str(finding), "losses": losses, "caught": caught}))


if __name__ == "__main__":
    main(*sys.argv[1:])
