"""Classes of models that hear: a small processor, and the config of a tiny model that goes with it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from support import omni, processors
from support.processors import template_of, write_dummy
from support.tiny import TEXT, tf

Values = dict[str, Any]
Token = Callable[[str], int]


@dataclass(frozen=True)
class Class:
    """A processor, and a tiny model that goes with it."""

    write: Callable[[Path], Path]
    #: of its config; given what finds the ids of tokens
    config: Callable[[Token], Any]
    has_videos: bool = False
    mixes: bool = True  # the model takes rows with images and videos
    tier: str = "shapes"
    runs_code: bool = False
    has_images: bool = True
    has_sounds: bool = False
    hears_several: bool = True  # sounds in one sample
    joins_sounds: bool = True  # of several lengths, in one pack
    hears_videos: bool = False
    #: whether it is compared in float64, where it differs by 1.5e-14: in float32 its rounding comes to 1.3e-5
    in_double: bool = False
    needs: str = "torch"  # a module that its processor imports


def text_config(**more: Any) -> Values:
    return {**TEXT, "vocab_size": 320, "head_dim": 8, **more}


def mrope_config(*sections: int, **more: Any) -> Values:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections)}
    return text_config(rope_parameters={**rope, **more})


VISION: Values = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
VISION |= {"patch_size": 14, "initializer_range": 0.2}
QWEN_VISION: Values = {"depth": 2, "hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 24, "num_heads": 2}
QWEN_VISION |= {"initializer_range": 0.2}


def _qwen2_audio(token: Token) -> Any:
    audio = {"num_mel_bins": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 24, "d_model": 16}
    return tf.Qwen2AudioConfig(
        text_config=text_config(model_type="qwen2"), audio_config={**audio, "initializer_range": 0.2},
        audio_token_index=token("<|AUDIO|>"), initializer_range=0.2,
    )  # fmt: skip


def _hears(config: str, token: Token, **audio: Any) -> Any:
    """A config of a model of sounds and text, whose encoder has these settings."""
    text = text_config(model_type={"GlmAsr": "llama", "Qwen3ASR": "qwen3"}.get(config, "qwen2"))
    audio = {"num_mel_bins": 8, "initializer_range": 0.2, **audio}
    ids = {
        "audio_token_id": token("<sound>" if "Flamingo" in config else "<|pad|>" if config == "GlmAsr" else "<|audio|>")
    }
    return getattr(tf, f"{config}Config")(text_config=text, audio_config=audio, initializer_range=0.2, **ids)


_ENCODER: Values = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "hidden_size": 16}


def _audio_flamingo(token: Token) -> Any:
    return _hears("AudioFlamingo3", token, **_ENCODER)


def _glm_asr(token: Token) -> Any:
    return _hears("GlmAsr", token, **{**_ENCODER, "intermediate_size": 64})


def _qwen3_asr(token: Token) -> Any:
    audio = {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 24, "d_model": 16}
    return _hears("Qwen3ASR", token, **audio, output_dim=32, downsample_hidden_size=8)


def vibevoice_asr(folder: Path) -> Path:
    """7.5 tokens of a second of samples as they are."""
    around = first, token, last = "<|object_ref_start|>", "<|box_start|>", "<|object_ref_end|>"
    files: dict[str, Values] = {
        "preprocessor_config": {"feature_extractor_type": "VibeVoiceAcousticTokenizerFeatureExtractor"}
    }
    return write_dummy(folder, "VibeVoiceAsrProcessor", around, template_of("", "", first + token + last), files)


def moss(folder: Path) -> Path:
    """12.5 tokens of a second, and the number of each second second."""
    around = first, token, last = "<|audio_start|>", "<|audio_pad|>", "<|audio_end|>"
    extractor = {"feature_extractor_type": "MossTranscribeDiarizeFeatureExtractor", "feature_size": 8}
    written = template_of("", "", first + token + last)
    files: dict[str, Values] = {"preprocessor_config": extractor}
    return write_dummy(folder, "MossTranscribeDiarizeProcessor", around, written, files)


def gemma4(folder: Path) -> Path:
    """25 tokens of a second; images of 16 tokens at most."""
    names = {f"{kind}_token": f"<|{kind}|>" for kind in ("image", "audio")}
    names |= {"boi_token": "<|image>", "eoi_token": "<image|>", "boa_token": "<|audio>", "eoa_token": "<audio|>"}
    sounds = {"feature_extractor_type": "Gemma4AudioFeatureExtractor", "feature_size": 128}
    files: dict[str, Values] = {
        "preprocessor_config": {"image_processor_type": "Gemma4ImageProcessor", **sounds},
        "video_preprocessor_config": {"video_processor_type": "Gemma4VideoProcessor"},
    }
    written = template_of("<|image|>", "<|video|>", "<|audio|>")
    return write_dummy(folder, "Gemma4Processor", [*names.values(), "<|video|>"], written, files, names)


def gemma3n(folder: Path) -> Path:
    """12 tokens a sound."""
    processors.change(processors.gemma3n(folder) / "processor_config.json", audio_seq_length=12)
    return folder


def phi4(folder: Path) -> Path:
    """12.5 tokens of a second."""
    names = {"image_token": "<|image|>", "audio_token": "<|audio|>"}
    sounds = {"feature_extractor_type": "Phi4MultimodalFeatureExtractor", "feature_size": 8}
    images = {"image_processor_type": "Phi4MultimodalImageProcessor", "size": {"height": 28, "width": 28}}
    parts: dict[str, Values] = {"processor_config": {"audio_processor": sounds, "image_processor": images}}
    files = {"preprocessor_config": {**images, **sounds}, **parts}
    written = template_of("<|image|>", "", "<|audio|>")
    return write_dummy(folder, "Phi4MultimodalProcessor", [*names.values()], written, files, names)


def _vibevoice_asr(token: Token) -> Any:
    codec: Values = {"hidden_size": 8, "num_filters": 2, "depths": [1] * 7, "vae_std": 0.0, "initializer_range": 0.1}
    edges = {"audio_bos_token_id": token("<|object_ref_start|>"), "audio_eos_token_id": token("<|object_ref_end|>")}
    return tf.VibeVoiceAsrConfig(
        text_config=text_config(model_type="qwen2"), acoustic_tokenizer_encoder_config=codec,
        semantic_tokenizer_encoder_config=codec, audio_token_id=token("<|box_start|>"), **edges, initializer_range=0.2,
    )  # fmt: skip


def _moss(token: Token) -> Any:
    sounds = {**_ENCODER, "num_mel_bins": 8, "initializer_range": 0.2}
    return tf.MossTranscribeDiarizeConfig(
        text_config=text_config(model_type="qwen3"),
        audio_config=sounds,
        audio_token_id=token("<|audio_pad|>"),
        initializer_range=0.2,
    )


def _music_flamingo(token: Token) -> Any:
    edges = {"audio_bos_token_id": token("<|sound_bos|>"), "audio_eos_token_id": token("<|sound_eos|>")}
    text = text_config(model_type="qwen2")
    sounds = {**_ENCODER, "model_type": "audioflamingo3_encoder", "num_mel_bins": 8, "initializer_range": 0.2}
    return tf.MusicFlamingoConfig(
        text_config=text, audio_config=sounds, audio_token_id=token("<sound>"), **edges, initializer_range=0.2
    )


def _gemma3n(token: Token) -> Any:
    text = text_config(vocab_size_per_layer_input=320, hidden_size_per_layer_input=8, num_kv_shared_layers=0)
    text |= {"laurel_rank": 4, "layer_types": ["full_attention"] * 2, "activation_sparsity_pattern": [0.0, 0.0]}
    sounds: Values = {"input_feat_size": 8, "hidden_size": 16, "conf_num_attention_heads": 2}
    sounds |= {"conf_num_hidden_layers": 1, "sscp_conv_channel_size": [8, 4], "vocab_size": 16, "vocab_offset": 304}
    names = {"image_token_id": "<image_soft_token>", "audio_token_id": "<audio_soft_token>"}
    views = tf.SiglipVisionConfig(**VISION, image_size=28, vocab_size=16, vocab_offset=288, rms_norm_eps=1e-6)
    config = tf.Gemma3nConfig(
        text_config=text, audio_config=sounds, audio_soft_tokens_per_image=12, initializer_range=0.2,
        **{name: token(spelled) for name, spelled in names.items()},
    )  # fmt: skip
    vars(config)["vision_config"] = views  # its own needs timm, and nobody looks here
    return config


def _gemma4(token: Token) -> Any:
    text = text_config(vocab_size_per_layer_input=320, hidden_size_per_layer_input=8, global_head_dim=8)
    text |= {"layer_types": ["full_attention"] * 2}
    sounds: Values = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "initializer_range": 0.2}
    sounds |= {"subsampling_conv_channels": [128, 4], "output_proj_dims": 16}
    views: Values = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    views |= {"head_dim": 8, "intermediate_size": 24, "initializer_range": 0.2}
    ids = {f"{kind}_token_id": token(f"<|{kind}|>") for kind in ("image", "video", "audio")}
    return tf.Gemma4Config(text_config=text, vision_config=views, audio_config=sounds, **ids, initializer_range=0.2)


def _phi4(token: Token) -> Any:
    sounds: Values = {"hidden_size": 16, "intermediate_size": 24, "num_blocks": 2, "num_attention_heads": 2}
    sounds |= {"ext_pw_out_channel": 16, "depthwise_separable_out_channel": 16, "input_size": 8}
    sounds |= {"nemo_conv_channels": 8, "feature_layer": -1, "initializer_range": 0.2}
    views = {**VISION, "image_size": 28, "crop_size": 28, "image_token_id": token("<|image|>")}
    return tf.Phi4MultimodalConfig(
        **text_config(), audio_config={**sounds, "audio_token_id": token("<|audio|>")}, vision_config=views
    )


def granite_speech(folder: Path) -> Path:
    """3 tokens of each 15 pairs of frames."""
    sounds: Values = {"feature_extractor_type": "GraniteSpeechFeatureExtractor", "n_mels": 8}
    files = {"preprocessor_config": sounds, "processor_config": {"audio_processor": sounds}}
    return write_dummy(folder, "GraniteSpeechProcessor", ["<|audio|>"], template_of("", "", "<|audio|>"), files)


def _granite_speech(token: Token) -> Any:
    sounds: Values = {"input_dim": 16, "hidden_dim": 16, "num_layers": 2, "num_heads": 2, "output_dim": 8}
    queries: Values = {"model_type": "blip_2_qformer", "hidden_size": 16, "encoder_hidden_size": 16}
    queries |= {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "initializer_range": 0.2}
    return tf.GraniteSpeechConfig(
        text_config=text_config(model_type="granite"), encoder_config=sounds, projector_config=queries,
        audio_token_index=token("<|audio|>"), has_lora_adapter=False, initializer_range=0.2,
    )  # fmt: skip


def _fun_asr(token: Token) -> Any:
    sounds = {**_ENCODER, "num_hidden_layers": 3, "num_timestamp_prediction_layers": 1, "num_mel_bins": 8}
    joint = {**_ENCODER, "hidden_size": 32, "intermediate_size": 8, "projector_hidden_size": 24}
    config = tf.FunAsrNanoConfig(
        text_config=text_config(model_type="qwen3"), audio_config={**sounds, "initializer_range": 0.2},
        adaptor_config=joint, audio_token_id=token("<|object_ref_start|>"), initializer_range=0.2,
    )  # fmt: skip
    config.adaptor_config._attn_implementation = "sdpa"  # as from_pretrained's `attn_implementation` does
    return config


#: classes that take sounds and text; one sound in a sample
_sounds = partial(Class, has_images=False, has_sounds=True)
_one_sound = partial(_sounds, hears_several=False)
_omni = partial(Class, has_videos=True, has_sounds=True, hears_videos=True)
_processor = partial(partial, processors.hearing)

#: by the name of the model's class
HEARING = {
    "Qwen2_5OmniThinkerForConditionalGeneration": _omni(processors.qwen2_5_omni, omni.qwen2_5_omni),
    "Qwen3OmniMoeThinkerForConditionalGeneration": _omni(processors.qwen3_omni, omni.qwen3_omni),
    "AudioFlamingo3ForConditionalGeneration": _one_sound(
        _processor(name="AudioFlamingo3", token="<sound>"), _audio_flamingo
    ),
    "GlmAsrForConditionalGeneration": _one_sound(_processor(name="GlmAsr", token="<|pad|>"), _glm_asr),
    "Qwen3ASRForConditionalGeneration": _one_sound(
        _processor(name="Qwen3ASR", extractor="Qwen3ASR", more=("<|abos|>", "<|aeos|>")), _qwen3_asr
    ),
    "Qwen2AudioForConditionalGeneration": _sounds(processors.qwen2_audio, _qwen2_audio),
    "MusicFlamingoForConditionalGeneration": _one_sound(
        _processor(name="MusicFlamingo", token="<sound>", more=("<|sound_bos|>", "<|sound_eos|>")), _music_flamingo
    ),
    "VibeVoiceAsrForConditionalGeneration": _sounds(vibevoice_asr, _vibevoice_asr),
    "MossTranscribeDiarizeForConditionalGeneration": _sounds(moss, _moss),
    "Gemma3nForConditionalGeneration": _sounds(gemma3n, _gemma3n),
    "Gemma4ForConditionalGeneration": _sounds(gemma4, _gemma4, in_double=True),
    "Phi4MultimodalForCausalLM": _one_sound(phi4, _phi4, joins_sounds=False),
    "FunAsrNanoForConditionalGeneration": _one_sound(
        _processor(name="FunAsrNano", extractor="FunAsrNano", token="<|object_ref_start|>"),
        _fun_asr,
        needs="torchaudio",
    ),
    "GraniteSpeechForConditionalGeneration": _one_sound(
        granite_speech, _granite_speech, joins_sounds=False, needs="torchaudio"
    ),
}
