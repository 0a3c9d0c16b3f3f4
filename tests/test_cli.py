"""The command line as users meet it: every mistake is one line that names the value and the fix."""

import json
import sys
from pathlib import Path

import pytest
from conftest import ROOT, command

from energon_pack.config import conf_dir


def run(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    result = command("-m", "energon_pack", *arguments, cwd=cwd)
    return result.returncode, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], ["+model=NAME", "qwen2_5_vl"]),
        (["+model=qwen9"], ["qwen9", "qwen2_5_vl"]),
        (["model=qwen2_5_vl"], ["+model=qwen2_5_vl"]),
        (["+model=[qwen2_5_vl,qwen2_5_vl]"], ["one model"]),
        (["+model=qwen2_5_vl", "packing=flat"], ["flat", "neat, thd"]),
        (["+model=qwen2_5_vl", "packing.max_tokn_len=8"], ["packing.max_tokn_len=8", "packing.max_token_len"]),
        (["+model=qwen2_5_vl", "+packing.max_tokn_len=8"], ["packing.max_tokn_len", "packing.max_token_len"]),
        (["+model=qwen2_5_vl", "+sorce.path=x"], ["sorce", "source"]),
        (["+model=qwen2_5_vl", "packing.max_token_len=8k"], ["packing.max_token_len=8k", "8k"]),
        (["+model=qwen2_5_vl", "packing.max_token_len=0"], ["packing.max_token_len=0", "at least 1"]),
        (["+model=qwen2_5_vl", "packing.algorithm=best"], ["packing.algorithm=best", "best_fit_decreasing"]),
        (["+model=qwen2_5_vl", "packing.pad_to_multiple_of=3"], ["packing.pad_to_multiple_of=3", "8192"]),
        (["+model=qwen2_5_vl", "source.path=/nowhere/wds"], ["source.path=/nowhere/wds"]),
        (["+model=qwen2_5_vl", "source.path=3"], ["source.path=3"]),
        (["+model=qwen2_5_vl", "model.processor=/nowhere"], ["model.processor=/nowhere"]),
        (["+model=qwen2_5_vl", "model.factor=32"], ["model.factor"]),
        (["+model=qwen2_5_vl", "output.name=a/b"], ["output.name='a/b'"]),
        (["+model=qwen2_5_vl", "output.dir=/proc/nowhere"], ["/proc/nowhere"]),
        (["-m", "+model=qwen2_5_vl", "packing.max_token_len=0,4096"], ["packing.max_token_len=0"]),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, arguments: list[str], names: list[str]) -> None:
    code, _, errors = run(*arguments, cwd=tmp_path)
    assert code == 1
    assert len(errors.splitlines()) == 1, errors
    assert errors.startswith("energon-pack: error: ")
    assert all(name in errors for name in names), errors


def test_a_published_processor_offline_is_one_line(tmp_path: Path, demo: tuple[Path, Path]) -> None:
    """A real source with the model's published processor: the toy is never used instead."""
    code, _, errors = run("+model=qwen2_5_vl", f"source.path={demo[0]}", cwd=tmp_path)
    assert code == 1
    assert "Qwen/Qwen2.5-VL-7B-Instruct" in errors
    assert "model.processor=FOLDER" in errors


def test_a_refused_run_leaves_nothing(tmp_path: Path) -> None:
    run("+model=qwen2_5_vl", "source.path=/nowhere", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_demo(tmp_path: Path) -> None:
    code, out, errors = run("+model=qwen2_5_vl", cwd=tmp_path)
    assert (code, errors) == (0, "")
    assert out.splitlines()[0].startswith("built-in demo")
    assert "packed into packed/demo-qwen2_5_vl-neat-8192" in out
    config = json.loads((tmp_path / "packed/demo-qwen2_5_vl-neat-8192/report.json").read_text())["config"]
    assert config["packing"]["max_token_len"] == 8192
    code, _, errors = run("+model=qwen2_5_vl", cwd=tmp_path)
    assert code == 1
    assert "output.overwrite=true" in errors


def test_a_sweep_measures_once_into_folders_of_their_own(tmp_path: Path) -> None:
    code, _, errors = run("-m", "+model=qwen2_5_vl", "packing.max_token_len=2048,4096", cwd=tmp_path)
    assert code == 0, errors
    reports = [
        json.loads((tmp_path / "packed" / f"demo-qwen2_5_vl-neat-{length}" / "report.json").read_text())
        for length in (2048, 4096)
    ]
    assert [report["cache"]["shards_measured"] for report in reports] == [3, 0]
    assert [report["samples_packed"] for report in reports] == [320, 320]


def test_a_failing_job_of_a_sweep_does_not_stop_the_others(tmp_path: Path) -> None:
    """At 52 tokens every text sample is overlong: exit code 3."""
    code, _, errors = run("-m", "+model=qwen2_5_vl", "packing.max_token_len=52,2048", cwd=tmp_path)
    assert code == 3
    assert "every text sample was skipped" in errors
    assert (tmp_path / "packed/demo-qwen2_5_vl-neat-2048").is_dir()


def test_other_settings_get_a_name_of_their_own(tmp_path: Path) -> None:
    arguments = [
        "+model=qwen2_5_vl",
        "stage=plan",
        "output.max_shard_packs=5",
        "model.processor_kwargs.max_pixels=200704",
    ]
    code, _, errors = run(*arguments, cwd=tmp_path)
    assert code == 0, errors
    run("+model=qwen2_5_vl", "output.max_shard_packs=5", cwd=tmp_path)
    run("+model=qwen2_5_vl", "output.max_shard_packs=6", cwd=tmp_path)
    run("+model=qwen2_5_vl", "packing=thd", "executor.num_workers=1", cwd=tmp_path)
    names = sorted(path.name for path in (tmp_path / "packed").iterdir() if not path.name.startswith("."))
    assert len(names) == 3
    assert all(name.startswith("demo-qwen2_5_vl-neat-8192-") for name in names[:2])
    assert names[2] == "demo-qwen2_5_vl-thd-8192"


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "conf" / "model").mkdir(parents=True)
    yaml = (conf_dir() / "model" / "qwen2_5_vl.yaml").read_text().replace("name: qwen2_5_vl", "name: mine")
    (tmp_path / "conf" / "model" / "mine.yaml").write_text(yaml)
    code, out, errors = run("--config-dir", "conf", "+model=mine", "stage=plan", cwd=tmp_path)
    assert code == 0, errors
    assert "320" in out


