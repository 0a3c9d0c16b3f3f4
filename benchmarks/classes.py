"""Does each class of transformers that writes text keep the members of a pack apart, and by what?

    python benchmarks/classes.py --results classes.jsonl --save docs/tables/classes.csv   # all: half an hour
    python benchmarks/classes.py --only LlamaForCausalLM GptOssForCausalLM --attention sdpa
    python benchmarks/classes.py --device cuda --attention sdpa flash_attention_2 --results gpu.jsonl   # real kernels

Every class of transformers' mappings for causal language models and for image-text-to-text is made small, from its own
default config, and proven as `energon_pack.training.proof` does it for a user's model: one member changed, the logits
of the others must not move, and each member must have the logits that it has alone, in transformers' plain way. What
sees images is given some, prepared by its own image processor.

Results are lines of JSON, one for each class and attention implementation; what is in the file is not run again.
"""

import argparse
import csv
import importlib
import json
import multiprocessing
import resource
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from class_members import members
from class_models import Named, config_of, missing_layers, named, tf, with_layers
from class_table import table
from gpu_exact import true_fp32
from torch.nn.attention import flex_attention as flex

from energon_pack.training.finding import MaskTry
from energon_pack.training.member_encoder import Encoded
from energon_pack.training.model_wrappers import configs_in
from energon_pack.training.probe_batches import plain_logits
from energon_pack.training.proof import try_masks
from energon_pack.training.small_model import build_small_model
from support.emulated_flash import emulated_flash

FLASH = "flash_attention_2"
ATTENTIONS = ("eager", "sdpa", "flex_attention", FLASH)
_SECONDS = 900  # of a class: on a busy core, images of 1024 × 1024 take minutes
_BYTES = 16 << 30
_UNKNOWN = (
    "does not support an attention implementation",
    "does not support Flash Attention",
    "is not a valid attention implementation registered",  # a class that takes a flash kernel of its own
)

Row = dict[str, Any]
#: a class and kinds of runs → a row for each
Find = Callable[[Named, Sequence[str]], Iterator[Row]]


def main() -> None:
    arguments = _arguments()
    path: Path = arguments.results
    known = _read(path)
    for one in named():
        missing = [name for name in arguments.attention if (one.name, name) not in known]
        if not missing or (arguments.only and one.name not in arguments.only):
            continue
        for row in in_child(one, missing, arguments.device, partial(rows_of, device=arguments.device)):
            known[one.name, row["attention"]] = row
            with path.open("a") as lines:
                lines.write(json.dumps(row) + "\n")
            print(_line(row), flush=True)
    if arguments.save:
        with arguments.save.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(table(list(known.values())))


def rows_of(one: Named, attentions: Sequence[str], device: str) -> Iterator[Row]:
    """One for each attention implementation."""
    about = {"name": one.name, "type": one.model_type, "sees": one.sees}
    make = getattr(tf, one.name)
    try:
        config = config_of(one)
        every, untried = every_layer(make, config)
        model = build_small_model(make, every, "eager")
        given, why = members_of(one, model)
    except Exception as error:  # foreign code
        yield from ({**about, "attention": name, "verdict": "not built", "why": said(error)} for name in attentions)
        return
    about |= {"media": sorted(given[0].media), "no_media": why, "untried": untried}
    for name in attentions:
        start = time.perf_counter()
        prove_by = partial(try_masks, make, mask="auto", attention=name, device=device)
        with emulated_flash() if name == FLASH and device == "cpu" else true_fp32():
            row = {**about, "attention": name, **_verdict(prove_by(every, given))}
            if given[0].media and row["verdict"] == "refused":
                row["words"] = _verdict(prove_by(every, members(one, model, False)))
            if every is not config and row["verdict"] == "refused":
                row["default"] = _verdict(prove_by(config, given))
        yield {**row, "seconds": round(time.perf_counter() - start, 1)}


def every_layer(make: Any, config: Any) -> tuple[Any, str]:
    """A config with each kind of layer that the class names; or the same config, and why such a one can't be run."""
    missing = missing_layers(config)
    if not missing:
        return config, ""
    try:
        every = with_layers(config, missing)
        model = build_small_model(make, every, "eager")
        with torch.no_grad():
            model(input_ids=torch.arange(20, 40)[None], use_cache=False)
    except Exception as error:  # foreign code
        return config, f"{', '.join(missing)}: {said(error)}"
    return every, ""


