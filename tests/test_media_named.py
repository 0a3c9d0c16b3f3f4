"""What a sample seems to hold counts: where it can't be read, and where nothing reads the key that names it."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from energon_pack.config import Format, PackConfig
from energon_pack.errors import SamplesLost
from energon_pack.online.user_dataset import UserSamples
from energon_pack.pack import pack
from energon_pack.samples.keys import similar_key_hint
from energon_pack.samples.record import parse_record
from energon_pack.samples.settings import Columns, ReadSettings, SampleType, UnreadMediaPolicy
from energon_pack.samples.skip import Skip
from energon_pack.samples.unread_media import media_file_names, refuse_unread_media
from energon_pack.sources.jsonl.dialects import RowSettings, parse_row
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.sample import read_sample
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.source_file import IndexRow, rows_of
from energon_pack.sources.source_path import find_source
from support.packed import json_lines, packed, samples
from support.samples import chat, picture, write_tar

Make = Callable[..., PackConfig]
PNG64 = base64.b64encode(picture(200, 100, "PNG")).decode()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"picture": "a/b.png"}, ["a/b.png"]),
        ({"media": [{"file": "clip.MP4"}]}, ["clip.MP4"]),
        ({"messages": [{"content": "see a.png"}]}, []),
        ({"format": "png", "note": "of\na.png", "size": 3, "url": None}, []),
    ],
    ids=["a field", "deep in one", "a conversation may speak of files", "no names"],
)
def test_names_of_media(fields: dict[str, Any], expected: list[str]) -> None:
    assert list(media_file_names(fields)) == expected


def lines_of(path: Path, *values: Any) -> Path:
    (path / "0.png").write_bytes(picture())
    file = path / "lines.jsonl"
    file.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    return file


def test_a_line_of_images_that_has_no_answer_is_no_text(config: Make, tmp_path: Path) -> None:
    """It was all there was of `text`: a set of 299 good lines and this one was refused, whatever max_skipped."""
    good = {"image": "0.png", "question": "<image>?", "answer": "yes"}
    bad = {"image": "0.png", "messages": [{"role": "user", "content": "<image>?"}]}
    run = config(lines_of(tmp_path, *[good] * 9, bad), source__format=Format.jsonl, max_skipped=0.2)
    figures = pack(run)
    (entry,) = json_lines(Path(run.output.dir) / str(run.output.name) / "skipped.jsonl")
    assert (figures["samples_packed"], entry["reason"], entry["media_type"]) == (9, "no_assistant_turn", "image")


def test_a_conversation_in_memory_that_can_not_be_read_is_of_its_images() -> None:
    item = {"images": [picture()], "messages": [{"role": "user", "content": "<image><image>?"}]}
    with pytest.raises(Skip) as told:
        UserSamples([item], ReadSettings(), None).read(0)
    assert told.value.media_type == "image"


TURNS = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "Red."}]
ASKED = {"question": "What?", "answer": "Red."}


def of_parts(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}, TURNS[1]]}


def of_turn(**more: Any) -> dict[str, Any]:
    return {"messages": [{**TURNS[0], **more}, TURNS[1]]}


def read(path: Path, settings: ReadSettings | None = None) -> list[str]:
    """For each sample the media that are read, or why it is left out."""
    settings, found = settings or ReadSettings(), []
    with SourceReader() as reader:
        for shard in find_source(SourceConfig(), str(path)).shards:
            for row in rows_of(shard.index(), IndexRow):
                try:
                    found.append(" ".join(read_sample(reader, shard, row, settings).kinds))
                except Skip as skip:
                    found.append(str(skip))
    return found


#: fields that are read as media, or would be if the file were there, where `source.columns` names them
READ_BY_A_SETTING = (
    *("imgae", "Images", "vidoes", "audoi", "url", "image_id", "pics", "vidoe", "picture", "image_url", "video_url"),
    *("shot", "audio_filepath", "wav", "path", "imagePaths", "img", "video_id"),  # a text beside it is its caption
)


@pytest.mark.parametrize(
    ("line", "said", "meant"),
    [
        ({"imgae": "0.png", "messages": TURNS}, "imgae has '0.png', an image", "image"),
        ({"Images": ["gone.jpg"], "messages": TURNS}, "Images has 'gone.jpg', an image", "images"),
        ({"vidoes": ["a.mp4"], "messages": TURNS}, "vidoes has 'a.mp4', a video", "videos"),
        ({"audoi": {"path": "a.wav"}, **ASKED}, "audoi has 'a.wav', a sound", "audio"),
        ({"imgae": "no extension", "messages": TURNS}, "imgae has 'no extension', an image", "image"),  # it is there
        ({"picture": "0.png", **ASKED}, "picture has '0.png', an image", None),
        ({"view": {"left": "s3://b/0.png"}, **ASKED}, "view has 's3://b/0.png', an image", None),
        ({"url": "https://x.org/0.jpg", "caption": "A cat."}, "url has 'https://x.org/0.jpg', an image", None),
        ({"image_id": "COCO_1.jpg", **ASKED}, "image_id has 'COCO_1.jpg', an image", None),
        ({"meta": {"file": "0.png"}, "question": "<image>?", "answer": "b"}, "meta has '0.png', an image", None),
        ({"shot": "0.png", "text": "A cat."}, "shot has '0.png', an image", None),  # it is there
        ({"pics": "1.png", "text": "<image>A cat."}, "pics has '1.png', an image", None),
        ({"picture": "my photos/gone.jpg", **ASKED}, "picture has 'my photos/gone.jpg', an image", None),
        (
            {"picture": "Urlaub im Mai/Straße 1.jpg", **ASKED},
            "picture has 'Urlaub im Mai/Straße 1.jpg', an image",
            None,
        ),
        ({"picture": r"C:\Bilder von mir\4.png", **ASKED}, r"picture has 'C:\\Bilder von mir\\4.png', an image", None),
        ({"picture": "Photo 3 of 7.jpg", **ASKED}, "picture has 'Photo 3 of 7.jpg', an image", None),
        ({"picture": "https://x.org/0.jpg?w=300", **ASKED}, "picture has 'https://x.org/0.jpg?w=300', an image", None),
        ({"picture": '["gone.jpg", "a b.jpg"]', **ASKED}, """picture has '["gone.jpg", "a b.jpg"]', an image""", None),
        (
            {"picture": "{'path': 'gone.jpg', 'w': 3}", **ASKED},
            "picture has \"{'path': 'gone.jpg', 'w': 3}\", an image",
            None,
        ),
        ({"picture": PNG64, "messages": TURNS}, "picture has 'lines.jsonl::0+", None),
        ({"image": "0.png", "vidoe": "a.mp4", **ASKED}, "vidoe has 'a.mp4', a video", "video"),
        ({"image": "0.png", "image2": "1.png", **ASKED}, "image2 has '1.png', an image", "image"),
        ({"image_url": "https://x.org/0", "caption": "A cat."}, "image_url has 'https://x.org/0', an image", None),
        (
            {"video_url": "https://x.org/v?id=3", "messages": TURNS},
            "video_url has 'https://x.org/v?id=3', a video",
            None,
        ),
        ({"image": "0.png", "video_url": "https://x.org/v.mp4", **ASKED}, "video_url has 'https://x.org/v.mp4',", None),
        ({"audio_filepath": "/x/1.wav", "text": "hello"}, "audio_filepath has '/x/1.wav', a sound", None),
        ({"wav": "s3://b/1.wav", "text": "hello"}, "wav has 's3://b/1.wav', a sound", None),
        ({"path": "clips/1.mp3", "text": "hello"}, "path has 'clips/1.mp3', a sound", None),
        ({"imagePaths": ["coco/1.jpg"], "text": "A cat."}, "imagePaths has 'coco/1.jpg', an image", None),
        ({"img": "coco/1.jpg", "text": "A cat."}, "img has 'coco/1.jpg', an image", None),
        ({"video_id": "a.mp4", "text": "A cat."}, "video_id has 'a.mp4', a video", None),
        (of_turn(imgae="0.png"), "messages[].imgae has '0.png', an image", "image"),
        (of_turn(attachments=["0.png"]), "messages[].attachments has '0.png', an image", None),
        (of_parts({"type": "text", "text": "a", "image": "0.png"}), "content[].image has '0.png', an image", None),
        (of_parts({"type": "text", "text": "a", "imgae": "0.png"}), "content[].imgae has '0.png', an image", "image"),
    ],
)
def test_a_medium_that_nothing_reads_costs_its_sample(
    tmp_path: Path, line: dict[str, Any], said: str, meant: str | None
) -> None:
    """It was packed as text, with a note: the model never saw the medium, and the exit code was 0.

    Where no setting reads it, as beside another image, none is named.
    """
    (tmp_path / "no extension").write_bytes(picture())
    file, key = lines_of(tmp_path, line), said.partition(" ")[0]
    (found,) = read(file)
    assert found.startswith(f"media_unread: {said}")
    assert (f"nothing reads it: did you mean {meant}? " in found) is (meant is not None)
    assert (f"={key} reads it; " in found) is (key in READ_BY_A_SETTING)
    assert found.endswith(f"source.media=ignore packs {'the rest' if line.get('image') else 'the text alone'}")
    assert read(file, ReadSettings(media=UnreadMediaPolicy.ignore)) == ["image" if line.get("image") else ""]


def test_the_address_of_an_image_that_is_read_is_where_it_comes_from(tmp_path: Path) -> None:
    """OCR-VQA and WIT, images in bytes and their addresses, were lost; a second image is lost as before."""
    address = "https://x.org/a.jpg"
    more = {"image_url": address}, {"image_url": [address]}, {"image_url": "1.png"}, {"image2": address}
    found = read(lines_of(tmp_path, *({"image": "0.png", **each, **ASKED} for each in more)))
    assert found[:2] == ["image"] * 2
    assert [each.partition(" has")[0] for each in found[2:]] == ["media_unread: image_url", "media_unread: image2"]


@pytest.mark.parametrize(
    "line",
    [
        {"id": "0.png", "messages": TURNS},
        {"quality": "good", "imaged": "yes", "videoid": "x17", "messages": TURNS},
        {"width": 20, "imgae": None, "imagse": [], "vidoe": 7, "messages": TURNS},
        {"url": "https://commons.wikimedia.org/wiki/File:Cat.jpg", "text": "A page about a cat."},
        {"source_url": "https://x.org/a.png", "file": "scans/17.png", "text": "A page that was scanned."},
        {"video_url": "https://x.org/v?id=3", "og_image": "https://x.org/a.png", "video_id": "x17", "text": "Hello."},
        {"path": "src/index.ts", "image_id": 3, "text": "let a = 1"},
        {"image_metadata": '[{"src": "a.jpg"}]', "image_info": [{"file": "a.jpg"}], "text": "A page of MINT-1T."},
        {"og_image": "/img/a.jpg", "cover_image": "a/b.jpg", "paths": ["a.html", "b.jpg"], "text": "A page."},
        {"xpath": "/html/body/img.jpg", "profile_image": "u/7.png", "text": "A page."},
        {"image": "0.png", "image_url": "https://x.org/a.jpg", **ASKED},
        {"image": "0.png", "video_url": "https://x.org/watch?v=3", **ASKED},
        {"image": "0.png", "image_id": 7, "url": "https://x.org/a", "caption": "A cat."},
        {"image_id": None, "video_id": "", "image_caption": "a cat", "has_image": False, "image_width": 7, **ASKED},
        {"image_id": -1, "image_path": "None", "video_id": "N/A", "audio_path": {}, **ASKED},
        {"profile_image_url": "https://x.org/u/3", "motion_picture_name": "Alien", "paperclip_id": 3, **ASKED},
        {"url": "https://x.org/a", "question_id": 7, "caption_id": 7, **ASKED},
        {"image_id": 7, "url": "https://x.org/a", "messages": TURNS},
        {"id": 7, "caption": "A cat."},
        {"path": "src/index.ts", **ASKED},
        {"title": "How to convert a .png to .jpg", "note": "a/b.jpg is\nb/c.jpg", "log": "a" * 256 + ".png", **ASKED},
        {"tags": '["v1.0", "png"]', "why": "I ran 2 tests and saved a.png", "see": "See https://x.org/a.png", **ASKED},
        {"hint": "Save the figure as plot.png", "metadata": {"shown": "0.png"}, "output": "0.png", "messages": TURNS},
        {"image": "0.png", "image_path": "/abs/0.png", "thumbnail": "0_small.png", "mask": "0_mask.png", **ASKED},
        {"image": "0.png", "imagee": "./0.png", "image1": "/data/0.png", **ASKED},
        of_parts({"type": "image", "text": None, "image": "0.png"}),
        of_turn(mood="calm", name="a.png"),
        {"messages": [{"role": "user", "content": "Where is a.png, or <image>?"}, TURNS[1]]},
        of_parts({"type": "text", "text": "a", "image": None, "video": ""}),
    ],
)  # fmt: skip
def test_a_sample_without_such_media_stays(tmp_path: Path, line: dict[str, Any]) -> None:
    """Remarks, addresses that texts come from, names of programs and masks are no media that were meant."""
    assert read(lines_of(tmp_path, line)) == ["image" if "'image': '0.png'" in str(line) else ""]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ({"image_id": 179765, "id": 38, "caption": "A black Honda."}, "image"),
        ({"video_id": "video0", "sen_id": 0, "caption": "A car."}, "video"),
        ({"videoID": "abc", "caption": "A car."}, "video"),
        ({"youtube_id": "r1nicOVtvkQ", "start_time": "130", "caption": "A woman talks."}, "video"),
        ({"ytid": "r1nicOVtvkQ", "caption": "A slow song."}, "video"),
        ({"imageUrl": "https://x.org/0", "caption": "A dog."}, "image"),
        ({"url": "https://x.org/2_b", "caption": "A dog."}, None),
        ({"flickr_url": "https://x.org/2_b", "caption": "A dog."}, None),
        ({"video_id": 1301, "question": "What is running?", "answer": "A dog."}, "video"),
        ({"imageId": "2370799", "question": "Is it dark?", "answers": ["no", "yes"]}, "image"),
        ({"video_name": "v_1QIUV7WYKXg", "questions": ["Who?"], "answers": ["He."]}, "video"),
        ({"audio_key": "a/1", **ASKED}, "audio"),
    ],
)
def test_a_caption_or_question_whose_medium_has_no_file_is_not_trained_alone(
    tmp_path: Path, line: dict[str, Any], kind: str | None
) -> None:
    """COCO's and MSR-VTT's captions, GQA's and MSVD-QA's questions: answers were trained to nothing, with exit 0."""
    file, key = lines_of(tmp_path, line), next(iter(line))
    (found,) = read(file)
    assert found == (
        f"missing_media: {key} has {str(line[key])!r}, which is no file: its medium is lost"
        " (source.map can name one, source.media=ignore packs the text)"
    )
    assert read(file, ReadSettings(media=UnreadMediaPolicy.ignore)) == [""]
    with pytest.raises(Skip, match="missing_media") as told:
        UserSamples([line], ReadSettings(), None).read(0)
    assert told.value.media_type == kind


def test_an_id_that_pandas_left_empty_is_none() -> None:
    """Questions without an image were lost where other rows of their table had one."""
    assert UserSamples([{"image_id": float("nan"), **ASKED}], ReadSettings(), None).read(0)[0].kinds == []


@pytest.mark.parametrize("field", [{"image_path": "scans/17.png"}, {"path": "/x/1.wav"}, {"video_id": "a.mp4"}])
def test_a_text_that_a_setting_calls_a_document_may_come_from_a_medium(tmp_path: Path, field: dict[str, str]) -> None:
    """The page of a scan and a transcript, packed with `source.sample_type=document`, were lost; a file counts."""
    settings = ReadSettings(sample_type=SampleType.document)
    assert read(lines_of(tmp_path, {**field, "text": "A page."}), settings) == [""]
    (found,) = read(lines_of(tmp_path, {"image_path": "0.png", "text": "A page."}), settings)
    assert found.startswith("media_unread: image_path has '0.png', an image")


def test_no_real_sample_is_left_out(real: Path) -> None:
    """Their records have keys of their own, and no media but those that are read."""
    texts = [text for file in sorted((real / "jsonl").glob("*.jsonl")) for text in file.read_text().splitlines()]
    records = [parse_row(json.loads(text), RowSettings("."), ReadSettings()) for text in texts]
    conversations = json.loads((real / "labels" / "conversations.json").read_text())
    records += [parse_record(value, ReadSettings()) for value in conversations]
    for record in records:
        refuse_unread_media(
            record, record.listed_media or (), ["image"] * bool(record.listed_media), lambda value: None
        )
    assert len(records) == 3637


def test_a_setting_reads_the_key_that_the_line_names(tmp_path: Path) -> None:
    file = lines_of(tmp_path, {"picture": "0.png", **ASKED})
    assert read(file, ReadSettings(columns=Columns(images="picture"))) == ["image"]


def test_a_part_whose_type_or_key_is_misspelt_says_what_was_meant(tmp_path: Path) -> None:
    parts = {"type": "imgae", "image": "0.png"}, {"type": "image", "imgae": "0.png"}
    unknown, unnamed = read(lines_of(tmp_path, *map(of_parts, parts)))
    assert unknown.startswith("bad_message: message 0 has a content part {'type': 'imgae', ")
    assert unknown.endswith("}: did you mean image?")
    assert unnamed == "missing_media: declared as image, but it names no media: did you mean image?"
    assert (similar_key_hint("sytsem"), similar_key_hint("messages[].mood"), similar_key_hint("content[].imgae")) == (
        ": did you mean system?", "", ": did you mean image?"
    )  # fmt: skip


def test_cells_of_a_table_that_nothing_reads(tmp_path: Path) -> None:
    """Bytes of images under another name of a column; bytes that are something else are none of it."""
    image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    cells = pa.array([{"bytes": picture(), "path": None}, {"bytes": b"\x80\x04K\x07.", "path": None}, None], image)
    table = pa.table({"question": ["a"] * 3, "answer": ["b"] * 3, "imgae": cells, "feature": [b"\0" * 40] * 3})
    pq.write_table(table, tmp_path / "a.parquet")
    first, *others = read(tmp_path / "a.parquet")
    assert first.startswith(
        "media_unread: imgae has 'a.parquet::0/imgae/bytes', an image, and nothing reads it: did you"
    )
    assert others == ["", ""]


def test_pictures_in_memory_that_nothing_reads() -> None:
    said = list[Any]()
    for value in (Image.new("RGB", (8, 8)), picture(), {"bytes": picture()}, b"\0" * 99, np.zeros(4)):
        try:
            said.append(UserSamples([{"imgae": value, "messages": TURNS}], ReadSettings(), None).read(0)[0].kinds)
        except Skip as skip:
            said.append(f"{skip.reason.value} {skip.media_type}")
    assert said == ["media_unread image"] * 3 + [[], []]


def test_a_misspelt_key_of_most_samples_is_no_success(
    config: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """540 of 600 records with `imgae`: "the model never sees these media", packed, exit code 0."""
    file = lines_of(tmp_path, *[{"imgae": "0.png", **ASKED}] * 9, {"image": "0.png", **ASKED})
    with pytest.raises(SamplesLost, match=r"^bad data cost 9 of 10 samples, max_skipped=0.01 allows fewer"):
        pack(config(file, source__format=Format.jsonl))
    first = "first media_unread: lines.jsonl:1: imgae has '0.png', an image, and nothing reads it: did you mean image?"
    assert first in capsys.readouterr().out
    file = lines_of(tmp_path, *[ASKED] * 9, {"imgae": "0.png", **ASKED})
    with pytest.raises(SamplesLost, match=r"^every image sample was skipped"):
        pack(config(file, source__format=Format.jsonl, max_skipped=0.5))
    kept = config(file, source__format=Format.jsonl, source__media=UnreadMediaPolicy.ignore)
    assert len(samples(packed(kept))) == 1
    assert "unknown keys (samples, as in): imgae (1, as lines.jsonl:10: did you mean image?); nothing reads them" in (
        capsys.readouterr().out
    )


def test_roles_that_have_changed_places_are_told(config: Make, tmp_path: Path) -> None:
    """Questions were trained on and answers were not, and nothing said so; a greeting first is told with them."""
    asked, answered = {"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}
    lines = [{"messages": turns} for turns in ([asked, answered], [answered, asked], [answered])]
    figures = pack(config(lines_of(tmp_path, *lines), source__format=Format.jsonl))
    assert (figures["samples_packed"], figures["samples_with_assistant_first"]) == (3, 1)


def test_a_picture_under_a_name_of_no_medium_costs_its_sample(tmp_path: Path) -> None:
    """In a tar, as `a0.img`; a part that is something else is none of it."""
    answer, misspelt = chat("What?", "Red."), json.dumps({"imgae": "0.jpg", "messages": TURNS}).encode()
    whole = json.dumps({"imgs": ["e.0.jpg"], "messages": TURNS}).encode()
    parts = {"a.json": answer, "a.img": picture(), "b.json": answer, "b.cls": b"7", "c.json": misspelt}
    parts |= {"d.json": misspelt, "d.0.jpg": picture(), "e.json": whole, "e.0.jpg": picture()}
    tar = write_tar(tmp_path / "s" / "0.tar", parts)
    ways = "; source.media=ignore packs the text alone"
    assert read(tar) == [
        f"media_unread: its part 'img' is an image, and nothing reads it: `name` lists media{ways}",
        "",
        f"media_unread: imgae has '0.jpg', an image, and nothing reads it: did you mean image?{ways[1:]}",
        "image",
        "image",
    ]
