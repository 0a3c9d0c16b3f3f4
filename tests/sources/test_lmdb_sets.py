"""An LMDB of text recognition is packed: each image with its label. Others are refused by what they lack."""

from pathlib import Path

import pytest

from energon_pack.config import MediaIn
from energon_pack.errors import PackError
from energon_pack.sources.described import read_as
from energon_pack.sources.forms import find_source
from energon_pack.sources.settings import SourceConfig
from energon_pack.verify import Options, verify
from support.packed import Make, json_lines, packed, samples
from support.samples import picture

lmdb = pytest.importorskip("lmdb")
AUTO = SourceConfig()
SET = {b"num-samples": b"3", b"label-000000001": b"hello", b"label-000000002": "Grüße".encode()} | {
    b"image-%09d" % number: picture(40 + number) for number in (1, 2, 3)
}


def a_database(folder: Path, values: dict[bytes, bytes]) -> Path:
    folder.mkdir(parents=True)
    with lmdb.open(str(folder), map_size=1 << 20) as environment, environment.begin(write=True) as transaction:
        for key, value in values.items():
            transaction.put(key, value)
    return folder


@pytest.mark.parametrize("media", [MediaIn.copy, MediaIn.reference])
def test_images_are_packed_with_their_labels(config: Make, tmp_path: Path, media: MediaIn) -> None:
    source = a_database(tmp_path / "set" / "train", SET)
    assert read_as(find_source(AUTO, str(source)), AUTO.reading, 3) == (
        "LMDB of images and labels, caption, image inside, 1 file; 3 samples"
    )
    run = config(source, source__format="auto", max_skipped=0.5, packing__max_token_len=256, output__media=media)
    run.source.caption_prompt = "Read the text."
    folder = packed(run)
    (parts,) = samples(folder).values()
    assert parts["json"].count(b"Read the text.") == 2
    assert "Grüße" in parts["json"].decode()
    (skipped,) = json_lines(folder / "skipped.jsonl")
    assert (skipped["sample_id"], skipped["reason"]) == ("data.mdb:3", "no_messages")
    assert verify(folder, Options(source=[], num_workers=1)).first(9) == []


def test_another_layout_is_refused_by_what_it_lacks(tmp_path: Path) -> None:
    source = a_database(tmp_path / "set", {b"0001.jpg": picture()})
    with pytest.raises(PackError, match=r"an LMDB without num-samples, image-000000001 and label-000000001"):
        find_source(AUTO, str(source))
