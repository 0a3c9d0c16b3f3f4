"""What loading costs, beside another checkout: `python benchmarks/loading_turns.py BEFORE_TREE [--only image text]`.

    git worktree add /tmp/before REV

240 JPEGs of 560 × 426 pixels with short questions and answers, packs of 20; texts in packs of 8,192 tokens; both mixed;
clips. It needs the processors and clips of ../shared/real. The other checkout packs. Both load the same packs by a
DataLoader, by turns: CPU ms of the process and its workers, without their start. `--memory` shows peaks instead: PSS of
all processes and /dev/shm, while batches go and while all are kept. `--peers` calls Qwen2.5-VL's processor as collators
do, for each sample and once for twenty, in a worker of a DataLoader; lets Energon load the images without packs, with
the processor in its task encoder; and, where AUTOMODEL_PYTHON names a Python that has nemo_automodel, calls its
collater.
"""

import argparse
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image
from whole import WORDS, add_sample

HERE = Path(__file__).resolve().parents[1]
REAL = HERE.parent / "shared" / "real"
#: of each case: the model, its processor's folder, the source, settings, workers
CASES: dict[str, tuple[str, str, str, list[str], int]] = {
    "image": ("qwen2_5_vl", "qwen2_5_vl", "images", ["packing.max_members=20"], 1),
    "image, in process": ("qwen2_5_vl", "qwen2_5_vl", "images", ["packing.max_members=20"], 0),
    "tiles InternVL3": ("internvl3", "internvl3_hf", "images", ["packing.max_members=20"], 1),
    "tiles LLaVA-OneVision": ("llava_onevision", "llava_onevision_qwen2_hf", "images", ["packing.max_members=20"], 1),
    "clips": ("qwen2_5_vl", "qwen2_5_vl", str(REAL / "wds/video_demo"), ["media=uniform"], 1),
    "text, in process": ("qwen2_5_vl", "qwen2_5_vl", "texts", [], 0),
    "mixed": ("qwen2_5_vl", "qwen2_5_vl", "[images,texts]", ["packing.group_by=none"], 1),
    "mixed, in process": ("qwen2_5_vl", "qwen2_5_vl", "[images,texts]", ["packing.group_by=none"], 0),
}


def make_images(folder: Path, number: int = 240) -> None:
    drawn, noise = random.Random(0), np.random.default_rng(0)
    folder.mkdir()
    with tarfile.open(folder / "0.tar", "w") as tar:
        for index in range(number):
            small = Image.fromarray(noise.integers(0, 255, (107, 140, 3), np.uint8))
            small.resize((560, 426), Image.Resampling.BICUBIC).save(file := io.BytesIO(), "JPEG", quality=88)
            answer = " ".join(drawn.choices(WORDS, k=drawn.randint(5, 30)))
            turns = [{"role": "user", "content": "<image>What is this?"}, {"role": "assistant", "content": answer}]
            files = {"json": json.dumps({"messages": turns}).encode(), "jpg": file.getvalue()}
            add_sample(tar, f"{index:06}", files)


def make_texts(folder: Path, number: int = 2_690) -> None:
    drawn = random.Random(0)
    folder.mkdir()
    with tarfile.open(folder / "0.tar", "w") as tar:
        for index in range(number):
            words = [" ".join(drawn.choices(WORDS, k=drawn.randint(*most))) for most in ((5, 60), (20, 400))]
            turns = [{"role": "user", "content": words[0]}, {"role": "assistant", "content": words[1]}]
            add_sample(tar, f"{index:06}", {"json": json.dumps({"messages": turns}).encode()})


