"""Shards go both ways: the peers' stacks read ours by their own conventions, and theirs are read and verified here.

The peers' layouts and readers are built from their descriptions: LLaVA-OneVision-2's `PackedCaptioningSample` with a
sample_loader.py, LoongForge's `packed_chat_mix` and `packed_multi_mix_qa` through a crude dataset and a cooker.
"""

import ast
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from megatron.energon import Cooker, DefaultTaskEncoder, Sample, SampleDecoder, basic_sample_keys, edataclass, stateless

from energon_pack.config import Flavor, GroupBy, OutputConfig, PackConfig
from energon_pack.dataset.energon import sample_loader_py
from energon_pack.dataset.sample_class import STACK_FLAVORS
from energon_pack.errors import PackError
from energon_pack.inspect.dataset import open_dataset
from energon_pack.loading import cookers
from energon_pack.pack import pack
from energon_pack.samples.flavors.base import PackedFlavor
from support.damage import found, lines
from support.packed import Make, pack_into, train, typed
from support.peer_classes import TheirCaptioning, TheirChatMix, TheirMixQA
from support.peers import (
    write_llava_onevision,
)
from support.samples import chat, picture, video, write_source, write_tar


class WithPixels(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Decode as the peers' loaders do: images are PIL before any sample loader or cooker sees them."""

    decoder = SampleDecoder(image_decode="pil")


class Undecoded(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = None


class Ours(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = None
    cookers = cookers()


# ------------------------------------------------------------------------------------------------ ours, read by them


def read_typed(folder: Path, sample_class: str, flavor: str) -> list[Any]:
    """Through our loader: a dataset.yaml beside theirs."""
    (folder / ".nv-meta" / "ours.yaml").write_text(yaml.safe_dump(typed(sample_class, flavor)))
    return list(train(folder, dataset_config="ours.yaml"))


def test_llava_onevision_reads_ours(config: Make, tmp_path: Path) -> None:
    """By its field names and a loader that is in the dataset; times and patch positions in the fields for them."""
    sample_type = {"output__sample_loader_py": True, "output__sample_type": "support.peer_classes:TheirCaptioning"}
    folder = pack_into(config, write_source(tmp_path / "source"), Flavor.packed_captioning, **sample_type)
    ours = {sample.__key__: sample for sample in read_typed(folder, "PackedCaptioningSample", "packed_captioning")}
    theirs = list(train(folder, encoder=WithPixels()))
    assert {sample.__key__ for sample in theirs} == ours.keys()
    assert {type(sample) for sample in theirs} == {TheirCaptioning}
    num_arrays = 0
    for sample in theirs:
        mine = ours[sample.__key__]
        assert (sample.prompts, sample.captions) == (mine.prompts, mine.captions)
        assert (sample.fps, sample.timestamp_decimal) == (mine.fps, mine.timestamp_decimal)
        assert [[i.size for i in of] for of in sample.images] == [[i.size for i in of] for of in mine.images]
        for arrays, my_arrays in zip(
            sample.patch_positions, mine.patch_positions or sample.patch_positions, strict=True
        ):
            for array, my_array in zip(arrays, my_arrays, strict=True):
                assert (array is None) == (my_array is None)
                assert array is None or np.array_equal(array, my_array)
                num_arrays += array is not None
    assert num_arrays == 12
    (folder / ".nv-meta" / "ours.yaml").unlink()
    assert lines(found(folder, source=[])) == ""


def members_as_loongforge_encodes(sample: TheirChatMix) -> list[tuple[Any, list[Any], list[Any]]]:
    """Its messages, images and videos of each member, as LoongForge's encoder takes them from a pack.

    A stand-in after loongforge/data/multimodal/vlm_task_encoder.py: `encode_packed_chat_mix` takes a list of any
    length but 0 for media, and refuses both; `process_sft_qa` asks for grids of a member's media, unless it has None.
    """
    images, videos = sample.packed_images or [], sample.packed_videos or []
    if images and videos:
        raise ValueError(f"cannot mix images and videos in {sample.__key__}")
    found = []
    for index, member in enumerate(sample.packed_messages):
        of = [None if not media else media[index] for media in (images, videos)]
        assert all(media is None or len(media) > 0 for media in of), "no grids of no media"
        found.append((member["messages"], *(media or [] for media in of)))
    return found


@pytest.mark.parametrize("group_by", [GroupBy.media, GroupBy.none])
def test_a_class_with_loongforges_names_reads_ours(config: Make, group_by: GroupBy) -> None:
    """With lists in place of None, its encoder loses every pack, `cannot mix images and videos`."""
    sample_type = {"output__sample_loader_py": True, "output__sample_type": "support.peer_classes:TheirChatMix"}
    folder = pack_into(config, None, Flavor.packed_multi_mix_qa, packing__group_by=group_by, **sample_type)
    num = {"members": 0, "images": 0, "text packs": 0}
    for sample in train(folder, encoder=WithPixels()):
        assert isinstance(sample, TheirChatMix)
        for messages, images, videos in members_as_loongforge_encodes(sample):
            assert sum(message["content"].count("<image>") for message in messages) == len(images)
            assert not videos
            num = {**num, "members": num["members"] + 1, "images": num["images"] + len(images)}
        num["text packs"] += sample.packed_images is None
    assert (num["members"], num["images"]) == (320, 278)
    assert num["text packs"] > 0 or group_by != GroupBy.media
    assert lines(found(folder)) == ""


def members_of_turns(sample: TheirMixQA) -> list[tuple[list[str], list[str], int, int]]:
    """Questions, answers and the numbers of images and videos of each member, as LoongForge's encoder takes them.

    A stand-in after `encode_packed_multi_mix_qa` of vlm_task_encoder.py: media as in `members_as_loongforge_encodes`,
    texts in a list for each member. `test_their_code.py` runs the encoder itself.
    """
    images, videos = sample.images or [], sample.videos or []
    assert not (images and videos), "cannot mix images and videos"
    assert all(isinstance(texts, list) for texts in (*sample.contexts, *sample.answers)), "expects List[str]"
    media = [
        [len(own[index]) if own and own[index] else 0 for own in (images, videos)]
        for index in range(len(sample.contexts))
    ]
    assert all(own is None or own for own in (*images, *videos)), "no grids of no media"
    return [(c, a, i, v) for c, a, (i, v) in zip(sample.contexts, sample.answers, media, strict=True)]


def for_class(config: Make, folder: Path, source: dict[str, bytes], sample_type: type, **settings: Any) -> PackConfig:
    """Return the settings that pack these files, and read the packs as a class of another stack."""
    path = write_tar(folder / "source" / "x.tar", source)
    named = f"{sample_type.__module__}:{sample_type.__name__}"
    return config(path, output__sample_loader_py=True, output__sample_type=named, **settings)


@pytest.mark.parametrize("group_by", [GroupBy.media, GroupBy.none])
def test_a_class_of_questions_and_answers_gets_them(config: Make, tmp_path: Path, group_by: GroupBy) -> None:
    """All turns of a member; with empty lists for media that no member has, the encoder lost every pack, exit 0."""
    talk = {"messages": [{"role": role, "content": role} for role in ("system", "user", "assistant")]}
    source = {
        "a.json": chat("<image>What?", "That."),
        "a.0.png": picture(56, 56, "PNG"),
        "b.json": chat("Who?", "You."),
        "c.json": chat("1?", "1.", "2?", "2."),
        "d.json": json.dumps(talk).encode(),
        "e.json": chat("What is <image>?", "A placeholder."),
    }
    run = for_class(config, tmp_path, source, TheirMixQA, packing__group_by=group_by)
    run.output.check()
    figures = pack(run)
    folder = Path(run.output.dir) / "packed"
    samples = list(train(folder, encoder=WithPixels()))
    assert {type(sample) for sample in samples} == {TheirMixQA}
    members = sorted(member for sample in samples for member in members_of_turns(sample))
    text, talked = (["Who?"], ["You."], 0, 0), (["1?", "2?"], ["1.", "2."], 0, 0)
    assert members == [talked, (["<image>What?"], ["That."], 1, 0), text]
    assert figures["skipped_by_reason"] == {"not_in_flavor": 2}
    details = [json.loads(line)["detail"] for line in (folder / "skipped.jsonl").read_text().splitlines()]
    whose = "the class of output.sample_type has no place for it: "
    assert details == [f"{whose}a system turn", f"{whose}its text spells <image>"]
    assert lines(found(folder)) == ""


def test_packs_of_two_kinds_are_for_no_class_of_loongforges(config: Make, tmp_path: Path) -> None:
    """Its encoder raises `cannot mix images and videos`, Energon's handler logs it, and the training goes on."""
    source = {
        "a.json": chat("<image>What?", "That."),
        "a.0.png": picture(56, 56, "PNG"),
        "b.json": chat("<video>What?", "That."),
        "b.0.mp4": video(),
    }
    grouping = {"packing__max_token_len": 4096, "packing__group_by": GroupBy.none}
    run = for_class(config, tmp_path, source, TheirMixQA, **grouping)
    with pytest.raises(PackError, match=r"^1 pack of 1 would hold images and videos, .*: packing.group_by=media$"):
        pack(run)


@edataclass
class WithoutDefaults(Sample):
    packed_messages: list[Any]
    packed_images: list[Any]
    packed_videos: list[Any]
    media_type: str


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"sample_type": "nowhere.data:C"},
            r"nowhere.data:C can't be asked .*ModuleNotFoundError.*output.sample_fields=\[",
        ),
        ({"sample_type": "json:dumps"}, "json:dumps is no dataclass"),
        (
            {"sample_type": "support.peer_classes:TheirCaptioning"},
            "it takes images .needed., prompts .needed., .*; packs of output.flavor=packed_multi_mix_qa give"
            " packed_messages, packed_images, packed_videos, or images, videos, contexts, answers;"
            " output.flavor=packed_captioning gives what it takes",
        ),
        (
            {"sample_type": "energon_pack.flavors:MultiMixQASample"},
            "it takes messages .needed., .*; a class with one list of messages is one conversation",
        ),
        ({"sample_type": f"{__name__}:WithoutDefaults"}, "media_type .needed.; packs of"),
        ({"sample_type": "a:B", "sample_fields": ["messages"]}, "output.sample_fields: it takes messages; packs of"),
        ({"sample_loader_py": False, "sample_fields": ["messages"]}, "are of output.sample_type=module:Class"),
    ],
)
def test_a_class_that_takes_other_fields_is_refused(settings: dict[str, Any], said: str) -> None:
    """Before any work: Energon would lose each of its packs with a warning."""
    with pytest.raises(PackError, match=said):
        OutputConfig(**{"sample_loader_py": True, **settings}).check()


