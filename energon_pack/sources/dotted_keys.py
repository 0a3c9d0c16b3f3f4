"""Find files whose writer meant other keys than Energon reads: they look like parts, but are separate samples.

A key ends at the first dot of a name. So `scene.0001.json`, `scene.0002.json` … would be parts of one sample `scene`,
and only one of them would be read. A sample may also have a further part, such as `0001.json` and `0001.meta.json`.
To tell the two apart, this module looks at the data of each part whose name ends like a record's. It is a sample:

    if its key has a record     and the part has the same form, or is a caption with its own medium
    if its key has no record    and another such part, and no key of its shard has the part beside a record
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple

from energon_pack.samples.media.kinds import kind_by_extension
from energon_pack.samples.raw_json import load_json
from energon_pack.samples.record import parse_record
from energon_pack.samples.sample import MESSAGE_KEYS
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip

Member = tuple[str, int, int]  # part, offset, size

_RECORD_ENDINGS = (".json", ".txt")
_MAX_COMPARED = 16  # parts of one name that are compared; the others are assumed to be like them


class DottedFile(NamedTuple):
    """A file of a tar that is a sample of its own, but that Energon reads as a part of another sample."""

    key: str  # the key that it would be a part of
    part: str

    @property
    def name(self) -> str:
        return f"{self.key}.{self.part}"

    @property
    def detail(self) -> str:
        return f"{self.name} would be a sample of its own: a key ends at the first dot of a name"


def dotted_key_message(path: str, name: str, number: int) -> str:
    """Return the error for a tar with files that are samples of their own. `name`: the first; `number`: how many."""
    more = f" (and {number - 1:,} more like it)" if number > 1 else ""
    key, _, part = name.rpartition("/")[2].partition(".")
    return (
        f"{path}: {name}{more} can't be read as a sample: a key ends at the first dot of a name, as in"
        f" Energon, so its key is {key!r} and its part {part!r}, where a sample has {part.rpartition('.')[2]!r}."
        " If it is none, leave it out, or source.on_damaged=keep does; else write the tar anew, with no dot in its"
        " names but the last, or its texts in a N.json beside the N of the media"
    )


class DottedKeyFinder:
    """Finds the files of a tar that Energon reads as parts, but that are samples themselves. `read`: part → bytes."""

    def __init__(self, read: Callable[[Member], bytes]):
        self._read = read
        self._num_other_forms: dict[str, int] = {}  # part → how often its form differed from the record's
        self._without_record: dict[str, list[str]] = {}  # key → its parts that may be records
        self._samples: list[DottedFile] = []

    def add_sample(self, key: str, record: Member | None, parts: Collection[Member]) -> None:
        """Look for samples among the parts of a key; to be called for each group of adjacent files with one key.

        `record`: the key's JSON or text; None: it has none. `parts`: its other parts.
        """
        like_records = [part for part in parts if part[0].endswith(_RECORD_ENDINGS)]
        if record is not None:
            self._without_record.pop(key, None)
            self._samples += [
                DottedFile(key, part[0])
                for part in like_records
                if self._is_record_of_other_sample(part, record, parts)
            ]
        elif like_records:
            self._without_record.setdefault(key, []).extend(name for name, *_ in like_records)

    def files_that_are_samples(self) -> list[DottedFile]:
        """Return the files that are samples of their own; called after the last sample of the tar."""
        doubted = {
            key: [name for name in names if name not in self._num_other_forms]
            for key, names in self._without_record.items()
        }
        lost = [DottedFile(key, name) for key, names in doubted.items() if len(names) > 1 for name in names]
        return [*self._samples, *lost]

    def _is_record_of_other_sample(self, part: Member, record: Member, parts: Collection[Member]) -> bool:
        """Tell whether a part beside a record is itself the record of another sample."""
        name = part[0]
        stem, _, ending = name.rpartition(".")
        num_compared = self._num_other_forms.setdefault(name, 0)
        if record[0] == "txt" and ending == "txt":  # they may be two captions, each with its medium
            media = [name for name, *_ in parts if kind_by_extension(name)]
            return any("." not in other for other in media) and any(other.startswith(f"{stem}.") for other in media)
        if record[0] != "json" or ending != "json" or min(part[2], record[2]) < 0 or num_compared >= _MAX_COMPARED:
            return False
        form = _record_keys_to_compare(self._read(record))
        if form is None or form != _record_keys_to_compare(self._read(part)):
            self._num_other_forms[name] = num_compared + 1
            return False
        return True


def _record_keys_to_compare(raw: bytes) -> list[str] | None:
    """Return the keys of a record's conversation, by which two records are compared; all keys if it has none.

    A list gives the keys of its first message. None: the record is no JSON object.
    """
    try:
        value = load_json(raw)
    except Skip:
        return None
    value = value[0] if isinstance(value, list) and value else value
    if not isinstance(value, dict) or not value:
        return None
    with suppress(Skip):
        fields = parse_record(value, ReadSettings()).fields
        if conversation := [key for key in MESSAGE_KEYS if key in value and key not in fields]:
            return conversation  # whatever other fields there are
    return sorted(value)
