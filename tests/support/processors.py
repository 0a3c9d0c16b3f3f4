"""Small processors of transformers' classes, written file by file: each setting can be chosen, and each file broken."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

Values = dict[str, Any]

NAMES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
TEMPLATE = """\
{%- for message in messages -%}
<s>{{ message.role }}:{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}{% if part.type == "text" %}{{ part.text }}
{%- elif part.type == "image" %}IMAGE{% else %}VIDEO{% endif %}{% endfor %}
{%- endif %}</s>
{%- endfor %}
{%- if add_generation_prompt %}<s>assistant:{% endif %}"""


def template_of(image: str, video: str = "", audio: str = "") -> str:
    """A chat template that writes these where media stand."""
    written = TEMPLATE.replace("{% else %}VIDEO", '{% elif part.type == "video" %}VIDEO{% else %}AUDIO')
    return written.replace("IMAGE", image).replace("VIDEO", video).replace("AUDIO", audio)


def write_dummy(
    folder: Path,
    name: str,
    tokens: Sequence[str],
    template: str,
    files: Mapping[str, Values],
    attributes: Mapping[str, str] | None = None,
) -> Path:
    """A folder from which AutoProcessor loads a processor.

    Args:
        name: its class.
        tokens: special ones of the tokenizer, beside <s>, </s> and <pad>.
        files: by name without `.json`: the settings of its parts.
        attributes: special tokens that the class asks its tokenizer for, by the name it has for them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, name, tokens, attributes or {})
    (folder / "chat_template.jinja").write_text(template)
    for file, values in {"processor_config": {}, **files}.items():
        (folder / f"{file}.json").write_text(json.dumps({**values, "processor_class": name}))
    return folder


def write_tokenizer(folder: Path, name: str, tokens: Sequence[str], attributes: Mapping[str, str]) -> None:
    """Write a tokenizer of single bytes and special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*NAMES.values(), *tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "processor_class": name, **NAMES}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "extra_special_tokens": dict(attributes)}))


def token_id(folder: Path, token: str) -> int:
    found = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(token)
    assert found is not None, token
    return int(found)


def change(file: Path, **values: Any) -> None:
    """Set values of a JSON file; `...` takes one out."""
    content = json.loads(file.read_bytes()) | values
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not ...}))


def llava_next(folder: Path) -> Path:
    """Tiles of 28 pixels, four tokens each."""
    images: Values = {
        "image_processor_type": "LlavaNextImageProcessor",
        "size": {"shortest_edge": 28},
        "crop_size": {"height": 28, "width": 28},
        "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]],
    }
    own: Values = {"image_token": "<image>", "patch_size": 14, "num_additional_image_tokens": 1}
    own |= {"vision_feature_select_strategy": "default"}
    files: dict[str, Values] = {"preprocessor_config": images, "processor_config": own}
    return write_dummy(folder, "LlavaNextProcessor", ["<image>"], template_of("<image>"), files)


def pixtral(folder: Path) -> Path:
    """Up to 112 pixels, 28 pixels a token."""
    images: Values = {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 112}, "patch_size": 28}
    own: Values = {"patch_size": 14, "spatial_merge_size": 2}
    files: dict[str, Values] = {"preprocessor_config": images, "processor_config": own}
    tokens = ["[IMG]", "[IMG_BREAK]", "[IMG_END]"]
    return write_dummy(folder, "PixtralProcessor", tokens, template_of("[IMG]"), files)


def glm4v(folder: Path) -> Path:
    """28 pixels a token, and the times of a video's frames."""
    size = {"shortest_edge": 28 * 28 * 4, "longest_edge": 28 * 28 * 16}
    files: dict[str, Values] = {"preprocessor_config": {"image_processor_type": "Glm4vImageProcessor", "size": size}}
    files["video_preprocessor_config"] = {"video_processor_type": "Glm4vVideoProcessor", "size": size}
    fences = {kind: (f"<|begin_of_{kind}|>", f"<|end_of_{kind}|>") for kind in ("image", "video")}
    tokens = [token for kind, (first, last) in fences.items() for token in (f"<|{kind}|>", first, last)]
    written = {kind: f"{first}<|{kind}|>{last}" for kind, (first, last) in fences.items()}
    return write_dummy(folder, "Glm4vProcessor", tokens, template_of(**written), files)


def ovis2(folder: Path) -> Path:
    """Up to four tiles of 28 pixels and the whole, four tokens each."""
    images: Values = {"image_processor_type": "Ovis2ImageProcessor", "size": {"height": 28, "width": 28}}
    files: dict[str, Values] = {
        "preprocessor_config": images | {"crop_to_patches": True, "max_patches": 4},
        "processor_config": {"image_seq_length": 4},
    }
    tokens = ["<image>", "<IMG_ATOM>", *(f"<IMG_{name}>" for name in ("START", "GRID", "COL", "ROW", "END"))]
    return write_dummy(folder, "Ovis2Processor", tokens, template_of("<image>"), files)