def test_fields_that_are_said_are_believed() -> None:
    """A stack that is not installed where packs are made."""
    output = OutputConfig(
        sample_loader_py=True, sample_type="a:B", sample_fields=["images", "videos", "contexts", "answers"]
    )
    output.check()
    assert output.find_flavor_for_sample_type().gives == ("images", "videos", "contexts", "answers")
    assert (
        replace(output, sample_fields=[*TheirChatMix.__annotations__]).find_flavor_for_sample_type() is STACK_FLAVORS[0]
    )


@pytest.mark.parametrize("form", STACK_FLAVORS, ids=lambda form: type(form).__name__)
def test_a_loader_gives_what_its_form_says_and_stands_alone(form: PackedFlavor) -> None:
    """The class is asked for these names; the loader imports no energon_pack, and unpickles nothing."""
    source, scope = sample_loader_py(form), dict[str, Any]()
    exec(source, scope)
    turns = {"messages": [{"content": "q"}, {"content": "a"}]}
    value = {"messages": [turns], "media_files": [[]], "images": [], "prompts": [], "captions": []}
    assert scope[form.loader]({"json": value}).keys() == {*form.gives}
    tree = ast.parse(source)
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= {"io", "json", "typing", "numpy"}
    assert b"allow_pickle=True" not in source


