"""Read the members of a pack of ours: their tokens and media. All else in the JSON is for people and other stacks.

    _meta.sample_ids ─┐
    names of media  ──┼──► TextColumns, for all members; where they have media, a MemberInput for each
    <pack>.tokens   ──┘

Pure, but for media that lie in the source.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from energon_pack.errors import PackError, quote
from energon_pack.samples.media.kinds import IMAGE, KINDS, VIDEO
from energon_pack.samples.member import JoinedTokens, MemberInput, MemberTokens, Shared, media_keyword_arguments
from energon_pack.samples.pack_tokens import (
    PACK_FORMAT,
    TOKENS_PART,
    PackTokens,
    TokensDamaged,
    joined_tokens_of_pack,
    members_of,
    read_tokens,
)
from energon_pack.samples.sample import (
    SOURCE_PARTS_FIELD,
    Parts,
    ReadMedia,
    has_references,
    medium_of,
    parse_json_part,
    read_referenced,
)

_loads: Callable[[Any], Any] = import_module("orjson" if find_spec("orjson") else "json").loads

#: the flavours whose names of media are known here
READABLE_FLAVORS = ("packed_multi_mix_qa", "packed_trees", "packed_captioning")


class UnknownFormat(PackError):
    """Raised for a pack or dataset that another tool or another version of this package wrote."""


class PackMembers:
    """The members of a pack, whose flavour is one of `READABLE_FLAVORS`: nothing is read before somebody asks.

    Args:
        parts: the content of the pack's files, by part name.
        read: reads the media from the source if the pack holds no copies.
    """

    def __init__(self, parts: Parts, read: ReadMedia):
        self._parts, self._read = parts, read

    @cached_property
    def _value(self) -> Mapping[str, Any]:
        value: Mapping[str, Any] = _json_of_pack(self._parts["json"])
        return value

    @cached_property
    def _meta(self) -> Mapping[str, Any]:
        return read_checked_meta(self._value, str(self._parts.get("__key__")))

    @cached_property
    def _tokens(self) -> PackTokens:
        return tokens_of_pack(self._parts, self._meta)

    def tokens_unless_media(self) -> tuple[list[str], JoinedTokens] | None:
        """Return the ids and the tokens of all members, if they have no media and share nothing.

        None: they do, or the JSON and the tokens list different members; iterating names the first. Raises its errors.
        """
        if any(len(self._tokens[name]) for name in ("kind", "num_media", "shared_len")):
            return None
        ids, text, names = self._meta["sample_ids"], joined_tokens_of_pack(self._tokens), _media_names(self._value)
        if any(names) or not len(ids) == len(names) == len(text.lens) or self._meta["token_lens"] != text.lens.tolist():
            return None
        return ids, text

    def __iter__(self) -> Iterator[MemberInput]:
        """Yield each member.

        Raises:
            UnknownFormat: another tool, or another version of this package, wrote the pack; or it has no tokens.
            TokensDamaged: its tokens are cut, or a member has another number of tokens than the JSON says.
            KeyError, TypeError, ValueError: its JSON and its tokens list different members.
        """
        parts, value, meta = self._parts, self._value, self._meta
        all_tokens = members_of(self._tokens)
        media = {**parts, **read_referenced(parts, value, self._read)} if has_references(value) else parts
        names = _media_names(value)
        shared = num_shared_media(names, [tokens.shared_len for tokens in all_tokens])
        columns = zip(meta["sample_ids"], meta["token_lens"], all_tokens, names, shared, strict=True)
        for sample_id, token_len, tokens, own_names, num in columns:
            refuse_wrong_len(sample_id, token_len, tokens)
            kinds = [kind for medium in tokens.media for kind in medium.part_kinds]
            # the encoder compares their numbers
            own_parts = [*zip(own_names, [*kinds, *[IMAGE.kind] * len(own_names)], strict=False)]
            by_kind = {kind: [medium_of(media, name, its) for name, its in own_parts if its == kind] for kind in KINDS}
            before = kinds[:num]
            yield MemberInput(
                sample_id,
                [],
                **media_keyword_arguments(by_kind) if own_parts else {},
                token_len=token_len,
                shared=Shared(tokens.shared_len, before.count(IMAGE.kind), before.count(VIDEO.kind)),
                tokens=tokens,
            )


def _json_of_pack(part: Any) -> Any:
    """Parse a pack's JSON, with orjson where it is installed; what that refuses, Python's own reader reads or names."""
    with suppress(ValueError, TypeError, RecursionError):
        return _loads(part)
    return parse_json_part(part)


def read_checked_meta(pack_json: Mapping[str, Any], sample_key: str) -> Mapping[str, Any]:
    """Return `_meta` of a pack's JSON; raise UnknownFormat if this package did not write it."""
    meta: Mapping[str, Any] = pack_json.get("_meta", {})
    if "fingerprint" not in meta:
        raise UnknownFormat(
            f"{sample_key} has no fingerprint of energon_pack: it is damaged, or another tool packed it: energon-pack"
            " source.path=THEIRS +model=NAME packs its members"
        )
    return meta


