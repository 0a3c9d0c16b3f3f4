"""Packs that LLaVA-OneVision-2 or LoongForge wrote are made loadable, measured and trained on as they lie."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset

from energon_pack.adopt import adopt
from energon_pack.config import Flavor
from energon_pack.errors import PackError
from energon_pack.loading import train_arguments
from energon_pack.task_encoder import PackedTaskEncoder
from support.damage import found, lines, read_shard, set_at
from support.packed import Make, pack_into, train
from support.peers import NAMES, Damage, as_under_energon_7, changed, in_json, write_llava_onevision, write_loongforge
from support.running import command_here
from support.samples import chat, picture, video, write_tar


@pytest.fixture
def llava(tmp_path: Path) -> Path:
    return write_llava_onevision(tmp_path / "llava")


def encoded(folder: Path, encoder: PackedTaskEncoder, **settings: Any) -> dict[str, dict[str, int]]:
    """Tokens of each member of each pack, as they are trained."""
    return {
        pack.__key__: {member.sample_id: len(member.tokens) for member in pack.members}
        for pack in train(folder, encoder=encoder, **settings)
    }


@pytest.mark.parametrize("name", NAMES)
def test_loongforges_packs_are_measured_and_trained_on(tmp_path: Path, demo: tuple[Path, Path], name: str) -> None:
    """By the model and the processor that are given; verify measures as training does, member for member."""
    folder = write_loongforge(tmp_path / "theirs", NAMES[name])
    changed("s000_mp4" if name == "without dots" else "s000_0.mp4", video())(folder)
    rename = {"without dots": "s000_mp4", "with dots": "s000_0.mp4"}[name]
    assert any(member.endswith(rename) for member, _ in read_shard(folder / "pretrain-000000.tar"))
    encoder = PackedTaskEncoder(folder, str(demo[1]), model="qwen2_5_vl", tokens_per_second=2)
    lens = encoded(folder, encoder)
    assert [len(members) for members in lens.values()] == [1, 2, 1]
    options = {"lengths": 9, "packs_as": "qwen2_5_vl", "processor": str(demo[1]), "reader": "energon_pack"}
    wrong = found(folder, **options)
    assert (wrong.num_looked_at["lengths"], wrong.num_defects["lengths"]) == (4, 4)
    theirs = {"p-000001__94d1": 240, "p-000001__94d2": 239, "p-0__1": 9, "p-0__2": 7}
    mine = {sample: number for members in lens.values() for sample, number in members.items()}
    for sample, stated in theirs.items():
        assert f"lengths: {sample}: token_lens {stated}, made again {mine[sample]}" in lines(wrong)
    for key, members in lens.items():
        numbers = list(members.values())
        in_json(key, set_at("_meta", "token_lens", to=numbers))(folder)
        in_json(key, set_at("_meta", "total_token_len", to=sum(numbers)))(folder)
    assert lines(found(folder, **options)) == ""


@pytest.mark.parametrize("damage", [lambda folder: None, lambda folder: as_under_energon_7(folder)])
def test_llava_onevisions_packs_are_adopted_measured_and_trained_on(
    llava: Path, demo: tuple[Path, Path], damage: Damage
) -> None:
    """Its own dataset.yaml names a class that no Energon 7 imports; what its finalizing leaves there is not loaded."""
    damage(llava)
    before = {path: path.read_bytes() for path in llava.rglob("*") if path.is_file() and path.name != "split.yaml"}
    done = command_here("energon_pack.adopt", "llava", cwd=llava.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert 'get_train_dataset("llava", dataset_config="typed.yaml", ...)' in done.stdout.replace("\n", " ")
    assert {path: path.read_bytes() for path in before} == before
    assert lines(found(llava, decode=True)) == ""
    processor = str(demo[1])
    encoder = PackedTaskEncoder(llava, processor, model="qwen2_5_vl", layout="thd", pad_to_multiple_of=8)
    lens = encoded(llava, encoder, dataset_config="typed.yaml")
    assert {key: len(members) for key, members in lens.items()} == {"ps_00000000": 3, "ps_00000001": 1}
    measured = found(llava, lengths=9, packs_as="qwen2_5_vl", processor=processor)
    assert (lines(measured), measured.num_looked_at["lengths"]) == ("", 4)
    (pack, *_) = train(llava, encoder=encoder, dataset_config="typed.yaml")
    batch = encoder.batch([pack])
    assert not (batch["cu_seqlens_q_padded"] % 8).any()


@pytest.mark.parametrize("whose", ["llava", "loongforge"])
def test_the_documented_way_trains_on_adopted_packs(
    tmp_path: Path, demo: tuple[Path, Path], whose: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended in `ModuleNotFoundError: aiak_training_llm`; and a pack of 479 tokens trained with more, unsaid."""
    if whose == "llava":
        folder = write_llava_onevision(tmp_path / "theirs")
    else:
        folder = write_loongforge(tmp_path / "theirs", NAMES["with dots"])
        in_json("image_pack_00000000", set_at("_meta", "total_token_len", to=20))(folder)
        in_json("text_pack_00000000", set_at("_meta", "total_token_len", to=1000))(folder)
        changed("s000_0.mp4", video())(folder)
    adopt(folder)
    encoder = PackedTaskEncoder(folder, str(demo[1]), model="qwen2_5_vl", tokens_per_second=2)
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    arguments = train_arguments(folder, encoder, worker)
    assert arguments["dataset_config"] == "typed.yaml"
    with caplog.at_level(logging.WARNING):
        batches = list(get_savable_loader(get_train_dataset(folder, **arguments, repeat=False)))
    lens = {batch["__key__"][0]: batch["num_tokens"] for batch in batches}
    assert len(lens) == (2 if whose == "llava" else 3)
    said = [record.getMessage() for record in caplog.records if "was planned as" in record.getMessage()]
    named = {line.partition(" has ")[0] for line in said}
    assert named == (set() if whose == "llava" else {"image_pack_00000000", "video_pack_00000000"})
    if said:
        image = next(line for line in said if line.startswith("image"))
        assert f"image_pack_00000000 has {lens['image_pack_00000000']} tokens, and was planned as 20 by" in image


