"""What README.md and the pages of docs/ say can be typed, is typed: every snippet, command and tool, page by page.

A page is run from top to bottom in a folder where the demo was packed. What follows a block of `sh` as `text` is what
it prints. Paths that a reader replaces by his own (/data, /models) are put there: the demo's processor and samples.
"""

import ast
import importlib
import os
import re
import runpy
import shlex
import shutil
import subprocess
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from support.environments import python_of
from support.marks import slow
from support.pages import BLOCKS, PAGES, Block, blocks, code, commands, prose
from support.peers import write_llava_onevision
from support.running import ROOT, as_a_program, command, command_here, exit_code, need_torchvision
from support.samples import chat

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning"),  # of what megatron-core imports
]

LANGUAGES = {"python", "sh", "text", "json", "yaml"}


# ------------------------------------------------------------------------------------- what is looked at, and not run

#: Commands of these are not run, each with the reason.
NOT_RUN = {
    r"python recipes/train_trainer.py": "Accelerate is not installed; tests/training/test_trainer.py",
    r"python recipes/trainers/": "no trainer is installed; tests/trainers/test_trainer_recipes.py",
    r"torchrun --nproc-per-node 8 ": "there are no eight GPUs; the recipes' own tests start two processes",
    r"(\S+/)?pip install ": "it changes the environment that the tests run in",
    r"make ": "it makes an environment, and runs what is tested here by itself",
    r"python benchmarks/": "it takes minutes",
    r"energon-pack .*s3://": "there is no such bucket; tests/dataset/test_stored_datasets.py has one",
    r"python -m energon_pack[.].*s3://": "there is no such bucket; tests/test_tools_on_stores.py has one",
    r"python -m energon_pack[.]order packed/both": "two sets in packs; tests/test_order_of_datasets.py",
    r"python recipes/reference_logps.py packed/a": "two sets of pairs; tests/test_joined_pairs.py",
    r"python recipes/reference_logps.py .*--model MODEL": "the reader's model; the page runs it with the tiny one",
    r"energon-pack .*hydra/sweeper=optuna": "a package of its own; tests/test_cli_sweeps.py asks its figure",
    r"energon-pack .*executor=slurm": "there is no Slurm; tests/stages/test_chain.py has a stand-in",
    r"energon-pack .*executor[.]address=": "there is no Ray cluster; tests/run/test_ray.py starts one",
    r"pytest ": "these are tests themselves",
}


def is_there(line: str) -> bool:
    """Whether what a command names exists: scripts with their options, tests, targets of make, extras of pip."""
    _, *words = shlex.split(line)
    scripts = [ROOT / word for word in words if re.match(r"(recipes|benchmarks|tests)/.*\.py$", word)]
    if not all(script.is_file() for script in scripts):
        return False
    if line.startswith("make "):
        return all(f"\n{target}: " in (ROOT / "Makefile").read_text() for target in words)
    if "pip install" in line:
        extras = (ROOT / "pyproject.toml").read_text().partition("optional-dependencies")[2]
        asked = set(",".join(re.findall(r"\[([a-z0-9,]+)\]", line)).split(",")) - {""}
        return asked <= set(re.findall(r"^(\w+) = \[", extras, re.M)) and not re.search(r"-c (?!constraints.txt)", line)
    options = [word for word in words if word.startswith("--") and "benchmarks/" in line]
    return all(f'"{option}"' in script.read_text() for option in options for script in scripts)


def is_not_run(line: str) -> bool:
    return any(re.match(pattern, line) for pattern in NOT_RUN)


#: Snippets with these are compiled alone: a package, a tokenizer or a model is not here. The test that is named runs
#: the same.
COMPILED = {
    "import datasets\n": "tests/online/test_given.py",
    "from trl import": "test_a_program_of_a_trainer_runs_as_it_stands",
    "Trainer, TrainingArguments": "test_a_program_of_a_trainer_runs_as_it_stands",
    "source_losses(": "tests/training/test_weights.py",
}


# -------------------------------------------------------------------------------------------------- a page is run


