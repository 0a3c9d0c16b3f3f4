"""Packs of sounds keep the promises of all packs: the same bytes from everywhere, references, verify, a ledger."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import Mask, MediaIn, ModelConfig, Overlong, PackConfig
from energon_pack.loading.task_encoder import PackedTaskEncoder
from support import processors
from support.damage import found, lines
from support.packed import json_lines, packed, samples, train
from support.running import need_torchvision
from support.samples import chat, sound, write_tar

Make = Callable[..., PackConfig]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two shards of questions about sounds, and the folder of a processor that hears; three sounds are damaged."""
    need_torchvision()
    folder = tmp_path_factory.mktemp("sounds")
    members: dict[str, bytes] = {}
    for i in range(12):
        names = {"audios": ["0.wav", "1.wav"]} if i % 4 == 0 else {}
        members[f"s{i:02d}.json"] = chat("<audio>" * max(len(names.get("audios", [])), 1) + "What?", f"{i}.", **names)
        members[f"s{i:02d}.{'0.wav' if names else 'wav'}"] = sound(4000 + 700 * i, 16_000)
        members |= {f"s{i:02d}.1.wav": sound(9001, 22_050)} if names else {}
    bad = {"cut.json": chat("<audio>?", "a"), "cut.wav": sound(900)[:-10]}
    bad |= {"none.json": chat("<audio>?", "b"), "none.wav": sound(0)}
    bad |= {"noise.json": chat("<audio>?", "c"), "noise.wav": b"RIFF" + bytes(40), "t.json": chat("Only text?", "Yes.")}
    write_tar(folder / "source" / "a.tar", members)
    write_tar(folder / "source" / "sub" / "b.tar", bad)
    return folder / "source", processors.qwen2_audio(folder / "processor")


@pytest.fixture
def run(made: tuple[Path, Path], cache: Path, tmp_path: Path) -> Make:
    """Makes a config for one run on the sounds."""

    def config(source: Path | str = made[0], **settings: Any) -> PackConfig:
        result = PackConfig(ModelConfig("auto", "auto", processor=str(made[1])), cache_dir=str(cache), max_skipped=0.5)
        result.model.mask, result.model.add_special_tokens = Mask.positions, None
        result.source.path, result.output.dir, result.output.name = str(source), str(tmp_path), "packed"
        result.packing.max_token_len, result.packing.overlong = 120, Overlong.drop
        result.output.max_shard_packs, result.executor.num_workers, result.measure.verify = 2, 1, 0.0
        for key, value in settings.items():
            node, _, name = key.partition("__")
            setattr(getattr(result, node), name, value)
        return result

    return config


def test_references_are_read_as_copies(run: Make) -> None:
    copied, referred = (packed(run(output__media=media, output__name=media.value)) for media in MediaIn)
    assert (copied / "pack_plan.parquet").read_bytes() == (referred / "pack_plan.parquet").read_bytes()
    heard = [[pack.audios or [] for pack in train(folder, 2)] for folder in (copied, referred)]
    assert heard[0] == heard[1]
    assert sum(len(of) for packs in heard[0] for of in packs) == 15
    assert all(list(parts) == ["json", "tokens"] for parts in samples(referred).values())
    assert lines(found(referred, source=[])) == lines(found(copied, source=[], decode=True)) == ""


def test_a_model_without_images_gets_no_dummy(run: Make, made: tuple[Path, Path]) -> None:
    """Recipes ask for one whatever the model, and Qwen2-Audio has no token for it."""
    dataset = packed(run())
    encoder = PackedTaskEncoder(dataset, str(made[1]), dummy_image=True)
    (pack, *_) = train(dataset)
    batch = encoder.batch([encoder.encode_sample(pack)])
    assert not [name for name in batch if name.startswith("dummy_")]


def test_bad_sounds_are_in_the_ledger(run: Make) -> None:
    entries = {entry["sample_id"]: entry["detail"] for entry in json_lines(packed(run()) / "skipped.jsonl")}
    assert {name.partition("/")[2].rpartition("/")[2] for name in entries} == {"cut", "none", "noise"}
    details = " ".join(entries.values())
    assert all(why in details for why in ("promises 1,800 bytes, 1,790 are there", "a sound of 0 samples", "header"))


def test_the_tokens_of_sounds_are_verified(run: Make) -> None:
    """A plan that let more into a pack than was asked for would run out of memory on the encoder's side."""
    folder = packed(run(packing__max_audio_tokens=40))
    assert lines(found(folder)) == ""
    plain = packed(run(output__name="plain"))
    assert lines(found(plain)) == ""
    most = {path: json.loads((path / ".nv-meta" / "energon_pack.json").read_text()) for path in (folder, plain)}
    assert most[folder]["content"]["packing"]["max_audio_tokens"] == 40
    for path, limit in ((folder, 12), (plain, 12)):
        most[path]["content"]["packing"]["max_audio_tokens"] = limit
        (path / ".nv-meta" / "energon_pack.json").write_text(json.dumps(most[path]))
        assert f"> packing.max_audio_tokens={limit}" in lines(found(path))
