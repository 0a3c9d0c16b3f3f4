"""Read a folder of images and videos as a shard: each is a sample, captioned by the text beside it or its folder's
name.

cat/1.jpg, cat/1.txt       ──►  {"image": "cat/1.jpg", "caption": "A cat on a mat."}
cat/1.jpg, source.classes  ──►  {"image": "cat/1.jpg", "caption": "cat"}

The bytes of the shard are its listing, a line of JSON for each medium; each process lists the folder once.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from energon_pack.errors import PackError
from energon_pack.samples.media.kinds import MEDIA_NAMES, kind_by_name
from energon_pack.samples.raw_json import load_json
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.find import LINES, Form, Leaf, split_of
from energon_pack.sources.jsonl.dialects import Lines
from energon_pack.sources.jsonl.index import index_of
from energon_pack.sources.settings import Classes, Format, SourceConfig
from energon_pack.sources.shard import JsonlShard
from energon_pack.sources.storage import File, InMemory, State, absolute, path_in, read_whole, real_path, walk

MEDIA = re.compile(rf"(?i)\.({'|'.join(MEDIA_NAMES)})$")
_MEDIA_AND_TEXTS = re.compile(rf"(?i)\.({'|'.join(MEDIA_NAMES)}|txt)$")
_ALL = "*"  # stands for all its files
_IN_IDS = "files"


@dataclass(frozen=True)
class FolderShard(JsonlShard):
    """A folder of media, including its subfolders."""

    names = re.compile(r"(?!)")  # matches no file: it is a folder
    format = Format.folder
    _called = "images or videos in folders"
    noun = "folder"
    is_read_by_place = False

    #: how folder names are used; None: captions are texts beside the media
    classes: Classes | None = None

    @property
    def holds(self) -> str:
        return f"captions: {'texts beside them' if self.classes is None else 'the names of their folders'}"

    @cached_property
    def real_path(self) -> str:
        return path_in(real_path(self.media_root), _ALL)

    def open(self) -> File:
        return _listing(self.media_root, _names(self.media_root), self.classes)

    def index(self) -> pa.Table:
        places = np.array(self._first_places(self.size), np.int64).reshape(-1, 2)
        return index_of(np.arange(1, len(places) + 1), places[:, 0], places[:, 1], self.version)

    def is_unchanged(self, about: Mapping[str, str]) -> bool:
        return bool(about["digest"] == self.open().version)

    def _first_places(self, number: int) -> list[tuple[int, int]]:
        with self.open() as file:
            ends = [0, *(found.end() for found in re.finditer(b"\n", file.read(0, file.size)))]
        return [(start, end - start) for start, end in islice(pairwise(ends), number)]

    def raw(self, file: File, offset: int, size: int) -> bytes:
        """Read a line of the listing, with the text beside the medium; raises Skip if the text is not UTF-8."""
        value = load_json(file.read(offset, size))
        if (name := value.pop("text", None)) is not None:
            text = read_whole(path_in(self.media_root, name))
            try:
                value["caption"] = (text or b"").decode()
            except UnicodeDecodeError as error:
                raise Skip(Reason.BAD_MESSAGE, f"{name} is not UTF-8: {error}") from None
        return json.dumps(value).encode()

    def value(self, raw: bytes) -> Any:
        value = load_json(raw)
        if not value.get("caption"):
            raise Skip(Reason.NO_MESSAGES, "no text beside it (a.jpg, a.txt), or an empty one")
        return value


def _names(folder: str) -> list[str]:
    """Return the paths of media and texts in a folder."""
    return sorted(path[len(folder.rstrip("/")) + 1 :] for path in walk(folder, _MEDIA_AND_TEXTS))


def _listing(folder: str, names: Sequence[str], classes: Classes | None) -> InMemory:
    """Make the listing of a folder; its version is a hash of it."""
    lines = b"".join(json.dumps(line).encode() + b"\n" for line in _lines(folder, names, classes))
    return InMemory(lines, hashlib.sha256(lines).hexdigest())


def _lines(folder: str, names: Sequence[str], classes: Classes | None) -> Iterator[dict[str, Any]]:
    texts = {os.path.splitext(name)[0]: name for name in names if name.lower().endswith(".txt")}
    for name in names:
        kind = kind_by_name(name)
        if kind is not None and classes is not None:
            yield {kind: name, "caption": os.path.basename(os.path.dirname(path_in(folder, name)))}
        elif kind is not None:
            text = texts.get(os.path.splitext(name)[0])
            yield {kind: name} if text is None else {kind: name, "text": text}


class Folders(Form):
    """Folders of media that have no samples in another form."""

    def __init__(self, settings: SourceConfig):
        self._classes, self._remote_media = settings.classes, settings.remote_media

    def in_folder(self, folder: str) -> list[str]:
        return []  # the folder itself is what is read

    def leaves(self, entry: str, folders: Sequence[str], files: Sequence[str]) -> Iterator[Leaf]:
        """Yield each folder; raises PackError if there are texts beside media and `classes` is set, or neither."""
        if not folders:
            raise PackError(f"source.path={entry}: source=folder reads folders of media; name the folder of this file")
        for folder in map(absolute, folders):
            names = _names(folder)
            _check(folder, names, self._classes)
            listing = _listing(folder, names, self._classes)
            fields = {"lines": Lines(folder, remote_media=self._remote_media), "classes": self._classes}
            path, real = path_in(folder, _ALL), path_in(real_path(folder), _ALL)
            state, called = State(listing.size, listing.version), path_in(folder, _IN_IDS)
            yield Leaf(path, real, FolderShard, fields, state, called)


def _check(folder: str, names: Sequence[str], classes: Classes | None) -> None:
    lines = [*_lines(folder, names, None)]
    above = {line.get("image", line.get("video", "")).partition("/")[0] for line in lines}
    if len(above) > 1 and all(split_of(f"{name}/") for name in above):
        raise PackError(
            f"source.path={folder}: {', '.join(sorted(above))}: source.path={folder}/{max(above)} takes one"
        )
    with_text = next((line for line in lines if "text" in line), None)
    if with_text is not None and classes is not None:
        raise PackError(
            f"source.path={folder}: {with_text['text']} says something else than the name of its folder: leave out"
            " source.classes, or the texts"
        )
    if with_text is None and classes is None:
        if json_files := walk(folder, LINES):
            raise PackError(
                f"source.path={folder}: no *.jsonl there; name {json_files[0]} itself, or several by a glob"
            )
        raise PackError(
            f"source.path={folder}: images or videos, and nothing that says what to train: source.classes=caption takes"
            " the names of their folders; texts beside them do (a.jpg, a.txt), or a metadata.jsonl with lines as"
            ' {"file_name": "a.jpg", "text": …}'
        )
