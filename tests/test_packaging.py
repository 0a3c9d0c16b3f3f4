"""Installed as a wheel in an environment of its own, run from another folder: `conf/` and the plugin are there."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import ROOT


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built through the source distribution, as for a release."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return next(folder.glob("*.whl"))


@pytest.fixture
def python(wheel: Path, tmp_path: Path) -> Path:
    """A new environment with the wheel; everything else comes from the environment of the tests."""
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (own / "others.pth").write_text(sysconfig.get_path("purelib"))  # a plain path: editable installs there stay unseen
    return python


def check_runs(python: Path, folder: Path) -> None:
    script = "import energon_pack, energon_pack.config as c; print(energon_pack.__file__, c.conf_dir())"
    assert run(python, "-c", script, cwd=folder).count(str(python.parents[1])) == 2
    assert "model: gemma3" in run(python.with_name("energon-pack"), "--help", cwd=folder)
    sweep = ["-m", "+model=qwen2_5_vl", "packing.max_token_len=4096,8192", "executor.num_workers=2"]
    out = run(python, "-m", "energon_pack", *sweep, cwd=folder)
    assert out.count("packed into packed/demo-qwen2_5_vl-neat-") == 2
    plugins = run(python, "-m", "energon_pack", "+model=qwen2_5_vl", "--info", "plugins", cwd=folder)
    assert plugins.count("EnergonPackSearchPath") == 1  # found, and found once


def test_a_wheel_runs_from_any_folder(python: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    check_runs(python, folder)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.3.2", "1.3.8"])
def test_the_hydras_megatron_pins(python: Path, tmp_path: Path, version: str) -> None:
    """Megatron-Bridge allows at most 1.3.2. Needs the package index."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    run(python, "-m", "pip", "install", "--no-deps", f"hydra-core=={version}", cwd=folder)
    assert run(python, "-c", "import hydra; print(hydra.__version__)", cwd=folder).strip() == version
    check_runs(python, folder)


@pytest.mark.slow
def test_an_editable_install_runs_from_any_folder(tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (own / "others.pth").write_text(sysconfig.get_path("purelib"))
    run(python, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "-e", ROOT, cwd=tmp_path)
    out = run(python, "-m", "energon_pack", "+model=qwen2_5_vl", "stage=plan", cwd=tmp_path)
    assert "built-in demo" in out
    script = "import energon_pack.config as c; print(c.conf_dir())"
    assert run(python, "-c", script, cwd=tmp_path).strip() == str(ROOT / "conf")
    plugins = run(python, "-m", "energon_pack", "+model=qwen2_5_vl", "--info", "plugins", cwd=tmp_path)
    assert plugins.count("EnergonPackSearchPath") == 1
