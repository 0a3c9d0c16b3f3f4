"""Which tars are a source, and which members are a sample: as Energon groups them, nothing dropped in silence."""

import gzip
import json
from pathlib import Path

import pytest
import yaml
from conftest import chat, picture, write_tar

from energon_pack.errors import PackError
from energon_pack.sources.wds import Shard, damage_of, find_shards, index_shard, parts_of


def index(path: Path) -> list[dict[str, object]]:
    table = index_shard(Shard(path.name, str(path), path.stat().st_size, 0))
    rows = table.select(["key", "record_part", "reason"]).to_pylist()
    return [{**row, "parts": [part[0] for part in parts]} for row, parts in zip(rows, parts_of(table), strict=True)]


def test_key_and_part_split_at_the_first_dot_of_the_basename(tmp_path: Path) -> None:
    members = ["v1.0/0001.0.jpg", "v1.0/0001.json", "v1.0/0002.json"]
    rows = index(write_tar(tmp_path / "x.tar", dict.fromkeys(members, b"{}")))
    assert [(row["key"], row["parts"]) for row in rows] == [("v1.0/0001", ["0.jpg"]), ("v1.0/0002", [])]


def test_grouping_is_energons(tmp_path: Path) -> None:
    """A sample cut differently from Energon would have other media in training."""
    from megatron.energon.flavors.webdataset.config import skip_meta_re, split_name_re

    names = [
        "a.jpg",
        "a.json",
        "d.e/b.0.jpg",
        "d.e/b.json",
        "noext",
        "__meta__/c.json",
        "x/__meta__/c.json",
        "e.JPG",
        "e.json",
    ]
    rows = index(write_tar(tmp_path / "x.tar", dict.fromkeys(names, b"{}")))
    expected = []
    for name in names:
        match = split_name_re.match(name)
        if match and not skip_meta_re.match(name) and match[1] not in expected:
            expected.append(match[1])
    assert [row["key"] for row in rows] == [key for key in expected if key != "x/__meta__/c"]


def test_hidden_files_are_ignored(tmp_path: Path) -> None:
    rows = index(write_tar(tmp_path / "x.tar", {"d/._a.jpg": b"", "d/a.json": b"{}", ".DS_Store": b""}))
    assert [row["key"] for row in rows] == ["d/a"]


def test_of_equal_keys_the_first_wins(tmp_path: Path) -> None:
    members = [
        ("a.0.jpg", b"1"),
        ("a.json", b"{}"),
        ("a.0.jpg", b"2"),
        ("a.json", b"{}"),
        ("b.json", b"{}"),
        ("a.json", b""),
    ]
    rows = index(write_tar(tmp_path / "x.tar", members))
    assert [(row["key"], row["reason"]) for row in rows] == [
        ("a", None),
        ("a", "duplicate_key"),
        ("b", None),
        ("a", "duplicate_key"),
    ]


def test_members_apart_are_not_one_sample(tmp_path: Path) -> None:
    rows = index(write_tar(tmp_path / "x.tar", {"a.json": b"{}", "b.json": b"{}", "a.0.jpg": b"1"}))
    assert [row["reason"] for row in rows] == [None, None, "non_adjacent_member"]


def test_media_without_json(tmp_path: Path) -> None:
    rows = index(write_tar(tmp_path / "x.tar", {"a.jpg": b"1", "b.jpg": b"1", "b.txt": b"caption"}))
    assert [(row["reason"], row["record_part"]) for row in rows] == [("missing_json", None), (None, "txt")]


