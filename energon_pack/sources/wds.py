"""Index the samples of a WebDataset tar by the places of their parts, and read the record of one sample.

A member's key is its path up to the first dot of the basename, and its part is the rest, as in Energon; the
members of a sample are adjacent. Nothing is unpacked, and nothing is written beside the tars.
"""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pyarrow as pa

from energon_pack.samples.documents import document_of
from energon_pack.samples.preference import not_a_pair_skip
from energon_pack.samples.raw_record import apply_map_function, parse_sample_json
from energon_pack.samples.record import Record, caption_record, parse_record
from energon_pack.samples.settings import ReadSettings, SampleType
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.other_formats import open_refusing_compressed
from energon_pack.sources.part_names import DottedFile, DottedKeyFinder, Member, dotted_key_message
from energon_pack.sources.storage import open_file
from energon_pack.sources.tar import NO_DATA, TarScan

PART_TYPE = pa.list_(pa.struct([("name", pa.string()), ("offset", pa.int64()), ("size", pa.int64())]))
INDEX_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("record_part", pa.string()),  # json, txt, or the first of a question and an answer
        ("record_offset", pa.int64()),
        ("record_size", pa.int64()),
        ("parts", PART_TYPE),  # all other parts, in the tar's order
        ("reason", pa.string()),
        ("detail", pa.string()),
    ]
)
_MAX_DETAIL_CHARS = 300
_SKIPPED_FOLDER = re.compile("__[^/]*__/")  # at the start of a path, as in Energon
#: texts of a question and its answer, which nobody joins
_QA_PART = re.compile(r"(question|context|prompt|query|instruction|answer|response|output|completion)\.txt")


# ------------------------------------------------------------------------------------------ samples of a shard


def index_tar(path: str, record_part: str | None = None) -> pa.Table:
    """Index a tar: return a row of `INDEX_SCHEMA` for each sample, with damage of the tar in the schema's metadata.

    The column `reason` is null, or a value of `Reason`: why the sample can't be packed. `duplicate_key`: an earlier
    sample has its key. `non_adjacent_member`: some of its files follow after other samples. `truncated_tar`: it lies
    beside a damage, which may have cost its media. `dotted_key`: files of one key are samples of their own, such as
    `scene.0001.json` and `scene.0002.json`; each of them gets a row, because each is lost.

    `record_part`: the part that holds the record, as a field map names it; None: `json`, or else `txt`.
    """
    with open_refusing_compressed(path) as file:
        scan = TarScan(file)
        dotted = DottedKeyFinder(lambda member: file.read(member[1], member[2]))
        rows = _IndexRows(dotted, record_part)
        rows.add_all(scan)
        separate = dotted.files_that_are_samples()
        rows.mark_dotted_keys(separate)
    damage = json.dumps([(item.offset, item.detail) for item in scan.damage])
    about = {"damage": damage, "digest": scan.headers.hexdigest()}
    if separate:
        about["dotted"] = json.dumps((separate[0].name, len(separate)))
    return rows.table().replace_schema_metadata(about)


def hash_tar_headers(path: str) -> str:
    """Read all headers of a tar, and return their SHA-256."""
    with open_file(path) as file:
        scan = TarScan(file)
        for _ in scan:
            pass
    return scan.headers.hexdigest()


def index_metadata(index: pa.Table) -> dict[str, str]:
    """Return the metadata of an index: `digest`, `damage` (JSON), and if there are dotted keys, `dotted` (JSON)."""
    return {name.decode(): value.decode() for name, value in (index.schema.metadata or {}).items()}


def parse_index_damage(metadata: Mapping[str, str]) -> list[tuple[int, str]]:
    """Return (offset, description) of each damage in a file. `metadata`: what `index_metadata` returned for it."""
    return [(offset, detail) for offset, detail in json.loads(metadata.get("damage", "[]"))]


def dotted_keys_error(path: str, about: Mapping[str, str]) -> str | None:
    """Return the error for a tar with dotted keys (see `index_tar`); None: none. `about`: the index's metadata."""
    return dotted_key_message(path, *json.loads(about["dotted"])) if "dotted" in about else None


