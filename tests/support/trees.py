"""Conversations that begin alike, as members of one pack: what each shares with the one before it is measured."""

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from PIL import Image

from energon_pack.samples.flavors.base import MemberInput, Shared
from energon_pack.training.layout import IGNORE, Member
from energon_pack.training.members import MemberEncoder
from support.samples import noise


def image(seed: int, side: int = 56) -> Image.Image:
    return Image.open(io.BytesIO(noise(seed, side)))


def turns(*texts: str) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def conversations(with_images: bool = True) -> list[MemberInput]:
    """Depth first: an image in the root and in a branch, forks in a fork, a twin, one that ends inside the next."""
    of = "<image> " if with_images else ""
    root, first, second = [image(1)] * with_images, [image(2)] * with_images, [image(3, 84)] * with_images
    asked, said = f"{of}What is this?", "A red circle, two squares."
    listed = [
        ("a", turns(asked, said), root),
        ("a b", turns(asked, said, "How many?", "Three in all."), root),
        ("a c", turns(asked, said, f"{of}And here?", "Four."), [*root, *first]),
        ("a c d", turns(asked, said, f"{of}And here?", "Four.", "Sure?", "Yes, four of them."), [*root, *first]),
        ("a c e", turns(asked, said, f"{of}And here?", "Four.", f"Now {of}", "One."), [*root, *first, *second]),
        ("a c e again", turns(asked, said, f"{of}And here?", "Four.", f"Now {of}", "One."), [*root, *first, *second]),
        ("f", turns("Another one.", "Of its own."), []),
    ]
    return [MemberInput(name, messages, images) for name, messages, images in listed]


def shared_beginning(before: Member, member: Member) -> int:
    """How many first tokens two members have in common, up to one that is not trained."""
    length = min(len(before), len(member))
    same = before.ids[:length] == member.ids[:length]
    num = int(same.long().cumprod(0).sum())
    while 0 < num < len(member) and member.labels[num] != IGNORE:
        num -= 1
    return num


def with_shares(encoder: MemberEncoder, inputs: Sequence[MemberInput]) -> list[MemberInput]:
    """The same, each with what it shares with the one before it; a few tokens are not worth it."""
    each = [encoder.encode(one).tokens for one in inputs]
    found = [replace(inputs[0], shared=Shared())]
    for i in range(1, len(inputs)):
        num = shared_beginning(each[i - 1], each[i])
        same = [a is b for a, b in zip(inputs[i - 1].images, inputs[i].images, strict=False)]
        images = next((k for k, one in enumerate(same) if not one), len(same))
        found.append(replace(inputs[i], shared=Shared(num, images) if num > 20 else Shared()))
    return found
