"""`source.media_map` says where media lie that data name by another machine's places; a missing one says why."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import Format, plain
from energon_pack.config.naming import content_settings
from energon_pack.errors import PackError
from energon_pack.online.user_dataset import UserSamples
from energon_pack.pack import pack
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.sources.jsonl.dialects import RowSettings
from energon_pack.sources.media_files import explain_missing_medium, parse_media_map, replace_mapped_prefix
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.source_path import find_source
from support.marks import slow
from support.running import command_here
from support.samples import picture, write_tar

NAMES = {"old": "/mnt/gone/imgs/0.png", "windows": r"C:\data\imgs\0.png", "relative": "images/0.png"}


def record(name: str, key: str = "images") -> dict[str, Any]:
    turns = [{"role": "user", "content": f"<{key.removesuffix('s')}>?"}, {"role": "assistant", "content": "A cat."}]
    return {"messages": turns, key: [name]}


def place_of(name: str, *entries: str) -> str:
    return replace_mapped_prefix(name, parse_media_map([*entries]))


def test_a_beginning_of_a_name_is_mapped_at_a_folder_and_the_longest_wins() -> None:
    assert place_of("/mnt/old/a.jpg", "/mnt/old=/data") == "/data/a.jpg"
    assert place_of("/mnt/older/a.jpg", "/mnt/old=/data") == "/mnt/older/a.jpg"
    assert place_of("/mnt/old/x/a.jpg", "/mnt/old=/data", "/mnt/old/x/=there") == "there/a.jpg"
    assert place_of(r"C:\data\x\a.jpg", r"C:\data=/data") == "/data/x/a.jpg"
    assert place_of(r"C:\data\x\a.jpg", r"C:\\data=/data") == "/data/x/a.jpg", "as YAML and JSON escape it"
    assert place_of("/old/split=a/a.jpg", "/old/split=a=/data/x=y") == "/data/x=y/a.jpg", "as Spark names folders"
    assert place_of(r"x\a.jpg", "x=y") == "y/a.jpg"
    assert place_of("s3://old/a.jpg", "s3://old=/data") == "/data/a.jpg"
    assert place_of("a.zip::x/b.jpg", "a.zip=/data/b.zip") == "a.zip::x/b.jpg", "no folder ends there"
    assert place_of("x/a.zip::b.jpg", "x=/data") == "/data/a.zip::b.jpg"


@pytest.mark.parametrize("wrong", [["/data"], "=x", [3], "x=", 3])
def test_an_entry_that_is_no_pair_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(PackError, match=r"^source\.media_map: .* is not OLD=NEW, as in 'source\.media_map=\["):
        SourceConfig(media_map=wrong).check()


def test_a_map_of_an_entry_of_tars_is_checked_as_well(tmp_path: Path) -> None:
    """A wrong map was taken for nothing where the source had no use for one, and a tool was told that all is well."""
    write_tar(tmp_path / "a.tar", {"0.txt": b"A crane.", "0.png": picture(8, 8, "PNG")})
    entry = {"name": "a", "path": "a.tar", "epochs": 1, "media_map": ["nonsense"]}
    (tmp_path / "m.yaml").write_text(json.dumps({"mixture": [entry]}))
    for settings, name in ((SourceConfig(), "m.yaml"), (SourceConfig(media_map=["nonsense"]), "a.tar")):
        with pytest.raises(PackError, match="'nonsense' is not OLD=NEW"):
            find_source(settings, str(tmp_path / name))


def test_a_map_is_no_content_and_without_one_the_cache_keeps_its_keys(config: Any, tmp_path: Path) -> None:
    """Everything was measured again, and a moved source got another name."""
    (tmp_path / "a.jsonl").write_text(json.dumps(record("0.png")))
    settings = [config(tmp_path / "a.jsonl", source__media_map=media_map) for media_map in (None, ["a=b"])]
    assert content_settings(plain(settings[0])) == content_settings(plain(settings[1]))
    assert [*RowSettings("/x").identity] == ["media_root", "columns", "tags", "ratio", "remote_media"]


@pytest.mark.parametrize("media", [slow("copy"), "reference"])
def test_the_same_bytes_at_another_place_make_the_same_packs(
    demo: tuple[Path, Path], tmp_path: Path, media: str
) -> None:
    """100 of 100 samples were `missing_media`, and nothing but changing every line helped."""
    there = tmp_path / "there" / "imgs"
    there.mkdir(parents=True)
    (there / "0.png").write_bytes(picture(56, 56, "PNG"))
    maps = {"old": f"/mnt/gone={tmp_path}/there", "windows": r"C:\data=there", "relative": "images=there/imgs"}
    words = [f"model.processor={demo[1]}", "executor.num_workers=1", f"output.media={media}"]
    packed: dict[str, Mapping[str, Any]] = {}
    for name, media_map in maps.items():
        file = tmp_path / "a.jsonl"
        file.write_text(json.dumps(record(NAMES[name])) + "\n")
        mapped = [f"source.path={file}", f'source.media_map=["{media_map}"]', f"output.name={name}", *words]
        ran = command_here("energon_pack", *mapped, cwd=tmp_path)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "1       1" in ran.stdout
        verified = command_here("energon_pack.verify", f"packed/{name}", "--source", cwd=tmp_path)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        packed[name] = json.loads((tmp_path / "packed" / name / ".nv-meta" / "energon_pack.json").read_text())
    assert packed["old"]["fingerprint"] == packed["windows"]["fingerprint"]


def test_a_beginning_that_no_path_has_is_one_line(
    config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelled beginning mapped nothing, without a word."""
    (tmp_path / "0.png").write_bytes(picture(28, 28, "PNG"))
    lines = [record("/old/0.png"), record("/older/0.png"), *[record("0.png")] * 30]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    media_map = [f"/old={tmp_path}", "/older=gone", "/olde=x", "s3://b/x=y"]
    pack(config(tmp_path / "a.jsonl", source__media_map=media_map, max_skipped=0.5))
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("source.media_map")]
    assert said == [
        "source.media_map: no medium's path begins with 's3://b/x' or '/olde': is it spelled as in the data?"
    ]


