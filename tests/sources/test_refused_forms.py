"""Forms of data that are refused: each refusal says what to do, and who does it packs all samples."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from energon_pack.errors import PackError
from energon_pack.pack import pack
from support.packed import Make
from support.samples import picture, write_tar

QUESTION = {"role": "user", "content": "<image>What does it say?"}


def line(answer: str, image: str, **more: Any) -> str:
    return json.dumps({"messages": [QUESTION, {"role": "assistant", "content": answer}], "images": [image], **more})


def test_gz(config: Make, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture(format="PNG"))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(f"{line('yes', 'a.png')}\n".encode()))
    with pytest.raises(PackError, match=r"a\.jsonl\.gz is compressed, .*: put what gunzip gives in its place"):
        pack(config(str(path)))
    (tmp_path / "a.jsonl").write_bytes(gzip.decompress(path.read_bytes()))
    path.unlink()
    assert pack(config(str(tmp_path / "a.jsonl")))["samples_packed"] == 1


def test_an_lmdb_of_text_recognition(config: Make, tmp_path: Path) -> None:
    """As those that the benchmarks of text recognition ship: `image-000000001`, `label-000000001`, `num-samples`."""
    lmdb = pytest.importorskip("lmdb")
    words = ["STOP", "exit"]
    with lmdb.open(str(tmp_path / "ocr"), map_size=1 << 24) as store, store.begin(write=True) as to:
        to.put(b"num-samples", str(len(words)).encode())
        for number, word in enumerate(words, 1):
            to.put(b"image-%09d" % number, picture(56, 28 * number, "PNG"))
            to.put(b"label-%09d" % number, word.encode())
    with pytest.raises(PackError, match=r'an LMDB is no list .*"images": \["ocr/data\.mdb::KEY"\]'):
        pack(config(str(tmp_path / "ocr")))
    with lmdb.open(str(tmp_path / "ocr"), readonly=True) as store, store.begin() as of:
        lines = [
            line(of.get(b"label-%09d" % number).decode(), f"ocr/data.mdb::image-{number:09}")
            for number in range(1, int(of.get(b"num-samples")) + 1)
        ]
    (tmp_path / "ocr.jsonl").write_text("\n".join(lines) + "\n")
    assert pack(config(str(tmp_path / "ocr.jsonl")))["samples_packed"] == 2


def test_separate_texts_in_a_tar(config: Make, tmp_path: Path) -> None:
    parts = {"question.txt": b"What does it say?", "answer.txt": b"STOP", "png": picture(format="PNG")}
    write_tar(tmp_path / "data/a.tar", {f"{n}.{part}": data for n in range(3) for part, data in parts.items()})
    with pytest.raises(PackError, match=r"0\.question\.txt \(and 5 more like it\) can't be read .* texts in a N\.json"):
        pack(config(str(tmp_path / "data")))
    members = {}
    for number in range(3):
        members[f"{number}.json"] = line("STOP", f"{number}.png").encode()
        members[f"{number}.png"] = picture(format="PNG")
    write_tar(tmp_path / "data/a.tar", members)
    assert pack(config(str(tmp_path / "data")))["samples_packed"] == 3


STEP = """
def with_boxes(record):
    objects = record.pop("objects")
    for name, box in zip(objects["ref"], objects["bbox"]):
        for turn in record["messages"]:
            turn["content"] = turn["content"].replace("<ref-object>", name, 1).replace("<bbox>", str(box), 1)
    return record
"""


def test_boxes_of_ms_swift(
    config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each model has words of its own for a box, and none may be made up."""
    (tmp_path / "a.png").write_bytes(picture(format="PNG"))
    objects = {"ref": ["the cat"], "bbox": [[1, 2, 30, 40]]}
    path = tmp_path / "a.jsonl"
    path.write_text(line("<ref-object> is at <bbox>", "a.png", objects=objects) + "\n")
    made = config(str(path))
    with pytest.raises(PackError):
        pack(made)
    assert "stands for a value of 'objects', which is not put in its place (source.map can" in capsys.readouterr().out
    (tmp_path / "boxes_of_mine.py").write_text(STEP)
    monkeypatch.syspath_prepend(tmp_path)
    made.source.map = "boxes_of_mine:with_boxes"
    assert pack(made)["samples_packed"] == 1
