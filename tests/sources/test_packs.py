"""Packs as a source: every member is a sample, with the messages and the bytes it had, whichever tool packed it.

Otherwise another order, template or length would need the first source again, which may be gone.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import Flavor, MediaIn, PackConfig, TrainOn
from energon_pack.errors import PackError
from energon_pack.plan.settings import SharedBeginnings
from energon_pack.sources.pack_shard import PackShard
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.shard import TarShard
from energon_pack.sources.source_path import find_source
from support.damage import read_shard, write_shard
from support.packed import json_lines, lengths, packed, samples
from support.peers import NAMES, Damage, changed, in_json, write_llava_onevision, write_loongforge, write_theirs
from support.read_source import read
from support.samples import chat, picture, video, write_tar

Make = Callable[..., PackConfig]


# ---------------------------------------------------------------------------------------------- packs of other tools


@pytest.mark.parametrize("name", NAMES)
def test_members_of_loongforges_chats_are_samples(tmp_path: Path, name: str) -> None:
    folder = write_loongforge(tmp_path / "theirs", NAMES[name])
    film = video()
    changed(NAMES[name]("s000_mp4"), film)(folder)
    assert read(folder) == {
        "text_pack_00000000#0": (["s", "t", "u"], []),
        "image_pack_00000000#0": (["<image>\nq", "a"], [picture(10, 20)]),
        "image_pack_00000000#1": (["<image>or<image>", "b", "c", "d"], [picture(30, 20), picture(50, 20, "PNG")]),
        "video_pack_00000000#0": (["<video>v", "w"], [film]),
    }


@pytest.mark.parametrize("without_media", [[[], []], []], ids=["a list each", "as earlier versions write texts"])
def test_members_of_loongforges_prompts_are_samples(tmp_path: Path, without_media: list[list[str]]) -> None:
    """Its `packed_multi_mix_qa` is not ours: a prompt and a caption a member."""
    image = {"texts": {"prompts": ["<image>q", "r"], "captions": ["a", "b"]}, "media_files": [["s000_0.jpg"], []]}
    text = {"texts": {"prompts": ["q", "r"], "captions": ["a", "b"]}, "media_files": without_media}
    members = {
        "image_pack_0.s000_0.jpg": picture(10, 20),
        "image_pack_0.json": json.dumps({**image, "media_type": "image", "_meta": {"sample_ids": ["x", "y"]}}).encode(),
        "text_pack_0.json": json.dumps({**text, "media_type": "text"}).encode(),
    }
    assert read(write_theirs(tmp_path / "theirs", {"pretrain-000000.tar": members}, {})) == {
        "image_pack_0#0": (["<image>q", "a"], [picture(10, 20)]),
        "image_pack_0#1": (["r", "b"], []),
        "text_pack_0#0": (["q", "a"], []),
        "text_pack_0#1": (["r", "b"], []),
    }


def test_members_of_llava_onevisions_captions_are_samples(tmp_path: Path) -> None:
    """Names in its JSON are not those in the tar; placeholders and times of images are put in as for any sample."""
    assert read(write_llava_onevision(tmp_path / "llava")) == {
        "ps_00000000#0": (
            ["<3.0 seconds><image>\n\n<0.0 seconds><image>\n\nq1", "a1", "q2", "a2"],
            [picture(10, 20), picture(30, 20, "PNG")],
        ),
        "ps_00000000#1": (["<image>no placeholder", "a"], [picture(50, 20)]),
        "ps_00000000#2": (["text q", "text a"], []),
        "ps_00000001#0": (["q", "a"], []),
    }


OF_LLAVA: list[tuple[Damage, dict[str, str]]] = [
    (changed("img0_1.jpg", None), {"#0": "missing_media: 'img0_1.jpg' is not in its pack"}),
    (changed("img0_1.jpg", b"x" * 50), {"#0": "unreadable_media"}),
    (changed(".npy", None), {"#0": "missing_media: 'img0_0.npy'"}),
    (in_json("ps_00000000", lambda v: v["captions"][0].pop()), {"#0": "bad_message: 2 prompts for 1 captions"}),
    (in_json("ps_00000000", lambda v: v["prompts"][0].__setitem__(0, "<image>")), {"#0": "placeholder_mismatch"}),
    (in_json("ps_00000000", lambda v: v.pop("prompts")), {"": "bad_message: the pack: no prompts"}),
    (in_json("ps_00000000", lambda v: v.update(sample_count=4)), {"": "bad_message: the pack has 3 members"}),
    (in_json("ps_00000000", lambda v: v["images"].pop()), {"": "bad_message: the lists of the pack"}),
    (changed("ps_00000000.json", b'{"images": '), {"": "invalid_json"}),
    (changed("ps_00000000.json", b"[]"), {"": "not_an_object"}),
    (changed("ps_00000000.json", None), {"": "missing_json"}),
]
OF_LOONGFORGE: list[tuple[Damage, dict[str, str]]] = [
    (changed("s001_jpeg", None), {"#1": "missing_media: 's001_jpeg'"}),
    (in_json("image_pack_00000000", lambda v: v["messages"][0].pop("messages")), {"#0": "no_messages"}),
    (in_json("image_pack_00000000", lambda v: v["_meta"]["sample_ids"].pop()), {"": "bad_message: the pack has 2 mem"}),
    (in_json("image_pack_00000000", lambda v: v["media_files"].pop()), {"": "bad_message: the lists of the pack"}),
]


@pytest.mark.parametrize(
    ("write", "key", "damage", "said"),
    [(write_llava_onevision, "ps_00000000", *case) for case in OF_LLAVA]
    + [(lambda path: write_loongforge(path, NAMES["without dots"]), "image_pack_00000000", *c) for c in OF_LOONGFORGE],
)
def test_a_damage_costs_only_the_members_it_is_in(
    tmp_path: Path, write: Callable[[Path], Path], key: str, damage: Damage, said: dict[str, str]
) -> None:
    """A pack whose members can't be told is one line of the ledger, under the pack's key."""
    folder = write(tmp_path / "theirs")
    whole = read(folder)
    damage(folder)
    left = read(folder)
    lost = {f"{key}{mark}" for mark in said}
    if lost == {key}:
        lost |= {name for name in whole if name.startswith(f"{key}#")}
    assert {name: left[name] for name in left.keys() - lost} == {name: whole[name] for name in whole.keys() - lost}
    for mark, why in said.items():
        assert str(left[f"{key}{mark}"]).startswith(why)


def test_samples_that_look_like_packs_are_samples(tmp_path: Path) -> None:
    """A tar of samples has a list of media, several turns in columns, or a `_meta` of its own, too."""
    turns = {
        "prompts": ["<image>q", "r"],
        "captions": ["a", "b"],
        "images": ["jpg"],
        "name": ["jpg"],
        "sample_count": 1,
    }
    listed = json.loads(chat("<image>", "b", media_files=["jpg"], _meta={"format": 1}))
    for name, value in (("turns", turns), ("listed", listed)):
        members = {"x.json": json.dumps(value).encode(), "x.jpg": picture()}
        assert list(read(write_tar(tmp_path / name / "x.tar", members))) == ["x"]


def test_theirs_are_packed_and_drawn_twice(config: Make, tmp_path: Path) -> None:
    """By the way of any other sample: headers in the tar are compared, copies have keys of their own."""
    write_llava_onevision(tmp_path / "theirs")
    mixture = {"theirs": {"path": str(tmp_path / "theirs"), "epochs": 2}}
    folder = packed(config(None, source__path=mixture, packing__max_token_len=2048))
    pictures = [picture(10, 20), picture(30, 20, "PNG"), picture(50, 20)]
    found = [
        data for parts in samples(folder).values() for name, data in parts.items() if name.endswith(("jpg", "png"))
    ]
    assert sorted(found) == sorted(pictures * 2)
    assert len(lengths(folder)) == 8
    assert json_lines(folder / "skipped.jsonl") == []


# ---------------------------------------------------------------------------------------------- packs of this package


@pytest.fixture(params=["packed_multi_mix_qa", "packed_captioning", "packed_trees"])
def ours(config: Make, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """A source, and its packs in each flavour."""
    members: dict[str, bytes] = {}
    for i in range(6):
        members |= {f"s{i}.json": chat("<image>which of <image>?", f"the {i}th", "so?", "yes", name=["0.jpg", "1.png"])}
        members |= {f"s{i}.0.jpg": picture(56, 56), f"s{i}.1.png": picture(28 * (i // 2 + 1), 56, "PNG")}
        members |= {f"t{i}.json": chat(f"text {i}", "b", id=i, weight=0.5)}
    source = write_tar(tmp_path / "source" / "x.tar", members).parent
    settings: dict[str, Any] = {"packing__max_token_len": 256, "output__max_shard_packs": 2}
    if request.param == "packed_trees":
        settings["packing__share"] = SharedBeginnings.prefix
    else:
        settings["output__flavor"] = Flavor(request.param).value
    return source, packed(config(source, **settings))


def test_members_of_ours_are_the_samples_that_were_packed(ours: tuple[Path, Path]) -> None:
    """Their texts, and media that members share in the pack, too."""
    source, folder = ours
    ids = {}
    for name, parts in samples(folder).items():
        for number, sample in enumerate(json.loads(parts["json"])["_meta"]["sample_ids"]):
            ids[f"{name.rpartition('/')[2]}#{number}"] = sample.rpartition("/")[2]
    found = {ids[key]: sample for key, sample in read(folder).items()}
    assert found == read(source)
    assert len(found) == 12


def test_other_labels_without_a_copy_of_media(config: Make, ours: tuple[Path, Path]) -> None:
    """References lie in the first shards; lengths are as they were, and fewer tokens are trained."""
    _, folder = ours
    run = config(folder, output__media=MediaIn.reference, output__name="again", packing__max_token_len=256)
    run.labels.train_on = TrainOn.last
    again = packed(run)
    before, after = ([row[:2] for row in lengths(dataset).values()] for dataset in (folder, again))
    assert sorted(length for length, _ in before) == sorted(length for length, _ in after)
    assert sum(num for _, num in after) < sum(num for _, num in before)
    names = {name for parts in samples(again).values() for name in parts}
    assert names == {"json", "tokens"}
    places = [place for parts in samples(again).values() for member in json.loads(parts["json"])["media_refs"]
              for place in member]  # fmt: skip
    stored = dict((f"{path.name}", path.read_bytes()) for path in folder.glob("*.tar"))
    media = [stored[shard][offset : offset + size] for shard, offset, size in places]
    assert sorted(set(media)) == sorted({picture(56, 56), *(picture(28 * (i // 2 + 1), 56, "PNG") for i in range(6))})


@pytest.mark.parametrize("number", [1, 2])
def test_packs_of_earlier_formats_are_a_source(ours: tuple[Path, Path], number: int) -> None:
    """They had no tokens; conversations and media are all there, where their source may be gone."""
    _, folder = ours
    members = read(folder)
    manifest = folder / ".nv-meta" / "energon_pack.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": number}))
    for shard in folder.glob("*.tar"):
        parts = {name: data for name, data in read_shard(shard) if not name.endswith(".tokens")}
        for name in [name for name in parts if name.endswith(".json")]:
            pack = json.loads(parts[name])
            meta = {key: value for key, value in pack["_meta"].items() if key != "tokens_crc32"}
            parts[name] = json.dumps({**pack, "_meta": {**meta, "format": number}}).encode()
        write_shard(shard, list(parts.items()))
    assert read(folder) == members
    assert len(members) == 12


def test_a_pack_that_split_yaml_excludes_is_no_source(ours: tuple[Path, Path]) -> None:
    _, folder = ours
    keys = {key.rpartition("#")[0] for key in read(folder)}
    out = sorted(keys)[0]
    shard = next(name for name in samples(folder) if name.endswith(f"/{out}"))
    path = folder / ".nv-meta" / "split.yaml"
    path.write_text(path.read_text().replace("exclude: []", f"exclude: [{shard}]"))
    assert {key.rpartition("#")[0] for key in read(folder)} == keys - {out}


def test_packs_whose_members_can_not_be_told_are_refused(config: Make, ours: tuple[Path, Path], tmp_path: Path) -> None:
    """Each by its name; without this, every pack would be a bad sample, or be read as another form."""
    _, folder = ours
    shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns(".nv-meta"))
    with pytest.raises(PackError, match=r"bare holds packs of energon_pack, and no \.nv-meta/energon_pack"):
        read(tmp_path / "bare")
    manifest = folder / ".nv-meta" / "energon_pack.json"
    value = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**value, "format": 4}))
    with pytest.raises(PackError, match="it has the format 4, this version of energon-pack reads 3"):
        read(folder)
    manifest.write_text(json.dumps(value))
    for shard in folder.glob("*.tar"):
        members = dict(read_shard(shard))
        for name in [name for name in members if name.endswith(".json")]:
            pack = json.loads(members[name])
            members[name] = json.dumps({k: v for k, v in pack.items() if k not in ("messages", "prompts")}).encode()
        write_shard(shard, list(members.items()))
    with pytest.raises(
        PackError, match=r"its packs hold no messages \(output\.messages=false\): pack its source again"
    ):
        read(folder)


def test_packs_that_refer_to_their_source_are_refused(config: Make, tmp_path: Path) -> None:
    source = write_tar(tmp_path / "source" / "x.tar", {"a.json": chat("<image>q", "a"), "a.jpg": picture()}).parent
    folder = packed(config(source, output__media=MediaIn.reference))
    with pytest.raises(PackError, match=r"its media lie in its source \(output\.media=reference\): pack that source"):
        read(folder)


def test_a_folder_of_packs_and_one_of_samples_are_one_source(tmp_path: Path) -> None:
    write_llava_onevision(tmp_path / "both" / "theirs")
    write_tar(tmp_path / "both" / "x.tar", {"x.json": chat("a", "b")})
    shards = find_source(SourceConfig(path=str(tmp_path / "both")), str(tmp_path / "both")).shards
    assert [type(shard) for shard in shards] == [PackShard, PackShard, TarShard]
