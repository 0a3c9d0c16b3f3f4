"""What users of other systems have on disk, made as those systems write it, and the same samples as plain JSONL.

A function writes one spelling of a kind, with dirt, into an empty folder, and returns what its user expects: which
samples are trained, and why the others are left out. Nothing of it calls the package.
"""

import base64
import csv
import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from support.packed import prepare
from support.samples import picture

Record = dict[str, Any]
IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"
CLEAN: Mapping[str, int] = {}


@dataclass(frozen=True)
class Expected:
    """What the user of a form expects of it."""

    path: str  # what is typed as source.path, in the folder
    records: Sequence[Record]  # its samples as lines of JSONL, each as often as it is trained
    skipped: Mapping[str, int] = field(default_factory=dict)  # reason → samples
    words: tuple[str, ...] = ()  # what else is typed


Write = Callable[[Path], Expected]
FORMS: dict[str, list[Write]] = {}


def form(kind: str) -> Callable[[Write], Write]:
    """Add a spelling to a kind."""

    def add(write: Write) -> Write:
        FORMS.setdefault(kind, []).append(write)
        return write

    return add


def image(folder: Path, name: str, size: int) -> bytes:
    """Write a picture of a size of its own, so that samples that get another's picture have another length."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    data = picture(28 * size, 28, "PNG" if name.endswith("png") else "JPEG")
    path.write_bytes(data)
    return data


def chat(question: str, answer: str, *images: Path | str) -> Record:
    """Return the sample as it stands in a JSONL."""
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns, "images": [str(path) for path in images]} if images else {"messages": turns}


def document(text: str, *images: Path | str) -> Record:
    """Return a document with a placeholder where each picture stands."""
    return {"text": text, "images": [str(path) for path in images]} if images else {"text": text}


def llava(question: str, answer: str, image: str | None = None, **more: Any) -> Record:
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    return {**more, **({} if image is None else {"image": image}), "conversations": turns}


def write_lines(path: Path, records: Sequence[Any], end: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(end.join(json.dumps(record, ensure_ascii=False) for record in records).encode() + end.encode())


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2))


def write_csv(path: Path, rows: Sequence[Sequence[Any]], bom: bool = False, **how: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    csv.writer(text, **how).writerows(rows)
    path.write_bytes(((BOM if bom else "") + text.getvalue()).encode())


def write_tar(path: Path, files: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


# --- InternVL: {name: {root, annotation, repeat_time, data_augment, length}} ------------------------------------------


@form("InternVL meta")
def internvl_from_its_repository(folder: Path) -> Expected:
    """As `shell/data/*.json` are: the meta is two folders down, and its paths begin where training is started."""
    for n in range(4):
        image(folder / "data/coco", f"train2017/{n}.jpg", n + 1)
    lines = [llava(f"<image>\nq{n}", f"a{n}", f"train2017/{n}.jpg", id=n, width=28, height=28) for n in range(4)]
    lines.append(llava("<image>\nq", "a", "train2017/gone.jpg", id=9))
    lines.append(llava("text alone", "yes", id=10))
    write_lines(folder / "data/coco/annotations/coco_karpathy_train_567k.jsonl", lines)
    entry = {
        "root": "data/coco/",
        "annotation": "data/coco/annotations/coco_karpathy_train_567k.jsonl",
        "data_augment": False,
        "repeat_time": 1,
        "length": 566747,
    }
    write_json(folder / "shell/data/coco_caption.json", {"coco_karpathy_train_567k": entry})
    trained = [chat(f"<image>\nq{n}", f"a{n}", folder / f"data/coco/train2017/{n}.jpg") for n in range(4)]
    trained.append(chat("text alone", "yes"))
    return Expected("shell/data/coco_caption.json", trained, {"missing_media": 1})


@form("InternVL meta")
def internvl_that_repeats(folder: Path) -> Expected:
    """`repeat_time` 2 takes all twice, 0.5 the first half; roots are absolute or empty; names are Chinese."""
    for n in range(7):
        image(folder / "图片", f"{n}.png", n + 1)
    first = [llava(f"<image>第{n}张", f"答{n}", f"{n}.png") for n in range(3)]
    write_lines(folder / "标注/甲.jsonl", first, "\r\n")
    write_lines(folder / "标注/乙.jsonl", [llava(f"<image>半{n}", f"b{n}", f"{n}.png") for n in range(7)])
    write_lines(folder / "标注/文.jsonl", [llava(f"t{n}", f"c{n}") for n in range(2)])
    meta = {
        "甲": {
            "root": str(folder / "图片"),
            "annotation": str(folder / "标注/甲.jsonl"),
            "repeat_time": 2,
            "length": 3,
        },
        "乙": {"root": "图片/", "annotation": "标注/乙.jsonl", "repeat_time": 0.5, "data_augment": True, "length": 7},
        "文": {"root": "", "annotation": "标注/文.jsonl", "data_augment": False, "repeat_time": 1, "length": 2},
    }
    write_json(folder / "meta.json", meta)
    trained = [chat(f"<image>第{n}张", f"答{n}", folder / f"图片/{n}.png") for n in range(3)] * 2
    trained += [chat(f"<image>半{n}", f"b{n}", folder / f"图片/{n}.png") for n in range(3)]  # int(7 * 0.5)
    trained += [chat(f"t{n}", f"c{n}") for n in range(2)]
    return Expected("meta.json", trained)


@form("InternVL meta")
def internvl_of_several_images(folder: Path) -> Expected:
    """Lists of images, sizes beside them as InternVL's documentation shows, and a share of fewer lines than one."""
    for n in range(3):
        image(folder / "media/a", f"{n}.jpg", n + 1)
    several = llava("图一 <image>\n图二 <image>\nwhat differs?", "all", id=0) | {"image": ["0.jpg", "2.jpg"]}
    several |= {"width_list": [28, 84], "height_list": [28, 28]}
    empty = llava("<image>\nq", "", "1.jpg", id=1)
    write_lines(folder / "media/anno.jsonl", [several, empty, llava("<image>\nlast", "z", "1.jpg", id=2)])
    write_lines(folder / "media/tiny.jsonl", [llava("never", "drawn")])
    meta = {
        "several": {"root": "media/a", "annotation": "media/anno.jsonl", "data_augment": False, "repeat_time": 1},
        "tiny": {"root": "media/a", "annotation": "media/tiny.jsonl", "data_augment": False, "repeat_time": 0.3},
    }
    write_json(folder / "several.json", meta)
    both = folder / "media/a/0.jpg", folder / "media/a/2.jpg"
    trained = [chat("图一 <image>\n图二 <image>\nwhat differs?", "all", *both)]
    trained.append(chat("<image>\nlast", "z", folder / "media/a/1.jpg"))
    return Expected("several.json", trained, {"empty_answer": 1})


