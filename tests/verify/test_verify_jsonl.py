"""verify of `packed_captioning` and of JSONL sources: every kind of damage is found and named.

A check that never fails is worth nothing: each test below breaks one thing and asks for the check that has to see it.
"""

import json
import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_pack.config import Flavor, Format, ModelConfig, OutputConfig, Overlong, PackConfig, SourceConfig
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.verify import Options, verify
from energon_pack.verify.findings import CHECKS
from support import damage
from support.damage import (
    HOSTILE,
    Corruption,
    Members,
    change_file,
    found,
    grown,
    is_found,
    lines,
    places,
    read_shard,
    set_at,
    write_shard,
)
from support.samples import npy, picture, write_source


def pack_as(flavor: Flavor, folder: Path, processor: Path, cache: Path) -> Path:
    run = PackConfig(
        model=ModelConfig("qwen2_5_vl", "qwen_vl", "Qwen/Qwen2.5-VL-7B-Instruct", str(processor)),
        source=SourceConfig(format=Format.jsonl, path=str(folder / "source" / "meta.json")),
        output=OutputConfig(dir=str(folder), name=flavor.value, max_shard_packs=3, flavor=flavor),
        cache_dir=str(cache),
        max_skipped=0.5,
    )
    run.packing.max_token_len, run.packing.overlong, run.packing.max_visual_tokens = 512, Overlong.split_turns, 400
    run.executor.num_workers, run.measure.verify = 1, 0.0
    run.output.sqlite = flavor is Flavor.packed_multi_mix_qa
    figures = pack(run)
    assert (figures["samples_cut"], figures["samples_repeated"]) == (1, 10)
    return folder / flavor.value


@pytest.fixture(scope="module")
def both(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Flavor, Path]:
    folder = tmp_path_factory.mktemp("verify")
    write_source(folder / "source")
    return {flavor: pack_as(flavor, folder, demo[1], cache) for flavor in Flavor}


@pytest.fixture(params=list(Flavor))
def packed(request: pytest.FixtureRequest, both: dict[Flavor, Path]) -> Path:
    return both[request.param]


@pytest.fixture
def captioning(both: dict[Flavor, Path], tmp_path: Path) -> Path:
    """A dataset of that flavour, to be damaged."""
    return Path(shutil.copytree(both[Flavor.packed_captioning], tmp_path / "packed"))


def test_a_whole_dataset_has_no_defect(packed: Path, demo: tuple[Path, Path]) -> None:
    """Files, arrays, times in the text or in fields, samples drawn twice: none is complained about."""
    clean = found(packed, decode=True, source=[], processor=str(demo[1]))
    assert lines(clean) == ""
    assert set(clean.num_checked) == set(CHECKS) - {"references"}
    assert clean.num_checked["source samples"] == 15 + 1 + 31
    num_arrays = 12 * (packed.name == "packed_captioning")
    assert clean.num_checked["source media"] == clean.num_checked["decode"] == 6 + 6 + 2 + 16 + 1 + num_arrays


def test_a_source_that_moved(packed: Path, tmp_path: Path) -> None:
    """Its media with it, or to another place."""
    source = Path(shutil.copytree(packed.parent / "source", tmp_path / "source"))
    assert lines(found(packed, source=[str(source / "meta.json")])) == ""
    media = tmp_path / "far/away"  # elsewhere than where it is looked for
    media.mkdir(parents=True)
    for path in source.iterdir():
        if path.suffix not in (".json", ".jsonl"):
            path.rename(media / path.name)
    assert "'f0.jpg' is not there" in lines(found(packed, source=[str(source / "meta.json")]))
    assert lines(found(packed, source=[str(source / "meta.json")], media_root=str(media))) == ""
    with pytest.raises(PackError, match="--media-root"):  # else it would say that all is well, and look at no medium
        verify(packed, Options(media_root=str(media)))


