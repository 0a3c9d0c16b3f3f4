"""Read COCO captions: a caption and the number of its image become a caption with its image.

{"images": [{"id": 7, "file_name": "7.jpg"}], "annotations": [{"image_id": 7, "caption": "A cat."}]}
"""

import json
import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager

from energon_pack.run.lru_cache import LruCache
from energon_pack.run.plain_data import parse_json
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.storage import File

#: the beginning of such a file
_FIRST_KEY = re.compile(rb'(\xef\xbb\xbf)?\s*\{\s*"(info|licenses|images|annotations|type|categories)"\s*:\s*["[{]')
_NUM_HEAD_BYTES = 512
_IMAGE_ID = re.compile(rb'"image_id"\s*:')
_IMAGES_KEY = re.compile(rb'"images"\s*:\s*(?=\[)')

#: path and version of a file → name of each image; None: the file has no COCO captions
_image_names_of: LruCache[tuple[str, str], tuple[dict[int, str] | None]] = LruCache(4)


def is_coco(file: File) -> bool:
    """Tell whether a file is one JSON object with COCO captions."""
    if not _FIRST_KEY.match(file.read(0, min(file.size, _NUM_HEAD_BYTES))):
        return False
    with memory_mapped(file) as data:
        return data.find(b'"annotations"') >= 0 and data.find(b'"caption"') >= 0


def with_coco_image_name(record: bytes, source_file: File, source_path: str) -> bytes:
    """Return a sample's JSON with the file name of its image if it is a COCO caption; any other JSON unchanged."""
    if not _IMAGE_ID.search(record):
        return record
    kept = _image_names_of.get((source_path, source_file.version)) or _image_names_of.put(
        (source_path, source_file.version), (_image_names(source_file),)
    )
    if kept[0] is None:
        return record
    try:
        value = parse_json(record)
    except ValueError:  # reading the record reports it
        return record
    if not isinstance(value, dict) or "caption" not in value:
        return record
    number = value.get("image_id")
    name = kept[0].get(number) if isinstance(number, int) else None
    if name is None:
        raise Skip(Reason.MISSING_MEDIA, f"image_id {number!r} is none of `images`")
    return json.dumps({"image": name, "caption": value["caption"]}).encode()


def _image_names(file: File) -> dict[int, str] | None:
    if not is_coco(file):
        return None
    with memory_mapped(file) as data:
        begin = _IMAGES_KEY.search(data)
        text = "[]" if begin is None else data[begin.end() :].decode("utf-8", "replace")
    try:
        images, _ = json.JSONDecoder().raw_decode(text)
        return {image["id"]: str(image["file_name"]) for image in images}
    except (ValueError, KeyError, TypeError):
        return {}  # damaged: each caption then reports that its image is missing


@contextmanager
def memory_mapped(file: File) -> "Iterator[mmap.mmap | bytes]":
    """Yield all bytes of a file: mapped into memory, or read if the file has no descriptor."""
    if file.fd is None:
        yield file.read(0, file.size)
        return
    with mmap.mmap(file.fd, 0, access=mmap.ACCESS_READ) as data:
        yield data