# --- LLaVA-OneVision: datasets: [{json_path, sampling_strategy}] ------------------------------------------------------


@form("LLaVA-OneVision YAML")
def onevision_positions(folder: Path) -> Expected:
    """As `scripts/train/onevision.yaml` is: absolute JSON lists, shares rounded up, comments behind the paths."""
    for n in range(7):
        image(folder / "images", f"{n}.jpg", n + 1)
    for name in ("half", "last", "all"):
        records = [llava(f"<image>\n{name}{n}", f"{n}", f"{n}.jpg", id=f"{name}-{n}") for n in range(7)]
        write_json(folder / f"llava_instruct/{name}.json", records)
    (folder / "onevision.yaml").write_text(
        f"""datasets:
  - json_path: {folder}/llava_instruct/half.json # not released
    sampling_strategy: "first:50%"
  # - json_path: {folder}/llava_instruct/gone.json
  #   sampling_strategy: "all"
  - json_path: {folder}/llava_instruct/last.json
    sampling_strategy: end:2
  - json_path: {folder}/llava_instruct/all.json # released in lmms-lab/LLaVA-NeXT-Data
    sampling_strategy: "all"
"""
    )
    names = [f"half{n}" for n in range(4)] + ["last5", "last6"] + [f"all{n}" for n in range(7)]
    trained = [chat(f"<image>\n{name}", name[-1], folder / f"images/{name[-1]}.jpg") for name in names]
    return Expected("onevision.yaml", trained, words=("source.media_root=images",))


