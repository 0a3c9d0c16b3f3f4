"""Checks of one pack by its JSON, names and plan; shard_checks.py reads the bytes of its media.

Each function checks one thing and yields its defects, a line each.
All of them run, whatever the earlier ones report, and they take any JSON there can be.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from energon_pack.dataset.files import PlanRow
from energon_pack.dataset.pack_json import ParsedPack
from energon_pack.errors import quote
from energon_pack.plan.settings import CAPS, Overlong, excess_text
from energon_pack.samples.cut import SIDES, member_id, split_numbered_member_id
from energon_pack.samples.flavors.base import MESSAGES_FIELD
from energon_pack.samples.media.kinds import IMAGE, IMAGE_EXTENSIONS, KINDS, find_media_format
from energon_pack.samples.media.medium import SOUND_EXTENSION_OF
from energon_pack.samples.member import MemberTokens
from energon_pack.samples.pack_tokens import TOKENS_PART
from energon_pack.samples.placeholders import place_media
from energon_pack.samples.record import parse_record
from energon_pack.samples.settings import STORED_SETTINGS
from energon_pack.samples.skip import Skip

_ARRAY_MAGIC = b"\x93NUMPY"


# ------------------------------------------------------------------------------------------------------- its media


def check_files_in_pack(pack: ParsedPack) -> Iterator[str]:
    """Yield defects if a pack's files are not its JSON, its tokens, and the media that its JSON names, in order."""
    names = [part.name for part in pack.files.parts]
    yield from (f"{part.name} holds no bytes of its own" for part in pack.files.parts if part.size < 0)
    if pack.part_names is None:
        return
    expected = ["json", TOKENS_PART, *pack.distinct_part_names]
    counts, expected_counts = Counter(names), Counter(expected)
    for name in {**counts, **expected_counts}:
        if counts[name] != expected_counts[name]:
            yield f"{name} is there {counts[name]} times, and should be {expected_counts[name]} times"
    if counts == expected_counts and names != expected:
        yield "the parts are not in the order of media_files, after the JSON and the tokens"
    media = [
        [(kind or IMAGE.kind, name.rpartition(".")[2]) for name, kind in zip(names, kinds, strict=True)]
        for names, kinds in zip(pack.media_names, pack.media_kinds, strict=True)
    ]
    for member, names in enumerate(pack.flavor.all_part_names(media, pack.num_shared_media)):
        in_order = zip(pack.media_names[member], pack.media_kinds[member], names, strict=True)
        for name in [name for name, kind, right in in_order if kind is None or name != right][:1]:
            yield f"member {member} has a medium named {quote(name)}: out of order, or no name of a pack's part"


def check_tokens(pack: ParsedPack, members: Sequence[MemberTokens], num_ids: int | None = None) -> Iterator[str]:
    """Yield a message for each defect: numbers of tokens (all, trained, shared) or kinds of media differ from those in
    the pack's JSON, a member does not begin with the tokens that it shares with the one before it, or an id is none of
    the vocabulary.

    `num_ids`: ids of the vocabulary, from 0 on; None: not known.
    """
    numbers = {
        "token_lens": ("tokens", [*map(len, members)]),
        "num_supervised": ("trained tokens", [member.num_supervised for member in members]),
        "shared_lens": ("shared tokens", [member.shared_len for member in members]),
    }
    for name, (noun, counts) in numbers.items():
        if (stated := pack.meta.get(name, counts)) != counts:
            first = next(
                (index for index, both in enumerate(zip(counts, stated, strict=False)) if both[0] != both[1]), 0
            )
            yield f"tokens: members of {_excerpt(counts, first)} {noun}, _meta.{name} says {_excerpt(stated, first)}"
    for index, (member, kinds) in enumerate(zip(members, pack.media_kinds, strict=False)):
        found_kinds = Counter(kind for medium in member.media for kind in medium.part_kinds)
        if None not in kinds and found_kinds != Counter(kinds):
            yield f"tokens: member {index} is of {dict(found_kinds)}, and has {dict(Counter(kinds))}"
    for index, (before, member) in enumerate(pairwise(members), 1):
        if not np.array_equal(before.ids[: member.shared_len], member.ids[: member.shared_len]):
            yield f"tokens: member {index} does not begin with the {member.shared_len} tokens that it shares"
    for index, member in enumerate(members):
        if num_ids is not None and len(member) and (largest := int(member.ids.max())) >= num_ids:
            yield f"tokens: member {index} has the id {largest}, the vocabulary of inputs.json ends at {num_ids - 1}"


