"""`measure.verify` notices a length that is wrong, and nothing is published then.

It is the last net below every rule of a family: a test that can't fail would make it worthless.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from energon_pack.config import PackConfig
from energon_pack.lengths.audit import (
    AuditJob,
    AuditResult,
    StartedAudit,
    compare_with_full_processor,
    draw_samples_to_audit,
    finish,
    missing_package_text,
    result_file,
    start,
)
from energon_pack.lengths.index import index_shards
from energon_pack.lengths.measure import LengthsWrong, MeasuredShard, measure_shards
from energon_pack.lengths.method import Method
from energon_pack.lengths.table_cache import chunks_of_pieces
from energon_pack.pack import pack
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.run.progress import Progress
from energon_pack.run.workshop import Workshop
from energon_pack.samples.member import MemberTokens
from energon_pack.samples.settings import ReadSettings
from energon_pack.templates.processor import prepare_template
from energon_pack.templates.template import Template
from support.finding import find_shards
from support.models import of_model
from support.running import PIPELINE, need_torchvision

TWO = [MemberTokens(np.array([1, 2]), [])]


@pytest.fixture(autouse=True)
def full_processor() -> None:
    need_torchvision()


@pytest.fixture
def measured(demo: tuple[Path, Path], cache: Path, tmp_path: Path) -> tuple[list[MeasuredShard], Method]:
    folder = prepare_template(of_model("qwen_vl", demo[1]), cache)
    for kept in Path(folder).glob("audit-*"):
        kept.unlink()
    method = Method(folder, ReadSettings())
    with LocalExecutor(1) as executor:
        workshop = Workshop(executor, Progress(quiet=True), tmp_path)
        return measure_shards(
            index_shards(find_shards(str(demo[0])).shards, False, 0, workshop), method, workshop
        ), method


def job_of(measured: list[MeasuredShard], method: Method, share: float = 0.05) -> AuditJob:
    return AuditJob(draw_samples_to_audit(measured, share, 0), method)


def test_right_lengths_pass(measured: tuple[list[MeasuredShard], Method]) -> None:
    assert compare_with_full_processor(job_of(*measured)) == AuditResult(16, 0)


def test_one_wrong_length_stops_the_run(measured: tuple[list[MeasuredShard], Method], tmp_path: Path) -> None:
    shards, method = measured
    job = job_of(shards, method)
    _, chunk, rows = job.rows[-1]
    table = chunk.read()
    lens = table["token_len"].to_pylist()
    lens[rows[-1]] -= 1
    column = table.schema.get_field_index("token_len")
    [path] = {piece.path for piece in chunk.pieces}
    pq.write_table(table.set_column(column, table.schema.field(column), pa.array(lens, pa.int32())), path)
    found = compare_with_full_processor(job)
    assert f"has {lens[rows[-1]] + 1} tokens in the full processor, {lens[rows[-1]]} as measured" in found.difference

    running: Future[AuditResult] = Future()
    running.set_result(found)
    with pytest.raises(LengthsWrong, match=r"measure\.verify: .* as measured, by model\.template=qwen_vl"):
        finish(StartedAudit(method, tmp_path / "kept", running), Workshop(LocalExecutor(), Progress(), tmp_path))


def test_lengths_that_are_wrong_are_forgotten(
    config: Callable[..., PackConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next run would take them from the cache."""
    run = config(cache_dir=str(tmp_path / "new"), measure__verify=0.01)
    running: Future[AuditResult] = Future()
    running.set_result(AuditResult(0, 0, "", "x has 2 tokens in the full processor, 1 as measured"))
    with monkeypatch.context() as patch:
        patch.setattr(
            PIPELINE.audit, "start", lambda shards, method, *_: StartedAudit(method, tmp_path / "kept", running)
        )
        with pytest.raises(LengthsWrong):
            pack(run)
    assert pack(run)["cache"] == {"shards_reused": 0, "shards_measured": 3}


