"""JSONL as a plain WebDataset: Energon loads it, and packing it comes to the packs of the JSONL."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from energon_pack.config import Format, PackConfig
from energon_pack.convert import convert
from energon_pack.errors import PackError
from energon_pack.flavors import MultiMixQASample
from energon_pack.pack import pack
from support.packed import json_lines, train
from support.running import command_here
from support.samples import picture


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "x").mkdir(parents=True)
    (folder / "a.jpg").write_bytes(picture(40, 30))
    (folder / "x" / "a.jpg").write_bytes(picture(60, 30, "PNG"))
    lines = [
        {"id": 5, "images": ["a.jpg", "x/a.jpg"], "prompts": ["<image>?", "<image>!"], "captions": ["yes", "no"]},
        {"images": ["gone.jpg"], "prompts": ["<image>?"], "captions": ["yes"]},
        *({"prompts": [f"a {i}"], "captions": ["b"], "score": 0.5} for i in range(5)),
    ]
    (folder / "s.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "s.jsonl"


def test_energon_loads_it(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "wds"
    assert convert([str(source)], out, max_shard_bytes=4096) == {"samples": 6, "skipped": 1, "shards": 2}
    assert [(entry["sample_id"], entry["reason"]) for entry in json_lines(out / "skipped.jsonl")] == [
        ("s.jsonl:2", "missing_media")
    ]
    samples = list(train(out))
    assert {type(sample) for sample in samples} == {MultiMixQASample}
    assert len(samples) == 6
    (with_images,) = (sample for sample in samples if sample.image)
    assert [image.size for image in with_images.image] == [(40, 30), (60, 30)]
    assert [m["content"] for m in with_images.messages] == ["<image>?", "yes", "<image>!", "no"]


def test_its_lengths_are_those_of_the_lines(config: Callable[..., PackConfig], source: Path, tmp_path: Path) -> None:
    out = tmp_path / "wds"
    convert([str(source)], out)
    lens = []
    for path, format in ((source, Format.jsonl), (out, Format.wds)):
        run = config(path, source__format=format, output__name=format.value, max_skipped=0.5)
        pack(run)
        rows = pq.read_table(Path(run.output.dir) / format.value / "pack_plan.parquet").to_pylist()
        lens.append(sorted(row["token_len"] for row in rows))
    assert lens[0] == lens[1]
    assert len(lens[0]) == 6


def test_samples_are_drawn_as_packing_draws_them(
    config: Callable[..., PackConfig], source: Path, tmp_path: Path
) -> None:
    """`sample_ratio` of a meta file holds for the tars, too."""
    meta, out = source.with_name("meta.json"), tmp_path / "wds"
    meta.write_text(json.dumps({"some": {"file_name": "s.jsonl", "sample_ratio": 2.4}}))
    done = convert([str(meta)], out)
    figures = pack(config(meta, source__format=Format.jsonl, max_skipped=0.5))
    assert done == {"samples": figures["samples_packed"], "skipped": figures["samples_skipped"], "shards": 1}
    assert done["samples"] + done["skipped"] == 7 * 2 + 3


@pytest.mark.parametrize("given", [".", "s.jsonl", "*.jsonl"])
@pytest.mark.parametrize("out", ["", "wds"])
def test_nothing_is_written_into_a_source(source: Path, given: str, out: str) -> None:
    """Nor beside a file of it: the ledger is a .jsonl, whose lines the next reader of the folder takes for samples."""
    before = sorted(source.parent.rglob("*"))
    with pytest.raises(PackError, match=r"lies in the source .*, which is never written to: choose a folder elsewhere"):
        convert([str(source.parent / given)], source.parent / out)
    assert sorted(source.parent.rglob("*")) == before


def test_what_is_there_is_kept(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("mine")
    with pytest.raises(PackError, match="mine exists, and nothing is replaced"):
        convert([str(source)], tmp_path / "mine")
    result = command_here("energon_pack.convert", source, source.parent, cwd=tmp_path)
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
    assert source.exists()


def test_nothing_to_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "s.jsonl").write_text('{"prompts": ["q"], "captions": ["a"], "images": ["1.jpg"]}\n}\n')
    with pytest.raises(PackError, match=r"could be written, 2 could not; the first: s.jsonl:1: missing_media"):
        convert([str(tmp_path / "source" / "s.jsonl")], tmp_path / "wds")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
