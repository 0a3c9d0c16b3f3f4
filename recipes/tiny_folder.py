"""Make a tiny model folder with random weights for any processor: first steps of a training on a CPU.

    python -m energon_pack.recipes tiny PROCESSOR FOLDER

The config is the one beside the processor, or the default of the processor's class, with two layers of width 64 and the
ids of the processor's special tokens, in float32. FOLDER gets it, its weights, and the files of the processor as they
are.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from PIL import Image

from energon_pack import prepare_torchvision

_WIDTH = 64  # of every tower, so that what one makes fits into another
_SIZES = {
    **dict.fromkeys(("hidden_size", "embed_dim", "d_model", "out_hidden_size", "output_dim", "projection_dim"), _WIDTH),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim"), 2 * _WIDTH),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), _WIDTH // 2),
    **dict.fromkeys(("num_hidden_layers", "depth", "encoder_layers", "decoder_layers", "max_window_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("head_dim", "linear_key_head_dim", "linear_value_head_dim"), _WIDTH // 4),
    "num_experts_per_tok": 2,
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), 4),
}  # fmt: skip
_LAYERS = {"fullatt_block_indexes": [1], "deepstack_visual_indexes": [0]}
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def tiny_folder(processor: str, folder: str) -> Path:
    """Write the folder; return its path. Of a folder that is there, only files of these names are replaced."""
    prepare_torchvision()
    import torch
    import transformers as tf

    source, made = Path(processor), Path(folder)
    try:
        loaded: Any = tf.AutoProcessor.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise SystemExit(f"{source}: transformers loads no processor from it: {error}") from None
    tokenizer: Any = getattr(loaded, "tokenizer", loaded)
    config: Any = _config(source, loaded)
    config = getattr(config, "thinker_config", config)  # of Qwen-Omni, the part that is trained
    for node in (config, *(getattr(config, name) for name in config.sub_configs)):
        _shrink(node)
    if hasattr(getattr(config, "audio_config", None), "num_mel_bins") and hasattr(loaded, "feature_extractor"):
        config.audio_config.num_mel_bins = loaded.feature_extractor.feature_size
    is_qwen = config.model_type.startswith("qwen") and hasattr(config, "vision_config")
    if is_qwen or hasattr(config, "vision_start_token_id"):  # its positions have three rows
        config.get_text_config().rope_parameters["mrope_section"] = [2, 3, 3]  # half of a head
    _set_tokens(config, loaded, tokenizer, _stated(source))
    autos = (
        tf.AutoModelForImageTextToText,
        tf.AutoModelForCausalLM,
        tf.AutoModelForMultimodalLM,
        tf.AutoModelForSeq2SeqLM,
    )
    auto: Any = next((auto for auto in autos if type(config) in auto._model_mapping), None)
    if auto is None:
        raise SystemExit(f"{source}: no class of transformers trains a {config.model_type}")
    torch.manual_seed(0)
    model = auto.from_config(config, dtype=torch.float32)  # a CPU takes minutes for a step in bfloat16
    _try(model, loaded)
    model.save_pretrained(made)
    for file in source.iterdir():
        if file.is_file() and file.name != "config.json" and not file.name.endswith((*_WEIGHTS, ".index.json")):
            shutil.copyfile(file, made / file.name)
    return made


def _stated(source: Path) -> dict[str, Any]:
    """Return the config.json beside the processor; empty: there is none that names a model."""
    file = source / "config.json"
    value = json.loads(file.read_text()) if file.is_file() else {}
    return value if "model_type" in value else {}


def _config(source: Path, loaded: Any) -> Any:
    """The config beside the processor, or the default of the model that its class is for."""
    import transformers as tf
    from transformers.models.auto import processing_auto

    if _stated(source):
        return tf.AutoConfig.from_pretrained(source)
    kinds = [
        kind for kind, name in vars(processing_auto)["PROCESSOR_MAPPING_NAMES"].items() if name == type(loaded).__name__
    ]
    return tf.AutoConfig.for_model(kinds[0] if kinds else "llama")


def _shrink(node: Any) -> None:
    for name, size in {**_SIZES, **_LAYERS}.items():
        if getattr(node, name, None) is not None:
            setattr(node, name, size)
    if types := getattr(node, "layer_types", None):
        node.layer_types = [types[0], types[-1]]


def _set_tokens(config: Any, loaded: Any, tokenizer: Any, stated: dict[str, Any]) -> None:
    """Give the config the ids of the processor's special tokens, and as many rows of embeddings as it has ids.

    Ids of media that its file states stay: Gemma 3's processor calls the mark before an image `image_token`.
    """
    text = config.get_text_config()
    text.vocab_size = max(len(tokenizer), *tokenizer.get_vocab().values()) + 1
    for name in ("bos", "eos", "pad"):
        for node in (config, text):
            setattr(node, f"{name}_token_id", getattr(tokenizer, f"{name}_token_id"))
    for name in {*vars(config), "vision_start_token_id"}:
        kind, is_token, _ = name.rpartition("_token_")
        spelled = kind, kind.replace("start", "bos").replace("end", "eos")  # as Qwen-Omni's processor names them
        token = next(filter(None, (getattr(loaded, f"{each}_token", None) for each in spelled)), f"<|{kind}|>")
        known = stated.get(name)
        if not is_token or not name.endswith(("_id", "_index")) or (isinstance(known, int) and known < text.vocab_size):
            continue
        if kind not in ("bos", "eos", "pad") and isinstance(token, str) and token in tokenizer.get_vocab():
            setattr(config, name, tokenizer.convert_tokens_to_ids(token))


def _try(model: Any, loaded: Any) -> None:
    """Show that the model takes what the processor makes of an image; the default of a class may be another model's."""
    if not hasattr(loaded, "image_processor"):
        return
    content = [{"type": "image"}, {"type": "text", "text": "?"}]
    text = loaded.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
    inputs = loaded(text=[text], images=[Image.new("RGB", (300, 200))], return_tensors="pt")
    try:
        model(**inputs)
    except (RuntimeError, ValueError, IndexError) as error:
        what = f"the model can't take what {type(loaded).__name__} makes of an image ({error})"
        raise SystemExit(f"{what}: the config.json of the whole model has to lie beside the processor") from None


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "energon_pack.recipes tiny", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("processor", help="the folder of a processor, or of a whole model: no weights are read")
    parser.add_argument("folder", help="where the tiny model is to be")
    given = parser.parse_args(arguments)
    print(f"written: {tiny_folder(given.processor, given.folder)}")


if __name__ == "__main__":
    main()
