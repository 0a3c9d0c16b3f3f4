"""Read the members of a pack, or their text alone, from its columns."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, pairwise

import numpy as np

from energon_pack.samples.media.kinds import KIND_BY_LETTER
from energon_pack.samples.tokens import OPERATIONS, JoinedTokens, MediumInput, MemberTokens, PixelStep
from energon_pack.samples.tokens_part import Array, PackTokens, TokensDamaged


def members_of(pack: PackTokens) -> list[MemberTokens]:
    """Return the members of a pack, made from its columns.

    Raises:
        TokensDamaged: its columns contradict each other.
    """
    text = joined_tokens_of_pack(pack)
    with _errors_as_damage():
        return [*_read_members(pack, text)]


def joined_tokens_of_pack(pack: PackTokens) -> JoinedTokens:
    """Return the tokens of a pack without its media, from its columns.

    Raises:
        TokensDamaged: its columns contradict each other.
    """
    with _errors_as_damage():
        lens = pack["length"].astype(np.int64)
        num_ids = len(pack["low"]) + int(pack["num_more"].sum(dtype=np.int64))
        if num_ids == lens.sum():  # else damage might ask for all memory
            num_ids = len(ids := pack.ids)
        if num_ids != lens.sum():
            raise ValueError(f"{num_ids} ids, and members of {lens.sum()}")
        spans = np.stack([pack["start"], pack["end"]], axis=1).astype(np.int64)
        _refuse_wrong_trained_spans(spans, lens)
        numbers = {"weight": len(spans), "factor": len(lens), "shared_len": len(lens)}
        entries = [pack.entries(name, number) if len(pack[name]) else None for name, number in numbers.items()]
        return JoinedTokens(ids, lens, spans, *entries)


def _refuse_wrong_trained_spans(spans: Array, lens: Array) -> None:
    """Raise ValueError unless each span lies in one member, behind its first token, and behind the span before it."""
    ends = np.cumsum(lens)
    members = np.searchsorted(ends, spans[:, 1])  # those in which spans end
    least = np.append(ends - lens, 2**32)[members] + 1
    least[1:] = np.maximum(least[1:], spans[:-1, 1])
    if len(wrong := np.flatnonzero((spans[:, 0] < least) | (spans[:, 1] <= spans[:, 0]))):
        member = members[wrong[0]]
        raise ValueError(
            f"a trained span {f'outside of member {member}' if member < len(lens) else 'behind the last member'}"
        )


@contextmanager
def _errors_as_damage() -> Iterator[None]:
    """Raise TokensDamaged where columns contradict each other."""
    try:
        yield
    except (ValueError, IndexError, KeyError, StopIteration, RuntimeError) as error:
        raise TokensDamaged(f"tokens whose columns contradict each other ({error})") from None


def _read_members(pack: PackTokens, text: JoinedTokens) -> Iterator[MemberTokens]:
    number = len(text.lens)
    starts = [0, *np.cumsum(text.lens).tolist()]
    bounds = [0, *np.searchsorted(text.spans[:, 1], starts[1:], side="right").tolist()]  # of the spans of each member
    weights = pack.entries("weight", len(text.spans), 1).tolist()
    factors, shared = pack.entries("factor", number, 1).tolist(), pack.entries("shared_len", number).tolist()
    media, counts = iter(_media_of_pack(pack)), pack.entries("num_media", number).tolist()
    if sum(counts) != len(pack["kind"]):
        raise ValueError(f"{len(pack['kind'])} media, and members with {sum(counts)}")
    for index, (start, end) in enumerate(pairwise(starts)):
        first, last = bounds[index : index + 2]
        ranges = [(low, high) for low, high in (text.spans[first:last] - start).tolist()]
        its_weights = weights[first:last] if any(weight != 1 for weight in weights[first:last]) else []
        its_media = [*islice(media, counts[index])]
        yield MemberTokens(text.ids[start:end], ranges, its_weights, its_media, factors[index], shared[index])


def _media_of_pack(pack: PackTokens) -> list[MediumInput]:
    number = len(pack["kind"])
    if not number:
        return []
    names = [KIND_BY_LETTER[chr(letter)] for letter in pack["kind"].tolist()]
    steps = iter(
        [
            PixelStep(OPERATIONS[operation], width, height)
            for operation, width, height in zip(
                pack["operation"].tolist(), pack["new_width"].tolist(), pack["new_height"].tolist(), strict=True
            )
        ]
    )
    plain = [pack.entries(name, number).tolist() for name in ("num_images", "num_features", "width", "height")]
    num_steps, num_frames, num_samples = (
        pack.entries(name, number).tolist() for name in ("num_steps", "num_frames", "num_samples")
    )
    entries = {"operation": sum(num_steps), "frame": sum(num_frames), "fps": sum(map(bool, num_frames))}
    if wrong := [name for name, number in entries.items() if len(pack[name]) != number]:
        raise ValueError(f"{len(pack[wrong[0]])} entries of {wrong[0]}, and media with {entries[wrong[0]]}")
    frames, rates = iter(pack["frame"].tolist()), iter(_source_frames_and_fps(pack["num_in_source"], pack["fps"]))
    columns = zip(names, *plain, num_steps, num_frames, num_samples, strict=True)
    return [
        MediumInput(
            kind, images, features, width, height, tuple(islice(steps, own_steps)), tuple(islice(frames, own_frames)),
            *(next(rates) if own_frames else (0.0, 0.0)), samples,
        )
        for kind, images, features, width, height, own_steps, own_frames, samples in columns
    ]  # fmt: skip


def _source_frames_and_fps(num_in_source: Array, fps: Array) -> list[tuple[float, float]]:
    return [*zip(num_in_source.tolist(), fps.tolist(), strict=True)]
