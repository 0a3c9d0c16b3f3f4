"""Tiny random models of transformers' own classes, and random members for them; no processor, no download."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from energon_pack.templates.full_processor import prepare_torchvision
from energon_pack.training.batch import PackedBatch
from energon_pack.training.joining import join
from energon_pack.training.layout import IGNORE, Member, RowForm, lay_out_neat_rows
from energon_pack.training.member_encoder import Encoded
from energon_pack.training.rope import RopeRule, rope_positions

prepare_torchvision()
#: transformers; its classes take their settings as keywords of every type
tf: Any = import_module("transformers")
Values = dict[str, Any]

IMAGE, VIDEO, START, END, FIRST_WORD, VOCABULARY = 4, 5, 6, 7, 8, 64
TEXT: Values = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}
MROPE: Values = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
TOKENS = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": START, "vision_end_token_id": END}


@dataclass(frozen=True)
class MadeEncoder:
    """A stand-in with the encoder's attributes that `guard` reads: made members for a tiny model."""

    members: list[Encoded]
    mask: str = "positions"
    max_token_len: int | None = None

    def probe_members(self) -> list[Encoded]:
        return self.members


@dataclass(frozen=True)
class Family:
    """How a tiny model is made, and what its media are."""

    config: Callable[[], Any]
    #: media of a member: "image", "video" → model inputs
    media: dict[str, Callable[[], dict[str, Tensor]]] = field(default_factory=dict)
    rope: RopeRule | None = None
    mask: str = "positions"
    model: str = "AutoModelForImageTextToText"