def test_a_cut_tar_keeps_its_whole_samples(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", {"a.json": chat("q", "a"), "b.json": chat("q", "a"), "b.jpg": picture()})
    path.write_bytes(path.read_bytes()[:2700])
    table = index_shard(Shard("x.tar", str(path), 2700, 0))
    assert table["key"].to_pylist() == ["a", "b"]
    assert table["reason"].to_pylist() == [None, "truncated_tar"]
    assert [what for _, what in damage_of(table.schema)] == ["cut 140 bytes into 'b.jpg'"]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for name in ("b/2.tar", "b/1.tar", "a.tar", ".hidden/x.tar"):
        write_tar(tmp_path / name, {"k.json": b"{}"})
    return tmp_path


def names(source: object) -> list[str]:
    return [shard.name for shard in source.shards]  # type: ignore[attr-defined]


def test_a_folder_is_searched_in_name_order(shards: Path) -> None:
    assert names(find_shards(str(shards))) == ["a.tar", "b/1.tar", "b/2.tar"]


def test_a_tar_a_glob_and_a_list(shards: Path) -> None:
    assert names(find_shards(str(shards / "a.tar"))) == ["a.tar"]
    assert names(find_shards(f"{shards}/b/*.tar")) == ["1.tar", "2.tar"]
    assert names(find_shards(f"{shards}/**/[12].tar")) == ["b/1.tar", "b/2.tar"]
    assert names(find_shards([f"{shards}/b", f"{shards}/a.tar"])) == ["a.tar", "b/1.tar", "b/2.tar"]
    assert names(find_shards([str(shards), f"{shards}/a.tar"])) == ["a.tar", "b/1.tar", "b/2.tar"]  # none twice


def test_a_link_into_its_own_folder_ends(shards: Path) -> None:
    (shards / "b" / "up").symlink_to(shards)
    assert names(find_shards(str(shards))) == ["a.tar", "b/1.tar", "b/2.tar"]


@pytest.mark.parametrize("path", ["/nowhere", "/nowhere/*.tar"])
def test_what_is_not_there_is_named(path: str) -> None:
    with pytest.raises(PackError, match=r"source\.path=/nowhere"):
        find_shards(path)


def test_a_folder_without_tars_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"no \*\.tar there"):
        find_shards(str(tmp_path))


@pytest.mark.parametrize(("name", "target"), [("x.tgz", "x.tar"), ("x.tar.gz", "x.tar"), ("x.tar", "x.plain.tar")])
def test_compressed_tars_are_refused_with_a_command_that_works(tmp_path: Path, name: str, target: str) -> None:
    import subprocess

    plain = write_tar(tmp_path / "plain", {"k.json": b"{}"}).read_bytes()
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / name).write_bytes(gzip.compress(plain))
    with pytest.raises(PackError, match=name) as error:  # by its name, or when its first bytes are read
        index_shard(find_shards(str(tmp_path / "s")).shards[0])
    shell = str(error.value).partition("unpack it first: ")[2]
    subprocess.run(shell, shell=True, check=True)
    assert (tmp_path / "s" / target).read_bytes() == plain


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A source that Energon has prepared: two splits, one shard and one sample excluded."""
    for name in ("s_0.tar", "s_1.tar", "s_2.tar", "s_3.tar"):
        write_tar(tmp_path / name, {f"{name[:-4]}_{i}.json": b"{}" for i in range(2)})
    meta = tmp_path / ".nv-meta"
    meta.mkdir()
    splits = {"train": ["s_{0..2}.tar"], "val": ["s_3.tar"]}
    (meta / "split.yaml").write_text(yaml.safe_dump({"split_parts": splits, "exclude": ["s_1.tar", "s_0.tar/s_0_1"]}))
    (meta / ".info.json").write_text(json.dumps({"shard_counts": {f"s_{i}.tar": 2 for i in range(4)}}))
    return tmp_path


def test_split_and_exclude_of_a_prepared_source(prepared: Path) -> None:
    train = find_shards(str(prepared), "train")
    assert names(train) == ["s_0.tar", "s_2.tar"]
    assert train.excluded == {("s_0.tar", "s_0_1")}
    assert train.num_in_other_shards == 4
    assert names(find_shards(str(prepared))) == ["s_0.tar", "s_2.tar", "s_3.tar"]
    with pytest.raises(PackError, match="train, val"):
        find_shards(str(prepared), "test")


def test_a_split_needs_a_prepared_folder(shards: Path) -> None:
    with pytest.raises(PackError, match=r"split\.yaml"):
        find_shards(str(shards), "train")