def _excerpt(numbers: Sequence[int], first: int) -> str:
    """Return eight numbers at most as a text, from the index `first` on, with `…` for those left out."""
    end = first + 8
    return ", ".join(["…"] * (first > 0) + [*map(str, numbers[first:end])] + ["…"] * (end < len(numbers)))


def check_media_format(pack: ParsedPack, name: str, head: bytes) -> Iterator[str]:
    """Check a medium's first bytes: they must fit its extension, or its kind in a flavour where all images are .jpg."""
    extension, expected = name.rpartition(".")[2], pack.flavor.kind(name)
    if extension == "npy" and not pack.flavor.names_content:
        if not head.startswith(_ARRAY_MAGIC):
            yield f"{name} begins with {head[:8]!r}: no array"
        return
    format = find_media_format(head)
    usual, content = (format.extension, format.kind) if format else (None, None)
    line = f"{name} begins with {head[:8]!r}: {usual or 'no medium that is known'}"
    if pack.flavor.names_content:
        is_other = extension not in (usual, SOUND_EXTENSION_OF.get(usual or ""))
        if is_other and (usual or extension in IMAGE_EXTENSIONS or expected not in (None, IMAGE.kind)):
            yield line
    elif expected and expected != content:
        yield f"{line}, not of the kind {expected}"


def check_has_messages(pack: ParsedPack, expected: bool) -> Iterator[str]:
    """Check whether a pack's JSON holds conversations. `expected`: the dataset's setting `output.messages`."""
    if MESSAGES_FIELD in pack.flavor.optional and pack.fields and (MESSAGES_FIELD in pack.fields) != expected:
        has = "no" if expected else "it has"
        yield f"{has} {MESSAGES_FIELD}, and it was packed with output.messages={str(expected).lower()}"


def check_placeholders(pack: ParsedPack) -> Iterator[str]:
    """Check that conversations are as packing writes them, and that their placeholders match the media."""
    for index, member in enumerate(pack.json_of_members or ()):
        try:
            messages = pack.flavor.messages(member)
            stored = parse_record({"messages": messages}, STORED_SETTINGS).messages
            if stored != messages:
                yield f"member {index}: its messages are not in the form that packing writes"
                continue
            kinds = pack.media_kinds[index] if index < len(pack.media_kinds) else []
            known = [kind for kind in kinds if kind]
            if len(known) == len(kinds):
                _, order, were_missing = place_media(stored, known)
                if were_missing or order != sorted(order):
                    yield f"member {index}: its placeholders are not in the order of its media"
        except (KeyError, TypeError, ValueError):  # the member has no conversation
            yield f"member {index}: no_messages: it has no conversation"
        except Skip as skip:
            yield f"member {index}: {skip}"


# ------------------------------------------------------------------------------------------------ lengths, the plan


def check_total_token_len(pack: ParsedPack) -> Iterator[str]:
    if {"total_token_len", "token_lens"} <= pack.meta.keys():
        total, tokens = pack.meta["total_token_len"], sum(_unshared_lens(pack))
        if total != tokens:
            without = " without what is shared" if any(pack.shared_lens) else ""
            yield f"total_token_len is {total}, token_lens{without} sum to {tokens}"


def _unshared_lens(pack: ParsedPack) -> list[int]:
    """Return the tokens of each member, without those that it shares with the member before it."""
    lens = pack.meta.get("token_lens", [])
    return [length - shared_len for length, shared_len in zip(lens, pack.shared_lens, strict=False)]


def check_packing_limits(
    pack: ParsedPack, packing_limits: Mapping[str, Any], members: Sequence[PlanRow] | None = None
) -> Iterator[str]:
    """Yield each limit of `packing_limits.*`, such as `max_token_len`, that a pack exceeds.

    Args:
        packing_limits: the limits by name, as in the config.
        members: the pack's rows of the plan, which count tokens of media; None: limits on media are not checked.
    """
    lens = _unshared_lens(pack)
    multiple = packing_limits.get("pad_to_multiple_of")
    if type(multiple) is not int or multiple < 1:
        return  # the check `metadata` reports it
    may_be_long = packing_limits.get("overlong") == Overlong.own_pack and type(packing_limits.get("hard_limit")) is int
    if may_be_long and len(lens) > 1:  # a pair is alone, too
        may_be_long = [part for _, part in samples_in_pack(pack, members)] == [*SIDES]
    knob = "hard_limit" if may_be_long else "max_token_len"
    own_kinds = [kinds[num:] for kinds, num in zip(pack.media_kinds, pack.num_shared_media, strict=False)]
    counts = {
        "token_len": lens,
        "num_visual_tokens": [member.num_visual_tokens - member.num_shared_visual_tokens for member in members or ()],
        "num_audio_tokens": [member.num_audio_tokens for member in members or ()],
        **{medium.column: [kinds.count(kind) for kinds in own_kinds] for kind, medium in KINDS.items()},
    }
    squares = [length * (length + 2 * shared_len) for length, shared_len in zip(lens, pack.shared_lens, strict=False)]
    for cap in CAPS:
        value = sum(cap.member_cost(number, multiple) for number in counts[cap.column])
        if cap.name == "max_attention_cost":
            value = sum(squares)
        name = knob if cap.name == "max_token_len" else cap.name
        if type(limit := packing_limits.get(name)) is int and value > limit:
            yield excess_text(name, value, limit)


