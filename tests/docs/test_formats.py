"""The lines of docs/formats.md that read the tokens of a pack give what training is fed."""

from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_pack import PackedDataset
from energon_pack.samples.tokens_part import COLUMNS
from energon_pack.training.layout import IGNORE
from support.damage import read_shard
from support.packed import Make, packed
from support.pages import blocks
from support.running import need_torchvision
from support.samples import chat, picture, write_tar

DEMO = "packed/demo-qwen2_5_vl-neat-8192"


@pytest.fixture
def page(typed_demo: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the page's lines make, and what they print."""
    need_torchvision()
    monkeypatch.chdir(typed_demo)
    (lines,) = (block for block in blocks("python", "formats.md") if "EPK3" in block)
    assert len([line for line in lines.partition("def ")[2].splitlines() if line.strip()]) < 36
    made: dict[str, Any] = {"__name__": "page"}
    with redirect_stdout(StringIO()) as out:
        exec(compile(lines, "formats.md", "exec"), made)
    return made | {"printed": out.getvalue()}


def compare(folder: Path, processor: Path, read: Callable[[bytes], Any], **options: Any) -> int:
    """Compare all packs with the batches of a PackedDataset; return the number of media."""
    packs = PackedDataset(folder, str(processor), **options)
    parts = {name: data for path in sorted(folder.glob("*.tar")) for name, data in read_shard(path)}
    num_media = 0
    for pack in map(packs.__getitem__, range(len(packs))):
        ids, labels, weights, members, media = read(parts[f"{pack.key}.tokens"])
        batch = packs.encoder.batch([pack])
        assert np.array_equal(ids, batch["input_ids"][0])
        assert np.array_equal(labels, batch["labels"][0])
        assert [0, *(member.stop for member in members)] == batch["cu_seq_lens_q"].tolist()
        assert [member.start for member in members] == batch["cu_seq_lens_q"].tolist()[:-1]
        is_trained = labels != IGNORE
        assert np.array_equal(weights[is_trained], batch["loss_weight"][0][is_trained])
        assert [len(own) for own in media] == [member.num_images for member in pack.members]
        grids = batch["image_grid_thw"].prod(1) // 4 if any(media) else ()
        assert [number for own in media for _, number in own] == [int(number) for number in grids]
        assert {kind for own in media for kind, _ in own} <= {"i"}
        num_media += sum(map(len, media))
    return num_media


def test_thirty_lines_read_what_is_trained(typed_demo: Path, page: dict[str, Any]) -> None:
    """Others read the bytes by this page: a column that moved would give them other tokens."""
    assert page["COLUMNS"] == COLUMNS
    assert len(COLUMNS) == 25
    assert page["printed"].count("members,") == len(page["packs"]) > 4
    processor = typed_demo / "packed/.cache/demo/v1/processor"
    assert compare(typed_demo / DEMO, processor, page["read_tokens"], loss_weight="token") == 278


def test_they_read_weights(config: Make, demo: tuple[Path, Path], page: dict[str, Any], tmp_path: Path) -> None:
    turns = [text for i in range(3) for text in (f"Ask {i}", f"Say {i}")]
    weighted = chat(*turns, weight=0.5).replace(b'"Say 1"}', b'"Say 1", "weight": 0.25}')
    members = {"a.json": weighted, "b.json": chat("<image>And?", "Yes."), "b.png": picture(56, 56, "PNG")}
    source = write_tar(tmp_path / "source/a.tar", {**members, "c.json": chat("Why?", "So.", weight=2)}).parent
    folder = packed(config(source, packing__group_by="none"))
    assert compare(folder, demo[1], page["read_tokens"]) == 1