@form("LLaVA-OneVision YAML")
def onevision_of_lines(folder: Path) -> Expected:
    """JSONL beside JSON, no strategy, more asked for than is there, `first:0%`, CRLF, a missing image."""
    for n in range(3):
        image(folder / "图", f"{n}.png", n + 1)
    lines = [llava(f"<image>\nq{n}", f"a{n}", f"{n}.png") for n in (0, 1, 2, 7)]
    write_lines(folder / "a.jsonl", lines, "\r\n")
    write_json(folder / "b.json", [llava(f"p{n}", f"b{n}") for n in range(3)])
    write_json(folder / "c.json", [llava(f"r{n}", f"c{n}") for n in range(3)])
    text = """datasets:\r
  - json_path: a.jsonl\r
  - json_path: b.json\r
    sampling_strategy: first:1000\r
  - json_path: c.json\r
    sampling_strategy: end:34%\r
"""
    (folder / "mid_stage.yaml").write_bytes(text.encode())
    trained = [chat(f"<image>\nq{n}", f"a{n}", folder / f"图/{n}.png") for n in range(3)]
    trained += [chat(f"p{n}", f"b{n}") for n in range(3)] + [chat(f"r{n}", f"c{n}") for n in (1, 2)]  # ceil(1.02)
    return Expected("mid_stage.yaml", trained, {"missing_media": 1}, ('source.media_root="图"',))


@form("LLaVA-OneVision YAML")
def onevision_of_media_folders(folder: Path) -> Expected:
    """One-key entries over files whose images lie where the JSON says, from the YAML's folder."""
    for n in range(2):
        image(folder / "data/images", f"{n}.jpg", n + 1)
    records = [llava(f"<image>\nq{n}", f"a{n}", f"images/{n}.jpg", data_source="x") for n in range(2)]
    write_json(folder / "data/one.json", records)
    write_json(folder / "data/two.json", [llava("<image>\nseen twice", "yes", "images/0.jpg")])
    entries = [
        {"json_path": "data/one.json", "sampling_strategy": "first:100%"},
        {"json_path": "data/two.json", "sampling_strategy": "all"},
    ]
    (folder / "single_image.yml").write_text(yaml.safe_dump({"datasets": entries}))
    trained = [chat(f"<image>\nq{n}", f"a{n}", folder / f"data/images/{n}.jpg") for n in range(2)]
    trained.append(chat("<image>\nseen twice", "yes", folder / "data/images/0.jpg"))
    return Expected("single_image.yml", trained)


# --- Energon's Metadataset --------------------------------------------------------------------------------------------


def prepared(folder: Path, name: str, number: int) -> list[Record]:
    """Write a folder that `energon prepare` has prepared; return its samples."""
    files: dict[str, bytes] = {}
    for n in range(number):
        turns = [{"role": "user", "content": f"<image>{name} {n}"}, {"role": "assistant", "content": f"{n}"}]
        files[f"{n:04}.json"] = json.dumps({"messages": turns}).encode()
        files[f"{n:04}.jpg"] = image(folder / "kept", f"{name}{n}.jpg", n + 1)
    write_tar(folder / name / "shard-0.tar", files)
    crude = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    prepare(folder / name, crude)
    return [chat(f"<image>{name} {n}", f"{n}", folder / f"kept/{name}{n}.jpg") for n in range(number)]


@form("Energon Metadataset")
def metadataset_of_weights(folder: Path) -> Expected:
    """Equal weights of equally many samples: each comes once."""
    trained = prepared(folder, "coco", 3) + prepared(folder, "coyo", 3)
    blend = [{"weight": 5, "path": "./coco", "subflavors": {"augment": True}}, {"weight": 5, "path": "./coyo"}]
    value = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {"blend": blend}}}
    (folder / "metadataset.yaml").write_text(yaml.safe_dump(value, sort_keys=False))
    return Expected("metadataset.yaml", trained)


@form("Energon Metadataset")
def metadataset_of_repetitions(folder: Path) -> Expected:
    """A blend_epochized with a nested file, and a validation split that is not packed with the train split."""
    coco, coyo, val = prepared(folder, "coco", 2), prepared(folder, "coyo", 3), prepared(folder, "val", 1)
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    inner = {**head, "splits": {"train": {"path": "../coyo"}, "val": {"path": "../val", "split_part": "train"}}}
    (folder / "inner").mkdir()
    (folder / "inner/mds.yaml").write_text(yaml.safe_dump(inner, sort_keys=False))
    blend = [
        {"repetitions": 2, "path": "./coco", "subflavors": {"a": 1}},
        {"repetitions": 1, "path": "./inner/mds.yaml"},
    ]
    outer = {**head, "splits": {"train": {"blend_epochized": blend}, "val": {"path": "./inner/mds.yaml"}}}
    (folder / "metadataset.yaml").write_text(yaml.safe_dump(outer, sort_keys=False))
    assert val
    return Expected("metadataset.yaml", [*coco, *coco, *coyo], words=("source.split=train",))


