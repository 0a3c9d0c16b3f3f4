"""Frames with times: what is written into the text is counted, and travels as LLaVA-OneVision-2's fields do."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_pack.config import Flavor, Format, Overlong, PackConfig
from energon_pack.dataset.packing_template import load_template
from energon_pack.loading.task_encoder import inputs_of
from energon_pack.pack import pack
from energon_pack.samples.conversation import match_placeholders_with_media, options_of, with_times_in_text
from energon_pack.samples.cut import Cut, fields_of_part
from energon_pack.samples.flavors import PACKED_FLAVORS
from energon_pack.samples.frames import image_time_texts, load_patch_positions
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.read_media import with_requested_settings
from energon_pack.samples.record import parse_record
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.templates.sample import Sample, frame_lists_as_videos
from energon_pack.unpack import unpack
from energon_pack.verify import Options, verify
from support.marks import first_of
from support.packed import json_lines, train
from support.samples import npy, picture, write_tar


def test_marks_of_frames() -> None:
    positions = [np.full((4, 3), t) for t in (0, 15, 30)]
    assert image_time_texts([30], None, positions) == ["<0.0 seconds>", "<0.5 seconds>", "<1.0 seconds>"]
    assert image_time_texts(30, [2], positions[1:2]) == ["<0.50 seconds>"]
    assert image_time_texts(2, 1, [None, None]) == ["<0.0 seconds>"] * 2
    assert (
        image_time_texts(None, 1, positions) == image_time_texts([], 1, positions) == image_time_texts(2, 1, []) == []
    )
    for fps, decimals in ((0, 1), ("2", 1), (True, 1), (2, 1.5), (2, -1)):
        if fps:
            with pytest.raises(Skip, match="bad_message"):
                image_time_texts(fps, decimals, positions)


def test_what_is_no_npy_costs_its_sample_alone() -> None:
    """numpy raises six kinds of errors for damaged headers, and takes a zip of arrays for one."""
    zipped = io.BytesIO()
    np.savez(zipped, np.zeros((4, 3), int))
    whole = npy(0)
    header = whole[:128]
    damaged = [header.replace(b"3)", b"3 "), header.replace(b"{", b"'"), header.replace(b"(4, 3)", b"(9" + b"9" * 60)]
    for raw in (zipped.getvalue(), b"", whole[:-1], whole[:60], *damaged):
        with pytest.raises(Skip, match="unreadable_media"):
            load_patch_positions(raw, "f.npy")
    assert load_patch_positions(whole, "f.npy").shape == (4, 3)


def test_times_stand_before_their_images() -> None:
    messages = [{"role": "user", "content": "a <image><image> b"}, {"role": "assistant", "content": "<image>"}]
    marks = ["<0.0 seconds>", "<0.5 seconds>"]
    assert [m["content"] for m in with_times_in_text(messages, marks)] == [
        "a <0.0 seconds><image>\n<0.5 seconds><image>\n b",
        "<image>",
    ]
    assert with_times_in_text(messages, []) == messages
    for number in (1, 3):
        with pytest.raises(Skip, match="placeholder_mismatch"):
            with_times_in_text(messages, marks[:1] * number)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for i in range(4):
        (folder / f"f{i}.jpg").write_bytes(picture(40 + 28 * i, 60))
        (folder / f"f{i}.npy").write_bytes(npy(15 * i))
    (folder / "bad.npy").write_bytes(b"no array")
    frames, names = ([f"f{i}.{end}" for i in range(4)] for end in ("jpg", "npy"))
    two = {"prompts": ["<image><image>what?", "<image>and <image>?"], "captions": ["this " * 9, "that " * 9]}
    video = {"images": [frames], "prompts": ["<video>what?"], "captions": ["this"]}
    lines = [
        {"images": frames, **two, "patch_positions": names, "fps": [30], "timestamp_decimal": 2},
        {**video, "patch_positions": [names], "fps": 30},
        {**video, "fps": 30},
        {**video, "patch_positions": ["", "", "f2.npy", None]},
        {"images": ["f0.jpg"], "prompts": ["<image>?"], "captions": ["yes"]},
        {**video, "patch_positions": ["f0.npy"]},
        {**video, "patch_positions": [*names[:3], "bad.npy"]},
        {**video, "patch_positions": [*names[:3], "gone.npy"]},
        {**video, "fps": "fast"},
    ]
    (folder / "s.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "s.jsonl"


def packed(make: Callable[..., PackConfig], source: Path, flavor: Flavor, **settings: Any) -> tuple[Path, PackConfig]:
    name = settings.pop("name", flavor.value)
    format = Format.wds if source.suffix in (".tar", "") else Format.jsonl
    run = make(source, source__format=format, output__flavor=flavor, output__name=name, **settings)
    run.max_skipped = 0.9
    pack(run)
    return Path(run.output.dir) / name, run


def lens_in_training(folder: Path, processor: Path) -> dict[str, int]:
    """Sample id → tokens in training, each equal to what was measured."""
    template = load_template(folder, str(processor))
    found = {}
    for sample in train(folder):
        for member in inputs_of(sample):
            media = [Media("image", *image.size) for image in member.images]
            found[member.sample_id] = len(template.encode(Sample(member.messages, media)).ids)
            assert found[member.sample_id] == member.token_len
    return found


def test_they_count_exactly_in_both_flavors(
    config: Callable[..., PackConfig], demo: tuple[Path, Path], source: Path
) -> None:
    lens = []
    for flavor in Flavor:
        folder, _ = packed(config, source, flavor)
        lens.append(lens_in_training(folder, demo[1]))
        assert [(e["sample_id"], e["reason"]) for e in json_lines(folder / "skipped.jsonl")] == [
            ("s.jsonl:6", "bad_message"),
            ("s.jsonl:7", "unreadable_media"),
            ("s.jsonl:8", "missing_media"),
            ("s.jsonl:9", "bad_message"),
        ]
    assert lens[0] == lens[1]
    assert len(lens[0]) == 5
    assert lens[0]["s.jsonl:2"] > lens[0]["s.jsonl:4"]  # times are text


def test_they_travel_in_their_own_fields(config: Callable[..., PackConfig], source: Path) -> None:
    folder, _ = packed(config, source, Flavor.packed_captioning)
    with tarfile.open(folder / "packed-000000.tar") as tar:
        data = {m.name.partition(".")[2]: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    value, _ = json.loads(data.pop("json")), data.pop("tokens")
    assert {name for names in PACKED_FLAVORS["packed_captioning"].parts(value) for name in names} == set(data)
    at = {sample_id: i for i, sample_id in enumerate(value["_meta"]["sample_ids"])}
    s = at["s.jsonl:1"]
    assert [data[f"img{s}_{i}.npy"] for i in range(4)] == [npy(15 * i) for i in range(4)]
    assert value["patch_positions"][s] == [f"img{s:03d}_sub{i:03d}.npy" for i in range(4)]
    assert (value["fps"][s], value["timestamp_decimal"][s]) == ([30], 2)
    assert value["prompts"][s] == ["<image><image>what?", "<image>and <image>?"]
    s = at["s.jsonl:4"]
    assert [f"img{s}_{i}.npy" in data for i in range(4)] == [False, False, True, False]
    assert value["fps"][s] is None
    (sample,) = train(folder)
    assert sample.patch_positions[at["s.jsonl:1"]][3].tolist() == [[45, 45, 45]] * 4


@pytest.mark.parametrize("flavor", Flavor)
def test_parts_of_a_cut_sample_have_their_own(
    config: Callable[..., PackConfig], demo: tuple[Path, Path], source: Path, flavor: Flavor
) -> None:
    cut = {"packing__max_token_len": 140, "packing__overlong": Overlong.split_turns, "name": "cut", "source__limit": 1}
    folder, _ = packed(config, source, flavor, **cut)
    assert set(lens_in_training(folder, demo[1])) == {"s.jsonl:1#1of2", "s.jsonl:1#2of2"}


def test_a_changed_npy_is_measured_again(
    config: Callable[..., PackConfig], demo: tuple[Path, Path], source: Path
) -> None:
    folder, _ = packed(config, source, Flavor.packed_captioning)
    before = lens_in_training(folder, demo[1])
    (source.parent / "f3.npy").write_bytes(npy(3_000_000))
    folder, _ = packed(config, source, Flavor.packed_captioning, name="again")
    after = lens_in_training(folder, demo[1])
    assert after["s.jsonl:2"] > before["s.jsonl:2"]


# --------------------------------------------------------------------------------------------------------- in tars


@pytest.mark.parametrize("flavor", first_of(Flavor))
def test_the_tar_of_a_jsonl_is_as_long(
    config: Callable[..., PackConfig], demo: tuple[Path, Path], source: Path, tmp_path: Path, flavor: Flavor
) -> None:
    """`unpack` takes the arrays along, packing finds them in the tar, and verify in both."""
    unpack(packed(config, source, Flavor.packed_captioning, name="to unpack")[0], tmp_path / "tars")
    from_lines, _ = packed(config, source, flavor)
    from_tars, _ = packed(config, tmp_path / "tars", flavor, name="from tars")
    lens = [lens_in_training(folder, demo[1]) for folder in (from_lines, from_tars)]
    assert sorted(lens[0].values()) == sorted(lens[1].values())
    clean = verify(from_tars, Options(decode=True, source=[], processor=str(demo[1]), num_workers=1))
    assert clean.first_defects(99) == []
    assert clean.num_checked["source media"] == 17 + 9 * (flavor is Flavor.packed_captioning)
    cut = {"packing__max_token_len": 140, "packing__overlong": Overlong.split_turns, "source__limit": 1}
    folder, _ = packed(config, tmp_path / "tars", flavor, name="cut", **cut)
    assert set(lens_in_training(folder, demo[1])) == {f"s.tar/1#{i}of2" for i in (1, 2)}
    assert verify(folder, Options(source=[], num_workers=1)).first_defects(99) == []


def test_what_a_tar_may_name(config: Callable[..., PackConfig], demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Parts have the names of `name`. Too few of them skip the sample; none at all is no fault."""
    two = {"texts": [{"role": "user", "content": "<image><image>?"}, {"role": "assistant", "content": "yes"}]}
    records: dict[str, dict[str, Any]] = {
        "named": {"patch_positions": ["0.npy", "1.npy"]},
        "nested": {"patch_positions": [["nested.0.npy", ""]]},
        "empty": {"patch_positions": ["", None]},
        "none": {},
        "few": {"patch_positions": ["0.npy"]},
        "gone": {"patch_positions": ["0.npy", "2.npy"]},
        "spoilt": {"patch_positions": ["", "bad.npy"]},
    }
    members: dict[str, bytes] = {}
    for key, fields in records.items():
        members |= {f"{key}.0.npy": npy(30), f"{key}.0.jpg": picture(), f"{key}.1.jpg": picture(60, 60)}
        members |= {f"{key}.json": json.dumps({**two, "fps": 10, **fields}).encode(), f"{key}.1.npy": npy(45)}
        members |= {f"{key}.bad.npy": b"no array"}
    source = write_tar(tmp_path / "s" / "x.tar", members)
    folder, _ = packed(config, source, Flavor.packed_captioning)
    assert [(e["sample_id"], e["reason"]) for e in json_lines(folder / "skipped.jsonl")] == [
        ("x.tar/few", "bad_message"),
        ("x.tar/gone", "missing_media"),
        ("x.tar/spoilt", "unreadable_media"),
    ]
    assert "1 files for 2 images" in json_lines(folder / "skipped.jsonl")[0]["detail"]
    (sample,) = train(folder)
    texts = {member.sample_id: member.messages[0]["content"] for member in inputs_of(sample)}
    assert texts == {
        "x.tar/named": "<3.0 seconds><image>\n<4.5 seconds><image>\n?",
        "x.tar/nested": "<3.0 seconds><image>\n<0.0 seconds><image>\n?",
        "x.tar/empty": "<0.0 seconds><image>\n<0.0 seconds><image>\n?",
        "x.tar/none": "<0.0 seconds><image>\n<0.0 seconds><image>\n?",
    }
    arrays = {key: sample.patch_positions[i] for i, key in enumerate(sample.sample_ids)}
    assert [None if array is None else array.tolist() for array in arrays["x.tar/nested"]] == [[[30] * 3] * 4, None]
    assert arrays["x.tar/none"] == [None, None]
    lens_in_training(folder, demo[1])
    assert verify(folder, Options(source=[], num_workers=1)).first_defects(99) == []


