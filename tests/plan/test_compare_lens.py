"""`stage=lengths` predicts what a pack length costs, and a run with that length has these figures."""

from collections.abc import Callable
from pathlib import Path

import pytest

from energon_pack.config import PackConfig, Stage
from energon_pack.pack import pack
from support.samples import chat, write_tar


def test_what_is_said_comes_true(config: Callable[..., PackConfig], capsys: pytest.CaptureFixture[str]) -> None:
    run = config(stage=Stage.lengths)
    run.report.lens = [128, 512, 1024, 8192]
    figures = pack(run)
    assert not (Path(run.output.dir) / "packed").exists()
    assert figures["samples_measured"] == 320
    assert list(figures["token_len"]) == ["min", "p50", "p90", "p99", "max"]
    said = capsys.readouterr().out
    assert "packing.max_token_len" in said
    for row in figures["lens"]:
        name = f"at{row['max_token_len']}"
        plan = pack(config(stage=Stage.plan, output__name=name, packing__max_token_len=row["max_token_len"]))
        assert (plan["packs"], plan["fill"]) == (row["packs"], row["fill"])
        assert plan["skipped_by_reason"].get("overlong", 0) == row["dropped"]
        assert f"{row['dropped_share']:.2%}" in said
    dropped = [row["dropped"] for row in figures["lens"]]
    assert dropped == sorted(dropped, reverse=True)
    assert (dropped[0] > 0, dropped[-1]) == (True, 0)


def test_lengths_are_taken_down_to_what_is_padded_to(config: Callable[..., PackConfig], tmp_path: Path) -> None:
    run = config(write_tar(tmp_path / "s" / "x.tar", {"a.json": chat("a", "b")}), stage=Stage.lengths)
    run.packing.pad_to_multiple_of = 64
    run.packing.max_token_len = 8192
    run.report.lens = [1000]
    assert [row["max_token_len"] for row in pack(run)["lens"]] == [960]