def paddleocr_vl(folder: Path) -> Path:
    """28 pixels a token."""
    size = {"shortest_edge": 28 * 28 * 4, "longest_edge": 28 * 28 * 16}
    images = {"image_processor_type": "PaddleOCRVLImageProcessor", "size": size}
    place, first, last = tokens = ["<|IMAGE_PLACEHOLDER|>", "<|IMAGE_START|>", "<|IMAGE_END|>"]
    written = template_of(first + place + last)
    return write_dummy(
        folder, "PaddleOCRVLProcessor", tokens, written, {"preprocessor_config": images}, {"image_token": place}
    )


def qwen2_5_omni(folder: Path) -> Path:
    """28 pixels a token, 25 tokens of a second."""
    size = {"shortest_edge": 28 * 28 * 4, "longest_edge": 28 * 28 * 16}
    files: dict[str, Values] = {"preprocessor_config": {"image_processor_type": "Qwen2VLImageProcessor", "size": size}}
    files["preprocessor_config"] |= {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 8}
    files["video_preprocessor_config"] = {"video_processor_type": "Qwen2VLVideoProcessor", "size": size}
    names = {f"{kind}_token": f"<|{kind.upper()}|>" for kind in ("image", "video", "audio")}
    names |= {f"{kind}_{end}_token": f"<|{kind}_{end}|>" for kind in ("vision", "audio") for end in ("bos", "eos")}
    written = {kind: f"<|vision_bos|><|{kind.upper()}|><|vision_eos|>" for kind in ("image", "video")}
    written["audio"] = "<|audio_bos|><|AUDIO|><|audio_eos|>"
    return write_dummy(folder, "Qwen2_5OmniProcessor", [*names.values()], template_of(**written), files, names)


def qwen2_audio(folder: Path) -> Path:
    """25 tokens of a second of sound, and no pictures."""
    names = {"audio_token": "<|AUDIO|>", "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>"}
    files = {"preprocessor_config": {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 8}}
    written = template_of("", "", "<|audio_bos|><|AUDIO|><|audio_eos|>")
    return write_dummy(folder, "Qwen2AudioProcessor", [*names.values()], written, files, names)


def qwen3_omni(folder: Path) -> Path:
    """32 pixels a token, 13 tokens of a second."""
    size = {"shortest_edge": 32 * 32 * 4, "longest_edge": 32 * 32 * 16}
    sides = {"size": size, "patch_size": 16}
    files: dict[str, Values] = {"preprocessor_config": {"image_processor_type": "Qwen2VLImageProcessor", **sides}}
    files["preprocessor_config"] |= {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 8}
    files["video_preprocessor_config"] = {"video_processor_type": "Qwen2VLVideoProcessor", **sides}
    names = {f"{kind}_token": f"<|{kind}_pad|>" for kind in ("image", "video", "audio")}
    names |= {f"{kind}_{end}_token": f"<|{kind}_{end}|>" for kind in ("vision", "audio") for end in ("bos", "eos")}
    written = {kind: f"<|vision_bos|><|{kind}_pad|><|vision_eos|>" for kind in ("image", "video")}
    written["audio"] = "<|audio_bos|><|audio_pad|><|audio_eos|>"
    return write_dummy(folder, "Qwen3OmniMoeProcessor", [*names.values()], template_of(**written), files, names)


def gemma3n(folder: Path) -> Path:
    """4 tokens an image, 6 a sound, whatever their sizes."""
    files: dict[str, Values] = {
        "preprocessor_config": {
            "image_processor_type": "SiglipImageProcessor", "size": {"height": 32, "width": 32},
            "feature_extractor_type": "Gemma3nAudioFeatureExtractor", "feature_size": 8,
        },
        "processor_config": {"image_seq_length": 4, "audio_seq_length": 6},
    }  # fmt: skip
    names = {"image_token": "<image_soft_token>", "audio_token": "<audio_soft_token>"}
    names |= {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    names |= {"boa_token": "<start_of_audio>", "eoa_token": "<end_of_audio>"}
    written = template_of("<image_soft_token>", "", "<audio_soft_token>")
    return write_dummy(folder, "Gemma3nProcessor", [*names.values()], written, files, names)


def hearing(
    folder: Path, name: str, extractor: str = "Whisper", token: str = "<|audio|>", more: Sequence[str] = ()
) -> Path:
    """A processor of sounds alone.

    Args:
        name: its class, without `Processor`.
        extractor: of its features, without `FeatureExtractor`.
        token: what stands for a sound.
        more: tokens around it, at its beginning and its end.
    """
    names = dict(zip(("audio_bos_token", "audio_eos_token"), more, strict=False))
    names |= {"audio_token": token} if more else {}
    files = {"preprocessor_config": {"feature_extractor_type": f"{extractor}FeatureExtractor", "feature_size": 8}}
    return write_dummy(folder, f"{name}Processor", [token, *more], template_of("", "", token), files, names)
