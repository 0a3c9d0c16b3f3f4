"""Bytes of samples by their places: what changed since it was measured is not read, few files are open at once."""

import base64
import io
import json
import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from energon_pack.config import Format
from energon_pack.config.schema import MediaIn, PackConfig
from energon_pack.errors import PackError
from energon_pack.online.user_dataset import UserSamples
from energon_pack.pack import pack
from energon_pack.samples.bytes import ByteRange, as_file
from energon_pack.samples.record import Record
from energon_pack.samples.sample import Part
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.sources import storage
from energon_pack.sources.find import make_shard_of_file
from energon_pack.sources.jsonl.dialects import RowSettings
from energon_pack.sources.media_files import open_medium_inside_file
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.shard import JsonlShard, Shard
from energon_pack.sources.storage import File, FileState, InMemoryFile, open_file, state_of
from support.packed import Make, files, samples
from support.read_source import read
from support.running import command_here
from support.samples import chat, noise, picture, sound, video, write_tar


def lines_in(folder: Path, *lines: bytes) -> Shard:
    path = folder / "x.jsonl"
    path.write_bytes(b"\n".join(lines))
    return make_shard_of_file("x.jsonl", str(path), JsonlShard, {"row_settings": RowSettings(str(folder))})


def test_a_changed_shard_is_not_read(tmp_path: Path) -> None:
    shard = make_shard_of_file("x.tar", str(write_tar(tmp_path / "x.tar", {"a.jpg": picture()})))
    with SourceReader() as reader:
        assert reader.open_unchanged_shard(shard).read(0, 5) == b"a.jpg"
    os.utime(shard.path, ns=(1, 1))
    with SourceReader() as reader, pytest.raises(PackError, match="changed"):
        reader.open_unchanged_shard(shard)


def test_open_shards_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_pack.sources.media_files._MAX_OPEN_FILES", 2)
    shards = {}
    for i in range(4):
        shards[i] = make_shard_of_file(f"{i}.tar", str(write_tar(tmp_path / f"{i}.tar", {f"k{i}": b""})))
    with SourceReader() as reader:
        for i in (0, 1, 0, 2, 3, 0):
            assert reader.open_unchanged_shard(shards[i]).read(0, 2) == f"k{i}".encode()
            assert len(reader._open_files) <= 2


def test_media_are_files_of_their_own(tmp_path: Path) -> None:
    shard = lines_in(tmp_path, b"{}")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "ü 1.jpg").write_bytes(picture())
    record = Record([], listed_media=["deep/ü 1.jpg", str(tmp_path / "deep/ü 1.jpg")])
    with SourceReader() as reader:
        parts = reader.media(shard, record, "1", [])
        assert [reader.read(shard, part) for part in parts] == [picture()] * 2
        versions = [file["version"] for file in reader.media_file_states(shard, parts) or ()]
        assert versions == [str((tmp_path / "deep/ü 1.jpg").stat().st_mtime_ns)] * 2
        with pytest.raises(PackError, match="changed"):
            reader.part_file(shard, Part("deep/ü 1.jpg", 0, 7))
        with pytest.raises(PackError, match="run again"):
            reader.part_file(shard, Part("gone.jpg", 0, 7))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a.jpg", "missing_media"),
        ("deep", "missing_media"),  # a folder
        ("x.jsonl/a.jpg", "missing_media"),
        ("a\0.jpg", "missing_media"),
        ("a" * 300, "unreadable_media"),
        ("pipe", "missing_media"),  # would wait forever
    ],
)
def test_media_that_are_no_files(tmp_path: Path, name: str, reason: str) -> None:
    shard = lines_in(tmp_path, b"{}")
    (tmp_path / "deep").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with SourceReader() as reader, pytest.raises(Skip) as skip:
        reader.media(shard, Record([], listed_media=[name]), "1", [])
    assert skip.value.reason.value == reason
    assert str(tmp_path) not in skip.value.detail  # it stands in the ledger, whose bytes name no machine


@pytest.mark.parametrize("subdir", [True, False])
def test_images_of_an_lmdb(tmp_path: Path, subdir: bool) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "x.lmdb"), subdir=subdir) as database, database.begin(write=True) as transaction:
        transaction.put(b"k/1", picture())
    shard = lines_in(tmp_path, b"{}")
    with SourceReader() as reader:
        (part,) = reader.media(shard, Record([], listed_media=["x.lmdb::k/1"]), "1", [])
        (file,) = reader.media_file_states(shard, [part]) or [{}]
        assert reader.read(shard, part) == picture()
        path = tmp_path / "x.lmdb" / "data.mdb" if subdir else tmp_path / "x.lmdb"
        assert file["version"] == str(path.stat().st_mtime_ns)
        for name in ("x.lmdb::k/2", "y.lmdb::k/1"):
            with pytest.raises(Skip, match="missing_media"):
                reader.media(shard, Record([], listed_media=[name]), "1", [])


