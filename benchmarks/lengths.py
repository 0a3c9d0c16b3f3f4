"""Measuring, beside the same work done the usual way: `make bench`, or `python benchmarks/lengths.py --real FOLDER`.

FOLDER has processors/ and wds/ (by default ../shared/real where it is). Machines are shared and noisy: figures are CPU
seconds, user and system, best of three, of things run in turn in this process; wall seconds only where it says so.
"""

import argparse
import io
import os
import random
import tarfile
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table
from timing import at_least, at_most, cpu_seconds, cpu_seconds_in_turn

from energon_pack.lengths.index import index_shards
from energon_pack.lengths.measure import measure_shards
from energon_pack.lengths.method import Method
from energon_pack.lengths.worker import MeasureJob, measure
from energon_pack.plan.items import Lengths
from energon_pack.plan.plan import plan_packs
from energon_pack.plan.settings import PackingConfig
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.run.progress import Progress
from energon_pack.run.workshop import Workshop
from energon_pack.samples.raw_record import parse_sample_json
from energon_pack.samples.record import parse_record
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.shard import Shard
from energon_pack.sources.source_path import find_source
from energon_pack.templates.full_processor import prepare_torchvision
from energon_pack.templates.processor import load_saved_template, prepare_template
from energon_pack.templates.sample import Rendered, Sample
from energon_pack.templates.settings import ModelConfig, TemplateSettings
from energon_pack.templates.template import Template
from energon_pack.templates.tokens.engine import TokenEngineError
from energon_pack.templates.tokens.pieces import HOSTILE_TEXTS

ENGINES = ("words", "gigatoken")
NUM_HOSTILE = 60_000
Rows = list[tuple[str, str, str, str, str]]


def jobs(shards: list[Shard], template_folder: str, engine: str) -> list[MeasureJob]:
    indices = ((shard, shard.index()) for shard in shards if shard.size)
    return [
        MeasureJob([shard] * index.num_rows, index, Method(template_folder, ReadSettings(), engine))
        for shard, index in indices
    ]


def images(real: Path, template_folder: str) -> Rows:
    """M1: tar → lengths of image samples, against the full processor on the same samples."""
    prepare_torchvision()
    from PIL import Image
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(real / "processors" / "qwen2_5_vl")
    shards = find_source(SourceConfig(), str(real / "wds" / "image_mathv")).shards
    most = 60

    def full() -> None:
        done = 0
        for shard in shards:
            parts: dict[str, dict[str, bytes]] = {}
            with tarfile.open(shard.path) as tar:
                for member in tar:
                    key, _, part = member.name.partition(".")
                    parts.setdefault(key, {})[part] = tar.extractfile(member).read()  # type: ignore[union-attr]
            for files in parts.values():
                if done == most:
                    return
                record = parse_record(parse_sample_json(files.pop("json")), ReadSettings())
                pictures = [Image.open(io.BytesIO(data)).convert("RGB") for data in files.values()]
                content = [
                    {**m, "content": [{"type": "image"}] * len(pictures) + [{"type": "text", "text": m["content"]}]}
                    if i == 0
                    else m
                    for i, m in enumerate(record.messages)
                ]
                text = processor.apply_chat_template(content, tokenize=False)
                len(processor(text=[text], images=pictures)["input_ids"][0])
                done += 1

    goals = {"words": 40, "gigatoken": 300}
    work = {engine: jobs(shards, template_folder, engine) for engine in goals}
    number = sum(job.samples.num_rows for job in work["words"])
    ours = {engine: lambda mine=mine: [measure(job) for job in mine] for engine, mine in work.items()}
    seconds = cpu_seconds_in_turn({"full": full, **ours})
    theirs = most / seconds["full"]
    rows: Rows = []
    for engine, goal in goals.items():
        rate = number / seconds[engine]
        rows.append(
            (
                f"M1 image samples, {engine}",
                f"{rate:,.0f}/s",
                f"full processor {theirs:.0f}/s",
                f"{rate / theirs:.0f}×",
                at_least(rate / theirs, goal, "×"),
            )
        )
    return rows


def rendered_texts(real: Path, template: Template) -> list[Rendered]:
    texts = []
    for name in ("text_alpaca", "text_toolcall", "text_sharegpt_zh"):
        for shard in find_source(SourceConfig(), str(real / "wds" / name)).shards:
            with tarfile.open(shard.path) as tar:
                for member in tar:
                    with suppress(Skip):  # one has no answer
                        record = parse_record(parse_sample_json(tar.extractfile(member).read()), ReadSettings())  # type: ignore[union-attr]
                        texts.append(template.render(Sample(record.messages, [], record.tools)))
    return texts


def hostile(seed: int = 0) -> list[Rendered]:
    """Strings of everything that tokenizers have been seen to differ on, and of random code points."""
    rng = random.Random(seed)
    pieces = [
        *HOSTILE_TEXTS,
        "<|im_start|>",
        "<|im_end|>",
        "<|image_pad|>" * 5,
        "assistant\n",
        "<tool_call>",
        "\u0301",
        "\u200d",
    ]
    result = []
    for _ in range(NUM_HOSTILE):
        chosen = [
            rng.choice(pieces)
            if rng.random() < 0.7
            else "".join(c for c in (chr(rng.randrange(0x20000)) for _ in range(3)) if not "\ud800" <= c <= "\udfff")
            for _ in range(rng.randint(1, 6))
        ]
        text = "".join(chosen)
        start = rng.randint(0, len(text))
        result.append(Rendered(text, [(start, rng.randint(start, len(text)))] if start < len(text) else [], 0, 0))
    return result


def texts(real: Path, template: Template) -> Rows:
    """M2: counting rendered texts, against `encode_batch_fast`; counts that differ on these and on hostile strings."""
    rendered = rendered_texts(real, template)
    strings = [item.text for item in rendered]
    num_mb = sum(len(text.encode()) for text in strings) / 1e6
    theirs = num_mb / cpu_seconds(lambda: template._tokenizer.encode_batch_fast(strings, add_special_tokens=False))
    checked = [*rendered, *hostile()]
    expected = [(len(tokens.ids), tokens.num_supervised) for tokens in template.tokenize(checked)]
    rows: Rows = []
    for engine in ENGINES:
        try:
            template.engine(engine)
        except TokenEngineError as error:
            rows.append((f"M2 text, {engine}", "–", str(error)[:60], "", ""))
            continue
        found = template.count(checked, engine)
        num_wrong = sum(a != b for a, b in zip(found, expected, strict=True))
        ours = num_mb / cpu_seconds(lambda engine=engine: template.count(rendered, engine))  # type: ignore[misc]
        goal = 2.5 if engine == "words" else 20
        what = f"{theirs:.1f} MB/s; {num_wrong} of {len(checked):,} counts differ"
        rows.append(
            (
                f"M2 text with labels, {engine}",
                f"{ours:.0f} MB/s",
                what,
                f"{ours / theirs:.1f}×",
                at_least(ours / theirs, goal, "×"),
            )
        )
    return rows


def index(folder: Path) -> Rows:
    """M3: headers of a tar of 100,000 members, grouped into samples."""
    path = folder / "many.tar"
    with tarfile.open(path, "w") as tar:
        for i in range(50_000):
            for part, size in (("0.jpg", 700), ("json", 2)):
                info = tarfile.TarInfo(f"sample_{i:08d}.{part}")
                info.size = size
                tar.addfile(info, io.BytesIO(bytes(size)))
    shard = find_source(SourceConfig(), str(path)).shards[0]

    def theirs() -> None:
        with tarfile.open(path, "r:") as tar:
            assert sum(1 for _ in tar) == 100_000

    ours, usual = 1e5 / cpu_seconds(lambda: shard.index()), 1e5 / cpu_seconds(theirs)
    path.unlink()
    ratio = ours / usual
    return [
        ("M3 index, members", f"{ours:,.0f}/s", f"tarfile {usual:,.0f}/s", f"{ratio:.1f}×", at_least(ratio, 6, "×"))
    ]


def runs(folder: Path, template_folder: str) -> Rows:
    """M4 and M5: a second run, and two processes; wall seconds. 100,000 samples of 100 tokens in 20 shards."""
    source = folder / "source"
    source.mkdir()
    number = 100_000
    rng = random.Random(0)
    some_words = "the of a picture shows house tree with under sky people and 17 red".split()  # noqa: SIM905
    for shard in range(20):
        with tarfile.open(source / f"{shard:02d}.tar", "w") as tar:
            for i in range(number // 20):
                text = " ".join(rng.choices(some_words, k=rng.randint(20, 120)))
                data = f'{{"messages":[{{"role":"user","content":"What?"}},{{"role":"assistant","content":"{text}"}}]}}'
                info = tarfile.TarInfo(f"{i:06d}.json")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data.encode()))
    shards = find_source(SourceConfig(), str(source)).shards
    progress, method = Progress(quiet=True), Method(template_folder, ReadSettings(), "words")
    rows: Rows = []
    seconds = {}
    peak = 0
    for num_workers in (1, 2):
        cache = folder / f"cache{num_workers}"
        with LocalExecutor(num_workers) as executor:
            workshop = Workshop(executor, progress, cache)
            indexed = index_shards(shards, False, 0, workshop)
            measure_shards(indexed[:2], method, workshop)  # processes are up now
            start = time.perf_counter()
            measure_shards(indexed, method, workshop)
            seconds[num_workers] = time.perf_counter() - start
            workers = psutil.Process().children(recursive=True)
            peak = max([peak, *(child.memory_info().rss for child in workers)])
    ratio = seconds[1] / seconds[2]
    rows.append(
        (
            "M5 two processes, wall",
            f"{number * 0.9 / seconds[2]:,.0f}/s",
            f"one {number * 0.9 / seconds[1]:,.0f}/s",
            f"{ratio:.2f}×",
            at_least(ratio, 1.85, "×"),
        )
    )
    rows.append(("M5 memory of a process", f"{peak / 1e6:.0f} MB", "", "", at_most(peak / 1e6, 400, " MB")))
    with LocalExecutor(1) as executor:
        start = time.perf_counter()
        workshop = Workshop(executor, progress, cache)
        measured = measure_shards(index_shards(shards, False, 0, workshop), method, workshop)
        lengths = Lengths(measured)
        plan_packs(lengths.items, PackingConfig(max_token_len=16384))
        again = time.perf_counter() - start
    num_measured = sum(not item.was_cached for item in measured)
    per_million = again * 1e6 / number
    rows.append(
        (
            "M4 again, to the plan, wall",
            f"{again:.2f} s",
            f"{num_measured} shards measured",
            f"{per_million:.1f} s a million",
            at_most(per_million, 3, " s"),
        )
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "real")
    real = parser.parse_args().real
    console = Console(width=130)
    if not real.is_dir():
        console.print(f"{real} is not here: --real FOLDER names real processors and samples")
        return
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        template_folder = prepare_template(
            TemplateSettings(ModelConfig(template="qwen_vl", processor=str(real / "processors" / "qwen2_5_vl"))), folder
        )
        template = load_saved_template(template_folder)
        rows = [*images(real, template_folder), *texts(real, template), *index(folder), *runs(folder, template_folder)]
    table = Table("what", "per CPU second", "beside", "ratio", "goal, holds", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()