class _IndexRows:
    """Groups the files of a tar into samples, and collects the columns of the tar's index during the scan."""

    def __init__(self, dotted: DottedKeyFinder, record_part: str | None) -> None:
        self._dotted, self._record_part = dotted, record_part
        self._keys: list[str] = []
        self._records: list[Member | None] = []
        self._reasons: list[tuple[str, str] | None] = []  # reason, detail
        self._parts: list[Member] = []
        self._part_starts = [0]
        self._rows: dict[str, int] = {}  # key → its latest row
        self._late_parts: dict[int, dict[str, Member]] = {}  # row → its parts, if some follow other samples

    def add_all(self, scan: TarScan) -> None:
        """Add a row for each sample, then one for every damage that hides a sample."""
        damage = scan.damage
        num_damages, is_beside_damage = 0, False
        sample_key: str | None = None
        group: dict[str, Member] = {}  # by part
        for name, offset, size in scan:
            key, dot, part = name.partition(".")
            if "/" in part:  # the dot is in the name of a folder
                folder, _, file = name.rpartition("/")
                stem, dot, part = file.partition(".")
                key = f"{folder}/{stem}"
            if not dot or not key or key[-1] == "/" or (key[0] == "_" and _SKIPPED_FOLDER.match(name)):
                continue  # no part, a hidden file, or a folder of metadata
            if key != sample_key or part in group:
                self._add_sample(sample_key, group, is_beside_damage)
                sample_key, group, is_beside_damage = key, {}, False
            if len(damage) > num_damages:
                num_damages, is_beside_damage = len(damage), True
            group[part] = (part, offset, size)

        if sample_key in {_key_of(item.cut_member) for item in damage if item.cut_member}:
            group = {}
        self._add_sample(sample_key, group, is_beside_damage, Reason.TRUNCATED_TAR if damage else Reason.MISSING_JSON)
        for item in damage:
            if item.cut_member or item.hides_member:
                key = _key_of(item.cut_member) if item.cut_member else f"@{item.offset}"
                detail = f"{item.detail} at byte {item.offset}"
                if key in self._rows:  # other parts of this sample came earlier, not beside these
                    self._reasons[self._rows[key]] = (Reason.TRUNCATED_TAR.value, detail[:_MAX_DETAIL_CHARS])
                else:
                    self._append(key, None, Reason.TRUNCATED_TAR, detail)

    def mark_dotted_keys(self, files: Sequence[DottedFile]) -> None:
        """Give keys with files that are separate samples the reason `dotted_key`; add a row for each of these files."""
        seen: set[str] = set()
        for file in files:
            row = self._rows[file.key]
            if file.key not in seen:
                self._reasons[row] = (Reason.DOTTED_KEY.value, file.detail[:_MAX_DETAIL_CHARS])
            if file.key in seen or self._records[row] is not None:  # otherwise its first file takes the key's own row
                self._append(file.name.rpartition(".")[0], None, Reason.DOTTED_KEY, file.detail)
            seen.add(file.key)

    def _add_sample(
        self,
        key: str | None,
        group: dict[str, Member],
        is_beside_damage: bool,
        without_record: Reason = Reason.MISSING_JSON,
    ) -> None:
        if key is None or not group:
            return
        names = list(group)
        record = self._take_record(group)
        if record is not None and record[2] == NO_DATA:
            record = None
        row = self._rows.get(key)
        if row is not None and self._add_late(key, row, names, record, group):
            return
        self._dotted.add_sample(key, record, group.values())
        self._parts += group.values()
        self._rows[key] = len(self._keys)
        if row is not None:
            self._append(key, record, Reason.DUPLICATE_KEY, f"{', '.join(names)} of a key that was there before")
        elif record is None:
            self._append(key, None, without_record, f"only {', '.join(names)}")
        elif record[0] == "txt" and not self._record_part and len(sides := [*filter(_QA_PART.fullmatch, group)]) > 1:
            self._append(key, record, Reason.BAD_MESSAGE, f"a txt beside {' and '.join(sides)}: write JSON of them")
        elif is_beside_damage and not group:
            self._append(key, record, Reason.TRUNCATED_TAR, "beside a damage, where its media may have been")
        else:
            self._append(key, record)

    def _take_record(self, group: dict[str, Member]) -> Member | None:
        """Remove the part with the record from a sample's parts, and return it; None: there is none."""
        if self._record_part:
            return _pop_part(group, self._record_part)
        return _pop_part(group, "json") or _pop_part(group, "txt")

    def _add_late(self, key: str, row: int, names: list[str], record: Member | None, group: dict[str, Member]) -> bool:
        """Add late parts to the earlier sample of their key; return False if it has such a part: they are another's."""
        parts = self._late_parts.get(row)
        if parts is None:
            start, end = self._part_starts[row : row + 2]
            parts = {part[0]: part for part in self._parts[start:end]}
        had = self._records[row]
        if not parts.keys().isdisjoint(names) or (had is not None and had[0] in names):
            return False
        self._records[row] = had or record
        is_first_record = record is not None and had is None
        self._dotted.add_sample(key, had or record, [*(parts if is_first_record else {}).values(), *group.values()])
        parts.update(group)
        self._late_parts[row] = parts
        if (self._reasons[row] or ("",))[0] != Reason.DUPLICATE_KEY.value:
            detail = f"{', '.join(names)} of its key follow after other samples"
            self._reasons[row] = (Reason.NON_ADJACENT_MEMBER.value, detail[:_MAX_DETAIL_CHARS])
        return True

    def _append(self, key: str, record: Member | None, reason: Reason | None = None, detail: str = "") -> None:
        self._keys.append(key)
        self._records.append(record)
        self._reasons.append((reason.value, detail[:_MAX_DETAIL_CHARS]) if reason else None)
        self._part_starts.append(len(self._parts))

    def table(self) -> pa.Table:
        if self._late_parts:
            self._merge_late_parts()
        parts = pa.ListArray.from_arrays(
            pa.array(self._part_starts, pa.int32()), pa.array(self._parts, PART_TYPE.value_type)
        )
        record = pa.array(self._records, PART_TYPE.value_type).flatten()
        reason = pa.array(self._reasons, pa.struct([("reason", pa.string()), ("detail", pa.string())])).flatten()
        return pa.table([pa.array(self._keys, pa.string()), *record, parts, *reason], schema=INDEX_SCHEMA)

    def _merge_late_parts(self) -> None:
        """Rebuild the list of all parts, so that late parts stand with the other parts of their sample."""
        starts, self._part_starts, parts, self._parts = self._part_starts, [0], self._parts, []
        for row, (start, end) in enumerate(pairwise(starts)):
            self._parts += self._late_parts[row].values() if row in self._late_parts else parts[start:end]
            self._part_starts.append(len(self._parts))


