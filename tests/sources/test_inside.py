"""Media inside of other files: base64 in a line, members of a zip archive, and the metadata of an ImageFolder."""

import base64
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config.schema import MediaIn, PackConfig
from energon_pack.pack import pack
from energon_pack.sources.inside import open_inside
from support.packed import Make, samples
from support.read_source import read
from support.running import command
from support.samples import noise

PNG = noise(1, 56)
CODED = base64.b64encode(PNG).decode()


def openai(url: str) -> dict[str, Any]:
    asked = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "?"}]
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": "a cat"}]}


def test_base64_in_a_line(tmp_path: Path) -> None:
    """OpenAI's data: URI and ms-swift's bare base64 are read; a cut one costs its sample."""
    lines = [
        openai(f"data:image/png;base64,{CODED}"),
        {"query": "<image>?", "response": "a cat", "images": [CODED]},
        {"query": "<image>?", "response": "a cat", "images": [f"data:image/png;base64,{CODED[:301]}"]},
        {"query": "<image>?", "response": "a cat", "images": [CODED[:400]]},
        {"query": "a text", "response": "b"},
    ]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    first, second, third, fourth, fifth = read(tmp_path / "a.jsonl").values()
    assert first[1] == second[1] == [PNG]
    assert str(third).startswith("unreadable_media")
    assert str(fourth).startswith("unreadable_media")
    assert fifth == (["a text", "b"], [])


def test_packs_refer_to_base64_and_to_members(config: Make, tmp_path: Path) -> None:
    """Training reads the same bytes from the line, and from the archive."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text(json.dumps(openai(f"data:image/png;base64,{CODED}")) + "\n")
    with zipfile.ZipFile(tmp_path / "in/images.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("sub/a.png", PNG)
    line = {"query": "<image>?", "response": "a cat", "images": ["images.zip::sub/a.png"]}
    (tmp_path / "in/b.jsonl").write_text(json.dumps(line) + "\n")
    run: PackConfig = config(tmp_path / "in", output__media=MediaIn.reference)
    pack(run)
    folder = Path(run.output.dir) / str(run.output.name)
    refs = [json.loads(parts["json"])["media_refs"] for parts in samples(folder).values()]
    named = sorted(tuple(ref) for pack_refs in refs for member in pack_refs for ref in member)
    assert [place[0] for place in named] == ["a.jsonl", "images.zip"]
    verify = ("-m", "energon_pack.verify", folder, "--source", "--decode", "--num-workers", "1")
    verified = command(*verify, cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_zip_archive_for_media_root(tmp_path: Path) -> None:
    """Datasets are downloaded as annotations and one zip of images: nobody unpacks it to try."""
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"image": name, "caption": "a cat"}) + "\n" for name in ("sub/a.png", "gone.png"))
    )
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        archive.writestr("sub/a.png", PNG)
    whole, gone = read(tmp_path / "a.jsonl", media_root=str(tmp_path / "images.zip")).values()
    assert (whole[1], str(gone)[:13]) == ([PNG], "missing_media")
    data = (tmp_path / "images.zip").read_bytes()
    (tmp_path / "images.zip").write_bytes(data[: len(data) // 2])
    reasons = read(tmp_path / "a.jsonl", media_root=str(tmp_path / "images.zip")).values()
    assert [str(reason)[:16] for reason in reasons] == ["unreadable_media"] * 2


@pytest.mark.parametrize("key", ["x", "0+5", "0+9999/images/7", "-1+5/a", "0+99/query/a"])
def test_no_such_place_in_a_line(key: str, tmp_path: Path) -> None:
    """A damaged pack may name any."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"query": "?", "images": [CODED]}) + "\n")
    with pytest.raises((KeyError, ValueError)):
        open_inside(str(tmp_path / "a.jsonl"), key)


def test_metadata_of_an_image_folder(tmp_path: Path) -> None:
    """`file_name` and `text`, as `datasets` loads them; a document that names its file stays one."""
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "metadata.jsonl").write_text(
        '{"file_name": "a.png", "text": "a cat"}\n{"file_name": "a.txt", "text": "a page"}\n'
    )
    captioned, document = read(tmp_path / "metadata.jsonl").values()
    assert captioned[1] == [PNG]
    assert captioned[0][-1] == "a cat"
    assert document == (["a page"], [])
