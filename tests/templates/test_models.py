"""Every YAML of conf/model is one that packing takes, and docs/models.md says of each what is so."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors
from omegaconf import OmegaConf

from energon_pack.config import Mask, ModelConfig, Rope
from energon_pack.errors import PackError
from energon_pack.samples.media.kinds import AUDIO, IMAGE, VIDEO
from energon_pack.sources.storage import resolve_source_entry
from energon_pack.templates.families import AUTO, FAMILIES
from energon_pack.templates.full_processor import find_or_download_folder
from energon_pack.templates.models import model_name_of, packaged_models, read_model_config
from energon_pack.templates.processor import prepare_template, read_media_rules_choice
from support.models import of_model
from support.running import ROOT, command, need_torchvision

#: the class of each model's processor in transformers, where its YAML does not say it
_CLASSES = {
    "internvl3": "InternVL",
    "internvl3_5": "InternVL",
    "kimi_k2_5": "Kimi_K25",
    "kimi_vl": "Kimi_K25",
    "llava_onevision": "LlavaOnevision",
    "llava_onevision1_5": "Qwen2_5_VL",
    "llava_onevision2": "Qwen2_5_VL",
    "qwen2_5_vl": "Qwen2_5_VL",
    "qwen2_vl": "Qwen2VL",
    "qwen3_5": "Qwen3VL",
    "qwen3_5_moe": "Qwen3VL",
    "qwen3_vl": "Qwen3VL",
    "qwen3_vl_moe": "Qwen3VL",
}
CLASSES = _CLASSES | {
    name: node["processor_class"].removesuffix("Processor")
    for name in packaged_models()
    if "processor_class" in (node := read_model_config(name))
}


def rows() -> Iterator[tuple[str, list[str]]]:
    """Of the table of models: what stands beside each name; several names share a row."""
    table = (ROOT / "docs" / "models.md").read_text().partition("| models |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        _, names, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        yield from ((name, [cell.strip("`") for cell in cells]) for name in re.findall("`([^`]+)`", names))


@pytest.mark.parametrize("name", packaged_models())
def test_each_yaml_is_a_model(name: str) -> None:
    """A key that is none, or a value of no meaning, would end the run of whoever takes the model at its word."""
    node = read_model_config(name)
    merged = OmegaConf.to_container(OmegaConf.merge(OmegaConf.structured(ModelConfig), node), enum_to_str=True)
    assert isinstance(merged, dict)
    assert merged["name"] == name
    assert merged["template"] in (*FAMILIES, AUTO)
    assert merged["mask"] in Mask.__members__
    assert merged["rope"] in Rope.__members__
    assert not merged["trust_remote_code"], "whose code is run, a user says"
    assert node["hub_id"] is None or re.fullmatch(r"[\w.-]+/[\w.-]+", node["hub_id"])
    assert merged["add_special_tokens"] is not True, "a second <bos>, which inference does not have"
    if name != "text":
        assert merged["add_special_tokens"] is None, "transformers decides where it counts"
    is_asked = merged["template"] == AUTO != name
    assert (merged["processor_class"] is not None) == is_asked, "another family's processor would be taken"


def test_the_page_has_each_model() -> None:
    found = dict(rows())
    assert sorted(found) == packaged_models()
    for name, (_, _, mask, rope) in found.items():
        node = read_model_config(name)
        assert (mask, rope) == (node["mask"], node["rope"]), name


@pytest.fixture(scope="module")
def dummies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small processor of each class."""
    need_torchvision()
    folder = tmp_path_factory.mktemp("dummies")
    names = sorted({f"{name}Processor" for name in CLASSES.values()})
    found = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    script = ROOT / "benchmarks" / "processor_classes.py"
    done = command(script, "--save", folder, *names, cwd=folder, PYTHONPATH=found)
    assert done.returncode == 0, done.stderr
    return folder


