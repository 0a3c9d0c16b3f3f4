"""Every flavour there is, and each new one: what it writes is what it reads, and what its checks expect."""

import json
import sys
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import read_packs
import yaml

import energon_pack.flavors
from energon_pack.config import Flavor as FlavorConfig
from energon_pack.config import Format, Overlong, PackConfig
from energon_pack.dataset.pack_json import parse_pack
from energon_pack.dataset.pack_parts import PackFiles
from energon_pack.dataset.packing_template import load_template
from energon_pack.dataset.sample_class import STACK_FLAVORS
from energon_pack.flavors import PackedCaptioningSample
from energon_pack.loading import cookers
from energon_pack.loading.task_encoder import inputs_of
from energon_pack.pack import pack
from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.flavors import FLAVORS, PACKED_FLAVORS, flavor_of_sample, load_pack
from energon_pack.samples.flavors.base import Conversation, Flavor, PackedFlavor
from energon_pack.samples.flavors.fit import contents_forbidden_by_flavor_rules
from energon_pack.samples.media.medium import Media, MediumSettings
from energon_pack.samples.pack_reader import UnknownFormat
from energon_pack.templates.sample import Sample
from energon_pack.verify import Options, verify
from support.marks import slow
from support.packed import demo_config, json_lines, train
from support.samples import chat, picture, read, write_tar

CONVERSATIONS = [
    Conversation(
        [{"role": "user", "content": "<image>a<image>"}, {"role": "assistant", "content": "b"}],
        None,
        {"id": 7},
        [("image", "png"), ("image", "jpg")],
    ),
    Conversation([{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}], None, {}, []),
]
META = {
    "format": 3,
    "pack_id": "p",
    "sample_ids": ["x.tar/0", "x.tar/1"],
    "token_lens": [5, 3],
    "num_supervised": [1, 1],
    "total_token_len": 8,
    "fingerprint": "f",
    "tokens_crc32": 0,
    "source_parts": [["0.png", "1.jpg"], []],
}


def written(flavor: PackedFlavor) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(json.dumps(flavor.write(CONVERSATIONS, META)))
    return value


@pytest.mark.parametrize("flavor", PACKED_FLAVORS.values(), ids=PACKED_FLAVORS)
def test_what_is_written_is_read(flavor: PackedFlavor) -> None:
    """Otherwise `--source` compares a member with what no pack holds, and training gets another conversation."""
    value = written(flavor)
    members = flavor.members(value)
    assert members == [flavor.member_value(i, conversation) for i, conversation in enumerate(CONVERSATIONS)]
    assert [flavor.messages(member) for member in members] == [c.messages for c in CONVERSATIONS]
    assert flavor.parts(value) == [flavor.part_names(i, c.media) for i, c in enumerate(CONVERSATIONS)]
    assert [[flavor.kind(name) for name in names] for names in flavor.parts(value)] == [["image", "image"], []]
    assert flavor.samples(value)[0] == {"messages": CONVERSATIONS[0].messages, "id": 7}


@pytest.mark.parametrize("flavor", PACKED_FLAVORS.values(), ids=PACKED_FLAVORS)
def test_what_is_written_has_no_defect(flavor: PackedFlavor) -> None:
    """A field that is written and not in the schema would be checked by nobody; one that is not written, missed."""
    value = written(flavor)
    _, defects = parse_pack(PackFiles("p", 0, 0, []), json.dumps(value).encode(), flavor)
    assert defects == []
    assert value.keys() - {"_meta"} <= flavor.schema.keys()
    for name in flavor.schema.keys() & value.keys():
        _, defects = parse_pack(PackFiles("p", 0, 0, []), json.dumps({**value, name: 1.5}).encode(), flavor)
        assert any(defect.startswith(f"{name} is 1.5, not ") for defect in defects)


@pytest.mark.parametrize("flavor", FLAVORS.values(), ids=lambda flavor: type(flavor).__name__)
def test_each_is_loaded_as_a_class_that_knows_it(flavor: Flavor) -> None:
    sample_class = getattr(energon_pack.flavors, flavor.sample_class)
    assert flavor_of_sample(sample_class.__new__(sample_class)) is FLAVORS[flavor.name]


