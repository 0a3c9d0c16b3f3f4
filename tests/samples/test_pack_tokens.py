"""The members of a pack come back from its bytes, and columns that contradict each other are named."""

import io
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import webdataset as wds
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from energon_pack.samples.member import OPERATIONS, MediumInput, MemberTokens, PixelStep
from energon_pack.samples.pack_tokens import COLUMN_TYPES, PackTokens, TokensDamaged, members_of
from energon_pack.samples.written_tokens import join_member_tokens, split_token_ids_into_columns

SIZES = st.integers(1, 70_000)
STEPS = st.lists(st.builds(PixelStep, st.sampled_from(OPERATIONS), SIZES, SIZES), max_size=3).map(tuple)
FEATURES = st.integers(0, 2**20)
FLOATS = st.floats(0, 1e6)
IMAGES = st.builds(MediumInput, st.just("image"), num_features=FEATURES, width=SIZES, height=SIZES, steps=STEPS)
SOUNDS = st.builds(MediumInput, st.just("audio"), num_features=FEATURES, num_samples=st.integers(0, 2**31))
VIDEOS = st.builds(
    MediumInput,
    st.just("video"),
    st.integers(0, 900),  # a file, or a list of images
    FEATURES,
    SIZES,
    SIZES,
    STEPS,
    st.lists(st.integers(0, 2**24), min_size=1, max_size=5).map(tuple),
    FLOATS,
    FLOATS,
    st.integers(0, 2**31),  # of its sound, if it is heard
)


@st.composite
def members(draw: Any) -> MemberTokens:
    ids = draw(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**31 - 1)), min_size=1, max_size=40))
    edges = sorted(draw(st.sets(st.integers(1, len(ids)), max_size=6)))
    spans = [*pairwise(edges)][:: draw(st.sampled_from([1, 2]))]  # side by side, or with gaps
    weights = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=len(spans), max_size=len(spans)))
    media = draw(st.lists(st.one_of(IMAGES, VIDEOS, SOUNDS), max_size=3))
    factor, shared_len = draw(st.one_of(st.just(1.0), FLOATS)), draw(st.integers(0, len(ids) - 1))
    is_plain = {*weights} <= {1.0}
    return MemberTokens(np.array(ids, np.int64), spans, [] if is_plain else weights, media, factor, shared_len)


def same(one: MemberTokens, other: MemberTokens) -> bool:
    return one.ids.tolist() == other.ids.tolist() and replace(one, ids=other.ids) == other


@given(st.lists(members(), max_size=5))
def test_members_come_back_from_their_bytes(pack: list[MemberTokens]) -> None:
    """Spans, weights, factors, media of all kinds and what is shared: were one lost, other tokens would be trained."""
    read = members_of(PackTokens.from_bytes(join_member_tokens(pack).to_bytes()))
    assert len(read) == len(pack)
    assert all(map(same, read, pack))


#: an image, and a clip that is heard
MEDIA = [
    MediumInput("image", 0, 4, 56, 56, (PixelStep("crop", 28, 28),)),
    MediumInput("video", 0, 2, 64, 48, (PixelStep("resize_frame", 28, 56),), (0, 3), 12.0, 4.0, 9000),
]
MEMBERS = [
    MemberTokens(np.array([7, 8, 9]), [(1, 3)], [0.5], []),
    MemberTokens(np.array([7, *[70_000] * 6, 8]), [(7, 8)], [], MEDIA, 2.0, 1),
]


def entry(name: str, index: int, value: int) -> Callable[[dict[str, Any]], None]:
    def damage(columns: dict[str, Any]) -> None:
        columns[name][index] = value

    return damage


def shorter(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda columns: columns.update({name: columns[name][:-1]})


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (entry("length", 0, 4), "11 ids, and members of 12"),
        (entry("num_more", 0, 2**32 - 1), "4294967301 ids, and members of 11"),  # and 32 GB are not asked for
        (entry("repeated", 0, 99), "out of bounds"),
        (shorter("repeated"), "6 ids, and members of 11"),
        (entry("end", 0, 4), "a trained span outside of member 1"),
        (entry("start", 0, 0), "a trained span outside of member 0"),
        (entry("end", 1, 12), "a trained span behind the last member"),
        (shorter("end"), "same shape"),
        (shorter("weight"), "1 entries of weight, and 2 are needed"),
        (shorter("factor"), "1 entries of factor, and 2 are needed"),
        (shorter("shared_len"), "1 entries of shared_len, and 2 are needed"),
        (shorter("num_media"), "1 entries of num_media, and 2 are needed"),
        (entry("num_media", 0, 1), "2 media, and members with 3"),
        (entry("kind", 0, 7), "'\\x07'"),
        (shorter("kind"), "2 entries of num_features, and 1 are needed"),
        (shorter("num_features"), "1 entries of num_features, and 2 are needed"),
        (entry("operation", 0, 9), "out of range"),
        (entry("num_steps", 0, 2), "2 entries of operation, and media with 3"),
        (shorter("new_width"), "shorter"),
        (shorter("frame"), "1 entries of frame, and media with 2"),
        (shorter("fps"), "0 entries of fps, and media with 1"),
        (shorter("num_in_source"), "longer"),
    ],
)
def test_columns_that_contradict_each_other_are_named(damage: Callable[[dict[str, Any]], None], said: str) -> None:
    """Bytes that changed would train other tokens, put media elsewhere, or ask for all memory."""
    columns = {name: column.copy() for name, column in join_member_tokens(MEMBERS).columns.items()}
    assert all(map(same, members_of(PackTokens(columns)), MEMBERS))
    damage(columns)
    with pytest.raises(TokensDamaged) as error:
        members_of(PackTokens.from_bytes(PackTokens(columns).to_bytes()))
    assert said in str(error.value)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_any_damage_is_named_or_gives_members(place: int, value: int) -> None:
    """No byte may end a worker in another way than by the name of the pack."""
    data = bytearray(join_member_tokens(MEMBERS).to_bytes())
    data[place % len(data)] = value
    with suppress(TokensDamaged):
        members_of(PackTokens.from_bytes(bytes(data)))