def test_an_lmdb_that_gives_no_image_costs_its_sample_alone(tmp_path: Path) -> None:
    """LMDB has no empty key: it raises, and a damaged one does."""
    lmdb = pytest.importorskip("lmdb")
    lmdb.open(str(tmp_path / "x.lmdb"), subdir=False).close()
    (tmp_path / "y.lmdb").write_bytes(b"no LMDB" * 1000)
    shard = lines_in(tmp_path, b"{}")
    with SourceReader() as reader:
        for name in ("x.lmdb::", "y.lmdb::k"):
            with pytest.raises(Skip, match="unreadable_media") as skip:
                reader.media(shard, Record([], listed_media=[name]), "1", [])
            assert str(tmp_path) not in skip.value.detail


class Remote(File):
    """A file that gives only its state and the bytes at a place."""

    def __init__(self, fd: int, state: FileState):
        super().__init__(state)
        self._file = os.fdopen(fd, "rb")

    def read(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(size)

    def close(self) -> None:
        self._file.close()


def write_source(folder: Path, source: Format) -> Path:
    large = picture(700, 800) + bytes(5 << 20) + b"\xff\xd9"  # larger than what is copied through the buffer
    if source is Format.wds:
        members = {"a.json": chat("<image>?", "yes"), "a.jpg": large, "b.json": chat("what?", "no")}
        return write_tar(folder / "x.tar", {**members, "c.json": chat("<image>?", "c"), "c.png": picture(format="PNG")})
    (folder / "large.jpg").write_bytes(large)
    (folder / "small.png").write_bytes(picture(format="PNG"))
    texts = ("<image>?", "<image>!", "<image>.")
    names = ("large.jpg", "small.png", "large.jpg")
    samples = [{"image": name, **json.loads(chat(text, "yes"))} for name, text in zip(names, texts, strict=True)]
    if source is Format.table:
        rows = [{**sample, "image": (folder / sample["image"]).read_bytes()} for sample in samples]
        pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet", row_group_size=2)
        pq.write_table(pa.Table.from_pylist(rows), folder / "b.parquet", compression="zstd")
        return folder
    (folder / "array.json").write_text(json.dumps(samples))
    (folder / "lines.jsonl").write_text("".join(f"{json.dumps(sample)}\n" for sample in samples))
    return folder


@pytest.mark.parametrize("source", [Format.auto, Format.wds, Format.jsonl, Format.table])
def test_a_storage_that_only_reads_by_place_packs_the_same_bytes(
    config: Make, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, source: Format
) -> None:
    """A file as over a network: without a descriptor, so nothing is mapped and the kernel copies nothing."""
    (tmp_path / "in").mkdir()
    path = write_source(tmp_path / "in", source)
    paths = [str(path)] if source in (Format.wds, Format.table) else [str(path), str(path / "array.json")]
    packed = []
    for name in ("local", "remote"):
        if name == "remote":
            monkeypatch.setattr(storage, "LocalFile", Remote)
        run = config(
            paths, source__format=source, output__name=name, cache_dir=str(shutil.copytree(own_cache, tmp_path / name))
        )
        figures = pack(run)
        assert figures["samples_in"] == figures["samples_packed"] == (3 if source is Format.wds else 6)
        written = files(tmp_path / "out" / name)
        packed.append({name: data for name, data in written.items() if not name.startswith("report")})
    assert packed[0] == packed[1]


def test_a_range_ends_where_its_part_ends() -> None:
    part = ByteRange(InMemoryFile(b"before, here, after", ""), 8, 4)
    assert (part.size, part.read(0, 100), part.read(2, 1), part.read(4, 1), part.read(9, 1)) == (
        4,
        b"here",
        b"r",
        b"",
        b"",
    )
    stream = as_file(part, 3)
    assert (stream.read(), stream.seek(1), stream.read(2)) == (b"here", 1, b"er")


def test_a_version_is_another_once_a_file_was_written_to(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"one")
    before = state_of(str(path))
    with open_file(path) as file:
        assert before == (file.size, file.version)
    os.utime(path, ns=(0, 1))
    assert state_of(str(path)) != before
    assert state_of(str(tmp_path)) is None


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "", "gone"):
        with pytest.raises(FileNotFoundError):
            open_file(tmp_path / name)


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
    verify = ("energon_pack.verify", folder, "--source", "--decode", "--num-workers", "1")
    verified = command_here(*verify, cwd=tmp_path)
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
        open_medium_inside_file(str(tmp_path / "a.jsonl"), key)


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


