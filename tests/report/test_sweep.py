"""A sweep says which job is the best by its rules, whatever was swept, wherever its jobs ran, and whichever failed."""

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from energon_pack.errors import PackError, SamplesLost
from energon_pack.report.sweep import BEST_RULE, read_sweep
from energon_pack.report.sweep_folder import SweepFolderCallback, SweepJobFile
from energon_pack.report.sweep_page import sweep_html, write_sweep_page_and_json
from support.html_page import check_page


def outcome(
    tokens: int = 1000, left_out: int = 0, fill: float = 0.9, flops: float = 1e12, **more: Any
) -> dict[str, Any]:
    return {
        "samples_in": 100, "samples_skipped": 10, "tokens": tokens, "tokens_left_out": left_out,
        "packs": 5, "fill": fill, "max_token_len": 8192, "attention_cost": {"mean": 10.0},
        "flops": {"weights": flops, "attention": 0.0, "vision": 0.0, "source": "config.json"}, **more,
    }  # fmt: skip


def leave(
    folder: Path, number: int, overrides: list[str], left: dict[str, Any] | PackError | None, may_drop: float = 0.1
) -> None:
    job = SweepJobFile(folder, number, ["+model=qwen2_5_vl", *overrides])
    if isinstance(left, PackError):
        job.write_failure(left)
    elif left:
        job.write_success(folder.parent / f"run {number}" / "report.html", left, may_drop)


def test_the_best_keeps_the_tokens_then_is_quick_then_full(tmp_path: Path) -> None:
    """Time a token: 0.5 (drops too much), 1.0, 1.005 (fuller), 1.2 (the fullest)."""
    for number, left in enumerate((
        outcome(left_out=100, flops=0.5e12), outcome(fill=0.9), outcome(fill=0.95, flops=1.005e12),
        outcome(fill=0.99, flops=1.2e12),
    )):  # fmt: skip
        leave(tmp_path, number, [f"packing.max_token_len={number}"], left)
    sweep = read_sweep(tmp_path)
    assert sweep.best is not None
    assert sweep.best.number == 2
    assert [row.time for row in sweep.rows] == pytest.approx([0.5 / 1.005, 1 / 1.005, 1.0, 1.2 / 1.005])


def test_the_page_of_a_failed_job_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that lost too much names its page from its own folder; the sweep's page lies in another one."""
    monkeypatch.chdir(tmp_path)
    leave(tmp_path / "sweep", 0, [], SamplesLost("half is lost", "out/report.html"))
    (left,) = (tmp_path / "sweep").rglob("0.json")
    assert json.loads(left.read_text())["page"] == f"{tmp_path / 'out/report.html'}"


@pytest.mark.parametrize(
    ("left_out", "may_drop", "best"),
    [
        ((500, 100, 300), 0.1, 1),  # 33 %, 9 %, 23 %
        ((500, 300), 0.1, None),
        ((500, 300), 0.25, 1),
        ((5,), 0.0, None),
    ],
)
def test_no_job_that_drops_more_than_it_may_is_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left_out: tuple[int, ...], may_drop: float, best: int | None
) -> None:
    """A job that dropped 47 % was marked ★, for the others dropped more; and nothing said what ★ is."""
    for number, tokens in enumerate(left_out):
        leave(tmp_path, number, [f"seed={number}", "packing.overlong=drop"], outcome(left_out=tokens), may_drop)
    write_sweep_page_and_json(tmp_path)
    page, out = check_page((tmp_path / "sweep.html").read_text()), capsys.readouterr().out
    assert json.loads((tmp_path / "sweep.json").read_text())["best"] == best
    none = "each drops more of the tokens than its packing.max_dropped_tokens"
    assert (f"no ★: {none}\n" in out, f"No job is the best: {none}." in page) == (best is None, best is None)
    assert (f"{best}★" in out, f"★: {BEST_RULE}\n" in out) == (best is not None, best is not None)


def test_an_epoch_takes_as_long_as_ranks_wait(tmp_path: Path) -> None:
    steps = {"in_order": {"steps": 4, "both": {"epoch": 1.5}}}
    leave(tmp_path, 0, ["seed=1"], outcome())
    leave(tmp_path, 1, ["seed=2"], outcome(steps=steps))
    assert [row.time for row in read_sweep(tmp_path).rows] == pytest.approx([1.0, 1.5])


def test_a_job_that_is_not_published_is_no_measure_of_time(tmp_path: Path) -> None:
    """The published jobs took 2.000 and 2.400: a refused one, which packed half, was 1.000."""
    leave(tmp_path, 0, ["seed=0"], SamplesLost("half is lost", None, outcome(flops=0.5e12)))
    leave(tmp_path, 1, ["seed=1"], outcome())
    leave(tmp_path, 2, ["seed=2"], outcome(flops=1.2e12))
    sweep = read_sweep(tmp_path)
    assert [row.time for row in sweep.rows] == pytest.approx([0.5, 1.0, 1.2])
    assert [row.time_of_token for row in sweep.rows] == pytest.approx([0.5, 1.0, 1.2])