def test_videos_go_to_loongforge_too(config: Make, tmp_path: Path) -> None:
    """A pack of videos has None for its images, and a member of text among them None for its videos."""
    source = {"a.json": chat("<video>What?", "That."), "a.0.mp4": video(), "b.json": chat("Who?", "You.")}
    grouping = {"packing__max_token_len": 4096, "packing__group_by": GroupBy.none}
    run = for_class(config, tmp_path, source, TheirChatMix, **grouping)
    pack(run)
    (sample,) = train(Path(run.output.dir) / "packed", encoder=Undecoded())
    assert sample.packed_images is None
    assert sorted(len(videos) for _, _, videos in members_as_loongforge_encodes(sample)) == [0, 1]


def their_cooker(sample: dict[str, Any]) -> TheirChatMix:
    """Do what LoongForge's cooker of packed conversations does: look each name up, and leave out missing ones."""
    value = sample["json"]
    if value["media_type"] not in ("text", "image", "video"):
        raise ValueError(f"unsupported media type {value['media_type']}")
    media = [[sample[name] for name in names if sample.get(name) is not None] for names in value["media_files"]]
    return TheirChatMix(
        **basic_sample_keys(sample),
        packed_messages=[
            {"messages": member["messages"], **({"tools": member["tools"]} if "tools" in member else {})}
            for member in value["messages"]
        ],
        packed_images=media if value["media_type"] == "image" else None,
        packed_videos=media if value["media_type"] == "video" else None,
    )


