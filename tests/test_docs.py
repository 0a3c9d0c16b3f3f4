"""What the README and the pages of docs/ say can be typed is typed, and what they say is there is there.

Snippets run as scripts, commands and the tables of tools run, settings compose; tables of files, fields, keys, reasons
and checks are compared with what the package writes; links lead somewhere.
"""

import inspect
import json
import pkgutil
import re
import shlex
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir

from energon_pack.config import PackConfig, conf_dir
from energon_pack.config.validate import to_config
from energon_pack.dataset.energon import dataset_yamls
from energon_pack.plan.splits import SPLITS
from energon_pack.samples.flavors import UNPACKED
from energon_pack.samples.skip import Reason
from energon_pack.task_encoder import PackedTaskEncoder
from energon_pack.training.pack_encoder import PackEncoder
from energon_pack.verify.findings import CHECKS
from support.damage import read_shard
from support.packed import train
from support.peers import write_llava_onevision
from support.running import ROOT, as_a_program, command, command_here, need_torchvision
from support.samples import chat

PAGES = {path.name: path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
DEMO = "packed/demo-qwen2_5_vl-neat-8192"


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, of all pages; "" for those that are shown, not typed."""
    fenced = [block for text in PAGES.values() for block in text.split("\n```")[1::2]]  # each ends before its fence
    return [text.partition("\n")[2] + "\n" for text in fenced if text.partition("\n")[0] == language]


def table(page: str, header: str) -> list[list[str]]:
    """The rows of the table of a page that begins with these words, each a list of cells."""
    assert f"| {header}" in PAGES[page], header
    lines = PAGES[page].partition(f"| {header}")[2].splitlines()[2:]
    rows = lines[: next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    return [[cell.strip() for cell in row.strip("|").split(" |")] for row in rows]


def code(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


def names(page: str, header: str) -> set[str]:
    """The code in the first column of a table."""
    return {name for row in table(page, header) for name in code(row[0])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the demo was packed by the command that stands beside `make demo`; its table is the one that is shown."""
    folder = tmp_path_factory.mktemp("docs")
    run = next(line for block in blocks("sh") for line in block.splitlines() if ".venv/bin/python -m" in line)
    out = typed(run.partition(".venv/bin/")[2], folder)
    shown = next(block for block in blocks("") if block.startswith("built-in demo"))
    for line in shown.splitlines()[1:]:
        if not line.startswith("lengths"):  # those are times
            assert line in out.splitlines()
    return folder


def typed(line: str, folder: Path, here: bool = False) -> str:
    """What a command of a page prints in the folder where the demo was packed; `here`: in this process."""
    program, *arguments = shlex.split(line.partition("  #")[0])
    if program == "energon-pack":
        arguments = ["-m", "energon_pack", *arguments]
    else:
        assert program == "python"
    arguments = [str(ROOT / argument) if argument.startswith("recipes/") else argument for argument in arguments]
    assert arguments[0] == "-m" or not here
    result = command_here(*arguments[1:], cwd=folder) if here else command(*arguments, cwd=folder)
    assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"
    return result.stdout


# ------------------------------------------------------------------------------------------------ typed


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_a_snippet_runs_as_it_is_written_and_ends(folder: Path, number: int) -> None:
    """One looped for ever, one lacked its imports and had an ellipsis, and `encode` was never shown."""
    need_torchvision()
    snippet = blocks("python")[number]
    assert "..." not in snippet
    if number == 0:  # as a user starts it; the others in this process, which has imported all
        result = command("-c", snippet, cwd=folder)
        assert result.returncode == 0, result.stderr
        return
    with as_a_program("-c", cwd=folder):
        exec(compile(snippet, "snippet", "exec"), {"__name__": "__main__"})


def test_the_recipe_prints_what_is_shown(folder: Path) -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("python recipes/")]
    assert lines
    for line in lines:
        printed = typed(line, folder).splitlines()[-1]
        assert f"{printed}\n" in blocks("")


