"""Compare the tokens that a pack holds of a member with those that its conversation and its media make again."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import zip_longest
from typing import Any

from energon_pack.samples.pack_tokens import members_of, pack_tokens
from energon_pack.samples.skip import Skip
from energon_pack.samples.tokens import MemberTokens, SeenMedium
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template


def made_otherwise(written: MemberTokens, template: Template, sample: Sample) -> Iterator[str]:
    """Yield how the tokens of a member differ from those that a template makes of it, each kind of difference once."""
    try:
        (made,) = template.member_tokens([sample])
    except Skip as skip:
        yield f"it can't be tokenized: {skip}"
        return
    (made,) = members_of(pack_tokens([replace(made, shared_len=written.shared_len)]))  # as bytes hold it
    numbers = len(written), len(made), written.num_supervised, made.num_supervised
    if numbers[0] != numbers[1]:
        yield f"{numbers[0]} tokens, made again {numbers[1]}"
        return
    yield from _first("token {} is {}, made again {}", written.ids.tolist(), made.ids.tolist())
    if numbers[2] != numbers[3]:
        yield f"{numbers[2]} trained tokens, made again {numbers[3]}"
    else:
        yield from _first("token {} has the weight {:g}, made again {:g}", written.weight_of_each, made.weight_of_each)
    if written.factor != made.factor:
        yield f"its weight is {written.factor:g}, made again {made.factor:g}"
    yield from _media_differ(written.media, made.media)


def _first(text: str, written: Sequence[Any], made: Sequence[Any]) -> Iterator[str]:
    pairs = enumerate(zip_longest(written, made))
    if (place := next((place for place, both in pairs if both[0] != both[1]), None)) is not None:
        yield text.format(place, written[place], made[place])


def _media_differ(written: Sequence[SeenMedium], made: Sequence[SeenMedium]) -> Iterator[str]:
    if len(written) != len(made):
        yield f"{len(written)} media, made again {len(made)}"
        return
    for number, both in enumerate(zip(written, made, strict=True)):
        for name in (one.name for one in fields(SeenMedium)):
            ours, again = (getattr(medium, name) for medium in both)
            if ours != again:
                yield f"medium {number} has {name} {ours}, made again {again}"
