"""Do two checkouts pack the same bytes, and read the same from them? Run before and after a change that should not:

    git worktree add /tmp/before REV
    python benchmarks/same_bytes.py /tmp/before                   # six minutes a checkout
    python benchmarks/same_bytes.py /tmp/before --save before.json
    python benchmarks/same_bytes.py before.json --only demo caps  # hashes from above, two of the runs

Packs the demo and, where it is, all of ../shared/real, in both flavours, with videos, cuts, caps, splits and aligned
members. Prints each file that differs. Exit code 1 where any does.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
REAL = HERE.parent / "shared" / "real"
FLAVORS = ("packed_multi_mix_qa", "packed_captioning")

Hashes = dict[str, str]


def runs() -> dict[str, list[str]]:
    """Overrides of each run, by its name."""
    found = {
        "demo": ["+model=qwen2_5_vl"],
        "demo-thd": ["+model=qwen2_5_vl", "packing=thd", "packing.max_token_len=2048"],
        "demo-splits": [
            "+model=qwen2_5_vl",
            "output.splits.val=0.1",
            "packing.group_by=none",
            "output.max_shard_packs=3",
        ],
    }
    if not REAL.is_dir():
        return found
    loses = ["max_skipped=1", "packing.max_dropped_tokens=1"]  # else runs that lose much publish nothing to compare
    qwen = ["+model=qwen2_5_vl", f"model.processor={REAL}/processors/qwen2_5_vl", *loses]
    for folder in sorted((REAL / "wds").iterdir()):
        for flavor in FLAVORS:
            source = [f"source.path={folder}", "packing.max_token_len=4096", f"output.flavor={flavor}"]
            found[f"wds-{folder.name}-{flavor}"] = [*qwen, *source]
    for file in sorted((REAL / "jsonl").glob("*.jsonl")):
        media_root = [f"source.media_root={REAL}/data/{file.stem}"] if (REAL / "data" / file.stem).is_dir() else []
        for flavor in FLAVORS:
            source = ["source=jsonl", f"source.path={file}", *media_root, f"output.flavor={flavor}"]
            found[f"jsonl-{file.stem}-{flavor}"] = [*qwen, *source]
    text, video = f"source.path={REAL}/wds/text_sharegpt_zh", f"source.path={REAL}/wds/video_demo"
    cut = ["packing.max_token_len=1024", "packing.overlong=split_turns"]
    found["split_turns"] = [*qwen, text, *cut]
    found["truncate_text"] = [*qwen, text, cut[0], "packing.overlong=truncate_text"]
    found["caps"] = [*qwen, f"source.path={REAL}/wds/image_mathv", "packing.max_images=3", "packing.max_members=9"]
    found["qwen_vl_utils"] = [*qwen, video, "media=qwen_vl_utils"]
    internvl = ["+model=internvl3", f"model.processor={REAL}/processors/internvl3_hf", *loses]
    found["internvl3-video"] = [*internvl, video, "media=uniform"]
    return found


class Checkout:
    """The package of one checkout, run as a user would."""

    def __init__(self, folder: Path, out: Path):
        self._folder, self._out = folder, out

    def packed(self, name: str, overrides: list[str]) -> Hashes:
        """Pack once."""
        return self._finished(name, self._started(name, overrides))

    def unpacked(self, name: str, overrides: list[str]) -> Hashes:
        """Pack, and unpack again."""
        self.packed(name, overrides)
        done = self._python(["-m", "energon_pack.unpack", f"{self._out}/{name}", f"{self._out}/{name}-samples"])
        return self._hashes(f"{name}-samples") | {f"{name}: exit code": str(done.returncode)}

    def resumed(self, name: str, overrides: list[str]) -> Hashes:
        """Kill a run that has written some shards, and run it again."""
        process = self._started(name, overrides)
        while process.poll() is None and len(list(self._out.glob(".staging/**/*.tar.idx"))) < 3:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return self._finished(name, self._started(name, overrides))

    def _started(self, name: str, overrides: list[str]) -> "subprocess.Popen[str]":
        places = [f"output.dir={self._out}", f"output.name={name}", f"cache_dir={self._out}/.cache", "measure.verify=0"]
        command = [sys.executable, "-m", "energon_pack", *overrides, *places]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **self._where())

    def _python(self, arguments: list[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, **self._where())

    def _where(self) -> dict[str, Any]:
        environment = {**os.environ, "PYTHONPATH": str(self._folder), "HF_HUB_OFFLINE": "1"}
        return {"cwd": self._folder, "env": environment}

    def _finished(self, name: str, process: "subprocess.Popen[str]") -> Hashes:
        _, errors = process.communicate()
        if process.returncode:
            print(f"{name} ended with {process.returncode}: {errors.strip()[-200:]}", flush=True)
        return self._hashes(name) | {f"{name}: exit code": str(process.returncode)}

    def _hashes(self, name: str) -> Hashes:
        paths = [path for path in (self._out / name).rglob("*") if path.is_file() and path.stem != "report"]
        return {str(path.relative_to(self._out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def steps() -> dict[str, Callable[[Checkout], Hashes]]:
    """All that is compared, by name."""
    found: dict[str, Callable[[Checkout], Hashes]] = {
        name: partial(Checkout.packed, name=name, overrides=overrides) for name, overrides in runs().items()
    }
    small = ["+model=qwen2_5_vl", "output.max_shard_packs=1", "packing.max_token_len=1024"]
    found["resume"] = partial(Checkout.resumed, name="resume", overrides=small)
    for flavor in FLAVORS:
        name = f"unpack-{flavor}"
        found[name] = partial(Checkout.unpacked, name=name, overrides=[*small, f"output.flavor={flavor}"])
    return found


def hashes_of(checkout: Path, chosen: dict[str, Callable[[Checkout], Hashes]]) -> dict[str, Hashes]:
    """What each step makes with a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for name, step in chosen.items():
            start = time.perf_counter()
            found[name] = step(Checkout(checkout, Path(folder)))
            print(f"{checkout} {name} {time.perf_counter() - start:.0f} s", flush=True)
        return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("before", type=Path, help="a checkout, or hashes saved before")
    arguments.add_argument("--only", nargs="+", choices=steps(), metavar="NAME", help="steps to compare; default: all")
    arguments.add_argument("--save", type=Path, help="keep the hashes of the checkout here, and compare nothing")
    given = arguments.parse_args()
    chosen = {name: step for name, step in steps().items() if given.only is None or name in given.only}
    if given.save:
        given.save.write_text(json.dumps(hashes_of(given.before.resolve(), chosen)))
        return
    is_saved = given.before.suffix == ".json"
    saved = json.loads(given.before.read_text()) if is_saved else hashes_of(given.before.resolve(), chosen)
    sides = (saved, hashes_of(HERE, chosen))
    before, after = ({k: v for name in chosen for k, v in side[name].items()} for side in sides)
    different = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    print(f"{len(before)} files before, {len(after)} after, {len(different)} differ")
    print("\n".join(different))
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
