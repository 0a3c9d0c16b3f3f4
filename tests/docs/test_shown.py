"""Everything that README.md and docs/ name exists: settings, names, files, fields, keys, reasons, checks."""

import copy
import csv
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
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from energon_pack.config import PackConfig, conf_dir
from energon_pack.config.validate import to_config
from energon_pack.dataset.energon import dataset_yamls
from energon_pack.loading.task_encoder import PackedTaskEncoder
from energon_pack.plan.splits import SPLITS
from energon_pack.samples.flavors import UNPACKED
from energon_pack.samples.skip import Reason
from energon_pack.training.pack_encoder import PackEncoder
from energon_pack.verify.findings import CHECKS
from support.damage import read_shard
from support.packed import train
from support.pages import DOCS, PAGES, blocks, code, names, section, table
from support.running import ROOT, need_torchvision

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
    assert len(settings) >= {"README.md": 5, "packing.md": 33}.get(page, 1)
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
    written = dataset_yamls(UNPACKED, "typed")["dataset.yaml"]
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
    told = names("formats.md", "fields | what they hold") | {"samples_packed", "samples_skipped"}
    assert {name for name in report if not name.startswith("samples_with_")} == told - {"samples_with_…"}
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