class Reader:
    """Types what a page says, in a folder of its own."""

    def __init__(self, folder: Path, typed_demo: Path) -> None:
        self.folder = folder
        shutil.copytree(typed_demo / "packed", folder / "packed")
        (folder / "recipes").symlink_to(ROOT / "recipes")
        processor = folder / "packed/.cache/demo/v1/processor"
        places = {"/data/": f"{folder}/data/", "/models/Qwen2.5-VL-7B-Instruct": str(processor)}
        shutil.copytree(processor.parent / "source", folder / "data/wds")
        self._places = re.compile("|".join(places)), places
        self.printed = ""

    def mine(self, text: str) -> str:
        """With paths that are here."""
        pattern, places = self._places
        return pattern.sub(lambda match: places[match[0]], text)

    def read(self, block: Block) -> None:
        if block.language == "python":
            if any(name in block.text for name in COMPILED):
                compile(block.text, block.page, "exec")
                return
            out = StringIO()
            with as_a_program("-c", cwd=self.folder), redirect_stdout(out):
                exec(compile(self.mine(block.text), block.page, "exec"), {"__name__": "__main__"})
            self.printed = out.getvalue()
        elif block.language == "sh":
            self.printed = "".join(self.type(line) for line in commands(block.text))
        elif block.language == "text":
            if block.follows and self.printed:
                self.compare(block)
            self.printed = ""

    def type(self, line: str) -> str:
        """Return a command's output; it has to succeed."""
        if is_not_run(line):
            return ""
        program, *arguments = shlex.split(self.mine(line))
        program = program.removeprefix(".venv/bin/")
        if program == "torchrun":  # as the one process it would start: several have tests of their own
            assert arguments[:2] == ["--nproc-per-node", "1"], line
            program, arguments = "python", arguments[2:]
        if program == "energon-pack":
            program, arguments = "python", ["-m", "energon_pack", *arguments]
        if program == "energon":
            program, arguments = "python", ["-m", "megatron.energon.cli.main", *arguments]
        if program != "python":
            return self._of_the_system(program, arguments)
        if arguments[0] == "-m":
            if "--cfg" not in arguments and any(argument.startswith("+model=") for argument in arguments):
                arguments += ["executor.num_workers=1", "measure.verify=0"]  # no other process, which takes seconds
            result = command_here(*arguments[1:], cwd=self.folder)
            assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"
            return result.stdout
        out, script = StringIO(), str(self.folder / arguments[0])
        with as_a_program(script, *arguments[1:], cwd=self.folder), redirect_stdout(out):
            os.environ |= {
                "RANK": "0",
                "LOCAL_RANK": "0",
                "WORLD_SIZE": "1",
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": "0",
            }
            assert exit_code(lambda: runpy.run_path(script, run_name="__main__")) == 0, f"{line}\n{out.getvalue()}"
        return out.getvalue()

    def _of_the_system(self, program: str, arguments: list[str]) -> str:
        assert program in {"cat", "head", "ls"}, program
        result = command("-c", f"import os; os.execvp({program!r}, {[program, *arguments]!r})", cwd=self.folder)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def compare(self, block: Block) -> None:
        """Lines that are shown were printed, but those with times, and those that are cut short."""
        printed = [" ".join(line.split()) for line in self.printed.splitlines()]
        for line in block.text.splitlines():
            if not re.search(r"\d s,|…", line):
                assert " ".join(line.split()) in printed, f"{block.page}: {line}\n{self.printed}"


RUN = {page for page in PAGES if any(b.page == page and b.language in ("python", "sh") for b in BLOCKS)}
#: What a new user types first; all other pages are typed in `make test-slow`.
TYPED_SOON = {"README.md", "packing.md"}


@pytest.mark.parametrize("page", [page if page in TYPED_SOON else slow(page) for page in sorted(RUN)])
@pytest.mark.long("a page is typed whole")
def test_a_page_does_what_it_says_from_top_to_bottom(page: str, typed_demo: Path, tmp_path: Path) -> None:
    """One snippet looped for ever, one lacked its imports, one command had a setting that is none."""
    need_torchvision()
    reader = Reader(tmp_path, typed_demo)
    for block in BLOCKS:
        if block.page == page:
            reader.read(block)


@pytest.mark.parametrize("page", sorted(RUN))
def test_snippets_import_what_there_is(page: str) -> None:
    """On the pages that are typed in `make test-slow` alone, a name that is gone is seen at once, too."""
    for block in BLOCKS:
        if block.page != page or block.language != "python":
            continue
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "energon_pack":
                module = importlib.import_module(str(node.module))
                assert [name.name for name in node.names if not hasattr(module, name.name)] == []


