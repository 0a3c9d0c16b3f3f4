"""webdataset reads the same packs as Energon: the same tensors, however they are divided over ranks."""

import json
import os
import pickle
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds
import yaml
from torch.utils.data import DataLoader

from energon_pack.config import Flavor, Rope
from energon_pack.errors import PackError
from energon_pack.on_disk import PackedDataset
from energon_pack.task_encoder import PackedTaskEncoder
from energon_pack.training.batch import PackedBatch
from energon_pack.training.encoded import BadPack
from energon_pack.webdataset import Packs, packs, shard_urls
from support.batches import same
from support.damage import read_shard, write_shard
from support.marks import first_of
from support.packed import demo_config, train
from support.packed import packed as pack_of
from support.peers import write_llava_onevision
from support.running import need_torchvision
from support.samples import chat, npy, picture, write_tar


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    need_torchvision()


@pytest.fixture(scope="module", params=first_of(Flavor))
def packed(
    request: pytest.FixtureRequest, demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """60 of the demo's samples in each flavour, aligned to 8, in shards of two packs."""
    settings: dict[str, Any] = {"output__name": "demo", "output__max_shard_packs": 2, "source__limit": 60}
    settings |= {"model__rope": Rope.qwen2_5_vl, "packing__max_token_len": 1200, "packing__pad_to_multiple_of": 8}
    settings |= {"output__flavor": request.param, "max_skipped": 0.5}
    return pack_of(demo_config(demo, cache, tmp_path_factory.mktemp("packed"), **settings))


@pytest.fixture(scope="module")
def encoded(packed: Path, demo: tuple[Path, Path]) -> Packs:
    return packs(packed, str(demo[1]))


def read(dataset: Path, encoded: Packs, split: str = "train", batch_size: int = 1, **settings: Any) -> Any:
    """A plain loader of a part of a dataset, unshuffled."""
    given = {"shardshuffle": False, "nodesplitter": wds.split_by_node}
    loader = {name: settings.pop(name) for name in ("num_workers", "multiprocessing_context") if name in settings}
    stages = wds.WebDataset(shard_urls(dataset, split), **(given | settings)).compose(encoded)
    return DataLoader(stages, batch_size=batch_size, collate_fn=encoded.collate, **loader)


def by_key(batches: Iterator[PackedBatch] | list[PackedBatch]) -> dict[str, PackedBatch]:
    """Batches of one pack each; no pack comes twice."""
    listed = list(batches)
    found = {batch["__key__"][0]: batch for batch in listed}
    assert len(found) == len(listed)
    return found


def of_energon(dataset: Path, encoder: PackedTaskEncoder, **settings: Any) -> dict[str, PackedBatch]:
    samples = train(dataset, encoder=encoder, **settings)
    return by_key([encoder.batch([sample]) for sample in samples])


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, ranks: int) -> None:
    """As torchrun says it; webdataset asks for it when it reads."""
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(ranks))


