"""What no rule finds: settings of single classes, without which they can't be made, or lack what they are about."""

from typing import Any

_LETTERS = "ABCDEFGHIJ"
_MROPE = {"rope_type": "default", "rope_theta": 1e4}
_FULL = {"full_attention": dict(_MROPE), "sliding_attention": dict(_MROPE)}

QWEN4 = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 256,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
}

_CLIP = {"model_type": "clip_vision_model", "image_size": 56, "patch_size": 14}
_SIGLIP = {"model_type": "siglip_vision_model", "image_size": 56, "patch_size": 14}
_TILES = [[56, 112], [112, 56], [112, 112]]

#: by class or type of model: settings of the config
CONFIGS: dict[str, dict[str, Any]] = {
    "aria": {"vision_config": {"model_type": "idefics3_vision", "patch_size": 14, "image_size": 490}},
    "aya_vision": {"vision_config": {"model_type": "siglip_vision_model", "num_attention_heads": 16}},
    "blip": {"text_config": {"num_attention_heads": 12}},
    "blt": {"encoder_hash_byte_group_vocab": 512},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "clip_qkv": 8.0}},
    "chameleon": {
        "vq_config": {"num_embeddings": 10, "resolution": 64, "base_channels": 32, "num_res_blocks": 1},
        "vocabulary_map": {"<image>": 7, **{f"IMGIMG{c}Z": 20 + i for i, c in enumerate(_LETTERS)}},
    },
    "codegen": {"n_head": 4, "n_embd": 512, "rotary_dim": 32},
    "cohere_compass_text": {"rope_parameters": _FULL},
    "CohereCompassForCausalLM": {"rope_parameters": _FULL},
    "CohereCompassForConditionalGeneration": {"text_config": {"rope_parameters": _FULL}},
    "deepseek_ocr2": {
        "text_config": {"mlp_layer_types": ["dense", *["sparse"] * 31], "num_experts_per_tok": 2},
        "vision_config": {
            "encoder_config": {
                "hidden_size": 896,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "intermediate_size": 96,
            }
        },
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "Emu3ForConditionalGeneration": {
        "vq_config": {"base_channels": 64, "hidden_size": 256, "codebook_size": 64, "num_res_blocks": 1},
        "vocabulary_map": {
            "<image>": 7,
            "<|extra_200|>": 19,
            **{f"<|visual token {i:06}|>": 20 + i for i in range(64)},
        },
    },
    "falcon": {"num_attention_heads": 64, "hidden_size": 4096},
    "falcon_h1": {"mamba_d_ssm": 4096, "mamba_n_heads": 64, "mamba_d_head": 64},
    "gemma3": {"mm_tokens_per_image": 4},
    "gemma4": {
        "vision_config": {"model_type": "gemma4_vision"},
        "text_config": {"model_type": "gemma4_text", "use_bidirectional_attention": "vision"},
    },
    "gemma4_unified": {"vision_config": {"model_type": "gemma4_unified_vision"}},
    "Gemma4AssistantForCausalLM": {
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
        }
    },
    "glm4v_moe": {
        "text_config": {
            "num_attention_heads": 32,
            "rope_parameters": {**_MROPE, "mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5},
        }
    },
    "glm4v": {
        "text_config": {"rope_parameters": {**_MROPE, "mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5}}
    },
    "glm46v": {
        "text_config": {
            "model_type": "glm4v_text",
            "rope_parameters": {**_MROPE, "mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5},
        }
    },
    "hunyuan_vl": {"text_config": {"rope_parameters": {**_MROPE, "mrope_section": [16, 16, 16, 16]}}},
    "idefics3": {"vision_config": {"model_type": "idefics3_vision", "image_size": 364, "patch_size": 14}},
    "smolvlm": {"vision_config": {"model_type": "smolvlm_vision", "image_size": 364, "patch_size": 14}},
    "llava_next": {"vision_config": _CLIP, "image_grid_pinpoints": _TILES},
    "llava_next_video": {"vision_config": _CLIP, "image_grid_pinpoints": _TILES},
    "llava_onevision": {"vision_config": _SIGLIP, "image_grid_pinpoints": _TILES},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "lfm2_vl": {"text_config": {"model_type": "lfm2", "layer_types": ["conv", "conv", "full_attention", "conv"] * 8}},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "got_ocr2": {"vision_config": {"image_size": 256}},
    "mllama": {"vision_config": {"image_size": 56, "intermediate_layers_indices": [3], "vision_output_dim": 2560}},
    "molmo2": {"adapter_config": {"text_hidden_size": 4096}},
    "musicgen": {"num_codebooks": 1},
    "musicgen_melody": {"num_codebooks": 1},
    "Qwen4ExpForCausalLM": QWEN4,
    "Qwen4ExpForConditionalGeneration": {"text_config": QWEN4},
    "granite4_vision": {
        "vision_config": {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 16},
        "image_grid_pinpoints": [[384, 384], [384, 768]],
        "downsample_rate": "4/8",
        "vision_feature_select_strategy": "full",
        "deepstack_layer_map": [[-1, 0]],
        "spatial_target_layers": [0, 0, 1, 1],
    },
    "llama4": {
        "vision_config": {
            "hidden_size": 1408,
            "num_attention_heads": 16,
            "intermediate_size": 5632,
            "vision_output_dim": 4096,
        }
    },
    "qwen2_5_omni_thinker": {"vision_start_token_id": 151652, "vision_end_token_id": 151653},
    "qwen3_omni_moe_thinker": {
        "vision_start_token_id": 151652,
        "vision_end_token_id": 151653,
        "text_config": {"num_attention_heads": 16, "num_key_value_heads": 4},
    },
    "unlimited_ocr": {"vision_config": {"encoder_config": {"hidden_size": 1024, "num_attention_heads": 2}}},
    "reformer": {"axial_pos_embds": False},
    "step3p7": {"text_config": {"model_type": "step3p5", "sliding_window": 8}},
    "t5gemma2": {"encoder": {"mm_tokens_per_image": 4}},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
    "zamba2": {"n_mamba_heads": 32},
}

#: by type of model: the type whose image processor it uses
LIKE: dict[str, str] = {
    "glm_ocr": "glm46v",
    "instructblipvideo": "blip",
    "qwen2_5_omni_thinker": "qwen2_vl",
    "qwen3_omni_moe_thinker": "qwen2_vl",
}
#: by type of model: settings of its image processor
PROCESSORS: dict[str, dict[str, Any]] = {
    "aria": {"max_image_size": 490},
    "chameleon": {"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}},
    "deepseek_ocr2": {"crop_to_patches": False},
    "dots3_note": {"temporal_patch_size": 1},
    "emu3": {"min_pixels": 64 * 64},
    "idefics3": {"do_image_splitting": False},
    "smolvlm": {"do_image_splitting": False},
}
#: by type of model: inputs that go with an image
BESIDE: dict[str, dict[str, list[Any]]] = {
    "instructblip": {"qformer_input_ids": [[1, 2, 3]], "qformer_attention_mask": [[1, 1, 1]]},
    "instructblipvideo": {"qformer_input_ids": [[1, 2, 3]], "qformer_attention_mask": [[1, 1, 1]]},
}