def test_what_is_not_run_is_there() -> None:
    """An extra, a target of the Makefile, a script with these options, a test."""
    lines = {line for block in BLOCKS if block.language == "sh" for line in commands(block.text)} | set(INLINE)
    for line in sorted(lines):
        assert not is_not_run(line) or is_there(line), line


@pytest.mark.slow
@pytest.mark.parametrize("page", ["train/trainer.md", "train/trl.md"])
def test_a_program_of_a_trainer_runs_as_it_stands(page: str, typed_demo: Path, tmp_path: Path) -> None:
    """In TRL's environment, which has Accelerate as well; a program that is only compiled may lack an argument."""
    reader = Reader(tmp_path, typed_demo)
    packing, *_ = (block for block in BLOCKS if block.page == page and block.language == "sh")
    program, *_ = blocks("python", page)
    reader.read(packing)
    (tmp_path / "program.py").write_text("__import__('energon_pack').prepare_torchvision()\n" + program)
    words = [str(python_of("trl")), "-W", "ignore", "program.py"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("✓")
    assert "train_loss" in done.stdout


def test_the_table_of_the_readme_is_that_of_its_command(typed_demo: Path) -> None:
    (shown,) = (block.text for block in BLOCKS if block.page == "README.md" and block.text.startswith("built-in demo"))
    printed = (typed_demo / "out.txt").read_text().splitlines()
    assert [line for line in shown.splitlines() if "…" not in line and line not in printed] == []


def test_no_fence_is_of_an_unknown_kind() -> None:
    """Nobody would run what is in it, nor what is indented in place of a fence, nor see what an ellipsis leaves out."""
    assert {block.language for block in BLOCKS} == LANGUAGES
    assert [page for page in PAGES if re.search(r"^\n    \S", prose(page), re.MULTILINE)] == []
    assert [
        block for block in BLOCKS if block.language == "python" and re.search(r"^\s*\.\.\.", block.text, re.M)
    ] == []
    typed = re.compile(r"^(\$ |pip |python |energon-pack |torchrun )", re.MULTILINE)
    assert [block for block in BLOCKS if block.language == "text" and typed.search(block.text)] == []


# ------------------------------------------------------------------------------------------- commands in the text

#: Commands that stand in a line of text or in a table, once each.
INLINE = sorted(
    {
        text
        for page in PAGES
        for text in code(prose(page))
        if re.match(r"(python|energon-pack|make|pip|pytest|torchrun) ", text)
        and not re.fullmatch(r"python -m [\w.]+", text)  # a name
    }
)


#: the first command of each tool
FIRST = {" ".join(line.split()[:3]): line for line in reversed(INLINE) if not is_not_run(line)}


@pytest.mark.parametrize(
    "line", [line if line in FIRST.values() else slow(line) for line in INLINE if not is_not_run(line)]
)
def test_a_command_in_the_text_runs(line: str, typed_demo: Path, tmp_path: Path) -> None:
    """Return the command with values for the words in capitals."""
    reader = Reader(tmp_path, typed_demo)
    lines = tmp_path / "source" / "lines.jsonl"
    lines.parent.mkdir()
    lines.write_bytes(chat("a?", "b"))
    values = {
        "DIR[=WEIGHT] …": "packed/demo-qwen2_5_vl-neat-8192", "DIR": "packed/demo-qwen2_5_vl-neat-8192",
        "SOURCE…": lines, "OUT.yaml": "out.yaml", "OUT": "out", "--batch-size N": "--batch-size 4",
        "THEIRS": write_llava_onevision(tmp_path / "theirs"), "NAME": "qwen2_5_vl",
        "PROCESSOR": "packed/.cache/demo/v1/processor",
    }  # fmt: skip
    reader.type(re.sub("|".join(map(re.escape, values)), lambda match: str(values[match[0]]), line))


def test_how_many_were_run(capsys: pytest.CaptureFixture[str]) -> None:
    """So that a page whose blocks are no longer found is noticed."""
    lines = [line for block in BLOCKS if block.language == "sh" for line in commands(block.text)] + INLINE
    looked_at = sum(is_not_run(line) for line in lines)
    num_commands, num_snippets = len(lines) - looked_at, sum(block.language == "python" for block in BLOCKS)
    with capsys.disabled():
        print(f"\ndocs: {num_commands} commands and {num_snippets} snippets run, {looked_at} commands looked at")
    assert num_commands > 45
    assert num_snippets > 20
    assert looked_at < num_commands
