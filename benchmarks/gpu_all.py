"""All that a GPU shows, on one page: `make gpu`, or `python benchmarks/gpu_all.py [--dry] [--save gpu.md]`.

Each part is a process of its own with a limit of its own, eight minutes in all on one H100; its result is on the page
as soon as it ends. A part that fails or does not end says so there, and the next one runs. `--dry` runs tiny models on
a CPU, where the limits are three times as long.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_GPU = "gpu.py --folder FOLDER --max-places 8192 --steps 20"
_APART = """Each member of a pack beside the same sample alone, in a small model of the class: the largest difference of
outputs, loss, gradients and their size, as shares. A share above the goal: members see one another."""
_TRAINING = """Forward, backward and AdamW, without loading; tokens are those of samples, without padding. `padded`: the
same samples a step, each a row of its own, padded to the longest. `flattened`, the Trainer's own packing: the same
samples in all, in an order of chance, by DataCollatorWithFlattening; it numbers an image's places as text, so its
losses are others. `places a token` counts padding; `guard` says what the package found of the class. The second table
has the loss of some steps, and how far packed is from padded, relative: in the first step, and at most."""
_LOADER = """Packs a second that the loader makes, by its workers (0: in the training's process). It keeps up where they
are more than the steps a second of packed training above."""
_READS = """`reads`: how often the host waits for the GPU in one forward. `as it was`: packs without the values that the
vision tower else reads from the GPU; then with them, of one width, and of one number of boundaries (`shapes`: how many
pairs of both there are). `beside`: the rate as a multiple of the first row's; `kernels`: of a forward and backward;
`MB`: of one batch; `most reads at`: how many, and the line. The second table is a step of text as a CUDA graph."""
_TREES = """Samples with a shared beginning (root) and one branch each; `tokens`: all, and those of the tree. Seconds of
a forward and backward one by one, then the share of it that one pack takes, and one tree by masks or gathered keys.
The goal is for both trees."""
_PAIRS = """DPO's loss, forward and backward, of the same pairs. Tokens are those of both sides, prompts twice, so that
rates compare; `places` is what the model computes, with padding. `beside padded`: how many times as fast, and how
far the mean loss is, relative."""


@dataclass(frozen=True)
class Part:
    """A script of this folder, and what its figures are."""

    name: str
    #: seconds
    limit: float
    command: str
    #: further options on a CPU
    dry: str
    words: str


#: the limits are eight minutes together
PARTS = (
    Part("Members apart, Qwen3-VL", 45, f"{_GPU} --only members", "--dry", _APART),
    Part("Members apart, text", 90, f"{_GPU} --only members --family qwen3", "--dry", _APART),
    Part("Training, Qwen3-VL of 2B", 95, f"{_GPU} --only training --attention BEST", "--dry --steps 6", _TRAINING),
    Part("Loader", 35, f"{_GPU} --only loader", "--dry --steps 10", _LOADER),
    Part("Host reads", 70, f"{_GPU} --stalls --steps 8 --attention sdpa", "--dry --steps 5", _READS),
    Part("Trees", 45, "tree_steps.py --cases 3 --times 2 --device DEVICE", "--cases 1 --times 1", _TREES),
    Part("Preference pairs", 50, "gpu_pairs.py", "--dry", _PAIRS),
    Part(
        "Training, text of 1B",
        50,
        f"{_GPU} --only training --attention BEST --family qwen3",
        "--dry --steps 6",
        _TRAINING,
    ),
)


def argv_of(part: Part, folder: str, is_dry: bool) -> list[str]:
    """The command line of a part; packs that are made in the folder serve several."""
    script, *words = f"{part.command} {part.dry if is_dry else ''}".split()
    best = "flash_attention_2" if find_spec("flash_attn") and not is_dry else "sdpa"
    given = {"FOLDER": folder, "BEST": best, "DEVICE": "cpu" if is_dry else "cuda"}
    return [
        sys.executable,
        "-u",
        "-W",
        "ignore",
        f"{ROOT}/benchmarks/{script}",
        *(given.get(one, one) for one in words),
    ]


def run(argv: Sequence[str], limit: float) -> tuple[str, str]:
    """What a command printed, and why it failed, if it did; its processes end with it."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(argv, stdout=out, stderr=errors, env=environment, start_new_session=True)
        why = ""
        try:
            if code := child.wait(limit):
                why = f"exit status {code}"
        except subprocess.TimeoutExpired:
            why = f"it did not end in {limit:g} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        for file in (out, errors):
            file.seek(0)
        last = [line.strip() for line in errors if line.strip()][-1:]
        return out.read().rstrip(), why and ": ".join((why, *last)).replace(f"{ROOT}/", "")


def run_all(parts: Sequence[tuple[Part, Sequence[str]]], page: Path, times: float = 1) -> int:
    """Run each part, and add its result to the page as it ends; return how many failed."""
    failed, start = [], time.monotonic()

    def write(text: str) -> None:
        print(text, flush=True)
        with page.open("a") as file:
            print(text, file=file)

    for part, argv in parts:
        began = time.monotonic()
        printed, why = run(argv, part.limit * times)
        write(f"\n## {part.name}\n\n{part.words}\n\n```\n{printed}\n```\n")
        if why:
            failed.append(part.name)
            write(f"**Failed**: `{why}`\n")
        goals = len(re.findall(r"\bNO\b", printed))
        write(f"{time.monotonic() - began:.0f} s of at most {part.limit * times:g}; goals that do not hold: {goals}")
    write(f"\nAll took {time.monotonic() - start:.0f} s. Failed: {', '.join(failed) or 'nothing'}.")
    return len(failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="tiny models on a CPU")
    parser.add_argument("--save", type=Path, default=Path("gpu.md"), help="the page (gpu.md)")
    options = parser.parse_args()
    import torch

    if not options.dry and not torch.cuda.is_available():
        parser.error("torch finds no GPU: --dry (make gpu DRY=1) tries each part on a CPU")
    flash = "" if find_spec("flash_attn") else ", without flash-attn (`pip install flash-attn`): sdpa is in its place"
    device = "a CPU with tiny models, whose figures show nothing" if options.dry else torch.cuda.get_device_name()
    options.save.write_text(f"# What a GPU shows\n\n`make gpu` on {device}{flash}.\n")
    with tempfile.TemporaryDirectory() as folder:
        parts = [(part, argv_of(part, folder, options.dry)) for part in PARTS]
        sys.exit(run_all(parts, options.save, 3 if options.dry else 1) > 0)


if __name__ == "__main__":
    main()
