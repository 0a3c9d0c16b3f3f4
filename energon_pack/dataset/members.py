"""Read a member of a written pack as a template takes it: its conversation, and its media by their headers."""

from typing import TYPE_CHECKING, Any

from energon_pack.dataset.contents import Pack
from energon_pack.samples.bytes import Bytes, Range, as_file
from energon_pack.samples.media.asked import as_asked
from energon_pack.samples.media.probe import probe
from energon_pack.samples.options import options_of
from energon_pack.samples.placeholders import place_media
from energon_pack.samples.record import parse_record
from energon_pack.samples.sample import Message
from energon_pack.samples.settings import STORED
from energon_pack.samples.times import load_positions

if TYPE_CHECKING:  # a look at a pack needs no tokenizer
    from energon_pack.templates.sample import Sample


def sample_of(file: Bytes, pack: Pack, index: int) -> "Sample":
    """Return the member at an index as a sample, for a template.

    Args:
        file: the shard that the pack is in.

    Raises:
        Skip: the member can't be measured.
        KeyError, IndexError: the pack lacks a part of the member.
        TypeError, ValueError: its conversation is damaged.
    """
    from energon_pack.templates.sample import Sample

    member = (pack.members or [])[index]
    files = [pack.parts[name] for name in pack.names[index]]
    record = parse_record({"messages": messages_of(file, pack, index), "tools": member.get("tools")}, STORED)
    media = [probe(as_file(Range(file, part.offset, part.size))) for part in files]
    placed, order, _ = place_media(record.messages, [medium.kind for medium in media])
    options = options_of(pack.flavor.fields(member))
    in_order = [files[i] for i in order]
    seen = as_asked(
        [media[i] for i in order],
        member.get("video_frames"),
        options,
        lambda i: as_file(Range(file, in_order[i].offset, in_order[i].size)),
    )
    return Sample(placed, seen, record.tools, options)


def messages_of(file: Bytes, pack: Pack, index: int) -> list[Message]:
    """Return the stored conversation of a member, with the times from its patch positions; raises as `sample_of`."""
    positions = [_positions(file, pack, name) for name in pack.names[index]]
    return pack.flavor.messages((pack.members or [])[index], positions)


def _positions(file: Bytes, pack: Pack, image: str) -> Any:
    """Read the patch positions of an image; None: it has none."""
    part = pack.positions(image)
    return None if part is None else load_positions(file.read(part.offset, part.size), part.name)
