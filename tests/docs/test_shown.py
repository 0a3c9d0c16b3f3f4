"""Everything that README.md and docs/ name exists: settings, names, files, fields, keys, reasons, checks."""

import ast
import copy
import csv
import inspect
import json
import pkgutil
import re
import runpy
import shlex
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import fields, is_dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from energon_pack import PackedDataset
from energon_pack.config import PackConfig, conf_dir
from energon_pack.config.validate import to_config
from energon_pack.dataset.energon import dataset_yamls
from energon_pack.loading.task_encoder import PackedTaskEncoder
from energon_pack.plan.note_counts import NOTES
from energon_pack.plan.splits import SPLITS
from energon_pack.samples.flavors import UNPACKED_FLAVOR
from energon_pack.samples.pack_tokens import COLUMN_TYPES
from energon_pack.samples.skip import Reason
from energon_pack.training.layout import IGNORE
from energon_pack.training.pack_encoder import PackEncoder
from energon_pack.verify.findings import CHECKS
from support.damage import read_shard
from support.packed import Make, packed, train
from support.pages import DOCS, PAGES, blocks, code, names, section, table
from support.running import ROOT, need_torchvision
from support.samples import chat, picture, write_tar

TEXT = "\n".join(PAGES.values())


@pytest.fixture
def dataset(typed_demo: Path) -> Path:
    return typed_demo / "packed/demo-qwen2_5_vl-neat-8192"