@pytest.mark.parametrize("layout", ["neat", "thd"])
def test_batches_are_those_of_the_task_encoder(packed: Path, demo: tuple[Path, Path], layout: str) -> None:
    """One that differed in a tensor would train another model by another loader."""
    expected = of_energon(packed, PackedTaskEncoder(packed, str(demo[1]), layout=layout))
    found = by_key(read(packed, packs(packed, str(demo[1]), layout=layout)))
    assert len(found) > 4
    assert same(found, expected)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_and_workers_share_all_packs(
    packed: Path, demo: tuple[Path, Path], encoded: Packs, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is read by one of them, once, with the tensors that Energon gives."""
    expected = of_energon(packed, PackedTaskEncoder(packed, str(demo[1])))
    found: list[PackedBatch] = []
    for rank in range(2):
        as_rank(monkeypatch, rank, 2)
        shared = list(read(packed, encoded, num_workers=num_workers))
        assert shared
        found += shared
    assert same(by_key(found), expected)


def test_packs_come_in_the_order_of_the_plan(packed: Path, encoded: Packs) -> None:
    """Pack 3 is the second of the second shard."""
    order = [batch["__key__"][0].rpartition("_")[2] for batch in read(packed, encoded)]
    assert order == [f"{number:08d}" for number in range(len(order))]


def test_shuffled_resampled_and_batched_by_webdataset(packed: Path, encoded: Packs) -> None:
    """Its own stages and its own loader take packs as any samples."""
    keys = [batch["__key__"][0] for batch in read(packed, encoded)]
    shards = wds.WebDataset(shard_urls(packed), shardshuffle=9, seed=1, detshuffle=True).shuffle(5, seed=3)
    loader = wds.WebLoader(shards.compose(encoded).batched(2, collation_fn=encoded.collate), batch_size=None)
    pairs = list(loader)
    shuffled = [key for batch in pairs for key in batch["__key__"]]
    assert shuffled != keys
    assert sorted(shuffled) == keys
    assert pairs[0]["input_ids"].shape[0] == 2
    endless = (
        wds.WebDataset(shard_urls(packed), resampled=True, shardshuffle=False)
        .compose(encoded)
        .with_epoch(3 * len(keys))
    )
    drawn = [pack.key for pack in endless]
    assert len(drawn) == 3 * len(keys) > len(set(drawn))


def test_packs_can_be_pickled(packed: Path, encoded: Packs) -> None:
    """Workers that are spawned, as on macOS and under some trainers, get all stages by pickle."""
    again = pickle.loads(pickle.dumps(encoded))
    assert same(by_key(read(packed, again)), by_key(read(packed, encoded)))


# ---------------------------------------------------------------------------------------------------- other tools


@pytest.mark.parametrize("door", [packs, PackedTaskEncoder, PackedDataset, shard_urls])
def test_packs_of_other_tools_are_refused_with_the_command_that_packs_them(door: Any, tmp_path: Path) -> None:
    """Their lengths are those of another measuring, and their texts were never tokenized."""
    folder = write_llava_onevision(tmp_path / "theirs")
    with pytest.raises(FileNotFoundError, match=rf"energon-pack source\.path={folder} \+model=NAME"):
        door(folder)


# --------------------------------------------------------------------------------------------------------- errors


def test_a_pack_that_is_not_as_it_was_packed_ends_the_training(packed: Path, encoded: Packs, tmp_path: Path) -> None:
    """This holds for all handlers of the pipeline: nobody would notice a pack that is left out silently."""
    shard = Path(shard_urls(packed)[0])
    members = read_shard(shard)
    value = json.loads(members[0][1])
    value["_meta"]["token_lens"][0] += 1
    other = tmp_path / "other.tar"
    for data, said in (
        (json.dumps(value).encode(), r"demo_\d+ has \d+ tokens in its pack, and \d+ by _meta.token_lens"),
        (b"{", r"_00000000: JSONDecodeError"),
        (b"{}", r"_00000000: UnknownFormat: .* has no fingerprint of energon_pack"),
    ):
        write_shard(other, [(members[0][0], data), *members[1:]])
        source = wds.WebDataset([str(other)], shardshuffle=False, handler=wds.ignore_and_continue)
        with pytest.raises(BadPack, match=said) as error:
            list(source.compose(encoded))
        assert "\n" not in str(error.value)
    loader = DataLoader(source.compose(encoded), batch_size=None, num_workers=1)
    with pytest.raises(BadPack, match="UnknownFormat"):
        list(loader)


def test_a_damaged_member_is_dropped_where_that_was_asked_for(
    packed: Path, demo: tuple[Path, Path], encoded: Packs, tmp_path: Path
) -> None:
    members = next(members for url in shard_urls(packed) if has_images(members := read_shard(Path(url))))
    bad = next(name for name, _ in members if name.endswith(".jpg"))
    other = write_tar(tmp_path / "other.tar", [(name, b"\xff\xd8" if name == bad else data) for name, data in members])
    source = wds.WebDataset([str(other)], shardshuffle=False)
    with pytest.raises(BadPack, match="on_bad_member=drop"):
        list(source.compose(encoded))
    left = list(source.compose(packs(packed, str(demo[1]), on_bad_member="drop")))
    assert sum(len(pack.dropped) for pack in left) == 1


def test_a_shard_that_was_cut_between_packs_is_named(
    packed: Path, encoded: Packs, demo: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For a tar that is read as a stream its end is where it was cut."""
    shutil.copytree(packed, tmp_path / "cut")
    urls = shard_urls(tmp_path / "cut")
    shard = Path(urls[-1])
    with tarfile.open(shard) as tar:
        second = [member.offset for member in tar if member.name.endswith(".json")][1]
    shard.write_bytes(shard.read_bytes()[:second])
    whole = list(wds.WebDataset(shard_urls(packed), shardshuffle=3).compose(encoded))
    assert "packs" not in caplog.text
    cut = packs(tmp_path / "cut", str(demo[1]))
    assert len(list(wds.WebDataset(urls, shardshuffle=3).compose(cut))) == len(whole) - 1
    assert f"1 packs of {shard.name} came, which has 2" in caplog.text
    with pytest.raises(PackError, match=rf"{shard.name} is cut: it has [\d,]+ bytes of [\d,]+: copy it again"):
        shard_urls(tmp_path / "cut")
    shard.write_bytes(shard.read_bytes()[:700])
    with pytest.raises(PackError, match=rf"{shard.name} can't be read: unexpected end of data.*: copy it again"):
        list(wds.WebDataset(urls, shardshuffle=False).compose(cut))


def has_images(members: list[tuple[str, bytes]]) -> bool:
    """Several, so that a pack is left without one of them."""
    return len([name for name, _ in members if name.endswith(".jpg")]) > 1


def test_more_workers_than_shards_is_said_with_what_to_turn(
    packed: Path, encoded: Packs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A rank without a pack waits for the others for ever."""
    as_rank(monkeypatch, 1, 2)
    one = {"nodesplitter": wds.split_by_node, "shardshuffle": False}
    said = r"rank 1 of 2\. webdataset deals whole shards, so 2 are needed: set num_workers lower"
    with pytest.raises(PackError, match=said):
        list(wds.WebDataset(shard_urls(packed)[:1], **one).compose(encoded))
    assert list(wds.WebDataset(shard_urls(packed)[:1], empty_check=False, **one).compose(encoded)) == []
    assert "rank 1 of 2" in caplog.text
    with pytest.raises(ValueError, match="explicit nodesplitter"):  # webdataset's own
        list(wds.WebDataset(shard_urls(packed), shardshuffle=False).compose(encoded))


def test_a_part_that_is_not_there_is_refused(packed: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    for split, said in (("val", r"split=val: .* no shard in it: output.splits.val"), ("nope", "split=nope: .* train")):
        with pytest.raises(PackError, match=said):
            shard_urls(packed, split)
    with pytest.raises(PackError, match=r"no \.nv-meta/split\.yaml"):
        shard_urls(tmp_path)
    blend = tmp_path / "blend.yaml"
    blend.write_text("splits: {}")
    for refused in (shard_urls, packs):
        with pytest.raises(PackError, match=r"blend.yaml is a file: .* wds.RandomMix"):
            refused(blend)


def test_what_split_yaml_excludes_is_not_read(
    packed: Path, encoded: Packs, demo: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole shard, and one pack of another: Energon leaves them out, too."""
    split = packed / ".nv-meta" / "split.yaml"
    before = split.read_bytes()
    keys = [batch["__key__"][0] for batch in read(packed, encoded)]
    try:
        content = yaml.safe_load(before)
        first, second = (
            [name.partition(".")[0] for name, _ in read_shard(Path(url))] for url in shard_urls(packed)[:2]
        )
        content["exclude"] = ["packed-000000.tar", f"packed-000001.tar/{second[-1]}"]
        split.write_text(yaml.safe_dump(content))
        left = set(of_energon(packed, PackedTaskEncoder(packed, str(demo[1]))))
        assert set(by_key(read(packed, packs(packed, str(demo[1]))))) == left == set(keys) - {*first, second[-1]}
        encoder = packs(packed, str(demo[1]))
        for named in (
            os.path.relpath(shard_urls(packed)[0]),
            f"file:{shard_urls(packed)[0]}",
        ):  # however the shard is named
            shard = wds.WebDataset([named], shardshuffle=False)
            assert [pack.key for pack in shard.compose(encoder)] == [*dict.fromkeys(second)][:-1]
    finally:
        split.write_bytes(before)


def test_times_and_patch_positions_are_read(demo: tuple[Path, Path], cache: Path, tmp_path: Path) -> None:
    """`.npy` parts beside images, whose times go into the text."""
    frames = {f"a.{i}.jpg": picture(40, 30) for i in range(2)} | {f"a.{i}.npy": npy(15 * i) for i in range(2)}
    listed = {"images": ["a.0.jpg", "a.1.jpg"], "patch_positions": ["a.0.npy", "a.1.npy"], "fps": [2]}
    source = {"a.json": chat("<image><image>What?", "That.", **listed), **frames}
    path = write_tar(tmp_path / "source" / "x.tar", source)
    for flavor in Flavor:
        folder = pack_of(demo_config(demo, cache, tmp_path / flavor.value, path, output__flavor=flavor))
        expected = of_energon(folder, PackedTaskEncoder(folder, str(demo[1])))
        assert same(by_key(read(folder, packs(folder, str(demo[1])))), expected)
