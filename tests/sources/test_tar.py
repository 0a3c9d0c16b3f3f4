"""The header scan finds what tarfile finds, and says where a tar is damaged instead of stopping quietly."""

import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_pack.sources.other_formats import find_decompress_command
from energon_pack.sources.storage import open_file
from energon_pack.sources.tar import NO_DATA, TarScan, is_tar_header_of
from support.samples import write_tar

MEMBERS = {"a.jpg": b"x" * 700, "a.json": b"{}", "b.jpg": b"", "b.json": b"y" * 512}

names = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=150).filter(
    lambda name: name.strip("./ ") == name
)


def scan(path: Path) -> tuple[list[tuple[str, int, int]], list[str]]:
    with open_file(path) as file:
        found = TarScan(file)
        return list(found), [damage.detail for damage in found.damage]


def by_tarfile(path: Path) -> list[tuple[str, int, int]]:
    with tarfile.open(path, "r:") as tar:
        return [(member.name, member.offset_data, member.size) for member in tar if member.isreg()]


@given(
    members=st.lists(st.tuples(names, st.binary(max_size=1200)), max_size=5),
    folder=st.sampled_from(["", "d/", "d" * 120 + "/"]),
    format=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
@settings(deadline=None, max_examples=150)
def test_members_as_tarfile_finds_them(
    tmp_path_factory: pytest.TempPathFactory, members: list[tuple[str, bytes]], folder: str, format: int
) -> None:
    path = tmp_path_factory.mktemp("tar") / "x.tar"
    try:
        write_tar(path, [(folder + name, data) for name, data in members], format=format)
    except ValueError:  # USTAR has no room for the name
        return
    assert scan(path) == (by_tarfile(path), [])


@given(
    runs=st.lists(
        st.tuples(st.integers(1, 90), st.sampled_from([0, 1, 512, 700, 3000, 9000, 300_000]), st.booleans()), max_size=5
    ),
    format=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
@settings(deadline=None, max_examples=40)
def test_runs_of_small_and_large_members_as_tarfile_finds_them(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, int, bool]], format: int
) -> None:
    """Headers are read many at a time or one by one, by the size of the members."""
    members = [
        (f"{'d' * 99 if is_long else 'd'}/{run}_{i}.jpg", bytes(size))
        for run, (count, size, is_long) in enumerate(runs)
        for i in range(count if size < 100_000 else 1 + count // 40)
    ]
    path = write_tar(tmp_path_factory.mktemp("tar") / "x.tar", members, format=format)
    assert scan(path) == (by_tarfile(path), [])


def test_headers_of_small_members_share_a_read_and_large_members_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    pread = os.pread

    def counted(fd: int, length: int, offset: int) -> bytes:
        reads.append(len(block := pread(fd, length, offset)))
        return block

    small = write_tar(tmp_path / "small.tar", {f"{i}.json": bytes(100) for i in range(2000)})
    large = write_tar(
        tmp_path / "large.tar", {f"{i}.{part}": bytes(50_000) for i in range(50) for part in ("jpg", "png")}
    )
    monkeypatch.setattr(os, "pread", counted)
    assert len(scan(small)[0]) == 2000
    assert len(reads) < 25
    assert sum(reads) < 1.2 * small.stat().st_size
    reads.clear()
    assert len(scan(large)[0]) == 100
    assert sum(reads) < 0.15 * large.stat().st_size


def test_folders_and_links_hold_no_data(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for kind, name in ((tarfile.DIRTYPE, "d"), (tarfile.SYMTYPE, "l" * 150), (tarfile.LNKTYPE, "h")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "d/" + "target" * 30
            tar.addfile(info)
        tar.addfile(tarfile.TarInfo("a.json"))
    found = {name: size for name, _, size in scan(path)[0]}
    assert found == {"l" * 150: NO_DATA, "h": NO_DATA, "a.json": 0}  # links are there, without data; folders are not


def test_a_size_beyond_eight_gigabytes(tmp_path: Path) -> None:
    """GNU writes it in base 256; read as octal it would send the scan anywhere."""
    info = tarfile.TarInfo("big")
    info.size = 9 * 2**30
    path = tmp_path / "x.tar"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT))
    os.truncate(path, 512 + info.size)  # sparse
    members, damage = scan(path)
    assert members == [("big", 512, 9 * 2**30)]
    assert damage == ["no end-of-archive blocks"]


@pytest.mark.parametrize(
    ("harm", "num_whole", "what"),
    [
        (lambda b: b"", 0, "the file is empty"),
        (lambda b: b"<html>" * 200, 0, "not a tar file"),
        (lambda b: b[:4096], 4, "no end-of-archive blocks"),
        (lambda b: b[:4608], 4, "only one of the two end-of-archive blocks"),
        (lambda b: b[:3800], 3, "cut 216 bytes into 'b.json'"),
        (lambda b: b[:3200], 3, "cut inside a member's header"),
        (lambda b: b + b"garbage", 4, "data after the end of the archive"),
        (lambda b: b[:1536] + b"\xff" + b[1537:], 3, "a header's checksum is wrong"),  # a.json's name
    ],
)
def test_damage_is_named_and_the_rest_is_read(tmp_path: Path, harm, num_whole: int, what: str) -> None:  # type: ignore[no-untyped-def]
    path = write_tar(tmp_path / "x.tar", MEMBERS)
    path.write_bytes(harm(path.read_bytes()))
    members, damage = scan(path)
    assert damage == [what]
    assert len(members) == num_whole
    assert all(name in MEMBERS and size == len(MEMBERS[name]) for name, _, size in members)


def test_a_second_archive_behind_the_first_is_read_on(tmp_path: Path) -> None:
    """`cat a.tar b.tar` is damage, but what is whole is found."""
    first = write_tar(tmp_path / "a.tar", {"a.json": b"{}"})
    second = write_tar(tmp_path / "b.tar", {"b.json": b"{}"})
    first.write_bytes(first.read_bytes() + second.read_bytes())
    members, damage = scan(first)
    assert [name for name, _, _ in members] == ["a.json", "b.json"]
    assert damage == ["data after the end of the archive"]


@pytest.mark.parametrize("kind", [b"L", b"x", b"5", b"0"])
def test_an_absurd_size_is_damage(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("a.json")
    info.type = tarfile.REGTYPE
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[156:157] = kind
    header[124:136] = b"\xff" * 12
    header[148:156] = b"%06o\0 " % (sum(header) - sum(header[148:156]) + 256)
    (tmp_path / "x.tar").write_bytes(header + bytes(1024))
    members, damage = scan(tmp_path / "x.tar")
    assert members == []
    assert (damage == []) == (kind == b"5")  # a folder has no blocks, whatever its size says


def test_a_pair_of_zero_blocks_is_the_end(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", {"a.json": b"{}"})
    path.write_bytes(path.read_bytes()[: 1024 + 1024])  # without the padding to a record
    assert scan(path)[1] == []


def test_a_name_that_begins_like_bzip2_is_no_compression(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", {"BZhou_1.json": b"{}"})
    with open_file(path) as file:
        assert find_decompress_command(file) is None


def test_a_header_is_known_again(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", {"a.json": b"{}", "n" * 130: b"xyz"}, format=tarfile.GNU_FORMAT)
    data = path.read_bytes()
    for name, offset, size in scan(path)[0]:
        header = data[offset - 512 : offset]
        assert is_tar_header_of(header, name, size)
        assert not is_tar_header_of(header, name, size + 1)
        assert not is_tar_header_of(data[offset : offset + 512], name, size)
    assert not is_tar_header_of(data[:512], "b.json", 2)
    assert not is_tar_header_of(data[:100], "a.json", 2)  # the file ends there


@given(where=st.integers(0, 4095), byte=st.integers(0, 255))
@settings(deadline=None, max_examples=150)
def test_any_changed_byte_leaves_the_scan_sane(tmp_path_factory: pytest.TempPathFactory, where: int, byte: int) -> None:
    """No crash, no endless loop, no member outside the file; a changed header never passes unnoticed."""
    path = write_tar(tmp_path_factory.mktemp("tar") / "x.tar", MEMBERS)
    data = bytearray(path.read_bytes())
    whole = scan(path)[0]
    changed = data[where] != byte
    data[where] = byte
    path.write_bytes(data)
    members, damage = scan(path)
    assert all(offset + size <= len(data) for _, offset, size in members)
    in_header = any(offset - 512 <= where < offset for _, offset, _ in whole)
    in_checksum_field = any(offset - 512 + 148 <= where < offset - 512 + 156 for _, offset, _ in whole)
    if changed and in_header and not in_checksum_field:
        assert damage
