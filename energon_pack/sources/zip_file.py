"""Read media in a zip archive, each as a whole."""

import zipfile
import zlib

from energon_pack.errors import one_line
from energon_pack.run.bounds import Unbounded, bounded
from energon_pack.run.recent import Recent
from energon_pack.samples.bytes import as_file
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.storage import InMemory, open_file, state_of

_LARGEST = 4 << 30  # bytes of a medium
#: how much memory one may take: bytes, and times what it takes in the archive
_BESIDE, _MOST_TIMES = 512 << 20, 16
#: archive → its version, and the open archive
_archives: Recent[str, tuple[str, zipfile.ZipFile]] = Recent(16, close=lambda opened: opened[1].close())


def open_member(archive: str, name: str) -> InMemory:
    """Open a member of an archive; its version is the version of the archive.

    Raises:
        FileNotFoundError: there is no such archive.
        KeyError: there is no such member.
        Skip: `unreadable_media`: the archive or the member is damaged, encrypted, or too large.
    """
    state = state_of(archive)
    if state is None:
        raise FileNotFoundError(archive)
    try:
        opened = _opened(archive, state.version)
        info = opened.getinfo(name)
        if info.file_size > _LARGEST:
            raise Skip(Reason.UNREADABLE_MEDIA, f"{name!r} has {info.file_size:,} bytes in the archive")
        with bounded(_BESIDE + info.compress_size * _MOST_TIMES):
            return InMemory(opened.read(info), state.version)
    except (Unbounded, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise Skip(Reason.UNREADABLE_MEDIA, f"{name!r} of the zip archive: {one_line(error)}") from None


def _opened(archive: str, version: str) -> zipfile.ZipFile:
    was, opened = _archives.get(archive) or ("", None)
    if opened is None or was != version:
        _archives.drop(archive)
        opened = zipfile.ZipFile(as_file(open_file(archive)))
        _archives.put(archive, (version, opened))
    return opened
