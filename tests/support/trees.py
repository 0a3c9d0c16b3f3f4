"""Conversations with equal beginnings as members of one pack, with the measured length that each shares."""

import io
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from PIL import Image

from energon_pack.samples.member import MemberInput, Shared
from energon_pack.training.joining import join
from energon_pack.training.layout import IGNORE, Member
from energon_pack.training.member_encoder import Encoded, MemberEncoder
from energon_pack.training.probe_batches import ProbeTree, make_probe_tree
from energon_pack.training.rope import rope_positions
from support.samples import noise
from support.tiny import FAMILIES, make_members


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
    """Return the samples, each with the length that it shares with the one before it; few tokens are not shared."""
    each = [encoder.encode_alone(one).tokens for one in inputs]
    found = [replace(inputs[0], shared=Shared())]
    for i in range(1, len(inputs)):
        num = shared_beginning(each[i - 1], each[i])
        same = [a is b for a, b in zip(inputs[i - 1].images, inputs[i].images, strict=False)]
        images = next((k for k, one in enumerate(same) if not one), len(same))
        found.append(replace(inputs[i], shared=Shared(num, images) if num > 20 else Shared()))
    return found


def joined(name: str, parts: Sequence[Encoded]) -> Encoded:
    """The tokens and media of members of a tiny family, one behind the other, as one sample."""
    ids, labels, types = (torch.cat([getattr(one.tokens, key) for one in parts]) for key in ("ids", "labels", "types"))
    media = join([one.media for one in parts])
    grids = {key: media.get(key) for key in ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")}
    rule = FAMILIES[name].rope
    rope = rope_positions(rule, types, **grids) if rule else None
    return Encoded("+".join(one.sample_id for one in parts), Member(ids, labels, types, rope), media)


def tiny_tree(name: str, model: Any) -> ProbeTree:
    """Trees of members of a tiny family, with an image and a clip where it has them."""
    text, image, other, clip, _ = make_members(name, model)
    return make_probe_tree([text, image, clip, other], partial(joined, name))
