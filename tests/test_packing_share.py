"""packing.share: a pack holds a common beginning of samples once, and each sample trains as if it were alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from energon_pack import PackedTaskEncoder
from energon_pack.config import Flavor, MediaIn
from energon_pack.config.schema import SplitsConfig
from energon_pack.errors import PackError
from energon_pack.loading import make_sample_loader
from energon_pack.pack import pack
from energon_pack.plan.settings import SharedBeginnings
from energon_pack.unpack import unpack
from support.damage import found, lines
from support.packed import Make, copy_templates, files, packed, samples, train
from support.running import run_here
from support.samples import chat, picture, write_tar
from support.stores import Bucket

_QUESTIONS = 4


def write_source(folder: Path) -> Path:
    """Three pictures with four questions each, each a file of its own in every sample; a chat and its beginning."""
    tar: dict[str, bytes] = {}
    for number in range(3 * _QUESTIONS):
        size = 280 + 28 * (number % 3)
        tar[f"q{number:02d}.json"] = chat(f"<image>What is {number}?", f"It is {number}.")
        tar[f"q{number:02d}.jpg"] = picture(size, size)
    long = "one two three four five six seven eight nine ten " * 8
    tar["t1.json"] = chat(long, "yes")
    tar["t2.json"] = chat(long, "yes", "And then?", "no")
    tar["t3.json"] = chat("alone", "yes")
    write_tar(folder / "a.tar", tar)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("share") / "source")


def shared(config: Make, source: Path, share: SharedBeginnings = SharedBeginnings.prefix, **settings: Any) -> Path:
    return packed(config(source, packing__max_token_len=1024, packing__share=share, **settings))


def metas(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(parts["json"])["_meta"] for parts in samples(folder).values()]


def test_a_picture_with_several_questions_is_packed_once(config: Make, source: Path, tmp_path: Path) -> None:
    """Twelve samples with three pictures: three files in the packs, and every sample whole when it is unpacked."""
    folder = shared(config, source)
    assert lines(found(folder, source=[str(source)])) == ""
    parts = [name for pack in samples(folder).values() for name in pack]
    assert sum(name.endswith(".jpg") for name in parts) == 3
    report = json.loads((folder / "report.json").read_text())
    assert (report["shared"]["samples"], report["shared"]["images"]) == (14, 9)  # 12 questions, and two chats
    for meta in metas(folder):
        whole = [t - s for t, s in zip(meta["token_lens"], meta["shared_lens"], strict=True)]
        assert meta["total_token_len"] == sum(whole) <= 1024
        assert meta["format"] == 3
    unpack(folder, tmp_path / "single")
    theirs, ours = samples(source), samples(tmp_path / "single")
    assert {key: {*parts} - {"json"} for key, parts in ours.items()} == {
        key: {*parts} - {"json"} for key, parts in theirs.items()
    }
    assert all(ours[key][part] == theirs[key][part] for key in ours for part in ours[key] if part != "json")


def test_only_beginnings_with_a_medium_are_shared_by_media(config: Make, source: Path) -> None:
    report = json.loads((shared(config, source, SharedBeginnings.media) / "report.json").read_text())
    assert (report["shared"]["samples"], report["shared"]["images"]) == (12, 9)


def test_training_reads_what_samples_share(config: Make, source: Path, demo: tuple[Path, Path]) -> None:
    """A tree's tokens equal the tokens of the samples alone, or encoding ends with an error; pixels come once."""
    folder = shared(config, source)
    encoder = PackedTaskEncoder(folder, str(demo[1]))
    packs = list(train(folder, encoder=encoder))
    assert sum(member.num_images for pack in packs for member in pack.members) == 3
    assert sum(len(pack.media.get("image_grid_thw", ())) for pack in packs) == 3
    assert sorted(member.sample_id for pack in packs for member in pack.members) == sorted(samples(source))


def test_references_name_a_picture_once(config: Make, source: Path, demo: tuple[Path, Path]) -> None:
    folder = shared(config, source, output__media=MediaIn.reference)
    assert lines(found(folder, source=[str(source)])) == ""
    packs = list(train(folder, encoder=PackedTaskEncoder(folder, str(demo[1]))))
    assert sum(member.num_images for pack in packs for member in pack.members) == 3


