"""Mixtures of other tools: their files are read as they lie, and take the samples that their own loaders take."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from energon_pack.config import ModelConfig, SourceConfig
from energon_pack.dataset.files import PlanFile
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.errors import PackError
from energon_pack.sources.find import Source
from energon_pack.sources.sample_ratio import TakenRows, drawn_rows
from energon_pack.sources.source_path import find_source
from energon_pack.stages.measuring import refuse_other_max_tiles
from energon_pack.templates.families.rules import ProcessorSettings
from energon_pack.templates.families.tiles import InternVL
from support.packed import Make, json_lines, packed, prepare
from support.running import command_here
from support.samples import chat, picture, write_tar
from support.stores import Bucket
from support.their_mixtures import INTERNVL, LLAVA_NEXT, file_of, rows_of_internvl, rows_of_llava


def write_rows(path: Path, num: int, **fields: str) -> Path:
    """Write a JSONL, or as .json a list, of `num` conversations with the ids 0, 1 …."""
    asked = "<image>What?" if "image" in fields else "What?"
    turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": "It is."}]
    rows = [{"id": number, **fields, "conversations": turns} for number in range(num)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows) if path.suffix == ".json" else "".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_meta(path: Path, **entries: dict[str, Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entries))
    return str(path)


def write_yaml(path: Path, value: Any) -> str:
    path.write_text(yaml.safe_dump(value, sort_keys=False))
    return str(path)


def find(path: str, **settings: Any) -> Source:
    return find_source(SourceConfig(**settings), path)


def keys_of(source: Source) -> dict[str, list[int]]:
    """Return by file the rows that are drawn of it, as numbers from 0."""
    found = {}
    for shard in source.shards:
        keys = [int(key) - 1 for key in shard.index()["key"].to_pylist()]
        rows = shard.drawn(len(keys), seed=0)
        found[shard.name] = keys if rows is None else [keys[row] for row in rows]
    return found


def packed_ids(folder: Path) -> Counter[str]:
    columns = PlanFile(DatasetFolder(folder)).columns("shard", "key")
    return Counter(f"{shard}:{key}" for shards, keys in columns for shard, key in zip(shards, keys, strict=True))


# ------------------------------------------------------------------------------------------------------------ InternVL


def test_a_meta_of_internvl_is_packed_as_it_lies(
    config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its paths are relative to the folder in which training starts. 2 are epochs, 0.35 of ten rows the first three."""
    write_rows(tmp_path / "repo/data/ann/coco.jsonl", 4, image="a.jpg")
    write_rows(tmp_path / "repo/data/ann/text.jsonl", 10)
    (tmp_path / "repo/data/coco").mkdir()
    (tmp_path / "repo/data/coco/a.jpg").write_bytes(picture(60, 40))
    entry = {"data_augment": False, "length": 566747}
    meta = write_meta(
        tmp_path / "repo/shell/data/meta.json",
        coco={"root": "data/coco/", "annotation": "data/ann/coco.jsonl", "repeat_time": 2, **entry},
        **{"text/en": {"root": "data/gone/", "annotation": "data/ann/text.jsonl", "repeat_time": 0.35, **entry}},
        chat={"root": "", "annotation": "data/ann/coco.jsonl", "repeat_time": 0.5, "data_augment": True, "seed": 1},
    )
    monkeypatch.chdir(tmp_path / "repo")
    (tmp_path / "repo/a.jpg").write_bytes(picture(60, 40))
    folder = packed(config(meta, source__format="auto", packing__group_by="none"))
    assert sorted(packed_ids(folder)) == [
        "chat/coco.jsonl:1", "chat/coco.jsonl:2", *(f"coco/coco.jsonl:{row}{copy}" for row in range(1, 5)
        for copy in ("", "@2")), "text-en/text.jsonl:1", "text-en/text.jsonl:2", "text-en/text.jsonl:3",
    ]  # fmt: skip
    report = json.loads((folder / "report.json").read_text())
    assert (report["samples_excluded"], json_lines(folder / "skipped.jsonl")) == (7 + 2, [])
    out = capfd.readouterr().out
    assert f"{meta}: data_augment is not done, media are packed as they are: chat\n" in out
    assert f"{meta}: keys that nothing reads: seed\n" in out
    gone = f"no {tmp_path}/repo/data/gone, and no {tmp_path}/repo/shell/data/data/gone"
    assert f"{meta}: text/en: root: {gone}" in out
    verified = command_here("energon_pack.verify", str(folder), "--source", "--num-workers", "1", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_one_entry_has_no_prefix(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", 3)
    meta = write_meta(tmp_path / "meta.json", coco={"root": "", "annotation": "a.jsonl", "repeat_time": 1})
    assert keys_of(find(meta)) == {"a.jsonl": [0, 1, 2]}
    assert keys_of(find([meta])) == {"a.jsonl": [0, 1, 2]}  # type: ignore[arg-type]


def test_an_entry_may_be_whatever_a_path_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path / "folder/a.jsonl", 2)
    write_rows(tmp_path / "folder/b.jsonl", 2)
    meta = write_meta(tmp_path / "meta.json", f={"root": "", "annotation": "folder"}, g={"annotation": "folder/b.*"})
    assert list(keys_of(find(meta))) == ["f/a.jsonl", "f/b.jsonl", "g/b.jsonl"]
    assert "b.jsonl is in f and in g: its samples are packed for both" in capsys.readouterr().out
    assert list(keys_of(find(meta, datasets=["f"]))) == ["a.jsonl", "b.jsonl"]
    write_meta(tmp_path / "meta.json", f={"root": "", "annotation": "folder", "repeat_time": 0.5})
    with pytest.raises(PackError, match=r"folder has several files: rows are taken of one"):
        find(meta)


def test_a_mixture_that_names_a_mixture_is_refused(tmp_path: Path) -> None:
    """One that names itself was read until Python had no stack left."""
    meta = write_meta(tmp_path / "meta.json", a={"annotation": "meta.json"})
    ours = tmp_path / "ours.yaml"
    ours.write_text("mixture: [{path: ours.yaml}]")
    for path in (meta, str(ours)):
        with pytest.raises(PackError, match="is a mixture itself: write its entries here"):
            find(path)


def test_rows_that_two_entries_may_share_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first ten rows were packed twice, without a word."""
    write_rows(tmp_path / "a.jsonl", 20)
    first = {"json_path": "a.jsonl", "sampling_strategy": "first:10"}
    path = tmp_path / "data.yaml"
    path.write_text(json.dumps({"datasets": [first, {"json_path": "a.jsonl"}]}))
    assert {name: len(keys) for name, keys in keys_of(find(str(path))).items()} == {"a/a.jsonl": 10, "a-2/a.jsonl": 20}
    assert "a.jsonl is in a and in a-2: a row that both take is packed for both" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"annotation": "gone/a.jsonl"}, r"meta/gone/a\.jsonl, and no .*/gone/a\.jsonl \(.*media_map=\[\"gone=FOLDER"),
        ({}, "annotation: no path"),
        ({"annotation": ["a.jsonl"]}, r"annotation: no path: \['a\.jsonl'\]"),
        ({"annotation": "a.jsonl", "repeat_time": "often"}, "repeat_time is 'often', not a number from 0"),
        ({"annotation": "a.jsonl", "repeat_time": -1}, "repeat_time is -1, not a number"),
        ({"annotation": "a.jsonl", "max_dynamic_patch": "6"}, "max_dynamic_patch is '6', not a number of tiles"),
    ],
)
def test_nonsense_in_a_meta_is_one_line(tmp_path: Path, entry: dict[str, Any], said: str) -> None:
    write_rows(tmp_path / "meta/a.jsonl", 1)
    with pytest.raises(PackError, match=said):
        find(write_meta(tmp_path / "meta/meta.json", ok={"annotation": "a.jsonl"}, bad=entry))


def test_a_meta_that_is_no_json_says_where(tmp_path: Path) -> None:
    """As InternVL's debug_mpo.json is shipped: "one JSON object over several lines" was no help."""
    path = tmp_path / "meta.json"
    path.write_text('{\n "a": {"root": "", "annotation": "a.jsonl", "repeat_time": 1},\n}')
    with pytest.raises(PackError, match=r"meta\.json: a meta of InternVL, and no JSON: .*line [23]"):
        find(str(path))


def test_a_meta_may_have_a_byte_order_mark(tmp_path: Path) -> None:
    """As Windows writes it: it was called an object of samples."""
    write_rows(tmp_path / "a.jsonl", 1)
    meta = Path(write_meta(tmp_path / "meta.json", a={"annotation": "a.jsonl"}))
    meta.write_text(meta.read_text(), encoding="utf-8-sig")
    assert [shard.name for shard in find(str(meta)).shards] == ["a.jsonl"]


def test_places_of_another_machine_are_mapped(tmp_path: Path) -> None:
    write_rows(tmp_path / "here/a.jsonl", 1)
    (tmp_path / "here/coco").mkdir()
    meta = write_meta(tmp_path / "meta.json", a={"annotation": "/mnt/old/a.jsonl", "root": "/mnt/old/coco"})
    (shard,) = find(meta, media_map=[f"/mnt/old={tmp_path}/here"]).shards
    assert (shard.path, shard.media_root) == (f"{tmp_path}/here/a.jsonl", f"{tmp_path}/here/coco")


def test_an_entry_of_ours_has_a_media_map_of_its_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_rows(tmp_path / f"{name}.jsonl", 1)
    moved = {"path": "a.jsonl", "media_map": ["/mnt/old=/data"]}
    first, second = find(write_yaml(tmp_path / "mix.yaml", {"mixture": [moved, {"path": "b.jsonl"}]})).shards
    assert (first.path_of("/mnt/old/1.jpg"), second.path_of("/mnt/old/1.jpg")) == ("/data/1.jpg", "/mnt/old/1.jpg")


def test_a_bucket_of_the_metas_own_choosing_is_not_read(tmp_path: Path) -> None:
    """A request would be signed with the keys of whoever packs a meta file that somebody else wrote."""
    write_rows(tmp_path / "a.jsonl", 1)
    for entry in ({"annotation": "s3://other/a.jsonl"}, {"annotation": "a.jsonl", "root": "s3://other/images"}):
        with pytest.raises(PackError, match=r"s3://other/.* source\.remote_media=true reads it with your keys"):
            find(write_meta(tmp_path / "meta.json", one=entry))


def test_a_meta_on_a_store_names_objects_beside_it(bucket: Bucket) -> None:
    entry = {"root": "images", "annotation": "ann/a.jsonl", "repeat_time": 0.5}
    bucket.put("set/meta.json", json.dumps({"one": entry}).encode())
    bucket.put("set/ann/a.jsonl", chat("?", "b") + b"\n" + chat("?", "c") + b"\n")
    (shard,) = find(f"{bucket.address}/set/meta.json").shards
    assert (shard.path, shard.media_root) == (f"{bucket.address}/set/ann/a.jsonl", f"{bucket.address}/set/images")


@pytest.mark.slow
@pytest.mark.parametrize("tiles", [12, 6])
def test_tiles_that_are_not_the_models_are_refused(config: Make, tmp_path: Path, real: Path, tiles: int) -> None:
    """Images would be cut into others than its training does; only the processor knows how many it makes."""
    write_rows(tmp_path / "a.jsonl", 2)
    meta = write_meta(tmp_path / "meta.json", one={"annotation": "a.jsonl", "max_dynamic_patch": tiles})
    processor = str(real / "processors/internvl3_hf")
    run = config(meta, source__format="auto", model=ModelConfig("internvl3", "internvl", "", processor))
    if tiles == 12:
        assert len(packed_ids(packed(run))) == 2
        return
    with pytest.raises(PackError, match=r"one has max_dynamic_patch=6, and the model takes 12 tiles: \+model.*=6 sets"):
        packed(run)


def test_both_numbers_of_tiles_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path / "a.jsonl", 1)
    meta = write_meta(tmp_path / "meta.json", one={"annotation": "a.jsonl", "max_dynamic_patch": 6})
    mixture = find(meta).mixture
    assert mixture is not None
    image = {"size": {"height": 448, "width": 448}}
    for_tiles = [InternVL(ProcessorSettings(image={**image, "max_patches": most})) for most in (6, 12)]
    refuse_other_max_tiles(mixture, for_tiles[0])
    with pytest.raises(PackError, match="one has max_dynamic_patch=6, and the model takes 12 tiles"):
        refuse_other_max_tiles(mixture, for_tiles[1])
    refuse_other_max_tiles(mixture, None)
    assert capsys.readouterr().out == "max_dynamic_patch of one is not read: the model has no such tiles\n"


