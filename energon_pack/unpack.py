"""Turn packs back into single samples: `python -m energon_pack.unpack DIR OUT`

Writes WebDataset tars as a source has them: one for each source shard, with its name. Each member of a pack becomes
`<key>.json` and its media, with their first names and byte for byte. Each JSONL file becomes one tar: the key is the
number of the line, and media are `0.jpg`, `1.png` …. Packing the tars again gives the same lengths.

    packed shards ──spill──► JSON of each member, rows dealt by source shard (two files on disk) ──write──► tars

Memory holds the rows of one source shard at a time, however many samples there are.
"""

import json
import os
import re
import tempfile
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from energon_pack.dataset.files import PLAN, PlanFile, PlanRow, PlanRowLookup, has_messages
from energon_pack.dataset.folder import DatasetFolder, open_dataset_folder
from energon_pack.dataset.in_folder import FolderDestination
from energon_pack.dataset.manifest import MANIFEST
from energon_pack.dataset.pack_json import ParsedPack
from energon_pack.dataset.source_media import ReferencedMediaReader
from energon_pack.dataset.tar_writer import TarWriter
from energon_pack.errors import PackError, amount
from energon_pack.run.address import lies_in
from energon_pack.run.command import make_tool_parser, positive_int, require_local_path, run_tool
from energon_pack.run.console import say
from energon_pack.run.files import META_FOLDER, sync_file_system
from energon_pack.run.progress import Progress
from energon_pack.samples.flavors import describe_unreadable_dataset, find_packed_flavor
from energon_pack.samples.flavors.base import PackedFlavor
from energon_pack.samples.sample import Reference
from energon_pack.samples.single_samples import single_sample_of_member
from energon_pack.sources.find import make_shard_of_file
from energon_pack.sources.jsonl.line_index import ROW_PART
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.shard import Shard
from energon_pack.sources.storage import absolute, real_path
from energon_pack.verify.pack_checks import check_files_in_pack, check_placeholders, compare_pack_with_plan
from energon_pack.verify.shard_checks import read_packs
from energon_pack.verify.source_checks import reading_settings_without_map

_MAX_ROWS_IN_MEMORY = 50_000  # rows that are sorted at once
_PACKS_AT_ONCE = 256  # packs whose rows of the plan are held at once
_VERIFY_ADVICE = "python -m energon_pack.verify says more"
#: a member: `order`, the place of its JSON in the source; `key`; `part`, None for a whole sample; `offset` and `size`
#: of its JSON in the spill file; `packed`, the packed shard that has its media; of each of its `media` name, offset,
#: size and `reference`, None where it is in the packed shard
_MemberRow = dict[str, Any]


