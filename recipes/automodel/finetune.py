"""Fine-tuning with NeMo Automodel on packs that are made while it loads: its own recipe, and one question before it.

    pip install "nemo_automodel>=0.7" energon-pack
    torchrun --nproc-per-node 8 recipes/automodel/finetune.py recipes/automodel/qwen3_vl_4b.yaml
    torchrun … recipes/automodel/finetune.py recipes/automodel/qwen3_vl_4b.yaml --step_scheduler.max_steps 10
    python recipes/automodel/finetune.py recipes/automodel/qwen3_vl_4b.yaml --look

What is of energon_pack stands in the YAML (`dataset`, `validation_dataset` and their `collate_fn`), so `automodel
finetune` runs it as well. What it lacks there is `check_automodel`: it asks the model that was built whether these
batches keep their members apart in it, as no data loader can.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from energon_pack import check_automodel


def look(config: Any) -> None:
    """Plan, and print the first batch of each loader as one rank of one would get it; no GPU, no model."""
    for name, of in (("dataset", config.vlm_dataloader), ("validation_dataset", config.vlm_validation_dataloader)):
        model = config.get("model.pretrained_model_name_or_path")
        size = config.get("step_scheduler.local_batch_size", 1)
        built = of.build(pretrained_model_name_or_path=model, dp_rank=0, dp_world_size=1, batch_size=size)
        print(f"{name}: {len(built.dataloader.dataset)} packs; a batch:")
        for key, value in next(iter(built.dataloader)).items():
            print(f"  {key}: {f'{list(value.shape)} {value.dtype}' if hasattr(value, 'shape') else value}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="all other arguments are Automodel's: --KEY.OF.THE.YAML VALUE",
    )
    parser.add_argument("config", type=Path, help="a YAML of Automodel's")
    parser.add_argument("--look", action="store_true", help="print the first batches, and end")
    given, overrides = parser.parse_known_args(arguments)

    from nemo_automodel.components.config._arg_parser import parse_args_and_load_config
    from nemo_automodel.components.config.loader import ConfigNode
    from nemo_automodel.recipes._typed_config import RecipeConfig
    from nemo_automodel.recipes.vlm.finetune import FinetuneRecipeForVLM

    config: ConfigNode = parse_args_and_load_config(str(given.config), overrides)
    if given.look:
        look(RecipeConfig(config))
        return
    recipe = FinetuneRecipeForVLM(config)
    recipe.setup()
    check_automodel(recipe)
    recipe.run_train_validation_loop()


if __name__ == "__main__":
    main()