def members_of(one: Named, model: Any) -> tuple[list[Encoded], str]:
    """Members with which the class runs alone: with images if it can be; else why not."""
    why = ""
    if one.sees and any(getattr(part, "is_encoder_decoder", False) for part in configs_in(model.config)):
        return members(one, model, False), "an encoder reads the image, and the whole text: it is no model for packs"
    if one.sees:
        try:
            given = members(one, model, True)
            if given[0].media:
                _run(model, given)
                return given, ""
            why = "its image processor gives nothing that the model takes"
        except Exception as error:  # foreign code
            why = said(error)
    given = members(one, model, False)
    _run(model, given)
    return given, why


def _run(model: Any, given: Sequence[Encoded]) -> None:
    for member in given:
        plain_logits(model, member)


def _verdict(proofs: Sequence[MaskTry]) -> Row:
    """What was shown; of the masks that fail, the one that came nearest."""
    best = proofs[-1] if proofs[-1].is_exact else min(proofs, key=_distance)
    found: Row = {"verdict": "refused", "by": best.mask, "why": best.error}
    if best.is_exact:
        found["verdict"] = "exact"
    elif all(any(words in proof.error for words in _UNKNOWN) for proof in proofs):
        found["verdict"] = "none"
    if best.finding:
        found |= {
            "alone": best.finding.output_difference, "own": best.finding.output_variation,
            "loss": best.finding.loss_difference, "gradients": best.finding.gradient_difference,
            "others": best.finding.leaked_gradient,
        }  # fmt: skip
    found["tried"] = {proof.mask: str(proof.finding or proof.error)[:200] for proof in proofs}
    return found


def _distance(proof: MaskTry) -> float:
    return max(*proof.finding.differences, proof.finding.leaked_gradient or 0.0) if proof.finding else float("inf")


def in_child(one: Named, kinds: Sequence[str], device: str, find: Find, key: str = "attention") -> list[Row]:
    """What a function finds of a class, in a process of its own, within a time and some memory; a row a kind."""
    context: Any = multiprocessing.get_context("fork" if device == "cpu" else "spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(find, one, kinds, device, theirs))
    child.start()
    theirs.close()
    rows: list[Row] = []
    try:
        while True:
            rows.append(ours.recv())
    except EOFError:
        pass
    child.join()
    for name in kinds[len(rows) :]:
        rows.append({"name": one.name, "type": one.model_type, "sees": one.sees, key: name})
        is_late = child.exitcode == -signal.SIGALRM
        why = f"more than {_SECONDS} s" if is_late else f"its process ended with {child.exitcode}"
        rows[-1] |= {"verdict": "not built", "why": why}
    return rows


def _child(find: Find, one: Named, kinds: Sequence[str], device: str, rows: Any) -> None:
    signal.alarm(_SECONDS)  # its default action ends the process
    if device == "cpu":  # CUDA reserves more addresses than there is memory
        resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    # Compiling flex_attention takes half a minute a class; as PyTorch's reference it has the same masks.
    torch._dynamo.config.disable = True
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    for row in find(one, kinds):
        rows.send(row)
        signal.alarm(_SECONDS)


def said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _read(path: Path) -> dict[tuple[str, str], Row]:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(row["name"], row["attention"]): row for row in rows}


def _line(row: Row) -> str:
    figures = " ".join(f"{name} {row[name]:.1e}" for name in ("alone", "own", "gradients", "others") if row.get(name))
    media = " ".join(row.get("media", [])) or row.get("no_media", "")[:80]
    return (
        f"{row['name']:44} {row['attention']:14} {row['verdict']:9} {row.get('by', ''):9} {figures} {row['why'][:100]}"
        f" [{media}] {row.get('seconds', '')}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="names of classes")
    parser.add_argument("--attention", nargs="+", default=ATTENTIONS, choices=ATTENTIONS)
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda: with flash-attn itself, not its stand-in"
    )
    parser.add_argument("--results", type=Path, default=Path("classes.jsonl"), help="lines of JSON, read and added to")
    parser.add_argument("--save", type=Path, help="write the table there")
    return parser.parse_args()


def quiet() -> None:
    """Silence transformers, and import once what every child would import."""
    for name in ("generation", "image_processing_utils", "models.llama.modeling_llama", "models.clip.modeling_clip"):
        importlib.import_module(f"transformers.{name}")
    warnings.filterwarnings("ignore")
    tf.logging.set_verbosity_error()
    torch.set_num_threads(1)


if __name__ == "__main__":
    quiet()
    main()
