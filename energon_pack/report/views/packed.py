"""Build the view of a written pack, as far as it can be read: packs may be damaged, or written by another tool."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from energon_pack.dataset.contents import Pack, messages_of, written_tokens
from energon_pack.dataset.files import PlanRow
from energon_pack.report.views.spans import Vocabulary, encoded
from energon_pack.report.views.view import Medium, MemberView, PackView, thumbnail, turns_of
from energon_pack.samples.bytes import Bytes, Range, as_file
from energon_pack.samples.flavors.schema import MESSAGES
from energon_pack.samples.media.kinds import IMAGE, KINDS
from energon_pack.samples.media.probe import probe
from energon_pack.samples.options import options_of
from energon_pack.samples.sample import Part, media_type
from energon_pack.samples.skip import Skip
from energon_pack.samples.tokens import MemberTokens
from energon_pack.samples.tokens_part import TokensDamaged


@dataclass(frozen=True)
class Place:
    """The place of a pack in its dataset."""

    number: int  # its number in the order of the plan
    num_packs: int
    shard: str
    max_token_len: int | None = None


def pack_view(
    file: Bytes,
    pack: Pack,
    place: Place,
    rows: Sequence[PlanRow] | None = None,
    vocabulary: Vocabulary | None = None,
    max_thumbnails: int = 0,
    notes: Sequence[str] = (),
    most_read: int | None = None,
) -> PackView:
    """Build the view of a pack with all of its members.

    Args:
        file: the shard that the pack is in.
        rows: of the plan; None: there is no plan, or it can't be read.
        vocabulary: of the tokenizer with which the pack was made; None: show no tokens.
        max_thumbnails: how many media get a picture.
        notes: faults of its JSON.
        most_read: how many members' text and media are read, the first ones; of the others, the numbers. None: all.
    """
    if rows is not None and len(rows) != len(pack.ids):
        notes, rows = [*notes, f"the plan has {len(rows)} members of it"], None
    num_members = max(len(pack.ids), len(pack.members or ()))
    tokens: list[MemberTokens] = []
    if vocabulary is not None:
        try:
            tokens = written_tokens(file, pack)
        except TokensDamaged as error:
            notes = [*notes, f"tokens: {error}"]
    if MESSAGES in pack.flavor.optional and pack.fields and MESSAGES not in pack.fields:
        notes = [*notes, "it holds no conversations (output.messages=false)"]
    members = []
    for index in range(num_members):
        row, is_read = None if rows is None else rows[index], most_read is None or index < most_read
        view = _member(file, pack, index, row, max_thumbnails, is_read)
        if vocabulary is not None and is_read and index < len(tokens):
            view = _with_tokens(view, tokens[index], vocabulary)
        members.append(view)
        max_thumbnails -= sum(medium.data is not None for medium in view.media)
    return PackView(
        pack.files.key, place.number, place.num_packs, place.shard, pack.media_type, place.max_token_len, members,
        list(notes),
    )  # fmt: skip


def _member(file: Bytes, pack: Pack, index: int, row: PlanRow | None, max_thumbnails: int, is_read: bool) -> MemberView:
    notes: list[str] = []
    names = pack.names[index] if index < len(pack.names) else []
    kinds = [pack.flavor.kind(name) or IMAGE.kind for name in names]
    media = [
        _medium(file, pack.parts.get(name), name, kind, number < max_thumbnails) if is_read else Medium(kind, name)
        for number, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    view = MemberView(
        sample_id=pack.ids[index] if index < len(pack.ids) else f"{pack.files.key}#{index}",
        media_type=media_type([medium.kind for medium in media]),
        token_len=_stated(pack, "token_lens", index),
        num_supervised=_stated(pack, "num_supervised", index),
        num_visual_tokens=None if row is None else row.num_visual_tokens,
        media=media,
        notes=notes,
        shared_len=pack.shared_lens[index] if index < len(pack.shared_lens) else 0,
        num_shared_visual=0 if row is None else row.num_shared_visual_tokens,
    )
    if pack.members is None or not is_read:
        return view
    with _noting(notes):
        view.turns.extend(turns_of(messages_of(file, pack, index)))
        return replace(view, weight=options_of(pack.flavor.fields(pack.members[index])).weight)
    return view


def _with_tokens(view: MemberView, tokens: MemberTokens, vocabulary: Vocabulary) -> MemberView:
    """Return the view of a member with the tokens that were written."""
    with _noting(view.notes):
        return _checked(view, encoded(view, tokens, vocabulary))
    return view


@contextmanager
def _noting(notes: list[str]) -> Iterator[None]:
    """Note what is wrong with a member, once."""
    try:
        yield
    except Skip as skip:
        notes += {f"{skip}"}.difference(notes)
    except (KeyError, IndexError) as error:
        notes += {f"the pack lacks {error}"}.difference(notes)
    except (TypeError, ValueError, AttributeError) as error:  # a damaged conversation
        notes += {f"it can't be read: {str(error) or type(error).__name__}"}.difference(notes)


def _checked(stated: MemberView, made: MemberView) -> MemberView:
    """Return the encoded member, with a note where the pack states another length."""
    for name, ours, theirs in (
        ("tokens", made.token_len, stated.token_len),
        ("trained tokens", made.num_supervised, stated.num_supervised),
    ):
        if theirs is not None and ours != theirs:
            made.notes.append(f"{ours:,} {name} here, {theirs:,} in the pack")
    return made


def _stated(pack: Pack, name: str, index: int) -> int | None:
    values = pack.meta.get(name, ()) if name in pack.flavor.meta else ()
    return int(values[index]) if index < len(values) else None


def _medium(file: Bytes, part: Part | None, name: str, kind: str, has_picture: bool) -> Medium:
    if part is None:
        return Medium(kind, name, problem="it is not there")
    medium = Medium(kind, name, num_bytes=part.size)
    try:
        found = probe(as_file(Range(file, part.offset, part.size)))
        size = KINDS[found.kind].size(found)
        medium = replace(medium, kind=found.kind, size=size, num_frames=found.num_frames)
        if has_picture and KINDS[found.kind].has_picture:
            medium = replace(medium, data=thumbnail(file.read(part.offset, part.size), found.kind))
    except Skip as skip:
        return replace(medium, problem=skip.detail)
    except ValueError as error:
        return replace(medium, problem=str(error))
    return medium
