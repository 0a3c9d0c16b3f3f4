"""What commands share: exit codes, signals, and of those with plain arguments a user's error in one line."""

import argparse
import io
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from energon_pack import __version__
from energon_pack.errors import PackError

EXIT_INTERRUPTED = 130


def parser(name: str, takes: str, description: str) -> argparse.ArgumentParser:
    """The parser of `python -m energon_pack.<name>`, and what it takes first."""
    program = f"python -m energon_pack.{name}"
    made = argparse.ArgumentParser(program, usage=f"{program} {takes} [options]", description=description)
    made.add_argument("--version", action="version", version=f"energon-pack {__version__}")
    return made


def count(text: str) -> int:
    """An argument that is a number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def prepare_process() -> None:
    """Have no name or message end the work in an ASCII locale, and SIGTERM interrupt it as Ctrl-C does."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    signal.signal(signal.SIGTERM, lambda *_: _interrupt())


def run(name: str, work: Callable[[], int]) -> NoReturn:
    """Do a tool's work and exit: with its result, 1 after a user's error, 130 where it is interrupted."""
    prepare_process()
    try:
        sys.exit(work())
    except PackError as error:
        text, code = str(error), error.exit_code
    except OSError as error:
        text, code = f"{error.filename or 'reading or writing failed'}: {error.strerror or error}", 1
    except KeyboardInterrupt:
        text, code = "interrupted", EXIT_INTERRUPTED
    print(f"energon_pack.{name}: {' '.join(text.splitlines())}", file=sys.stderr)
    sys.exit(code)


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt
