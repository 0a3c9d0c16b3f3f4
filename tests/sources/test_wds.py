"""Which tars are a source, and which members are a sample: as Energon groups them, nothing dropped in silence."""

import bz2
import gzip
import json
import lzma
import os
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_pack.config import OnDamaged, PackConfig
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.samples.settings import ReadSettings, SampleType
from energon_pack.sources.find import name_files_for_ids
from energon_pack.sources.source_file import IndexRow, rows_of
from energon_pack.sources.wds import dotted_keys_error, index_tar, parse_index_damage, parse_tar_record
from support.finding import find_shards
from support.samples import chat, picture, write_tar


def index(path: Path) -> list[dict[str, Any]]:
    table = index_tar(str(path))
    about = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
    if refused := dotted_keys_error(str(path), about):
        raise PackError(refused)
    return [
        {"key": row.key, "record_part": row.record_part, "reason": row.reason, "parts": [p.name for p in row.parts]}
        for row in rows_of(table, IndexRow)
    ]


META, ROW = b'{"width": 1}', chat("q", "a")
#: what is in a tar, and key, reason and parts of each row of its index
ROWS: dict[str, tuple[list[tuple[str, bytes]], list[tuple[str, str | None, str]]]] = {
    "a key ends at the first dot of the basename": (
        [("v1.0/0001.0.jpg", b"1"), ("v1.0/0001.json", b"{}"), ("v1.0/0002.json", b"{}")],
        [("v1.0/0001", None, "0.jpg"), ("v1.0/0002", None, "")],
    ),
    "of equal keys the first wins": (
        [("a.0.jpg", b"1"), ("a.json", b"{}"), ("a.0.jpg", b"2"), ("a.json", b"{}"), ("b.json", b""), ("a.json", b"")],
        [("a", None, "0.jpg"), ("a", "duplicate_key", "0.jpg"), ("b", None, ""), ("a", "duplicate_key", "")],
    ),
    # two would count it twice in `samples_in`, and against `max_skipped`; its media say what kind is lost
    "a sample whose parts lie apart is one line of the ledger": (
        [("a.json", b"{}"), ("b.json", b"{}"), ("a.0.jpg", b"1"), ("c.json", b"{}"), ("a.1.jpg", b"1")],
        [("a", "non_adjacent_member", "0.jpg 1.jpg"), ("b", None, ""), ("c", None, "")],
    ),
    "a part before its own JSON far away is no sample": (
        [("a.meta.json", META), ("b.json", ROW), ("a.json", ROW)],
        [("a", "non_adjacent_member", "meta.json"), ("b", None, "")],
    ),
    # its other part is a part of others: they say that it is no sample's JSON
    "a sample without its JSON is one sample": (
        [("a.meta.json", META), ("b.json", ROW), ("b.meta.json", META), ("c.meta.json", META), ("c.json", ROW)],
        [("a", "missing_json", "meta.json"), ("b", None, "meta.json"), ("c", None, "meta.json")],
    ),
    "a caption that is lost is one sample": (
        [("a.txt", b"t"), ("a.en.txt", b"t"), ("a.jpg", b"1"), ("b.en.txt", b"t"), ("b.jpg", b"1")],
        [("a", None, "en.txt jpg"), ("b", "missing_json", "en.txt jpg")],
    ),
    "a caption that is lost before others": (
        [("a.en.txt", b"t"), ("b.en.txt", b"t"), ("b.txt", b"t"), ("b.wav", b"1")],
        [("a", "missing_json", "en.txt"), ("b", None, "en.txt wav")],
    ),
    # a lost record's other part, or a sample whose key ends too early: one sample in either case
    "one file without a record is one sample": (
        [("a.json", ROW), ("b.final.json", ROW), ("b.final.jpg", b"1"), ("c.jpg", b"1"), ("c.ocr.json", META)],
        [("a", None, ""), ("b", "missing_json", "final.json final.jpg"), ("c", "missing_json", "jpg ocr.json")],
    ),
    "media without a record": (
        [("a.jpg", b"1"), ("b.jpg", b"1"), ("b.txt", b"caption")], [("a", "missing_json", "jpg"), ("b", None, "jpg")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_a_tar(tmp_path: Path, name: str) -> None:
    members, expected = ROWS[name]
    rows = index(write_tar(tmp_path / "x.tar", members))
    assert [(row["key"], row["reason"], " ".join(row["parts"])) for row in rows] == expected


@given(names=st.lists(st.text("a._/", min_size=1, max_size=8).filter(lambda name: name[-1] != "/"), max_size=8))
@settings(deadline=None, max_examples=200)
def test_any_name_is_split_there(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    groups: list[tuple[str, list[str]]] = []
    for name in names:
        folder, slash, file = name.rpartition("/")
        stem, dot, part = file.partition(".")
        if not stem or not dot or re.match("__[^/]*__/", name):
            continue
        key = folder + slash + stem
        if not groups or groups[-1][0] != key or part in groups[-1][1]:
            groups.append((key, []))
        groups[-1][1].append(part)
    samples: list[tuple[str, list[str]]] = []
    latest: dict[str, list[str]] = {}
    for key, parts in groups:  # what follows later is of the same sample, unless it has such a part
        if key in latest and set(latest[key]).isdisjoint(parts):
            latest[key] += parts
        else:
            latest[key] = parts
            samples.append((key, parts))
    rows = index(write_tar(tmp_path_factory.mktemp("tar") / "x.tar", [(name, b"") for name in names]))
    assert [(row["key"], row["parts"]) for row in rows] == samples


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
    assert [row["key"] for row in rows] == expected


def test_a_record_may_have_its_extension_in_capitals(tmp_path: Path) -> None:
    """`k.JSON` was `missing_json`; of two, the one that is spelled as here is the record."""
    answer = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    value, caption = json.dumps(answer).encode(), ReadSettings(sample_type=SampleType.document)
    parts = {"a.JSON": value, "a.JPG": picture(), "b.TXT": b"words", "c.JSON": b"{", "c.json": value}
    rows = index(write_tar(tmp_path / "x.tar", parts))
    assert [(row["record_part"], row["reason"]) for row in rows] == [("JSON", None), ("TXT", None), ("json", None)]
    assert parse_tar_record(value, "JSON", True, ReadSettings()).messages == answer["messages"]
    assert parse_tar_record(b"words", "TXT", False, caption).messages[0]["content"] == "words"


def test_a_cut_tar_keeps_its_whole_samples(tmp_path: Path) -> None:
    """Of the last one, JSON may be there, whole, in front of another: it would be in a pack and in the ledger."""
    members = {"a.json": ROW, "b.json": ROW, "b.jpg": picture()}
    for names in (list(members), ["b.json", "a.json", "b.jpg"]):
        path = write_tar(tmp_path / "x.tar", {name: members[name] for name in names})
        path.write_bytes(path.read_bytes()[:2700])
        table = index_tar(str(path))
        assert set(zip(table["key"].to_pylist(), table["reason"].to_pylist(), strict=True)) == {
            ("a", None), ("b", "truncated_tar"),
        }  # fmt: skip
        about = {"damage": table.schema.metadata[b"damage"].decode()}
        assert [what for _, what in parse_index_damage(about)] == ["cut 140 bytes into 'b.jpg'"]


# ------------------------------------------------------------------------------------------------ keys with a dot


@pytest.mark.parametrize(
    ("members", "number"),
    [
        ([("00.json", ROW), *((f"scene.{i:02}.json", ROW) for i in range(50))], 50),
        ([("v1.5/clip.001.jpg", b"1"), ("v1.5/clip.001.txt", b"t"), ("v1.5/clip.002.txt", b"t")], 2),
        ([("scene.json", ROW), *((f"scene.{i}.json", ROW) for i in range(3))], 3),  # one would look like a sample
        ([("1.json", ROW), ("1.5.json", ROW), ("2.json", ROW), ("2.5.json", ROW)], 2),  # keys that are numbers
        ([("1.jpg", b"1"), ("1.txt", b"t"), ("1.5.jpg", b"1"), ("1.5.txt", b"t")], 1),
        ([(name, ROW) for i in range(9) for name in (f"cam1.{i}.json", f"cam2.{i}.json")], 18),  # in turn
        ([("00.meta.json", META), ("00.json", ROW), *((f"a.{name}.json", ROW) for name in ("meta", "0", "1"))], 2),
        ([("1.json", ROW), ("1.jpg", b"1"), ("1.5.json", chat("q", "a", source="x")), ("1.5.jpg", b"1")], 1),
        ([("a.jpg", b"1"), ("a.0.json", ROW), ("a.1.json", ROW)], 2),
    ],
)
def test_keys_with_a_dot_stop_the_run(tmp_path: Path, members: list[tuple[str, bytes]], number: int) -> None:
    """All but one line of such samples would be lost: Energon makes them parts of one."""
    path = write_tar(tmp_path / "x y.tar", members)
    with pytest.raises(PackError, match="a key ends at the first dot of a name, as in Energon") as error:
        index(path)
    more = re.search(r"\(and (\d+) more like it\)", str(error.value))
    assert (int(more[1]) if more else 0) + 1 == number


def test_what_is_left_out_with_dots_is_a_row_for_each_sample(tmp_path: Path) -> None:
    """Of 2 files of `a`, which has no JSON, and of 1 beside the JSON of `b`, three and one is lost: one row would
    count little against `max_skipped`, and `b` might train with the picture of another."""
    members = {"00.json": ROW, "a.0.json": ROW, "a.1.json": ROW, "b.json": ROW, "b.9.json": ROW, "b.9.jpg": b"1"}
    rows = index_tar(str(write_tar(tmp_path / "x.tar", members))).to_pylist()
    assert [(row["key"], row["reason"]) for row in rows] == [
        ("00", None),
        ("a", "dotted_key"),
        ("b", "dotted_key"),
        ("b.9", "dotted_key"),
        ("a.1", "dotted_key"),
    ]
    assert [row["detail"] for row in rows[1:4]] == [
        f"{name} would be a sample of its own: a key ends at the first dot of a name"
        for name in ("a.0.json", "b.9.json", "b.9.json")
    ]


def test_keys_with_a_dot_are_kept_out_of_what_energon_reads(config: Callable[..., PackConfig], tmp_path: Path) -> None:
    """One such file refused the whole run, also with `source.on_damaged=keep`."""
    samples = {f"{i}.json": ROW for i in range(9)}
    path = write_tar(tmp_path / "source" / "x.tar", {**samples, "8.01.json": ROW})
    with pytest.raises(PackError, match=r"x.tar: 8.01.json can't be read as a sample.*source.on_damaged=keep"):
        pack(config(path))
    run = config(path, source__on_damaged=OnDamaged.keep, max_skipped=0.2)
    figures = pack(run)
    assert (figures["samples_packed"], figures["skipped_by_reason"]) == (8, {"dotted_key": 2})
    ledger = (Path(run.output.dir) / "packed" / "skipped.jsonl").read_text()
    assert [json.loads(line)["sample_id"] for line in ledger.splitlines()] == ["x.tar/8", "x.tar/8.01"]


@pytest.mark.parametrize(
    "members",
    [
        [("a.json", ROW), ("a.meta.json", META), ("b.json", ROW), ("b.meta.json", b"no JSON")],
        [("a.json", ROW), ("a.0.jpg", b"1"), ("a.0.json", META), ("a.1.jpg", b"1"), ("a.1.json", META)],
        [("a.json", ROW), ("a.ocr.txt", b"t"), ("a.txt", b"t"), ("a.jpg", b"1")],
        [("a.txt", b"t"), ("a.jpg", b"1"), ("a.ocr.txt", b"t"), ("a.meta.json", META)],
        [("a.json", chat("q", "a", x=1)), ("a.list.json", b"[1]")],
        [("a.json", ROW), ("a.0.jpg", b"1"), ("a.0.json", b'{"caption": "c"}'), ("a.0.txt", b"c")],
        [("a.json", ROW), ("a.ocr.json", b'{"text": "w"}'), ("b.json", ROW), ("b.ocr.json", b'{"text": "w"}')],
    ],
)
def test_a_further_part_is_no_sample(tmp_path: Path, members: list[tuple[str, bytes]]) -> None:
    assert {row["reason"] for row in index(write_tar(tmp_path / "x.tar", members))} == {None}


def test_a_caption_beside_a_question_and_an_answer_is_refused(tmp_path: Path) -> None:
    """Nobody joins the two, and the caption alone would train something else."""
    members = {"a.jpg": b"1", "a.txt": b"c", "a.question.txt": b"q", "a.answer.txt": b"a", "b.jpg": b"1"}
    path = write_tar(tmp_path / "x.tar", {**members, "b.txt": b"c", "b.answer.txt": b"a"})
    rows = index_tar(str(path)).to_pylist()
    assert [row["reason"] for row in rows] == ["bad_message", None]
    assert rows[0]["detail"] == "a txt beside question.txt and answer.txt: write JSON of them"


@pytest.mark.parametrize("keeps", [1, 2])
def test_beside_a_damage_one_part_alone_says_nothing(tmp_path: Path, keeps: int) -> None:
    """The JSON of its sample may be what is lost; of two parts with such names, one is a sample's."""
    members = [("0.json", ROW), *((f"a.{i}.json", ROW) for i in range(keeps)), ("z.json", ROW)]
    path = write_tar(tmp_path / "x.tar", members)
    path.write_bytes(path.read_bytes()[: 1024 * (1 + keeps) + 300])
    if keeps == 1:
        assert [row["reason"] for row in index(path)] == [None, "truncated_tar", "truncated_tar"]
    else:
        with pytest.raises(PackError, match="first dot"):
            index(path)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for name in ("b/2.tar", "b/1.tar", "a.tar", ".hidden/x.tar"):
        write_tar(tmp_path / name, {"k.json": b"{}"})
    return tmp_path


def names(source: object) -> list[str]:
    return [shard.name for shard in source.shards]  # type: ignore[attr-defined]


def test_a_folder_in_name_order_a_tar_a_glob_and_a_list(shards: Path) -> None:
    assert names(find_shards(str(shards))) == ["a.tar", "b/1.tar", "b/2.tar"]
    assert names(find_shards(str(shards / "a.tar"))) == ["a.tar"]
    assert names(find_shards(f"{shards}/b/*.tar")) == ["1.tar", "2.tar"]
    assert names(find_shards(f"{shards}/**/[12].tar")) == ["b/1.tar", "b/2.tar"]
    assert names(find_shards([f"{shards}/b", f"{shards}/a.tar"])) == ["a.tar", "b/1.tar", "b/2.tar"]
    assert names(find_shards([str(shards), f"{shards}/a.tar"])) == ["a.tar", "b/1.tar", "b/2.tar"]  # none twice


# roots → files in them → their names
NAMES = [
    (["/d"], ["/d/1.tar", "/d/a/2.tar"], ["1.tar", "a/2.tar"]),
    (["/d/a", "/d/b"], ["/d/a/1.tar", "/d/b/1.tar"], ["a/1.tar", "b/1.tar"]),
    (["/m/a", "/m/n/b"], ["/m/a/1.tar", "/m/n/b/1.tar"], ["a/1.tar", "b/1.tar"]),
    (["/d/x/train", "/d/y/train"], ["/d/x/train/1.tar", "/d/y/train/1.tar"], ["x/train/1.tar", "y/train/1.tar"]),
    (["/d/a", "/d"], ["/d/a/1.tar", "/d/2.tar"], ["a/1.tar", "2.tar"]),  # inside another
    (["/d/m"], ["/e/f/1.jsonl", "/d/m/1.jsonl"], ["f/1.jsonl", "m/1.jsonl"]),  # a meta file's, elsewhere
    (["/a/t", "/b/a/t", "/a"], ["/a/t/1.tar", "/b/a/t/1.tar"], ["a/t/1.tar", "t/1.tar"]),
    (["/d/t", "/d/x/t"], ["/d/t/1.tar", "/d/x/t/1.tar"], ["t/1.tar", "x/t/1.tar"]),  # not of /d, which may be moved
    (["/x/a", "/y/a/b", "/z/b"], ["/x/a/b/1", "/y/a/b/1", "/z/b/1"], ["x/a/b/1", "y/a/b/1", "z/b/1"]),
]


@pytest.mark.parametrize(("roots", "files", "expected"), NAMES)
def test_ids_have_the_names_of_the_roots(roots: list[str], files: list[str], expected: list[str]) -> None:
    """Anything above a root is of the machine, and would be in the packs."""
    assert name_files_for_ids(roots, files) == expected
    assert name_files_for_ids(roots[::-1], files[::-1]) == expected[::-1]


FOLDER = st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))


@given(roots=st.sets(FOLDER, min_size=1), rest=st.sets(FOLDER, min_size=1, max_size=3))
def test_names_tell_files_apart(roots: set[str], rest: set[str]) -> None:
    files = sorted({root + path + ".tar" for root in roots for path in rest})
    names = name_files_for_ids(roots, files)
    assert len(set(names)) == len(files)
    assert all(file.endswith(name) for file, name in zip(files, names, strict=True))


@given(roots=st.sets(FOLDER, min_size=1), rest=FOLDER, above=FOLDER)
def test_folders_that_are_moved_together_keep_their_names(roots: set[str], rest: str, above: str) -> None:
    files = [root + rest for root in sorted(roots)]
    assert name_files_for_ids(roots, files) == name_files_for_ids(
        [above + root for root in roots], [above + file for file in files]
    )


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


@pytest.mark.parametrize(
    ("name", "pack", "remedy"),
    [
        ("x.tgz", gzip.compress, "put what gunzip gives in its place"),
        ("x.tar.bz2", bz2.compress, "put what bunzip2 gives in its place"),
        ("x.tar", lzma.compress, "put what unxz gives in its place"),
        ("x.tar.gz", bytes, "is called as a compressed file, and is none: rename it"),
    ],
)
def test_compressed_tars_are_refused_with_what_helps(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes], remedy: str
) -> None:
    path = write_tar(tmp_path / name, {"k.json": b"{}"})
    path.write_bytes(pack(path.read_bytes()))
    with pytest.raises(PackError, match=rf"{name} .*{remedy}"):  # by its name, or when its first bytes are read
        find_shards(str(tmp_path)).shards[0].index()


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A source that Energon has prepared: two splits, one shard and one sample excluded."""
    tmp_path = tmp_path / "prepared"
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
    assert [shard.index()["key"].to_pylist() for shard in train.shards] == [["s_0_0"], ["s_2_0", "s_2_1"]]
    assert train.num_left_out == 5
    assert names(find_shards(str(prepared))) == ["s_0.tar", "s_2.tar", "s_3.tar"]
    with pytest.raises(PackError, match="train, val"):
        find_shards(str(prepared), "test")


@pytest.mark.parametrize("path", ["{}/*.tar", "{}/..", "{0},{0}/./s_0.tar", "{0}/s_0.tar,{0}"])
def test_what_is_excluded_is_out_however_the_source_is_named(prepared: Path, path: str) -> None:
    source = find_shards(path.format(prepared).split(","))
    assert "s_1.tar" not in {Path(name).name for name in names(source)}
    (first,) = (shard for shard in source.shards if shard.name.endswith("s_0.tar"))
    assert first.index()["key"].to_pylist() == ["s_0_0"]


def test_a_prepared_source_named_by_a_link_too_lacks_nothing(prepared: Path, tmp_path: Path) -> None:
    """Its shards were taken under the name of the link, and then missed under their own."""
    (tmp_path / "link").symlink_to(prepared)
    source = find_shards([str(tmp_path / "link"), str(prepared)], "train")
    assert [Path(name).name for name in names(source)] == ["s_0.tar", "s_2.tar"]
    assert source.num_left_out == 5


def test_everything_left_out_is_said(prepared: Path) -> None:
    with pytest.raises(PackError, match="left out"):
        find_shards(f"{prepared}/s_1.tar")


def test_links_of_a_sample_cost_the_sample(tmp_path: Path) -> None:
    """Its JSON is a hard link: the sample is there, and in the ledger."""
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for kind, name in ((tarfile.LNKTYPE, "a.json"), (tarfile.SYMTYPE, "b.0.jpg")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "x"
            tar.addfile(info)
        tar.addfile(tarfile.TarInfo("b.json"))
    assert [(row["key"], row["reason"], row["parts"]) for row in index(path)] == [
        ("a", "missing_json", []),
        ("b", None, ["0.jpg"]),  # measuring finds that it has no bytes
    ]


def test_a_sample_whose_media_may_be_in_the_damage_is_not_whole(tmp_path: Path) -> None:
    """Its JSON alone would be packed as text, the placeholder in it and all."""
    members = {"a.json": b"{}", "b.jpg": picture(), "b.json": b"{}", "c.json": b"{}"}
    path = write_tar(tmp_path / "x.tar", members)
    data = bytearray(path.read_bytes())
    data[1024 + 5] ^= 1  # in the name of b.jpg, behind a.json
    path.write_bytes(data)
    assert [(row["key"], row["reason"]) for row in index(path)] == [
        ("a", None),
        ("b", "truncated_tar"),
        ("c", None),
        ("@1024", "truncated_tar"),
    ]


def test_names_that_are_not_utf8_stay_apart(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", {f"k{c}.json": b"{}" for c in "\udcff\udcfe"}, format=tarfile.GNU_FORMAT)
    assert [row["reason"] for row in index(path)] == [None, None]


@pytest.mark.parametrize("kind", ["fifo", "folder without permission", "not UTF-8"])
def test_what_can_not_be_read_is_no_empty_source(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(tmp_path / "a.tar", {"k.json": b"{}"})
    if kind == "fifo":  # would hang
        os.mkfifo(tmp_path / "b.tar")
    elif kind == "not UTF-8":
        (tmp_path / "b\udcff.tar").write_bytes(b"")
    else:

        def walk(*_: object, onerror: Callable[[OSError], None], **__: object) -> None:
            onerror(PermissionError(13, "Permission denied", "sub"))

        monkeypatch.setattr(os, "walk", walk)
    with pytest.raises((PackError, PermissionError)):
        find_shards(str(tmp_path))


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"split_parts": ["a.tar"]}, "not a mapping"),
        ({"split_parts": {"train": "s_{0..3}.tar"}}, "not a list"),
        ({"split_parts": {"train": [1]}}, "not a list"),
        ({"split_parts": {"train": []}, "exclude": "s_0.tar"}, "not a list"),
        ({"split_parts": {"train": ["s_{0.tar"]}}, "split.yaml"),
        ({"split_parts": {"train": ["s_9.tar"]}}, "lacks 1 of its shards"),
        ({"split_parts": {"train": None}}, "left out"),
    ],
)
def test_a_broken_split_is_one_clear_error(prepared: Path, splits: dict[str, object], message: str) -> None:
    (prepared / ".nv-meta" / "split.yaml").write_text(yaml.safe_dump(splits))
    with pytest.raises(PackError, match=message):
        find_shards(str(prepared), "train")


def test_a_split_needs_a_prepared_folder(shards: Path) -> None:
    with pytest.raises(PackError, match=r"split\.yaml"):
        find_shards(str(shards), "train")
