"""Say what lies where a run is to write: nothing, the whole dataset of the same run, or another one."""

from collections.abc import Mapping
from typing import Any

from energon_pack.dataset.energon import changed_keys
from energon_pack.dataset.files import REQUIRED_FILES, PlanFile, nested_value
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.manifest import MANIFEST, REPORT
from energon_pack.errors import PackError
from energon_pack.run.files import META_FOLDER
from energon_pack.run.untrusted_input import parse_yaml

_INDEX_ENTRY_BYTES = 8  # the place where a pack starts; the last entry is the end of the shard


class PlanMissing(PackError):
    """Raised by `stage=write` if `stage=plan` has left no plan for the same settings and source."""


def concurrent_run_error(dataset_path: str) -> PackError:
    """Return the error that says that another run writes the same dataset. `dataset_path`: its folder or address."""
    return PackError(f"another run is writing {dataset_path}")


def read_report_if_intact(dataset_path: str) -> dict[str, Any] | None:
    """Return report.json of a published dataset; None if a file is missing or damaged, or a shard has a wrong size.

    No shard is read: an object store is asked only for a list of its objects.
    """
    folder = DatasetFolder(dataset_path)
    if not all(map(folder.has, REQUIRED_FILES)):
        return None
    try:
        report = folder.read_json_object(REPORT)
        counts = nested_value(folder.read_json_object(f"{META_FOLDER}/.info.json"), "shard_counts")
        folder.read_json_object(f"{META_FOLDER}/{MANIFEST}")
        PlanFile(folder).check()
    except (OSError, ValueError):  # somebody else changed a file
        return None
    if "identity" not in report or not isinstance(counts, dict) or sorted(counts) != folder.shards:
        return None
    if any(_file_size(folder, f"{name}.idx") != (packs + 1) * _INDEX_ENTRY_BYTES for name, packs in counts.items()):
        return None
    return report if sum(_file_size(folder, name) for name in counts) == report.get("bytes_written") else None


def refuse_changed_yamls(named: str, yamls: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise PackError if a YAML file of a dataset was changed or damaged. `yamls`: name → the content packing wrote."""
    folder = DatasetFolder(named)
    for name, written in yamls.items():
        try:
            is_changed = any(changed_keys(parse_yaml(folder.read(f"{META_FOLDER}/{name}")), written))
        except (OSError, ValueError):
            is_changed = True
        if is_changed:
            raise PackError(
                f"{named} exists, and its {META_FOLDER}/{name} is damaged or was changed: output.overwrite=true"
                " replaces the dataset, output.name=NAME writes beside it"
            )


def _file_size(folder: DatasetFolder, name: str) -> int:
    state = folder.state(name)
    return -1 if state is None else state.size


def refuse_changed_identity(report: dict[str, Any], identity: str, dataset_path: str) -> None:
    """Raise PackError if the published dataset has another identity (hash of source, processor, version) than the run.

    `report`: its report.json; `identity`: the run's; `dataset_path`: the dataset's path or address, for the message.
    """
    if report["identity"] != identity:
        raise PackError(
            f"{dataset_path} exists, packed of another source or processor, or by another version:"
            " output.overwrite=true replaces it, output.name=NAME writes beside it"
        )