# ---------------------------------------------------------------------------------------------------- LLaVA-OneVision


@pytest.mark.parametrize(
    ("strategy", "rows"),
    [
        ("first:2", [0, 1]),
        ("first:30%", [0, 1, 2]),  # of 7: 2.1, rounded up
        ("first:12.5%", [0]),
        ("first:100", [0, 1, 2, 3, 4, 5, 6]),
        ("first:0", []),
        ("end:2", [5, 6]),
        ("end:1%", [6]),
        ("end: 100%", [0, 1, 2, 3, 4, 5, 6]),
        ("all", [0, 1, 2, 3, 4, 5, 6]),
        ("random:3", 3),
        ("random:50%", 4),
        ("random:0", 0),
    ],
)
def test_a_sampling_strategy_takes_what_it_says(tmp_path: Path, strategy: str, rows: list[int] | int) -> None:
    write_rows(tmp_path / "a.json", 7)
    listed = [{"json_path": "a.json", "sampling_strategy": strategy}]
    taken = keys_of(find(write_yaml(tmp_path / "mix.yaml", {"datasets": listed})))["a.json"]
    assert taken == rows if isinstance(rows, list) else (len(taken), taken) == (rows, sorted({*taken}))


@pytest.mark.parametrize("strategy", ["end:0", "end:0%", "first", "random", "first:-1", "middle:3", "first:1:2", 5])
def test_an_unknown_strategy_is_named(tmp_path: Path, strategy: Any) -> None:
    """LLaVA's loader takes all samples then: not what anybody means by `end:0`."""
    write_rows(tmp_path / "a.json", 7)
    listed = [{"json_path": "a.json", "sampling_strategy": strategy}]
    with pytest.raises(PackError, match=rf": a: sampling_strategy={strategy}: all, first:N, end:N and random:N"):
        find(write_yaml(tmp_path / "mix.yaml", {"datasets": listed}))