def test_relative_paths_are_those_of_the_run(
    config: Callable[..., PackConfig], demo: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of source, media and processor: else verify compares from one folder only, and does not say which."""
    (tmp_path / "project" / "media").mkdir(parents=True)
    (tmp_path / "project" / "media" / "a.jpg").write_bytes(picture(56, 56))
    line = {"images": ["a.jpg"], "prompts": ["<image>?"], "captions": ["yes"]}
    (tmp_path / "project" / "a.jsonl").write_text(json.dumps(line))
    shutil.copytree(demo[1], tmp_path / "project" / "processor")
    monkeypatch.chdir(tmp_path / "project")
    run = config("a.jsonl", source__format=Format.jsonl, source__media_root="media", model__processor="processor")
    pack(run)
    folder = Path(run.output.dir) / "packed"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = found(folder, source=[])
    assert lines(again) == ""
    assert (again.num_checked["source media"], again.num_checked["source tokens"]) == (1, 1)
    assert lines(found(folder, source=["../project/a.jsonl"])) == ""  # its media where they were
    assert lines(found(folder, source=["../project/a.jsonl"], media_root="../project/media")) == ""


def test_images_of_an_lmdb(config: Callable[..., PackConfig], tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")

    def put(name: str, data: bytes) -> None:
        with lmdb.open(str(tmp_path / name), subdir=False) as database, database.begin(write=True) as transaction:
            transaction.put(b"k", data)

    put("i.lmdb", picture(33, 44))
    (tmp_path / "s.jsonl").write_text(json.dumps({"image": "i.lmdb::k", "prompts": ["a"], "captions": ["b"]}))
    run = config(tmp_path / "s.jsonl", source__format=Format.jsonl)
    pack(run)
    clean = found(Path(run.output.dir) / "packed", source=[])
    assert (lines(clean), clean.num_checked["source media"]) == ("", 1)
    put("j.lmdb", picture(33, 44, quality=9))
    (tmp_path / "j.lmdb").replace(tmp_path / "i.lmdb")
    assert "source media" in lines(found(Path(run.output.dir) / "packed", source=[]))


@pytest.mark.parametrize(
    ("name", "data", "check", "words"),
    [
        ("f1.jpg", picture(68, 60, quality=20), "source media", "f1.jpg changed"),
        ("p.png", picture(50, 50, "PNG").replace(b"IDAT", b"IDAX"), "source media", "in the source at byte"),
        ("f1.npy", npy(16), "source", "at byte"),
        ("text.jsonl", b'{"prompts": ["a"], "captions": ["b"]}\n', "source samples", "no sample of the source"),
    ],
)
def test_a_source_that_changed(packed: Path, tmp_path: Path, name: str, data: bytes, check: str, words: str) -> None:
    source = Path(shutil.copytree(packed.parent / "source", tmp_path / "source"))
    (source / name).write_bytes(data)
    defects = found(packed, source=[str(source / "meta.json")])
    if name == "f1.npy" and packed.name != "packed_captioning":  # its time is in the text
        check, words = "source text", "7.50 seconds"
    assert any(str(d).startswith(check) and words in str(d) for d in defects.first_defects(1000)), lines(defects)


def test_the_first_samples_are_accounted_for(
    demo: tuple[Path, Path], cache: Path, packed: Path, tmp_path: Path
) -> None:
    """With `source.limit`, the other samples are not missing; one too few or too many is an error."""
    run = PackConfig(
        model=ModelConfig("qwen2_5_vl", "qwen_vl", "Qwen/Qwen2.5-VL-7B-Instruct", str(demo[1])),
        source=SourceConfig(format=Format.jsonl, path=str(packed.parent / "source" / "meta.json"), limit=6),
        output=OutputConfig(dir=str(tmp_path), name="first"),
        cache_dir=str(cache),
        max_skipped=0.5,
    )
    run.executor.num_workers, run.measure.verify = 1, 0.0
    pack(run)
    out = tmp_path / "first"
    assert lines(found(out, source=[])) == ""
    for limit, what in ((7, "is in no pack, and not in the ledger"), (5, "is no sample of the source")):
        change_file("report.json", set_at("config", "source", "limit", to=limit))(out)
        assert what in lines(found(out, source=[]))


# ------------------------------------------------------------------------------------------------------- corruptions


change = partial(damage.change, media_type="fps")  # of a pack with arrays
change_members = partial(damage.change_files, media_type="fps")


def first(members: Members, index: int, end: str) -> int:
    return next(i for i in range(index + 1, len(members)) if members[i][0].endswith(end))


def pop(end: str) -> Callable[[Members, int], None]:
    return lambda members, index: members.__delitem__(first(members, index, end))


def rename(members: Members, index: int) -> None:
    at = first(members, index, "_0.jpg")
    members[at] = (members[at][0].replace("_0.jpg", "_9.jpg"), members[at][1])


def swap(members: Members, index: int) -> None:
    """Two images of one sample change places: their sizes differ."""
    at = first(members, index, "_1.jpg")
    (name, data), (other, other_data) = members[at - 1 : at + 1]
    members[at - 1 : at + 1] = [(name, other_data), (other, data)]


def swap_arrays(members: Members, index: int) -> None:
    """Of one size: only the source tells."""
    at = first(members, index, ".npy")
    (name, data), (other, other_data) = members[at : at + 2]
    members[at : at + 2] = [(name, other_data), (other, data)]


def with_data(end: str, data: bytes) -> Callable[[Members, int], None]:
    def damage(members: Members, index: int) -> None:
        at = first(members, index, end)
        members[at] = (members[at][0], data)

    return damage


def no_array_named(value: dict[str, Any]) -> None:
    row = next(row for row in value["patch_positions"] if any(row))
    row[:] = [""] * len(row)


def one_turn_less(value: dict[str, Any]) -> None:
    value["prompts"][0].pop()


def other_text(value: dict[str, Any]) -> None:
    value["captions"][0][0] += " indeed"


def other_placeholder(value: dict[str, Any]) -> None:
    row = next(row for row in value["prompts"] if "<image>" in row[0])
    row[0] = row[0].replace("<image>", "", 1)


def other_fps(value: dict[str, Any]) -> None:
    value["fps"] = [None if item is None else 25 for item in value["fps"]]


BYTES: dict[str, Any] = {"source": []}
#: each byte of a copied medium is compared with a checksum
MEDIA = {"media": "has other bytes than those that were packed"}
CORRUPTIONS: dict[str, Corruption] = {
    "a missing image": (change_members(pop(".jpg")), {}, {"parts": "is there 0 times"}),
    "a missing array": (change_members(pop(".npy")), {}, {"parts": "npy is there 0 times"}),
    "a renamed image": (change_members(rename), {}, {"parts": "_9.jpg is there 1 times, and should be 0"}),
    "two images swapped": (change_members(swap), {}, {"plan": "bytes, in the plan", **MEDIA}),
    "two arrays swapped": (
        change_members(swap_arrays), BYTES, {"source media": "differs from f0.npy in the source", **MEDIA},
    ),
    "no image under an image's name": (
        change_members(with_data(".jpg", b"x" * 99)), {},
        {"kinds": "no medium that is known", "plan": "in the plan", **MEDIA},
    ),
    "no array under an array's name": (
        change_members(with_data(".npy", b"x" * 99)), {}, {"kinds": "no array", **MEDIA},
    ),
    "an array cut short": (
        change_members(with_data(".npy", npy(1)[:-9])), {"decode": True}, {"decode": "is no .npy", **MEDIA},
    ),
    "a wrong sample_count": (change(grown("sample_count")), {}, {"json": "sample_count is"}),
    "no sample_count": (change(lambda value: value.pop("sample_count")), {}, {"json": "no sample_count"}),
    "another name in images": (
        change(lambda value: next(row for row in value["images"] if row).__setitem__(0, "a.jpg")),
        {},
        {"json": "a file named 'a.jpg'"},
    ),
    "arrays that no JSON names": (
        change(no_array_named), BYTES, {"parts": "npy is there 1 times", "source text": "patch_positions is"},
    ),
    "a prompt without its caption": (
        change(one_turn_less), {}, {"json": "prompts and", "placeholders": "no conversation"},
    ),
    "another text": (change(other_text), BYTES, {"source text": "indeed"}),
    "a placeholder less": (change(other_placeholder), {}, {"placeholders": "placeholder_mismatch"}),
    "another fps": (change(other_fps), BYTES, {"source text": "fps is 25"}),
    "a lost field": (change(lambda value: value.pop("source_fields")), BYTES, {"source text": "source_fields is"}),
    "another id in _meta": (
        change(lambda value: value["_meta"]["sample_ids"].__setitem__(0, "media.jsonl:99")),
        {},
        {"plan": "sample_ids: member 0 is 'media.jsonl:99'"},
    ),
    "another source part": (
        change(lambda value: next(r for r in value["_meta"]["source_parts"] if r).__setitem__(0, "x.jpg")),
        {},
        {"plan": "source_parts: member"},
    ),
    "no _meta": (change(lambda value: value.pop("_meta")), {}, {"json": "_meta is None", "samples": "", "totals": ""}),
    "a limit of visual tokens": (
        change_file(".nv-meta/energon_pack.json", set_at("content", "packing", "max_visual_tokens", to=9)),
        {},
        {"capacity": "> packing.max_visual_tokens=9", "metadata": "energon_pack.json is not as it was packed"},
    ),
    "another sample class": (
        change_file(".nv-meta/dataset.yaml", set_at("sample_type", "__class__", to="PackedMultiMixQASample")),
        {},
        {"metadata": "dataset.yaml: sample_type is not"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_is_found(captioning: Path, demo: tuple[Path, Path], name: str) -> None:
    """And nothing else is complained about, so that a user sees where the fault is."""
    is_found(captioning, CORRUPTIONS[name], processor=str(demo[1]))


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DELETE FROM sample_parts WHERE rowid = 3", "index.sqlite has"),
        ("UPDATE samples SET byte_offset = byte_offset + 512 WHERE rowid = 1", "index.sqlite has ("),
        ("UPDATE samples SET tar_file_id = 99 WHERE rowid = 1", "a shard that is not there: 99"),
        ("DROP TABLE samples", "index.sqlite can't be read: no such table"),
        ("no database", "index.sqlite can't be read: file is not a database"),
        ("no file", "index.sqlite is missing"),
    ],
)
def test_an_index_that_is_wrong(both: dict[Flavor, Path], tmp_path: Path, statement: str, words: str) -> None:
    """Joins and random access would read other samples."""
    folder = Path(shutil.copytree(both[Flavor.packed_multi_mix_qa], tmp_path / "packed"))
    path = folder / ".nv-meta" / "index.sqlite"
    if statement.startswith("no "):
        path.unlink()
        if statement == "no database":
            path.write_bytes(b"x" * 4096)
    else:
        connection = sqlite3.connect(path)
        connection.execute(statement)
        connection.commit()
        connection.close()
    defects = found(folder)
    assert set(defects.num_defects) == {"metadata"}, lines(defects)
    assert words in lines(defects)


def test_any_json_is_survived(captioning: Path, demo: tuple[Path, Path]) -> None:
    """Wrong types anywhere in the packs: found, and never a traceback."""
    rng = np.random.default_rng(0)
    for path in sorted(captioning.glob("*.tar")):
        members = read_shard(path)
        for index, (name, data) in enumerate(members):
            if name.endswith(".json"):
                value = json.loads(data)
                for place in [p for p in sorted(places(value), key=str) if rng.random() < 0.1]:
                    try:
                        set_at(*place, to=HOSTILE[rng.integers(len(HOSTILE))])(value)
                    except (TypeError, KeyError, IndexError):
                        continue
                members[index] = (name, json.dumps(value).encode())
        write_shard(path, members)
    assert found(captioning, decode=True, source=[], processor=str(demo[1])).num_defects.total() > 5