@form("Energon Metadataset")
def metadataset_of_the_first_version(folder: Path) -> Expected:
    """`Metadataset` with `datasets`, its split chosen."""
    coco, val = prepared(folder, "coco", 2), prepared(folder, "val", 2)
    splits = {
        "train": {"datasets": [{"weight": 1, "path": "coco", "subflavor": "x"}]},
        "val": {"datasets": [{"weight": 1, "path": "val", "split_part": "train"}]},
    }
    value = {"__module__": "megatron.energon", "__class__": "Metadataset", "splits": splits}
    (folder / "mds.yaml").write_text(yaml.safe_dump(value, sort_keys=False))
    assert coco
    return Expected("mds.yaml", val, words=("source.split=val",))


# --- Hugging Face's save_to_disk --------------------------------------------------------------------------------------


def save_to_disk(folder: Path, batches: Sequence[pa.Table], split: str = "train") -> None:
    """Write what `Dataset.save_to_disk` writes: streams, and two JSON files that name them."""
    folder.mkdir(parents=True)
    number = len(batches)
    names = [f"data-{n:05}-of-{number:05}.arrow" for n in range(number)]
    for name, table in zip(names, batches, strict=True):
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "5f2ad1f9a1f1d1c4",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    write_json(folder / "state.json", state)
    write_json(folder / "dataset_info.json", {"citation": "", "description": "", "features": {}, "homepage": ""})


TURN = pa.struct({"role": pa.string(), "content": pa.string()})


def image_table(folder: Path, numbers: Sequence[int], name: str) -> tuple[pa.Table, list[Record]]:
    """Make rows with the feature Image; the last has no picture, though it asks about one."""
    rows, trained = [], []
    for n in numbers:
        data = image(folder / "kept", f"{name}{n}.png", n + 1)
        messages = [{"role": "user", "content": f"<image>{name} {n}"}, {"role": "assistant", "content": f"ä{n}"}]
        rows.append({"messages": messages, "images": [{"bytes": data, "path": None}]})
        trained.append(chat(f"<image>{name} {n}", f"ä{n}", folder / f"kept/{name}{n}.png"))
    messages = [{"role": "user", "content": "<image>lost"}, {"role": "assistant", "content": "no"}]
    rows.append({"messages": messages, "images": []})
    schema = pa.schema({"messages": pa.list_(TURN), "images": pa.list_(IMAGE)})
    return pa.Table.from_pylist(rows, schema), trained


@form("save_to_disk")
def saved_dataset(folder: Path) -> Expected:
    """Two Arrow streams of several record batches, and what `datasets` leaves beside them."""
    (one, first), (two, second) = image_table(folder, range(3), "a"), image_table(folder, range(3, 5), "b")
    save_to_disk(folder / "saved", [one, two])
    left_over = str(folder / "saved/cache-1a2b3c4d5e6f.arrow")
    with pa.OSFile(left_over, "wb") as sink, pa.ipc.new_stream(sink, one.schema) as stream:
        stream.write_table(one)
    return Expected("saved", first + second, {"missing_media": 2})


@form("save_to_disk")
def saved_dataset_dict(folder: Path) -> Expected:
    """A DatasetDict: a folder for each split."""
    (train, trained), (test, _) = image_table(folder, range(3), "a"), image_table(folder, range(2), "t")
    save_to_disk(folder / "dict/train", [train])
    save_to_disk(folder / "dict/test", [test], "test")
    write_json(folder / "dict/dataset_dict.json", {"splits": ["train", "test"]})
    return Expected("dict", trained, {"missing_media": 1}, ("source.split=train",))


