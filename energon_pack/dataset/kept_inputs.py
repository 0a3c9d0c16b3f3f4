"""Read `.nv-meta/inputs.json` of one packed dataset, with the files of its processor."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from energon_pack.dataset.manifest import PROCESSOR_FOLDER, read_unchanged
from energon_pack.run.address import bucket_of
from energon_pack.run.files import META_FOLDER, write_whole
from energon_pack.run.plain_data import parse_json
from energon_pack.run.user_cache import user_cache_folder
from energon_pack.samples.input_rules import INPUTS_FILE, TRIAL_FILE, InputRules
from energon_pack.samples.tokens_part import TokensDamaged


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
    digest = sha256(b"".join(name.encode() + data for name, data in sorted(files.items()))).hexdigest()[:16]
    copy = user_cache_folder("processors", digest)
    copy.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        write_whole(copy / name, data, sync=False)
    return str(copy)
