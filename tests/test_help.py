"""Each program has a page of help whose examples work, and says its version; exit codes stand in one place."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from energon_pack.config import PackConfig
from energon_pack.config.reference import all_settings, help_lines
from energon_pack.config.validate import dotted_setting_keys
from energon_pack.errors import PackError
from energon_pack.run.command import EXIT_CODES, TOOLS
from support.marks import slow
from support.running import ROOT, command_here, run_here

DEMO = "packed/demo-qwen2_5_vl-neat-8192"


def page(tool: str, cwd: Path) -> str:
    code, shown, _ = run_here(tool, "--help", cwd=cwd)
    assert code == 0
    return shown


def examples(tool: str, cwd: Path) -> list[str]:
    return re.findall(rf"^  (?:energon-pack |python -m energon_pack\.){tool} (.*)$", page(tool, cwd), re.MULTILINE)


def test_unpack_refuses_an_address_where_it_writes_a_folder(tmp_path: Path) -> None:
    """`s3:/b/packed: no such folder` helps nobody, and a folder called `s3:` would be made."""
    result = command_here("energon_pack.unpack", "packed", "s3://b/out", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("energon_pack.unpack: s3://b/")
    assert "takes a folder of this machine" in result.stderr
    assert not list(tmp_path.iterdir())


def test_every_tool_is_named() -> None:
    """One that `energon-pack --help` does not name is found by nobody."""
    calls = re.compile(r"\brun_tool\(\"(\w+)\"")
    files = [path.read_text() for path in (ROOT / "energon_pack").rglob("*.py")]
    assert {name for text in files for name in calls.findall(text)} == TOOLS.keys()


@pytest.mark.parametrize("tool", TOOLS)
def test_a_page_says_what_one_wants_to_know(tool: str, tmp_path: Path) -> None:
    shown = page(tool, tmp_path)
    assert examples(tool, tmp_path)
    for code in {*EXIT_CODES} - {3}:
        assert re.search(rf"^  {code} +\w", shown, re.MULTILINE)
    for option in ("-V", "--version"):
        assert run_here(tool, option, cwd=tmp_path)[1].startswith("energon-pack 0.")


def test_a_tool_is_a_word_of_the_command_line(tmp_path: Path) -> None:
    """`energon-pack verify DIR` said that verify is a program of its own, and ended."""
    for tool in ("verify", "inspect"):
        shown = command_here(f"energon_pack.{tool}", "--help", cwd=tmp_path)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert shown.stdout == page(tool, tmp_path)
    code, _, errors = run_here("verify", "packed/x", cwd=tmp_path)
    assert code == 1
    assert errors.startswith("energon_pack.verify: ")


@pytest.mark.parametrize("most", [1, slow(99)])
@pytest.mark.long("an example of every tool is typed")
def test_examples_work(tmp_path: Path, typed_demo: Path, most: int) -> None:
    """Those on the dataset of the demo: the first of each tool in the ordinary run."""
    shutil.copytree(typed_demo / "packed", tmp_path / "packed")
    of_tools = {tool: [line for line in examples(tool, tmp_path) if DEMO in line] for tool in TOOLS}
    assert {"verify", "unpack", "metadataset"} <= {tool for tool, lines in of_tools.items() if lines}
    for tool, line in ((tool, line) for tool, lines in of_tools.items() for line in lines[:most]):
        code, _, errors = run_here(tool, *shlex.split(line), cwd=tmp_path)
        assert code == 0, (line, errors)


def test_exit_codes_are_those_of_the_code(tmp_path: Path) -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    assert {int(code): what for code, what in rows} == EXIT_CODES
    _, shown, _ = run_here("--help", cwd=tmp_path)
    for code, what in EXIT_CODES.items():
        assert re.search(rf"^ +{code} +{re.escape(what.replace('`', ''))}$", shown, re.MULTILINE)
    for tool, what in TOOLS.items():
        assert re.search(rf"(energon-pack |python -m energon_pack\.){tool} +{what}$", shown, re.MULTILINE)


@pytest.mark.parametrize("program", ["energon_pack.verify --help", "energon_pack +model=qwen2_5_vl --cfg job"])
def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path, program: str) -> None:
    """`… --help | head -1` ended with lines about a broken pipe."""
    script = f"{shlex.quote(sys.executable)} -m {program} | true"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("", "")


def test_how_to_complete_stands_in_the_help(tmp_path: Path) -> None:
    _, shown, _ = run_here("--help", cwd=tmp_path)
    for line in ('eval "$(energon-pack -sc install=bash)"', "energon-pack -sc install=fish | source"):
        assert line in shown


def test_each_setting_says_what_it_means() -> None:
    """`--cfg job` prints keys alone; the page and `--help KEY` have nothing but these lines."""
    assert [one.key for one in all_settings() if not one.meaning] == []
    assert [one.key for one in all_settings()] == list(dotted_setting_keys(PackConfig))
    page = (ROOT / "docs/settings.md").read_text()
    nodes = " ".join(re.findall(r"^::: (.+)$", page, re.MULTILINE)).split()
    assert sorted(nodes) == sorted({one.key.partition(".")[0] for one in all_settings()})


def test_help_of_a_key_or_a_node() -> None:
    assert help_lines("output.media") == [
        "output.media=copy   (copy · reference)",
        "  copy: media are in the packs; reference: they stay in the source, from which loading reads them",
    ]
    assert [line for line in help_lines("report") if not line.startswith(" ")] == [
        "report.lens=[2048,4096,8192,16384,32768,65536]   (list)",
        "report.objective=fill   (fill · tokens · cost)",
    ]
    with pytest.raises(
        PackError, match=r"--help output\.medai: unknown key output\.medai; did you mean output\.media\?"
    ):
        help_lines("output.medai")


def test_help_takes_a_key(tmp_path: Path) -> None:
    """Hydra's own help knows no key: it printed the first page."""
    shown = command_here("energon_pack", "--help", "seed", cwd=tmp_path).stdout
    assert shown == "seed=0   (integer)\n  seeds everything random: order, splits, drawn samples\n"