def test_adopting_twice_writes_nothing(llava: Path) -> None:
    """A second YAML of the same content, and another command to load the same packs, would be all of it."""
    shutil.rmtree(llava / ".nv-meta")
    assert adopt(llava)[0] == "dataset.yaml"
    assert adopt(llava) == ("dataset.yaml", [])


def test_what_is_not_to_be_adopted(config: Make, llava: Path, tmp_path: Path) -> None:
    folder = pack_into(config, None, Flavor.packed_multi_mix_qa, source__limit=5)
    with pytest.raises(PackError, match="energon_pack packed it, it is loadable as it is"):
        adopt(folder)
    write_tar(tmp_path / "plain" / "x.tar", {"a.json": chat("a", "b"), "a.jpg": picture()})
    with pytest.raises(PackError, match=r"x\.tar: a: .*: no pack that LLaVA-OneVision-2 or LoongForge writes"):
        adopt(tmp_path / "plain")
    with pytest.raises(PackError, match="nowhere: no such folder"):
        adopt(tmp_path / "nowhere")
    with pytest.raises(PackError, match=r"x\.tar: no such folder"):
        adopt(tmp_path / "plain" / "x.tar")
    (llava / ".nv-meta" / "typed.yaml").write_text("mine")
    with pytest.raises(PackError, match=r"typed\.yaml is there, and is another"):
        adopt(llava)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "For packs of another tool give a model and its processor"),
        ({"model": "qwen9"}, "model=qwen9: there are audio_flamingo3, auto, aya_vision, "),
        ({"model": "qwen2_5_vl", "pad_to": "max_token_len"}, "does not say how long its packs are"),
    ],
)
def test_what_an_encoder_has_to_know_of_theirs(
    llava: Path, demo: tuple[Path, Path], arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises((FileNotFoundError, ValueError), match=said):
        PackedTaskEncoder(llava, str(demo[1]), **arguments)


def test_a_model_that_is_no_yaml_is_one_line(llava: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: [1")
    with pytest.raises(ValueError, match=r"mine\.yaml is no YAML: while parsing") as error:
        PackedTaskEncoder(llava, str(demo[1]), model=str(tmp_path / "mine.yaml"))
    assert "\n" not in str(error.value)


def test_packs_of_ours_say_themselves_what_they_are_for(config: Make, demo: tuple[Path, Path]) -> None:
    folder = pack_into(config, None, Flavor.packed_multi_mix_qa, source__limit=5)
    with pytest.raises(ValueError, match="says itself how it was packed: model=qwen2_5_vl is for packs of other tools"):
        PackedTaskEncoder(folder, str(demo[1]), model="qwen2_5_vl")
    with pytest.raises(PackError, match=r"--as qwen2_5_vl: .* says itself what it was packed for"):
        found(folder, lengths=1, packs_as="qwen2_5_vl")
