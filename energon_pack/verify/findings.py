"""The result of a verification: how much was checked, and what is wrong; and sets of names as 64-bit hashes."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from energon_pack.errors import escape_unprintable

Hashes = npt.NDArray[np.uint64]

#: check → what it proves, in the order of the report
CHECKS = {
    "files": "every file is there, and no other",
    "tar": "headers of the shards are whole",
    "index": ".tar.idx says where each pack begins",
    "json": "the JSON of each pack is of the format",
    "keys": "no pack twice, none missing",
    "parts": "media are those that the JSON names, in its order",
    "references": "media in the source are where packs say, as they were packed",
    "tokens": "tokens are ids of the vocabulary, of the members and media that the JSON names",
    "media": "media that packs hold are as they were packed",
    "kinds": "media are what their extension says",
    "placeholders": "placeholders match the media",
    "sums": "total_token_len is the sum of token_lens",
    "capacity": "no pack is over a limit of packing.*",
    "fingerprint": "packs have the manifest's fingerprint",
    "plan": "packs hold what pack_plan.parquet says",
    "samples": "no sample twice, no part of one missing",
    "ledger": "skipped.jsonl names samples in no pack",
    "metadata": ".nv-meta names the shards and their packs",
    "totals": "report.json and the manifest count the same",
    "decode": "media decode",
    "source media": "media are byte for byte those of the source",
    "source text": "conversations are those of the source",
    "source tokens": "tokens are those that the source makes",
    "source samples": "every sample of the source is accounted for",
}


class Defect(NamedTuple):
    """One defect: the check that found it (a key of `CHECKS`), the file or pack that has it, and a description."""

    check: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.check}: {escape_unprintable(self.where)}: {escape_unprintable(self.detail)}"


@dataclass
class Findings:
    """The results of checks of a shard or a dataset: for each check, counts, and its first defects."""

    max_defects: int  # defects of each check that are kept; all are counted
    num_checked: Counter[str] = field(default_factory=Counter)
    num_defects: Counter[str] = field(default_factory=Counter)
    defects: dict[str, list[Defect]] = field(default_factory=dict)
    #: facts that the user has to know, and that are no defects
    notes: list[str] = field(default_factory=list)

    def add(self, check: str, where: str, defects: Iterable[str], num_checked: int = 1) -> None:
        """Add what a check (a key of `CHECKS`) found in a file or pack: the number of items checked, and defects."""
        self.num_checked[check] += num_checked
        for text in defects:
            self.num_defects[check] += 1
            self._keep(Defect(check, where, text))

    def _keep(self, defect: Defect) -> None:
        kept = self.defects.setdefault(defect.check, [])
        if len(kept) < self.max_defects:
            kept.append(defect)

    def merge(self, other: "Findings") -> None:
        """Add the counts and defects of other findings to these."""
        self.num_checked += other.num_checked
        self.num_defects += other.num_defects
        for defect in chain.from_iterable(other.defects.values()):
            self._keep(defect)

    def first_defects(self, number: int) -> list[Defect]:
        """Return at most `number` defects, taken from the checks in turn, so that no check hides another's defects."""
        in_turn = chain.from_iterable(zip_longest(*self.defects.values()))
        chosen = [defect for defect in in_turn if defect is not None][:number]
        order = list(CHECKS)
        return sorted(chosen, key=lambda defect: order.index(defect.check))


def name_hash(name: str) -> int:
    """Return a 64-bit hash of a name: hashes of all samples fit into memory, and their names do not."""
    data = name.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def name_hashes(names: Iterable[str]) -> Hashes:
    return np.fromiter(map(name_hash, names), np.uint64)


def joined_hashes(arrays: Sequence[npt.ArrayLike]) -> Hashes:
    return np.concatenate([np.zeros(0, np.uint64), *arrays])


def names_with(values: Hashes, names: Iterable[str]) -> Iterator[str]:
    """Yield the names whose hashes are among `values`, each once."""
    unseen = set(values.tolist())
    for name in names:
        if unseen and (value := name_hash(name)) in unseen:
            unseen.remove(value)
            yield name


def repeated_hashes(hashes: Hashes) -> Hashes:
    """Return the values that occur more than once."""
    unique, counts = np.unique(hashes, return_counts=True)
    return unique[counts > 1]
