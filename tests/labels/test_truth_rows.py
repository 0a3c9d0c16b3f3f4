"""What we train is what real frameworks train: 1,339 rows of 45 chat templates, read as labels.md §1 says.

Without it, a change of the chat templates' code trains another part of a turn, and only a loss would tell, much later.
"""

from pathlib import Path

import pytest

from support.labels.conventions import reason_to_differ
from support.labels.folders import REAL_FOLDERS, download_trl, has_real_folder, make_folder
from support.labels.truth import names, rows_of, shown
from support.marks import slow
from support.running import REAL

pytestmark = pytest.mark.skipif(not (REAL / "labels").is_dir(), reason="../shared/real/labels is not here")


#: a template of its own, one with tiles, and that of most models
TRIED_SOON = ("kimi_k25", "internvl3_hf", "qwen3_vl")


def wrong_rows(name: str, folder: Path) -> dict[str, str]:
    """Rows of a template that differ and may not: with what stands after a turn, too, where frameworks agree on it.

    Without `labels.after_turn` they differ in that white space, and in what closes the whole text.
    """
    wrong = {}
    for verdict in rows_of(name, folder, after_turn=True):
        is_right = verdict.is_right and (verdict.status != "space" or verdict.row["status"] != "agree")
        if not is_right and reason_to_differ(verdict) is None:
            trained = shown(verdict.ours.text, verdict.ours.weights) if verdict.ours else ""
            wrong[verdict.name] = f"{verdict.status} {verdict.detail} {trained}"
    return wrong


@pytest.mark.parametrize("name", [name if name in TRIED_SOON else slow(name) for name in REAL_FOLDERS])
def test_a_real_processor_trains_what_frameworks_train(name: str) -> None:
    assert wrong_rows(name, REAL / "processors" / name) == {}


def test_without_what_stands_after_a_turn_only_white_space_differs() -> None:
    """By default, the newline after ChatML's end token is not trained."""
    name = "qwen2_5_text"
    statuses = {verdict.status for verdict in rows_of(name, REAL / "processors" / name)}
    assert statuses <= {"ok", "space", "words", "skipped"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in names() if not has_real_folder(name)])
def test_a_published_template_trains_what_frameworks_train(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    made = tmp_path_factory.getbasetemp() / "frameworks"
    try:
        trl = download_trl(made / "trl")
    except OSError as error:
        pytest.skip(str(error))
    assert wrong_rows(name, make_folder(name, trl, made)) == {}
