"""Names and sizes in PAX or GNU headers alone are read as tarfile reads them, by every stage and in training."""

import os
import tarfile
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_pack.config import MediaIn
from energon_pack.errors import PackError
from energon_pack.samples.sample import Reference
from energon_pack.sources.referenced_media import SourceMediaReader, find_tar_member_at
from energon_pack.sources.storage import open_file
from energon_pack.sources.tar import TarScan
from support.damage import found
from support.marks import slow
from support.packed import Make, packed, samples, train
from support.samples import chat, picture, write_tar

MEMBERS = {"a.json": chat("<image>?", "a"), "a.jpg": picture(60, 40), "b.json": chat("<image>?", "b")}
MEMBERS |= {"b.jpg": picture(40, 60), "c.json": chat("no image", "c")}


def pax_member(name: str, size: int, **more: str) -> bytes:
    """The headers of a member whose own header has another name, and no size."""
    info = tarfile.TarInfo("x")
    info.pax_headers = {"path": name, "size": str(size), **more}
    return info.tobuf(tarfile.PAX_FORMAT)  # `info.size` is 0


def write_pax_tar(path: Path, members: dict[str, bytes], **more: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = (pax_member(name, len(data), **more) + data + bytes(-len(data) % 512) for name, data in members.items())
    path.write_bytes(b"".join(blocks) + bytes(1024))
    return path


def by_tarfile(path: Path) -> list[tuple[str, int, int]]:
    with tarfile.open(path, "r:") as tar:
        return [(member.name, member.offset_data, member.size) for member in tar if member.isreg()]


@pytest.mark.parametrize("media", [slow(MediaIn.copy), MediaIn.reference])
def test_a_tar_whose_names_and_sizes_stand_in_pax_headers_is_packed_as_a_plain_one(
    config: Make, tmp_path: Path, media: MediaIn
) -> None:
    """It was indexed and measured, and then "changed since it was measured" for ever."""
    as_pax = write_pax_tar(tmp_path / "pax" / "a.tar", MEMBERS, comment="c" * 9000)
    plain = write_tar(tmp_path / "plain" / "a.tar", MEMBERS)
    folders = [
        packed(config(path.parent, output__media=media, output__name=path.parent.name)) for path in (plain, as_pax)
    ]
    if media is MediaIn.copy:
        assert samples(folders[0]) == samples(folders[1])
    images = [[pack.images for pack in train(folder)] for folder in folders]
    assert images[0] == images[1]
    assert not found(folders[1], source=[str(tmp_path / "pax")]).num_defects


def test_a_member_beyond_eight_gigabytes_is_found_by_its_pax_size(tmp_path: Path) -> None:
    """A sparse file of 9 GiB: training reads its ends alone, and refuses it once its headers say another size."""
    size, path = 9 << 30, tmp_path / "a.tar"
    info = tarfile.TarInfo("v.mp4")
    info.size = size
    headers = info.tobuf(tarfile.PAX_FORMAT)
    path.write_bytes(headers)
    os.truncate(path, len(headers) + size + 1024)
    with open_file(path) as file:
        assert list(TarScan(file)) == [("v.mp4", 1536, size)]
        assert find_tar_member_at(file, 1536) == ("v.mp4", size)
    checksum = crc32(bytes(1024), crc32(bytes(1024), crc32(b"v.mp4")))
    reference = Reference("0.mp4", ("a.tar", 1536, size), size, checksum, "a/v")
    assert SourceMediaReader(str(tmp_path)).opened(reference).size == size
    with path.open("r+b") as tar:
        tar.write(pax_member("v.mp4", size - 1)[:1024])
    with pytest.raises(PackError, match=r"at byte 1,536 is not 0\.mp4 of a/v as it was packed"):
        SourceMediaReader(str(tmp_path)).opened(reference)


@given(
    members=st.lists(
        st.tuples(
            st.sampled_from(["a.jpg", "l" * 98 + ".jpg", "d" * 150 + "/ü.json"]),
            st.sampled_from([0, 5, 512, 700]),
            st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, None]),
            st.sampled_from([{}, {"comment": "c" * 5000}, {"path": "other.json"}, {"path": "other.json/"}]),
        ),
        min_size=1,
        max_size=4,
    ),
    in_all=st.sampled_from([None, {"comment": "of all"}, {"path": "g.json"}]),
)
@settings(max_examples=60)
def test_each_member_is_known_by_the_headers_before_it(
    tmp_path_factory: pytest.TempPathFactory,
    members: list[tuple[str, int, Any, dict[str, str]]],
    in_all: dict[str, str] | None,
) -> None:
    """Long names of GNU, sizes of PAX alone, and global headers: the scan and a look at one place see the same."""
    blocks = [tarfile.TarInfo.create_pax_global_header(in_all)] if in_all else []
    for name, size, form, fields in members:
        info = tarfile.TarInfo(name)
        info.size, info.pax_headers = size, fields
        headers = pax_member(name, size, **fields) if form is None else info.tobuf(form)
        blocks += [headers, bytes(size), bytes(-size % 512)]
    path = tmp_path_factory.mktemp("tar") / "x.tar"
    path.write_bytes(b"".join(blocks) + bytes(1024))
    with open_file(path) as file:
        scanned = list(TarScan(file))
        assert scanned == by_tarfile(path)
        assert [find_tar_member_at(file, offset) for _, offset, _ in scanned] == [
            (name, size) for name, _, size in scanned
        ]
        assert find_tar_member_at(file, 0) is None
        assert find_tar_member_at(file, file.size) is None
