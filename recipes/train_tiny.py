"""Train a tiny random Qwen2.5-VL on packs, on a CPU, or a model that hears on sounds: plain PyTorch, no trainer.

    python -m energon_pack +model=qwen2_5_vl packing.max_token_len=2048 output.name=demo
    python recipes/train_tiny.py packed/demo --processor packed/.cache/demo/v1/processor

Prints the loss, tokens a second (tokens of samples, not of padding), the share of padding, and the loss on the part
`val` or on the dataset of `--val`; then the same for the same samples unpacked: as many a step, each a row of its own,
padded to the longest. Any model of transformers trains in the same way: what is needed of a batch is
`model(**batch.model_inputs(model, labels=False))`, and `weighted_loss`, which knows the weights of samples and turns.
"""

import argparse
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from megatron.energon import WorkerConfig, stateless
from packed_data import train_loader, val_loader

from energon_pack import (
    EncodedPack,
    PackedBatch,
    PackedTaskEncoder,
    PackEncoder,
    guard,
    prepare_torchvision,
    total_weight,
    weighted_loss,
)

_VISION: dict[str, Any] = {"depth": 1, "hidden_size": 64, "out_hidden_size": 128, "intermediate_size": 128}
_VISION |= {"num_heads": 4, "fullatt_block_indexes": [0]}


class Unpacked(PackedTaskEncoder):
    """The members of a pack as rows of their own: what training looks like without packing."""

    @stateless
    def batch(self, samples: list[EncodedPack]) -> PackedBatch:
        (pack,) = samples
        rows = [EncodedPack.derive_from(pack, members=[member], media={}, dropped=[]) for member in pack.members]
        rows[0].media = pack.media  # all of them, in the order of the rows
        batch: PackedBatch = super().batch(rows)
        return batch


def model_of(name: str | Path | None, encoder: PackedTaskEncoder | PackEncoder, attention: str = "sdpa") -> Any:
    """The model of a folder or hub id, of text or with media; without a name the tiny random one."""
    if name is None:
        return tiny_model(encoder, attention)
    prepare_torchvision()
    import transformers

    config = transformers.AutoConfig.from_pretrained(name)
    has_media = any(hasattr(config, f"{part}_config") for part in ("vision", "audio", "text", "thinker"))
    kind = transformers.AutoModelForMultimodalLM if has_media else transformers.AutoModelForCausalLM
    return kind.from_pretrained(name, attn_implementation=attention)


def tiny_model(encoder: PackedTaskEncoder | PackEncoder, attention: str = "sdpa") -> Any:
    """A Qwen2.5-VL of four layers that knows the template's tokens; where the template takes
    sounds, a Qwen2-Audio, or a Qwen2.5-Omni if it takes images, too.
    """
    prepare_torchvision()  # a CUDA build of it beside a CPU build of torch stops the import of transformers
    import transformers

    text: dict[str, Any] = {
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    text |= {"num_key_value_heads": 2, "vocab_size": encoder.rules.num_ids, "pad_token_id": 0}
    text |= {"bos_token_id": None, "eos_token_id": None}  # it is never asked to write
    if "audio" in encoder.rules.media_tokens:
        return _tiny_hearing(encoder, text, attention)
    kinds: dict[str, Any] = {
        f"{kind}_token_id": encoder.rules.token_id(f"<|{kind}_pad|>") for kind in ("image", "video")
    }
    config = transformers.Qwen2_5_VLConfig(
        text_config=_with_rows(text), vision_config={**_VISION, "tokens_per_second": 2}, **kinds
    )
    torch.manual_seed(0)
    return transformers.AutoModelForImageTextToText.from_config(config, attn_implementation=attention).train()


def _with_rows(text: dict[str, Any]) -> dict[str, Any]:
    """Settings of a language model with positions of three rows."""
    return {**text, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}}