def check_fingerprint(pack: ParsedPack, expected: Any) -> Iterator[str]:
    fingerprint = pack.meta.get("fingerprint", expected)
    if fingerprint != expected and expected is not None:
        yield f"fingerprint {quote(fingerprint)}, the manifest has {quote(expected)}"


def compare_pack_with_plan(pack: ParsedPack, plan_rows: Sequence[PlanRow] | None) -> Iterator[str]:
    """Yield where a pack differs from its rows of the plan, `plan_rows`; None: the plan has no such pack."""
    if plan_rows is None:
        yield "it is not in the plan"
        return
    names = pack.flavor.all_part_names(
        [[(part.kind, part.extension) for part in member.parts] for member in plan_rows],
        [member.num_shared_media for member in plan_rows],
    )
    expected: dict[str, list[Any]] = {
        "sample_ids": [member.sample_id for member in plan_rows],
        "token_lens": [member.token_len for member in plan_rows],
        "num_supervised": [member.num_supervised for member in plan_rows],
        "shared_lens": [member.shared_len for member in plan_rows],
        "source_parts": [[part.name for part in member.parts] for member in plan_rows],
        "media_files": names,
    }
    stated = {**pack.meta, **({} if pack.part_names is None else {"media_files": pack.media_names})}
    for name, values in expected.items():
        if name in stated and stated[name] != values:
            yield f"{name}: {_difference(stated[name], values)}"
    places = {reference.name: reference.place for reference in pack.references}
    for its_names, member in zip(names, plan_rows, strict=True):
        for name, part in [*zip(its_names, member.parts, strict=True)][member.num_shared_media :]:
            if name in pack.parts and pack.parts[name].size != part.size:
                yield f"{name} has {pack.parts[name].size} bytes, in the plan {part.size}"
            place = places.get(name, ())
            if len(place) == 3 and place[:2] != (member.shard, part.offset):
                wanted_place = f"{part.offset} of {member.shard}"
                yield f"{name} lies at byte {place[1]} of {quote(place[0])}, in the plan at {wanted_place}"


def _difference(stated: Sequence[Any], expected: Sequence[Any]) -> str:
    if len(stated) != len(expected):
        return f"{len(stated)} members, {len(expected)} good rows in the plan"
    index = next(i for i, (ours, right) in enumerate(zip(stated, expected, strict=True)) if ours != right)
    return f"member {index} is {quote(stated[index])}, in the plan {quote(expected[index])}"


def check_preference_pairs(pack: ParsedPack, members: Sequence[PlanRow] | None) -> Iterator[str]:
    """Yield samples whose sides, the chosen and the rejected one, do not stand side by side in a pack."""
    sides = [both for both in samples_in_pack(pack, members) if both[1] in SIDES]
    for place in range(0, len(sides), 2):
        if [*sides[place : place + 2]] != [(sides[place][0], side) for side in SIDES]:
            yield f"{member_id(*sides[place])} is not followed by the other side of its pair"
            return


def samples_in_pack(pack: ParsedPack, members: Sequence[PlanRow] | None) -> Iterator[tuple[str, str | None]]:
    """Yield for each member its sample, `<source shard>/<key>`, and which part of it (`2of3`); None: the whole sample.

    `members`: the pack's rows of the plan; None: ids that end like `#2of3` are taken for parts.
    """
    ids = pack.meta.get("sample_ids", ())
    if members is not None and [member.sample_id for member in members] == ids:
        for member in members:
            yield member.sample_name, member.cut.part if member.cut else None
        return
    yield from map(split_numbered_member_id, ids)
