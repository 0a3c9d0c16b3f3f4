"""What no default says: settings of single classes, without which their processors can't be made or called."""

from typing import Any

_CLIP_14 = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}

#: by class and part: the class of a part that no table of transformers names
PARTS: dict[tuple[str, str], str] = {
    ("ColModernVBertProcessor", "image_processor"): "Idefics3ImageProcessor",
    ("NemotronH_Omni_Reasoning_V3Processor", "feature_extractor"): "ParakeetFeatureExtractor",
}
#: by class: its own settings, those of a published model where its defaults are None
PROCESSOR: dict[str, dict[str, Any]] = {
    "Granite4VisionProcessor": {
        "patch_size": 16,
        "vision_feature_select_strategy": "full",
        "downsample_rate": "4/8",
    },
    "LlavaProcessor": _CLIP_14,
    "LlavaNextProcessor": _CLIP_14,
    "LlavaNextVideoProcessor": _CLIP_14,
    "LlavaOnevisionProcessor": {"num_image_tokens": 729, "vision_feature_select_strategy": "full"},
    "PerceptionLMProcessor": {"patch_size": 14, "pooling_ratio": 2},
}
#: by class: settings of its image processor
IMAGE: dict[str, dict[str, Any]] = {
    "ColPaliProcessor": {"image_seq_length": 1024, "size": {"height": 448, "width": 448}},
    "Florence2Processor": {"image_seq_length": 577, "size": {"height": 768, "width": 768}, "do_center_crop": False},
    "PaliGemmaProcessor": {"image_seq_length": 256, "size": {"height": 224, "width": 224}},
}
#: by class: settings of its video processor
VIDEO: dict[str, dict[str, Any]] = {
    "Ernie4_5_VLMoeProcessor": {"draw_on_frames": False},  # its font comes with the weights; no size depends on it
    "NemotronH_Omni_Reasoning_V3Processor": {
        "norm_mean": [0.48145466, 0.4578275, 0.40821073],
        "norm_std": [0.26862954, 0.26130258, 0.27577711],
    },
}
#: by class and kind: what stands around a placeholder, and its class looks for
AROUND: dict[tuple[str, str], str] = {
    ("HunYuanVLProcessor", "image"): "<|image_start|>{}<|image_end|>",
}
