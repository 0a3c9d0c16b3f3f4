"""A folder that Energon has prepared is read as its field map says, which is what Energon itself makes of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from energon_pack.errors import PackError
from energon_pack.sources.forms import find_source, read_as
from energon_pack.sources.settings import SourceConfig
from energon_pack.verify import Options, verify
from support.packed import Make, packed, prepare, samples, train
from support.samples import picture, write_tar

AUTO = SourceConfig()


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
    assert verify(folder, Options(source=[], num_workers=1)).first(9) == []


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
    assert read_as(source) == "WebDataset tars, 1 file"
    assert "its sample_loader is not run: samples are read by their JSON or text" in capsys.readouterr().out
