"""Read images in an LMDB, each as a whole."""

import os
from typing import Any

from energon_pack.run.recent import Recent
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.storage import InMemory, State, state_of

#: path of an LMDB → its version and an open environment
_environments: Recent[str, tuple[str, Any]] = Recent(16, close=lambda opened: opened[1].close())


def open_value(database: str, key: str) -> InMemory:
    """Return the value of a key; its version is the version of the LMDB.

    Raises:
        FileNotFoundError: there is no such LMDB.
        KeyError: there is no such key.
        Skip: `unsupported_media` if lmdb is not installed; `unreadable_media` if the file is no LMDB, or the key is
            impossible.
    """
    file = os.path.join(database, "data.mdb") if os.path.isdir(database) else database
    state = state_of(file)
    if state is None:
        raise FileNotFoundError(file)
    environment = _environment(database, state)
    import lmdb  # it is installed: it has opened the LMDB

    try:
        with environment.begin(buffers=True) as transaction:
            value = transaction.get(key.encode())
            if value is None:
                raise KeyError(key)
            return InMemory(bytes(value), state.version)
    except lmdb.Error as error:  # a damaged page, or a key that no LMDB can have
        raise Skip(Reason.UNREADABLE_MEDIA, f"the LMDB's {key!r}: {error}") from None


def _environment(database: str, state: State) -> Any:
    """Return an open LMDB; it is opened anew after it was written to, as a process may not open one twice."""
    was, environment = _environments.get(database) or ("", None)
    if was != state.version:
        _environments.drop(database)
        environment = _opened(database, state.size)
        _environments.put(database, (state.version, environment))
    return environment


def _opened(database: str, num_bytes: int) -> Any:
    """Open an LMDB of this size; raises Skip as `open_value`."""
    name = os.path.basename(database)
    try:
        import lmdb
    except ImportError:
        raise Skip(Reason.UNSUPPORTED_MEDIA, "images of an LMDB need lmdb: pip install 'energon-pack[lmdb]'") from None
    try:
        environment = lmdb.open(database, subdir=os.path.isdir(database), readonly=True, lock=False, readahead=False)
    except lmdb.Error as error:
        what = str(error).removeprefix(f"{database}: ")  # the ledger names no machine's folder
        raise Skip(Reason.UNREADABLE_MEDIA, f"{name!r} is no LMDB: {what}") from None
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if num_bytes < needed:  # reading a page that is not there would end the process
        environment.close()
        what = f"its pages need {needed:,} bytes, it has {num_bytes:,}; mdb_copy -c writes one anew that is whole"
        raise Skip(Reason.UNREADABLE_MEDIA, f"{name!r} is cut short: {what}")
    return environment