def test_a_part_of_zeros_holds_no_member() -> None:
    """A file system that lost a block gives zeros; then training asks for the members that the JSON names."""
    data = join_member_tokens([]).to_bytes()
    assert members_of(PackTokens.from_bytes(data)) == []
    with pytest.raises(TokensDamaged, match="no tokens of format 3"):
        PackTokens.from_bytes(bytes(len(data)))


#: two members: "7 8 9" of which 8 and 9 are trained, and "7", an image of five tokens, "8"
IDS = [7, 8, 9, 7, *[70_000] * 5, 8]
PACK = {"length": [3, 7], "start": [1], "end": [3], "num_media": [0, 1], "kind": [1], "num_features": [5]}


def pack_of(ids: list[int], **columns: list[int]) -> PackTokens:
    return PackTokens(
        {name: np.array(own, COLUMN_TYPES[name]) for name, own in columns.items()}
        | split_token_ids_into_columns(np.array(ids))
    )


def test_the_bytes_of_a_pack() -> None:
    """Readers of thirty lines exist outside of this package: no byte may move."""
    data = pack_of(IDS, **PACK).to_bytes()
    assert data[:4] == b"EPK3"
    counts = dict(zip(COLUMN_TYPES, np.frombuffer(data, "<u4", len(COLUMN_TYPES), 4).tolist(), strict=True))
    assert {name: number for name, number in counts.items() if number} == {
        "length": 2, "num_media": 2, "low": 6, "high": 1, "repeated": 1, "num_more": 1, "start": 1, "end": 1, "kind": 1,
        "num_features": 1,
    }  # fmt: skip
    columns = data[4 + 4 * len(COLUMN_TYPES) :]
    assert columns[:8] == bytes([3, 0, 0, 0, 7, 0, 0, 0])
    assert columns[8:12] == bytes([0, 0, 1, 0])
    assert np.frombuffer(columns[12:24], "<u2").tolist() == [7, 8, 9, 7, 70_000 - 65_536, 8]
    assert columns[24] == 0b00001000  # bit 16 of the fifth id
    assert np.frombuffer(columns[25:33], "<u4").tolist() == [4, 4]
    assert columns[33:] == bytes([1, 0, 0, 0, 3, 0, 0, 0, 1, 5, 0, 0, 0])


def test_a_pack_is_read_as_it_was_written() -> None:
    read = PackTokens.from_bytes(pack_of(IDS, **PACK).to_bytes())
    assert read.ids.tolist() == IDS
    assert read["length"].tolist() == [3, 7]
    assert read.entries("shared_len", 2).tolist() == [0, 0]
    assert read.entries("weight", 1, 1.0).tolist() == [1.0]


@given(arrays(np.int64, st.integers(0, 200), elements=st.one_of(st.integers(0, 3), st.integers(0, 2**31 - 1))))
def test_any_ids_come_back(ids: np.ndarray) -> None:
    """Runs, planes of higher bits and the last bits of a plane are undone exactly."""
    assert PackTokens.from_bytes(PackTokens(split_token_ids_into_columns(ids)).to_bytes()).ids.tolist() == ids.tolist()


def test_an_id_takes_two_bytes_and_a_quarter() -> None:
    """Ids of a vocabulary of 152,000 have 18 bits."""
    ids = np.arange(131_072, 131_072 + 8_000)
    assert len(PackTokens(split_token_ids_into_columns(ids)).to_bytes()) == 2.25 * 8_000 + 4 + 4 * len(COLUMN_TYPES)


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        (lambda data: data[:-1], "bytes by their header, and"),
        (lambda data: data + b"\0", "bytes by their header, and"),
        (lambda data: data[:20], "no tokens of format 3"),
        (lambda data: b"EPK4" + data[4:], "no tokens of format 3"),
        (lambda data: b"", "no tokens of format 3"),
    ],
)
def test_damaged_tokens_are_refused(damaged: object, said: str) -> None:
    """A cut part would otherwise train other tokens, or fail without a name."""
    with pytest.raises(TokensDamaged, match=said):
        PackTokens.from_bytes(damaged(pack_of(IDS, **PACK).to_bytes()))  # type: ignore[operator]


def test_webdataset_leaves_the_part_as_bytes() -> None:
    """An extension that a decoder knows would hand training an object of its own making."""
    data, file = pack_of(IDS, **PACK).to_bytes(), io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        member = tarfile.TarInfo("p.tokens")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    file.seek(0)
    sample = next(
        iter(wds.tariterators.group_by_keys(wds.tariterators.tar_file_expander([{"url": "x.tar", "stream": file}])))
    )
    decoded = wds.autodecode.Decoder([wds.autodecode.imagehandler("pil")])(sample)
    assert decoded["tokens"] == data
