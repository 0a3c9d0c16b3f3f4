"""What the README says can be typed is typed: its snippets as scripts, its commands, its tables of settings."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir

from energon_pack.config import conf_dir
from energon_pack.metadata import dataset_yamls
from energon_pack.validate import to_config
from support.peers import write_llava_onevision
from support.running import ROOT, command, need_torchvision
from support.samples import chat

README = (ROOT / "README.md").read_text()
DEMO = "packed/demo-qwen2_5_vl-neat-8192"


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language; "" for those that are shown, not typed."""
    fenced = README.split("\n```")[1::2]  # each ends before the fence that closes it
    return [text.partition("\n")[2] + "\n" for text in fenced if text.partition("\n")[0] == language]


def rows(words: str) -> Iterator[list[str]]:
    """The code in the rows of the table "to … write …" that comes after some words."""
    for row in README.partition(words)[2].partition("| to | write |\n|---|---|\n")[2].splitlines():
        if not row.startswith("|"):
            return
        yield re.findall("`([^`]+)`", row.split("|")[2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the demo was packed by the command that stands beside `make demo`; its table is the one that is shown."""
    folder = tmp_path_factory.mktemp("readme")
    run = next(line for block in blocks("sh") for line in block.splitlines() if ".venv/bin/python -m" in line)
    out = typed(run.partition(".venv/bin/")[2], folder)
    shown = next(block for block in blocks("") if block.startswith("built-in demo"))
    for line in shown.splitlines()[1:]:
        if not line.startswith("lengths"):  # those are times
            assert line in out.splitlines()
    return folder


def typed(line: str, folder: Path) -> str:
    """What a command of the README prints in the folder where the demo was packed."""
    program, *arguments = shlex.split(line.partition("  #")[0])
    if program == "energon-pack":
        arguments = ["-m", "energon_pack", *arguments]
    else:
        assert program == "python"
    arguments = [str(ROOT / argument) if argument.startswith("recipes/") else argument for argument in arguments]
    result = command(*arguments, cwd=folder)
    assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"
    return result.stdout


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_a_snippet_runs_as_it_is_written_and_ends(folder: Path, number: int) -> None:
    """The first looped for ever, the second lacked its imports and had an ellipsis, and `encode` was never shown."""
    need_torchvision()
    snippet = blocks("python")[number]
    assert "..." not in snippet
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, "-"], input=snippet, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr


def test_the_recipe_prints_what_is_shown(folder: Path) -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("python recipes/")]
    assert lines
    for line in lines:
        printed = typed(line, folder).splitlines()[-1]
        assert f"{printed}\n" in blocks("")


@pytest.mark.parametrize("tool", [code for row in rows("Tools with plain") for code in row if "--model" not in code])
def test_a_tool_runs_as_its_row_says(folder: Path, tmp_path: Path, tool: str) -> None:
    """`--model` has tests of its own, in test_model_check.py."""
    lines = tmp_path / "source" / "lines.jsonl"
    lines.parent.mkdir()
    lines.write_bytes(chat("a?", "b"))
    names = {
        "DIR[=WEIGHT] …": DEMO, "DIR": DEMO, "SOURCE…": lines, "OUT.yaml": tmp_path / "out.yaml",
        "OUT": tmp_path / "out", "--batch-size N": "--batch-size 4",
        "THEIRS": write_llava_onevision(tmp_path / "theirs"),
    }  # fmt: skip
    typed(re.sub("|".join(map(re.escape, names)), lambda found: str(names[found[0]]), tool), folder)


def test_every_setting_of_the_table_is_one() -> None:
    """Each composes and is valid: with a value where only a key stands there, with its key where only a value does."""
    values = {"NAME=VALUE": "do_resize=true", "module:Class": "some_package:Pack"}
    settings: list[list[str]] = []
    for row in rows("is a page to read"):
        key, has_value = "", False
        for code in row:
            words = shlex.split(re.sub("|".join(values), lambda found: values[found[0]], code.removeprefix("-m ")))
            if "=" not in words[0] and "." not in words[0]:  # after the first: `max_members`, `truncate_text`
                words[0] = f"{key}={words[0]}" if has_value else f"{key.rpartition('.')[0]}.{words[0]}"
            key, has_value = words[0].partition("=")[0], "=" in words[0]
            settings.append([word if "=" in word else f"{word}=10000" for word in words])
    settings.remove(["split_part=val"])  # an argument of Energon's
    assert len(settings) > 25
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        for overrides in settings:
            overrides = [each.replace("lens=10000", "lens=[10000]").replace("=4096,8192,", "=") for each in overrides]
            to_config(compose("config", ["+model=qwen2_5_vl", *overrides]), [])


def test_the_yaml_is_what_is_written() -> None:
    """Of a source that is blended with packs, as `convert` writes it too."""
    (shown,) = map(yaml.safe_load, blocks("yaml"))
    written = dataset_yamls("multi_mix_qa", "typed")["dataset.yaml"]
    assert shown == {name: value for name, value in written.items() if name != "subflavors"}