def test_the_config_has_those_that_are_written() -> None:
    assert [flavor.value for flavor in FlavorConfig] == [*PACKED_FLAVORS]


def test_a_sample_of_another_class_is_of_no_flavour() -> None:
    assert flavor_of_sample(object()) is None


@pytest.mark.parametrize("flavor", PACKED_FLAVORS.values(), ids=PACKED_FLAVORS)
def test_a_pack_of_another_tool_is_not_loaded(flavor: PackedFlavor) -> None:
    """A crude dataset reads whatever tars it is given, and training would make up its tokens."""
    value = {name: item for name, item in written(flavor).items() if name != "_meta"}
    with pytest.raises(UnknownFormat, match=r"^p has no fingerprint .* energon-pack source\.path=THEIRS"):
        load_pack({"__key__": "p", "json": json.dumps(value).encode()}, flavor, lambda references, parts: [])


USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
SYSTEM = {"role": "system", "content": "s"}
SEEN, FILM = {**USER, "content": "<image>a"}, {**USER, "content": "<video>a"}
OF_CLIP = MediumSettings(list_of_frames=2)


@pytest.mark.parametrize(
    ("sample", "ours", "captions", "chats", "turns", "llava"),
    [
        (read([USER, ANSWER, USER, ANSWER]), "", "", "", "", ""),
        (read([SEEN, ANSWER], None, [("image", "png")]), "", "", "", "", ""),
        (read([FILM, ANSWER], None, [("video", "mp4")]), "", "a video", "", "", "a video"),
        (read([SYSTEM, USER, ANSWER]), "", "a system turn", "", "a system turn", "a system turn"),
        (read([USER, ANSWER], [{"f": 1}]), "", "tools", "", "tools", "tools"),
        (read([USER, ANSWER, SYSTEM, USER, ANSWER]), "", "a system", "a system turn that is not the", "a sys", "a sys"),
        (read([{**USER, "role": "developer"}, USER, ANSWER]), "", *["a developer turn"] * 4),
        (read([{"role": "document", "content": "t"}]), "", *["a document"] * 4),
        (read([USER, {**ANSWER, "loss": False}]), "", "message 1 has loss", "message 1 has a weight", "mess", "mess"),
        (read([USER, {**ANSWER, "weight": 1}]), "", "message 1 has weight", "", "message 1 has w", "message 1 has w"),
        (read([USER, ANSWER], weight=0.5), "", "", "weight", "weight", "weight"),
        (read([USER, ANSWER], weight=1.0), "", "", "", "", ""),
        (read([USER, ANSWER], label_settings={"train_on": "last"}), "", "", *["label_settings"] * 3),
        (read([SEEN, ANSWER], None, [("image", "png")], media_settings=[{"fps": 9}]), "", "", *["media_set"] * 3),
        (read([SEEN, ANSWER], None, [("image", "png")], media_settings=[None]), "", "", "", "", ""),
        (read([FILM, ANSWER], None, [("video", "mp4")], video_frames=[[0, 1]]), "", "a video", "video_fr", "v", "a vi"),
        (read([SEEN, ANSWER]), "", "", *["its text spells <image>"] * 3),
        (read([SEEN, FILM], None, [("image", "png")]), "", "turns", "its text spells <video>", "turns", "turns"),
        (read([{**SEEN, "content": "<image><video>"}, ANSWER], None, [("image", "png"), ("video", "mp4")]),
         "", "a video", "images and videos", "images and videos", "a video"),
        (read([SEEN, ANSWER], None, [("image", "png")] * 2, [Media("image", 9, 9, settings=OF_CLIP)] * 2),
         "", "a video", "a list of frames", "a list of frames", "a video"),
        (read([FILM, ANSWER], None, [("video", "mkv")]), "", "a video", "a video in mkv", "a video in mkv", "a video"),
        (read([SEEN, ANSWER], None, [("image", "avif")]), "", "", "an image in avif", "an image in avif", ""),
        (read([USER, ANSWER], None, [("audio", "wav")]), "", *["a sound"] * 4),
    ],
)  # fmt: skip
def test_each_flavour_says_what_has_no_place_in_it(
    sample: ReadSample, ours: str, captions: str, chats: str, turns: str, llava: str
) -> None:
    """Of these the real LoongForge lost the pack, or trained something else, each time with exit code 0."""
    answers = contents_forbidden_by_flavor_rules(sample)
    found = [flavor.unfit(answers) or "" for flavor in (*PACKED_FLAVORS.values(), *STACK_FLAVORS)]
    said = [ours, captions, chats, turns, llava]
    assert [what[: len(start)] for what, start in zip(found, said, strict=True)] == said
    assert [bool(what) for what in found] == [bool(start) for start in said]


