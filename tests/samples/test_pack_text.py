"""The text of a pack goes from its columns to tensors at once: the same tokens, one by one or together."""

import json
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from energon_pack.samples.member import JoinedTokens, MediumInput, MemberTokens
from energon_pack.samples.pack_reader import PackMembers
from energon_pack.samples.pack_tokens import PackTokens, joined_tokens_of_pack
from energon_pack.samples.written_tokens import join_member_tokens
from energon_pack.training.encoded import IGNORE, EncodedMembers, Member, Members

#: the second has a turn of half weight, and itself a factor of 3
TWO = [
    MemberTokens(np.array([7, 8, 9]), [(1, 3)]),
    MemberTokens(np.array([7, 70_000, 9, 4]), [(1, 2), (3, 4)], [0.5, 1.0], factor=3.0),
]


def parts(members: list[MemberTokens], **changes: Any) -> dict[str, Any]:
    """A pack of these members, with another `_meta` where `changes` says so."""
    lens, ids = [len(one) for one in members], [f"s{number}" for number in range(len(members))]
    meta = {"fingerprint": "x", "format": 3, "sample_ids": ids, "token_lens": lens}
    value = {"media_files": [[] for _ in members], "_meta": meta | changes}
    return {"__key__": "p_0", "json": json.dumps(value).encode(), "tokens": join_member_tokens(members).to_bytes()}


def pack(members: list[MemberTokens], **changes: Any) -> PackMembers:
    return PackMembers(parts(members, **changes), lambda *_: [])


def test_the_text_of_a_pack_is_that_of_its_members() -> None:
    """Were a span or a weight of another member's place, other tokens would be trained."""
    read = joined_tokens_of_pack(PackTokens.from_bytes(join_member_tokens(TWO).to_bytes()))
    for text in (read, JoinedTokens.of_members(TWO)):
        assert text.ids.tolist() == [7, 8, 9, 7, 70_000, 9, 4]
        assert text.trained_indices.tolist() == [1, 2, 4, 6]
        assert text.token_weights is not None
        assert text.token_weights.tolist() == [1, 1, 1, 1, 0.5, 1, 1]
        assert text.factors is not None
        assert text.factors.tolist() == [1, 3]
    plain = JoinedTokens.of_members(TWO[:1])
    assert (plain.token_weights, plain.factors, plain.shared_lens) == (None, None, None)


def test_text_makes_no_object_a_member() -> None:
    """Packs are read every epoch: of 33 members, 33 objects took most of the time."""
    text = pack(TWO).tokens_unless_media()
    assert text is not None
    assert text[0] == ["s0", "s1"]
    assert text[1].lens.tolist() == [3, 4]


@pytest.mark.parametrize(
    "members",
    [
        [TWO[0], MemberTokens(np.array([7, 8]), [], media=[MediumInput("image", num_features=1)])],
        [TWO[0], MemberTokens(np.array([7, 8, 5]), [(2, 3)], shared_len=2)],
    ],
)
def test_media_and_shared_beginnings_are_read_member_by_member(members: list[MemberTokens]) -> None:
    assert pack(members).tokens_unless_media() is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"token_lens": [3, 5]}, "s1 has 4 tokens in its pack, and 5 by _meta.token_lens"),
        ({"token_lens": [3]}, "shorter"),
        ({"sample_ids": ["s0"]}, "argument 2 is longer"),
    ],
)
def test_a_json_that_says_something_else_is_named(changes: dict[str, Any], said: str) -> None:
    """The direct way may not pass over what the other one refuses."""
    members = pack(TWO, **changes)
    assert members.tokens_unless_media() is None
    with pytest.raises(ValueError, match=said):
        list(members)


@pytest.mark.parametrize("text", ['"\\ud800"', "NaN", "1e400", "1" * 400])
def test_a_json_that_orjson_refuses_is_read(text: str) -> None:
    """Half a character and infinite numbers were written by older tools, and Python reads them."""
    whole = parts(TWO)
    whole["json"] = whole["json"].replace(b"{", b'{"messages": ' + text.encode() + b", ", 1)
    assert PackMembers(whole, lambda *_: []).tokens_unless_media() is not None


def columns() -> Members:
    members = [
        Member(torch.tensor([5, 6]), torch.tensor([IGNORE, 6]), torch.tensor([0, 1]), torch.ones(3, 2).long()),
        Member(torch.tensor([7]), torch.tensor([IGNORE]), torch.tensor([0]), None, {}, torch.tensor([0.5]), 2.0, 1),
    ]
    return Members.of(members)


def test_a_member_is_a_view_with_all_that_its_readers_read() -> None:
    """Lazy packs, streams, the encoder's users and guard read these attributes of each member."""
    first, second = columns()
    assert [one.name for one in fields(Member)] == [
        "ids", "labels", "types", "rope", "rows", "weights", "factor", "shared_len"
    ]  # fmt: skip
    assert (first.ids.tolist(), first.labels.tolist(), first.types.tolist()) == ([5, 6], [IGNORE, 6], [0, 1])
    assert first.rope is not None
    assert second.rope is not None
    assert second.weights is not None
    assert (first.rope.tolist(), second.rope.tolist()) == ([[1, 1]] * 3, [[0]] * 3)
    assert (first.is_weighted, first.factor, first.shared_len, len(first)) == (False, 1.0, 0, 2)
    assert (second.weights.tolist(), second.factor, second.shared_len) == ([0.5], 2.0, 1)
    assert first.ids.untyped_storage().data_ptr() == second.ids.untyped_storage().data_ptr()


def test_encoded_members_are_a_sequence_of_samples() -> None:
    members = EncodedMembers(["a", "b"], columns(), [1, 0], [0, 2])
    assert [(one.sample_id, one.num_images, one.num_videos, one.media) for one in members] == [
        ("a", 1, 0, {}),
        ("b", 0, 2, {}),
    ]
    assert ([one.sample_id for one in members[1:]], members[-1].sample_id, len(members)) == (["b"], "b", 2)
    with pytest.raises(IndexError):
        members[2]
    again = EncodedMembers.of([*members])
    assert (again.sample_ids, again.tokens.ids.tolist(), again.num_videos) == (["a", "b"], [5, 6, 7], [0, 2])
    assert EncodedMembers.of(members) is members
