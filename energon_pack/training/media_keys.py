"""The names of media inputs of models."""

#: names of most models' media inputs, for places that don't know the processor
MEDIA_KEYS = frozenset(
    (
        "pixel_values", "pixel_attention_mask", "image_grid_thw", "image_sizes", "batch_num_images",
        "pixel_values_videos", "video_grid_thw", "second_per_grid_ts",
        "pixel_mask", "high_res_pixel_values", "pixel_values_images", "image_position_ids", "image_grid_hw",
        "image_merge_sizes", "spatial_shapes", "target_sizes", "num_local_patches", "pixel_values_local",
        "input_features", "feature_attention_mask", "input_features_mask", "audio_input_features", "audio_embed_sizes",
    )
)  # fmt: skip
