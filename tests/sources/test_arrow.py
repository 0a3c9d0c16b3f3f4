"""Arrow: files, streams, and the folders of `datasets.save_to_disk`. A row is a sample, its images are cells."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from energon_pack.config.schema import MediaIn, PackConfig
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.samples.raw_record import without_null_fields
from energon_pack.samples.skip import Skip
from energon_pack.sources import arrow_rows
from energon_pack.sources.named_bytes import replace_media_by_names
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.source_path import find_source, source_summary
from energon_pack.sources.table_rows import open_cell
from energon_pack.sources.wds import index_metadata, parse_index_damage
from support.packed import Make, samples
from support.read_source import read
from support.running import command_here
from support.samples import picture

PNG, WIDE = picture(56, 56, "PNG"), picture(112, 56, "PNG")
IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def write_arrow(path: Path, table: pa.Table, stream: bool = True, rows: int = 1000, **how: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    options = pa.ipc.IpcWriteOptions(**how)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def asked(*answers: str) -> pa.Table:
    columns: dict[str, Any] = {"image": pa.array([{"bytes": PNG, "path": None}] * len(answers), IMAGE)}
    return pa.table(columns | {"question": ["what?"] * len(answers), "answer": list(answers)})


def save(folder: Path, *files: tuple[str, pa.Table]) -> Path:
    """Write what `datasets.save_to_disk` writes (datasets 5.2)."""
    for name, table in files:
        write_arrow(folder / name, table)
    state = {"_data_files": [{"filename": name} for name, _ in files], "_fingerprint": "1", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text('{"features": {}}')
    return folder


def answers(path: Path, **settings: Any) -> list[str]:
    return [sample[0][-1] for sample in read(path, **settings).values() if not isinstance(sample, str)]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_rows_and_cells_are_those_of_pyarrow(compression: str | None, stream: bool, tmp_path: Path) -> None:
    """A wrong batch or offset would give a sample the image of another."""
    drawn = random.Random(1)
    cells: list[Any] = [None, {"bytes": None, "path": None}, {"bytes": PNG, "path": "a"}, {"bytes": WIDE, "path": None}]
    rows: list[dict[str, Any]] = [
        {
            "one": drawn.choice(cells),
            "bare": drawn.choice([None, WIDE]),
            "many": drawn.choice([None, [], drawn.choices(cells, k=3)]),
            "turns": [{"text": f"q{n}", "image": drawn.choice(cells)} for _ in range(drawn.randrange(3))],
            "kind": drawn.choice(["a", "b", None]),
        }
        for n in range(60)
    ]
    turn = pa.struct({"text": pa.string(), "image": IMAGE})
    kinds = {"one": IMAGE, "bare": pa.binary(), "many": pa.list_(IMAGE), "turns": pa.list_(turn)}
    table = pa.Table.from_pylist(rows, pa.schema(kinds | {"kind": pa.string()}))
    for name, written in {
        "plain": table,
        "dictionary": table.set_column(4, "kind", table["kind"].dictionary_encode()),
    }.items():
        path = write_arrow(tmp_path / f"{name}.arrow", written, stream, 7, compression=compression)
        opened = arrow_rows.table_of(str(path))
        assert (opened.group_starts[-1], opened.damage, len(opened.batches)) == (60, [], 9)
        for number in drawn.sample(range(60), 60):
            found = json.loads(arrow_rows.row_json(str(path), opened.file.version, number))
            assert found == without_null_fields(replace_media_by_names(rows[number], f"{name}.arrow::{number}"))
            if rows[number]["bare"] is not None:
                cell = arrow_rows.open_cell(str(path), f"{number}/bare")
                assert (cell.size, cell.read(3, 20)) == (len(WIDE), WIDE[3:23])
            for index, image in enumerate(rows[number]["many"] or ()):
                if image and image["bytes"]:
                    cell = arrow_rows.open_cell(str(path), f"{number}/many/{index}/bytes")
                    assert cell.read(0, cell.size) == image["bytes"]
    for key in ("60/bare", "0/none", "0/many/9/bytes", "x/bare"):
        with pytest.raises(KeyError):
            arrow_rows.open_cell(str(path), key)


def test_a_batch_has_the_dictionary_that_stood_before_it(tmp_path: Path) -> None:
    """A stream may replace a dictionary: the first batch got the words of the last."""
    path = tmp_path / "a.arrow"
    batches = [pa.record_batch({"text": pa.array(words).dictionary_encode()}) for words in (["cat", "dog"], ["car"])]
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    table = arrow_rows.table_of(str(path))
    rows = [arrow_rows.row_json(str(path), table.file.version, number) for number in range(3)]
    assert [json.loads(row)["text"] for row in rows] == ["cat", "dog", "car"]
    with pytest.raises(KeyError):
        open_cell(str(path), "1")


@pytest.mark.parametrize("rows", [0, 3])
def test_a_file_of_polars_is_whole(rows: int, tmp_path: Path) -> None:
    """It has no length before the schema (polars 2.1): it was called cut, and the advice was to get it again."""
    words = pa.array(["cat", "dog", "cat"]).dictionary_encode()
    table = pa.table({"question": words, "answer": words}).slice(0, rows)
    path = write_arrow(tmp_path / "a.arrow", table, stream=False, rows=2)
    raw = path.read_bytes()
    end = 16 + int.from_bytes(raw[12:16], "little")  # of the schema, behind the magic bytes and its length
    path.write_bytes(raw[:8] + raw[16:end] + bytes(8) + raw[end:])
    assert pa.ipc.open_file(str(path)).schema == table.schema
    assert answers(path) == ["cat", "dog", "cat"][:rows]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(PackError, match="is no whole Arrow file"):
        read(path)


def test_a_state_of_another_program_names_no_files(tmp_path: Path) -> None:
    """All Arrow files beside it were left out, without a word."""
    write_arrow(tmp_path / "a.arrow", asked("x"))
    (tmp_path / "state.json").write_text('{"step": 5}')
    assert [shard.name for shard in find_source(SourceConfig(), str(tmp_path)).shards] == ["a.arrow"]


def test_a_saved_dataset_is_the_files_that_it_names(tmp_path: Path) -> None:
    """A folder that was filtered has caches of `datasets`, and one that was saved again has files of the first time."""
    folder = save(
        tmp_path / "set", ("data-00000-of-00002.arrow", asked("a")), ("data-00001-of-00002.arrow", asked("b"))
    )
    write_arrow(folder / "cache-684ae503780791c3.arrow", asked("mapped"))
    write_arrow(folder / "data-00002-of-00003.arrow", asked("old"))
    source = find_source(SourceConfig(), str(folder))
    assert [shard.name for shard in source.shards] == ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    assert source_summary(source) == "Arrow, 2 files"
    (folder / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(PackError, match=r"state\.json names .*data-00001-of-00002\.arrow, which is not there"):
        read(folder)
    state = {
        "_data_files": [{"filename": "data-00000-of-00002.arrow"}],
        "_indices_data_files": [{"filename": "i.arrow"}],
    }
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(PackError, match="chosen rows of files, by an old version of datasets: save it again"):
        read(folder)


def test_splits_of_a_dataset_dict_are_its_folders(tmp_path: Path) -> None:
    """Also those with names that tell no split elsewhere."""
    for name in ("train", "calibration"):
        save(tmp_path / name, ("data-00000-of-00001.arrow", asked(name)))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "calibration"]}')
    assert answers(tmp_path, split="calibration") == ["calibration"]
    assert answers(tmp_path, split="train") == answers(tmp_path / "train") == ["train"]
    with pytest.raises(PackError, match=r"calibration: 1 file, train: 1 file; source\.split=train takes one split"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("cut", "said"), [(40, "within a batch of 2,0.. bytes"), (3000, "within a batch"), (8, "without a mark of its end")]
)
def test_a_cut_stream_keeps_its_whole_batches(cut: int, said: str, tmp_path: Path) -> None:
    path = write_arrow(tmp_path / "a.arrow", asked(*map(str, range(40))), rows=10)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(PackError, match=rf"damaged file .*a\.arrow: it breaks off,? {said}"):
        read(path)
    (shard,) = find_source(SourceConfig(), str(path)).shards
    index = shard.index()
    assert index["reason"].to_pylist() == [None] * (len(index) - 1) + ["invalid_json"]
    assert len(parse_index_damage(index_metadata(index))) == 1


def test_damage_in_an_arrow_file_costs_rows_or_cells(tmp_path: Path) -> None:
    """A wrong offset of a text ended the process; 3,000 files were damaged so."""
    drawn = random.Random(3)
    for number in range(60):
        stream, compression = bool(number % 2), drawn.choice([None, "lz4", "zstd"])
        path = write_arrow(tmp_path / f"{number}.arrow", asked(*"abcdefgh"), stream, 4, compression=compression)
        raw = bytearray(path.read_bytes())
        for _ in range(drawn.choice([1, 3, 20])):
            raw[drawn.randrange(8, len(raw))] = drawn.randrange(256)
        path.write_bytes(raw)
        try:
            table = arrow_rows.table_of(str(path))
        except PackError:
            continue
        for row in range(table.group_starts[-1]):
            try:
                json.loads(arrow_rows.row_json(str(path), table.file.version, row))
                arrow_rows.open_cell(str(path), f"{row}/image/bytes").read(0, 9)
            except (Skip, KeyError):
                pass


@pytest.mark.parametrize("named", ["auto", "table"])
def test_packs_of_a_saved_dataset(named: str, config: Make, tmp_path: Path) -> None:
    """Copied or by reference, packs hold the cells' own bytes, and verify reads the source again."""
    texts = [f"answer {n}" for n in range(30)]
    folder = save(tmp_path / "in", ("data-00000-of-00001.arrow", asked(*texts)))
    media = MediaIn.reference if named == "table" else MediaIn.copy
    run: PackConfig = config(folder, output__media=media, source__format=named)
    pack(run)
    out = Path(run.output.dir) / str(run.output.name)
    packs = [json.loads(parts["json"]) for parts in samples(out).values()]
    assert sorted(m["messages"][1]["content"] for one in packs for m in one["messages"]) == sorted(texts)
    if media is MediaIn.reference:
        refs = [ref for one in packs for member in one["media_refs"] for ref in member]
        assert sorted(refs) == sorted(["data-00000-of-00001.arrow", f"{n}/image/bytes"] for n in range(30))
    checks = (str(out), "--source", "--decode", "--num-workers", "1")
    verified = command_here("energon_pack.verify", *checks, cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_stored_batch_above_one_gigabyte_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_rows, "_MAX_BATCH_BYTES", 100)
    large: Callable[[str], Path] = lambda how: write_arrow(tmp_path / f"{how}.arrow", asked("a"), compression=how)  # noqa: E731
    with pytest.raises(PackError, match=r"has a batch of .*, which is read at once: write smaller ones"):
        arrow_rows.table_of(str(large("lz4")))
