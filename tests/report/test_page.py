"""A page is whole, small and safe whatever a run came to, and says what its ledger and its dataset say."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_pack.config import PackConfig, Stage
from energon_pack.errors import SamplesLost
from energon_pack.pack import pack
from energon_pack.plan.report import RunFacts
from energon_pack.report.figures import Origin
from energon_pack.report.page import About, run_page
from energon_pack.report.pages.bars import log_histogram
from energon_pack.report.pages.html import Html
from energon_pack.report.remarks import remarks
from energon_pack.samples.skip import Reason
from support.figures import FIGURES, figures
from support.html_page import check_page
from support.samples import chat, picture, write_tar

Make = Callable[..., PackConfig]
_MOST = 1_000_000  # bytes


def seen(path: Path) -> str:
    page = path.read_text()
    assert len(page.encode()) < _MOST
    return check_page(page)


def test_the_demo(config: Make) -> None:
    run = config()
    figures = pack(run)
    said = seen(Path(run.output.dir) / "packed" / "report.html")
    for text in ("320", f"{figures['tokens']:,}", "91.32%", "max_token_len 8,192", "trained on", "get_train_dataset"):
        assert text in said
    for title in (
        "What to look at",
        "In and out",
        "Token lengths",
        "Which length",
        "Packs",
        "A few packs",
        "Time",
        "batches of one pack have",
    ):
        assert title in said


@pytest.mark.parametrize("stage", [Stage.plan, Stage.lengths])
def test_a_plan_has_a_page_beside(config: Make, stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    run = config(stage=stage)
    pack(run)
    path = Path(run.output.dir) / f"packed.{stage.value}.html"
    assert "Which length" in seen(path)
    assert f"see it: {path}" in capsys.readouterr().out


def test_a_run_that_loses_too_much_leaves_a_page(config: Make, tmp_path: Path) -> None:
    """That is when it is needed most; it goes when the next run is published."""
    good, bad = {"a.json": chat("a", "b")}, {"b.json": chat("<image>", "b", name=["b.jpg"])}
    run = config(write_tar(tmp_path / "s" / "x.tar", good | bad))
    with pytest.raises(SamplesLost, match=r"packed\.skipped\.jsonl names each .*packed\.report\.html shows") as error:
        pack(run)
    page = Path(run.output.dir) / "packed.report.html"
    assert str(page) in str(error.value)
    said = seen(page)
    assert "Nothing is published" in said
    assert "missing_media" in said
    assert "x.tar/b" in said
    assert "packed.skipped.jsonl" in said
    pack(replace(run, source=replace(run.source, limit=1)))
    assert not page.exists()


def one_image() -> dict[str, Any]:
    return {"a.json": chat("<image>a", "b", name=["0.jpg"]), "a.0.jpg": picture(64, 48)}


@pytest.mark.parametrize(
    "members",
    [{"a.json": chat("a", "b")}, {"a.json": b"{", "b.json": b"["}, {}, one_image()],
    ids=["one text", "nothing readable", "no sample", "one image"],
)
@pytest.mark.parametrize("stage", [Stage.lengths, Stage.plan, Stage.all])
def test_a_run_of_nearly_nothing(config: Make, tmp_path: Path, members: dict[str, Any], stage: Stage) -> None:
    """A page must never end a run in another way than it would have."""
    run = config(write_tar(tmp_path / "s" / "x.tar", members), stage=stage, max_skipped=1.0)
    try:
        pack(run)
    except SamplesLost:
        assert not all(key.startswith("a.") for key in members) or not members
    for path in Path(run.output.dir).rglob("*.html"):
        seen(path)


def test_a_path_may_be_no_utf_8(config: Make, tmp_path: Path) -> None:
    run = config(write_tar(tmp_path / os.fsdecode(b"caf\xe9") / "x.tar", {"a.json": chat("a", "b")}))
    pack(run)
    assert "caf\ufffd" in seen(Path(run.output.dir) / "packed" / "report.html")


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x00\x1b[31m"


def worst() -> tuple[Any, About]:
    """Many reasons, folders, packs and settings, with long names that mean harm."""
    rng = np.random.default_rng(0)
    kinds = ("text", "image", "video", "mix")
    many = {kind: np.sort(rng.integers(1, 200_000, 3000)) for kind in kinds}
    text = HOSTILE * 100
    flops = {"weights": 1e20, "attention": 1e19, "vision": 0.0, "source": text}
    entry = {"sample_id": text, "detail": text}
    config = PackConfig(seed=7)
    config.model.name = config.model.template = text
    config.source.path = [text] * 500
    config.output.name = text
    reasons = {reason.value: 10 for reason in Reason}
    of = figures(
        {"token_len": log_histogram(many)},
        {
            "skipped_by_reason": reasons,
            "packs": 9000,
            "flops": flops,
        },
        shapes=(9000, 16),
        origins=[Origin(text, 1000, 800, 100, 5)] * 500,
        examples={reason: [{**entry, "reason": reason}] * 3 for reason in reasons},
    )
    names = ("processor", "lengths", "plan", "write", "verify", "check")
    facts = RunFacts(
        format=1, config={}, media_rules={}, cwd="/", source_root=None, fingerprint="abc",
        seconds=dict.fromkeys(names, 12.5),
        throughput={name: {"samples": 10**9, "cached": 5, "bytes": 10**12} for name in names}, identity="1f",
        peak_rss_bytes=10**9,
        peak_rss_bytes_by_stage=dict.fromkeys(names, 10**9), bytes_read=10**9, bytes_written=10**9,
        cache={"shards_reused": 3, "shards_measured": 4}, samples_verified=100, samples_not_verified=3,
    )  # fmt: skip
    return of, About(config, text, text, facts, "/x", "skipped.jsonl", text)


def test_names_that_mean_harm_are_text() -> None:
    """Otherwise the author of the data could run any script in the reader's browser."""
    of, about = worst()
    page = run_page(of, about, remarks(of))
    said = check_page(page)
    assert "<script" not in page
    assert "<img" not in page
    assert "alert(1)" in said
    assert "\x1b" not in page
    assert "\x00" not in page


def test_the_largest_page_is_small() -> None:
    """It is sent by mail and opened on telephones. Packs to look at take 200 kB at most."""
    of, about = worst()
    assert len(run_page(of, about, remarks(of), [Html("x" * 200_000)]).encode()) < _MOST


def test_what_is_not_there_is_not_shown() -> None:
    """A run without a plan, and one without measured samples."""
    bare = figures({"token_len": None, "measured": 0}, report=None, shapes=None, loss=None)
    about = About(PackConfig(), "a", "b")
    about.config.model.name = about.config.model.template = "x"
    assert "No sample was measured." in check_page(run_page(bare, about))
    assert "batches of one pack" not in check_page(run_page(FIGURES, about))