def _qwen2_5_vl() -> Any:
    vision: Values = {"depth": 2, "hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 24, "num_heads": 2}
    vision |= {"patch_size": 2, "temporal_patch_size": 2, "window_size": 8, "fullatt_block_indexes": [1]}
    vision |= {"tokens_per_second": 2, "initializer_range": 0.2}
    return tf.Qwen2_5_VLConfig(text_config=MROPE, vision_config=vision, **TOKENS)


def _qwen2_vl() -> Any:
    vision = {"depth": 2, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 2, "temporal_patch_size": 2}
    return tf.Qwen2VLConfig(text_config=MROPE, vision_config=vision, **TOKENS)


def _qwen3_vl() -> Any:
    vision: Values = {"depth": 2, "hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 24, "num_heads": 2}
    vision |= {"patch_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 16, "initializer_range": 0.2}
    vision |= {"deepstack_visual_indexes": [0]}
    return tf.Qwen3VLConfig(text_config={**MROPE, "head_dim": 8}, vision_config=vision, **TOKENS)


def _qwen3_5() -> Any:
    vision: Values = {"depth": 2, "hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 24, "num_heads": 2}
    vision |= {"patch_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 16}
    text: Values = {**MROPE, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"]}
    text |= {"linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8}
    text |= {"linear_value_head_dim": 8}
    return tf.Qwen3_5Config(text_config=text, vision_config=vision, **TOKENS)


def _internvl() -> Any:
    vision: Values = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    vision |= {"image_size": [8, 8], "patch_size": [2, 2]}
    text = {**TEXT, "model_type": "qwen2"}
    return tf.InternVLConfig(text_config=text, vision_config=vision, image_token_id=IMAGE, image_seq_length=4)


def _clip_vision(kind: str) -> dict[str, Any]:
    vision = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return {**vision, "image_size": 8, "patch_size": 2, "projection_dim": 16, "model_type": kind}


def _llava() -> Any:
    text = {**TEXT, "model_type": "llama"}
    return tf.LlavaConfig(
        text_config=text,
        vision_config=_clip_vision("clip_vision_model"),
        image_token_index=IMAGE,
        image_token_id=IMAGE,
    )


def _llava_onevision() -> Any:
    return tf.LlavaOnevisionConfig(
        text_config={**TEXT, "model_type": "qwen2"},
        vision_config=_clip_vision("siglip_vision_model"),
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        image_grid_pinpoints=[[8, 8], [8, 16], [16, 8], [16, 16]],
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )


def _idefics3() -> Any:
    vision: Values = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    vision |= {"image_size": 8, "patch_size": 2}
    return tf.Idefics3Config(
        text_config={**TEXT, "model_type": "llama"}, vision_config=vision, image_token_id=IMAGE, scale_factor=2
    )


def _glm4v() -> Any:
    vision: Values = {"depth": 2, "hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 24, "num_heads": 2}
    vision |= {"patch_size": 2, "temporal_patch_size": 2, "image_size": 16, "initializer_range": 0.2}
    rope = {**MROPE["rope_parameters"], "partial_rotary_factor": 1.0}
    text = {**MROPE, "rope_parameters": rope}
    tokens = {**TOKENS, "image_start_token_id": START, "image_end_token_id": END}
    return tf.Glm4vConfig(text_config=text, vision_config=vision, **tokens)


def _gemma3() -> Any:
    text: Values = {**TEXT, "head_dim": 8, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
    text |= {"query_pre_attn_scalar": 8}
    vision = _clip_vision("siglip_vision_model")
    return tf.Gemma3Config(
        text_config=text, vision_config=vision, image_token_index=IMAGE, image_token_id=IMAGE, mm_tokens_per_image=4
    )


def _gpt_oss() -> Any:
    layers = ["sliding_attention", "full_attention"]
    return tf.GptOssConfig(
        **TEXT, head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=6, layer_types=layers
    )


def _patches(times: int, width: int = 24) -> Callable[[], dict[str, Tensor]]:
    """Of Qwen-VL: a grid of times × 4 × 6 patches."""
    suffix, name = ("_videos", "video_grid_thw") if times > 1 else ("", "image_grid_thw")

    def make() -> dict[str, Tensor]:
        made = {f"pixel_values{suffix}": torch.randn(times * 24, width), name: torch.tensor([[times, 4, 6]])}
        return made | ({"second_per_grid_ts": torch.tensor([1.5])} if times > 1 else {})

    return make


def _tiles(*shape: int, **more: Any) -> Callable[[], dict[str, Tensor]]:
    return lambda: {
        "pixel_values": torch.randn(*shape),
        **{name: torch.tensor(value) for name, value in more.items()},
    }


def _without_seconds(make: Callable[[], dict[str, Tensor]]) -> Callable[[], dict[str, Tensor]]:
    return lambda: {name: value for name, value in make().items() if name != "second_per_grid_ts"}


_QWEN_MEDIA = {"image": _patches(1), "video": _patches(2)}
_QWEN3_MEDIA = {"image": _patches(1), "video": _without_seconds(_patches(2))}
_TEXT_MODEL = "AutoModelForCausalLM"

FAMILIES: dict[str, Family] = {
    "qwen2_vl": Family(_qwen2_vl, _QWEN3_MEDIA, RopeRule("qwen2_vl")),
    "qwen2_5_vl": Family(_qwen2_5_vl, _QWEN_MEDIA, RopeRule("qwen2_5_vl", tokens_per_second=2)),
    "qwen3_vl": Family(_qwen3_vl, _QWEN3_MEDIA, RopeRule("qwen3_vl")),
    "internvl": Family(_internvl, {"image": _tiles(2, 3, 8, 8)}),
    "llava": Family(_llava, {"image": _tiles(1, 3, 8, 8)}),
    "llava_onevision": Family(
        _llava_onevision, {"image": _tiles(1, 3, 3, 8, 8, image_sizes=[[8, 16]], batch_num_images=[1])}
    ),
    "idefics3": Family(_idefics3, {"image": _tiles(1, 2, 3, 8, 8)}),
    "glm4v": Family(_glm4v, {"image": _patches(1)}, RopeRule("qwen2_vl")),
    "gemma3": Family(_gemma3, {"image": _tiles(1, 3, 8, 8)}, mask="dict4d"),
    "gpt_oss": Family(_gpt_oss, mask="dict4d", model=_TEXT_MODEL),
    "qwen2": Family(lambda: tf.Qwen2Config(**TEXT), model=_TEXT_MODEL),
    "qwen3": Family(lambda: tf.Qwen3Config(**TEXT, head_dim=8), model=_TEXT_MODEL),
    "llama": Family(lambda: tf.LlamaConfig(**TEXT), model=_TEXT_MODEL),
    "mistral": Family(lambda: tf.MistralConfig(**TEXT, sliding_window=8), model=_TEXT_MODEL),
    "qwen3_5": Family(_qwen3_5, _QWEN3_MEDIA, RopeRule("qwen3_vl"), mask="hybrid"),
}


def make_model(name: str, attention: str = "sdpa") -> Any:
    """A tiny random model in fp32, in training mode without dropout."""
    torch.manual_seed(0)
    family = FAMILIES[name]
    return getattr(tf, family.model).from_config(family.config(), attn_implementation=attention).train()


def make_members(name: str, model: Any, seed: int = 0) -> list[Encoded]:
    """Five members: text, an image, text, a video (else an image), and one of two tokens."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    media = FAMILIES[name].media
    kinds = ["", "image", "", "video", ""]
    kinds = [kind if kind in media else ("image" if kind and media else "") for kind in kinds]
    lengths = (9, 7, 12, 6, 2)
    return [_member(name, model, i, kind, n, generator) for i, (kind, n) in enumerate(zip(kinds, lengths, strict=True))]


def _member(name: str, model: Any, index: int, kind: str, num_words: int, generator: torch.Generator) -> Encoded:
    family = FAMILIES[name]
    words = torch.randint(FIRST_WORD, VOCABULARY, (num_words,), generator=generator)
    media = family.media[kind]() if kind else {}
    runs = [_visual(model, kind, media)] if kind else []
    if kind == "video" and name.startswith("qwen3"):  # each frame by itself, its time before it
        runs = [runs[0] // 2] * 2
    token, number = (IMAGE, 1) if kind == "image" else (VIDEO, 2)
    ids, types = [words[:3]], [torch.zeros(len(words[:3]), dtype=torch.long)]
    for run in runs:
        ids.append(torch.tensor([START, *[token] * run, END]))
        types.append(torch.tensor([0, *[number] * run, 0]))
    ids.append(words[3:])
    types.append(torch.zeros(len(words[3:]), dtype=torch.long))
    all_ids, all_types = torch.cat(ids), torch.cat(types)
    labels = torch.where(all_types == 0, all_ids, IGNORE)
    labels[: max(1, len(labels) // 2)] = IGNORE
    rope = None
    if family.rope:
        grids = {key: media.get(key) for key in ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")}
        rope = rope_positions(family.rope, all_types, **grids)
    return Encoded(f"m{index}", Member(all_ids, labels, all_types, rope), media)


def _visual(model: Any, kind: str, media: dict[str, Tensor]) -> int:
    """How many tokens the model makes of these media."""
    with torch.no_grad():
        features = getattr(model, f"get_{kind}_features")(**_given(media), return_dict=True).pooler_output
    parts = features if isinstance(features, (list, tuple)) else [features]
    return sum(part[..., 0].numel() for part in parts)


def _given(media: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in media.items() if name != "second_per_grid_ts"}


def make_batch(name: str, packs: Sequence[Sequence[Encoded]], **form: Any) -> PackedBatch:
    """A `neat` batch, as the task encoder makes it."""
    family = FAMILIES[name]
    rows = [[member.tokens for member in pack] for pack in packs]
    media = join(member.media for pack in packs for member in pack)
    batch = PackedBatch(lay_out_neat_rows(rows, RowForm(rope=family.rope is not None, **form)) | media)
    batch.mask = family.mask
    return batch


def alone(name: str, model: Any, member: Encoded) -> Any:
    """A member by itself, with nothing of ours: the model's own positions and masks."""
    tokens = member.tokens
    inputs: dict[str, Any] = {"input_ids": tokens.ids[None], "labels": tokens.labels[None], **member.media}
    if FAMILIES[name].rope:
        inputs["mm_token_type_ids"] = tokens.types[None]
    if name == "gemma3":
        inputs["token_type_ids"] = tokens.types[None]
    return model(**inputs, attention_mask=torch.ones_like(tokens.ids[None]), use_cache=False)


def text_members(vocabulary: int) -> list[Encoded]:
    """Members of random words, with rows of M-RoPE."""
    generator = torch.Generator().manual_seed(0)
    members = []
    for number, length in enumerate((9, 14, 6)):
        ids = torch.randint(min(10, vocabulary // 2), vocabulary, (length,), generator=generator)
        rows = torch.arange(length).expand(3, -1)
        labels = torch.cat([torch.full((1,), IGNORE), ids[1:]])
        members.append(Encoded(str(number), Member(ids, labels, torch.zeros_like(ids), rows)))
    return members
