"""Keep with a dataset what turns its packs into a model's inputs, so that training needs nothing else.

.nv-meta/inputs.json      the rules (`InputRules`), and the hashes of the processor's files by name
.nv-meta/trial.tokens     short members, to try a processor and a model with
.nv-meta/processor/       files of a processor that takes media: settings, and the tokenizer, because most calls for
                          media take a text, too; no weights, and no code
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from energon_pack.dataset.manifest import PROCESSOR_FOLDER, pack_folders_of, processor_folder, read_unchanged
from energon_pack.errors import PackError
from energon_pack.run.address import bucket_of
from energon_pack.run.files import META_FOLDER, write_whole
from energon_pack.run.plain_data import json_value
from energon_pack.run.user_cache import user_folder
from energon_pack.samples.input_rules import INPUTS_FILE, TRIAL_FILE, InputRules
from energon_pack.samples.tokens_part import TokensDamaged


class OtherTokenizer(ValueError):
    """A processor's tokenizer makes other token ids than a dataset holds."""


def read_input_rules(dataset: str | Path, processor: str | None = None) -> InputRules:
    """Read the rules that turn packs into model inputs; for several datasets, those with the most processor files.

    Args:
        dataset: a packed dataset, an order of several, or the YAML of a Metadataset.
        processor: folder or hub id, in place of the processor's files in the dataset; None: these files.

    Raises:
        PackError: `processor` makes other pixels than that of the packing, or is None though it must run its own code.
        ValueError: a file of the dataset is missing or damaged.
    """
    values_of = [(folder, _read_values(folder)) for folder in pack_folders_of(dataset)]
    folder, values = max(values_of, key=lambda pair: len(pair[1]["files"]))
    hashes, has_code = values.pop("files"), values.pop("has_code")
    trial = read_unchanged(folder, TRIAL_FILE)
    try:
        rules = InputRules.read(values, trial, "")
    except (TokensDamaged, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder}: {INPUTS_FILE} and {TRIAL_FILE} are damaged ({error}): get the dataset again"
        ) from None
    if has_code:
        processor = processor or processor_folder(dataset)
        if processor is None:
            raise PackError(f"{dataset}: its processor runs code of its own: processor=FOLDER, trust_remote_code=True")
    if processor is not None:
        _refuse_other_settings(folder, processor, hashes)
    return replace(rules, folder=processor or _local_processor(folder, hashes))


def _refuse_other_settings(folder: str | Path, processor: str, hashes: Mapping[str, str]) -> None:
    """Raise PackError if a setting that makes pixels differs from that of the processor that packed the dataset."""
    for name in hashes:
        if name.endswith("processor_config.json") and (path := Path(processor, name)).is_file():
            packed = _flat_values(json_value(read_unchanged(folder, f"{PROCESSOR_FOLDER}/{name}", hashes[name])))
            here = _flat_values(json_value(path.read_bytes()))
            for key in sorted(packed.keys() & here.keys()):
                if packed[key] != here[key] and not key.endswith(("_type", "_class", "_version", "_path")):
                    values = f"is {str(here[key])[:60]}, and where {folder} was packed {str(packed[key])[:60]}"
                    cure = "leave the processor out, for the dataset holds its own, or pack again"
                    raise PackError(f"{path}: {key} {values}: {cure}")


def _flat_values(value: Any, name: str = "") -> dict[str, Any]:
    """Flatten nested objects: {"a": {"b": 1}} becomes {"a.b": 1}."""
    if not isinstance(value, Mapping):
        return {name: value}
    return {
        key: leaf for inner in value for key, leaf in _flat_values(value[inner], f"{name}.{inner}".lstrip(".")).items()
    }


def refuse_other_ids(
    rules: InputRules, dataset: str | Path, processor: str, ids_of: Callable[[str], list[int]]
) -> None:
    """Raise OtherTokenizer if a tokenizer (`ids_of`: text → ids) makes other ids of texts than the dataset holds."""
    for text, ids in rules.texts:
        if (ids_here := ids_of(text)) != list(ids):
            raise OtherTokenizer(f"{dataset}: {_other_ids_message(text, ids, ids_here, processor)}")


def _other_ids_message(text: str, ids: Sequence[int], ids_here: Sequence[int], processor: str) -> str:
    """Return the message of OtherTokenizer: the first ids of a text in the dataset, and those that were made here."""
    in_dataset, here = (" ".join(map(str, numbers[:8])) for numbers in (ids, ids_here))
    return (
        f"its tokenizer is not that of {processor}: {text!r} begins with the ids {in_dataset} in the dataset,"
        f" {here} here: give the processor of the packing, or pack again"
    )


def _read_values(folder: str | Path) -> dict[str, Any]:
    values = json_value(read_unchanged(folder, INPUTS_FILE))
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
    copy = user_folder("processors", digest)
    copy.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        write_whole(copy / name, data, sync=False)
    return str(copy)
