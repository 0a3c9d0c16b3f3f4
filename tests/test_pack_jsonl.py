"""JSONL from end to end: every sample has its own media, is in a pack or in the ledger, and may be packed in slices."""

import hashlib
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from energon_pack.config import Format, PackConfig
from energon_pack.errors import PackError
from energon_pack.pack import pack
from support.marks import slow
from support.packed import files, json_lines, train
from support.running import REAL
from support.samples import picture

Make = Callable[..., PackConfig]


def line(images: list[str], asked: str = "<image>?", **fields: Any) -> dict[str, Any]:
    return {"images": images, "prompts": [asked], "captions": ["yes"], **fields}


def write_lines(path: Path, *values: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)}\n" for v in values))
    return path


def packed(make: Make, path: Path | str | list[str], **settings: Any) -> tuple[dict[str, Any], Path]:
    run = make(path, source__format=Format.jsonl, **settings)
    figures = pack(run)
    return figures, Path(run.output.dir) / str(run.output.name)


def media_of(folder: Path) -> dict[str, list[bytes]]:
    """Sample id → its media in the packs."""
    found = {}
    for shard in sorted(folder.glob("*.tar")):
        with tarfile.open(shard) as tar:
            data = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
        for name in data:
            if name.endswith(".json"):
                value = json.loads(data[name])
                for sample_id, media in zip(value["_meta"]["sample_ids"], value["media_files"], strict=True):
                    found[sample_id] = [data[f"{name.removesuffix('.json')}.{part}"] for part in media]
    return found


def skipped(folder: Path) -> list[tuple[str, str]]:
    return [(entry["sample_id"], entry["reason"]) for entry in json_lines(folder / "skipped.jsonl")]


# --------------------------------------------------------------------------------------------------- whose media


def test_every_sample_has_its_own_image(config: Make, tmp_path: Path) -> None:
    """Names that collide once folders or dots are left out: each sample's picture is its own, by hash."""
    names = [
        *("x/a.jpg", "y/a.jpg", "z/a_1.jpg", "x/a.png", "x.y/a.jpg", "x/a.b.jpg", "x/a b.jpg", "x/a+b.jpg"),
        *(
            "x/ä.jpg",
            "x/a\u0308.jpg",
            "x/图.jpg",
            "x/A.JPG",
            "x/a",
            f"x/{'n' * 200}.jpg",
            "./y/../y/b.jpg",
            "x/{a}.jpg",
        ),
    ]
    hashes = {}
    for i, name in enumerate(names):
        data = picture(30 + i, 40, "PNG" if name.endswith("png") else "JPEG")
        path = tmp_path / "media" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        hashes[f"s.jsonl:{i + 1}"] = [hashlib.sha256(data).hexdigest()]
    outside = tmp_path / "outside.jpg"
    outside.write_bytes(picture(99, 99))
    hashes[f"s.jsonl:{len(names) + 1}"] = [hashlib.sha256(picture(99, 99)).hexdigest()]
    source = write_lines(tmp_path / "s.jsonl", *(line([name]) for name in names), line([str(outside)]))
    figures, folder = packed(config, source, source__media_root=str(tmp_path / "media"))
    assert figures["samples_packed"] == len(names) + 1
    found = {key: [hashlib.sha256(d).hexdigest() for d in media] for key, media in media_of(folder).items()}
    assert found == hashes
    (pack_0, *_) = train(folder)
    assert sum(len(images) for images in pack_0.images) == len(names) + 1


