"""Settings of the source: the config's node `source`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from energon_pack.errors import PackError
from energon_pack.run.load_by_name import load_entry_point
from energon_pack.samples.raw_record import function_name_with_file_hash
from energon_pack.samples.settings import ReadSettings
from energon_pack.sources.media_files import parse_media_map


class Format(str, Enum):
    """Values of `source.format`: which files hold the samples."""

    auto = "auto"
    wds = "wds"
    jsonl = "jsonl"
    table = "table"


class OnDamaged(str, Enum):
    """Values of `source.on_damaged`: a damaged file ends the run (error), or its whole samples are packed (keep)."""

    error = "error"
    keep = "keep"


@dataclass
class SourceConfig(ReadSettings):
    """Where samples come from, which of them are taken, and how each is read."""

    #: wds: uncompressed WebDataset tars; jsonl: SFT JSONL with media beside it; table: Parquet, Arrow, CSV, TSV;
    #: auto: any of these, as files are called; or what an installed package adds
    format: str = Format.auto.value
    #: a folder, a file, a glob, a mixture, or a list of these; entries of a mixture by name, each {path, weight, …};
    #: None: the built-in demo
    path: Any = None
    #: the folder that paths of media are relative to; None: the folder of the JSONL, or the one that its meta file
    #: names
    media_root: str | None = None
    #: where media lie that data name by other places: a list of OLD=NEW, beginnings of their names; None: as named
    media_map: Any = None
    #: whether media that a JSONL names on other object stores are read, with the keys of this run
    remote_media: bool = False
    #: a damaged or cut file is an error before any work, or its whole samples are kept
    on_damaged: OnDamaged = OnDamaged.error
    #: part of a prepared folder's split.yaml, or split of a folder of tables; None: all
    split: str | None = None
    #: names of the entries to take from a meta file; None: all entries whose files exist
    datasets: Any = None
    #: how many first samples to take; None: all
    limit: int | None = None

    @property
    def is_demo(self) -> bool:
        """Tell whether it is the built-in demo."""
        return self.path is None

    def __post_init__(self) -> None:
        """Add a hash of its file to the name of the map, so that everything that is kept depends on it."""
        super().__post_init__()
        if self.map is not None:
            self.map = function_name_with_file_hash(self.map)

    @property
    def reading(self) -> ReadSettings:
        """Return the settings that decide how a sample is read; cached token lengths are valid only for equal ones."""
        return ReadSettings(**{field.name: getattr(self, field.name) for field in fields(ReadSettings)})

    def check(self) -> None:
        """Raise PackError if `path` has a wrong type, `format` is unknown, or two settings name the messages field."""
        if self.format not in list(Format) and load_entry_point("sources", "source.format", self.format) is None:
            formats = ", ".join(each.value for each in Format)
            raise PackError(f"source.format={self.format}: there are {formats}, and what installed packages add")
        parse_media_map(self.media_map)
        named = {
            "source.messages_key": self.messages_key,
            "source.columns.messages": self.columns.messages,
            "source.columns.prompt and source.columns.response": self.columns.prompt and self.columns.response,
        }
        if len(where := [setting for setting, name in named.items() if name]) > 1:
            raise PackError(f"{', '.join(where)}: each says where the conversation is; set one of them")
        entries = self.path if isinstance(self.path, list) else [self.path]
        is_path = entries and all(isinstance(entry, str) and entry for entry in entries)
        if not (is_path or self.path is None or isinstance(self.path, Mapping)):
            raise PackError(f"source.path={self.path!r}: a folder, a file, a glob, or a list of these")
