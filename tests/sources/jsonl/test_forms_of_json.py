"""JSON that is no plain JSONL: one object, compressed files, meta files of other tools."""

import json
from pathlib import Path
from typing import Any

import pytest

from energon_pack.errors import PackError
from energon_pack.sources.settings import Format
from support.finding import find_lines
from support.packed import Make, json_lines, packed, samples
from support.running import command_here
from support.samples import picture

SAMPLES = [{"question": f"what is {n}?", "answer": f'it is {n}: ]}}"[{{'} for n in range(3)]
DOCVQA = {"dataset_name": "docvqa", "scores": [1, [2]], "data": SAMPLES, "after": [{"a": 1}]}


def elements(path: Path) -> list[Any]:
    index = find_lines(str(path)).shards[0].index().to_pylist()
    raw = path.read_bytes()
    return [row["reason"] or json.loads(raw[row["record_offset"] :][: row["record_size"]]) for row in index]


@pytest.mark.parametrize("indent", [None, 0, 2])
def test_samples_in_the_field_data(indent: int | None, tmp_path: Path) -> None:
    """DocVQA's form. Read as lines it was `invalid_json: 67`."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps(DOCVQA, indent=indent))
    assert elements(path) == SAMPLES


def test_a_list_over_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(SAMPLES, indent=4))
    assert elements(path) == SAMPLES


def test_an_object_with_other_fields_says_what_to_do(tmp_path: Path) -> None:
    """Nobody can tell which list has the samples."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"people": [{"id": 1}], "notes": [{"caption": "a cat"}]}, indent=1))
    with pytest.raises(PackError, match=r"one JSON object over several lines, without a list `data`.*jq -c '.FIELD"):
        elements(path)


@pytest.mark.parametrize(
    "text", ['{"data": 1, "question": "?"}\n', '{"messages": [{"role": "user"}]}\n', '{\n{"a": 1}\n']
)
def test_lines_stay_lines(text: str, tmp_path: Path) -> None:
    """One line, a field of that name with another value, a broken first line before a good one."""
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    index = find_lines(str(path)).shards[0].index()
    assert index["key"].to_pylist() == [str(n + 1) for n in range(text.count("\n"))]


def test_a_list_that_ends_early_costs_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(DOCVQA, indent=1)[:160])
    *whole, last = elements(path)
    assert whole == SAMPLES[: len(whole)]
    assert (len(whole), last) == (1, "invalid_json")


def write_lines(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text("".join(f"{json.dumps(sample)}\n" for sample in SAMPLES))


def test_entries_of_a_meta_file_are_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """LLaMA-Factory's dataset_info.json as it is shipped: some entries are on a hub."""
    write_lines(tmp_path, "a.json", "b.json")
    meta = {"a": {"file_name": "a.json"}, "b": {"file_name": "b.json"}, "hub": {"hf_hub_url": "x/y"}}
    path = tmp_path / "dataset_info.json"
    path.write_text(json.dumps(meta))
    assert [shard.name for shard in find_lines(str(path)).shards] == ["a.json", "b.json"]
    assert "left out, for their files are elsewhere: hub" in capsys.readouterr().out
    assert [shard.name for shard in find_lines(str(path), datasets=["b"]).shards] == ["b.json"]
    with pytest.raises(PackError, match=r"hub has no file_name"):
        find_lines(str(path), datasets=["hub"])
    with pytest.raises(PackError, match=r"source\.datasets: no c among a, b, hub"):
        find_lines(str(path), datasets=["c"])


def test_a_mixture_among_other_paths_is_refused(tmp_path: Path) -> None:
    """Its shares would be those of a part of the source."""
    write_lines(tmp_path, "b.jsonl")
    (tmp_path / "meta.json").write_text(json.dumps({"coco": {"root": "images", "annotation": "a.jsonl"}}))
    with pytest.raises(
        PackError, match=r"coco has no file_name: .*InternVL's meta .* is the only path of source\.path"
    ):
        find_lines([str(tmp_path / "meta.json"), str(tmp_path / "b.jsonl")])
    (tmp_path / "mix.yaml").write_text("datasets: [{json_path: b.jsonl, sampling_strategy: all}]")
    with pytest.raises(PackError, match=r"no form of YAML that is read: a mixture .* is the only path of source"):
        find_lines([str(tmp_path / "mix.yaml"), str(tmp_path / "b.jsonl")])
    (tmp_path / "mix.yaml").write_text("mixture:\n - path: a\n  weight: 1\n")
    with pytest.raises(PackError, match=r"mix\.yaml: .*line 3"):
        find_lines(str(tmp_path / "mix.yaml"))


@pytest.mark.parametrize("indent", [None, 2])
def test_coco_captions_are_packed_with_their_images(
    config: Make, tmp_path: Path, indent: int | None, capfd: pytest.CaptureFixture[str]
) -> None:
    """Captions and images are joined by numbers, and lie in folders beside each other as COCO's own archives do."""
    path = tmp_path / "coco/annotations/captions_val2017.json"
    path.parent.mkdir(parents=True)
    (tmp_path / "coco/val2017").mkdir()
    (tmp_path / "coco/val2017/7.jpg").write_bytes(picture(60, 40))
    images = [{"license": 1, "id": 7, "file_name": "7.jpg"}, {"id": 8, "file_name": "gone.jpg"}]
    captions = [{"image_id": number, "id": n, "caption": f"Caption {n}."} for n, number in enumerate((7, 7, 8, 9))]
    path.write_text(json.dumps({"info": {}, "images": images, "annotations": captions}, indent=indent))
    folder = packed(config(path, source__format=Format.auto, max_skipped=0.9))
    (pack,) = (json.loads(parts["json"]) for parts in samples(folder).values())
    answers = [member["messages"][1]["content"] for member in pack["messages"]]
    assert sorted(answers) == ["Caption 0.", "Caption 1."]
    assert "read as: JSONL, 1 file; media in " in capfd.readouterr().out
    left = {line["sample_id"]: (line["reason"], line["detail"]) for line in json_lines(folder / "skipped.jsonl")}
    assert left["captions_val2017.json:3"][0] == "missing_media"
    assert left["captions_val2017.json:4"] == ("missing_media", "image_id 9 is none of `images`")
    verified = command_here("energon_pack.verify", str(folder), "--source", "--num-workers", "1", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_lines_with_an_image_id_of_their_own_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"image_id": 7, "image": "x.jpg", "caption": "A cat."}\n')
    (raw,) = find_lines(str(path)).shards[0].first(1)  # type: ignore[union-attr]
    assert raw == path.read_bytes().strip()
