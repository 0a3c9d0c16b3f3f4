"""Installed as a wheel in an environment of its own, run from another folder: `conf/` and the plugin are there."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

import energon_pack
from energon_pack.errors import PackError
from energon_pack.recipes import main, recipe_files, write_recipes
from support.running import ROOT, environment, run

PACKAGE = ROOT / "energon_pack"
#: Tests of what measuring, planning and processes are made of; they run in any Python.
WITHOUT_TORCH = [
    path
    for name in ("executor", "headers", "jsonl", "plan", "record", "table_cache", "tar", "wds")
    for path in (ROOT / "tests").rglob(f"test_{name}.py")
]
TOOLS = sorted(path.stem for path in PACKAGE.glob("[!_]*.py") if '__name__ == "__main__"' in path.read_text())


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git would check out, and files that are not committed yet; without git (in an sdist), all that is here."""
    if not (ROOT / ".git").exists():
        return ROOT
    folder = tmp_path_factory.mktemp("clone")
    for name in run("git", "ls-files", "-co", "--exclude-standard", "-z", cwd=ROOT).split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built through the source distribution, as for a release."""
    return build(clone, tmp_path_factory.mktemp("dist"))


def build(source: Path, folder: Path, *options: str) -> Path:
    run(sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", folder, source, cwd=folder)
    return next(folder.glob("*.whl"))


def installed(folder: Path, *install: str | Path) -> Path:
    """The Python of a new environment with this package in it."""
    python = environment(folder)
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", "--no-build-isolation", *install, cwd=folder)
    return python


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("wheel") / "venv", wheel)


def contents(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def test_the_wheel_is_the_same_with_and_without_the_source_distribution(
    clone: Path, wheel: Path, tmp_path: Path
) -> None:
    """And it holds every module and setting that lies in the checkout, also what git does not see."""
    held = contents(wheel)
    assert held == contents(build(clone, tmp_path, "--wheel"))
    modules = {str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.py")}
    settings = {f"energon_pack/{path.relative_to(ROOT)}" for path in (ROOT / "conf").rglob("*.yaml")}
    recipes = {f"energon_pack/shipped/{name}" for name in recipe_files()}
    beside = {"energon_pack/__init__.pyi", "energon_pack/py.typed", "energon_pack/report/pages/style.css"}
    assert {name for name in held if name.startswith("energon_pack/")} == modules | settings | recipes | beside


def test_the_source_distribution_holds_what_is_checked_out(clone: Path, wheel: Path) -> None:
    """Hidden files of CI are left out."""
    if clone == ROOT:
        pytest.skip("this is no checkout")
    with tarfile.open(next(wheel.parent.glob("*.tar.gz"))) as sdist:
        given = {name.partition("/")[2] for name in sdist.getnames()}
    committed = set(run("git", "ls-files", "-z", cwd=ROOT).split("\0")) - {""}
    assert {name for name in committed - given if not name.startswith(".")} == set()


def test_a_release_says_one_version_and_date_and_readme_names_each_extra() -> None:
    """Who cites it, or installs an extra, reads what the package calls itself."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == energon_pack.__version__
    assert f"## {cited['version']} – {cited['date-released']}\n" in (ROOT / "CHANGELOG.md").read_text()
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text().split("optional-dependencies]")[1], re.M)
    line = next(line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("Extras"))
    assert set(re.findall(r"`(\w+)`", line)) == set(extras[: extras.index("dev") + 1])


def test_a_wheel_brings_the_recipes(python: Path, tmp_path: Path) -> None:
    """They were in the checkout alone, which a wheel does not bring."""
    listed = run(python, "-m", "energon_pack.recipes", cwd=tmp_path)
    assert "recipes/train_tiny.py             Train a tiny random Qwen2.5-VL on packs" in listed
    assert list(tmp_path.iterdir()) == []
    run(python, "-m", "energon_pack.recipes", ".", cwd=tmp_path)
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {str(name) for name in recipe_files()}
    for name in recipe_files():
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()
    assert "usage: read_packs.py" in run(python, "recipes/read_packs.py", "--help", cwd=tmp_path)


