"""Read conversations from a user's map-style dataset (`len` and item numbers), for example Hugging Face's.

An item has the fields of a JSONL line. Its media are in `images` and `videos` (or `image`, `video`), or in the content
of its messages; each is a PIL image, bytes, `{"bytes": …, "path": …}`, or the path of a file.
"""

import io
import os
import re
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from PIL import Image

from energon_pack.errors import PackError
from energon_pack.online.named_media import MEMORY_MARK, map_names_to_media, put_back_named_media, swap_media_for_names
from energon_pack.online.samples import as_sample, split_pair_into_sides
from energon_pack.samples.conversation import ReadSample, match_placeholders_with_media, options_of
from energon_pack.samples.dialects.media_in_text import refuse_url
from energon_pack.samples.hints import without_useless_hint
from energon_pack.samples.media.image_probe import medium_of, unreadable_image_skip
from energon_pack.samples.media.kinds import KINDS, MEDIA_KEYS
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.read_media import probe, with_requested_settings
from energon_pack.samples.media_marks import is_empty_media_list
from energon_pack.samples.media_parts import find_document_pictures, is_document_with_named_pictures, refuse_other_kinds
from energon_pack.samples.member import MemberInput
from energon_pack.samples.record import Record, with_use_audio_setting
from energon_pack.samples.sample import MediaPart, Part, guess_media_type_by_names, media_type
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.unread_media import leaf_values, media_file_names, refuse_unread_media
from energon_pack.sources.jsonl.dialects import RowSettings, parse_row
from energon_pack.sources.media_files import MediaMap, explain_missing_medium, parse_media_map, replace_mapped_prefix
from energon_pack.sources.reader import NOT_THERE, state_of_medium
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.source_file import MeasuredRow, read_record
from energon_pack.sources.storage import open_file
from energon_pack.templates.sample import Sample

#: stands in place of a shard's name in the ids of samples
ID_PREFIX = "conversations"
_MEMORY_NAME = re.compile(rf"(?:{MEMORY_MARK}|\\udfff)\d*")  # also as `repr` writes it
_MEMORY_NOUN = "bytes, an image or an array"


class MapStyleDataset(Sized, Protocol):
    """A map-style dataset: `dataset[number]` and `len(dataset)`, such as torch's and Hugging Face's."""

    def __getitem__(self, number: int, /) -> Any: ...


