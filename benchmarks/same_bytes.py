"""Do two checkouts pack the same bytes? Run before and after a change that should not change any:

    git worktree add /tmp/before REV
    python benchmarks/same_bytes.py /tmp/before

Packs the demo and, where it is, all of ../shared/real with both, in both flavours, with videos, cuts, splits and
aligned members, and prints each file that differs. Exit code 1 where any does. Five minutes a checkout.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
REAL = HERE.parent / "shared" / "real"


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
    qwen = ["+model=qwen2_5_vl", f"model.processor={REAL}/processors/qwen2_5_vl", "max_skipped=1"]
    for folder in sorted((REAL / "wds").iterdir()):
        found[f"wds-{folder.name}"] = [*qwen, f"source.path={folder}", "packing.max_token_len=4096"]
    for file in sorted((REAL / "jsonl").glob("*.jsonl")):
        media_root = [f"source.media_root={REAL}/data/{file.stem}"] if (REAL / "data" / file.stem).is_dir() else []
        source = ["source=jsonl", f"source.path={file}", *media_root]
        for flavor in ("packed_multi_mix_qa", "packed_captioning"):
            found[f"jsonl-{file.stem}-{flavor}"] = [*qwen, *source, f"output.flavor={flavor}"]
    text, video = f"source.path={REAL}/wds/text_sharegpt_zh", f"source.path={REAL}/wds/video_demo"
    cut = ["packing.max_token_len=1024", "packing.overlong=split_turns"]
    found["split_turns"] = [*qwen, text, *cut]
    found["truncate_text"] = [*qwen, text, cut[0], "packing.overlong=truncate_text"]
    found["caps"] = [*qwen, f"source.path={REAL}/wds/image_mathv", "packing.max_images=3", "packing.max_members=9"]
    found["qwen_vl_utils"] = [*qwen, video, "media=qwen_vl_utils"]
    internvl = ["+model=internvl3", f"model.processor={REAL}/processors/internvl3_hf", "max_skipped=1"]
    found["internvl3-video"] = [*internvl, video, "media=uniform"]
    return found


def packed(checkout: Path, out: Path) -> dict[str, str]:
    """Hashes of all files that a checkout packs, but of reports; the exit code of each run among them."""
    hashes: dict[str, str] = {}
    for name, overrides in runs().items():
        places = [f"output.dir={out}", f"output.name={name}", f"cache_dir={out}/.cache", "measure.verify=0"]
        command = [sys.executable, "-m", "energon_pack", *overrides, *places]
        environment = {**os.environ, "PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
        hashes[f"{name}: exit code"] = str(done.returncode)
        for path in sorted((out / name).rglob("*")):
            if path.is_file() and path.name != "report.json":
                hashes[str(path.relative_to(out))] = hashlib.sha256(path.read_bytes()).hexdigest()
        print(
            f"{checkout} {name} {done.returncode} {done.stderr.strip()[-200:] if done.returncode else ''}", flush=True
        )
    return hashes


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        before, after = (packed(Path(c), Path(folder, str(i))) for i, c in enumerate((sys.argv[1], HERE)))
    different = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    print(f"{len(before)} files before, {len(after)} after, {len(different)} differ")
    print("\n".join(different))
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