@pytest.mark.parametrize("page", [page for page in PAGES if "| to | write |" in PAGES[page] and page != "tools.md"])
@pytest.mark.long("every setting of a page is composed")
def test_every_setting_of_a_table_is_one(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each composes and is valid: with a value where only a key stands there, with its key where only a value does."""
    values = {"NAME=VALUE": "do_resize=true", "module:Class": "support.peer_classes:TheirChatMix"}
    values["module:function"] = "support.samples:chat"
    settings: list[list[str]] = []
    for row in table(page, "to | write"):
        key, has_value = "", False
        for text in code(row[1]):
            words = shlex.split(re.sub("|".join(values), lambda match: values[match[0]], text.removeprefix("-m ")))
            if "=" not in words[0] and "." not in words[0]:  # after the first: `max_members`, `truncate_text`
                words[0] = f"{key}={words[0]}" if has_value else f"{key.rpartition('.')[0]}.{words[0]}"
            key, has_value = words[0].partition("=")[0], "=" in words[0]
            settings.append([word if "=" in word else f"{word}=10000" for word in words])
    with capsys.disabled():
        print(f"\ndocs: {len(settings)} settings of {page} composed")
    assert len(settings) >= {"README.md": 5, "settings.md": 33}.get(page, 1)
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        plain = compose("config", ["+model=qwen2_5_vl"])
        for overrides in settings:
            overrides = [each.replace("lens=10000", "lens=[10000]").replace("=4096,8192,", "=") for each in overrides]
            config, parsed = copy.deepcopy(plain), OverridesParser.create().parse_overrides(overrides)
            if any("." not in override.key_or_group for override in parsed):  # a file of a group
                config, parsed = compose("config", ["+model=qwen2_5_vl", *overrides]), []
            for override in parsed:  # a tenth of the time
                OmegaConf.update(config, override.key_or_group, override.value(), force_add=override.is_add())
            to_config(config)


def test_settings_in_the_text_are_some() -> None:
    """`packing.x` and the like, wherever they stand, are keys of the config."""
    nodes = {name: node for name, node in vars(PackConfig()).items() if is_dataclass(node)}
    known = {f"{name}.{key.name}" for name, node in nodes.items() for key in fields(node)}
    known |= {f"output.splits.{split}" for split in SPLITS}
    pattern = re.compile(rf"(?<![\w./-])((?:{'|'.join(nodes)})\.[a-z_]+(?:\.(?:val|test|train))?)(?![\w(/])")
    spelled = set(pattern.findall(TEXT))
    assert len(spelled) > 40
    assert {name for name in spelled - known if not name.endswith((".md", ".html", ".json"))} == {"model.forward"}


def test_files_and_names_of_the_package_are_there() -> None:
    """`energon_pack/x.py`, `tests/x.py`, `conf/x.yaml`, and `energon_pack.x.y`, in the text and in what is typed."""
    files = set(re.findall(r"\b(?:energon_pack|tests|conf|recipes|benchmarks)/[\w/]+\.(?:py|yaml)", TEXT))
    assert len(files) > 4
    assert [name for name in files if not (ROOT / name).is_file()] == []
    dotted = set(re.findall(r"\benergon_pack(?:\.\w+)+", TEXT)) - {
        "energon_pack.json",
        "energon_pack.kinds",
        "energon_pack.media",
        "energon_pack.executors",
    }  # groups of entry points
    assert len(dotted) > 10
    for name in dotted:
        pkgutil.resolve_name(name)


def test_the_yaml_is_what_is_written() -> None:
    """The keys of a source that is blended with packs."""
    (shown,) = map(yaml.safe_load, blocks("yaml", "train/energon.md"))
    written = dataset_yamls(UNPACKED_FLAVOR, "typed")["dataset.yaml"]
    assert shown == {name: value for name, value in written.items() if name != "subflavors"}


def test_json_is_json() -> None:
    """Lines of samples, of a meta file and of the ledger."""
    values = [json.loads(block) for block in blocks("json")]
    ledger = next(value for value in values if "reason" in value)
    assert Reason(ledger["reason"])


def test_every_reason_of_the_ledger_is_explained() -> None:
    page = "troubleshooting.md"
    assert names(page, "reason | what is wrong") == {reason.value for reason in Reason if not reason.is_policy}
    assert names(page, "reason | why") == {reason.value for reason in Reason if reason.is_policy}
    assert PAGES[page].index("count against `max_skipped`") < PAGES[page].index("do not count")


def test_files_and_fields_are_those_on_disk(dataset: Path) -> None:
    (listing,) = (block for block in blocks("text") if block.startswith("<output.dir>/"))
    shown = {words[0] for line in listing.splitlines()[1:] if (words := line.split())}
    written = {str(path.relative_to(dataset)) for path in dataset.rglob("*") if path.is_file()}
    written = {re.sub("^(.nv-meta/processor/).*", r"\1…", name) for name in written}
    assert written - {".nv-meta/.info.yaml"} == shown
    (_, raw), *_ = read_shard(dataset / "packed-000000.tar")
    pack = json.loads(raw)
    assert names("formats.md", "field of the JSON | what it holds |") == set(pack)
    assert names("formats.md", "field of `_meta`") == set(pack["_meta"])
    report = json.loads((dataset / "report.json").read_text())
    (asked,) = re.findall(r"^::: (.+)$", PAGES["formats.md"], re.MULTILINE)
    told = runpy.run_path(str(DOCS / "filled_pages.py"))["report_fields"](asked.split())
    beside = {"manifest_hash"}.intersection(code(section("formats.md", "`report.json`")))
    assert {name for name in report if not name.startswith("samples_with_")} - beside <= told.keys() - {"notes", "run"}
    assert {name for name in told.keys() - report.keys() if "not in the file" not in told[name]} == {"notes", "run"}
    assert [name for name in report if name.startswith("samples_with_")] != []
    manifest = json.loads((dataset / ".nv-meta" / "energon_pack.json").read_text())
    assert set(manifest) | set(manifest["fingerprints"]) <= set(
        code(section("formats.md", "`.nv-meta/energon_pack.json`"))
    )


def test_headings_of_the_page_of_a_run_are_those_of_the_table(dataset: Path) -> None:
    written = re.findall(r"<h2[^>]*>([^<]+)", (dataset / "report.html").read_text())
    assert [row[0] for row in table("report.md", "heading | what it shows")] == written


@pytest.mark.parametrize("layout", ["neat", "thd"])
def test_keys_of_a_batch_are_those_of_the_table(typed_demo: Path, dataset: Path, layout: str) -> None:
    """With all that may be asked for; media have the names of their model."""
    need_torchvision()
    asked: dict[str, Any] = {"neat": {"labels": "shifted", "attention_mask": "indexed"}, "thd": {}}[layout]
    encoder = PackedTaskEncoder(
        dataset,
        str(typed_demo / "packed/.cache/demo/v1/processor"),
        layout=layout,
        loss_weight="token",
        pad_to="max_token_len",
        **asked,
    )
    sample = next(sample for sample in train(dataset) if sample.media_type == "image")
    batch = set(encoder.batch([encoder.encode_sample(sample)])) - {"pixel_values", "image_grid_thw"}
    told = names("batches.md", f"key of `{layout}`") | names("batches.md", "key of every batch")
    assert batch <= told
    assert told - batch <= {"seq_idx", "image_flags"}  # of hybrid models, of InternVL


def test_arguments_of_the_encoder_are_those_of_the_table() -> None:
    parameters = set(inspect.signature(PackedTaskEncoder).parameters) - {"options"}
    parameters |= set(inspect.signature(PackEncoder).parameters) - {"made", "rules"}
    assert names("training.md", "argument | values") == parameters


def test_checks_that_are_shown_are_those_of_verify() -> None:
    (shown,) = (block for block in blocks("text") if block.startswith("check  "))
    for line in shown.splitlines()[1:]:
        check, words = re.split(r"  +", line)[:2]
        assert CHECKS[check] == words


def test_tables_are_linked_and_counted_as_the_page_says() -> None:
    """A table that no page names is read by nobody; one that is made anew leaves a page with old figures."""
    tables = {path.name for path in (DOCS / "tables").iterdir()}
    assert tables == set(re.findall(r"\]\((?:\.\./)?tables/([\w.]+)\)", TEXT))
    kinds = {"no such attention": "–"}
    with (DOCS / "tables" / "classes.csv").open(newline="") as file:
        classes = list(csv.DictReader(file))
    for kind, *counts in table("members.md", "| eager | sdpa | flex"):
        cell = kinds.get(kind, kind.removeprefix("exact by "))
        for attention, count in zip(("eager", "sdpa", "flex", "flash (emulated)"), counts, strict=True):
            assert sum(row[attention] == cell for row in classes) == int(count), (kind, attention)


DEMO = "packed/demo-qwen2_5_vl-neat-8192"


@pytest.fixture
def page(typed_demo: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the recipe which the page names makes, and what it prints."""
    need_torchvision()
    assert "`recipes/read_tokens.py`" in section("formats.md", "The tokens of a pack")
    recipe = ROOT / "recipes" / "read_tokens.py"
    lines = recipe.read_text().partition("def ")[2].partition("if __name__")[0]
    assert len([line for line in lines.splitlines() if line.strip()]) < 36
    assert "energon_pack" not in "".join(re.findall(r"^(?:import|from) .*", recipe.read_text(), re.M))
    monkeypatch.setattr("sys.argv", [str(recipe), str(typed_demo / DEMO / "packed-000000.tar")])
    with redirect_stdout(StringIO()) as out:
        made = runpy.run_path(str(recipe), run_name="__main__")
    return made | {"printed": out.getvalue()}


def compare(folder: Path, processor: Path, read: Callable[[bytes], Any], **options: Any) -> int:
    """Compare all packs with the batches of a PackedDataset; return the number of media."""
    packs = PackedDataset(folder, str(processor), **options)
    parts = {name: data for path in sorted(folder.glob("*.tar")) for name, data in read_shard(path)}
    num_media = 0
    for pack in map(packs.__getitem__, range(len(packs))):
        ids, labels, weights, members, media = read(parts[f"{pack.key}.tokens"])
        batch = packs.encoder.batch([pack])
        assert np.array_equal(ids, batch["input_ids"][0])
        assert np.array_equal(labels, batch["labels"][0])
        assert [0, *(member.stop for member in members)] == batch["cu_seq_lens_q"].tolist()
        assert [member.start for member in members] == batch["cu_seq_lens_q"].tolist()[:-1]
        is_trained = labels != IGNORE
        assert np.array_equal(weights[is_trained], batch["loss_weight"][0][is_trained])
        assert [len(own) for own in media] == [member.num_images for member in pack.members]
        grids = batch["image_grid_thw"].prod(1) // 4 if any(media) else ()
        assert [number for own in media for _, number in own] == [int(number) for number in grids]
        assert {kind for own in media for kind, _ in own} <= {"i"}
        num_media += sum(map(len, media))
    return num_media


def test_thirty_lines_of_a_recipe_read_what_is_trained(typed_demo: Path, page: dict[str, Any]) -> None:
    """Others read the bytes by this page: a column that moved would give them other tokens."""
    assert page["COLUMNS"] == COLUMN_TYPES
    assert len(COLUMN_TYPES) == 25
    assert page["printed"].count("members,") == len(page["packs"]) > 4
    processor = typed_demo / "packed/.cache/demo/v1/processor"
    assert compare(typed_demo / DEMO, processor, page["read_tokens"], loss_weight="token") == 278


def test_they_read_weights(config: Make, demo: tuple[Path, Path], page: dict[str, Any], tmp_path: Path) -> None:
    turns = [text for i in range(3) for text in (f"Ask {i}", f"Say {i}")]
    weighted = chat(*turns, weight=0.5).replace(b'"Say 1"}', b'"Say 1", "weight": 0.25}')
    members = {"a.json": weighted, "b.json": chat("<image>And?", "Yes."), "b.png": picture(56, 56, "PNG")}
    source = write_tar(tmp_path / "source/a.tar", {**members, "c.json": chat("Why?", "So.", weight=2)}).parent
    folder = packed(config(source, packing__group_by="none"))
    assert compare(folder, demo[1], page["read_tokens"]) == 1


PAGE = "troubleshooting.md"


def _text(node: ast.AST) -> str:
    """Return a message's text, with … for values."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "…"
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) for value in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "…"


def _said() -> str:
    """All texts of the package, a line each."""
    texts = []
    for path in sorted((ROOT / "energon_pack").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr | ast.BinOp | ast.Constant) and (text := _text(node)) != "…":
                texts.append(re.sub(r"%[sd]", "…", " ".join(text.split())))
    return "\n".join(texts)


SAID = _said()
#: every table of messages of the page
QUOTED = [
    (message, row)
    for piece in PAGES[PAGE].split("| what it says ")[1:]
    for row in (line.strip("|").split(" |") for line in piece.splitlines()[2:] if line.startswith("|"))
    for message in code(row[0])
]


@pytest.mark.parametrize("message", [message for message, _ in QUOTED])
def test_a_message_that_is_quoted_is_one(message: str) -> None:
    pattern = ".*".join(re.escape(part) for part in message.split("…"))
    assert re.search(pattern, SAID), message


def test_messages_have_a_cause_or_something_to_do() -> None:
    assert len(QUOTED) > 80
    assert len({message for message, _ in QUOTED}) == len(QUOTED)
    assert [message for message, row in QUOTED if len(row) < 3 or not row[2].strip(" —")] == []


def test_every_note_is_explained() -> None:
    rows = table(PAGE, "samples with | what it means")
    assert [row[0] for row in rows] == [note.replace("_", " ") for note in NOTES]
