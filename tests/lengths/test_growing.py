"""If a source gains or loses files, only new ones are measured, and the dataset equals one made from scratch."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from energon_pack.config import Format, PackConfig
from energon_pack.pack import pack
from support.packed import files
from support.samples import chat, write_tar

Make = Callable[..., PackConfig]


def write_samples(path: Path, num: int) -> None:
    """A tar, or a file of lines, of so many texts of its own."""
    texts = [f"{path.name} {'word ' * number}" for number in range(num)]
    if path.suffix == ".tar":
        write_tar(path, {f"{number}.json": chat(text, "answer") for number, text in enumerate(texts)})
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{json.dumps({'prompts': [text], 'captions': ['yes']})}\n" for text in texts))


@pytest.mark.parametrize("format", [Format.wds, Format.jsonl])
def test_only_new_files_are_measured(config: Make, tmp_path: Path, format: Format) -> None:
    """One in front, so that every shard has another number; then one goes."""
    source, end = tmp_path / "source", ".tar" if format is Format.wds else ".jsonl"
    for name in ("b", "c", "d"):
        write_samples(source / f"{name}{end}", 5)

    def packed(cache: str) -> tuple[dict[str, int], dict[str, dict[str, int]], dict[str, bytes]]:
        path = source if format is Format.wds else f"{source}/*.jsonl"
        run = config(path, source__format=format, cache_dir=str(tmp_path / cache), output__overwrite=True)
        report = pack(run)
        return report["cache"], report["throughput"], files(tmp_path / "out" / "packed")

    cache, done, _ = packed("kept")
    assert cache == {"shards_reused": 0, "shards_measured": 3}
    assert done["lengths"]["samples"] == 15

    write_samples(source / f"a{end}", 7)
    size = (source / f"a{end}").stat().st_size
    cache, done, found = packed("kept")
    assert cache == {"shards_reused": 3, "shards_measured": 1}
    assert (done["lengths"]["samples"], done["lengths"]["cached"]) == (7, 15)
    assert 0 < done["index"]["bytes"] <= 2 * size + 1024
    assert found == packed("anew")[2]

    (source / f"c{end}").unlink()
    cache, done, found = packed("kept")
    assert cache == {"shards_reused": 3, "shards_measured": 0}
    assert (done["lengths"].get("samples", 0), done["lengths"]["cached"]) == (0, 17)
    assert done.get("index", {}).get("bytes", 0) == 0
    shutil.rmtree(tmp_path / "anew")
    assert found == packed("anew")[2]