def tokens_of_pack(parts: Parts, meta: Mapping[str, Any]) -> PackTokens:
    """Return the tokens of a pack; raises UnknownFormat and TokensDamaged. `meta`: `_meta` of the pack's JSON."""
    refuse_other_format(meta)
    if TOKENS_PART not in parts:
        raise UnknownFormat(f"{meta.get('pack_id')} has no part {TOKENS_PART}: pack again")
    return read_tokens(parts[TOKENS_PART], meta)


def describe_unreadable_format(manifest: Mapping[str, Any], oldest_format: int = PACK_FORMAT) -> str | None:
    """Return why this version can't read the format of a dataset with this energon_pack.json; None: it can.

    Args:
        oldest_format: the oldest format that the caller reads: a source needs no tokens.
    """
    number = manifest.get("format", PACK_FORMAT)
    if type(number) is int and oldest_format <= number <= PACK_FORMAT:
        return None
    if type(number) is int and number < PACK_FORMAT:
        return (
            f"it has the format {number}, without the tokens of its packs, which {PACK_FORMAT} has: pack again; where"
            " the source is gone, these packs are one (source.path)"
        )
    return f"it has the format {quote(number)}, this version of energon-pack reads {PACK_FORMAT}: install a later one"


def refuse_other_format(meta: Mapping[str, Any]) -> None:
    """Raise UnknownFormat if a pack has another format than `PACK_FORMAT`; `meta`: `_meta` of the pack's JSON."""
    if (number := meta.get("format")) != PACK_FORMAT:
        raise UnknownFormat(
            f"{meta.get('pack_id')}: its format is {quote(number)}, this version of energon-pack reads {PACK_FORMAT}:"
            " pack again, or install a later one"
        )


def refuse_wrong_len(sample_id: str, token_len: int | None, tokens: MemberTokens) -> None:
    """Raise TokensDamaged if a member has another number of tokens than `token_len`; None: any number is right."""
    if token_len not in (None, len(tokens)):
        raise TokensDamaged(f"{sample_id} has {len(tokens)} tokens in its pack, and {token_len} by _meta.token_lens")


def _media_names(pack_json: Mapping[str, Any]) -> Sequence[list[str]]:
    """Return the names of each member's media in the pack."""
    if has_references(pack_json):
        names = [[name for name, *_ in of_member] for of_member in pack_json["_meta"][SOURCE_PARTS_FIELD]]
        # an .npy is of an image's patches
        return [[name for name in own_names if not name.endswith(".npy")] for own_names in names]
    if "media_files" in pack_json:
        files: list[list[str]] = pack_json["media_files"]
        return files
    images = enumerate(pack_json[IMAGE.plural])
    return [[captioning_part_name(index, number) for number in range(len(own_names))] for index, own_names in images]


def captioning_part_name(member_index: int, image_index: int) -> str:
    """Return the part name of an image in `packed_captioning`: `img2_0.jpg` is the first image of the third member."""
    return f"img{member_index}_{image_index}.jpg"


def num_shared_media(part_names: Sequence[list[str]], shared_lens: list[int]) -> Iterator[int]:
    """Yield, for each member of a pack, how many of its first media are also the first of the member before it.

    `part_names`: names of each member's media. `shared_lens`: tokens that each member shares; 0: no media are shared.
    """
    before: list[str] = []
    for of_member, shared_len in zip(part_names, shared_lens, strict=True):
        num = 0
        while shared_len and num < min(len(before), len(of_member)) and before[num] == of_member[num]:
            num += 1
        yield num
        before = of_member