def test_models_that_take_a_kind_are_those_of_the_page() -> None:
    """ "model.template=qwen_vl sees no audio" left its owner to search for one that does."""
    cells = dict(rows())
    for place, kind in enumerate((IMAGE, VIDEO)):
        assert all(cells[name][place] != "–" for name in kind.models)
    said = {name: (ROOT / "conf" / "model" / f"{name}.yaml").read_text() for name in AUDIO.models}
    assert all(re.search("sounds?", text) for text in said.values())


def test_a_class_is_known_of_each_model() -> None:
    assert sorted(CLASSES) == sorted(set(packaged_models()) - {"auto", "text"})


#: models that take images or videos: the script makes no processor that only hears
SEEING = [row for row in rows() if row[0] in CLASSES and row[1][:2] != ["–", "–"]]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cells"), SEEING)
def test_what_counts_each_models_media(dummies: Path, tmp_path: Path, name: str, cells: list[str]) -> None:
    """`rules`, `shapes` or `pixels`, for each kind of media, with a small processor of the model's class."""
    node, folder = read_model_config(name), dummies / f"{CLASSES[name]}Processor"
    if not folder.is_dir():
        pytest.skip("its class needs a package that is not here")
    settings = of_model(
        node["template"],
        folder,
        add_special_tokens=node.get("add_special_tokens"),
    )
    wanted = {kind: cell for kind, cell in zip(("image", "video"), cells[:2], strict=True) if cell != "–"}
    if "refused" in wanted.values():
        with pytest.raises(PackError, match="cross-attention"):
            prepare_template(settings, tmp_path)
        return
    choice = read_media_rules_choice(prepare_template(settings, tmp_path))
    by = choice.template if choice.template in ("shapes", "pixels") else "rules"
    assert dict.fromkeys(choice.num_compared.keys() & {"image", "video"}, by) == wanted, choice


# ------------------------------------------------------------------------------------------ where a processor lies


@pytest.mark.parametrize("kind", [errors.LocalEntryNotFoundError, errors.GatedRepoError])
def test_the_hub_says_no_for_a_reason(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """The class of the error, and what to do."""

    def refuse(*_: object, **__: Any) -> None:
        raise kind.__new__(kind)  # its response is of a class that depends on the version of huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(PackError, match=rf"did not give it \({kind.__name__}.*HF_TOKEN.*model\.processor=FOLDER"):
        find_or_download_folder("a/b")


def test_a_processor_of_another_model_is_answered_with_its_name() -> None:
    assert model_name_of("Qwen2_5_VLProcessor") == "qwen2_5_vl"
    assert model_name_of("Qwen3VLProcessor") == "qwen3_vl"
    assert model_name_of("SomeProcessor") == "auto"
    assert {model_name_of("Qwen2_5_VLProcessor"), "auto"} <= set(packaged_models())


def test_a_folder_that_is_not_there_is_no_name_of_a_hub(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"no such folder$"):
        find_or_download_folder(str(tmp_path / "none"))


def test_a_folder_of_something_else_is_no_processor_and_a_near_path_is_named(tmp_path: Path) -> None:
    """A folder of data was said to lack the settings of images alone: `+model=text packs texts with it`."""
    (tmp_path / "qwen2_5_vl").mkdir()
    (tmp_path / "qwen2_5_vl" / "data.json").write_text("[]")
    with pytest.raises(PackError, match=r"no folder of a processor: preprocessor_config\.json"):
        find_or_download_folder(str(tmp_path / "qwen2_5_vl"))
    with pytest.raises(PackError, match=r"no such folder; did you mean .*/qwen2_5_vl\?$"):
        find_or_download_folder(str(tmp_path / "qwen25_vl"))
    with pytest.raises(PackError, match=r"no such folder or file; did you mean .*/qwen2_5_vl/data\.json\?$"):
        resolve_source_entry(str(tmp_path / "qwen2_5_vl" / "dat.json"))
