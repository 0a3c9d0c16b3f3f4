"""How a test runs the package: where it is, a command in a folder, and what a test can do without."""

import io
import logging
import os
import runpy
import signal
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from unittest import mock

import pytest

from energon_pack.templates.full_processor import prepare_torchvision

#: The checkout, and the real processors and samples beside it.
ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared" / "real"
#: energon_pack/pack.py, whose names a test may patch: `energon_pack.pack` is the function
PIPELINE = import_module("energon_pack.pack")


def need_torchvision() -> None:
    """Most of transformers' full processors are built only with it."""
    prepare_torchvision()
    pytest.importorskip("torchvision", reason="transformers' full processor needs torchvision")


def command(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python ...` in a folder, offline."""
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env=variables, capture_output=True, text=True, timeout=900
    )


def installed(plugin: str, folder: Path) -> str:
    """PYTHONPATH: the folder into which an example of recipes/plugins was installed by pip, and the checkout."""
    target = folder / "site"
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--quiet", "--target", target)
    run(sys.executable, "-m", "pip", "install", *options, ROOT / "recipes" / "plugins" / plugin, cwd=folder)
    return f"{target}:{ROOT}"


def command_here(module: str, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `python -m module ...` in a folder as `command` does, but in this process, which has imported all.

    For what a command says and writes. Not for what a process of its own is needed for: signals, exit codes that a
    system gives, what is imported, what is printed by others.
    """
    out, errors = io.StringIO(), io.StringIO()
    with as_a_program(module, *arguments, cwd=cwd), redirect_stdout(out), redirect_stderr(errors):
        code = exit_code(lambda: runpy.run_module(module, run_name="__main__"))
    return subprocess.CompletedProcess([module, *map(str, arguments)], code, out.getvalue(), errors.getvalue())


@contextmanager
def as_a_program(*argv: str | Path, cwd: Path) -> Iterator[None]:
    """Restore arguments, folder, environment, loggers and signal handlers at the end."""
    root, numbers = logging.getLogger(), (signal.SIGTERM, signal.SIGINT)
    handlers, level, on_signals = root.handlers[:], root.level, list(map(signal.getsignal, numbers))
    with pytest.MonkeyPatch.context() as patch, mock.patch.dict(os.environ), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*found in sys.modules after import of package", RuntimeWarning)  # runpy
        patch.chdir(cwd)
        patch.setattr(sys, "argv", list(map(str, argv)))
        patch.setattr("energon_pack.run.command.end_process", sys.exit)
        patch.setattr("energon_pack.cli.end_process", sys.exit)
        try:
            yield
        finally:
            root.handlers[:], root.level = handlers, level
            for number, handler in zip(numbers, on_signals, strict=True):
                signal.signal(number, handler)


def exit_code(program: Callable[[], object]) -> int:
    """Return a program's exit code."""
    try:
        program()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def run_here(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    """The command line in this process, with no other: a start takes seconds."""
    if any(argument.startswith("+model=") for argument in arguments):
        arguments += ("executor.num_workers=1", "measure.verify=0")
    result = command_here("energon_pack", *arguments, cwd=cwd)
    return result.returncode, result.stdout, result.stderr


def run_alone(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    """The command line as users start it. Lengths are verified only where a test asks for it: that imports torch."""
    if "+model=qwen2_5_vl" in arguments and not any(a.startswith(("measure.verify", "--")) for a in arguments):
        arguments += ("measure.verify=0",)
    result = command("-m", "energon_pack", *arguments, cwd=cwd)
    return result.returncode, result.stdout, result.stderr


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Run a command, which has to succeed; return its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    result = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def environment(folder: Path) -> Path:
    """The Python of a new environment that sees what the environment of the tests has, but not this package."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)  # it takes longer than all below
    python = folder / "bin" / "python"
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (own / "others.pth").write_text(sysconfig.get_path("purelib"))  # a plain path: editable installs there stay unseen
    return python


def start_alone(*arguments: str, cwd: Path) -> "subprocess.Popen[str]":
    """The command line as users start it; it is at work when this returns."""
    return subprocess.Popen(
        [sys.executable, "-m", "energon_pack", *arguments],
        cwd=cwd,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
