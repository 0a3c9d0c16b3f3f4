"""What settings of other packers are called here; a test compares them with the page of other packers."""

#: the last part of a key → what to write here
THEIRS = {
    # InternVL's PackedDataset
    "tokenizer": "model.processor",
    "max_packed_tokens": "packing.max_token_len",
    "num_images_expected": "packing.max_visual_tokens",
    "split_buffer": "packing.overlong=split_turns",
    # NeMo Automodel
    "pack_size": "packing.max_token_len",
    "drop_long_samples": "packing.overlong",
    "max_packs": "source.limit, or max_packs of LazyPackedDataset",
    "packing_format": "packing.layout",
    "cp_size": "packing.pad_to_multiple_of",
    "inject_fake_images": "packing.need_image=true packing.group_by=none",
    "num_proc": "executor.num_workers",
    # LoongForge
    "wds_dir": "source.path",
    "packed_wds_dir": "output.dir",
    "work_dir": "cache_dir",
    "template_text_key": "source.messages_key",
    "model_type": "+model=NAME",
    "processor_loader": "model.processor",
    "chat_template_path": "model.chat_template",
    "maxsize": "output.max_shard_bytes",
    "maxcount": "output.max_shard_packs",
    "max_shards": "source.limit",
}