def test_files_of_equal_names_and_one_file_twice_are_told_apart(config: Make, tmp_path: Path) -> None:
    for place in ("one/x", "two/x"):
        write_rows(tmp_path / place / "train.json", 5)
    listed = [("one/x/train.json", "first:20%"), ("one/x/train.json", "end:2"), ("two/x/train.json", "first:0%")]
    value = {"datasets": [{"json_path": path, "sampling_strategy": how} for path, how in listed]}
    path = write_yaml(tmp_path / "mix.yaml", value)
    assert keys_of(find(path)) == {
        "one-x-train/train.json": [0], "one-x-train-2/train.json": [3, 4], "two-x-train/train.json": [],
    }  # fmt: skip
    ids = packed_ids(packed(config(path, source__format="auto")))
    assert sorted(ids) == ["one-x-train-2/train.json:4", "one-x-train-2/train.json:5", "one-x-train/train.json:1"]


def test_no_name_tells_where_a_mixture_lies(tmp_path: Path) -> None:
    """One dataset with two parts had names of folders above the mixture in its ids: each machine had others."""
    write_rows(tmp_path / "home/coyo/a.jsonl", 2)
    write_rows(tmp_path / "other/b.jsonl", 2)
    items = [{"repetitions": times, "path": path} for times, path in ((2, "coyo"), (1, "coyo"), (1, "../other"))]
    path = metadataset(tmp_path / "home/m.yaml", train={"blend_epochized": items})
    assert list(shares(path)) == ["coyo", "coyo-2", "other"]


