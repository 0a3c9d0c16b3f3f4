"""Run TRL's recipe for preference pairs, and note the loss of each of its steps: `dpo_recipe.py OUT RECIPE WORDS…`"""

import json
import runpy
import sys
from pathlib import Path

from energon_pack import prepare_torchvision

prepare_torchvision()  # before TRL imports transformers
out, recipe, *words = sys.argv[1:]
sys.argv = [recipe, *words, "--output_dir", "out", "--save_steps", "4", "--max_steps", "4"]
runpy.run_path(recipe, run_name="__main__")
history = json.loads(Path("out/checkpoint-4/trainer_state.json").read_text())["log_history"]
Path(out).write_text(json.dumps([note["loss"] for note in history if "loss" in note]))