def _pop_part(group: dict[str, Member], part: str) -> Member | None:
    """Remove a part (`json`, also spelled `JSON`) from a sample's parts, and return it; None: there is none."""
    return group.pop(next((name for name in (part, *group) if name in group and name.lower() == part), part), None)


def _key_of(name: str) -> str:
    return name[: name.find(".", name.rfind("/") + 1)]


# --------------------------------------------------------------------------------------------------- one sample


def parse_tar_record(raw: bytes, part: str, has_media: bool, settings: ReadSettings) -> Record:
    """Parse the record of a sample from its JSON, or from a text, which is a caption or a document; raises Skip."""
    if part.lower() == "json":
        return parse_record(apply_map_function(parse_sample_json(raw), settings), settings)
    is_document = settings.sample_type is SampleType.document
    if not is_document and (not has_media or settings.sample_type not in (SampleType.auto, SampleType.captioning)):
        raise Skip(Reason.MISSING_JSON, "only a txt")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Skip(Reason.BAD_MESSAGE, f"the txt is not UTF-8: {error}") from None
    if settings.takes_rejected:
        raise not_a_pair_skip("it is a txt")
    if settings.map is not None:
        key = settings.messages_key or "text" if is_document else "caption"
        return parse_record(apply_map_function({key: text}, settings), settings)
    return Record(document_of(text)) if is_document else caption_record(text, settings)
