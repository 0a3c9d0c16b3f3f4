"""The tokens of a pack on disk: what is written is what is read, in few bytes that every machine writes alike."""

import io
import tarfile

import numpy as np
import pytest
import webdataset as wds
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from energon_pack.samples.tokens_part import COLUMNS, PackTokens, TokensDamaged, id_columns

#: two members: "7 8 9" of which 8 and 9 are trained, and "7", an image of five tokens, "8"
IDS = [7, 8, 9, 7, *[70_000] * 5, 8]
PACK = {"length": [3, 7], "start": [1], "end": [3], "num_media": [0, 1], "kind": [1], "num_features": [5]}


def pack_of(ids: list[int], **columns: list[int]) -> PackTokens:
    return PackTokens({name: np.array(own, COLUMNS[name]) for name, own in columns.items()} | id_columns(np.array(ids)))


def test_the_bytes_of_a_pack() -> None:
    """Readers of thirty lines exist outside of this package: no byte may move."""
    data = pack_of(IDS, **PACK).to_bytes()
    assert data[:4] == b"EPK3"
    counts = dict(zip(COLUMNS, np.frombuffer(data, "<u4", len(COLUMNS), 4).tolist(), strict=True))
    assert {name: number for name, number in counts.items() if number} == {
        "length": 2, "num_media": 2, "low": 6, "high": 1, "repeated": 1, "num_more": 1, "start": 1, "end": 1, "kind": 1,
        "num_features": 1,
    }  # fmt: skip
    columns = data[4 + 4 * len(COLUMNS) :]
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
    assert read.of_each("shared_len", 2).tolist() == [0, 0]
    assert read.of_each("weight", 1, 1.0).tolist() == [1.0]


@given(arrays(np.int64, st.integers(0, 200), elements=st.one_of(st.integers(0, 3), st.integers(0, 2**31 - 1))))
def test_any_ids_come_back(ids: np.ndarray) -> None:
    """Runs, planes of higher bits and the last bits of a plane are undone exactly."""
    assert PackTokens.from_bytes(PackTokens(id_columns(ids)).to_bytes()).ids.tolist() == ids.tolist()


def test_an_id_takes_two_bytes_and_a_quarter() -> None:
    """Ids of a vocabulary of 152,000 have 18 bits."""
    ids = np.arange(131_072, 131_072 + 8_000)
    assert len(PackTokens(id_columns(ids)).to_bytes()) == 2.25 * 8_000 + 4 + 4 * len(COLUMNS)


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
