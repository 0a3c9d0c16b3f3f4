"""Keep with a dataset what turns its packs into a model's inputs, so that training needs nothing else.

.nv-meta/inputs.json      the rules (`InputRules`), and the hashes of the processor's files by name
.nv-meta/trial.tokens     short members, to try a processor and a model with
.nv-meta/processor/       files of a processor that takes media: settings, and the tokenizer, because most calls for
                          media take a text, too; no weights, and no code
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from energon_pack.dataset.manifest import (
    PROCESSOR_FOLDER,
    pack_folders_of,
    processor_folder,
    read_unchanged,
)
from energon_pack.errors import PackError
from energon_pack.run.address import bucket_of
from energon_pack.run.files import META_FOLDER, write_whole
from energon_pack.run.plain_data import json_value
from energon_pack.run.user_cache import user_folder
from energon_pack.samples.input_rules import INPUTS_FILE, TRIAL_FILE, InputRules
from energon_pack.samples.tokens_part import TokensDamaged


class OtherTokenizer(ValueError):
    """A processor's tokenizer makes other token ids than a dataset holds."""


@dataclass(frozen=True)
class KeptInputs:
    """What a packed dataset keeps, to turn its packs into inputs."""

    dataset: str | Path
    rules: InputRules  # without the folder of the processor
    files: Mapping[str, str]  # by name the hash of each of its processor's files
    has_code: bool  # whether its processor runs code of its own, which is not kept

    @property
    def own_processor(self) -> InputRules:
        """The rules with the folder of the processor's files in the dataset, which hold no code."""
        folder, kwargs = _local_processor(self.dataset, self.files), {**self.rules.kwargs, "trust_remote_code": False}
        return replace(self.rules, folder=folder, kwargs=kwargs)


def read_input_rules(dataset: str | Path, processor: str | None = None) -> InputRules:
    """Read the rules that turn packs into model inputs; for several datasets, those with the most processor files.

    Args:
        dataset: a packed dataset, an order of several, or the YAML of a Metadataset.
        processor: folder or hub id, in place of the processor's files in the dataset; None: these files.

    Raises:
        PackError: `processor` is None though it must run its own code.
        ValueError: a file of the dataset is missing or damaged.
    """
    kept = chosen_inputs(dataset)
    if kept.has_code:
        processor = processor or processor_folder(dataset)
        if processor is None:
            raise PackError(f"{dataset}: its processor runs code of its own: processor=FOLDER, trust_remote_code=True")
    return kept.own_processor if processor is None else replace(kept.rules, folder=processor)


def chosen_inputs(dataset: str | Path) -> KeptInputs:
    """Return what prepares all packs of a dataset; of several that are joined, the one with the most processor files.

    Datasets without media may have another processor than those with media, whose processor is then taken.
    """
    every = [kept_inputs(folder) for folder in pack_folders_of(dataset)]
    if len(every) > 1:
        from energon_pack.dataset.agreement import with_media

        every = with_media(every)
    return max(every, key=lambda kept: len(kept.files))


def kept_inputs(folder: str | Path) -> KeptInputs:
    """Read what a packed dataset keeps; raises ValueError if a file is missing or damaged."""
    values = _read_values(folder)
    files, has_code = values.pop("files"), values.pop("has_code")
    trial = read_unchanged(folder, TRIAL_FILE)
    try:
        return KeptInputs(folder, InputRules.read(values, trial, ""), files, has_code)
    except (TokensDamaged, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder}: {INPUTS_FILE} and {TRIAL_FILE} are damaged ({error}): get the dataset again"
        ) from None


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