def _tiny_hearing(encoder: PackedTaskEncoder | PackEncoder, text: dict[str, Any], attention: str) -> Any:
    """A Qwen2-Audio, or the thinker of a Qwen2.5-Omni: spectrograms have as many bins as their processor makes."""
    import transformers

    tokens = {kind: encoder.rules.token_id(token) for kind, token in encoder.rules.media_tokens.items()}
    audio: dict[str, Any] = {"encoder_layers": 1, "encoder_attention_heads": 4, "encoder_ffn_dim": 128, "d_model": 64}
    audio["num_mel_bins"] = encoder.rules.settings["audio"]["feature_size"]
    config: Any
    make: Any = transformers.Qwen2AudioForConditionalGeneration
    if "image" in tokens:
        make = transformers.Qwen2_5OmniThinkerForConditionalGeneration
        ids = {f"{kind}_token_id": token for kind, token in tokens.items()}
        for kind in ("vision", "audio"):
            ids |= {f"{kind}_start_token_id": encoder.rules.token_id(f"<|{kind}_bos|>")}
            ids |= {f"{kind}_end_token_id": encoder.rules.token_id(f"<|{kind}_eos|>")}
        audio["output_dim"] = 128
        config = make.config_class(text_config=_with_rows(text), vision_config=_VISION, audio_config=audio, **ids)
    else:
        text = {**text, "model_type": "qwen2"}
        config = make.config_class(text_config=text, audio_config=audio, audio_token_index=tokens["audio"])
    torch.manual_seed(0)
    return make._from_config(config, attn_implementation=attention).train()


def loss_of(model: Any, batch: PackedBatch) -> torch.Tensor:
    """The mean loss of a batch's trained tokens, by their weights."""
    return weighted_loss(model(**batch.model_inputs(model, labels=False)).logits, batch)


@torch.no_grad()
def evaluate(model: Any, batches: Iterable[PackedBatch]) -> tuple[float, float]:
    """The sum of the loss over all trained tokens of the batches by their weights, and that of the weights: without
    any, the number of these tokens.
    """
    loss = weight = 0.0
    model.eval()
    for batch in batches:
        of_batch = float(total_weight(batch))
        loss += float(loss_of(model, batch.to(model.device))) * of_batch
        weight += of_batch
    model.train()
    return loss, weight


def train(name: str, stream: Iterator[PackedBatch], model: Any, max_steps: int) -> tuple[float, list[float]]:
    """Some steps; tokens a second of the model alone, and the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    losses: list[float] = []
    seconds = 0.0
    num_tokens = num_places = 0
    for step in range(max_steps):
        batch = next(stream)
        start = time.perf_counter()
        loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds += time.perf_counter() - start
        num_tokens += int((batch["doc_ids"] > 0).sum())
        num_places += batch["doc_ids"].numel()
        losses.append(float(loss.detach()))
        if step % 10 == 0 or step == max_steps - 1:
            print(f"{name}  step {step:3d}  loss {losses[-1]:.3f}", flush=True)
    print(f"{name}: {num_tokens / seconds:,.0f} tokens/s, {1 - num_tokens / num_places:.1%} padding, {max_steps} steps")
    return num_tokens / seconds, losses


def fell(losses: list[float]) -> bool:
    """Whether the last losses, five at most, are lower than as many of the first; no loss is both."""
    num = min(5, len(losses) // 2)
    return num == 0 or sum(losses[-num:]) < sum(losses[:num])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, help="folder of a packed dataset, or a Metadataset")
    parser.add_argument("--processor", help="folder or hub id; default: the files that the dataset holds")
    parser.add_argument("--val", type=Path, help="another packed dataset for validation; default: the part val")
    parser.add_argument("--max-steps", type=int, default=30)
    parser.add_argument("--num-workers", type=int, default=0)
    arguments = parser.parse_args()

    worker = WorkerConfig(rank=0, world_size=1, num_workers=arguments.num_workers)
    speeds = []
    for name, kind in (("packed  ", PackedTaskEncoder), ("unpacked", Unpacked)):
        encoder = kind(arguments.dataset, arguments.processor, layout="neat")
        model = tiny_model(encoder)
        guard(model, encoder)  # a model or a batch in which samples would see each other is an error
        stream = iter(train_loader(arguments.dataset, encoder, worker))
        speed, losses = train(name, stream, model, arguments.max_steps)
        speeds.append(speed)
        if not fell(losses):
            raise SystemExit(f"{name}: the loss did not fall")
        val = val_loader(arguments.dataset, encoder, worker, arguments.val)
        if val is not None:
            loss, weight = evaluate(model, val)
            print(f"{name}: validation loss {loss / weight:.3f} over {weight:,.0f} tokens by weight")
    ratio = speeds[0] / speeds[1]
    print(f"packed is {ratio:.2f} times as fast" if ratio >= 1 else f"packed is {1 - ratio:.0%} slower")


if __name__ == "__main__":
    main()
