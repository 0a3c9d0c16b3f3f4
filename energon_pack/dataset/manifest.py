"""What training reads of a packed dataset before its packs: energon_pack.json, and the samples kept beside it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from energon_pack.run.files import META_FOLDER

if TYPE_CHECKING:  # a look at a pack needs no tokenizer
    from energon_pack.templates.replay import Replay

MANIFEST = "energon_pack.json"
REPLAY = "replay.json"
REPORT = "report.json"


def read_manifest(dataset: Path) -> dict[str, Any]:
    """energon_pack.json of a packed dataset; of a Metadataset's YAML, that of its dataset with the longest packs.

    Raises:
        FileNotFoundError: the folder is not one.
        ValueError: the Metadataset names none, or some that were packed with different settings.
    """
    if not dataset.is_file():
        path = dataset / META_FOLDER / MANIFEST
        if not path.exists():
            raise FileNotFoundError(f"{dataset} is no dataset that energon_pack packed: there is no {path}")
        manifest: dict[str, Any] = json.loads(path.read_text())
        return manifest
    found = {folder: read_manifest(folder) for folder in packed_datasets(dataset)}
    if not found:
        raise ValueError(f"{dataset} names no dataset that energon_pack packed")
    by_fingerprint = {manifest["fingerprint"]: folder for folder, manifest in found.items()}
    if len(by_fingerprint) > 1:
        raise ValueError(
            f"{dataset}: {' and '.join(map(str, by_fingerprint.values()))} were packed with different settings;"
            " packs of one training are for one model"
        )
    return max(found.values(), key=lambda manifest: int(manifest["max_token_len"]))


def read_replays(dataset: Path) -> "list[Replay | None]":
    """What is kept of the samples of a packed dataset, or of each that a Metadataset's YAML names; None: of an old one.

    Raises:
        ValueError: the file of one was cut or damaged.
    """
    folders = dict.fromkeys(packed_datasets(dataset)) if dataset.is_file() else [dataset]
    return [_replay(folder / META_FOLDER / REPLAY) for folder in folders]


def _replay(path: Path) -> "Replay | None":
    from energon_pack.templates.replay import Replay

    try:
        return Replay.from_bytes(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path} can't be read ({error}): get it again from where the dataset is whole") from None


def is_packed_here(dataset: Path) -> bool:
    """Whether a folder, or one that a Metadataset's YAML names, says itself how it was packed."""
    if dataset.is_file():
        return any(packed_datasets(dataset))
    return (dataset / META_FOLDER / MANIFEST).is_file()


def packed_datasets(metadataset: Path) -> Iterator[Path]:
    """The packed ones among the folders that a Metadataset names, and those that it names in turn."""
    waiting = [yaml.safe_load(metadataset.read_text())]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict) and isinstance(value.get("path"), str):
            path = metadataset.parent / value["path"]
            if path.is_file():
                yield from packed_datasets(path)
            elif (path / META_FOLDER / MANIFEST).is_file():
                yield path
        if isinstance(value, (dict, list)):
            waiting += value.values() if isinstance(value, dict) else value
