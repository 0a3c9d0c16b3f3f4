"""Read what training needs before any pack: energon_pack.json, inputs.json, and packs.npy with sums of each pack.

A dataset is a folder, or its address on an object store; the YAML of a Metadataset names several.
"""

import hashlib
import io
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from energon_pack.errors import PackError
from energon_pack.run.address import bucket_of, is_address, join_address, parent
from energon_pack.run.files import META_FOLDER, user_cache_folder, write_atomically
from energon_pack.run.untrusted_input import parse_json, parse_yaml
from energon_pack.samples.input_rules import INPUTS_FILE, TRIAL_FILE, InputRules, max_pack_len
from energon_pack.samples.pack_reader import READABLE_FLAVORS, describe_unreadable_format
from energon_pack.samples.pack_tokens import TokensDamaged

MANIFEST = "energon_pack.json"
REPORT = "report.json"
#: the folder with the processor's files: see `read_kept_rules`
PROCESSOR_FOLDER = "processor"
#: sums over the members of each pack: see `PackTotals`
PACK_TOTALS_FILE = "packs.npy"
#: files whose hashes energon_pack.json holds; that of the processor's files are in inputs.json
HASHED_FILES = (INPUTS_FILE, TRIAL_FILE, PACK_TOTALS_FILE)
#: for an order over datasets: the numbers of their packs, in reading order
ORDER_FILE = "order.npy"
#: fields of energon_pack.json in which all packs of a training agree
_FIELDS_IN_COMMON = ("fingerprint", "layout", "mask", "pad_to_multiple_of", "pairs")
#: beside a dataset.yaml for another tool, or for cookers: loads packs with this package's own classes
TYPED_YAML = "typed.yaml"


def read_manifest(path: str | Path) -> dict[str, Any]:
    """Read energon_pack.json of a packed dataset; for a Metadataset's YAML, see `select_manifest_with_longest_packs`.

    Raises:
        FileNotFoundError: the folder is not a packed dataset.
        ValueError: the Metadataset names no packed dataset, or some that were packed with different settings; or
            another version of this package can read it.
    """
    if not is_metadataset(path):
        data = read_metadata_file(path, MANIFEST)
        if data is None:
            missing = _join_path(path, f"{META_FOLDER}/{MANIFEST}")
            raise FileNotFoundError(
                f"{path} is no dataset that energon_pack packed: there is no {missing}. Packs of another tool are a"
                f" source: energon-pack source.path={shlex.quote(str(path))} +model=NAME packs their members"
            )
        manifest: dict[str, Any] = parse_json(data)
        if why := _why_unreadable(manifest):
            raise ValueError(f"{path}: {why}")
        return manifest
    manifests = {folder: read_manifest(folder) for folder in packed_datasets(path)}
    if not manifests:
        raise ValueError(f"{path} names no dataset that energon_pack packed")
    refuse_other_manifests(manifests)
    return select_manifest_with_longest_packs(manifests.values())


def refuse_other_manifests(manifests: Mapping[str | Path, Mapping[str, Any]], further: Sequence[str] = ()) -> None:
    """Raise PackError if datasets (folder → energon_pack.json) differ, also in `further` fields, or can't be read."""
    for folder, manifest in manifests.items():
        if why := _why_unreadable(manifest):
            raise PackError(f"{folder}: {why}")
    (first, in_common), *others = manifests.items()
    for other, manifest in others:
        for name in (*_FIELDS_IN_COMMON, *further):
            if manifest.get(name) != in_common.get(name):
                raise PackError(
                    f"{first} and {other} were packed with different settings: the {name} {in_common.get(name)}, and"
                    f" the {name} {manifest.get(name)}: packs of one training are for one model, and read in one way"
                )


def _why_unreadable(manifest: Mapping[str, Any]) -> str | None:
    if manifest.get("flavor") in READABLE_FLAVORS:
        return describe_unreadable_format(manifest)
    from energon_pack.samples.flavors import describe_unreadable_dataset  # of another package

    return describe_unreadable_dataset(manifest)


def pack_folders_of(dataset: str | Path) -> list[str | Path]:
    """Return the folders in which packs of a dataset lie: its own, or those that a Metadataset or an order names."""
    if is_metadataset(dataset):
        return [*dict.fromkeys(packed_datasets(dataset))]
    manifest = parse_json(read_metadata_file(dataset, MANIFEST) or b"{}")
    return [_join_path(dataset, part["path"]) for part in manifest.get("parts") or ()] or [dataset]


def packing_processor_folder(dataset: str | Path) -> str | None:
    """Return the folder of the processor that packed a dataset, by report.json; None if it is not on this machine."""
    for folder in pack_folders_of(dataset):
        try:
            report = parse_json(_read(_join_path(folder, REPORT)) or b"{}")
            named = report["config"]["model"]["processor"]
        except (ValueError, KeyError, TypeError):  # packed by an old version, or damaged: lengths do not need it
            continue
        if isinstance(named, str) and os.path.isdir(path := resolve_packing_path(report, named)):
            return path
    return None


def resolve_packing_path(report: Mapping[str, Any], path: str) -> str:
    """Return a path in report.json's config, joined with the folder in which that run was started."""
    if is_address(path):
        return path
    cwd = report.get("cwd")
    return os.path.join(cwd, os.path.expanduser(path)) if isinstance(cwd, str) else path


def has_manifest(dataset: str | Path) -> bool:
    """Say whether a dataset, or one that a Metadataset's YAML names, has an energon_pack.json."""
    if is_metadataset(dataset):
        return any(packed_datasets(dataset))
    return read_metadata_file(dataset, MANIFEST) is not None


