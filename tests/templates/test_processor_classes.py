"""docs/tables/processors.csv says what a run of `benchmarks/processors.py` finds: some of its classes are run again."""

import csv
import importlib
import importlib.metadata
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from energon_pack.errors import PackError
from energon_pack.samples.media.medium import Media
from energon_pack.templates.build import build
from energon_pack.templates.choose_rules import MediaRulesChoice
from energon_pack.templates.sample import Sample
from energon_pack.templates.settings import MediaConfig
from support.marks import slow
from support.models import of_model
from support.running import ROOT, need_torchvision

TABLE = ROOT / "docs" / "tables" / "processors.csv"
#: a few of what the table compares, other sizes than `model=auto` compares itself
FEW = [(), ("image",), ("image",), ("image",) * 2, ("video",), ("uneven", "video", "video"), ("image", "video")]
#: by shapes: numbered images, a placeholder that has to stand between two tokens, videos; by a family's rules; by
#: blank images; refused
QUICK = ("MiniCPMV4_6Processor", "HunYuanVLProcessor", "Kimi_K25Processor", "Qwen3VLProcessor", "ColPaliProcessor")
#: counted by shapes, as HunYuan's is
SIBLINGS = ("MiniCPM", "Kimi")


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script."""
    need_torchvision()
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("processors")


def row_of(processors: ModuleType, name: str) -> dict[str, Any]:
    found = next(one for one in processors.processor_classes() if one.name == name)
    row: dict[str, Any] = processors.row_of(found, FEW)
    return row


def verdicts(table: Path) -> dict[str, list[str]]:
    """What the table of classes says: what counts, and which kinds of media, by class."""
    with table.open(newline="") as file:
        return {row[0]: row[1:6] for row in csv.reader(file)}


def skip_unless_of_this_version() -> None:
    if f"transformers {importlib.metadata.version('transformers')} " not in (ROOT / "docs/models.md").read_text():
        pytest.skip("the table is of another transformers")


@pytest.mark.filterwarnings("ignore")  # of any class of any processor
@pytest.mark.parametrize("name", [slow(name) if name.startswith(SIBLINGS) else name for name in QUICK])
def test_the_table_says_what_counts_a_class(processors: ModuleType, name: str) -> None:
    """A user looks a class up and packs with it: without this, a table of last year would say that it is exact."""
    skip_unless_of_this_version()
    row = row_of(processors, name)
    template, *kinds = verdicts(TABLE)[name]
    assert not row["difference"]
    assert (row["template"] or "–") == template
    assert [kind in row["compared"] for kind in ("image", "video", "uneven", "mixed")] == [
        said not in ("refused", "–") for said in kinds
    ]


@pytest.mark.filterwarnings("ignore")  # of any class of any processor
def test_a_class_that_is_counted_wrong_is_not_in_the_table_as_exact(
    processors: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison could have looked at nothing, and the whole table would say exact."""

    def one_token_more(settings: Any, folder: Path) -> Any:
        template = build(of_model("shapes", folder), folder)
        expand_all = template.rules.expand_all

        def wrong(media: Any, frames: Any) -> Any:
            return [(text + "!", number) for text, number in expand_all(media, frames)]

        monkeypatch.setattr(template.rules, "expand_all", wrong)
        return template, MediaRulesChoice("shapes")

    monkeypatch.setattr(processors, "build_with_best_rules", one_token_more)
    row = row_of(processors, "Qwen2VLProcessor")
    assert row["difference"].startswith("of ")
    assert row["difference"].count("tokens") == 2
    table = importlib.import_module("processor_table")
    assert table.cell(row, "image") == "differs"


@pytest.mark.filterwarnings("ignore")  # of any class of any processor
def test_what_a_call_writes_before_a_conversation_moves_what_is_supervised(
    processors: ModuleType, tmp_path: Path
) -> None:
    """Molmo 2's call writes a first token that its chat template lacks: labels would be those of other tokens."""
    processors.save_dummy("Molmo2Processor", tmp_path)
    template = build(of_model("shapes", tmp_path), tmp_path)
    turns = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A cat."}]
    tokens = template.encode(Sample(turns, []))
    assert template.tokenizer.id_to_token(tokens.ids[0]) == "<s>"
    ids = [tokens.ids[place] for start, end in tokens.supervised for place in range(start, end)]
    assert template.tokenizer.decode(ids).strip() == "A cat."


@pytest.mark.filterwarnings("ignore")  # of any class of any processor
@pytest.mark.parametrize(
    ("name", "media", "is_followed"),
    [
        ("Kimi_K25Processor", MediaConfig(video="uniform", num_frames=8), True),
        slow("Kimi_K25Processor", MediaConfig(video="fps", fps=3.0), True),
        ("MiniCPMV4_6Processor", MediaConfig(video="uniform", num_frames=8), False),  # it shows one frame a second
        slow("MiniCPMV4_6Processor", MediaConfig(video="fps", fps=3.0), False),
    ],
)
def test_a_choice_of_frames_is_followed_or_refused(
    processors: ModuleType, tmp_path: Path, name: str, media: MediaConfig, is_followed: bool
) -> None:
    """`media=uniform` had no effect on a processor with a rule of its own: clips were longer than asked for."""
    processors.save_dummy(name, tmp_path)
    settings = of_model("shapes", tmp_path, media)
    if is_followed:
        video = Media("video", 320, 240, "mp4", 100, 10.0)
        assert len(build(settings, tmp_path).choose_frames(video)) == (media.num_frames or 30)
    else:
        with pytest.raises(PackError, match="by a rule of its own"):
            build(settings, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of any class of any processor
def test_the_whole_table_says_what_is_found_today(
    processors: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rows were written by hand, or lost; or another fix changed what counts a class."""
    skip_unless_of_this_version()
    new, results = tmp_path / "processors.csv", tmp_path / "processors.jsonl"
    monkeypatch.setattr("sys.argv", ["processors.py", "--results", str(results), "--save", str(new)])
    assert processors.main() == 0
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    away = {row["name"] for row in rows if row["refused"].startswith("not built: ImportError")}  # a package of its own
    found, said = verdicts(new), verdicts(TABLE)
    assert found.keys() == said.keys()
    assert {name: found[name] for name in found.keys() - away} == {name: said[name] for name in said.keys() - away}