def unpack(dataset: str | Path, out: Path, max_shard_samples: int = 10_000) -> int:
    """Write the members of a packed dataset as single samples into the folder `out`; return their number.

    A source shard with more than `max_shard_samples` samples becomes several tars.

    Raises:
        PackError: `out` is not empty, packs are damaged or hold no conversations, or a member is missing.
    """
    folder = open_dataset_folder(dataset)
    plan, (flavor, messages_key) = PlanFile(folder), _flavor_and_messages_key(folder)
    out = out.absolute()
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise PackError(f"{out} exists and is not empty: choose another folder")
    if lies_in(os.path.realpath(out), real_path(absolute(folder.path))):
        raise PackError(f"{out} lies in the packed dataset {folder}: choose another folder")
    plan.check()
    progress = Progress()
    with FolderDestination(out).open_staging("unpack") as staging, tempfile.TemporaryFile(dir=staging) as file:
        spill = _SpillFile(file)
        with progress.stage("read", plan.num_members(), "samples") as advance:
            for name in folder.shards:
                for pack, members in _checked_packs(folder, name, flavor, plan):
                    spill.add_pack(name, pack, members, messages_key)
                    progress.add(len(members))
                    advance(len(members))
            spill.flush_rows()
        if spill.num_rows != plan.num_members():
            raise PackError(
                f"{folder} has {spill.num_rows} of the {plan.num_members()} members in {PLAN}; {_VERIFY_ADVICE}"
            )
        tars = staging / "tars"
        taken = set(spill.pieces_of_shard)
        packed = {name: make_shard_of_file(name, folder.path_of(name)) for name in folder.shards}
        media = ReferencedMediaReader(folder.path)
        with progress.stage("write", spill.num_rows, "samples") as advance, SourceReader() as reader:
            for shard in sorted(spill.pieces_of_shard):
                rows = spill.rows_of(shard)
                names = _tar_names(shard, -(-len(rows) // max_shard_samples), taken)
                for number, name in enumerate(names):
                    chunk = rows[number * max_shard_samples : (number + 1) * max_shard_samples]
                    _write_tar(tars / name, chunk, packed, reader, media, spill)
                    progress.add(len(chunk))
                    advance(len(chunk))
        sync_file_system(staging)
        os.rename(tars, out)  # `out` may be an empty folder, which is replaced
    return spill.num_rows


def _flavor_and_messages_key(folder: DatasetFolder) -> tuple[PackedFlavor, str | None]:
    path = f"{META_FOLDER}/{MANIFEST}"
    if not folder.has(path):
        raise PackError(f"{folder} is no packed dataset: it has no {path}")
    try:
        manifest = folder.read_json_object(path)
    except ValueError as error:
        raise PackError(f"{folder.path_of(path)} can't be read: {error}") from None
    name = manifest.get("flavor")
    flavor, why = find_packed_flavor(name) if isinstance(name, str) else None, describe_unreadable_dataset(manifest)
    if flavor is None or why:
        raise PackError(f"{folder.path_of(path)}: {why or 'it names no flavor'}")
    if not has_messages(manifest):
        raise PackError(
            f"{folder}: its packs hold no conversations (output.messages=false): only their source has them"
        )
    if manifest.get("pairs"):
        raise PackError(
            f"{folder} holds preference pairs: single samples would be rejected answers; their source has both"
        )
    return flavor, reading_settings_without_map(manifest).messages_key


def _checked_packs(
    folder: DatasetFolder, name: str, flavor: PackedFlavor, plan: PlanFile
) -> Iterator[tuple[ParsedPack, list[PlanRow]]]:
    packs, plan_rows = read_packs(folder, name, flavor), PlanRowLookup(plan)
    while group := list(islice(packs, _PACKS_AT_ONCE)):
        rows = plan_rows.rows_of_packs({pack.files.key for _, pack, _ in group})
        for _, pack, defects in group:
            members = rows.get(pack.files.key)
            for defect in chain(
                defects, check_files_in_pack(pack), check_placeholders(pack), compare_pack_with_plan(pack, members)
            ):
                raise PackError(f"{folder.path_of(name)}: {pack.files.key}: {defect}; {_VERIFY_ADVICE}")
            yield pack, members or []


# ---------------------------------------------------------------------------------------- dealt by source shard


class _SpillFile:
    """A temporary file with the JSON of all members, and with their rows, sorted into pieces by source shard."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._rows: dict[str, list[_MemberRow]] = {}
        self._num_waiting = 0
        self.num_rows = 0
        #: source shard → offset and size of each of its pieces
        self.pieces_of_shard: dict[str, list[tuple[int, int]]] = {}

    def add_pack(self, packed: str, pack: ParsedPack, members: list[PlanRow], messages_key: str | None) -> None:
        referred = {reference.name: [*reference] for reference in pack.references}
        samples = zip(pack.flavor.samples(pack.fields), pack.flavor.parts(pack.fields), strict=True)
        for member, (value, names) in zip(members, samples, strict=True):
            record, parts = single_sample_of_member(pack.flavor, value, names, _source_part_names(member), messages_key)
            data = json.dumps(record, ensure_ascii=False).encode()
            row = {
                "order": member.record_offset,
                "key": member.key,
                "part": member.cut.part if member.cut else None,
                "offset": self._file.tell(),
                "size": self._file.write(data),
                "packed": packed,
                "media": [
                    {"name": name, "offset": part.offset, "size": part.size, "reference": referred.get(part.name)}
                    for name, part in ((name, pack.parts[packed]) for name, packed in parts.items())
                ],
            }
            self._rows.setdefault(_checked_shard_name(member.shard), []).append(row)
            self._num_waiting += 1
        if self._num_waiting >= _MAX_ROWS_IN_MEMORY:
            self.flush_rows()

    def flush_rows(self) -> None:
        """Write the rows in memory to the file, in one piece for each source shard."""
        for shard, rows in self._rows.items():
            piece = "\n".join(map(json.dumps, rows)).encode()
            self.pieces_of_shard.setdefault(shard, []).append((self._file.tell(), self._file.write(piece)))
        self.num_rows += self._num_waiting
        self._num_waiting = 0
        self._rows.clear()
        self._file.flush()

    def rows_of(self, shard: str) -> list[_MemberRow]:
        """Return the rows of a source shard in its order; parts of one sample get keys of their own (`key#1of2`)."""
        pieces = [self.read(*place) for place in self.pieces_of_shard[shard]]
        rows: list[_MemberRow] = [json.loads(line) for piece in pieces for line in piece.splitlines()]
        rows.sort(key=lambda row: (row["order"], int(row["part"].partition("of")[0]) if row["part"] else 0))
        taken = {row["key"] for row in rows if row["part"] is None}
        for row in rows:
            if row["part"] is not None:
                key, mark = row["key"], "#"
                while (name := f"{key}{mark}{row['part']}") in taken:
                    mark += "#"
                taken.add(name)
                row["key"] = name
        return rows

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, offset)


def _source_part_names(member: PlanRow) -> list[tuple[str, str]]:
    """Return the part name and kind of each medium: the name in its tar, or a number if it comes from a JSONL line."""
    if member.record_part != ROW_PART:
        return [(part.name, part.kind) for part in member.parts]
    return [(f"{number}.{part.extension}", part.kind) for number, part in enumerate(member.parts)]


def _checked_shard_name(shard: str) -> str:
    """Return the name of a source shard; raises PackError if it is no path below a folder."""
    if not shard or shard.startswith("/") or ".." in shard.split("/") or "\0" in shard:
        raise PackError(f"{PLAN} has a source shard {shard!r}, which is no path below a folder")
    return shard


def _tar_names(shard: str, number: int, taken: set[str]) -> list[str]:
    """Return `number` tar names for the samples of a source shard; none is in `taken`, to which they are added."""
    stem = re.sub(r"\.(tar|jsonl?)$", "", shard)
    while True:
        names = [f"{stem}.tar"] if number == 1 else [f"{stem}.{i:06d}.tar" for i in range(number)]
        if names == [shard] or taken.isdisjoint(names):
            taken.update(names)
            return names
        stem += "_"


def _write_tar(
    path: Path,
    rows: list[_MemberRow],
    packed: dict[str, Shard],
    reader: SourceReader,
    media: ReferencedMediaReader,
    spill: _SpillFile,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb", buffering=0) as file:
        tar = TarWriter(file.fileno())
        for row in rows:
            named = (part["reference"] for part in row["media"])
            referred = iter(media.read([Reference(*values) for values in named if values is not None]))
            tar.add(f"{row['key']}.json", spill.read(row["offset"], row["size"]))
            for part in row["media"]:
                name = f"{row['key']}.{part['name']}"
                if part["reference"] is not None:
                    tar.add(name, next(referred))
                    continue
                source = reader.open_unchanged_shard(packed[row["packed"]])
                tar.copy(name, source, part["offset"], part["size"])
        tar.finish()


def main() -> int:
    """Run the command; return its exit code."""
    tool = make_tool_parser(
        "unpack",
        "DIR OUT",
        "Write the members of a packed dataset as samples of their own, in WebDataset tars.",
        examples=(
            "packed/demo-qwen2_5_vl-neat-8192 single",
            "packed/demo-qwen2_5_vl-neat-8192 small --max-shard-samples 100",
        ),
    )
    tool.add_argument("dataset", metavar="DIR", help="a packed dataset: its folder, or its address on an object store")
    tool.add_argument("out", metavar="OUT", help="folder to write to: a new one, or empty")
    tool.add_argument(
        "--max-shard-samples", type=positive_int, default=10_000, metavar="N", help="samples in a tar (default: 10000)"
    )
    arguments = tool.parse_args()
    number = unpack(arguments.dataset, require_local_path(arguments.out), arguments.max_shard_samples)
    say(f"{amount(number, 'sample')} unpacked into {arguments.out}")
    return 0


if __name__ == "__main__":
    run_tool("unpack", main)
