"""The form of a source's files is found by their names; ambiguous ones are refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.samples.settings import ReadSettings
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.sample import read_sample
from energon_pack.sources.settings import Format, SourceConfig
from energon_pack.sources.source_file import IndexRow, rows_of
from energon_pack.sources.source_path import find_forms, find_source, source_format, source_summary
from energon_pack.verify import Options, verify
from support.finding import find_lines, find_shards
from support.packed import Make, json_lines, packed, prepare, samples, train
from support.running import ROOT, command_here
from support.samples import chat, picture, write_tar

AUTO = SourceConfig()


def a_tar(path: Path) -> Path:
    write_tar(path, {"a.json": chat("<image>?", "from a tar"), "a.png": picture(format="PNG")})
    return path


def a_file_of_lines(path: Path) -> Path:
    path.write_text(chat("?", "from a line").decode() + "\n")
    return path


@pytest.mark.parametrize(("name", "form"), [("a.tar", "wds"), ("a.jsonl", "jsonl"), ("a.json", "jsonl")])
def test_a_file_is_what_it_is_called(tmp_path: Path, name: str, form: str) -> None:
    """Without it each first run on JSONL ended with "damaged tar"."""
    path = a_tar(tmp_path / name) if form == "wds" else a_file_of_lines(tmp_path / name)
    assert find_forms(str(path)).forms == [form]
    source = find_source(AUTO, str(path))
    assert source_format(source) == form
    assert source_summary(source) == {"wds": "WebDataset tars, 1 file", "jsonl": "JSONL, 1 file"}[form]


def test_names_in_capitals_are_the_same_forms(tmp_path: Path) -> None:
    """Beside others, such a file was left out in silence."""
    a_tar(tmp_path / "a.tar")
    a_tar(tmp_path / "B.TAR")
    a_file_of_lines(tmp_path / "C.JSONL")
    table = pa.table({"question": ["a"], "answer": ["b"], "image": pa.array([picture()])})
    pq.write_table(table, tmp_path / "D.PARQUET")
    source = find_source(AUTO, str(tmp_path))
    assert [shard.name for shard in source.shards] == ["B.TAR", "C.JSONL", "D.PARQUET", "a.tar"]
    with SourceReader() as reader:
        (row,) = rows_of(source.shards[2].index(), IndexRow)
        assert read_sample(reader, source.shards[2], row, ReadSettings()).kinds == ["image"]


def test_a_folder_of_several_forms_is_one_source(tmp_path: Path) -> None:
    """Without it the samples of one form were left out, or the folder was refused."""
    a_tar(tmp_path / "a.tar")
    a_file_of_lines(tmp_path / "more.jsonl")
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    source = find_source(AUTO, str(tmp_path))
    assert (source_format(source), [shard.name for shard in source.shards]) == (Format.auto, ["a.tar", "more.jsonl"])
    assert source_summary(source, 2) == "WebDataset tars, 1 file; JSONL, 1 file; 2 samples"
    assert source_format(find_source(SourceConfig(format="wds"), str(tmp_path))) is Format.wds
    assert source_summary(find_source(AUTO, str(tmp_path / "notes.csv"))) == "CSV, 1 file"
    (tmp_path / "data.arrow").touch()
    with pytest.raises(
        PackError, match=r"data\.arrow is no whole Arrow file: ValueError: it does not begin with a schema"
    ):
        find_source(AUTO, str(tmp_path / "data.arrow")).shards[0].index()
    with pytest.raises(PackError, match=r"a\.tar: source=table reads \*\.parquet, \*\.arrow, \*\.csv, \*\.tsv"):
        source_summary(find_source(SourceConfig(format="table"), str(tmp_path / "a.tar")))


def test_lines_with_the_name_of_a_tar_are_refused(tmp_path: Path) -> None:
    """They may be the samples of the tar once more, or be about them: nobody may guess."""
    a_tar(tmp_path / "00000.tar")
    a_file_of_lines(tmp_path / "00000.jsonl")
    with pytest.raises(PackError, match=r"00000\.jsonl has the name of a tar beside it: source=wds reads the tars"):
        find_source(AUTO, str(tmp_path))


def lines_with(path: Path, *names: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ({"messages": chat_of("<image>?", "A cat."), "images": [name]} for name in names)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def chat_of(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


@pytest.mark.parametrize(
    ("annotations", "medium"),
    [
        ("a.jsonl", "images/sub/1.png"),
        ("a.jsonl", "sub/1.png"),
        ("annotations/a.jsonl", "images/sub/1.png"),
        ("annotations/a.jsonl", "sub/1.png"),
    ],
)
def test_media_are_found_around_the_file(config: Make, tmp_path: Path, annotations: str, medium: str) -> None:
    """Each first run on LLaVA's files ended with missing_media for all of them."""
    root = tmp_path / "set"
    path = lines_with(root / annotations, "sub/1.png", "sub/gone.png")
    (root / medium).parent.mkdir(parents=True)
    (root / medium).write_bytes(picture(format="PNG"))
    (shard,) = find_source(AUTO, str(path)).shards
    assert shard.path_of("sub/1.png") == str(root / medium)
    run = config([str(path)], source__format="auto", max_skipped=1.0)
    pack(run)
    (packed,) = Path(run.output.dir).glob("packed")
    assert [line["reason"] for line in json_lines(packed / "skipped.jsonl")] == ["missing_media"]
    verified = command_here("energon_pack.verify", str(packed), "--source", "--num-workers", "1", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_media_beside_the_file_come_first(tmp_path: Path) -> None:
    """A copy in another folder may be another size."""
    path = lines_with(tmp_path / "a.jsonl", "1.png", "2.png")
    for name in ("1.png", "images/1.png", "images/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(picture(format="PNG"))
    (shard,) = find_source(AUTO, str(path)).shards
    assert shard.media_root == str(tmp_path)


def test_media_in_two_places_are_refused(tmp_path: Path) -> None:
    """Small and large images often lie in two folders with the same names."""
    path = lines_with(tmp_path / "a.jsonl", "1.png")
    for name in ("small/1.png", "large/1.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(picture(format="PNG"))
    with pytest.raises(PackError, match=r"1\.png is in .*large and in .*small: source\.media_root=FOLDER says"):
        find_source(AUTO, str(path))


def test_ledgers_are_no_samples(tmp_path: Path) -> None:
    """A ledger lies beside tars of a packed dataset, which are a source, too."""
    a_tar(tmp_path / "a.tar")
    (tmp_path / "skipped.jsonl").touch()
    assert find_forms(str(tmp_path)).forms == [Format.wds]


def test_a_folder_of_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"no \*\.tar, \*\.jsonl, \*\.parquet, \*\.arrow, \*\.csv or \*\.tsv there"):
        find_source(AUTO, str(tmp_path))


def test_a_json_that_is_alone_in_its_folder_is_read_and_several_are_named(tmp_path: Path) -> None:
    """The most common form, LLaVA's JSON beside a folder of images, was refused with advice to type its name."""
    path = tmp_path / "llava.json"
    path.write_text('[{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}]')
    assert [shard.name for shard in find_source(AUTO, str(tmp_path)).shards] == ["llava.json"]
    (tmp_path / "stats.json").write_text("{}")
    with pytest.raises(PackError, match=r"several \*\.json \(.*llava\.json, .*stats\.json\): name the one to read"):
        find_source(AUTO, str(tmp_path))
    a_file_of_lines(tmp_path / "train.jsonl")
    assert [shard.name for shard in find_source(AUTO, str(tmp_path)).shards] == ["train.jsonl"]


def test_folders_without_samples_name_what_is_there(tmp_path: Path) -> None:
    """Folders of classes, a metadataset of Energon: "no *.tar there" was no help."""
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat/1.JPG").touch()
    with pytest.raises(PackError, match=r"media as .*1\.JPG, and nothing that says what to train: a metadata\.jsonl"):
        find_source(AUTO, str(tmp_path))
    blend = tmp_path / "blend.yaml"
    blend.write_text("__module__: megatron.energon\n__class__: MetadatasetV2\n")
    with pytest.raises(PackError, match=r"no form of YAML that is read: a mixture has a list `mixture`"):
        find_source(AUTO, str(blend))


def test_one_plan_over_tars_and_lines(config: Make, tmp_path: Path) -> None:
    """Two runs would be two datasets, with packs, steps and orders of their own."""
    paths = [str(a_tar(tmp_path / "a.tar")), str(a_file_of_lines(tmp_path / "b.jsonl"))]
    run = config(paths, packing__group_by="none", packing__max_token_len=256)
    pack(run)
    (packed,) = Path(run.output.dir).glob("packed")
    (parts,) = samples(packed).values()
    assert sorted(path.name for path in packed.glob("*.tar")) == ["packed-000000.tar"]
    assert all(text in parts["json"] for text in (b"from a tar", b"from a line"))
    assert json_lines(packed / "skipped.jsonl") == []
    verified = command_here("energon_pack.verify", str(packed), "--source", "--num-workers", "1", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize("num_rows", [1, 10_000], ids=["shorter than a header", "longer"])
def test_parquet_is_no_damaged_tar(config: Make, tmp_path: Path, num_rows: int) -> None:
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table({"a": list(range(num_rows))}), path)
    with pytest.raises(PackError, match=r"train\.parquet is .*Parquet: source=table reads it"):
        pack(config(path, source__format=Format.wds))


@pytest.mark.parametrize("find", [find_shards, find_lines])
def test_a_folder_of_parquet_says_so(tmp_path: Path, find: Callable[[str], object]) -> None:
    """The message was `no *.tar there`, without the files that are there or a remedy."""
    pq.write_table(pa.table({"a": [1]}), tmp_path / "train.parquet")
    with pytest.raises(PackError, match=r"no \*\.(tar|jsonl) there; source=table reads .*train\.parquet"):
        find(str(tmp_path))


def test_no_message_names_a_page_that_a_wheel_lacks() -> None:
    """A user of a wheel has no docs/: what a message tells it has to tell itself."""
    package = [path for path in (ROOT / "energon_pack").rglob("*.py") if "shipped" not in path.parts]
    texts = {path.name: path.read_text() for path in (*package, *(ROOT / "conf").rglob("*.yaml"))}
    assert [name for name, text in texts.items() if re.search(r"docs/[\w/]*\.md", text)] == []


def dataset_yaml(kind: str, **field_map: str) -> dict[str, Any]:
    return {"sample_type": {"__module__": "megatron.energon", "__class__": kind}, "field_map": field_map}


def a_set(folder: Path, about: dict[str, Any], **parts: Any) -> Path:
    """A prepared folder with one sample of two images, texts, and values that become JSON."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in parts.items()}
    members = {f"1.{name.replace('__', '.')}": text.encode() for name, text in texts.items()}
    write_tar(folder / "a.tar", {"1.jpg": picture(), "1.other.jpg": picture(80, 80), **members})
    return prepare(folder, about)


WRITTEN = {"title": "no", "caption": "no", "text": "no", "said": {"best": ["A cat.", "no"]}, "q": "What?"}


CAPTION, ANSWER = "json[said][best][0]", "json[no],json[said][best]"
OF_OLD = {"__module__": "megatron.energon", "__class__": "CaptioningWebdataset"}


@pytest.mark.parametrize(
    ("about", "parts", "turns"),
    [
        (dataset_yaml("CaptioningSample", image="jpg", caption=CAPTION), {}, ["", "A cat."]),
        (dataset_yaml("CaptioningSample", image="png,jpg", caption="txt"), {"txt": "A cat.\n"}, ["", "A cat."]),
        (dataset_yaml("VQASample", image="jpg", context="json[q]", answers=ANSWER), {}, ["What?", "A cat."]),
        (dataset_yaml("OCRSample", image="jpg", text=CAPTION), {}, ["", "A cat."]),
        (dataset_yaml("TextSample", text=CAPTION), {}, ["A cat."]),
        ({**OF_OLD, "field_map": {"image": "jpg", "caption": "txt"}}, {"txt": "A cat."}, ["", "A cat."]),
    ],
    ids=["a caption", "a text", "a question", "text of a picture", "a document", "as Energon wrote it of old"],
)
def test_fields_are_those_of_the_field_map(
    config: Make, tmp_path: Path, about: dict[str, Any], parts: dict[str, Any], turns: list[str]
) -> None:
    """The JSON has other captions, and a text, and the sample another image: all of it was trained in their place."""
    source = a_set(tmp_path / "set", about, **{"json": WRITTEN, **parts})
    folder = packed(config(source, source__format="auto", packing__max_token_len=256))
    (pack,) = samples(folder).values()
    (member,) = json.loads(pack["json"])["messages"]
    assert [turn["content"].removeprefix("<image>").strip() for turn in member["messages"]] == turns
    assert len(pack) == 1 + min(2, len(turns))  # its JSON, its tokens, and one image of a question
    assert verify(folder, Options(source=[], num_workers=1)).first_defects(9) == []


def test_energon_reads_the_same(tmp_path: Path) -> None:
    about = dataset_yaml("VQASample", image="jpg", context="json[q]", answers="json[no],json[said][best]")
    (sample,) = train(a_set(tmp_path / "set", about, json=WRITTEN))
    assert (sample.context, sample.answers) == ("What?", ["A cat.", "no"])


@pytest.mark.parametrize(
    ("about", "line"),
    [
        (
            dataset_yaml("MultiChoiceVQASample", image="jpg", context="json[q]"),
            "a MultiChoiceVQASample has no question",
        ),
        (
            dataset_yaml("VQASample", image="jpg", context="question.txt", answers="answer.txt"),
            "takes texts from question.txt, answer.txt: one part",
        ),
    ],
)
def test_what_can_not_be_followed_is_refused(tmp_path: Path, about: dict[str, Any], line: str) -> None:
    write_tar(tmp_path / "a.tar", {"1.json": json.dumps(WRITTEN).encode(), "1.jpg": picture()})
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / ".nv-meta" / "dataset.yaml").write_text(yaml.safe_dump(about))
    (tmp_path / ".nv-meta" / "split.yaml").write_text("split_parts: {train: [a.tar]}")
    with pytest.raises(PackError, match=rf"dataset\.yaml: .*{line}.*source\.map or source\.columns"):
        find_source(AUTO, str(tmp_path))
    assert len(find_source(SourceConfig(messages_key="q"), str(tmp_path)).shards) == 1


def test_code_of_a_folder_is_named_and_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = {"sample_type": {"__module__": "x", "__class__": "Y"}, "sample_loader": "sample_loader.py:sample_loader"}
    source = find_source(AUTO, str(a_set(tmp_path / "set", loader, json=WRITTEN)))
    assert source_summary(source) == "WebDataset tars, 1 file"
    assert "its sample_loader is not run: samples are read by their JSON or text" in capsys.readouterr().out
