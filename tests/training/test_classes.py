"""docs/tables/classes.csv says what a run of `benchmarks/classes.py` finds: some of its classes are run again."""

import csv
import importlib.metadata
from pathlib import Path

import pytest

from support.running import ROOT, command

TABLE = ROOT / "docs" / "tables" / "classes.csv"
#: of each verdict some: exact by positions, by masks and by kernels, refused of every kind, with images and without
SAMPLE = (
    "AfmoeForCausalLM",
    "BambaForCausalLM",
    "BertLMHeadModel",
    "BloomForCausalLM",
    "FalconForCausalLM",
    "GptOssForCausalLM",
    "GraniteMoeHybridForCausalLM",
    "JambaForCausalLM",
    "Lfm2ForCausalLM",
    "LlamaForCausalLM",
    "MiniMaxM3VLForCausalLM",
    "OPTForCausalLM",
    "Qwen3_5ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "MllamaForConditionalGeneration",
    "PaliGemmaForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
)


def verdicts(table: Path) -> dict[str, list[str]]:
    """What the table of classes says of media, eager and sdpa, by class."""
    with table.open(newline="") as file:
        return {row[0]: row[1:4] for row in csv.reader(file)}


@pytest.mark.slow
def test_the_table_says_what_is_found_today(tmp_path: Path) -> None:
    if f"transformers {importlib.metadata.version('transformers')} " not in (ROOT / "docs/models.md").read_text():
        pytest.skip("the table is of another transformers")
    new = tmp_path / "classes.csv"
    results = tmp_path / "classes.jsonl"
    run = (ROOT / "benchmarks" / "classes.py", "--attention", "eager", "sdpa", "--results", results, "--save", new)
    done = command(*run, "--only", *SAMPLE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found, said = verdicts(new), verdicts(TABLE)
    assert len(found) == 1 + len(SAMPLE)
    assert found == {name: said[name] for name in ("class", *SAMPLE)}