@pytest.mark.long("the wheel in an environment of its own")
def test_every_module_of_the_wheel_is_imported(python: Path, tmp_path: Path) -> None:
    """`verify` and `unpack` ended in ModuleNotFoundError where the wheel lacked a package."""
    paths = [path.relative_to(ROOT).with_suffix("") for path in sorted(PACKAGE.rglob("*.py"))]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    names.remove("energon_pack.trainers.dataset_rows")  # `datasets` is no dependency, and the error says so
    why = "try: import energon_pack.trainers.dataset_rows\nexcept ModuleNotFoundError as error: print(error)"
    assert "pip install datasets" in run(python, "-c", why, cwd=tmp_path)
    script = "import importlib, sys; [print(importlib.import_module(name).__file__) for name in sys.argv[1:]]"
    files = run(python, "-c", script, *names, cwd=tmp_path).splitlines()
    assert len(files) == len(names) > 100
    assert all(Path(file).is_relative_to(python.parents[1]) for file in files)


def test_every_tool_has_a_page_of_help(python: Path, tmp_path: Path) -> None:
    """All in one process: what takes seconds is to import."""
    script = "import runpy, sys; from contextlib import suppress; sys.argv[1:], names = ['--help'], sys.argv[1:]\n"
    script += "for name in names:\n with suppress(SystemExit): runpy.run_module(name, run_name='__main__')"
    assert len(TOOLS) >= 4
    shown = run(python, "-c", script, *(f"energon_pack.{tool}" for tool in (*TOOLS, "verify")), cwd=tmp_path)
    assert all(shown.count(f"usage: python -m energon_pack.{tool} ") == 1 for tool in (*TOOLS, "verify"))


#: prints where the package and its settings are, and plugins of Hydra for search paths
WHERE = """
import energon_pack, energon_pack.config
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
print(energon_pack.__file__, energon_pack.config.conf_dir(), *Plugins.instance().discover(SearchPathPlugin))
"""


def check_runs(python: Path, folder: Path, *overrides: str) -> None:
    printed = run(python, "-c", WHERE, cwd=folder)
    assert printed.count(str(python.parents[1])) == 2
    assert printed.count("EnergonPackSearchPath") == 1  # found, and found once
    sweep = ["-m", "+model=qwen2_5_vl", "packing.max_token_len=4096,8192", "executor.num_workers=2", *overrides]
    out = run(python.with_name("energon-pack"), *sweep, cwd=folder)
    packed = re.findall("packed into (packed/demo-qwen2_5_vl-neat-.*)", out)
    assert len(packed) == 2
    run(python, "-m", "energon_pack.verify", packed[0], cwd=folder)
    assert "320 samples" in run(python, "-m", "energon_pack.unpack", packed[0], "single", cwd=folder)