TOOLS = [words for row in table("tools.md", "to | write") for words in code(row[1]) if "--model" not in words]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_runs_as_its_row_says(folder: Path, tmp_path: Path, tool: str) -> None:
    """`--model` has tests of its own, in test_model_check.py."""
    lines = tmp_path / "source" / "lines.jsonl"
    lines.parent.mkdir()
    lines.write_bytes(chat("a?", "b"))
    values = {
        "DIR[=WEIGHT] …": DEMO, "DIR": DEMO, "SOURCE…": lines, "OUT.yaml": tmp_path / "out.yaml",
        "OUT": tmp_path / "out", "--batch-size N": "--batch-size 4",
        "THEIRS": write_llava_onevision(tmp_path / "theirs"),
    }  # fmt: skip
    typed(re.sub("|".join(map(re.escape, values)), lambda match: str(values[match[0]]), tool), folder, here=True)


@pytest.mark.parametrize("page", ["README.md", "packing.md"])
def test_every_setting_of_a_table_is_one(page: str) -> None:
    """Each composes and is valid: with a value where only a key stands there, with its key where only a value does."""
    values = {"NAME=VALUE": "do_resize=true", "module:Class": "some_package:Pack"}
    settings: list[list[str]] = []
    for row in table(page, "to | write"):
        key, has_value = "", False
        for text in code(row[1]):
            words = shlex.split(re.sub("|".join(values), lambda match: values[match[0]], text.removeprefix("-m ")))
            if "=" not in words[0] and "." not in words[0]:  # after the first: `max_members`, `truncate_text`
                words[0] = f"{key}={words[0]}" if has_value else f"{key.rpartition('.')[0]}.{words[0]}"
            key, has_value = words[0].partition("=")[0], "=" in words[0]
            settings.append([word if "=" in word else f"{word}=10000" for word in words])
    assert len(settings) >= {"README.md": 5, "packing.md": 38}[page]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        for overrides in settings:
            overrides = [each.replace("lens=10000", "lens=[10000]").replace("=4096,8192,", "=") for each in overrides]
            to_config(compose("config", ["+model=qwen2_5_vl", *overrides]), [])


def test_settings_in_the_text_are_some() -> None:
    """`packing.x` and the like, wherever they stand, are keys of the config."""
    nodes = {name: node for name, node in vars(PackConfig()).items() if is_dataclass(node)}
    known = {f"{name}.{key.name}" for name, node in nodes.items() for key in fields(node)}
    known |= {f"output.splits.{split}" for split in SPLITS}
    pattern = re.compile(rf"(?<![\w./-])((?:{'|'.join(nodes)})\.[a-z_]+(?:\.(?:val|test|train))?)(?![\w(/])")
    spelled = {name for text in PAGES.values() for name in pattern.findall(text)}
    assert len(spelled) > 40
    assert spelled - known == {"report.html", "report.json", "model.forward", "packing.md"}


# ------------------------------------------------------------------------------------------------ shown


def test_links_lead_somewhere() -> None:
    """To files of the repository, and to headings of pages."""

    def anchors(path: Path) -> set[str]:
        titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

    for page, text in PAGES.items():
        here = ROOT if page == "README.md" else ROOT / "docs"
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
            path = here / target if target else here / page
            assert path.is_file(), f"{page}: {target}"
            assert not anchor or anchor in anchors(path), f"{page}: {target}#{anchor}"
    assert {f"docs/{page}" for page in PAGES if page != "README.md"} <= {
        target for target in re.findall(r"\]\(([^)]*)\)", PAGES["README.md"])
    }


def test_files_and_names_of_the_package_are_there() -> None:
    """`energon_pack/x.py`, `tests/x.py`, `conf/x.yaml`, and `energon_pack.x.y`, in the text and in what is typed."""
    text = "\n".join(PAGES.values())
    files = set(re.findall(r"\b(?:energon_pack|tests|conf|recipes)/[\w/]+\.(?:py|yaml)", text))
    assert len(files) > 4
    assert [name for name in files if not (ROOT / name).is_file()] == []
    dotted = set(re.findall(r"\benergon_pack(?:\.\w+)+", text)) - {"energon_pack.json"}
    assert len(dotted) > 10
    for name in dotted:
        pkgutil.resolve_name(name)