def test_the_same_bytes_however_many_measure(config: Make, source: Path, cache: Path, tmp_path: Path) -> None:
    """Trees are put in an order by hashes of their content, not by who finds them first."""
    one = files(shared(config, source, output__name="one"))
    other = config(source, packing__max_token_len=1024, packing__share=SharedBeginnings.prefix, output__name="two")
    other.executor.num_workers, other.cache_dir = 2, str(tmp_path / "other")
    copy_templates(cache, tmp_path / "other")
    assert files(packed(other)) == one


@pytest.mark.slow
def test_a_source_and_a_dataset_in_a_bucket_have_the_same_bytes(
    config: Make, source: Path, bucket: Bucket, tmp_path: Path
) -> None:
    """The content of media is read through the store while it is measured."""
    address = bucket.put_folder(source, "data")
    settings = {
        "packing__max_token_len": 1024,
        "packing__share": SharedBeginnings.prefix,
        "cache_dir": str(tmp_path / "cache"),
    }
    here = packed(config(address, output__dir=str(tmp_path / "out"), **settings))
    pack(config(address, output__dir=f"{bucket.address}/out", **settings))
    there = {name: data for name, data in bucket.files("out/packed").items() if not name.startswith("report")}
    assert there == files(here)
    assert lines(found(here, source=[address])) == ""


def test_a_picture_is_in_one_split(config: Make, source: Path) -> None:
    """Split by id, a picture would be in train with one question, and in val with another."""
    run = config(source, packing__max_token_len=1024, packing__share=SharedBeginnings.media)
    run.output.splits = SplitsConfig(val=0.5)
    folder = packed(run)
    assert lines(found(folder, source=[str(source)])) == ""
    pictures = [data for pack in samples(folder).values() for name, data in pack.items() if name.endswith(".jpg")]
    assert len(pictures) == len({*pictures}) == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["packing=thd"], "packing.share=media with packing.layout=thd"),
        ([f"output.flavor={Flavor.packed_captioning.value}"], "packing.share=media with output.flavor=packed_capt"),
        (["labels.prompt_weight=0.1"], "packing.share=media with labels.prompt_weight=0.1: a prompt that is trained"),
        (["model.mask=hybrid"], "packing.share=media with model.mask=hybrid: such a model can't keep samples apart"),
    ],
)
def test_what_can_share_nothing_is_refused(settings: list[str], said: str, tmp_path: Path) -> None:
    code, _, errors = run_here("+model=qwen2_5_vl", "packing.share=media", *settings, cwd=tmp_path)
    assert (code, said in errors, "Traceback" in errors) == (1, True, False)


# ---------------------------------------------------------------------------------------------------- older readers


def changed(folder: Path, **values: Any) -> None:
    """Change values of energon_pack.json."""
    path = folder / ".nv-meta/energon_pack.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"format": 4}, "it has the format 4, this version of energon-pack reads 3: install a later one"),
        ({"format": 1}, "it has the format 1, without the tokens of its packs, which 3 has: pack again; where the"),
        ({"flavor": "packed_woods"}, "flavor 'packed_woods'"),
    ],
)
def test_a_dataset_of_another_version_is_refused(
    config: Make, source: Path, demo: tuple[Path, Path], tmp_path: Path, values: dict[str, Any], said: str
) -> None:
    """Training read such packs without a word: of samples that share, the rows of all but the first were cut."""
    folder = packed(config(source, packing__max_token_len=1024))
    changed(folder, **values)
    with pytest.raises(ValueError, match=said):
        PackedTaskEncoder(folder, str(demo[1]))
    with pytest.raises(PackError, match=said):
        unpack(folder, tmp_path / "out")


def test_a_pack_of_another_version_ends_the_training(config: Make, source: Path) -> None:
    """Energon only logs other errors of a loader, and trains on what is left: packs of formats 1 and 2 have no ids."""
    from megatron.energon.errors import FatalSampleError

    (key, parts), *_ = samples(shared(config, source)).items()
    load = make_sample_loader("packed_trees")
    assert load({"__key__": key, **parts})["shared_lens"][0] == 0
    for number in (1, 2, 4):
        other = {**parts, "json": parts["json"].replace(b'"format":3', b'"format":%d' % number)}
        with pytest.raises(FatalSampleError, match=f"its format is {number}, this version of .* reads 3: pack again"):
            load({"__key__": key, **other})
    with pytest.raises(FatalSampleError, match="_00000000 has no part tokens: pack again"):
        load({"__key__": key, **{name: data for name, data in parts.items() if name != "tokens"}})