def settings_of(messages: Any, kinds: list[str], **fields: Any) -> Any:
    placed = match_placeholders_with_media(parse_record({"messages": messages, **fields}, ReadSettings()), kinds)
    return placed.order, [m["content"] for m in placed.messages], placed.record.fields.get("media_settings")


def turns(*contents: Any) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


IMAGE, VIDEO = {"type": "image", "max_pixels": 9}, {"type": "video", "fps": 2}
TEXT = {"type": "text", "text": "?"}


def test_settings_are_in_the_order_of_the_placeholders() -> None:
    """The sample lists its image first, its text names the video first."""
    found = settings_of(turns([VIDEO, TEXT, IMAGE], "That.", "<image>", "Yes."), ["image", "image", "video"])
    assert found == ([2, 0, 1], ["<video>?<image>", "That.", "<image>", "Yes."], [{"fps": 2}, {"max_pixels": 9}, None])


def test_placeholders_that_are_text_have_none() -> None:
    """The assistant spells more than there are media."""
    _, _, said = settings_of(turns([IMAGE, TEXT], "I see <image>."), ["image"])
    assert said == [{"max_pixels": 9}]


def test_what_is_said_twice_and_what_is_not_said() -> None:
    """The part goes first; `null` says nothing, and samples without any have no field."""
    both = settings_of(turns([IMAGE, TEXT], "a"), ["image"], media_settings=[{"max_pixels": 7, "min_pixels": 5}])
    assert both[2] == [{"max_pixels": 9, "min_pixels": 5}]
    assert settings_of(turns([{"type": "image", "max_pixels": None}], "a"), ["image"])[2] is None
    with pytest.raises(Skip, match="media_settings is no list of 1 entries"):
        settings_of(turns([IMAGE, TEXT], "a"), ["image"], media_settings=[])


