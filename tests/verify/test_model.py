"""`verify --model` probes a user's own class of models with members of the packed dataset."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_pack.config import ModelConfig, PackConfig, Rope
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.verify import Options, verify
from energon_pack.verify.model import check_model
from support.running import need_torchvision
from support.samples import chat, write_tar
from support.tiny import TEXT, tf

Make = Callable[..., PackConfig]


class Mixing(tf.Qwen2ForCausalLM):
    """Takes a row for one text, as a model does that hands no positions on to its mask."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        return super().forward(input_ids, attention_mask=torch.ones_like(input_ids), use_cache=False)


@pytest.fixture
def images(config: Make, demo: tuple[Path, Path]) -> Path:
    """Some of the demo's samples, with and without images."""
    model = ModelConfig("qwen2_5_vl", "qwen_vl", processor=str(demo[1]), rope=Rope.qwen2_5_vl)
    return packed(config(model=model, packing__max_token_len=2048, source__limit=60))


@pytest.fixture
def texts(config: Make, demo: tuple[Path, Path], tmp_path: Path) -> Path:
    source = write_tar(tmp_path / "source" / "x.tar", {f"{i}.json": chat("hi " * i, "ho " * 5) for i in range(1, 5)})
    model = ModelConfig("text", "text", processor=str(demo[1]), rope=Rope.none)
    return packed(config(source, model=model, packing__max_token_len=512))


def packed(run: PackConfig) -> Path:
    pack(run)
    return Path(run.output.dir) / "packed"


def saved(folder: Path, config: Any, architecture: str) -> str:
    config.architectures = [architecture]
    config.save_pretrained(folder)
    return str(folder)


def test_a_model_of_images_keeps_them_apart(images: Path, tmp_path: Path) -> None:
    """Members with their real media, in a class that is shrunk from what its config says."""
    need_torchvision()
    text = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
    config = tf.Qwen2_5_VLConfig(text_config=text)
    model = saved(tmp_path / "model", config, "Qwen2_5_VLForConditionalGeneration")
    findings = verify(images, Options(model=model))
    assert not findings.num_defects
    assert "made small: 3 members of" in findings.notes[0]
    said = r"mask=positions\): packed and alone differ by \d(\.\d)?e-0[67], outputs vary by"
    assert re.search(said, findings.notes[0])


@pytest.mark.parametrize("trusts", [False, True])
def test_a_models_own_code_runs_only_where_it_is_trusted(
    texts: Path, demo: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, trusts: bool
) -> None:
    """Of a class that transformers does not have, what a config names would be downloaded and run."""
    seen: list[bool] = []
    make = tf.AutoModelForCausalLM.from_config

    def from_config(config: Any, trust_remote_code: bool) -> Any:
        seen.append(trust_remote_code)
        return make(config)

    monkeypatch.setattr(tf.AutoModelForCausalLM, "from_config", from_config)
    model = saved(texts.parent / "model", tf.Qwen2Config(**TEXT), "ClassOfItsOwn")
    assert not check_model(DatasetFolder(texts), model, str(demo[1]), trusts).defects
    assert seen == [trusts]


def test_a_model_that_mixes_is_found(texts: Path, demo: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The row as one text: a change in the first member moves all that come after it."""
    monkeypatch.setattr(Mixing, "config_class", lambda: tf.Qwen2Config(**{**TEXT, "initializer_range": 0.2}))
    checked = check_model(DatasetFolder(texts), f"{__name__}:Mixing", str(demo[1]), False)
    assert "does not keep members apart. nothing tried here keeps them apart" in checked.defects[0]


def test_what_cannot_be_run_here_is_no_defect(texts: Path, demo: tuple[Path, Path]) -> None:
    """Training on it is refused; of the dataset nothing is wrong."""
    checked = check_model(DatasetFolder(texts), "Qwen3_5ForCausalLM", str(demo[1]), False)
    assert checked.defects == []
    assert "could not be tried: ValueError: `chunk_gated_delta_rule` can't keep packed sequences apart" in str(checked)


def test_a_model_that_needs_masks_is_told_so(texts: Path, demo: tuple[Path, Path]) -> None:
    """The dataset's YAML says positions; the way out was probed."""
    manifest = texts / ".nv-meta" / "energon_pack.json"
    assert json.loads(manifest.read_text())["mask"] == "positions"
    (said,) = check_model(DatasetFolder(texts), "GptOssForCausalLM", str(demo[1]), False).defects
    assert "PackedTaskEncoder(attention_mask='dict4d') keeps them apart (packed and alone differ by" in said


@pytest.mark.parametrize("model", ["NoSuch", "energon_pack.nowhere:Class", "energon_pack.pack:NoClass", "/nowhere"])
def test_no_such_model(texts: Path, model: str) -> None:
    with pytest.raises(PackError, match=f"--model {model}: a class of transformers"):
        check_model(DatasetFolder(texts), model, None, False)
