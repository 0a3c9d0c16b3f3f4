"""What `benchmarks/gpu.py` trains: packs of the demo or of the real sets, batches in three ways, a Qwen."""

import json
import random
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from megatron.energon import stateless

from energon_pack.config import ModelConfig, OutputConfig, Overlong, PackConfig, Rope, SourceConfig
from energon_pack.loading.task_encoder import EncodedPack, PackedTaskEncoder, inputs_of
from energon_pack.pack import pack
from energon_pack.sources.demo import make_demo_source_and_processor
from energon_pack.templates.full_processor import prepare_torchvision
from energon_pack.training.batch import PackedBatch

#: text and image sets, beside the checkout where they are there
REAL = Path(__file__).resolve().parents[2] / "shared" / "real"
REAL_SETS = ("image_mathv", "image_probe", "image_demo", "text_alpaca")

_LARGE = {"rope_type": "default", "rope_theta": 5e6}
_SMALL = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [8, 4, 4]},
}  # fmt: skip
#: by family and size, text and vision config; full has the sizes of Qwen3-VL-2B, of Qwen2.5-VL-3B, or of 1.1B
SIZES: dict[str, dict[str, tuple[dict[str, Any], dict[str, Any] | None]]] = {
    "qwen3_vl": {
        "full": (
            {
                "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
                "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
                "rope_parameters": {**_LARGE, "mrope_section": [24, 20, 20]},
            },
            {
                "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "out_hidden_size": 2048,
                "deepstack_visual_indexes": [5, 11, 17],
            },
        ),
        "tiny": (
            _SMALL,
            {
                "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": 128,
                "num_position_embeddings": 64, "deepstack_visual_indexes": [0],
            },
        ),
    },
    "qwen2_5_vl": {
        "full": (
            {
                "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
                "num_key_value_heads": 2, "vocab_size": 151936,
                "rope_parameters": {**_LARGE, "mrope_section": [16, 24, 24]},
            },
            {
                "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048,
                "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2,
            },
        ),
        "tiny": (
            _SMALL,
            {
                "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": 128,
                "window_size": 112, "fullatt_block_indexes": [1], "tokens_per_second": 2,
            },
        ),
    },
    "qwen3": {
        "full": (
            {
                "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 16, "num_attention_heads": 16,
                "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rope_parameters": _LARGE,
            },
            None,
        ),
        "tiny": (_SMALL | {"rope_parameters": _LARGE}, None),
    },
}  # fmt: skip
#: template, and classes of transformers
_FAMILIES = {
    "qwen3_vl": ("qwen3_vl", "Qwen3VLForConditionalGeneration"),
    "qwen2_5_vl": ("qwen_vl", "Qwen2_5_VLForConditionalGeneration"),
    "qwen3": ("text", "Qwen3ForCausalLM"),
}


