"""A cache on an object store, as a folder of this machine: what is new there is fetched, what is new here is put there.

Names of its files are hashes of their bytes, so a file that is in both is the same in both, and nobody overwrites.
"""

from dataclasses import dataclass, field
from pathlib import Path

from energon_pack.run import stores
from energon_pack.run.files import write_whole

#: What of a cache is worth keeping for another machine.
_KEPT = ("index", "lengths")


@dataclass(frozen=True)
class Mirror:
    """The cache at an address, in a folder."""

    address: str
    folder: Path
    _there: set[str] = field(default_factory=set)  # names of files that the store has
    _fetched: set[str] = field(default_factory=set)  # names of folders

    def fetch(self, *names: str) -> None:
        """Have in a folder of the cache what the store has of it, once."""
        name = "/".join(names)
        if names[:1] and names[0] in _KEPT and name not in self._fetched:
            self._fetched.add(name)
            for address in stores.entries(f"{self.address}/{name}"):
                file = address[len(self.address) + 1 :]
                self._there.add(file)
                if not (self.folder / file).exists():
                    (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
                    write_whole(self.folder / file, stores.read_whole(address), sync=False)

    def put_new(self) -> None:
        """Put there what is new in the folders that were fetched."""
        for name in sorted(self._fetched):
            for path in sorted((self.folder / name).rglob("*.parquet")):
                file = path.relative_to(self.folder).as_posix()
                if file not in self._there:
                    stores.put_file(f"{self.address}/{file}", path)
                    self._there.add(file)
