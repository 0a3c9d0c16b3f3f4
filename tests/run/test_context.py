"""Stages know the protocol of an executor alone: one that runs jobs elsewhere packs the same bytes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import PackConfig
from energon_pack.pack import pack
from support.elsewhere import Elsewhere
from support.packed import files
from support.running import PIPELINE


@pytest.mark.long("two whole runs with nothing cached")
def test_an_executor_of_another_kind_packs_the_same_bytes(
    config: Callable[..., PackConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that can't be pickled, or that does something else the second time, would fail on a cluster alone."""
    settings: dict[str, Any] = {
        "packing__max_token_len": 512,
        "packing__overlong": "split_turns",
        "output__max_shard_packs": 8,
        "measure__verify": 0.01,
    }
    local = config(**settings, cache_dir=str(tmp_path / "cache"))
    pack(local)
    elsewhere = Elsewhere()
    monkeypatch.setattr(PIPELINE, "executor_of", lambda *_: elsewhere)
    remote = config(**settings, cache_dir=str(tmp_path / "other"), output__dir=str(tmp_path / "other" / "out"))
    pack(remote)
    assert files(Path(remote.output.dir) / "packed") == files(Path(local.output.dir) / "packed")
    stages = {"_index_some", "partial", "measure", "get_ready", "write_shard", "audit", "check"}
    assert elsewhere.names >= stages