def test_the_seed_draws_other_rows() -> None:
    taken = TakenRows("random", 50, "%")
    first, second, again = (np.array(drawn_rows(100, taken, "a", seed)).tolist() for seed in (0, 1, 0))
    assert (first != second, first) == (True, again)


# ------------------------------------------------------------------------------------------------------------- Energon


def metadataset(path: Path, version: str = "V2", **splits: Any) -> str:
    return write_yaml(path, {"__module__": "megatron.energon", "__class__": f"Metadataset{version}", "splits": splits})


def shares(path: str, **settings: Any) -> dict[str, tuple[float | None, float | None]]:
    mixture = find(path, **settings).mixture
    assert mixture is not None
    return {entry.name: (entry.weight and round(entry.weight, 6), entry.epochs) for entry in mixture.entries}


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        write_rows(tmp_path / f"{name}.jsonl", 2)
    return tmp_path


def test_weights_of_nested_blends_are_multiplied(sets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inner = [{"path": "a.jsonl", "weight": 3}, {"path": "./b.jsonl", "subflavors": {"x": 1}}]
    metadataset(sets / "inner.yaml", "", train={"datasets": inner}, val={"datasets": [{"path": "c.jsonl"}]})
    blend = [{"path": "inner.yaml", "weight": 2}, {"path": "c.jsonl", "weight": 8}]
    outer = metadataset(sets / "outer.yaml", train={"blend": blend}, val={"path": "inner.yaml"})
    assert shares(outer) == {"a": (0.15, None), "b": (0.05, None), "c": (0.8, None)}
    assert shares(outer, split="val") == {"c": (1.0, None)}
    assert "inner.yaml: for Energon's loader, and not read: subflavors" in capsys.readouterr().out
    assert {entry.weight_of for entry in find(outer).mixture.entries} == {"samples"}  # type: ignore[union-attr]


def test_repetitions_are_epochs_and_one_path_is_one_set(sets: Path) -> None:
    metadataset(sets / "one.yaml", train={"path": "b.jsonl"})
    items = [{"path": "a.jsonl", "repetitions": 2.5}, {"path": "one.yaml", "repetitions": 3}, {"path": "c.jsonl"}]
    outer = metadataset(sets / "outer.yaml", train={"blend_epochized": items})
    assert shares(outer) == {"a": (None, 2.5), "b": (None, 3.0), "c": (None, 1.0)}
    assert shares(str(sets / "one.yaml")) == {"b": (None, 1.0)}


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ({"join": [{"path": "a.jsonl"}], "joiner": "x"}, "join makes a sample of several datasets, and is no mixture"),
        ({"blend": [{"join": [], "joiner": "x"}]}, "join makes a sample of several datasets"),
        ({"blend": [{"path": "a.jsonl", "subset": {"range": [0, 1]}}]}, "subset is not read"),
        ({"blend": [{"path": "a.jsonl", "dataset_config": "other.yaml"}]}, "dataset_config is not read"),
        ({"blend": [{"path": "a.jsonl", "aux": {}}]}, "aux is not read"),
        ({"blend": [{"path": "a.jsonl", "repetitions": 2}]}, "repetitions is not read"),
        ({"blend": [{"path": "a.jsonl", "weight": -1}]}, "weight is -1, not a number from 0"),
        ({"blend": [{"path": "a.jsonl", "weight": 0}]}, "the weights of all entries are 0"),
        ({"blend": [{"path": "gone"}]}, "no .*/gone"),
        ({"blend": [{"path": "outer.yaml"}]}, "within itself"),
        ({"blend": [{"path": "twice.yaml"}, {"path": "a.jsonl"}]}, "has weights, and blend has none, or the other way"),
        ({"blend": {}}, "no list of datasets"),
    ],
)
def test_what_is_no_mixture_is_refused_by_name(sets: Path, train: dict[str, Any], said: str) -> None:
    metadataset(sets / "twice.yaml", train={"blend_epochized": [{"path": "b.jsonl", "repetitions": 2}]})
    outer = metadataset(sets / "outer.yaml", train=train)
    with pytest.raises(PackError, match=said):
        find(outer)
    with pytest.raises(PackError, match=r"no split test among train: source\.split names one"):
        find(outer, split="test")