def test_a_sweeper_that_optimises_names_its_best_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The screen named two: Optuna's, and the one with the table's ★."""
    leave(tmp_path, 0, ["seed=0"], outcome())
    leave(tmp_path, 1, ["seed=1"], outcome())
    (tmp_path / "optimization_results.yaml").write_text("name: optuna\nbest_params: {seed: 1}\n")
    write_sweep_page_and_json(tmp_path)
    out = capsys.readouterr().out
    assert "no ★: the sweeper chose by report.objective, and optimization_results.yaml names its best" in out
    assert json.loads((tmp_path / "sweep.json").read_text())["best"] is None
    assert "0★" not in out
    assert "1★" not in out


def test_columns_are_what_differs(tmp_path: Path) -> None:
    """Several dimensions, groups and keys that are given to some jobs alone."""
    leave(tmp_path, 0, ["packing=neat", "seed=0", "source.limit=5"], outcome())
    leave(tmp_path, 1, ["packing=thd", "seed=0", "source.limit=5", "+extra=1"], outcome())
    sweep = read_sweep(tmp_path)
    assert sweep.keys == ["extra", "packing"]
    assert [row.settings for row in sweep.rows] == [{"extra": "", "packing": "neat"}, {"extra": "1", "packing": "thd"}]


def test_jobs_that_failed_are_listed_with_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / ".runs" / "sweep"
    leave(folder, 0, ["seed=0"], PackError("source.path=/nope: no such <folder>"))
    leave(folder, 1, ["seed=1"], SamplesLost("all are lost", str(tmp_path / "1.report.html")))
    leave(folder, 2, ["seed=2"], None)  # killed
    leave(folder, 10, ["seed=10"], outcome())
    write_sweep_page_and_json(folder)
    said = check_page((folder / "sweep.html").read_text())
    for text in ("1 job done, 3 failed", "no such <folder>", "all are lost", "it did not end", "seed=10"):
        assert text in said
    made = json.loads((folder / "sweep.json").read_text())
    assert (made["best"], [job["number"] for job in made["failed"]]) == (10, [0, 1, 2])
    out = capsys.readouterr().out
    assert "10★" in out
    assert "job 0 failed: source.path=/nope" in out
    assert f"see it: {folder / 'sweep.html'}" in out.splitlines()


def test_links_lead_to_the_pages(tmp_path: Path) -> None:
    folder = tmp_path / ".runs" / "sweep"
    leave(folder, 0, ["seed=0"], outcome())
    assert 'href="../run%200/report.html"' in sweep_html(read_sweep(folder), folder)
    SweepJobFile(folder, 1, ["seed=1"]).write_success(tmp_path / os.fsdecode(b"caf\xe9 #1%"), outcome(), 0.1)
    assert 'href="../../caf%E9%20%231%25"' in sweep_html(read_sweep(folder), folder), "any name that a folder can have"


def test_a_sweep_of_lengths(tmp_path: Path) -> None:
    """Each job has a table of lengths: the one that is recommended stands for it."""
    lens = [
        {
            "max_token_len": 2048,
            "dropped": 50,
            "dropped_share": 0.5,
            "dropped_tokens_share": 0.5,
            "packs": 9,
            "fill": 0.9,
        },
        {
            "max_token_len": 4096,
            "dropped": 1,
            "dropped_share": 0.01,
            "dropped_tokens_share": 0.0,
            "packs": 5,
            "fill": 0.97,
        },
    ]
    left = {"samples_in": 100, "samples_measured": 98, "tokens": 1000, "lens": lens}
    leave(tmp_path, 0, ["model.max_pixels=1"], left)
    leave(tmp_path, 1, ["model.max_pixels=2"], left)
    sweep = read_sweep(tmp_path)
    assert [(row.max_token_len, row.packs, row.dropped, row.time) for row in sweep.rows] == [(4096, 5, 3, None)] * 2
    assert "4,096" in check_page(sweep_html(sweep, tmp_path))


def test_what_a_stage_does_not_tell_is_no_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over `stage`: 0.000 would be the least time of all."""
    choice = {"max_token_len": 64, "dropped": 0, "dropped_share": 0, "dropped_tokens_share": 0, "packs": 9, "fill": 0.9}
    lengths = {"samples_in": 100, "samples_measured": 100, "tokens": 1000, "lens": [choice]}
    leave(tmp_path, 0, ["stage=lengths"], lengths)
    leave(tmp_path, 1, ["stage=plan"], outcome())
    write_sweep_page_and_json(tmp_path)
    assert "0.000" not in check_page((tmp_path / "sweep.html").read_text())
    assert "0.000" not in capsys.readouterr().out