Make = Callable[..., PackConfig]


def packed(make: Make, source: Path | str | None = None, **settings: Any) -> tuple[dict[str, Any], Path]:
    run = make(source and str(source), output__flavor=FlavorConfig.packed_captioning, **settings)
    figures = pack(run)
    return figures, Path(run.output.dir) / str(run.output.name)


USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("messages", "tools", "kinds", "why"),
    [
        ([USER, ANSWER], None, [], None),
        ([USER, ANSWER, USER, ANSWER], None, ["image", "image"], None),
        ([{"role": "system", "content": "s"}, USER, ANSWER], None, [], "a system turn"),
        ([USER, ANSWER, {"role": "tool", "content": "t"}, ANSWER], None, [], "a tool turn"),
        ([USER, ANSWER], [{"f": 1}], [], "tools"),
        ([USER, ANSWER], None, ["image", "video"], "a video"),
        ([USER, USER, ANSWER], None, [], "turns of user and assistant do not alternate"),
        ([USER, ANSWER, USER], None, [], "turns of user and assistant do not alternate"),
        ([ANSWER, USER], None, [], "turns of user and assistant do not alternate"),
        ([USER, {**ANSWER, "loss": False}], None, [], "message 1 has loss"),
        ([USER, {**ANSWER, "loss": None}], None, [], None),
        ([{**USER, "content": [{"type": "text", "text": "<image>"}]}, ANSWER], None, [], "message 0 spells"),
    ],
)
def test_what_has_no_place_in_it(messages: list[Any], tools: Any, kinds: list[str], why: str | None) -> None:
    parts = [(kind, "mp4" if kind == "video" else "png") for kind in kinds]
    found = PACKED_FLAVORS["packed_captioning"].unfit(contents_forbidden_by_flavor_rules(read(messages, tools, parts)))
    assert found == why or (why and found and found.startswith(why))