@pytest.mark.long("commands of an installed wheel, each a process")
def test_a_wheel_runs_from_any_folder(python: Path, cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    check_runs(python, folder, "measure.verify=0", f"cache_dir={cache}")


@pytest.mark.slow
def test_the_hydra_that_megatron_pins(wheel: Path, tmp_path: Path) -> None:
    """Megatron-Bridge allows at most 1.3.2. Needs the package index."""
    python = installed(tmp_path / "venv", wheel)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    run(python, "-m", "pip", "install", "--no-deps", "hydra-core==1.3.2", cwd=folder)
    assert run(python, "-c", "import hydra; print(hydra.__version__)", cwd=folder).strip() == "1.3.2"
    check_runs(python, folder)


@pytest.mark.slow
def test_the_newest_of_what_it_needs(wheel: Path, tmp_path: Path) -> None:
    """A release of transformers or Hydra that breaks it is seen here first. torch stays: another one is gigabytes."""
    python = installed(tmp_path / "venv", wheel)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "constraints.txt").write_text(f"torch=={version('torch')}\n")
    needed = [name for name in requirements(python, folder) if not name.startswith("torch")]
    run(python, "-m", "pip", "install", "--upgrade", "-c", "constraints.txt", *needed, cwd=folder)
    check_runs(python, folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", ["3.10", "3.12", "3.13", "3.14"])
def test_another_python(wheel: Path, python: Path, tmp_path: Path, number: str) -> None:
    """Measures and plans the same, with the newest of what it needs there, and passes the tests that need no torch.

    Without torch: a CPU build of it is not there for every Python, and any other is gigabytes.
    """
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    run(interpreter(number), "-m", "venv", tmp_path / "venv", cwd=folder)
    other = tmp_path / "venv" / "bin" / "python"
    run(other, "-m", "pip", "install", "--no-deps", wheel, cwd=folder)
    without = ("torch", "megatron-energon", "webdataset")
    needed = [name for name in requirements(other, folder) if not name.startswith(without)]
    run(other, "-m", "pip", "install", *needed, "pytest", "pytest-timeout", "hypothesis", cwd=folder)
    arguments = ["-m", "energon_pack", "+model=qwen2_5_vl", "stage=plan", "executor.num_workers=2"]
    ours = run(python, *arguments, "output.dir=ours", cwd=folder)
    theirs = run(other, *arguments, "output.dir=theirs", cwd=folder)
    table = [line for line in ours.splitlines() if line.startswith(("text", "image", "total", "tokens"))]
    assert len(table) == 4
    assert set(table) <= set(theirs.splitlines())
    assert len(WITHOUT_TORCH) == 8
    options = ("-p", "no:cacheprovider", f"--basetemp={tmp_path / 'tests'}", "-k", "not energon")
    run(other, "-m", "pytest", *options, *WITHOUT_TORCH, cwd=ROOT)


def requirements(python: Path, folder: Path) -> list[str]:
    """Return the requirements of the installed package without its extras."""
    script = "from importlib.metadata import requires; print('\\n'.join(requires('energon-pack')))"
    return [line for line in run(python, "-c", script, cwd=folder).splitlines() if "extra ==" not in line]


def interpreter(number: str) -> Path:
    """A Python of this version, on the path or among pyenv's; the test is skipped where there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    found = [shutil.which(f"python{number}"), *map(str, pyenv.glob(f"{number}.*/bin/python"))]
    for path in filter(None, found):
        if subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return Path(path)
    pytest.skip(f"no Python {number} is here")


@pytest.mark.slow
def test_an_editable_install_runs_from_any_folder(tmp_path: Path) -> None:
    python = installed(tmp_path / "venv", "-e", ROOT)
    out = run(python, "-m", "energon_pack", "+model=qwen2_5_vl", "stage=plan", cwd=tmp_path)
    assert "built-in demo" in out
    printed = run(python, "-c", WHERE, cwd=tmp_path)
    assert f" {ROOT / 'conf'} " in printed
    assert printed.count("EnergonPackSearchPath") == 1


def test_they_are_those_of_the_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All that git has of them, and no more."""
    assert main([str(tmp_path)]) == 0
    assert f"written: {tmp_path / 'recipes'}, {tmp_path / 'constraints.txt'}" in capsys.readouterr().out
    kept = {
        path.relative_to(ROOT) for path in (ROOT / "recipes").rglob("*") if path.suffix in (".py", ".yaml", ".toml")
    }
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*.*")} == kept | {Path("constraints.txt")}
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "all of them are there\n"


def test_what_was_adapted_stays(tmp_path: Path) -> None:
    """Whoever changed a recipe and upgrades would lose his work."""
    mine = tmp_path / "recipes" / "train_ddp.py"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(PackError, match=r"train_ddp\.py is there and differs from this version's"):
        write_recipes(tmp_path)
    assert list(tmp_path.rglob("*.*")) == [mine]
    assert mine.read_text() == "mine"


def test_each_is_listed_with_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + sum(name.suffix == ".py" for name in recipe_files())
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)
