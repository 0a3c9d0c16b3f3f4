"""What is said where the model hub gives no processor: each cause has another remedy."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from energon_pack.errors import PackError
from energon_pack.templates.folder import local_folder
from energon_pack.templates.models import model_of, packaged_models


@pytest.mark.parametrize("kind", [errors.LocalEntryNotFoundError, errors.GatedRepoError])
def test_the_hub_says_no_for_a_reason(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """The class of the error, and what to do."""

    def refuse(*_: object, **__: Any) -> None:
        raise kind.__new__(kind)  # its response is of a class that depends on the version of huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(PackError, match=rf"did not give it \({kind.__name__}.*HF_TOKEN.*model\.processor=FOLDER"):
        local_folder("a/b")


def test_a_processor_of_another_model_is_answered_with_its_name() -> None:
    assert model_of("Qwen2_5_VLProcessor") == "qwen2_5_vl"
    assert model_of("Qwen3VLProcessor") == "qwen3_vl"
    assert model_of("SomeProcessor") == "auto"
    assert {model_of("Qwen2_5_VLProcessor"), "auto"} <= set(packaged_models())


def test_a_folder_that_is_not_there_is_no_name_of_a_hub(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"no such folder$"):
        local_folder(str(tmp_path / "none"))