def test_items_of_a_dataset_are_found_by_the_map(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(picture(28, 28, "PNG"))
    samples = UserSamples([record(NAMES["old"])], ReadSettings(), str(tmp_path), None, (("/mnt/gone/imgs", "."),))
    sample, _ = samples.read(0)
    assert [part.name for part in sample.parts] == [NAMES["old"]]
    assert samples.media_file_versions(sample)[0]["size"] == (tmp_path / "0.png").stat().st_size
    with pytest.raises(Skip, match=r'another machine\? \(\'source\.media_map=\["/mnt/gone/imgs=FOLDER"\]\' says'):
        UserSamples([record(NAMES["old"])], ReadSettings(), str(tmp_path)).read(0)


def test_each_missing_medium_says_what_is_the_matter(tmp_path: Path) -> None:
    """`(source.media_root)` stood behind all of them."""
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "clip").mkdir()
    said = {
        "gone.png": "'gone.png' is not there (source.media_root)",
        "pipe.png": "'pipe.png' is a pipe, a socket or a device: only files are read",
        "clip": "'clip' is a folder: the list of its files in its place is a video of these frames",
        "/mnt/x/0.png": "is not there: a path of another machine? ('source.media_map=[\"/mnt/x=FOLDER\"]' says where",
        r"C:\x\0.png": r"is not there: a path of Windows ('source.media_map=[\"C:\x=FOLDER\"]' says where".replace(
            '\\"', '"'
        ),
        "a\0b": "has a zero byte, and no file has",
    }
    for name, words in said.items():
        assert words in explain_missing_medium(name, str(tmp_path / name) if name[0] != "/" else name)


def test_the_ledger_says_so_too(config: Any, tmp_path: Path) -> None:
    (tmp_path / "clip").mkdir()
    (tmp_path / "clip" / "0.jpg").write_bytes(picture())
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    lines = [{"messages": turns}] * 9 + [record("clip", "videos"), {"messages": turns, "videos": []}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = config(tmp_path / "a.jsonl", source__format=Format.jsonl, max_skipped=0.5)
    with pytest.raises(PackError, match="every video sample was skipped"):
        pack(run)
    kept = Path(run.output.dir) / f"{run.output.name}.skipped.jsonl"
    assert "'clip' is a folder: the list of its files" in json.loads(kept.read_text().splitlines()[0])["detail"]