class TheirEncoder(WithPixels):
    cookers = [Cooker(stateless(their_cooker), has_subflavors={"sample_type": "packed_chat_mix"})]  # noqa: RUF012


def test_loongforge_reads_ours_through_crude_yaml(config: Make) -> None:
    """Names with dots are found, and decoded; no member loses an image."""
    folder = pack_into(config, None, Flavor.packed_multi_mix_qa)
    num_images = num_members = 0
    for sample in train(folder, encoder=TheirEncoder(), dataset_config="crude.yaml"):
        images = sample.packed_images or [[] for _ in sample.packed_messages]
        for member, of in zip(sample.packed_messages, images, strict=True):
            assert sum(message["content"].count("<image>") for message in member["messages"]) == len(of)
            assert all(image.size for image in of)
            num_members, num_images = num_members + 1, num_images + len(of)
    assert (num_members, num_images) == (320, 278)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda meta: (meta / "sample_loader.py").unlink(), "sample_loader.py can't be read"),
        (
            lambda meta: (meta / "sample_loader.py").write_text("import os"),
            "sample_loader.py is not what packing writes",
        ),
        (lambda meta: change_yaml(meta / "dataset.yaml", sample_loader="x.py:f"), "dataset.yaml: sample_loader is not"),
    ],
)
def test_a_loader_that_is_not_ours_is_found(
    config: Make, tmp_path: Path, damage: Callable[[Path], Any], words: str
) -> None:
    """Energon runs the loader file that lies in the dataset."""
    source = tmp_path / "s.jsonl"
    source.write_text(json.dumps({"prompts": ["a"], "captions": ["b"]}))
    sample_type = {"output__sample_loader_py": True, "output__sample_type": "support.peer_classes:TheirCaptioning"}
    folder = pack_into(config, source, Flavor.packed_captioning, **sample_type)
    damage(folder / ".nv-meta")
    assert words in lines(found(folder))


def change_yaml(path: Path, **values: Any) -> None:
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **values}))


def test_packs_of_other_tools_are_refused_where_packs_of_ours_are_looked_at(tmp_path: Path) -> None:
    """By name, with the command that reads them."""
    folder = write_llava_onevision(tmp_path / "llava")
    with pytest.raises(PackError, match=rf"Packs of another tool are a source: .*energon-pack try {folder} \+model="):
        found(folder)
    with pytest.raises(
        PackError, match=rf"--source {folder} \+model=MODEL \(packs of another tool are a source, too\)"
    ):
        open_dataset(folder)


def test_our_dataset_without_its_manifest_is_not_taken_for_theirs(config: Make, tmp_path: Path) -> None:
    source = tmp_path / "s.jsonl"
    source.write_text(json.dumps({"prompts": ["a"], "captions": ["b"]}))
    folder = pack_into(config, source, Flavor.packed_captioning)
    with tarfile.open(folder / "packed-000000.tar") as tar:
        assert [name.partition(".")[2] for name in tar.getnames()] == ["json", "tokens"]
    (folder / ".nv-meta" / "energon_pack.json").unlink()
    with pytest.raises(PackError, match=r"is no packed dataset: it has no \.nv-meta/energon_pack\.json"):
        found(folder)
