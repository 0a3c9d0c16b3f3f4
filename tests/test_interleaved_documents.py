"""Interleaved documents end to end: the same tokens as one text with `<image>`, from a JSONL, a tar and a table."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from energon_pack import LazyPackedDataset, StreamingPackedDataset
from energon_pack.config import PackConfig, Stage
from energon_pack.errors import PackError, SamplesLost
from energon_pack.online.user_dataset import UserSamples
from energon_pack.pack import pack
from energon_pack.samples.settings import MissingMediaPolicy, ReadSettings
from energon_pack.stages import planning
from energon_pack.trainers.on_disk import PackedDataset
from support.marks import slow
from support.packed import json_lines, lengths, packed
from support.running import command_here, need_torchvision
from support.samples import picture, write_tar

Make = Callable[..., PackConfig]
PICTURES = {"a.jpg": picture(56, 56), "ü 猫.png": picture(112, 56, "PNG"), "empty.jpg": b""}
#: `texts`, `images`: documents with all that real ones have; then the text of each, and its pictures
DOCUMENTS: list[tuple[list[Any], list[Any], str, list[str]]] = [
    (["One cat.", None, "", None], [None, "a.jpg", None, "ü 猫.png"], "One cat.<image><image>", ["a.jpg", "ü 猫.png"]),
    ([None, "Twice.", None], ["a.jpg", None, "a.jpg"], "<image>Twice.<image>", ["a.jpg", "a.jpg"]),
    (["No", "picture."], [None, None], "No\n\npicture.", []),
    (["A", None, "B", None], [None, "gone.jpg", None, "a.jpg"], "A\n\nB<image>", ["a.jpg"]),
    (["A", None, "B", None], [None, "https://x.org/c.jpg", None, "a.jpg"], "A\n\nB<image>", ["a.jpg"]),
    (["A ", None, "B"], [None, "empty.jpg", None], "A B", []),
    (["A", None, "B"], [None, None, None], "A\n\nB", []),
]
WHOLE = 3  # documents none of whose pictures is missing
ASKED = [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "A cat."}]


def write_jsonl(folder: Path, *records: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in PICTURES.items():
        (folder / name).write_bytes(data)
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (folder / "d.jsonl").write_text(lines, encoding="utf-8")
    return folder / "d.jsonl"


def as_jsonl(folder: Path) -> Path:
    return write_jsonl(folder, *({"texts": texts, "images": images} for texts, images, *_ in DOCUMENTS))


def as_mmc4(folder: Path) -> Path:
    """The same pictures, each before the sentence that follows it; a document ends with an empty one."""
    records = []
    for texts, images, *_ in DOCUMENTS:
        infos, sentences = list[Any](), list[str]()
        for text, image in zip(texts, images, strict=True):
            sentences += [text.strip()] if text else []
            if image or text is None:
                infos.append({"image_name": image, "matched_text_index": len(sentences), "matched_sim": 0.3})
        records.append({"text_list": [*sentences, ""], "image_info": infos, "similarity_matrix": []})
    return write_jsonl(folder, *records)


def as_tar(folder: Path) -> Path:
    members: dict[str, bytes] = {}
    for number, (texts, images, *_) in enumerate(DOCUMENTS):
        members[f"{number}.json"] = json.dumps({"texts": texts, "images": images}).encode()
        members |= {f"{number}.{name}": PICTURES[name] for name in images if name in PICTURES}
    return write_tar(folder / "d.tar", members)


def as_parquet(folder: Path) -> Path:
    """Pictures are cells; one that is missing has null as its bytes, with a name or without."""

    def cell(name: str | None) -> Any:
        return name and {"bytes": PICTURES.get(name), "path": name}

    table = pa.table(
        {
            "texts": pa.array([texts for texts, *_ in DOCUMENTS], pa.list_(pa.string())),
            "images": pa.array(
                [[cell(name) for name in images] for _, images, *_ in DOCUMENTS],
                pa.list_(pa.struct({"bytes": pa.binary(), "path": pa.string()})),
            ),
            "metadata": pa.array(["[null]"] * len(DOCUMENTS)),
        }
    )
    folder.mkdir()
    pq.write_table(table, folder / "d.parquet")
    return folder / "d.parquet"


def trained(folder: Path, processor: Path) -> list[tuple[list[int], list[int], int]]:
    """The ids and labels of each member, and how many pictures it has, in the order of the source."""
    packs = PackedDataset(folder, str(processor))
    members = {member.sample_id: member for number in range(len(packs)) for member in packs[number].members}
    in_order = [members[name] for name in sorted(members)]
    return [(m.tokens.ids.tolist(), m.tokens.labels.tolist(), m.num_images) for m in in_order]


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    need_torchvision()


@pytest.mark.parametrize("write", [slow(as_jsonl), as_mmc4, slow(as_tar), as_parquet])
def test_what_is_trained_is_the_text_with_its_pictures(
    write: Callable[[Path], Path], config: Make, tmp_path: Path, demo: tuple[Path, Path]
) -> None:
    """Ids and labels equal those of the same documents as `text`, in which `<image>` stands where each picture does."""
    between = " " if write is as_mmc4 else "\n\n"
    texts = [{"text": text.replace("\n\n", between), "images": names} for *_, text, names in DOCUMENTS]
    as_texts = packed(config(write_jsonl(tmp_path / "text", *texts), output__name="texts"))
    made = config(write(tmp_path / "made"), source__missing_media=MissingMediaPolicy.remove)
    folder = packed(made)
    assert trained(folder, demo[1]) == trained(as_texts, demo[1])
    report = json.loads((folder / "report.json").read_text())
    assert (report["samples_packed"], report["removed"]) == (len(DOCUMENTS), {"pictures": 4, "documents": 4})
    checked = command_here("energon_pack.verify", folder, "--source", "--processor", demo[1], cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout


def test_by_default_a_document_with_a_picture_that_is_missing_is_left_out(config: Make, tmp_path: Path) -> None:
    folder = packed(config(as_jsonl(tmp_path / "made"), max_skipped=0.7))
    found = [(entry["sample_id"], entry["reason"]) for entry in json_lines(folder / "skipped.jsonl")]
    reasons = ["missing_media", "unsupported_media", "missing_media", "missing_media"]
    assert found == [(f"d.jsonl:{number}", reason) for number, reason in enumerate(reasons, WHOLE + 1)]
    assert len(lengths(folder)) == WHOLE
    assert "removed" not in json.loads((folder / "report.json").read_text())


def test_a_question_about_a_picture_that_is_missing_is_never_trained(config: Make, tmp_path: Path) -> None:
    answer = {"messages": ASKED[1:], "images": ["gone.jpg"]}
    chats = [{"messages": ASKED, "images": [name]} for name in ("a.jpg", "gone.jpg")]
    path = write_jsonl(tmp_path / "made", *chats, {"text": "A <image>", "images": ["gone.jpg"]}, answer)
    folder = packed(config(path, max_skipped=0.8, source__missing_media=MissingMediaPolicy.remove))
    assert [entry["sample_id"] for entry in json_lines(folder / "skipped.jsonl")] == [f"d.jsonl:{n}" for n in (2, 3, 4)]


def test_a_set_of_which_every_picture_is_missing_is_not_published(
    config: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong media_root would make a set of texts of a set of pictures."""
    gone = {"texts": ["A", None, None], "images": [None, "x.jpg", "y.jpg"]}
    made = config(write_jsonl(tmp_path / "made", gone, {"text": "B"}), source__missing_media=MissingMediaPolicy.remove)
    with pytest.raises(SamplesLost, match="every picture is missing: 2 pictures of 1 document, and no sample has one"):
        pack(made)
    assert "removed: 2 pictures that are missing, of 1 document\n" in capsys.readouterr().out
    made.stage = Stage.plan
    with pytest.raises(SamplesLost, match="every picture is missing"):
        pack(made)
    with pytest.raises(SamplesLost, match="every picture is missing"):
        LazyPackedDataset(made)