GIF = picture(56, 56, "GIF")
OF_IMAGE = "placeholder_mismatch: {} lists g.gif, which is an image: convert it to {}, or list it under {}"


@pytest.mark.parametrize(
    ("fields", "content", "said"),
    [
        ({"videos": ["g.gif"]}, "<video>?", OF_IMAGE.format("videos", "mp4", "images")),
        ({"videos": ["g.gif"]}, "?", OF_IMAGE.format("videos", "mp4", "images")),
        ({"video": "g.gif"}, "<image>\n?", OF_IMAGE.format("video", "mp4", "image")),  # LLaVA-Video
        ({"video": {"path": "g.gif"}}, "?", OF_IMAGE.format("video", "mp4", "image")),
        ({"audios": ["g.gif"]}, "?", OF_IMAGE.format("audios", "wav", "images")),
        ({"images": ["v.mp4"], "videos": ["g.gif"]}, "<image><video>?", OF_IMAGE.format("videos", "mp4", "images")),
        ({}, [{"type": "video", "video": "g.gif"}], OF_IMAGE.format("content[].video", "mp4", "content[].image")),
        (
            {},
            [{"type": "video_url", "video_url": {"url": "g.gif"}}],
            OF_IMAGE.format("content[].video", "mp4", "content[].image"),
        ),
        (
            {"audios": ["v.mp4"]},
            "?",
            "placeholder_mismatch: audios lists v.mp4, which is a video: convert it to wav, or list it under videos",
        ),
    ],
)
def test_a_medium_of_another_kind_than_its_key_is_refused(
    tmp_path: Path, fields: dict[str, Any], content: Any, said: str
) -> None:
    """A moving GIF under `videos` was trained as one still, a film under `audios` as a film; two changed places.

    In lines, in a table, and in a user's own dataset.
    """
    (tmp_path / "g.gif").write_bytes(GIF)
    (tmp_path / "v.mp4").write_bytes(video(3))
    row = {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "a"}], **fields}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    columns = {name: [json.dumps(value) if isinstance(value, list) else value] for name, value in row.items()}
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")
    assert [read(tmp_path / name) for name in ("a.jsonl", "b.parquet")] == [{"1": said}, {"0": said}]
    with pytest.raises(Skip, match=re.escape(said)):
        UserSamples([row], ReadSettings(), str(tmp_path)).read(0)


def test_neutral_names_of_media_say_no_kind(tmp_path: Path) -> None:
    """Content decides what a `file_name` is, what an image is that LLaVA's `image` lists, and frames are images."""
    for name, data in (
        ("g.gif", GIF),
        ("v.mp4", video(3)),
        ("s.wav", sound(9000)),
        *((name, picture(56, 56, "JPEG")) for name in ("s.jpg", "s.jfif")),
    ):
        (tmp_path / name).write_bytes(data)
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "a"}]
    rows: list[tuple[dict[str, Any], str]] = [
        ({"image": "v.mp4"}, "<video>?"),
        ({"images": ["g.gif"]}, "<image>?"),
        ({"media_files": ["g.gif"]}, "<image>?"),
        ({"audios": ["s.wav"]}, "<audio>?"),
        ({"videos": [["g.gif", "g.gif"]]}, "<image><image>?"),
        ({"videos": ["s.jpg", "s.jfif"]}, "<image><image>?"),
        ({"image": "g.gif", "video": "v.mp4"}, "<image><video>?"),
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"messages": turns, **row}) + "\n" for row, _ in rows))
    found = read(tmp_path / "a.jsonl")
    assert [one if isinstance(one, str) else one[0][0] for one in found.values()] == [text for _, text in rows]
    still = (tmp_path / "s.jpg").read_bytes()
    asked = [{"role": "user", "content": "<image>?"}, turns[1]]
    for in_memory in (still, {"bytes": still, "path": None}, Image.open(io.BytesIO(still))):
        sample, _ = UserSamples([{"messages": asked, "videos": [in_memory]}], ReadSettings(), str(tmp_path)).read(0)
        assert [medium.kind for medium in sample.media] == ["image"]
    with pytest.raises(Skip, match="which is an image: convert it to mp4"):
        UserSamples([{"messages": asked, "videos": [GIF]}], ReadSettings(), str(tmp_path)).read(0)
    folder = tmp_path / "metadata.csv"
    folder.write_text("file_name,text\ng.gif,A\nv.mp4,B\ns.wav,C\n")
    assert [one[0][0] for one in read(folder).values()] == ["<image>", "<video>", "<audio>"]
    folder.write_text("video_file_name,text\ng.gif,A\nv.mp4,B\n")
    refused, taken = read(folder).values()
    assert refused == OF_IMAGE.format("video", "mp4", "image")
    assert taken[0][0] == "<video>"