class Padded(PackedTaskEncoder):
    """The members of a pack, each a row of its own: what a step looks like without packing.

    A step has all of them, so as many tokens as the pack. Where they are more than `max_places` with their padding,
    they go through the model in several pieces, and gradients add up. `together`: so many members are never parted.
    """

    max_places, together = 0, 1

    @stateless
    def encode_sample(self, sample: Any) -> EncodedPack:
        members = [self.members.encode_alone(member) for member in inputs_of(sample)]
        pack: EncodedPack = EncodedPack.derive_from(sample, members=members, media={}, dropped=[])
        return pack

    @stateless
    def batch(self, samples: list[EncodedPack]) -> PackedBatch:
        (pack,) = samples
        pieces, num = [], self.together
        lengths = [len(member.tokens) for member in pack.members]
        longest = [max(lengths[start : start + num]) for start in range(0, len(lengths), num)]
        for start, end in pieces_of(longest, self.max_places // num):
            rows = [
                EncodedPack.derive_from(pack, members=[member], media=member.media, dropped=[])
                for member in pack.members[start * num : end * num]
            ]
            pieces.append(super().batch(rows))
        whole = super().batch(samples)
        noted = ("__key__", "__restore_key__", "positions", "sample_ids", "num_tokens", "num_trained")
        return PackedBatch({"pieces": pieces, **{name: whole[name] for name in noted}})


def pieces_of(lengths: Sequence[int], max_places: int) -> Iterator[tuple[int, int]]:
    """Rows in their order, each piece padded to its longest and of at most so many places; a row stays whole."""
    start = 0
    for end in range(1, len(lengths) + 1):
        if end == len(lengths) or (end + 1 - start) * max(lengths[start : end + 1]) > max_places:
            yield start, end
            start = end


def flattened(stream: Iterator[PackedBatch], num_steps: int) -> Iterator[PackedBatch]:
    """The Trainer's own packing: samples by chance, as many a step as a pack has in the mean, by its collator.

    It leaves media out, which are put beside it, and numbers an image's places as those of text.

    Args:
        stream: of `Padded`, each sample a piece of its own; so many of its steps are taken.
    """
    from transformers import DataCollatorWithFlattening

    samples: list[PackedBatch] = [piece for _ in range(num_steps) for piece in next(stream)["pieces"]]
    random.Random(0).shuffle(samples)
    collate = DataCollatorWithFlattening()
    for step in range(num_steps):
        some = samples[step * len(samples) // num_steps : (step + 1) * len(samples) // num_steps]
        flat = collate([{name: one[name][0] for name in ("input_ids", "labels")} for one in some])
        for name in ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw"):
            if parts := [one[name] for one in some if name in one]:
                flat[name] = torch.cat(parts)
        flat["mm_token_type_ids"] = torch.cat([one["mm_token_type_ids"] for one in some], 1)
        flat["doc_ids"] = torch.cat([one["doc_ids"] * number for number, one in enumerate(some, 1)], 1)
        yield PackedBatch({**flat, "use_cache": False})


def demo_records(folder: Path) -> list[dict[str, Any]]:
    """The demo's messages, with the paths of their images in this folder."""
    for tar in sorted(Path(make_demo_source_and_processor(folder / "demo")[0]).glob("*.tar")):
        with tarfile.open(tar) as members:
            members.extractall(folder / "files", filter="data")
    records = {path: json.loads(path.read_bytes()) for path in sorted((folder / "files").glob("demo_*.json"))}
    return [
        {"messages": one["messages"], "images": [str(path.with_suffix(f".{name}")) for name in one.get("name", ())]}
        for path, one in records.items()
    ]


def sources_of(folder: Path, real: Path | None, family: str) -> tuple[list[str], str]:
    """Return paths of sources for a family, and a processor's folder: of the real sets in `real`, or of the demo."""
    is_text = family == "qwen3"
    if real is not None:
        names = [name for name in REAL_SETS if not is_text or name.startswith("text")]
        processor = real / "processors" / ("qwen2_5_text" if is_text else family)
        return [str(real / "wds" / name) for name in names], str(processor)
    source, made = make_demo_source_and_processor(folder / "demo")
    if is_text:
        texts = [json.dumps({"messages": one["messages"]}) for one in demo_records(folder) if not one["images"]]
        source = str(folder / "files" / "texts.jsonl")
        Path(source).write_text("\n".join(texts))
    return [source], _as_qwen3_vl(Path(made), folder / "processor") if family == "qwen3_vl" else made


def make_packs(folder: Path, max_token_len: int, real: Path | None, family: str = "qwen3_vl") -> tuple[Path, str]:
    """Pack the real sets of this folder, or without it the demo; the dataset, and its processor's folder.

    Packs that are there already stay.
    """
    sources, processor = sources_of(folder, real, family)
    if (folder / "packs").is_dir():
        return folder / "packs", processor
    template, _ = _FAMILIES[family]
    is_text = template == "text"
    run = PackConfig(
        model=ModelConfig(family, template, processor=processor, rope=Rope.none if is_text else Rope(family)),
        source=SourceConfig(path=sources),
        output=OutputConfig(dir=str(folder), name="packs"),
    )
    num_workers = None if real else 1
    run.executor.num_workers, run.measure.verify, run.max_skipped = num_workers, 0.0, 0.05
    run.packing.max_token_len, run.packing.overlong = max_token_len, Overlong.drop
    pack(run)
    return folder / "packs", processor


def _as_qwen3_vl(processor: Path, folder: Path) -> str:
    """The demo's processor with Qwen3-VL's classes and patches, and with smaller pictures than Qwen3-VL's."""
    shutil.copytree(processor, folder, dirs_exist_ok=True)
    path = folder / "tokenizer_config.json"
    kind = {"processor_class": "Qwen3VLProcessor"}
    path.write_text(json.dumps(json.loads(path.read_bytes()) | kind))
    patches = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2} | kind
    normal = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    image = {"image_processor_type": "Qwen2VLImageProcessor", "size": {"shortest_edge": 4096, "longest_edge": 1 << 20}}
    video = {"video_processor_type": "Qwen3VLVideoProcessor", "size": {"shortest_edge": 4096, "longest_edge": 1 << 22}}
    (folder / "preprocessor_config.json").write_text(json.dumps(patches | normal | image))
    (folder / "video_preprocessor_config.json").write_text(json.dumps(patches | normal | video))
    return str(folder)


def config_of(size: str, encoder: PackedTaskEncoder, family: str = "qwen3_vl") -> Any:
    """A Qwen that knows the processor's tokens."""
    text, vision = SIZES[family][size]
    rules = encoder.rules
    text = {**text, "vocab_size": max(text["vocab_size"], rules.num_ids), "pad_token_id": 0}
    if vision is None:
        return model_class(family).config_class(**text, tie_word_embeddings=True)
    names = {f"{kind}_token_id": f"<|{kind}_pad|>" for kind in ("image", "video")}
    names |= {f"vision_{edge}_token_id": f"<|vision_{edge}|>" for edge in ("start", "end")}
    tokens: dict[str, Any] = {name: rules.token_id(token) for name, token in names.items()}
    patch = int(rules.settings["image"]["patch_size"])
    return model_class(family).config_class(
        text_config=text, vision_config={**vision, "patch_size": patch}, tie_word_embeddings=True, **tokens
    )


def model_class(family: str = "qwen3_vl") -> Any:
    """Imported late: transformers takes seconds."""
    prepare_torchvision()
    import transformers

    return getattr(transformers, _FAMILIES[family][1])


def make_model(config: Any, attention: str, dtype: torch.dtype, device: torch.device, checkpointing: bool) -> Any:
    """Random weights, the same each time; made on the device: on a CPU, 2 billion take a minute."""
    torch.manual_seed(0)
    with device:
        model = model_class(config.model_type)._from_config(config, attn_implementation=attention, dtype=dtype)
    if checkpointing:
        enable = getattr(model, "activation_checkpointing_enable", None)  # its name in new versions of transformers
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    return model.to(device).train()


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