def test_a_picture_that_comes_later_is_measured(config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place would stay empty for ever; within a run, its tokens would be others than were planned."""
    made = config(as_jsonl(tmp_path / "made"), source__missing_media=MissingMediaPolicy.remove, output__overwrite=True)
    gone, plan = tmp_path / "made" / "gone.jpg", planning.plan_source
    first = lengths(packed(made))
    gone.write_bytes(picture(56, 56))
    with_it = lengths(packed(made))
    assert [name for name in first if with_it[name] != first[name]] == [("d.jsonl", "4", "")]
    assert with_it["d.jsonl", "4", ""][2] == ["gone.jpg", "a.jpg"]
    gone.unlink()
    assert lengths(packed(made)) == first

    def plan_while_it_comes(*arguments: Any) -> Any:
        gone.write_bytes(picture(56, 56))
        return plan(*arguments)

    monkeypatch.setattr(planning, "plan_source", plan_while_it_comes)
    with pytest.raises(PackError, match=r"gone\.jpg changed since it was measured: run again; not published"):
        pack(made)


def test_documents_in_memory(config: Make, tmp_path: Path, demo: tuple[Path, Path]) -> None:
    """A Hugging Face dataset has null where a text stands, and a picture, bytes or a path elsewhere."""
    write_jsonl(tmp_path / "made")
    items = [
        {"texts": ["A", None], "images": [None, PICTURES["a.jpg"]]},
        {"texts": ["A", None, "B"], "images": [None, {"bytes": None, "path": "a.jpg"}, None]},
        {"texts": ["A", None, "B", None], "images": [None, b"", None, "a.jpg"]},
        {"texts": ["A", None, "B", None], "images": [None, None, None, "gone.jpg"]},
    ]
    remove = ReadSettings(missing_media=MissingMediaPolicy.remove)
    given = UserSamples(items, remove, str(tmp_path / "made"))
    texts = [given.sample_for_measuring(number).messages[0]["content"] for number in range(len(items))]
    assert texts == ["A<image>", "A<image>B", "A\n\nB<image>", "A\n\nB"]
    made = config(source__missing_media=MissingMediaPolicy.remove)
    made.source.path, made.source.media_root = None, str(tmp_path / "made")
    packs = LazyPackedDataset(made, items, fingerprint="documents")
    assert packs.report is not None
    assert (packs.report.samples_packed, packs.report.removed) == (4, {"pictures": 3, "documents": 2})
    assert sum(len(pack.members) for pack in (packs[number] for number in range(len(packs)))) == 4
    stream = StreamingPackedDataset(made, sources=[items], replacement=False)
    assert sum(len(pack.members) for pack in stream) == 4
    assert stream.statistics()["removed"] == 3, "a stream removed places, and said it nowhere"
    state = stream.state_dict()
    again = StreamingPackedDataset(made, sources=[items], replacement=False, states=[state])
    next(iter(again), None)
    assert again.statistics()["removed"] == 3
    counted = {name: number for name, number in state["counted"].items() if name != "removed"}
    earlier = {**state, "counted": [*counted.values()]}  # as a state was before places were counted
    again = StreamingPackedDataset(made, sources=[items], replacement=False, states=[earlier])
    next(iter(again), None)
    assert again.statistics() == {**stream.statistics(), "removed": 0}


@pytest.mark.slow
def test_the_full_processor_of_a_real_model_counts_the_same(config: Make, tmp_path: Path, real: Path) -> None:
    """Each document is compared with the call of Qwen2.5-VL's own processor."""
    made = config(as_jsonl(tmp_path / "made"), source__missing_media=MissingMediaPolicy.remove, measure__verify=1.0)
    made.model.processor = str(real / "processors" / "qwen2_5_vl")
    assert pack(made)["samples_verified"] == len(DOCUMENTS)