@form("save_to_disk")
def an_arrow_file(folder: Path) -> Expected:
    """One file of the random-access format, compressed, with dictionaries, and a file of pictures beside it."""
    image(folder, "p.png", 2)
    values = {
        "image": pa.array(["p.png", "p.png", None, "gone.png"]),
        "question": pa.array(["q", "q", "text?", "q"]).dictionary_encode(),
        "answer": pa.array(["a", None, "t", "a"]),
    }
    table = pa.table(values)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with (
        pa.OSFile(str(folder / "rows.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema, options=options) as to,
    ):
        to.write_table(table)
    trained = [chat("<image>q", "a", folder / "p.png"), chat("text?", "t")]
    return Expected("rows.arrow", trained, {"no_messages": 1, "missing_media": 1})


# --- CSV --------------------------------------------------------------------------------------------------------------


@form("CSV")
def csv_of_excel(folder: Path) -> Expected:
    """BOM, CRLF, quotes within quotes, a line end within a cell, blank lines, an empty answer, a missing file."""
    for n in range(3):
        image(folder, f"图 {n}.jpg", n + 1)
    rows = [
        ["image", "question", "answer"],
        ["图 0.jpg", 'Was steht da: "ja"?', "ja, nein"],
        ["图 1.jpg", "zwei\r\nZeilen?", "ä"],
        [],
        ["图 2.jpg", "empty?", ""],
        ["gone.jpg", "q", "a"],
        ["", "text alone", "007"],
    ]
    write_csv(folder / "vqa.csv", rows, bom=True)
    trained = [
        chat('<image>Was steht da: "ja"?', "ja, nein", folder / "图 0.jpg"),
        chat("<image>zwei\r\nZeilen?", "ä", folder / "图 1.jpg"),
        chat("text alone", "007"),
    ]
    return Expected("vqa.csv", trained, {"missing_media": 1, "no_messages": 1})


@form("CSV")
def csv_of_pandas(folder: Path) -> Expected:
    """`to_csv` with its nameless index; turns are JSON in a cell."""
    rows: list[list[Any]] = [["", "messages", "source"]]
    trained = []
    for n in range(3):
        record = chat(f'q{n}, "so"\nja', f"a{n}")
        rows.append([n, json.dumps(record["messages"], ensure_ascii=n == 1), "x"])
        trained.append(record)
    rows.append([3, "[{'role': ", "x"])
    write_csv(folder / "data/chat.csv", rows, lineterminator="\n")
    return Expected("data/chat.csv", trained, {"bad_message": 1})


@form("CSV")
def csv_of_nobodys_names(folder: Path) -> Expected:
    """Semicolons, as spreadsheets of half of Europe write; the columns are named by the user."""
    image(folder / "bilder", "ä.png", 2)
    rows = [["Bild", "Frage", "Antwort"], ["bilder/ä.png", "Was, bitte?", "Das; dies"], ["", "Und?", "Nein"]]
    write_csv(folder / "export.csv", rows, delimiter=";")
    trained = [chat("<image>Was, bitte?", "Das; dies", folder / "bilder/ä.png"), chat("Und?", "Nein")]
    names = "source.columns.images=Bild", "source.columns.prompt=Frage", "source.columns.response=Antwort"
    return Expected("export.csv", trained, words=names)


# --- TSV --------------------------------------------------------------------------------------------------------------


@form("TSV")
def tsv_of_vlmevalkit(folder: Path) -> Expected:
    """Base64 in `image`, rows of several choices."""
    rows: list[list[Any]] = [["index", "image", "question", "answer", "category"]]
    trained = []
    for n in range(3):
        data = image(folder / "kept", f"{n}.jpg", n + 1)
        rows.append([n, base64.b64encode(data).decode(), f"What\tis {n}?", f"B{n}", "x"])
        trained.append(chat(f"<image>What\tis {n}?", f"B{n}", folder / f"kept/{n}.jpg"))
    rows.append([3, base64.b64encode(data[:-400]).decode(), "q", "a", "x"])
    write_csv(folder / "Custom.tsv", rows, delimiter="\t", lineterminator="\n")
    return Expected("Custom.tsv", trained, {"unreadable_media": 1})


@form("TSV")
def tsv_of_captions(folder: Path) -> Expected:
    """Files and their captions, without a line end at the end; a quote is a letter where it does not begin a cell."""
    for n in range(2):
        image(folder / "images", f"{n}.jpg", n + 1)
    (folder / "captions.tsv").write_text('image\tcaption\nimages/0.jpg\ta 5" disk\nimages/1.jpg\tein Bär')
    trained = [
        chat("<image>", 'a 5" disk', folder / "images/0.jpg"),
        chat("<image>", "ein Bär", folder / "images/1.jpg"),
    ]
    return Expected("captions.tsv", trained)


@form("TSV")
def tsv_of_instructions(folder: Path) -> Expected:
    """Alpaca's columns, of which the input is mostly empty."""
    rows = [["instruction", "input", "output"], ["add", "1 1", "2"], ["greet", "", "hi"], ["", "", ""], ["x", "", ""]]
    write_csv(folder / "alpaca.tsv", rows, delimiter="\t", bom=True)
    return Expected("alpaca.tsv", [chat("add\n1 1", "2"), chat("greet", "hi")], {"no_messages": 2})


# --- interleaved documents --------------------------------------------------------------------------------------------


@form("OBELICS")
def obelics_downloaded(folder: Path) -> Expected:
    """Parquet as on the hub, whose addresses were replaced by files; one page still has an address."""
    for n in range(2):
        image(folder / "images", f"{n}.jpg", n + 1)
    pages: list[tuple[list[str | None], list[str | None], str | None]] = [
        (["images/0.jpg", None, "images/1.jpg"], [None, "Ein Bär.", None], "<image>Ein Bär.<image>"),
        ([None, "images/1.jpg", None], ["First.", None, "Last."], "First.<image>Last."),
        (["https://a.com/x.jpg", None], [None, "An address."], None),
        ([None, None], [None, "Its picture was not downloaded."], None),
    ]
    general = json.dumps({"url": "https://a.com", "warc_filename": "x"})
    rows = [
        {"images": i, "metadata": json.dumps([None] * len(i)), "general_metadata": general, "texts": t}
        for i, t, _ in pages
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train-00000-of-01335.parquet")
    trained = [
        document(text, *(folder / name for name in images if name)) for images, _, text in pages if text is not None
    ]
    return Expected("train-00000-of-01335.parquet", trained, {"unsupported_media": 1, "missing_media": 1})


@form("OBELICS")
def obelics_with_its_pictures(folder: Path) -> Expected:
    """Pictures in cells, as pages are saved after img2dataset; two texts meet, a text is empty, a picture is gone."""
    first, second = (image(folder / "kept", f"{n}.png", n + 1) for n in range(2))
    cells = [{"bytes": data, "path": None} for data in (first, second)]
    rows = [
        {"images": [cells[0], None, None, cells[1]], "texts": [None, "One.", "Two.", None]},
        {"images": [None, cells[1], None], "texts": ["", None, "After."]},
        {"images": [{"bytes": None, "path": "gone.png"}, None], "texts": [None, "Its picture is gone."]},
        {"images": [None], "texts": [None]},
    ]
    schema = pa.schema({"images": pa.list_(IMAGE), "texts": pa.list_(pa.string())})
    (folder / "data").mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / "data/train-0.parquet")
    both = folder / "kept/0.png", folder / "kept/1.png"
    trained = [document("<image>One.\n\nTwo.<image>", *both), document("<image>After.", both[1])]
    return Expected("data", trained, {"missing_media": 1, "no_messages": 1})


@form("OBELICS")
def obelics_as_lines(folder: Path) -> Expected:
    """JSONL of CoMM and OmniCorpus: the same two lists, names relative to the file, one picture twice."""
    image(folder / "画", "一.jpg", 3)
    lines = [
        {"texts": ["甲", None, "乙", None], "images": [None, "画/一.jpg", None, "画/一.jpg"], "url": "x"},
        {"texts": [None, "t"], "images": ["画/二.jpg", None]},
    ]
    write_lines(folder / "omni.jsonl", lines, "\r\n")
    name = folder / "画/一.jpg"
    return Expected("omni.jsonl", [document("甲<image>乙<image>", name, name)], {"missing_media": 1})


def matched(name: str, place: int) -> Record:
    address = {"raw_url": f"http://www.hfitinfo.com/{name}", "matched_sim": 0.27, "face_detections": None}
    return {"image_name": name, "matched_text_index": place, **address}


@form("MMC4")
def mmc4_shard(folder: Path) -> Expected:
    """`docs_shard_0_v2.jsonl` with pictures downloaded by their names: each stands before its sentence."""
    for n in range(2):
        image(folder, f"b904{n}.jpg", n + 1)
    texts = ["When you lock the door.", "Press the switch.", "All doors lock."]
    facts = {"similarity_matrix": [[0.2, 0.3, 0.2]] * 2, "url": "http://a.com", "could_have_url_duplicate": 0}
    lines = [
        {"text_list": texts, "image_info": [matched("b9040.jpg", 2), matched("b9041.jpg", 1)], **facts},
        {"text_list": texts, "image_info": [matched("b9041.jpg", 0), matched("b9040.jpg", 0)], **facts},
        {"text_list": texts, "image_info": [], **facts},
        {"text_list": texts, "image_info": [matched("gone.jpg", 0)], **facts},
    ]
    write_lines(folder / "docs_shard_0_v2.jsonl", lines)
    zero, one = folder / "b9040.jpg", folder / "b9041.jpg"
    trained = [
        document(f"{texts[0]} <image>{texts[1]} <image>{texts[2]}", one, zero),
        document(f"<image><image>{' '.join(texts)}", one, zero),
        document(" ".join(texts)),
    ]
    return Expected("docs_shard_0_v2.jsonl", trained, {"missing_media": 1})


@form("MMC4")
def mmc4_with_base64(folder: Path) -> Expected:
    """Pictures in base64 in each line, as OpenFlamingo's convert_mmc4_to_wds takes them."""
    data = image(folder / "kept", "0.jpg", 2)
    info = {**matched("0.jpg", 1), "image_base64": base64.b64encode(data).decode()}
    value = {"text_list": ["Ö.", "P."], "image_info": [info], "similarity_matrix": [[0.1, 0.2]]}
    write_lines(folder / "docs.jsonl", [value])
    return Expected("docs.jsonl", [document("Ö. <image>P.", folder / "kept/0.jpg")])


@form("MMC4")
def mmc4_beside_its_pictures(folder: Path) -> Expected:
    """Parquet of the mirror on the hub, pictures in a folder beside it, an empty sentence among others."""
    image(folder / "images", "x.jpg", 2)
    row = {"text_list": ["A.", "", "B."], "image_info": [matched("x.jpg", 2)], "url": "u"}
    (folder / "data").mkdir()
    pq.write_table(pa.Table.from_pylist([row]), folder / "data/train.parquet")
    return Expected("data/train.parquet", [document("A. <image>B.", folder / "images/x.jpg")])


@form("MINT-1T")
def mint_tar(folder: Path) -> Expected:
    """A tar of documents, whose pictures are members beside the JSON."""
    one, two = (image(folder / "kept", f"{n}.jpg", n + 1) for n in range(2))
    value = {"texts": [None, "Abstract.", None, "End."], "images": ["a.0.jpg", None, "a.1.jpg", None], "url": "u"}
    lost = {"texts": [None, "Lost."], "images": ["b.0.jpg", None]}
    files = {
        "a.json": json.dumps(value).encode(),
        "a.0.jpg": one,
        "a.1.jpg": two,
        "b.json": json.dumps(lost).encode(),
    }
    write_tar(folder / "CC-MAIN-0.tar", files)
    trained = [document("<image>Abstract.<image>End.", folder / "kept/0.jpg", folder / "kept/1.jpg")]
    return Expected("CC-MAIN-0.tar", trained, {"missing_media": 1})


@form("MINT-1T")
def mint_arxiv(folder: Path) -> Expected:
    """A tar with a folder for each paper, whose pictures are TIFF and PNG, named by the whole name or by the part."""
    (folder / "kept").mkdir()
    first, second = picture(56, 28, "TIFF"), image(folder / "kept", "1.png", 3)
    (folder / "kept/0.tiff").write_bytes(first)
    value = {"texts": ["Page.", None, None], "images": [None, "p.0.tiff", "1.png"], "pdf_name": "x.pdf"}
    files = {"0/p.json": json.dumps(value).encode()}
    write_tar(folder / "arXiv_src_1804_001_wds.tar", {**files, "0/p.0.tiff": first, "0/p.1.png": second})
    both = folder / "kept/0.tiff", folder / "kept/1.png"
    return Expected("arXiv_src_1804_001_wds.tar", [document("Page.<image><image>", *both)])


@form("MINT-1T")
def mint_html(folder: Path) -> Expected:
    """Parquet of web pages: addresses that nobody downloads, places that are removed on demand."""
    pages = [
        ([None, "A page."], ["https://a.com/1.jpg", None]),
        (["Text.", None, "More."], [None, "https://a.com/2.jpg", None]),
        ([None], ["https://a.com/3.jpg"]),
    ]
    rows = [{"texts": texts, "images": images, "url": "u", "image_metadata": "[]"} for texts, images in pages]
    rows.append({"texts": ["Seen.", None], "images": [None, "seen.png"], "url": "u", "image_metadata": "[]"})
    image(folder, "seen.png", 2)
    pq.write_table(pa.Table.from_pylist(rows), folder / "html.parquet")
    trained = [document("A page."), document("Text.\n\nMore."), document("Seen.<image>", folder / "seen.png")]
    return Expected("html.parquet", trained, {"no_messages": 1}, ("source.missing_media=remove",))


# --- image folders ----------------------------------------------------------------------------------------------------


@form("image folder")
def image_folder_csv(folder: Path) -> Expected:
    """`metadata.csv` beside the images; one image has no row, one row no image."""
    rows = [["file_name", "text"]]
    trained = []
    for n in range(3):
        image(folder / "pokemon", f"{n} ä.jpg", n + 1)
        rows.append([f"{n} ä.jpg", f"a green, {n}-eyed toy"])
        trained.append(chat("<image>", f"a green, {n}-eyed toy", folder / f"pokemon/{n} ä.jpg"))
    image(folder / "pokemon", "spare.jpg", 9)
    rows.append(["gone.jpg", "nothing"])
    write_csv(folder / "pokemon/metadata.csv", rows, bom=True)
    return Expected("pokemon", trained, {"missing_media": 1})


@form("image folder")
def image_folder_of_splits(folder: Path) -> Expected:
    """A folder for each split, each with a metadata.csv; names lead into subfolders."""
    trained = []
    for split in ("train", "test"):
        image(folder / f"set/{split}", "sub/0.png", 2)
        write_csv(folder / f"set/{split}/metadata.csv", [["file_name", "text"], ["sub/0.png", f"of {split}"]])
        trained.append(chat("<image>", f"of {split}", folder / f"set/{split}/sub/0.png"))
    return Expected("set", trained[:1], words=("source.split=train",))


@form("image folder")
def image_folder_of_lines(folder: Path) -> Expected:
    """`metadata.jsonl` with captions, in a subfolder."""
    image(folder / "set/images", "0.png", 2)
    rows = [{"file_name": "0.png", "text": "a caption", "label": None}, {"file_name": "1.png", "text": "lost"}]
    write_lines(folder / "set/images/metadata.jsonl", rows)
    return Expected("set", [chat("<image>", "a caption", folder / "set/images/0.png")], {"missing_media": 1})


@form("image folder")
def image_folder_parquet(folder: Path) -> Expected:
    """`metadata.parquet`, with questions."""
    image(folder / "vqa", "0.png", 2)
    table = {"file_name": ["0.png", "1.png"], "question": ["q", "q"], "answer": ["a", "a"]}
    pq.write_table(pa.table(table), folder / "vqa/metadata.parquet")
    return Expected("vqa", [chat("<image>q", "a", folder / "vqa/0.png")], {"missing_media": 1})


@form("image folder")
def images_named_by_a_csv(folder: Path) -> Expected:
    """A CSV beside the folder of images, as Kaggle's sets are (`image,caption`)."""
    image(folder / "Images", "1000268201_693b08cb0e.jpg", 3)
    image(folder / "Images", "1001773457_577c3a7d70.jpg", 2)
    rows = [
        ["image", "caption"],
        ["1000268201_693b08cb0e.jpg", "A child in a pink dress ."],
        ["1000268201_693b08cb0e.jpg", "A girl going into a wooden building ."],
        ["1001773457_577c3a7d70.jpg", "A black dog and a spotted dog"],
    ]
    write_csv(folder / "captions.txt.csv", rows, lineterminator="\n")
    trained = [chat("<image>", caption, folder / "Images" / name) for name, caption in rows[1:]]
    return Expected("captions.txt.csv", trained)