def test_every_choice_of_groups_composes() -> None:
    from hydra import compose, initialize_config_dir

    from energon_pack.config import to_config

    options = {path.parent.name: [] for path in conf_dir().glob("*/*.yaml")}
    for path in conf_dir().glob("*/*.yaml"):
        options[path.parent.name].append(path.stem)
    assert set(options) == {"model", "media", "packing", "source", "executor"}
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        for model in options.pop("model"):
            for group, names in options.items():
                for name in names:
                    to_config(compose("config", [f"+model={model}", f"{group}={name}"]), [])


def test_help_is_quick_and_light(tmp_path: Path) -> None:
    """Neither help nor importing the package pays for torch."""
    code, out, _ = run("--help", cwd=tmp_path)
    assert code == 0
    for word in ("+model=NAME", "source.path", "packing: neat, thd", "model: qwen2_5_vl", "Exit codes"):
        assert word in out
    script = (
        "import sys, energon_pack.cli, energon_pack.hydra_plugin; print({'torch', 'transformers'} & set(sys.modules))"
    )
    assert command("-c", script, cwd=tmp_path).stdout == "set()\n"


def test_version(tmp_path: Path) -> None:
    assert run("--version", cwd=tmp_path)[1].startswith("energon-pack 0.")


def test_the_second_run_needs_no_transformers(tmp_path: Path) -> None:
    """Start-up is seconds the first time only; workers never import torch."""
    run("+model=qwen2_5_vl", "stage=plan", cwd=tmp_path)
    script = (
        "import sys\nfrom energon_pack.cli import main\n"
        "sys.argv = ['energon-pack', '+model=qwen2_5_vl', 'stage=plan', 'executor.num_workers=1']\n"
        "try: main()\nexcept SystemExit as e: print(e.code, {'torch', 'transformers'} & set(sys.modules))"
    )
    result = command("-c", script, cwd=tmp_path)
    assert result.stdout.splitlines()[-1] == "0 set()", result.stderr


def test_groups_for_other_hydra_apps(tmp_path: Path) -> None:
    """Another app keeps its own `model` group, and can mount ours under its name."""
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "resnet.yaml").write_text("depth: 50\n")
    (tmp_path / "conf" / "config.yaml").write_text(
        "defaults:\n  - model: resnet\n  - energon_pack/packing@data.packing: thd\n  - _self_\n"
    )
    (tmp_path / "app.py").write_text(
        "import hydra\nfrom hydra.core.plugins import Plugins\n"
        "from energon_pack.hydra_plugin import EnergonPackSearchPath\n"
        "Plugins.instance().register(EnergonPackSearchPath)\n"
        "@hydra.main(version_base='1.3', config_path='conf', config_name='config')\n"
        "def main(cfg): print(cfg.model.depth, cfg.data.packing.layout)\nmain()\n"
    )
    result = command(tmp_path / "app.py", cwd=tmp_path)
    assert result.stdout == "50 thd\n", result.stderr
    assert "qwen2_5_vl" not in command(tmp_path / "app.py", "--info", "defaults", cwd=tmp_path).stdout


def test_the_source_tree_is_the_one_that_runs() -> None:
    assert (ROOT / "energon_pack").samefile(Path(sys.modules["energon_pack"].__file__ or "").parent)
