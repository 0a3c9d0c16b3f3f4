"""Two packed datasets side by side: what differs is told, and what only one of them has is named with its reason."""

from collections.abc import Callable
from pathlib import Path

import pytest

from energon_pack.config import PackConfig
from energon_pack.errors import PackError
from energon_pack.inspect.beside import beside_page, figures, only_in, settings, side_of
from energon_pack.inspect.dataset import open_dataset
from support.html_page import check_page
from support.packed import packed
from support.peers import write_llava_onevision
from support.running import command_here
from support.samples import chat, write_tar

Make = Callable[..., PackConfig]


@pytest.fixture
def both(config: Make, tmp_path: Path) -> tuple[Path, Path]:
    """Of twenty samples one has 100 words: packed with room for it, and without."""
    members = {f"{n:02}.json": chat("word " * (100 if n == 7 else 5), "b") for n in range(20)}
    source = write_tar(tmp_path / "s" / "x.tar", members)
    wide = packed(config(source, output__name="wide", packing__max_token_len=512))
    return wide, packed(config(source, output__name="narrow", packing__max_token_len=64))


def test_what_differs_is_told(both: tuple[Path, Path]) -> None:
    wide, narrow = (side_of(open_dataset(folder)) for folder in both)
    told = {name: values for name, *values in figures(wide, narrow).rows}
    assert told["max_token_len"] == ["512", "64", "-87.50 %"]
    assert told["samples that went in"] == ["20", "20", ""]
    assert told["skipped"] == ["0", "1", ""]
    assert told["packed"] == ["20", "19", "-5.00 %"]
    assert {key: (a, b) for key, a, b in settings(wide, narrow).rows} == {
        "packing.max_token_len": ("512", "64"),
        "output.name": ('"wide"', '"narrow"'),
    }
    (lost,) = only_in(wide, narrow).first
    assert lost[0] == "x.tar/07"
    assert lost[1].startswith("overlong: ")
    assert only_in(narrow, wide).number == 0
    assert len(wide.lens) == len(open_dataset(both[0]).packs)
    assert wide.fill.max() <= 100


def test_it_is_printed_and_written(both: tuple[Path, Path], tmp_path: Path) -> None:
    result = command_here("energon_pack.inspect", both[0], "--beside", both[1], "--html", "both.html", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "only in wide: 1 sample\n  x.tar/07: overlong: " in result.stdout
    said = check_page((tmp_path / "both.html").read_text())
    assert "Only in wide: 1" in said
    assert "Which settings differ?" in said


def test_a_dataset_beside_itself(both: tuple[Path, Path]) -> None:
    side = side_of(open_dataset(both[0]))
    assert "None." in check_page(beside_page(side, side))


def test_packs_of_another_tool_are_refused(tmp_path: Path) -> None:
    """They have no report to be compared by."""
    write_llava_onevision(tmp_path)
    with pytest.raises(PackError, match=r"is no packed dataset: .* of a source: --source"):
        side_of(open_dataset(tmp_path))