def test_the_yaml_is_what_is_written() -> None:
    """Of a source that is blended with packs, as `convert` writes it too."""
    (shown,) = map(yaml.safe_load, blocks("yaml"))
    written = dataset_yamls(UNPACKED, "typed")["dataset.yaml"]
    assert shown == {name: value for name, value in written.items() if name != "subflavors"}


def test_json_is_json() -> None:
    """Lines of samples, of a meta file and of the ledger."""
    values = [json.loads(block) for block in blocks("json")]
    ledger = next(value for value in values if "reason" in value)
    assert Reason(ledger["reason"])


def test_every_reason_of_the_ledger_is_explained() -> None:
    text = PAGES["troubleshooting.md"]
    faults, policies = (
        names("troubleshooting.md", "reason | what is wrong"),
        names("troubleshooting.md", "reason | why"),
    )
    assert faults == {reason.value for reason in Reason if not reason.is_policy}
    assert policies == {reason.value for reason in Reason if reason.is_policy}
    assert text.index("count against `max_skipped`") < text.index("do not count")


def test_files_and_fields_are_those_on_disk(folder: Path) -> None:
    dataset = folder / DEMO
    (listing,) = (block for block in blocks("") if block.startswith("<output.dir>/"))
    shown = {words[0] for line in listing.splitlines()[1:] if (words := line.split())}
    written = {str(path.relative_to(dataset)) for path in dataset.rglob("*") if path.is_file()}
    assert written - {".nv-meta/.info.yaml"} == shown
    (_, raw), *_ = read_shard(dataset / "packed-000000.tar")
    pack = json.loads(raw)
    assert names("formats.md", "field of the JSON | what it holds |") == set(pack)
    assert names("formats.md", "field of `_meta`") == set(pack["_meta"])
    report = json.loads((dataset / "report.json").read_text())
    told = names("formats.md", "fields | what they hold") | {"samples_packed", "samples_skipped"}
    assert {name for name in report if not name.startswith("samples_with_")} == told - {"samples_with_…"}
    manifest = json.loads((dataset / ".nv-meta" / "energon_pack.json").read_text())
    section = PAGES["formats.md"].partition("## `.nv-meta/energon_pack.json`")[2]
    assert set(manifest) | set(manifest["fingerprints"]) <= set(code(section))
    replay = json.loads((dataset / ".nv-meta" / "replay.json").read_text())
    section = PAGES["formats.md"].partition("## `.nv-meta/replay.json`")[2].partition("\n## ")[0]
    assert set(replay) | set(replay["versions"]) | set(replay["samples"][0]) <= set(code(section))


@pytest.mark.parametrize("layout", ["neat", "thd"])
def test_keys_of_a_batch_are_those_of_the_table(folder: Path, layout: str) -> None:
    """With all that may be asked for; media have the names of their model."""
    need_torchvision()
    asked: dict[str, Any] = {"neat": {"labels": "shifted", "attention_mask": "indexed"}, "thd": {}}[layout]
    encoder = PackedTaskEncoder(
        folder / DEMO,
        str(folder / "packed/.cache/demo/v1/processor"),
        layout=layout,
        loss_weight="token",
        pad_to="max_token_len",
        **asked,
    )
    sample = next(sample for sample in train(folder / DEMO) if sample.media_type == "image")
    batch = set(encoder.batch([encoder.encode_sample(sample)])) - {"pixel_values", "image_grid_thw"}
    told = names("training.md", f"key of `{layout}`") | names("training.md", "key of every batch")
    assert batch <= told
    assert told - batch <= {"seq_idx", "image_flags"}  # of hybrid models, of InternVL


def test_arguments_of_the_encoder_are_those_of_the_table() -> None:
    parameters = set(inspect.signature(PackedTaskEncoder).parameters) - {"options"}
    parameters |= set(inspect.signature(PackEncoder).parameters) - {"made", "template"}
    assert names("training.md", "argument | values") == parameters


def test_checks_that_are_shown_are_those_of_verify() -> None:
    (shown,) = (block for block in blocks("") if block.startswith("check  "))
    for line in shown.splitlines()[1:]:
        check, words = re.split(r"  +", line)[:2]
        assert CHECKS[check] == words
