"""Convert JSONL to a plain, unpacked WebDataset: `python -m energon_pack.convert SOURCE OUT`.

Packing needs no such copy; it serves other uses. A sample is a JSON file and its media; Energon's metadata lie beside.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from energon_pack.dataset.energon import write_energon
from energon_pack.dataset.shards import WrittenShard
from energon_pack.dataset.tar_writer import TarWriter
from energon_pack.errors import PackError, amount
from energon_pack.lengths.index import refuse_damaged
from energon_pack.run.command import on_disk, parser, run
from energon_pack.run.console import say
from energon_pack.run.files import write_whole
from energon_pack.samples.flavors import UNPACKED
from energon_pack.samples.media.kinds import IMAGE
from energon_pack.samples.sample import AnyPart
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.draws import copy_numbers, drawn_keys, drawn_rows
from energon_pack.sources.jsonl.find import find_lines
from energon_pack.sources.reader import Reader
from energon_pack.sources.rows import IndexRow, rows_of
from energon_pack.sources.sample import read_sample
from energon_pack.sources.shard import Shard
from energon_pack.sources.tar import tar_len
from energon_pack.sources.wds import about_of


@dataclass(frozen=True)
class Sample:
    """One sample that will be written to a tar."""

    shard: Shard
    value: dict[str, Any]  # its JSON
    media: list[tuple[str, AnyPart]]  # name in the tar, and place of the bytes


def convert(
    source: list[str], out: Path, media_root: str | None = None, max_shard_bytes: float = 1e9
) -> dict[str, int]:
    """Write the samples of JSONL files as tars; list those that can't be written in OUT/skipped.jsonl.

    With `sample_ratio`, the samples are those that packing with `seed=0` draws.

    Returns:
        The numbers of written and of skipped samples.

    Raises:
        PackError: there is no source, or it is damaged; `out` exists, or it lies in the source or beside its files.
    """
    found = find_lines(source, media_root)
    if inside := found.around(out):
        raise PackError(f"{out} lies in the source {inside}, which is never written to: choose a folder elsewhere")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise PackError(f"{out} exists, and nothing is replaced: choose a folder that is empty, or not there yet")
    shards = found.shards
    staging = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    written: list[WrittenShard] = []
    skipped: list[dict[str, Any]] = []
    try:
        with Reader() as reader:
            waiting = (sample for shard in shards for sample in _samples(reader, shard, skipped))
            sample = next(waiting, None)
            while sample is not None:
                path = staging / f"{len(written):06d}.tar"
                number = sum(shard.num_samples for shard in written)
                with open(path, "wb", buffering=0) as file:
                    tar, starts = TarWriter(file.fileno()), [0]
                    while sample is not None and (tar.position == 0 or tar.position < max_shard_bytes):
                        _write(tar, f"{number + len(starts) - 1:08d}", sample, reader)
                        starts.append(tar.position)
                        sample = next(waiting, None)
                    tar.end()
                write_whole(path.with_suffix(".tar.idx"), np.array(starts, dtype="<u8").tobytes())
                num = len(starts) - 1
                written.append(WrittenShard(path.name, num, num, tar_len(starts[-1]), starts[-1]))
        if not written:
            why = "".join(f"; the first: {one['sample_id']}: {one['reason']}: {one['detail']}" for one in skipped[:1])
            raise PackError(f"{' '.join(source)}: no sample could be written, {len(skipped)} could not{why}")
        lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in skipped)
        write_whole(staging / "skipped.jsonl", lines.encode())
        write_energon(staging, written, UNPACKED, "typed")
        if out.exists():
            out.rmdir()
        os.rename(staging, out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return {"samples": sum(shard.num_samples for shard in written), "skipped": len(skipped), "shards": len(written)}


def _samples(reader: Reader, shard: Shard, skipped: list[dict[str, Any]]) -> Iterator[Sample]:
    for row in _drawn(shard):
        try:
            if row.reason is not None:
                raise Skip(Reason(row.reason), row.detail or "")
            yield _sample(reader, shard, row)
        except Skip as skip:
            entry = {"sample_id": shard.sample_id(row.key), "reason": skip.reason.value, "detail": skip.detail}
            skipped.append(entry)


def _drawn(shard: Shard) -> Iterator[IndexRow]:
    """Yield the rows of a shard's index, each as often as `sample_ratio` draws it."""
    table = shard.index()
    refuse_damaged([(shard, about_of(table))])
    rows = drawn_rows(table.num_rows, shard.ratio, shard.name, 0)
    keys = drawn_keys(table["key"].to_pylist(), rows, copy_numbers(rows))
    for key, row in zip(keys, rows_of(table.take(pa.array(rows)), IndexRow), strict=True):
        yield replace(row, key=key)


def _sample(reader: Reader, shard: Shard, row: IndexRow) -> Sample:
    sample = read_sample(reader, shard, row, ReadSettings())
    names = [f"{number}.{part.extension}" for number, part in enumerate(sample.parts)]
    stems = [str(number) for number, part in enumerate(sample.parts) if part.kind == IMAGE.kind]
    arrays = {f"{stem}.npy": part for stem, part in zip(stems, sample.positions, strict=False) if part}
    value = {"messages": sample.messages, **({"tools": sample.tools} if sample.tools else {}), **sample.fields}
    value |= {"name": names} if names else {}
    if arrays:
        value["patch_positions"] = [f"{stem}.npy" if f"{stem}.npy" in arrays else "" for stem in stems]
    value.setdefault("id", shard.sample_id(row.key))
    return Sample(shard, value, [*zip(names, sample.parts, strict=True), *arrays.items()])


def _write(tar: TarWriter, key: str, sample: Sample, reader: Reader) -> None:
    tar.add(f"{key}.json", json.dumps(sample.value, ensure_ascii=False, separators=(",", ":")).encode())
    for name, part in sample.media:
        tar.copy(f"{key}.{name}", reader.part_file(sample.shard, part), part.offset, part.size)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    tool = parser(
        "convert",
        "SOURCE... OUT",
        "Write JSONL as a plain, unpacked WebDataset; packing needs no such copy.",
        examples=("train.jsonl wds", "train.jsonl more/*.jsonl wds --media-root /data/images"),
    )
    tool.add_argument("source", nargs="+", metavar="SOURCE", help="*.jsonl files, folders, globs, meta files")
    tool.add_argument("out", metavar="OUT", help="the folder to write")
    tool.add_argument(
        "--media-root", metavar="FOLDER", help="what paths of media are relative to (default: the folder of the JSONL)"
    )
    tool.add_argument("--max-shard-bytes", type=float, default=1e9, metavar="N", help="of a tar (default: 1e9)")
    given = tool.parse_args(arguments)
    done = convert(given.source, on_disk(given.out), given.media_root, given.max_shard_bytes)
    say(
        f"{amount(done['samples'], 'sample')} in {amount(done['shards'], 'shard')} of {given.out};"
        f" {done['skipped']:,} in skipped.jsonl"
    )
    return 0


if __name__ == "__main__":
    run("convert", main)
