"""Count what is worth a note in the samples that may be packed, while their lengths are read."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: the notes of report.json, each with the column that it counts: of numbers, those above 0; of lists, those there
NOTES = {
    "control_tokens": "num_control_tokens",
    "placeholders_put_in": "placeholders_put_in",
    "placeholders_as_text": "placeholders_as_text",
    "assistant_first": "assistant_first",
    "tools_left_out": "tools_left_out",
    "weights": "num_weighted",
    "reasoning_left_out": "reasoning_left_out",
    "words_left_out": "words_left_out",
    "nulls_dropped": "nulls_dropped",
    "empty_answers": "num_empty_answers",
}
#: columns with a list of names, which are counted
NAME_LISTS = ("unknown_keys", "image_modes", "placeholders_as_text")
#: the columns that `SampleNoteCounts.add` reads
COLUMNS = tuple(dict.fromkeys((*NOTES.values(), *NAME_LISTS, "num_supervised", "num_removed")))
_MAX_NAMES_COUNTED = 1000  # names that are counted: if names of people are keys, each sample has others
_MAX_NAMES_SHOWN = 20


def has_note(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return for each sample whether a column of `NOTES` says something of it."""
    if pa.types.is_list(column.type):
        return pc.is_valid(column)
    return pc.greater(pc.cast(column, pa.int64()), 0)


class SampleNoteCounts:
    """Counts of samples with something worth a note (`NOTES`), and of names such as unknown keys (`NAME_LISTS`)."""

    def __init__(self) -> None:
        #: number of samples with each of `NOTES`
        self.samples: Counter[str] = Counter()
        #: trained tokens, and how many of them have another weight than 1 in the loss
        self.num_supervised = self.num_weighted = 0
        #: pictures that are missing and lost their places, and documents that had them
        self.removed: Counter[str] = Counter()
        self._names: dict[str, Counter[str]] = {column: Counter() for column in NAME_LISTS}
        self._examples: dict[tuple[str, str], str] = {}

    def add(self, table: pa.Table, sample_id_of_row: Callable[[int], str]) -> None:
        """Count the samples of a table with the columns `COLUMNS`; `sample_id_of_row` returns the id of a row."""
        for note, column in NOTES.items():
            self.samples[note] += pc.sum(has_note(table[column])).as_py() or 0
        self.num_supervised += pc.sum(table["num_supervised"]).as_py() or 0
        self.num_weighted += pc.sum(table["num_weighted"]).as_py() or 0
        for column in NAME_LISTS:
            self._count_names(column, table[column], sample_id_of_row)
        if "num_removed" in table.column_names:  # only where `source.missing_media=remove`
            numbers = table["num_removed"]
            self.removed["pictures"] += pc.sum(numbers).as_py() or 0
            self.removed["documents"] += pc.sum(has_note(numbers)).as_py() or 0

    @property
    def counts(self) -> dict[str, int]:
        """The number of samples with each of `NOTES`, in their order."""
        return {note: self.samples[note] for note in NOTES}

    @property
    def num_removed_pictures(self) -> dict[str, int] | None:
        """The number of `pictures` that are missing and lost their places, and of their `documents`; None: none."""
        return dict(self.removed) if self.removed.total() else None

    def most_frequent_names(self, column: str) -> dict[str, dict[str, Any]]:
        """Return the most frequent names in a column of `NAME_LISTS`: the `samples` with each, and an `example`."""
        most = sorted(self._names[column].items(), key=lambda item: (-item[1], item[0]))[:_MAX_NAMES_SHOWN]
        return {name: {"samples": number, "example": self._examples[column, name]} for name, number in most}

    def _count_names(self, column: str, values: pa.ChunkedArray, id_of: Callable[[int], str]) -> None:
        places = np.flatnonzero(pc.is_valid(values).to_numpy())
        if not len(places):
            return
        lists = values.take(pa.array(places)).combine_chunks()
        names, of_list = lists.flatten(), lists.value_parent_indices()
        counts = self._names[column]
        for count in pc.value_counts(names).to_pylist():
            name = count["values"]
            if name in counts or len(counts) < _MAX_NAMES_COUNTED:
                counts[name] += count["counts"]
                if (column, name) not in self._examples:
                    self._examples[column, name] = id_of(int(places[of_list[pc.index(names, name).as_py()].as_py()]))
