"""What is said where the model hub gives no processor: each cause has another remedy."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from energon_pack.errors import PackError
from energon_pack.templates.folder import local_folder
from energon_pack.templates.models import model_of, packaged_models


@pytest.mark.parametrize(
    ("kind", "is_offline", "said"),
    [
        (errors.LocalEntryNotFoundError, True, "HF_HUB_OFFLINE is set"),
        (errors.LocalEntryNotFoundError, False, "the hub can't be reached"),
        (errors.GatedRepoError, False, "it is gated"),
        (errors.RepositoryNotFoundError, False, r"none of that name \(404\)"),
        (errors.RevisionNotFoundError, False, "no such model.revision"),
    ],
)
def test_the_hub_says_no_for_a_reason(
    kind: type[Exception], is_offline: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All were `the model hub did not give it (LocalEntryNotFoundError)`, or another class."""

    def refuse(*_: object, **__: Any) -> None:
        raise kind.__new__(kind)  # its response is of a class that depends on the version of huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
    with pytest.raises(PackError, match=rf"did not give it: .*{said}.*model\.processor=FOLDER"):
        local_folder("a/b")


def test_a_processor_of_another_model_is_answered_with_its_name() -> None:
    assert model_of("Qwen2_5_VLProcessor") == "qwen2_5_vl"
    assert model_of("Qwen3VLProcessor") == "qwen3_vl"
    assert model_of("SomeProcessor") == "auto"
    assert {model_of("Qwen2_5_VLProcessor"), "auto"} <= set(packaged_models())


def test_a_folder_that_is_not_there_is_no_name_of_a_hub(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"no such folder$"):
        local_folder(str(tmp_path / "none"))