def test_the_ledger_names_the_line(config: Make, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(picture())
    (tmp_path / "cut.jpg").write_bytes(picture(400, 300)[:600])
    source = write_lines(
        tmp_path / "s.jsonl",
        line(["a.jpg"]),
        '{"images": ["a.jpg"], "prom',
        "",
        line(["gone.jpg"]),
        line(["cut.jpg"]),
        line(["a.jpg", "a.jpg"]),
        line(["a.jpg"], "no placeholder"),
        "[]",
        {"id": 1},
        line([], "text"),
        line(["https://x.org/a.jpg"]),
        {**line(["a.jpg"]), "captions": ["yes", "no"]},
    )
    figures, folder = packed(config, source, max_skipped=1.0)
    assert skipped(folder) == [
        ("s.jsonl:2", "invalid_json"),
        ("s.jsonl:4", "missing_media"),
        ("s.jsonl:5", "unreadable_media"),
        ("s.jsonl:6", "placeholder_mismatch"),
        ("s.jsonl:8", "no_messages"),
        ("s.jsonl:9", "no_messages"),
        ("s.jsonl:11", "unsupported_media"),
        ("s.jsonl:12", "bad_message"),
    ]
    assert (figures["samples_in"], figures["samples_packed"], figures["samples_with_placeholders_put_in"]) == (11, 3, 1)
    assert figures["by_media"]["image"]["samples_in"] == 7


def test_a_lost_medium_without_an_extension_is_no_text(config: Make, tmp_path: Path) -> None:
    """One key of an LMDB that is missing, or a URL, among images would be every text sample, and nothing published.

    What the line calls it says what it is: `images`.
    """
    (tmp_path / "a.jpg").write_bytes(picture())
    lines = [line(["a.jpg"]), line(["gone"]), line(["https://host/a"])]
    figures, _ = packed(config, write_lines(tmp_path / "s.jsonl", *lines), max_skipped=0.9)
    assert {name: of["samples_in"] for name, of in figures["by_media"].items()} == {"image": 3}


def test_the_same_bytes_wherever_it_lies(config: Make, tmp_path: Path) -> None:
    """No path, time or worker is in the packs, the plan and the ledger."""
    folders: list[Path] = []
    for name in ("here", "there/deeper"):
        place = tmp_path / name
        values = [line(["a.jpg"], id=i) for i in range(30)] + [line(["gone.jpg"])]
        source = write_lines(place / "s.jsonl", *values)
        (place / "a.jpg").write_bytes(picture())
        make = {
            "output__dir": str(tmp_path / "out" / name),
            "max_skipped": 0.5,
            "executor__num_workers": len(folders) + 1,
        }
        folders.append(packed(config, source, **make)[1])
    assert files(folders[0]) == files(folders[1])


def test_a_lists_roots_may_lie_anywhere(config: Make, tmp_path: Path) -> None:
    """A list that shares only `/` had the machine's folders in its ids: other bytes on every machine."""
    folders: list[Path] = []
    for name, places in (("one", ("p/left", "p/right")), ("two", ("q/left", "deep/er/right"))):
        sources = [
            write_lines(tmp_path / place / "s.jsonl", *(line([], "?", id=i) for i in range(9))) for place in places
        ]
        folders.append(packed(config, [str(source.parent) for source in sources], output__dir=str(tmp_path / name))[1])
    assert files(folders[0]) == files(folders[1])
    assert set(media_of(folders[0])) == {f"{root}/s.jsonl:{i + 1}" for root in ("left", "right") for i in range(9)}


# ---------------------------------------------------------------------------------------------------- what changes


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "s").mkdir()
    for name in "ab":
        (tmp_path / "s" / f"{name}.jpg").write_bytes(picture(40, 30))
    return write_lines(tmp_path / "s" / "s.jsonl", line(["a.jpg"]), line(["b.jpg"]), line(["c.jpg"]))


def test_what_was_mended_is_measured_again(config: Make, source: Path) -> None:
    """And nothing else: the length of the other samples comes from the cache."""
    figures, folder = packed(config, source, max_skipped=0.5)
    assert skipped(folder) == [("s.jsonl:3", "missing_media")]
    (source.parent / "c.jpg").write_bytes(picture(400, 300))
    (source.parent / "a.jpg").write_bytes(picture(80, 60))
    again, folder = packed(config, source, output__overwrite=True)
    assert (again["samples_packed"], again["tokens"] > figures["tokens"]) == (3, True)
    assert media_of(folder)["s.jsonl:1"] == [picture(80, 60)]