class UserSamples:
    """Reads samples from a user's map-style dataset, of which only the first `limit` are used; None: all."""

    def __init__(
        self,
        dataset: MapStyleDataset,
        settings: ReadSettings,
        media_root: str | None = None,
        limit: int | None = None,
        media_map: MediaMap = (),
    ):
        with _naming_errors("conversations"):
            #: all items of the dataset, also those beyond the limit
            self.num_items, self._dataset = len(dataset), without_media_decoding(dataset)
        self._num_samples = self.num_items if limit is None else min(limit, self.num_items)
        self._settings = settings
        #: the folder that paths of media are relative to
        self.root = os.path.abspath(os.path.expanduser(media_root or ""))
        #: where media lie that items name by other places
        self.media_map = media_map

    def __len__(self) -> int:
        return self._num_samples

    def sample_id(self, number: int) -> str:
        """Return the id of an item, for example `conversations/17`."""
        return f"{ID_PREFIX}/{number}"

    def sample_for_measuring(self, number: int) -> Sample:
        """Return the sample `number` for measuring its length, with only the headers of its media read; raises Skip."""
        return as_sample(self.read(number)[0])

    def member(self, number: int) -> MemberInput:
        """Return the sample `number` with its media, for encoding; raises Skip."""
        read, media = self.read(number)
        return read.member(self.sample_id(number), media)

    def read_pair_sides_for_measuring(self, number: int) -> list[Sample]:
        """Return both sides of the pair `number`, as `sample_for_measuring` returns a sample; raises Skip."""
        return [as_sample(side) for _, side in split_pair_into_sides(self.sample_id(number), self.read(number)[0])]

    def read_pair_sides(self, number: int) -> list[MemberInput]:
        """Return both sides of the pair `number`, as `member` returns a sample; raises Skip."""
        read, media = self.read(number)
        return [side.member(name, media) for name, side in split_pair_into_sides(self.sample_id(number), read)]

    def read_unchecked_member(self, row: MeasuredRow, *, checksum: int) -> MemberInput:
        """Return the sample of a measured row, with its media and length; raises Skip. `checksum` is not compared."""
        return replace(self.member(int(row.key)), token_len=row.token_len)

    def read(self, number: int) -> tuple[ReadSample, list[bytes | Image.Image]]:
        """Return the sample `number`, and its media in the order of the placeholders; raises Skip."""
        with _naming_errors(self.sample_id(number)):
            item = self._dataset[number]
            try:
                return self._read(item, self._settings)
            except Skip as skip:
                raise without_useless_hint(skip, lambda change: self._read(item, change(self._settings))[0]) from None

    def media_file_versions(self, read: ReadSample) -> list[dict[str, Any]]:
        """Return name, size in bytes and version (by the time of change) of each media file that a sample names."""
        removed = (name for name in read.removed if name and not name.startswith(MEMORY_MARK))
        names = dict.fromkeys([*(part.name for part in read.parts if part.name), *removed])
        states = [(name, state_of_medium(self._path_of(name)) or NOT_THERE) for name in names]
        return [{"name": name, "size": size, "version": version} for name, (size, version) in states]

    def _read(self, item: Any, settings: ReadSettings) -> tuple[ReadSample, list[bytes | Image.Image]]:
        try:
            record, by_name = self._record_and_named_media(item, settings)
            record = with_use_audio_setting(record, settings)

            def picture(name: str) -> tuple[str, bytes | Image.Image]:
                if name not in by_name:
                    refuse_url(replace_mapped_prefix(name, self.media_map), "it names")
                path, data = self._read_medium(by_name.get(name, name))
                if data == b"":
                    raise Skip(Reason.MISSING_MEDIA, f"{name!r} has no bytes")
                return path, data

            if is_document_with_named_pictures(record):
                record, opened = find_document_pictures(record, settings.missing_media, picture)
            else:
                opened = [self._read_medium(by_name.get(name, name)) for name in record.listed_media or ()]
            media_found = [_probed_medium(medium) for _, medium in opened]
            kinds = [medium.kind for medium in media_found]
            refuse_other_kinds(record, "", [Part(name, 0, 0) for name in record.listed_media or ()], media_found)
            placed = match_placeholders_with_media(record, kinds)
            fields = placed.record.fields
            if settings.media is None:
                refuse_unread_media(placed.record, [name for name, _ in opened], kinds, self._kind_of)
            data = [opened[i][1] for i in placed.order]
            media_found = with_requested_settings(
                [media_found[i] for i in placed.order],
                fields.get("video_frames"),
                options_of(fields),
                lambda index: io.BytesIO(data[index]),  # type: ignore[arg-type]  # a video is bytes
            )
            parts = [
                MediaPart(opened[i][0], 0, 0, medium.kind, medium.extension)
                for i, medium in zip(placed.order, media_found, strict=True)
            ]
            return ReadSample.of_record(b"", placed, parts, media_found, [], placed.time_texts([])), data
        except Skip as skip:
            named = Skip(skip.reason, _MEMORY_NAME.sub(f"({_MEMORY_NOUN})", skip.detail), skip.hint)
            named.media_type = skip.media_type or _guessed_media_type(item)
            raise named from None

    def _record_and_named_media(self, item: Any, settings: ReadSettings) -> tuple[Record, dict[str, Any]]:
        """Return the conversation of an item, and by name its media in memory, in the form the dataset gives them."""
        held: list[Any] = []
        if isinstance(item, Mapping):
            item = {
                key: value
                for key, value in item.items()
                if (value is not None and (key not in MEDIA_KEYS or _may_hold_media(value)))
                or (key in MEDIA_KEYS and is_empty_media_list(value))  # with a placeholder, its medium is lost
            }
        row, rows = swap_media_for_names(item, held, settings), RowSettings(self.root)
        record = read_record(lambda reading: parse_row(row, rows, reading), settings)
        turns = [*record.messages, *record.rejected]
        texts = [{**message, "content": _content_without_media(message["content"])} for message in turns]
        if any(isinstance(leaf, str) and MEMORY_MARK in leaf for leaf in leaf_values([texts, record.tools])):
            raise Skip(Reason.BAD_MESSAGE, f"{_MEMORY_NOUN} stands where a text belongs")
        by_name = map_names_to_media(held)
        record.unknown = {key: put_back_named_media(value, by_name) for key, value in record.unknown.items()}
        files = {name: medium for name, medium in by_name.items() if isinstance(medium, (bytes, Image.Image))}
        record.fields = put_back_named_media(
            record.fields, files
        )  # an array is neither true nor false, and stays a name
        return record, by_name

    def _kind_of(self, value: Any) -> str | None:
        try:
            return _probed_medium(self._read_medium(value)[1]).kind
        except Skip:
            return None

    def _read_medium(self, medium: Any) -> tuple[str, bytes | Image.Image]:
        """Return a medium's path (empty if it is in memory), and the medium itself."""
        if isinstance(medium, (bytes, Image.Image)):
            return "", medium
        if not isinstance(medium, str):
            raise Skip(
                Reason.UNSUPPORTED_MEDIA, f"a medium is a {type(medium).__name__}, not a PIL image, bytes or a path"
            )
        try:
            with open_file(self._path_of(medium)) as file:
                return medium, file.read(0, file.size)
        except (FileNotFoundError, NotADirectoryError, ValueError):  # a ValueError: no file can have such a name
            raise Skip(Reason.MISSING_MEDIA, explain_missing_medium(medium, self._path_of(medium))) from None
        except OSError as error:
            raise Skip(Reason.UNREADABLE_MEDIA, f"{medium!r}: {error.strerror}") from None

    def _path_of(self, name: str) -> str:
        return os.path.join(self.root, replace_mapped_prefix(name, self.media_map))