def test_other_features_than_tokens_that_wait_are_noticed(
    measured: tuple[list[MeasuredShard], Method], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training would compare the processor's features with a number that nobody has compared."""
    made = Template.tokens_of

    def wrong(template: Template, *rendered: Any) -> list[MemberTokens]:
        each = made(template, *rendered)
        return [replace(m, media=[replace(x, num_features=x.num_features + 1) for x in m.media]) for m in each]

    monkeypatch.setattr(Template, "tokens_of", wrong)
    assert "features of media, and" in compare_with_full_processor(job_of(*measured)).difference


def test_a_sweep_asks_the_full_processor_once(
    measured: tuple[list[MeasuredShard], Method], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each of its jobs would import transformers for seconds, to learn again that torchvision is not there.

    Of other lengths, another share or another draw nothing is known, nor where a medium could not be decoded.
    """
    shards, method = measured
    monkeypatch.setattr("energon_pack.lengths.audit._full_processor", lambda _: (None, "no torchvision"))
    monkeypatch.setattr("energon_pack.lengths.audit._difference", lambda *_: "")
    with LocalExecutor(1) as executor:
        workshop = Workshop(executor, Progress(quiet=True), tmp_path)
        first = finish(start(shards, method, 0.05, 0, workshop), workshop)
        assert finish(start(shards, method, 0.05, 0, workshop), workshop) == replace(first, is_known=True)
        for others in ((shards[:1], method, 0.05, 0), (shards, method, 0.06, 0), (shards, method, 0.05, 1)):
            assert not finish(start(*others, workshop), workshop).is_known
        moved = [
            replace(item, pieces=[piece._replace(first_row=piece.first_row + 1) for piece in item.pieces])
            for item in shards
        ]
        known, other = (result_file("audit", items, method, 0.05, 0) for items in (shards, moved))
        assert known.exists()
        assert not other.exists(), "lengths of several sources lie in one file: their results are apart"
        for kept in Path(method.template_folder).glob("audit-*"):
            kept.unlink()
        running: Future[AuditResult] = Future()
        running.set_result(AuditResult(3, 0, num_undecodable=1))
        finish(replace(start(shards, method, 0.05, 0, workshop), future=running), workshop)
        assert not list(Path(method.template_folder).glob("audit-*"))
    assert (first.num_checked, first.num_unchecked, first.note) == (5, 11, "no torchvision")


def test_the_draw_is_seeded_and_of_samples_in_the_cache_too(measured: tuple[list[MeasuredShard], Method]) -> None:
    """A source may change and keep its size and time, so cached lengths are audited like newly measured ones."""
    shards, _ = measured
    drawn = draw_samples_to_audit(shards, 0.02, 7)
    assert drawn == draw_samples_to_audit(shards, 0.02, 7)
    assert sum(len(rows) for _, _, rows in drawn) == 7  # of 320
    assert draw_samples_to_audit(shards, 0.0, 7) == []
    assert draw_samples_to_audit([replace(item, was_cached=True) for item in shards], 0.02, 7) == drawn


def test_what_one_process_can_not_do_is_dealt(
    measured: tuple[list[MeasuredShard], Method], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A share of 0.002 of a billion samples takes one process seven hours."""
    shards, method = measured
    monkeypatch.setattr("energon_pack.lengths.audit.chunks_of_pieces", partial(chunks_of_pieces, max_rows=1))
    with LocalExecutor(1) as executor:
        workshop = Workshop(executor, Progress(quiet=True), tmp_path)
        whole = start(shards, method, 0.05, 0, workshop)
        monkeypatch.setattr("energon_pack.lengths.audit._JOB_SAMPLES", 5)
        dealt = start(shards, method, 0.05, 0, workshop)
        assert (len(whole.other_jobs), len(dealt.other_jobs)) == (0, 2)
        assert finish(dealt, workshop) == finish(whole, workshop) == AuditResult(16, 0)
        monkeypatch.setattr(Template, "tokens_of", lambda *_: TWO)
        with pytest.raises(LengthsWrong, match="other tokens: "):
            finish(dealt, workshop)


def test_a_run_says_what_was_verified(
    config: Callable[..., PackConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = config(measure__verify=0.01, cache_dir=str(tmp_path / "new"))
    figures = pack(run)
    assert (figures["samples_verified"], figures["samples_not_verified"]) == (4, 0)
    assert "verified: 4 samples in the full processor, none differs" in capsys.readouterr().out
    run.output.overwrite = True
    assert pack(run)["samples_verified"] == 4  # from the cache
    assert "verified: 4 samples in the full processor before, none differs" in capsys.readouterr().out
    run.measure.verify = 0.02
    assert pack(run)["samples_verified"] == 7  # more than it was asked before
    assert "verified: 7 samples in the full processor" in capsys.readouterr().out


def test_what_could_not_be_verified_is_one_short_line() -> None:
    """It was the first 120 characters of transformers' advice, cut within a word."""
    error = ImportError(
        "\nQwen2VLVideoProcessor requires the Torchvision library but it was not found in your environment. Check out "
        "the instructions on the\ninstallation page: https://pytorch.org/get-started/locally/ and follow the ones that"
    )
    assert AuditResult(2, 1, missing_package_text(error)).lines() == [
        "verified: 2 samples in the full processor, none differs",
        "not verified: 1 sample with media: the full processor needs torchvision (pip install torchvision)",
    ]
    assert AuditResult(0, 0).lines() == []
