"""Build the view of a written pack."""

from collections.abc import Sequence
from dataclasses import replace

from energon_pack.dataset.files import PlanRow
from energon_pack.dataset.pack_json import ParsedPack, read_messages_of_member, read_written_tokens
from energon_pack.errors import PackError, one_line
from energon_pack.report.views.view import (
    MediumView,
    MemberView,
    PackPlace,
    PackView,
    TokenDecoder,
    add_tokens_to_view,
    make_webp_thumbnail,
    turns_of,
)
from energon_pack.samples.bytes import ByteRange, Bytes, as_file
from energon_pack.samples.conversation import options_of
from energon_pack.samples.flavors.base import MESSAGES_FIELD
from energon_pack.samples.media.kinds import IMAGE, KINDS
from energon_pack.samples.media.read_media import probe
from energon_pack.samples.pack_tokens import TokensDamaged
from energon_pack.samples.sample import Part, media_type
from energon_pack.samples.skip import Skip


def read_pack_view(
    shard_file: Bytes,
    pack: ParsedPack,
    place: PackPlace,
    rows: Sequence[PlanRow] | None = None,
    decoder: TokenDecoder | None = None,
    max_thumbnails: int = 0,
    defects: Sequence[str] = (),
    max_members_read: int | None = None,
) -> PackView:
    """Read a written pack, and build what terminal and page show of it and its members.

    Args:
        shard_file: the shard that the pack is in.
        rows: a row of the plan for each member; None: there is no plan.
        decoder: of the tokenizer with which the pack was made; None: show no tokens.
        max_thumbnails: how many media get a picture.
        defects: what is wrong with the pack's JSON; any is an error.
        max_members_read: read text and media only of the first so many members; None: of all.

    Raises:
        PackError: the pack is damaged.
    """
    where = f"{place.shard}: pack {place.number}"
    if defects:
        raise PackError(f"{where}: {defects[0]}: python -m energon_pack.verify says more")
    try:
        members = _members(
            shard_file, pack, rows or [None] * len(pack.sample_ids), decoder, max_thumbnails, max_members_read
        )
    except (Skip, TokensDamaged, KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise PackError(f"{where}: {one_line(error)}: python -m energon_pack.verify says more") from None
    holds_text = MESSAGES_FIELD in pack.fields or MESSAGES_FIELD not in pack.flavor.optional
    return PackView(pack.files.key, place, pack.media_type, members, holds_text)


def _members(
    file: Bytes,
    pack: ParsedPack,
    rows: Sequence[PlanRow | None],
    vocabulary: TokenDecoder | None,
    max_thumbnails: int,
    most_read: int | None,
) -> list[MemberView]:
    members, tokens = [], read_written_tokens(file, pack) if vocabulary is not None else []
    for index, row in zip(range(len(pack.sample_ids)), rows, strict=True):
        is_read = most_read is None or index < most_read
        view = _member(file, pack, index, row, max_thumbnails, is_read)
        members.append(
            add_tokens_to_view(view, tokens[index], vocabulary) if vocabulary is not None and is_read else view
        )
        max_thumbnails -= sum(medium.data is not None for medium in view.media)
    return members


def _member(
    file: Bytes, pack: ParsedPack, index: int, row: PlanRow | None, max_thumbnails: int, is_read: bool
) -> MemberView:
    names = pack.media_names[index]
    kinds = [pack.flavor.kind(name) or IMAGE.kind for name in names]
    media = [
        _medium(file, pack.parts.get(name), name, kind, number < max_thumbnails) if is_read else MediumView(kind, name)
        for number, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    has_text = is_read and pack.json_of_members is not None
    return MemberView(
        sample_id=pack.sample_ids[index],
        media_type=media_type([medium.kind for medium in media]),
        token_len=pack.meta["token_lens"][index],
        num_supervised=pack.meta["num_supervised"][index],
        num_visual_tokens=None if row is None else row.num_visual_tokens,
        turns=turns_of(read_messages_of_member(file, pack, index)) if has_text else [],
        media=media,
        weight=options_of(pack.flavor.fields((pack.json_of_members or [])[index])).weight if has_text else 1.0,
        shared_len=pack.shared_lens[index],
        num_shared_visual=0 if row is None else row.num_shared_visual_tokens,
    )


def _medium(file: Bytes, part: Part | None, name: str, kind: str, has_picture: bool) -> MediumView:
    if part is None:
        return MediumView(kind, name, problem="it is not there")
    medium = MediumView(kind, name, num_bytes=part.size)
    try:
        found = probe(as_file(ByteRange(file, part.offset, part.size)))
        size = KINDS[found.kind].size(found)
        medium = replace(medium, kind=found.kind, size=size, num_frames=found.num_frames)
        if has_picture and KINDS[found.kind].has_picture:
            medium = replace(medium, data=make_webp_thumbnail(file.read(part.offset, part.size), found.kind))
    except Skip as skip:
        return replace(medium, problem=skip.detail)
    except ValueError as error:
        return replace(medium, problem=str(error))
    return medium
