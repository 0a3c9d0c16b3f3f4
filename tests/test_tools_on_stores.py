"""The tools for packed datasets say of an address what they say of a folder, and read no more of it than they need."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from energon_pack.config import MediaIn, PackConfig
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.run.stores import blocks, requests
from support.corruptions import CORRUPTIONS
from support.damage import found, lines, packed_to_damage
from support.packed import files, packed
from support.running import command_here
from support.stores import Bucket

Make = Callable[..., PackConfig]


@pytest.fixture(scope="module")
def dataset(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts and images in four shards, one sample cut in parts, three in the ledger."""
    return packed_to_damage(demo, cache, tmp_path_factory.mktemp("stored"))


def said(tool: str, place: Path | str, *arguments: str | Path, cwd: Path) -> tuple[int, str, str]:
    """Exit code and whole output, with DIR for the dataset, however it is named."""
    result = command_here(f"energon_pack.{tool}", place, *arguments, cwd=cwd)
    shown = (re.sub(r"\s+", " ", text.replace(str(place), "DIR")) for text in (result.stdout, result.stderr))
    return result.returncode, *shown


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("verify", ["--decode", "--source", "--lengths", "3"]),
        ("inspect", ["5", "--full"]),
        ("inspect", ["--search", "i03"]),
        ("inspect", ["--search", "bad"]),
        ("simulate", []),
    ],
)
def test_a_tool_says_of_an_address_what_it_says_of_a_folder(
    tool: str, arguments: list[str], dataset: Path, bucket: Bucket, tmp_path: Path
) -> None:
    address = bucket.put_folder(dataset, "out/packed")
    here = said(tool, dataset, *arguments, cwd=tmp_path)
    assert here[0] == 0
    assert said(tool, address, *arguments, cwd=tmp_path) == here
    assert said(tool, f"{address}/", *arguments, cwd=tmp_path)[0] == 0