def test_media_that_change_while_it_runs_are_noticed(
    config: Make, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from energon_pack.dataset import in_folder, shards

    write = shards.write_shard

    def change_then_write(job: Any) -> Any:
        os.utime(source.parent / "a.jpg", ns=(1, 1))  # same size: only its time tells
        return write(job)

    monkeypatch.setattr(in_folder, "write_shard", change_then_write)
    with pytest.raises(PackError, match=r"a\.jpg changed since it was measured"):
        packed(config, source, max_skipped=0.5)
    monkeypatch.setattr(in_folder, "write_shard", write)
    assert packed(config, source, max_skipped=0.5)[0]["samples_packed"] == 2


def test_a_line_rewritten_with_its_time_kept_is_noticed(config: Make, source: Path) -> None:
    packed(config, source, max_skipped=0.5)
    status = source.stat()
    source.write_text(source.read_text().replace('"yes"', '"yea"'))
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(PackError, match=r"s\.jsonl changed since it was measured"):
        packed(config, source, max_skipped=0.5, output__name="again")


# ------------------------------------------------------------------------------------------------ which are drawn


def test_a_ratio_draws_some_twice_and_some_never(config: Make, tmp_path: Path) -> None:
    entries = {n: {"file_name": f"{n}.jsonl", "sample_ratio": r} for n, r in (("half", 0.5), ("more", 1.5))}
    for name in entries:
        write_lines(tmp_path / f"{name}.jsonl", *(line([], f"{name} {i}") for i in range(10)))
    meta = write_lines(tmp_path / "meta.json", json.dumps(entries))
    figures, folder = packed(config, meta)
    counts = {name: figures[f"samples_{name}"] for name in ("in", "packed", "excluded", "repeated")}
    assert counts == {"in": 20, "packed": 20, "excluded": 5, "repeated": 5}
    ids = sorted(media_of(folder))
    assert len(ids) == 20
    assert sum(sample_id.startswith("half") for sample_id in ids) == 5
    assert sum(sample_id.endswith("@2") for sample_id in ids) == 5
    again, _ = packed(config, meta, output__name="again", seed=1)
    assert again["samples_in"] == 20


def test_what_is_drawn_does_not_depend_on_the_cache(config: Make, tmp_path: Path) -> None:
    """Which samples a ratio draws depends on ids, and so do the lengths that are kept of them."""
    for name in ("a", "b"):
        write_lines(tmp_path / name / "s.jsonl", *(line([], f"{name} {i}") for i in range(40)))
        write_lines(tmp_path / name / "m.json", json.dumps({"s": {"file_name": "s.jsonl", "sample_ratio": 0.5}}))
    metas = [str(tmp_path / name / "m.json") for name in ("a", "b")]
    packed(config, metas[0], output__name="alone", cache_dir=str(tmp_path / "warm"))
    caches = [tmp_path / "warm", tmp_path / "cold"]
    warm, cold = (packed(config, metas, output__name=c.name, cache_dir=str(c))[1] for c in caches)
    assert files(warm) == files(cold)


# -------------------------------------------------------------------------------------------------- the real sets


@pytest.mark.parametrize("name", [slow("image_demo"), "image_mathv", slow("text_alpaca"), "text_toolcall"])
def test_real_lengths_are_those_of_the_tables_and_of_the_tars(real: Path, cache: Path, config: Make, name: str) -> None:
    run: dict[str, Any] = {"source__media_root": str(real / "data" / name)} if (real / "data" / name).exists() else {}
    run |= {"model__processor": str(real / "processors" / "qwen2_5_vl"), "model__factor": 28}
    figures, folder = packed(config, REAL / "jsonl" / f"{name}.jsonl", **run)
    ids = [json.loads(text)["id"] for text in (real / "jsonl" / f"{name}.jsonl").read_text().splitlines()]
    expected = {row["key"]: row["token_len"] for row in json_lines(real / "truth" / f"{name}.qwen2_5_vl.jsonl")}

    def lens(folder: Path) -> dict[str, int]:
        found = {row["key"]: row["token_len"] for row in pq.read_table(folder / "pack_plan.parquet").to_pylist()}
        return found | {
            entry["sample_id"].rpartition(":")[2]: entry["token_len"] for entry in json_lines(folder / "skipped.jsonl")
        }

    ours = {ids[int(number) - 1]: token_len for number, token_len in lens(folder).items()}
    assert {key for key, token_len in ours.items() if token_len != expected[key]} == set()
    assert len(ours) == len(ids) == figures["samples_in"]

    run.pop("source__media_root", None)
    tars = config(real / "wds" / name, output__name="tars", **run)
    pack(tars)
    in_tars = {key.rpartition("/")[2]: n for key, n in lens(Path(tars.output.dir) / "tars").items()}
    assert {key: in_tars[key] for key in ours} == ours