def pack(tree: Path, folder: Path, case: str) -> None:
    model, processor, source, settings, _ = CASES[case]
    command = [
        sys.executable,
        "-m",
        "energon_pack",
        f"+model={model}",
        f"model.processor={REAL}/processors/{processor}",
    ]
    command += [f"source.path={source}", "output.dir=packs", f"output.name={_name(case)}", "executor.num_workers=1"]
    command += [
        f"model.processor={REAL}/processors/{processor}",
        "measure.verify=0",
        "max_skipped=1",
        "packing.max_dropped_tokens=1",
        *settings,
    ]
    done = subprocess.run(command, cwd=folder, env=_environment(tree), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{case}: {done.stderr[-600:]}")


def _name(case: str) -> str:
    return case.replace(" ", "_").replace(",", "")


def _environment(tree: Path) -> dict[str, str]:
    extra = {"PYTHONPATH": str(tree), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **extra}


def load(tree: Path, folder: Path, case: str, memory: str = "", python: str = sys.executable) -> list[float]:
    """Return CPU ms a unit and the number of units; with `memory`, the peaks of PSS and of /dev/shm in MB."""
    command = [python, __file__, str(tree), "--once", case, "--memory", memory]
    done = subprocess.run(command, cwd=folder, env=_environment(tree), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{tree}: {case}: {done.stderr[-900:]}")
    figures: list[float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def load_once(case: str, memory: str) -> list[float]:
    from energon_pack import PackedDataset

    torch.set_num_threads(1)
    _, processor, *_, num_workers = CASES[case]
    packs = PackedDataset(Path("packs") / _name(case), f"{REAL}/processors/{processor}")
    loader = torch.utils.data.DataLoader(
        packs, batch_size=1, collate_fn=packs.collate, num_workers=num_workers, persistent_workers=num_workers > 0
    )
    if memory:
        return _peaks(loader, memory == "kept")
    return _cost_of(loader, lambda batch: _units(batch, case), 6 if "text" in case else 3)


def _cost_of(loader: Iterable[Any], units_of: Callable[[Any], int], num_epochs: int) -> list[float]:
    """Return CPU ms a unit and the number of units, of some epochs behind a first one."""
    units = sum(map(units_of, loader))
    before = _cpu_seconds()
    for _ in range(num_epochs):
        for _ in loader:
            pass
    return [1e3 * (_cpu_seconds() - before) / units / num_epochs, units]


class _Conversations(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """The images and their conversations, as a training without packs reads them."""

    def __init__(self, tar: str):
        with tarfile.open(tar) as opened:
            files = [opened.extractfile(member).read() for member in opened]  # type: ignore[union-attr]
        self.samples = [*zip(map(json.loads, files[::2]), files[1::2], strict=True)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> tuple[list[dict[str, str]], Any]:
        value, jpeg = self.samples[number]
        return value["messages"], Image.open(io.BytesIO(jpeg)).convert("RGB")


def _processor() -> Any:
    from energon_pack import prepare_torchvision

    prepare_torchvision()
    from transformers import AutoProcessor

    torch.set_num_threads(1)
    return AutoProcessor.from_pretrained(REAL / "processors/qwen2_5_vl")


def _conversation(turns: list[dict[str, str]], image: Any = None) -> list[dict[str, Any]]:
    """Return a question about an image with its answer, as chat templates take them."""
    (asked, answered), shown = turns, {"type": "image"} if image is None else {"type": "image", "image": image}
    content = [shown, {"type": "text", "text": asked["content"].removeprefix("<image>")}]
    return [{**asked, "content": content}, {**answered, "content": [{"type": "text", "text": answered["content"]}]}]


def automodel_once() -> list[float]:
    """Return CPU ms an image of a DataLoader with NeMo Automodel's collater for Qwen2.5-VL."""
    processor = _processor()
    from nemo_automodel.components.datasets.vlm.collate_fns import qwen2_5_collate_fn

    def collate(samples: list[Any]) -> Any:
        return dict(qwen2_5_collate_fn([{"conversation": _conversation(*sample)} for sample in samples], processor))

    loader = torch.utils.data.DataLoader(
        _Conversations("images/0.tar"), 20, collate_fn=collate, num_workers=1, persistent_workers=True
    )
    return _cost_of(loader, lambda batch: len(batch["image_grid_thw"]), 3)


def energon_once() -> list[float]:
    """Return CPU ms an image of Energon's loader of crude samples, with the processor in the task encoder."""
    processor = _processor()
    from megatron.energon import (
        CaptioningSample,
        Cooker,
        DefaultTaskEncoder,
        SampleDecoder,
        WorkerConfig,
        basic_sample_keys,
        get_loader,
        get_train_dataset,
        stateless,
    )
    from megatron.energon.flavors import BaseWebdatasetFactory

    BaseWebdatasetFactory.prepare_dataset(
        Path("images"), ["0.tar"], split_parts_ratio=[("train", 1.0)], shuffle_seed=None, workers=1
    )
    crude = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    Path("images/.nv-meta/dataset.yaml").write_text(crude)

    @stateless
    def cook(sample: dict[str, Any]) -> Any:
        return CaptioningSample(**basic_sample_keys(sample), image=sample["jpg"], caption=sample["json"]["messages"])

    class Encoder(DefaultTaskEncoder):  # type: ignore[type-arg,misc]
        decoder = SampleDecoder(image_decode="pilrgb")
        cookers = [Cooker(cook)]  # noqa: RUF012

        @stateless
        def encode_sample(self, sample: Any) -> Any:
            text = processor.apply_chat_template(_conversation(sample.caption))
            return dict(processor(text=text, images=[sample.image], return_tensors="pt"))

        @stateless
        def batch(self, samples: list[Any]) -> Any:
            return {name: torch.cat([one[name] for one in samples]) for name in ("pixel_values", "image_grid_thw")}

        @stateless
        def encode_batch(self, batch: Any) -> Any:
            return batch

    dataset = get_train_dataset(
        Path("images"), batch_size=20, shuffle_buffer_size=None, max_samples_per_sequence=None, repeat=False,
        task_encoder=Encoder(), worker_config=WorkerConfig(rank=0, world_size=1, num_workers=1),
    )  # fmt: skip
    return _cost_of(get_loader(dataset), lambda batch: len(batch["image_grid_thw"]), 3)


def processor_once(how: str) -> list[float]:
    """Return CPU ms an image of a DataLoader whose collator calls the processor `once`, or for `each` sample."""
    processor = _processor()

    def called(samples: list[Any]) -> Any:
        texts = [processor.apply_chat_template(_conversation(turns)) for turns, _ in samples]
        return processor(text=texts, images=[image for _, image in samples], padding=True, return_tensors="pt")

    def collate(samples: list[Any]) -> Any:
        if how == "once":
            return dict(called(samples))
        made = [called([sample]) for sample in samples]
        return {name: torch.cat([one[name] for one in made]) for name in ("pixel_values", "image_grid_thw")}

    loader = torch.utils.data.DataLoader(
        _Conversations("images/0.tar"), 20, collate_fn=collate, num_workers=1, persistent_workers=True
    )
    return _cost_of(loader, lambda batch: len(batch["image_grid_thw"]), 3)


PEERS: dict[str, Callable[[], list[float]]] = {
    "the processor, for each sample": partial(processor_once, "each"),
    "the processor, once": partial(processor_once, "once"),
    "Energon's crude loader": energon_once,
    "Automodel's collater": automodel_once,
}


def _units(batch: dict[str, object], case: str) -> int:
    """Images of a batch, or 1 where packs are counted."""
    if "text" in case or "mixed" in case or "clips" in case:
        return 1
    return len(batch["sample_ids"][0])  # type: ignore[index]


def _cpu_seconds() -> float:
    process = psutil.Process()
    return sum(sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True)))


def _peaks(loader: "Iterable[object]", keeps: bool) -> list[float]:
    most, ended = [0.0, 0.0], threading.Event()

    def watch() -> None:
        process = psutil.Process()
        while not ended.wait(0.1):
            every = (process, *process.children(recursive=True))
            most[0] = max(most[0], sum(one.memory_full_info().pss for one in every) / 1e6)
            most[1] = max(most[1], psutil.disk_usage("/dev/shm").used / 1e6)

    watcher = threading.Thread(target=watch)
    watcher.start()
    kept = []
    for _ in range(1 if keeps else 3):
        for batch in loader:
            kept.append(batch if keeps else None)
    ended.set()
    watcher.join()
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="another checkout")
    parser.add_argument("--only", nargs="+", default=[], help="only cases that begin with one of these words")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", nargs="?", const="gone", default="", help="peaks of memory")
    parser.add_argument("--peers", action="store_true", help="loading without packs")
    parser.add_argument("--once", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        figures = PEERS[arguments.once]() if arguments.once in PEERS else load_once(arguments.once, arguments.memory)
        print(json.dumps(figures))
        return
    trees = {"before": arguments.before.resolve(), "now": HERE}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_images(folder / "images")
        make_texts(folder / "texts")
        if arguments.peers:
            pack(HERE, folder, "image")
            for peer in ("image", *PEERS):
                python = os.environ.get("AUTOMODEL_PYTHON", "") if "Automodel" in peer else sys.executable
                if not python:
                    print(f"{peer}: not run: AUTOMODEL_PYTHON=PYTHON names a Python that has nemo_automodel")
                    continue
                figures = [load(HERE, folder, peer, python=python)[0] for _ in range(arguments.rounds)]
                print(f"{peer}: {' · '.join(f'{ms:.2f}' for ms in figures)} ms an image", flush=True)
            return
        print("| case | before | now | × of the best |\n|---|---|---|---|")
        for case in CASES:
            if arguments.only and not case.startswith(tuple(arguments.only)):
                continue
            pack(trees["before"], folder, case)
            if arguments.memory:
                for kept in ("gone", "kept"):
                    cells = [
                        " · ".join(f"{mb:,.0f}" for mb in load(tree, folder, case, kept)) for tree in trees.values()
                    ]
                    print(f"| {case}, batches {kept}: PSS · shm, MB | {' | '.join(cells)} | |", flush=True)
                continue
            found: dict[str, list[float]] = {name: [] for name in trees}
            for _ in range(arguments.rounds):
                for name, tree in trees.items():
                    found[name].append(load(tree, folder, case)[0])
            cells = [" · ".join(f"{ms:.2f}" for ms in figures) for figures in found.values()]
            print(f"| {case}, ms | {' | '.join(cells)} | {min(found['now']) / min(found['before']):.2f} |", flush=True)


if __name__ == "__main__":
    main()
