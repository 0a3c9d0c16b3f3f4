"""Read an LMDB of text recognition as a shard: each image is captioned by its label.

num-samples: 3
image-000000001: a JPEG
label-000000001: hello   ──►  {"image": "data.mdb::image-000000001", "caption": "hello"}

The layout comes from clovaai's deep-text-recognition-benchmark; PARSeq, MMOCR and others read it. An LMDB with another
layout is refused; lines of JSON may name its values.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from energon_pack.errors import PackError
from energon_pack.samples.raw_json import load_json
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.inside import joined_name
from energon_pack.sources.jsonl.index import index_of
from energon_pack.sources.jsonl.lmdb_file import open_value
from energon_pack.sources.settings import Format
from energon_pack.sources.shard import JsonlShard
from energon_pack.sources.storage import File

_NUMBER = "num-samples"
_HEAD = 8192  # bytes of the two pages that tell which was written last
_ABOUT = 32  # bytes of a label, approximately


@dataclass(frozen=True)
class LmdbShard(JsonlShard):
    """An LMDB of images and labels; `record_offset` is the number of a sample, from 1."""

    names = re.compile(r"(?i)(^|/)data\.mdb$|\.lmdb$")
    format = Format.lmdb
    _called = "LMDB of images and labels"

    def index(self) -> pa.Table:
        numbers = np.arange(1, self._num_samples() + 1)
        return index_of(numbers, numbers, np.full(len(numbers), _ABOUT), self._digest())

    def is_unchanged(self, about: Mapping[str, str]) -> bool:
        return about["digest"] == self._digest()

    def _digest(self) -> str:
        with self.open() as file:
            return hashlib.sha256(file.read(0, _HEAD) + str(file.size).encode()).hexdigest()

    def _num_samples(self) -> int:
        """Return how many samples there are; raises PackError if the LMDB has another layout."""
        if self.is_stored:
            raise PackError(f"{self.path}: an LMDB is read from a disk alone: copy it there")
        try:
            return int(self._text(_NUMBER))
        except Skip as skip:
            raise PackError(f"{self.path}: {skip.detail}") from None
        except (KeyError, ValueError):
            raise PackError(
                f"{self.path}: an LMDB without {_NUMBER}, image-000000001 and label-000000001, as sets of text"
                ' recognition have them: lines of JSON name the values of others, {"image": "DIR.lmdb::KEY", …}'
            ) from None

    def _first_places(self, number: int) -> list[tuple[int, int]]:
        return [(place, _ABOUT) for place in range(1, min(number, self._num_samples()) + 1)]

    def raw(self, file: File, offset: int, size: int) -> bytes:
        """Make the JSON of a sample; raises Skip if its label is not UTF-8."""
        number = f"{offset:09d}"
        value = {"image": joined_name(os.path.basename(self.path), f"image-{number}")}
        try:
            value["caption"] = self._text(f"label-{number}")
        except UnicodeDecodeError as error:
            raise Skip(Reason.BAD_MESSAGE, f"label-{number} is not UTF-8: {error}") from None
        except KeyError:
            pass
        return json.dumps(value).encode()

    def value(self, raw: bytes) -> Any:
        value = load_json(raw)
        if not value.get("caption"):
            raise Skip(Reason.NO_MESSAGES, f"no label of {value['image']}, or an empty one")
        return value

    def has_place(self, offset: int, size: int) -> bool:
        return offset > 0

    def _text(self, key: str) -> str:
        value = open_value(self.path, key)
        return value.read(0, value.size).decode()