def test_a_sweep_shows_no_job_of_the_one_before(tmp_path: Path) -> None:
    """Given the same folder, one of fewer jobs showed the rest of the earlier one as its own."""
    for number in range(3):
        leave(tmp_path, number, [f"seed={number}"], outcome())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENERGON_PACK_SWEEP", "")  # as it was, when the test is over
        SweepFolderCallback().on_multirun_start(OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}}))
    leave(tmp_path, 0, ["seed=7"], outcome())
    assert [row.number for row in read_sweep(tmp_path).rows] == [0]


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system names no file: "writing failed" did not say which of a sweep's folders it was."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("energon_pack.report.sweep_folder.write_atomically", full)
    with pytest.raises(PackError, match=f"^{tmp_path}/.* No space left on device; .* another hydra.sweep.dir"):
        leave(tmp_path, 0, ["seed=0"], None)


def test_a_sweep_without_jobs_leaves_nothing(tmp_path: Path) -> None:
    write_sweep_page_and_json(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_names_that_mean_harm_are_text(tmp_path: Path) -> None:
    harm = "<script>alert(1)</script>" * 1000
    for number in range(200):
        leave(tmp_path, number, [f"source.path={number}{harm}", f"seed={number}"], outcome())
        leave(tmp_path, 1000 + number, [f"source.path={number}{harm}"], PackError(harm))
    page = sweep_html(read_sweep(tmp_path), tmp_path)
    check_page(page)
    assert "<script" not in page


def test_what_one_came_for_comes_first(tmp_path: Path) -> None:
    """On a screen of 500 px, fill and drops were out of sight without a hint."""
    for number in range(2):
        leave(tmp_path, number, [f"packing.max_token_len={number + 1}"], outcome(fill=0.9 + number / 100))
    page = sweep_html(read_sweep(tmp_path), tmp_path)
    (header,) = re.findall("<thead>(.*?)</thead>", page)
    assert re.findall("<th[^>]*>(.*?)</th>", header.replace("<wbr>", ""))[:4] == [
        "job",
        "max_token_len",
        "fill",
        "tokens dropped",
    ]


def test_names_stay_whole_where_they_are_alike(tmp_path: Path) -> None:
    for number in range(2):
        leave(tmp_path, number, [f"media.fps={number}", f"other.fps={number}"], outcome(fill=0.9 + number / 100))
    assert "media.fps, other.fps" in check_page(sweep_html(read_sweep(tmp_path), tmp_path))


def test_columns_are_drawn_against_the_swept_settings(tmp_path: Path) -> None:
    """Over two settings there was no chart, and over one it was two flat lines of fill and drops."""
    for number, tokens in enumerate((500, 1000)):
        leave(tmp_path, number, [f"packing.max_token_len={number}"], outcome(tokens=tokens))
    page = sweep_html(read_sweep(tmp_path), tmp_path)
    check_page(page)
    assert re.findall(r"--share:([\d.]+)%\">(?:<b>)?(500|1,000)<", page) == [("50.0", "500"), ("100.0", "1,000")]


def test_a_job_that_would_be_refused_has_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over lengths, the rows that one sweeps for were lost: they dropped more than packing.max_dropped_tokens."""
    why = "9 overlong samples have 33% of all tokens, packing.max_dropped_tokens=0.1 allows less (…)"
    leave(tmp_path, 0, ["packing.max_token_len=64"], SamplesLost(why, "/p.html", outcome(left_out=500)))
    leave(tmp_path, 1, ["packing.max_token_len=512"], outcome())
    write_sweep_page_and_json(tmp_path)
    page, out = (tmp_path / "sweep.html").read_text(), capsys.readouterr().out
    check_page(page)
    assert '<span class="faint">9 overlong samples have 33% of all tokens</span>' in page
    assert '<span class="faint">64</span>' in page
    assert re.search(r"(?m)^0 +64 +9 overlong.* 33\.33% ", out)
    assert "failed" not in out
    assert json.loads((tmp_path / "sweep.json").read_text())["best"] == 1


def test_no_model_is_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model with the fewest tokens won, and the sizes that its time was counted by were another's."""
    for number, (name, sizes) in enumerate((("qwen2_5_vl", "config.json"), ("internvl3", "sizes of an 8B model"))):
        left = outcome(tokens=1000 - number)
        left["flops"]["source"] = sizes
        SweepJobFile(tmp_path, number, [f"+model={name}"]).write_success(tmp_path / "report.html", left, 0.1)
    write_sweep_page_and_json(tmp_path)
    out = capsys.readouterr().out
    assert "no ★: each model has tokens of its own, and the fewest are not the best" in out
    assert re.search(r"internvl3 +sizes of an 8B model +90\.00%", out)
    assert "time of an epoch" not in out
    assert "time of an epoch" not in check_page((tmp_path / "sweep.html").read_text())