@pytest.mark.parametrize("number", [10**400, -(10**400), float("inf")])
def test_numbers_that_no_float_holds(number: float) -> None:
    """They ended the run: Python can't compare all of its whole numbers with a float by `isfinite`."""
    with pytest.raises(Skip, match="bad_message: max_pixels is"):
        frames({"max_pixels": number})


def test_a_part_of_a_sample_has_its_own() -> None:
    fields = {"media_settings": [{"fps": 2}, {"max_pixels": 9}, None]}
    cut = Cut("2of2", 2, 4, None, "vii")
    assert fields_of_part(fields, cut, [1, 2]) == {"media_settings": [{"max_pixels": 9}, None]}


def frames(*said: Any, size: tuple[int, int] = (8, 8)) -> list[Media]:
    media = [Media("image", *size, "jpg") for _ in said]
    return with_requested_settings(media, None, options_of({"media_settings": list(said)}))


def test_a_list_of_frames_is_seen_as_a_video() -> None:
    """At the place of its first; a text that spells a placeholder stays text."""
    media = frames(None, {"list_of_frames": 2, "sample_fps": 4, "raw_fps": 24}, None)
    messages = turns("<image> and <image><image>!", "a <video>")
    seen, videos = frame_lists_as_videos(messages, media)
    text = {"type": "text", "text": "a <video>"}
    assert seen[0]["content"] == [
        {"type": "image"}, {"type": "text", "text": " and "}, {"type": "video"}, {"type": "text", "text": "!"},
    ]  # fmt: skip
    assert seen[1]["content"] == [text]
    assert [(m.kind, m.num_frames, m.fps, m.frames) for m in videos] == [
        ("image", 0, 0.0, ()),
        ("video", 2, 24, (0, 1)),
    ]
    assert frame_lists_as_videos(seen, videos) == (seen, videos)
    assert frame_lists_as_videos(messages, media[:1]) == (messages, media[:1])


def test_lists_that_are_none() -> None:
    with pytest.raises(Skip, match="placeholder_mismatch: text stands between"):
        frame_lists_as_videos(turns("<image>, <image>", "a"), frames({"list_of_frames": 2}, None))
    for wrong in ([{"list_of_frames": 3}, None], [{"list_of_frames": 2}, {"max_pixels": 9}], [{"list_of_frames": 1.5}]):
        with pytest.raises(Skip, match="bad_message"):
            frames(*wrong)
    media, options = [Media("image", 8, 8), Media("video", 8, 8)], {"media_settings": [{"list_of_frames": 2}, None]}
    with pytest.raises(Skip, match="bad_message: list_of_frames is 2: there are no 2 images"):
        with_requested_settings(media, None, options_of(options))