def user_samples_of(dataset: MapStyleDataset, source: SourceConfig) -> UserSamples:
    """Read a user's dataset by the settings of `source`."""
    return UserSamples(dataset, source.reading, source.media_root, source.limit, parse_media_map(source.media_map))


def _guessed_media_type(item: Any) -> str | None:
    """Guess the media type of an item that can't be read, by its fields and the names in them; None: no media."""
    if not isinstance(item, Mapping):
        return None
    kinds = [kind for kind, medium in KINDS.items() for key in medium.keys if _may_hold_media(item.get(key))]
    return media_type(kinds) if kinds else guess_media_type_by_names(list(media_file_names(item)))


@contextmanager
def _naming_errors(name: str) -> Iterator[None]:
    """Turn a user's error into a PackError with the sample's name: an IndexError alone would end an iteration."""
    try:
        yield
    except (Skip, PackError):
        raise
    except Exception as error:  # datasets and decoders raise anything
        raise PackError(f"{name}: {type(error).__name__}: {error}") from error


def without_media_decoding(dataset: Any) -> Any:
    """Return a Hugging Face dataset that gives images and videos as bytes of files; other datasets stay unchanged."""
    if (getattr(dataset, "format", None) or {}).get("type") == "custom":
        return dataset  # its own transform expects decoded images
    for name, feature in (getattr(dataset, "features", None) or {}).items():
        if (plain := _feature_without_decoding(feature)) is not None:
            dataset = dataset.cast_column(name, plain)
    return dataset


def _feature_without_decoding(feature: Any) -> Any:
    """Return a Hugging Face feature without decoding; None: it decodes nothing."""
    if getattr(feature, "decode", False) is True:
        return replace(feature, decode=False)
    inner = getattr(feature, "feature", None)
    if inner is not None and (plain := _feature_without_decoding(inner)) is not None:
        return replace(feature, feature=plain)
    return None


def _content_without_media(content: Any) -> Any:
    """Return a turn's content without its media."""
    return [part for part in content if part["type"] == "text"] if isinstance(content, list) else content


def _may_hold_media(value: Any) -> bool:
    """Tell whether a field may hold media: its value is no number, not None and not empty."""
    return (
        value is not None and not isinstance(value, (int, float)) and (not hasattr(value, "__len__") or len(value) > 0)
    )


def _probed_medium(medium: bytes | Image.Image) -> Media:
    if isinstance(medium, bytes):
        return probe(io.BytesIO(medium))
    try:
        return medium_of(medium)
    except Exception as error:  # Pillow's readers raise anything
        raise unreadable_image_skip(error) from None
