"""A template is built once for a user: another folder of output gets a copy of it, without the model's libraries."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from energon_pack.templates.processor import (
    load_saved_template,
    prepare_template,
    read_media_rules_choice,
    read_template_identity,
    saved_template_folder,
)
from energon_pack.templates.settings import TemplateSettings
from support.models import of_model

OTHER_FILE = "tokenizer_config.json"


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache of templates."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    return tmp_path / "user" / "energon_pack" / "templates"


@pytest.fixture
def settings(demo: tuple[Path, Path], tmp_path: Path) -> TemplateSettings:
    shutil.copytree(demo[1], tmp_path / "processor")
    return of_model("text", tmp_path / "processor")


def files_in(folder: str) -> dict[str, bytes]:
    return {name: Path(folder, name).read_bytes() for name in os.listdir(folder)}


def test_another_cache_gets_the_same_template(settings: TemplateSettings, tmp_path: Path, user: Path) -> None:
    assert saved_template_folder(settings, tmp_path / "first") is None
    made = prepare_template(settings, tmp_path / "first")
    copied = saved_template_folder(settings, tmp_path / "second")
    assert copied is not None
    assert Path(copied).parent == tmp_path / "second" / "templates"
    assert files_in(copied) == files_in(made) == files_in(os.fspath(user / Path(made).name))
    assert (read_media_rules_choice(copied), read_template_identity(copied)) == (
        read_media_rules_choice(made),
        read_template_identity(made),
    )
    assert load_saved_template(copied).fingerprint == load_saved_template(made).fingerprint


def test_a_changed_file_another_setting_or_version_is_another_template(
    settings: TemplateSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_template(settings, tmp_path / "first")
    with_date = replace(settings, model=replace(settings.model, date="2020-01-02"))
    assert saved_template_folder(with_date, tmp_path / "second") is None
    with monkeypatch.context() as patched:
        patched.setattr("energon_pack.templates.processor.version_of", {"transformers": "6.0"}.get)
        assert saved_template_folder(settings, tmp_path / "second") is None
    file = tmp_path / "processor" / OTHER_FILE
    file.write_text(file.read_text() + "\n")
    assert saved_template_folder(settings, tmp_path / "second") is None


def test_a_damaged_copy_is_made_again(
    settings: TemplateSettings, tmp_path: Path, user: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = Path(prepare_template(settings, tmp_path / "first")).name
    (user / name / "tokenizer.json").write_text("{}")
    assert saved_template_folder(settings, tmp_path / "second") is None
    assert f"{user / name} can't be read, and is made again" in caplog.text
    prepare_template(settings, tmp_path / "second")
    assert saved_template_folder(settings, tmp_path / "third")


def test_the_user_has_the_eight_that_were_used_last(settings: TemplateSettings, tmp_path: Path, user: Path) -> None:
    user.mkdir(parents=True)
    for number in range(8):
        (user / f"{number}").mkdir()
        os.utime(user / f"{number}", (number, number))
    made = prepare_template(settings, tmp_path / "first")
    assert {path.name for path in user.iterdir()} == {Path(made).name, *map(str, range(1, 8))}


def test_a_user_without_a_cache_packs_all_the_same(
    settings: TemplateSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "user").write_text("no folder")
    prepare_template(settings, tmp_path / "first")
    assert "is not kept for the next start" in caplog.text
    assert saved_template_folder(settings, tmp_path / "second") is None