def test_its_layout(config: Make, tmp_path: Path) -> None:
    """PNG bytes under .jpg, as LLaVA-OneVision-2's loader asks; the JSON first, as in all packs here."""
    members = {
        "a.0.png": picture(format="PNG"),
        "a.1.jpg": picture(),
        "a.json": chat("<image>a<image>", "1", "b", "2", id=7),
        "b.json": chat("c", "3", system="Be brief."),
        "c.json": chat("d", "4"),
    }
    settings = {"packing__group_by": "none", "max_skipped": 0.0}
    figures, folder = packed(config, write_tar(tmp_path / "s" / "x.tar", members), **settings)
    assert figures["skipped_by_reason"] == {"not_in_flavor": 1}
    (entry,) = json_lines(folder / "skipped.jsonl")
    assert (entry["sample_id"], entry["reason"]) == ("x.tar/b", "not_in_flavor")
    assert "a system turn" in entry["detail"]
    with tarfile.open(folder / "packed-000000.tar") as tar:
        data = {m.name.partition(".")[2]: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    value, _ = json.loads(data.pop("json")), data.pop("tokens")
    order = [sample_id.rpartition("/")[2] for sample_id in value["_meta"]["sample_ids"]]
    a, c = order.index("a"), order.index("c")
    assert data == {f"img{a}_0.jpg": picture(format="PNG"), f"img{a}_1.jpg": picture()}
    assert {name for names in PACKED_FLAVORS["packed_captioning"].parts(value) for name in names} == set(data)
    assert value["images"][a] == [f"img{a:03d}_sub000.jpg", f"img{a:03d}_sub001.jpg"]
    assert (value["prompts"][a], value["captions"][a]) == (["<image>a<image>", "b"], ["1", "2"])
    assert (value["images"][c], value["prompts"][c], value["captions"][c]) == ([], ["d"], ["4"])
    assert value["patch_positions"][a] == ["", ""]
    assert value["source_fields"][a] == {"id": 7}
    assert value["sample_count"] == 2
    assert "fps" not in value


@pytest.fixture(scope="module")
def captions(
    demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """The demo, and the figures of packing it."""
    return packed(partial(demo_config, demo, cache, tmp_path_factory.mktemp("captions")))


@pytest.mark.parametrize("dataset_config", ["dataset.yaml", "crude.yaml"])
def test_it_is_read_by_the_path_of_all_packs(
    captions: tuple[dict[str, Any], Path], demo: tuple[Path, Path], dataset_config: str
) -> None:
    """And training comes to the measured lengths."""
    from megatron.energon import DefaultTaskEncoder

    class Cooked(DefaultTaskEncoder[Any, Any, Any, Any]):
        decoder = None

    Cooked.cookers = cookers()
    figures, folder = captions
    assert figures["samples_packed"] > 250
    meta = yaml.safe_load((folder / ".nv-meta" / "crude.yaml").read_text())
    assert meta["subflavors"] == {"sample_type": "packed_captioning"}
    template = load_template(folder, str(demo[1]))
    num_members = 0
    for sample in train(
        folder, encoder=Cooked() if dataset_config == "crude.yaml" else None, dataset_config=dataset_config
    ):
        assert isinstance(sample, PackedCaptioningSample)
        for member in inputs_of(sample):
            tokens = template.encode(Sample(member.messages, [Media("image", *image.size) for image in member.images]))
            assert len(tokens.ids) == member.token_len
            num_members += 1
    assert num_members == figures["samples_packed"]


def test_parts_of_a_long_conversation_fit_too(config: Make, tmp_path: Path) -> None:
    turns = [text for i in range(6) for text in (f"q{i} " * 20, f"a{i} " * 20)]
    members = {"x.json": chat(*turns), "y.json": chat(*turns, system="s")}
    settings = {"packing__max_token_len": 256, "packing__overlong": Overlong.split_turns}
    figures, _ = packed(config, write_tar(tmp_path / "s" / "x.tar", members), **settings)
    assert (figures["samples_cut"], figures["skipped_by_reason"]) == (1, {"not_in_flavor": 1})


def test_the_recipe_reads_it(
    captions: tuple[dict[str, Any], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures, folder = captions
    monkeypatch.setattr(sys, "argv", ["read_packs.py", str(folder)])
    read_packs.main()
    assert f"{figures['packs']} packs, {figures['samples_packed']} members" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "num_skipped"),
    [
        slow("image_demo", 1),
        ("image_mathv", 0),
        slow("text_toolcall", 312),
        slow("text_alpaca", 144),
    ],
)
def test_real_sets(real: Path, config: Make, name: str, num_skipped: int) -> None:
    """From JSONL and from tars: the same samples of the same lengths, those of transformers' full processor."""
    expected = {row["key"]: row["token_len"] for row in json_lines(real / "truth" / f"{name}.qwen2_5_vl.jsonl")}
    ids = [row["id"] for row in json_lines(real / "jsonl" / f"{name}.jsonl")]
    found = {}
    for format in (Format.wds, Format.jsonl):
        settings: dict[str, Any] = {"source__format": format, "output__name": format.value, "model__factor": 28}
        settings["model__processor"] = str(real / "processors" / "qwen2_5_vl")
        if (real / "data" / name).exists() and format is Format.jsonl:
            settings["source__media_root"] = str(real / "data" / name)
        path = real / format.value / (f"{name}.jsonl" if format is Format.jsonl else name)
        figures, folder = packed(config, path, **settings)
        assert figures["skipped_by_reason"].get("not_in_flavor", 0) == num_skipped
        defects = verify(folder, Options(source=[], num_workers=1)).first_defects(9)
        assert defects == []
        rows = pq.read_table(folder / "pack_plan.parquet", columns=["key", "token_len"]).to_pylist()
        keys = {row["key"]: row["token_len"] for row in rows}
        if format is Format.jsonl:
            keys = {ids[int(key) - 1]: token_len for key, token_len in keys.items()}
        found[format] = {key.rpartition("/")[2]: token_len for key, token_len in keys.items()}
    assert {key: expected[key] for key in found[Format.jsonl]} == found[Format.jsonl]
    assert {key: token_len for key, token_len in found[Format.wds].items() if key in ids} == found[Format.jsonl]
