"""Packages that add a part of ours by an entry point: the examples of recipes/plugins, installed."""

import json
from pathlib import Path
from typing import Any

import pytest

from energon_pack.errors import PackError
from energon_pack.run.executors.settings import ExecutorConfig
from energon_pack.run.load_by_name import load_entry_point
from energon_pack.samples.flavors import find_packed_flavor
from energon_pack.samples.flavors.multi_mix_qa import PackedMultiMixQA
from energon_pack.sources.settings import SourceConfig
from support.packed import files, json_lines, samples
from support.running import ROOT, command, command_here, installed, run_here
from support.samples import picture


@pytest.mark.long("an example that pip installs, and a run in a process of its own")
def test_a_source_of_another_package(
    demo: tuple[Path, Path], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by its name, in a process that has it installed; verify --source reads it again."""
    path = installed("tsv_source", tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.tsv").write_text("what is it?\ta cat\ta.png\nand this?\ta dog\nno tab\n")
    (tmp_path / "in/a.png").write_bytes(picture(56, 56, "PNG"))
    own = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", "output.dir=out", "output.name=packed", "max_skipped=0.5"]
    own += ["measure.verify=0", f"cache_dir={cache}"]
    source = ["source=jsonl", "source.format=tsv", "source.path=in"]
    result = command("-m", "energon_pack", *own, *source, "executor.num_workers=1", cwd=tmp_path, PYTHONPATH=path)
    assert result.returncode == 0, result.stderr
    packs = [json.loads(parts["json"]) for parts in samples(tmp_path / "out/packed").values()]
    assert {m["messages"][0]["content"] for p in packs for m in p["messages"]} == {"<image>what is it?", "and this?"}
    assert sorted(name for pack in packs for name in pack["_meta"]["sample_ids"]) == ["a.tsv:1", "a.tsv:2"]
    (left_out,) = json_lines(tmp_path / "out/packed/skipped.jsonl")
    assert (left_out["sample_id"], left_out["reason"]) == ("a.tsv:3", "invalid_json")
    monkeypatch.syspath_prepend(tmp_path / "site")
    verified = command_here("energon_pack.verify", "out/packed", "--source", "--num-workers", "1", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.slow
def test_media_of_another_package(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Its `size` is what lengths are of: a square of a wide image has fewer tokens."""
    path = installed("square_media", tmp_path)
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompts": ["<image>"], "captions": ["x"], "images": ["a.png"]}))
    (tmp_path / "a.png").write_bytes(picture(560, 56, "PNG"))
    tokens = {}
    for name in ("default", "square"):
        own = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", "source=jsonl", "source.path=a.jsonl", "stage=plan"]
        result = command("-m", "energon_pack", *own, f"media.image={name}", cwd=tmp_path, PYTHONPATH=path)
        assert result.returncode == 0, result.stderr
        _, figures = result.stdout.split("fill  tokens\n")
        tokens[name] = int(figures.splitlines()[0].split()[-1])
    assert tokens["default"] - tokens["square"] == 20 * 2 - 2 * 2  # tokens of 28 × 28 pixels


@pytest.mark.slow
def test_a_flavor_of_another_package(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Its field is in packs, verify asks it, Energon loads by it; without the package one line says what is missing."""
    path = installed("turns_flavor", tmp_path)
    own = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", f"source.path={demo[0]}", "output.dir=out"]
    flavor = ["output.name=packed", "output.flavor=packed_turns", "executor.num_workers=1"]
    result = command("-m", "energon_pack", *own, *flavor, cwd=tmp_path, PYTHONPATH=path)
    assert result.returncode == 0, result.stderr
    packs = [json.loads(parts["json"]) for parts in samples(tmp_path / "out/packed").values()]
    assert all(pack["num_turns"] == [len(m["messages"]) for m in pack["messages"]] for pack in packs)
    script = """
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset
alone = WorkerConfig(rank=0, world_size=1, num_workers=0)
own = dict(worker_config=alone, batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None)
packs = get_train_dataset("out/packed", repeat=False, **own)
print(sum(len(pack.messages) for pack in get_savable_loader(packs)))
"""
    verify = ("-m", "energon_pack.verify", "out/packed", "--source", "--num-workers", "1")
    for there, said, loaded in ((path, "", f"{sum(len(p['messages']) for p in packs)}\n"), (str(ROOT), "install", "")):
        verified = command(*verify, cwd=tmp_path, PYTHONPATH=there)
        assert (said == "") == (verified.returncode == 0), verified.stdout + verified.stderr
        assert said in verified.stderr
        assert "Traceback" not in verified.stderr
        trained = command("-c", script, cwd=tmp_path, PYTHONPATH=there)
        assert trained.stdout == loaded, trained.stderr
        assert said in trained.stderr
    again = command("-m", "energon_pack", *own, *flavor, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert again.stderr.splitlines()[-1].endswith("and what installed packages add"), again.stderr


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("name = 'other'", "its class has name = 'other'"),
        (
            "name = 'mine'; rules = ('turns', 'mine')",
            r"its class has the rules \['mine'\]; there are turns, images, stacks",
        ),
    ],
)
def test_a_flavor_that_can_not_be_right_is_refused(body: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs would be read by another name, or samples left out by another's answers."""
    made: dict[str, Any] = {}
    exec(f"class Mine(PackedMultiMixQA): {body}", {"PackedMultiMixQA": PackedMultiMixQA}, made)
    monkeypatch.setattr("energon_pack.run.load_by_name.load_entry_point", lambda *named: made["Mine"])
    with pytest.raises(PackError, match=said):
        find_packed_flavor("mine")
    monkeypatch.setattr("energon_pack.run.load_by_name.load_entry_point", lambda *named: dict)
    with pytest.raises(PackError, match="derives from PackedMultiMixQA"):
        find_packed_flavor("mine")


def test_an_executor_of_another_package(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """It does all jobs, and the bytes equal those of the local executor."""
    own = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", f"source.path={demo[0]}", "output.name=packed"]
    installed("serial_executor", tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path / "site")
        for kind in ("serial", "local"):
            code, _, errors = run_here(*own, f"executor.kind={kind}", f"output.dir={kind}", cwd=tmp_path)
            assert code == 0, errors
    assert files(tmp_path / "serial" / "packed") == files(tmp_path / "local" / "packed")
    with pytest.raises(PackError, match=r"^executor\.kind=serial: there are local, slurm, ray, and what installed"):
        ExecutorConfig(kind="serial").check()  # it is not installed here


def test_a_name_that_no_package_has_is_refused() -> None:
    """With the names that there are; and what is ours is never looked up, for that reads every package's metadata."""
    assert load_entry_point("sources", "source.format", "nothing") is None
    with pytest.raises(
        PackError, match=r"^source\.format=parquet: there are auto, wds, jsonl, table, and what installed"
    ):
        SourceConfig(format="parquet").check()
    script = "import sys; from energon_pack.sources.settings import SourceConfig; SourceConfig().check()"
    loaded = command("-S", "-c", f"{script}; print('importlib.metadata' in sys.modules)", cwd=ROOT)
    assert loaded.stdout in ("False\n", ""), loaded.stderr