def is_metadataset(dataset: str | Path) -> bool:
    """Say whether a dataset is the YAML of a Metadataset: any file, or an address that ends in .yaml or .yml."""
    return str(dataset).endswith((".yaml", ".yml")) if is_address(dataset) else os.path.isfile(dataset)


def packed_datasets(metadataset: str | Path) -> Iterator[str | Path]:
    """Yield the folders with packs of this package that a Metadataset names, also through others, in their order."""
    waiting = [parse_yaml(_read(metadataset) or b"")]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, dict) and isinstance(value.get("path"), str):
            path = _join_path(_parent_folder(metadataset), value["path"])
            if is_metadataset(path):
                yield from packed_datasets(path)
            elif read_metadata_file(path, MANIFEST) is not None:
                yield path
        if isinstance(value, (dict, list)):
            waiting[:0] = value.values() if isinstance(value, dict) else value


def read_metadata_file(dataset: str | Path, file_name: str) -> bytes | None:
    """Return the bytes of a file in `.nv-meta` of a dataset; None if it is not there."""
    return _read(_join_path(dataset, f"{META_FOLDER}/{file_name}"))


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_unchanged(dataset: str | Path, name: str, written_hash: str | None = None) -> bytes:
    """Read a file in `.nv-meta`; raises ValueError if it is missing, or lacks the hash that packing wrote down."""
    data = read_metadata_file(dataset, name)
    if data is None:
        raise ValueError(f"{dataset} has no {META_FOLDER}/{name}: get the dataset again, or pack again")
    if written_hash is None:
        written_hash = parse_json(read_metadata_file(dataset, MANIFEST) or b"{}").get("hashes", {}).get(name)
    if hash_of(data) != written_hash:
        raise ValueError(f"{dataset}: {META_FOLDER}/{name} is not as it was packed: get the dataset again")
    return data


def _read(path: str | Path) -> bytes | None:
    try:
        if is_address(path):
            from energon_pack.run import stores

            return stores.read_whole(str(path))
        return Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _parent_folder(path: str | Path) -> str | Path:
    return parent(str(path)) if is_address(path) else Path(path).parent


def _join_path(folder: str | Path, name: str) -> str | Path:
    """Join a folder, or an address, with a name; an address is returned as a string."""
    if is_address(folder) or is_address(name):
        return join_address(str(folder), name)
    return Path(folder) / name


class PackTotals(NamedTuple):
    """Sums over the members of each pack, in the order of the plan; training deals packs to ranks by them.

    packs.npy holds them as float64[num_packs, 4].
    """

    lm_cost: npt.NDArray[Any]  # cost in the language model
    vision_cost: npt.NDArray[Any]  # in the vision encoder
    tokens: npt.NDArray[Any]
    trained_tokens: npt.NDArray[Any]  # of the tokens

    @classmethod
    def read(cls, data: bytes) -> "PackTotals":
        """Parse the bytes of packs.npy; raises ValueError if they are damaged."""
        return cls(*np.load(io.BytesIO(data), allow_pickle=False).T)

    def to_bytes(self) -> bytes:
        """Return the bytes of packs.npy."""
        file = io.BytesIO()
        np.save(file, np.stack(self, axis=1), allow_pickle=False)
        return file.getvalue()


def select_manifest_with_longest_packs(manifests: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the energon_pack.json with the largest max_token_len, and `max_pack_len` if another has longer packs."""
    longest, *others = sorted(manifests, key=lambda manifest: -int(manifest["max_token_len"]))
    limit = max(map(max_pack_len, (longest, *others)))
    return {**longest, "max_pack_len": limit} if limit > max_pack_len(longest) else dict(longest)


@dataclass(frozen=True)
class KeptInputRules:
    """What a packed dataset keeps, to turn its packs into inputs."""

    dataset: str | Path
    rules: InputRules  # without the folder of the processor
    files: Mapping[str, str]  # by name the hash of each of its processor's files
    has_code: bool  # whether its processor runs code of its own, which is not kept

    @property
    def rules_with_own_processor(self) -> InputRules:
        """The rules with the folder of the processor's files in the dataset, which hold no code."""
        folder, kwargs = _local_processor(self.dataset, self.files), {**self.rules.kwargs, "trust_remote_code": False}
        return replace(self.rules, folder=folder, kwargs=kwargs)


def read_kept_rules(folder: str | Path) -> KeptInputRules:
    """Read what a packed dataset keeps; raises ValueError if a file is missing or damaged."""
    values = _read_values(folder)
    files, has_code = values.pop("files"), values.pop("has_code")
    trial = read_unchanged(folder, TRIAL_FILE)
    try:
        return KeptInputRules(folder, InputRules.read(values, trial, ""), files, has_code)
    except (TokensDamaged, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder}: {INPUTS_FILE} and {TRIAL_FILE} are damaged ({error}): get the dataset again"
        ) from None


def _read_values(folder: str | Path) -> dict[str, Any]:
    values = parse_json(read_unchanged(folder, INPUTS_FILE))
    if not isinstance(values, Mapping) or not isinstance(values.get("files"), Mapping):
        raise ValueError(f"{folder}: {INPUTS_FILE} is damaged: get the dataset again")
    return dict(values)


def _local_processor(folder: str | Path, hashes: Mapping[str, str]) -> str:
    """Return a local folder with the dataset's processor files; those on a store are copied into the user's cache."""
    files = {
        name: read_unchanged(folder, f"{PROCESSOR_FOLDER}/{name}", file_hash) for name, file_hash in hashes.items()
    }
    if not bucket_of(str(folder)):
        return os.path.join(folder, META_FOLDER, PROCESSOR_FOLDER)
    digest = hashlib.sha256(b"".join(name.encode() + data for name, data in sorted(files.items()))).hexdigest()[:16]
    copy = user_cache_folder("processors", digest)
    copy.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        write_atomically(copy / name, data, sync=False)
    return str(copy)
