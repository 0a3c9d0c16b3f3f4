"""What all commands share: exit codes, pages of help, signals, and users' errors in one line."""

import argparse
import atexit
import io
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from keyword import iskeyword
from pathlib import Path
from typing import NoReturn

from energon_pack.errors import PackError, SamplesLost
from energon_pack.run.address import is_address
from energon_pack.run.console import EscapingFormatter, print_error
from energon_pack.run.packages import collect_garbage_rarely
from energon_pack.run.stores.requests import reraising_store_errors
from energon_pack.run.untrusted_input import enable_memory_bounds
from energon_pack.version import VERSION

EXIT_INTERRUPTED = 130
#: The exit codes of every command; all pages of help show them from here.
EXIT_CODES: dict[int, str] = {
    0: "done",
    PackError.exit_code: "refused, or wrong input: one line names the value and what to change",
    2: "an unknown option, or a missing argument: the usage is printed",
    SamplesLost.exit_code: (
        "too much is lost: to bad data (`max_skipped`), as overlong or cut off (`packing.max_dropped_tokens`), or"
        " all samples of one kind of media: nothing was published"
    ),
    EXIT_INTERRUPTED: "interrupted; the same `energon-pack` command continues from the files that are there",
}
#: The programs beside `energon-pack`: `energon-pack <name>`, and `python -m energon_pack.<name>` but for `try`.
TOOLS: dict[str, str] = {
    "try": "see what a source holds, what would be lost, and which pack length fits",
    "verify": "check a packed dataset",
    "inspect": "look at a pack, or at a sample of a source before it is packed",
    "unpack": "the samples of a packed dataset, each of its own again",
    "metadataset": "blend packed datasets",
    "order": "read several packed datasets in one order",
    "recipes": "trainings to read and adapt, with the tested versions, into a folder",
}
_WIDEST_HELP = 110


def make_tool_parser(
    name: str,
    usage: str,
    description: str,
    examples: Sequence[str] = (),
    exit_codes: Mapping[int, str] | None = None,
) -> argparse.ArgumentParser:
    """Return the argument parser of a tool, whose `--help` ends with examples and exit codes.

    Args:
        usage: the arguments in the line of usage, as `DIR OUT`.
        exit_codes: exit codes that the tool has of its own, with their meanings.
    """
    program = _command_of(name)
    lines = ["examples:", *(f"  {program} {example}" for example in examples), ""] if examples else []
    all_codes = {code: meaning for code, meaning in EXIT_CODES.items() if code != SamplesLost.exit_code} | dict(
        exit_codes or {}
    )
    lines += ["exit codes:", *exit_code_help_lines(dict(sorted(all_codes.items())))]
    tool = argparse.ArgumentParser(
        program,
        usage=f"{program} {usage} [options]",
        description=description,
        epilog="\n".join(lines),
        formatter_class=_HelpPage,
    )
    tool.add_argument("-V", "--version", action="version", version=f"energon-pack {VERSION}")
    return tool


class _HelpPage(argparse.RawDescriptionHelpFormatter):
    """Formats help as wide as the terminal, but at most `_WIDEST_HELP` characters wide."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=min(_WIDEST_HELP, shutil.get_terminal_size().columns - 2))


def exit_code_help_lines(exit_codes: Mapping[int, str]) -> list[str]:
    """Return a line of help for each exit code."""
    return [f"  {code:<4} {meaning.replace('`', '')}" for code, meaning in exit_codes.items()]


def tool_help_lines() -> list[str]:
    """Return a line of help for each tool: its command, and its purpose."""
    return [f"  {_command_of(name):<35} {purpose}" for name, purpose in TOOLS.items()]


def _command_of(name: str) -> str:
    """Return the command of a tool: `try` is a keyword, and can't be a module."""
    return f"energon-pack {name}" if iskeyword(name) else f"python -m energon_pack.{name}"


def positive_int(text: str) -> int:
    """Parse a command-line argument that is a whole number, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


_NO_STORE_REASON = " is on an object store, and this takes a folder of this machine: copy it, or mount the bucket"


def require_local_path(text: str, reason: str = _NO_STORE_REASON) -> Path:
    """Return a path on which a tool works; raises PackError for an address of an object store, with this reason."""
    if is_address(text):
        raise PackError(f"{text}{reason}")
    return Path(text)


def prepare_tool_process() -> None:
    """Bound the process's memory, collect garbage rarely, replace what a locale can't print, let SIGTERM interrupt."""
    collect_garbage_rarely()
    enable_memory_bounds()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(EscapingFormatter())
    signal.signal(signal.SIGTERM, lambda *_: _interrupt())


def exit_after_closed_pipe() -> NoReturn:
    """Exit with 1 and print nothing: the reader of the output has closed it, as `| head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)


def end_process(code: int) -> NoReturn:
    """Exit after the exit handlers, without freeing any object, which takes a tenth of a second."""
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        exit_after_closed_pipe()
    os._exit(code)


def run_tool(name: str, work: Callable[[], int]) -> NoReturn:
    """Run a tool, then exit: with the code of `work`, a PackError's `exit_code`, 1 for OSError, 130 if interrupted."""
    prepare_tool_process()
    try:
        try:
            with reraising_store_errors():
                code = work()
        finally:
            sys.stdout.flush()
        end_process(code)
    except BrokenPipeError:
        exit_after_closed_pipe()
    except PackError as error:
        text, code = str(error), error.exit_code
    except OSError as error:
        text, code = f"{error.filename or 'reading or writing failed'}: {error.strerror or error}", 1
    except KeyboardInterrupt:
        text, code = "interrupted", EXIT_INTERRUPTED
    print_error(f"energon_pack.{name}", text)
    end_process(code)


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt
