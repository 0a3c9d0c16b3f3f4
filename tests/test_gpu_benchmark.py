"""The benchmark for a GPU runs on a CPU at tiny size, and its checks can fail."""

import csv
import importlib
import re
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
import torch

from energon_pack.training import layout, pack_encoder, probe_batches
from support.running import ROOT
from support.running import run as run_program

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script; proofs are not those of the user's cache."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return importlib.import_module("gpu")


@pytest.fixture
def gpu_all(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("gpu_all")


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demo for a Qwen3-VL, in packs of 512 tokens, and its processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        made: tuple[Path, str] = importlib.import_module("gpu_model").make_packs(
            tmp_path_factory.mktemp("gpu"), 512, None
        )
    return made


def run(
    gpu: ModuleType, packs: tuple[Path, str], page: Path, monkeypatch: pytest.MonkeyPatch, *more: str
) -> tuple[str, list[dict[str, str]]]:
    """The page and the lines of the CSV, of two steps."""
    arguments = [packs[0], "--processor", packs[1], "--size", "tiny", "--device", "cpu", "--steps", 2, "--workers", 0]
    monkeypatch.setattr("sys.argv", ["gpu.py", *map(str, arguments), "--save", str(page), *more])
    gpu.main()
    with page.with_suffix(".csv").open() as file:
        return page.read_text(), list(csv.DictReader(file))


def one_text(rows: Any, form: layout.RowForm) -> layout.Batch:
    """The layout with a seeded fault: where a row has several members, they are one text."""
    batch = layout_as_it_is(rows, form)
    if max(map(len, rows)) > 1:
        num_rows, width = batch["input_ids"].shape
        batch["position_ids"] = torch.arange(width).expand(4, num_rows, width)
        batch["cu_seq_lens_q"] = batch["cu_seq_lens_k"] = torch.arange(num_rows + 1, dtype=torch.int32) * width
        batch["max_length_q"] = batch["max_length_k"] = width
    return batch


layout_as_it_is = layout.lay_out_neat_rows


@pytest.mark.slow
def test_the_page_of_a_cpu_holds_and_each_step_is_in_the_csv(
    gpu: ModuleType, packs: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, steps = run(gpu, packs, tmp_path / "page.md", monkeypatch, "--checkpointing", "--max-places", "900")
    assert re.findall(r"(\w+, \w+) .*≤ 0\.\d+ yes", page) == ["eager, fp32", "sdpa, fp32", "sdpa, bf16"]
    assert "flash_attention_2, bf16" in page
    assert page.count("holds: positions") == 2
    assert re.search(r"sdpa, packed .*≤ 1e-05 yes", page)
    packed, padded, flattened = steps[:2], steps[2:4], steps[4:]
    assert all((int(step["visual_squares"]) > 0) == (int(step["visual_tokens"]) > 0) for step in steps)
    layouts = ("packed", "padded", "flattened")
    assert [(step["layout"], step["step"]) for step in steps] == [(n, i) for n in layouts for i in "01"]
    for name in ("tokens", "len_squares", "visual_tokens", "visual_squares"):  # the same samples, in other steps
        assert sum(int(step[name]) for step in flattened) == sum(int(step[name]) for step in packed)
    for ours, theirs in zip(packed, padded, strict=True):
        assert all(ours[name] == theirs[name] for name in ("tokens", "len_squares", "visual_tokens", "visual_squares"))
        assert int(ours["places"]) == int(ours["tokens"])
        assert float(ours["loss"]) == pytest.approx(float(theirs["loss"]), rel=1e-5)
    places = (sum(int(step["places"]) for step in some) for some in (packed, padded))
    assert next(places) < next(places)  # of both: a pack of one member has no padding


@pytest.mark.slow
def test_members_that_see_each_other_are_seen_on_the_page(
    gpu: ModuleType, packs: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (pack_encoder, probe_batches):
        monkeypatch.setattr(module, "lay_out_neat_rows", one_text)
    page, _ = run(gpu, packs, tmp_path / "page.md", monkeypatch)
    assert re.findall(r"(\w+, \w+) .*≤ 0\.\d+ NO", page) == ["eager, fp32", "sdpa, fp32", "sdpa, bf16"]
    assert page.count("REFUSED: positions") == 2
    assert re.search(r"sdpa, packed .*≤ 1e-05 NO", page)


def test_padded_rows_are_cut_into_pieces_that_fit(gpu: ModuleType) -> None:
    pieces_of = importlib.import_module("gpu_model").pieces_of
    assert list(pieces_of([3, 2, 3, 9, 1], 9)) == [(0, 3), (3, 4), (4, 5)]  # 3 × 3 fit; a row of 9 is alone
    assert list(pieces_of([3, 2, 3, 9, 1], 45)) == [(0, 5)]
    assert list(pieces_of([20], 9)) == [(0, 1)]


@pytest.mark.slow
def test_what_stalls_a_gpu_is_tried_on_a_cpu(
    gpu: ModuleType, packs: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values for the tower spare reads, and 512 tokens and 128 segments are one shape; the loss stays."""
    page, steps = run(gpu, packs, tmp_path / "page.md", monkeypatch, "--dry", "--stalls", "--steps", "3")
    rows = re.findall(
        r"│ (as it was|values for|and pad_to|and pad_segments)\S* .*│ +(\d+) +│ of a GPU only │ (\d+) ", page
    )
    reads, shapes = ([int(row[column]) for row in rows] for column in (1, 2))
    assert reads[0] > reads[1] == reads[2] == reads[3]
    assert shapes[3] == 1
    assert page.count("≤ 0.001 yes") == 4
    assert "of a GPU only" in page[page.index("as one graph") :]
    assert steps == []


def test_a_part_that_fails_or_hangs_is_said_and_the_next_one_runs(tmp_path: Path, gpu_all: ModuleType) -> None:
    """Else one part takes away the results of all others, and a GPU is rented in vain; workers of one that hangs would
    take the cores of the next.
    """
    page = tmp_path / "gpu.md"
    programs = {
        "fails": "print('seen'); raise MemoryError('none left')",
        "hangs": "from subprocess import *; one = Popen(['sleep', '99']); print(one.pid, flush=True); one.wait()",
        "runs": "print('≥ 1× NO')",
    }
    limits = {"fails": 60, "hangs": 2, "runs": 60}
    parts = [
        (gpu_all.Part(name, limits[name], "", "", "Its words."), [sys.executable, "-c", program])
        for name, program in programs.items()
    ]
    assert gpu_all.run_all(parts, page) == 2
    failed, hung, ran = page.read_text().split("\n## ")[1:]
    assert "```\nseen\n```\n\n**Failed**: `exit status 1: MemoryError: none left`" in failed
    (worker,) = re.findall(r"```\n(\d+)\n```\n\n\*\*Failed\*\*: `it did not end in 2 s`", hung)
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(worker)).wait(20)
    assert "Its words.\n\n```\n≥ 1× NO\n```\n\n" in ran
    assert "goals that do not hold: 1\n" in ran
    assert ran.endswith("Failed: fails, hangs.\n")


def test_the_limits_are_eight_minutes_together(gpu_all: ModuleType) -> None:
    """Else a machine that is lent for ten minutes goes back before the last part."""
    assert sum(part.limit for part in gpu_all.PARTS) <= 8 * 60


@pytest.mark.slow
def test_every_part_runs_dry(tmp_path: Path) -> None:
    """Else the first GPU that is at hand finds the mistake."""
    page = tmp_path / "gpu.md"
    run_program(sys.executable, ROOT / "benchmarks/gpu_all.py", "--dry", "--save", page, cwd=tmp_path)
    text = page.read_text()
    assert text.endswith("Failed: nothing.\n")
    assert len(re.findall("goals that do not hold: 0", text)) == 8
    for row in ("flex_attention, bf16 .* yes", "sdpa, flattened", "values for the tower", "256, 48, 8 .* yes"):
        assert re.search(row, text), row
    assert len(re.findall("packed, (whole|shared) .* ≤ 0.0001 yes", text)) == 2