def test_energon_reads_the_same_weights_and_splits(tmp_path: Path) -> None:
    """Its own loader of the same files; `split_part` chooses another split of a prepared folder."""
    from megatron.energon import WorkerConfig
    from megatron.energon.metadataset import load_dataset

    for name in ("a", "b"):
        for part in (0, 1):
            write_tar(tmp_path / name / f"{part}.tar", {f"{name}{part}.json": chat("Hi", "Ho")})
        prepare(tmp_path / name, {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"})
        parts = {"split_parts": {"train": ["0.tar"], "val": ["1.tar"]}, "exclude": []}
        (tmp_path / name / ".nv-meta/split.yaml").write_text(yaml.safe_dump(parts))
    metadataset(tmp_path / "in.yaml", train={"blend": [{"path": "a", "weight": 1}, {"path": "b", "weight": 3}]})
    items = [{"path": "in.yaml", "weight": 1}, {"path": "a", "weight": 1, "split_part": "val"}]
    path = metadataset(tmp_path / "out.yaml", train={"blend": items})
    theirs = load_dataset(path).get_datasets(
        training=True, split_part="train", worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0)
    )
    source = find(path)
    assert source.mixture is not None
    assert [each.weight for each in theirs.datasets] == [entry.weight for entry in source.mixture.entries]
    assert sorted(shard.path for shard in source.shards) == [
        f"{tmp_path}/a/0.tar", f"{tmp_path}/a/1.tar", f"{tmp_path}/b/0.tar",
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------- their own loaders


_METAS = ("coco_caption", "internvl_1_2_finetune", "internvl_1_2_finetune_custom")
_MORE_METAS = (
    "internvl_chat_gpt_oss/shell/data/debug_sft.json",
    "internvl_chat_llava/scripts_internvl/meta/custom_data.json",
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # they leave files open
@pytest.mark.parametrize("name", [*(f"internvl_chat/shell/data/{name}.json" for name in _METAS), *_MORE_METAS])
@pytest.mark.parametrize("changed", [False, True], ids=["as it is", "with other repeat_times"])
def test_internvl_takes_the_same_rows(
    config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, changed: bool
) -> None:
    """Its metas as they are, and its `build_datasets`; files of 7, 8, 9 … rows in the places that they name."""
    meta = json.loads(file_of(INTERNVL, name))
    for number, item in enumerate(meta.values()):
        item["annotation"] = f"{item['annotation'].removesuffix('l')}l"  # their newer loader reads *.jsonl alone
        write_rows(tmp_path / item["annotation"], 7 + number)
        if changed:
            item["repeat_time"] = (0.5, 3, 0.29, 1, 0.999, 0.01)[number % 6]
    path = write_meta(tmp_path / "shell/data/meta.json", **meta)
    monkeypatch.chdir(tmp_path)
    theirs = Counter(f"{entry}/{row['id']}" for entry, rows in rows_of_internvl(Path(path)).items() for row in rows)
    folder = packed(config(path, source__format="auto", packing__max_token_len=512))
    ours = Counter[str]()
    for sample, times in packed_ids(folder).items():
        file, _, row = sample.partition("@")[0].rpartition(":")
        entry = file.partition("/")[0] if "/" in file else next(iter(meta))
        ours[f"{entry}/{int(row) - 1}"] += times
    assert ours == theirs
    assert json_lines(folder / "skipped.jsonl") == []


def _here(folder: Path, named: str) -> str:
    """Return where a file of their machine lies here; the YAML itself is here."""
    return f"{folder}{named}" if named.startswith("/mnt/") else named


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train/mid_stage", "train/single_image", "train/onevision", "video/train/exp"])
@pytest.mark.parametrize("changed", [False, True], ids=["as it is", "with other strategies"])
def test_llava_onevision_takes_the_same_rows(config: Make, tmp_path: Path, name: str, changed: bool) -> None:
    """Its YAMLs as they are, and its dataset; files of 37, 38 … rows, where source.media_map has the places in them.

    Rows at random are as many; which they are is chance there.
    """
    value = yaml.safe_load(file_of(LLAVA_NEXT, f"scripts/{name}.yaml"))
    for number, item in enumerate(value["datasets"]):
        write_rows(Path(f"{tmp_path}{item['json_path']}"), 37 + number, id_of_file=item["json_path"])
        if changed:
            strategies = "random:5", "end:3", "random:10%", "end:30%", "first:3", "first:200", "random:1%", "end:200"
            item["sampling_strategy"] = strategies[number % len(strategies)]
    path = Path(write_yaml(tmp_path / "mix.yaml", value))
    if not changed:
        path.write_text(file_of(LLAVA_NEXT, f"scripts/{name}.yaml"))
    at_random = {each["json_path"] for each in value["datasets"] if each["sampling_strategy"].startswith("random")}

    def counted(rows: Iterable[tuple[str, int]]) -> Counter[tuple[str, int | None]]:
        return Counter((file, None if file in at_random else row) for file, row in rows)

    theirs = counted(
        (row["id_of_file"], row["id"]) for row in rows_of_llava(path, lambda named: _here(tmp_path, named))
    )
    there = [f"/mnt={tmp_path}/mnt"]
    folder = packed(config(str(path), source__media_map=there, source__format="auto"))
    files = {shard.name: shard.path.removeprefix(str(tmp_path)) for shard in find(str(path), media_map=there).shards}
    ids = [sample.rpartition(":") for sample in packed_ids(folder).elements()]
    assert counted((files[shard], int(row) - 1) for shard, _, row in ids) == theirs
    assert json_lines(folder / "skipped.jsonl") == []
    assert len(theirs) > len(value["datasets"])
