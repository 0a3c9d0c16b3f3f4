"""Check whether another machine is fit for a run: it has the same packages and sees the same folders."""

import json
import os
import platform
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from energon_pack.errors import escape_unprintable
from energon_pack.run.executors import JobFolder
from energon_pack.run.packages import package_versions

_MARK_PREFIX = ".seen-by-all-"  # the start of the names of files by which other machines recognize a folder
_OLD_SECONDS = 30 * 86400.0  # older files were left by killed runs: no run takes that long
_APPEARS_SECONDS = 5.0  # a network file system may show a new file late


@dataclass(frozen=True)
class MachineTerms:
    """The conditions that a machine must meet; they travel with the jobs."""

    packages: dict[str, str | None]
    cwd: str
    #: pairs of a setting and a file or folder that exists in the folder it names
    seen: tuple[tuple[str, str], ...]


@contextmanager
def terms_with_mark_files(folders: Sequence[JobFolder], kept_as: str | None = None) -> Iterator[MachineTerms]:
    """Yield a run's conditions for other machines, and keep a mark file in each folder that the run writes to.

    `kept_as`: end of the mark files' names, which then stay after the run; None: a random one, and they are removed.
    """
    seen = []
    with ExitStack() as stack:
        for folder in folders:
            if folder.is_written:
                folder.path.mkdir(parents=True, exist_ok=True)
                for mark_file in folder.path.glob(f"{_MARK_PREFIX}*"):  # files of killed runs
                    with suppress(OSError):
                        if time.time() - mark_file.stat().st_mtime > _OLD_SECONDS:
                            mark_file.unlink()
                mark = folder.path / f"{_MARK_PREFIX}{kept_as or uuid.uuid4().hex}"
                if kept_as is None:
                    stack.callback(mark.unlink, missing_ok=True)
                mark.touch()
                seen.append((folder.knob, os.fspath(mark)))
            elif folder.path.is_dir():  # False for an object store
                with os.scandir(folder.path) as entries:
                    seen += [(folder.knob, entry.path) for entry in islice(entries, 1)]
        yield MachineTerms(package_versions(), os.getcwd(), tuple(seen))


def enter_and_check_machine(terms: MachineTerms) -> str | None:
    """Say why this machine can't work for a run, in a text that begins with the machine's name; None: it can.

    It changes to the run's working directory, so that the run's relative paths hold.
    """
    if why := why_packages_differ(terms.packages):
        return why
    with suppress(OSError):
        os.chdir(terms.cwd)
    for knob, path in terms.seen:
        if not _appears(path):
            return (
                f"{platform.node()} does not see {os.path.dirname(path)} as it is where the run was started: {knob} has"
                " to name a folder that all machines share, under the same path"
            )
    return None


def why_packages_differ(expected: Mapping[str, str | None]) -> str | None:
    """Say which packages differ from those that a run was started with; None: no package differs."""
    here = package_versions()
    differ = [
        f"{name} {here[name]} instead of {version}" for name, version in expected.items() if here[name] != version
    ]
    if not differ:
        return None
    return f"{platform.node()} has {', '.join(differ)}: install the same packages on all machines of a run"


def _appears(path: str) -> bool:
    end = time.monotonic() + _APPEARS_SECONDS
    while not os.path.exists(path):
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def remove_mark_files(terms: MachineTerms) -> None:
    """Remove the files that `terms_with_mark_files` left in folders, once no process looks for them."""
    for _, path in terms.seen:
        if os.path.basename(path).startswith(_MARK_PREFIX):
            Path(path).unlink(missing_ok=True)


def _main(path: str, *options: str) -> None:
    """Fail a Slurm job in its first second if its node is unfit; with `--end`, clean up after the run."""
    try:
        about = json.loads(Path(path).read_bytes())
    except OSError as error:
        place = f"{platform.node()}: {path}: {error.strerror} (cache_dir)"
        raise SystemExit(f"energon-pack: error: {escape_unprintable(place)}") from None
    terms = MachineTerms(about["packages"], about["cwd"], tuple(map(tuple, about["seen"])))
    if options == ("--end",):
        remove_mark_files(terms)
    elif why := enter_and_check_machine(terms):
        raise SystemExit(f"energon-pack: error: {escape_unprintable(why)}")


if __name__ == "__main__":
    _main(*sys.argv[1:])
