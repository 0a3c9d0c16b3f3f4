"""Megatron-Bridge 0.6 on packs: its own Energon dataset (`dataset.path=packed/demo`), with this package's encoder.

    from megatron.bridge.recipes.qwen_vl.qwen3_vl import qwen3_vl_8b_peft_energon_config
    cfg = on_packs(qwen3_vl_8b_peft_energon_config())          # a recipe whose dataset is an EnergonDatasetConfig
    cfg.dataset.path = "packed/demo"
    finetune(cfg, forward_step_func=vlm_step.forward_step)

`recipes/megatron_bridge.py` has its own dataset provider, and checks more of the config.
"""

import megatron.bridge.data.builders.energon as theirs

from energon_pack import PackedTaskEncoder


def encoder(config):  # type: ignore[no-untyped-def]
    return PackedTaskEncoder(config.path, config.task_encoder.hf_processor_path, layout="thd")


def on_packs(cfg):  # type: ignore[no-untyped-def]
    theirs.build_energon_task_encoder = encoder  # Bridge has no registry of encoders
    cfg.dataset.shuffle_buffer_size = 1  # this line and the next keep the order of the plan: even steps
    cfg.dataset.dataset_kwargs = {"shuffle_over_epochs_multiplier": None, "parallel_shard_iters": 1}
    cfg.train.micro_batch_size = cfg.dataset.micro_batch_size = 1  # one pack
    cfg.model.calculate_per_token_loss, cfg.ddp.average_in_collective = True, False
    return cfg
