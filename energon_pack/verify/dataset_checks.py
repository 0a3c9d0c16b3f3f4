"""Checks of a packed dataset as a whole: its files, and whether they agree."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any
from urllib import parse

import numpy as np

from energon_pack.dataset.energon import SAMPLE_LOADER, changed_keys, dataset_yamls, sample_loader_py
from energon_pack.dataset.files import LEDGER, MEDIA_SUMS_FILE, PAGE, PLAN, REQUIRED_FILES, PlanFile, nested_value
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.manifest import HASHED_FILES, MANIFEST, PACK_TOTALS_FILE, PROCESSOR_FOLDER, REPORT, hash_of
from energon_pack.dataset.pack_parts import group_files_by_pack
from energon_pack.dataset.sample_class import STACK_FLAVORS
from energon_pack.dataset.shards import shard_name_pattern
from energon_pack.errors import PackError, quote
from energon_pack.plan.splits import SPLITS
from energon_pack.run.files import META_FOLDER
from energon_pack.run.untrusted_input import parse_yaml
from energon_pack.samples.cut import SIDES
from energon_pack.samples.flavors import describe_unreadable_dataset, find_packed_flavor
from energon_pack.samples.flavors.base import PackedFlavor
from energon_pack.samples.input_rules import INPUTS_FILE, TRIAL_FILE
from energon_pack.sources.tar import TarScan
from energon_pack.verify.findings import Hashes, joined_hashes, name_hashes, names_with, repeated_hashes
from energon_pack.verify.pack_checks import samples_in_pack
from energon_pack.verify.shard_checks import VerifiedShard, read_packs

_META_FILE_NAMES = {
    "dataset.yaml", "crude.yaml", "typed.yaml", "split.yaml", ".info.json", ".info.yaml", MANIFEST,
    "index.sqlite", "index.uuid", SAMPLE_LOADER, INPUTS_FILE, TRIAL_FILE, PACK_TOTALS_FILE, MEDIA_SUMS_FILE,
}  # fmt: skip
INDEX_NAME = "index.sqlite"
#: as Energon queries its index
_SAMPLES_QUERY = "SELECT sample_key, sample_index, byte_offset, byte_size FROM samples WHERE tar_file_id = ? ORDER BY 2"
_PARTS_QUERY = (
    "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts WHERE tar_file_id = ?"
    " ORDER BY 1, 3"
)
_SHARDS_QUERY = "SELECT tar_file_id FROM samples UNION SELECT tar_file_id FROM sample_parts"


def check_file_names(folder: DatasetFolder, prefix: str) -> Iterator[str]:
    """Yield files that are missing, or do not belong in a packed dataset. `prefix`: that of its shards' names."""
    names = set(folder.names)
    yield from (f"{name} is missing" for name in sorted(REQUIRED_FILES - names))
    known = {PLAN, LEDGER, REPORT, PAGE, *(f"{META_FOLDER}/{name}" for name in _META_FILE_NAMES)}
    known |= {f"{META_FOLDER}/{PROCESSOR_FOLDER}/{name}" for name in _processor_hashes(folder)}
    shard = shard_name_pattern(prefix)
    for name in sorted(names - known):
        if not shard.fullmatch(name):
            yield f"{name} is none of a packed dataset's files"
        elif name.endswith(".idx") and name.removesuffix(".idx") not in names:
            yield f"{name} is there without its shard"
    yield from (f"{name} is a folder" for name in folder.other_subfolders)


def _processor_hashes(folder: DatasetFolder) -> dict[str, Any]:
    """Return the hashes of the processor's files, by name, from inputs.json; {}: it has none, or can't be read."""
    with suppress(OSError, ValueError):
        hashes = folder.read_json_object(f"{META_FOLDER}/{INPUTS_FILE}").get("files")
        return hashes if isinstance(hashes, dict) else {}
    return {}


def vocabulary_size_of(folder: DatasetFolder) -> int | None:
    """Return how many ids the vocabulary has, from 0 on, by inputs.json; None: it does not say, or can't be read.

    Ids of special tokens may lie behind a gap, so that they are larger than the number of tokens.
    """
    with suppress(OSError, ValueError):
        rules = folder.read_json_object(f"{META_FOLDER}/{INPUTS_FILE}")
        number, special = rules.get("num_ids"), rules.get("token_ids")
        if type(number) is int and number > 0 and isinstance(special, dict):
            return max([number, *(1 + int(its_id) for its_id in special.values() if type(its_id) is int)])
    return None


def _changed_files(folder: DatasetFolder, manifest: Mapping[str, Any], report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the files of `.nv-meta` that training or `verify` reads, if they have not the hashes that packing wrote."""
    expected = {name: nested_value(manifest, "hashes", name) for name in HASHED_FILES}
    if (its_hash := nested_value(manifest, "hashes", MEDIA_SUMS_FILE)) or folder.has(
        f"{META_FOLDER}/{MEDIA_SUMS_FILE}"
    ):
        expected[MEDIA_SUMS_FILE] = its_hash
    expected |= {f"{PROCESSOR_FOLDER}/{name}": its_hash for name, its_hash in _processor_hashes(folder).items()}
    expected |= {MANIFEST: report.get("manifest_hash")} if report else {}
    for name, its_hash in expected.items():
        try:
            if hash_of(folder.read(f"{META_FOLDER}/{name}")) != its_hash:
                yield f"{name} is not as it was packed"
        except OSError as error:  # the check `files` reports one of ours that is missing
            if name not in HASHED_FILES:
                yield f"{name} can't be read: {error.strerror or error}"


def check_metadata(
    folder: DatasetFolder, report: Mapping[str, Any], manifest: Mapping[str, Any], shards: Sequence[VerifiedShard]
) -> Iterator[str]:
    """Yield what is wrong in the manifest and in Energon's own files: counts, splits, hashes, index, dataset.yaml."""
    packing, fingerprint = nested_value(manifest, "content", "packing"), manifest.get("fingerprint")
    for name in ("max_token_len", "pad_to_multiple_of"):
        if type(nested_value(packing, name)) is not int or nested_value(packing, name) < 1:
            yield f"{MANIFEST} has content.packing.{name}={quote(nested_value(packing, name))}"
    if not isinstance(fingerprint, str):
        yield f"{MANIFEST} has fingerprint={quote(fingerprint)}"
    if why := describe_unreadable_dataset(manifest):
        yield f"{MANIFEST}: {why}"
    yield from check_pack_counts(folder, manifest, shards)
    yield from _changed_files(folder, manifest, report)
    if folder.has(f"{META_FOLDER}/{INDEX_NAME}"):
        yield from check_sqlite(folder, [shard.name for shard in shards])
    elif nested_value(manifest, "content", "output", "sqlite") is True:
        yield f"{INDEX_NAME} is missing"
    yield from _check_dataset_yamls(folder, manifest)


def check_pack_counts(
    folder: DatasetFolder, manifest: Mapping[str, Any], shards: Sequence[VerifiedShard]
) -> Iterator[str]:
    """Yield shards for which `.info.json` or `.info.yaml` has a wrong number of packs, and defects of `split.yaml`."""
    num_packs = {shard.name: len(shard.pack_hashes) for shard in shards}
    for name in (".info.json", ".info.yaml"):
        value, why = _load_meta_file(folder, name)
        claimed = nested_value(value, "shard_counts")
        if value is None or not isinstance(claimed, dict):
            yield from why if value is None else [f"{name} has shard_counts={quote(claimed)}"]
            continue
        for shard in sorted({*claimed, *num_packs}, key=str):
            if claimed.get(shard) != num_packs.get(shard):
                numbers = f"{quote(claimed.get(shard))} packs of {quote(shard)}, there are {num_packs.get(shard, 0)}"
                yield f"{name} counts {numbers}"
    planned = {split: nested_value(manifest, "splits", split, "packs") or 0 for split in SPLITS}
    yield from _check_splits(folder, num_packs, planned, {shard.name: shard.splits for shard in shards})


def _check_splits(
    folder: DatasetFolder, counts: Mapping[str, int], planned: Mapping[str, int], of_samples: Mapping[str, set[str]]
) -> Iterator[str]:
    value, why = _load_meta_file(folder, "split.yaml")
    if value is None:
        yield from why
        return
    splits, left_out = nested_value(value, "split_parts"), nested_value(value, "exclude")
    if left_out:
        yield f"split.yaml has exclude={quote(left_out)}: packing leaves out no shard"
    parts = list(splits.values()) if isinstance(splits, dict) else [splits]
    if not isinstance(splits, dict) or not all(
        part is None or (isinstance(part, list) and all(isinstance(n, str) for n in part)) for part in parts
    ):
        yield f"split.yaml has split_parts={quote(splits)}, not lists of names"
        return
    in_parts = Counter(name for part in parts for name in part or ())
    yield from (f"split.yaml names {quote(name)}, which is not there" for name in sorted(in_parts.keys() - counts))
    yield from (f"split.yaml names {name} in {in_parts[name]} parts" for name in counts if in_parts[name] != 1)
    num_packs = {part: sum(counts.get(name, 0) for name in names or ()) for part, names in splits.items()}
    for part in sorted({*num_packs, *planned}, key=str):
        if num_packs.get(part) != planned.get(part):
            yield f"split.yaml has {num_packs.get(part)} packs in {quote(part)}, {MANIFEST} has {planned.get(part)}"
    for part, names in splits.items():
        for name in names or ():
            if foreign := of_samples.get(name, set()) - {part}:
                yield f"{name} is in split {part}, and holds samples of {', '.join(sorted(foreign))}"


def _check_dataset_yamls(folder: DatasetFolder, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield how Energon's dataset YAMLs and sample_loader.py differ from what packing writes, but for subflavors."""
    name, which = manifest.get("flavor"), nested_value(manifest, "content", "output", "dataset_yaml")
    flavor = find_packed_flavor(name) if isinstance(name, str) else None
    if flavor is None or which not in ("typed", "crude"):
        yield f"{MANIFEST} has flavor={quote(name)}, content.output.dataset_yaml={quote(which)}"
        return
    sample_type = nested_value(manifest, "content", "output", "sample_type")
    if isinstance(sample_type, str):
        yield from _check_sample_loader(folder, flavor)
    elif folder.has(f"{META_FOLDER}/{SAMPLE_LOADER}"):
        yield f"{SAMPLE_LOADER} is there, and packing wrote none"
    stack = sample_type if isinstance(sample_type, str) else None
    forms = [form for form in STACK_FLAVORS if stack and form.name == name] or [flavor]
    expected = [dataset_yamls(form, which, stack) for form in forms]
    yield from min((list(_changed_yamls(folder, yamls)) for yamls in expected), key=len)


def _changed_yamls(folder: DatasetFolder, yamls: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, expected in yamls.items():
        value, why = _load_meta_file(folder, name)
        if value is None:
            yield from why or [f"{name} is missing"]
        else:
            yield from (f"{name}: {key} is not what packing writes" for key in changed_keys(value, expected))


def _check_sample_loader(folder: DatasetFolder, flavor: PackedFlavor) -> Iterator[str]:
    """Check that sample_loader.py, which Energon runs, is the one that packing wrote."""
    try:
        if folder.read(f"{META_FOLDER}/{SAMPLE_LOADER}") != sample_loader_py(flavor):
            yield f"{SAMPLE_LOADER} is not what packing writes"
    except OSError as error:
        yield f"{SAMPLE_LOADER} can't be read: {error.strerror or error}"


def _load_meta_file(folder: DatasetFolder, name: str) -> tuple[Any, list[str]]:
    """Return the content of a file in `.nv-meta`, and []; if it can't be read, None and why ([] if it is missing)."""
    path = f"{META_FOLDER}/{name}"
    try:
        return (folder.read_json_object(path) if name.endswith(".json") else parse_yaml(folder.read(path))), []
    except FileNotFoundError:
        return None, []
    except (OSError, ValueError) as error:
        return None, [f"{name} can't be read: {quote(str(error))}"]


def check_sqlite(folder: DatasetFolder, shards: Sequence[str]) -> Iterator[str]:
    """Yield the differences between Energon's index.sqlite and the shards with these names."""
    try:
        with (
            folder.local_copy(f"{META_FOLDER}/{INDEX_NAME}") as path,
            closing(sqlite3.connect(f"file:{parse.quote(str(path))}?mode=ro", uri=True)) as index,
        ):
            for number, shard in enumerate(shards):
                yield from _check_shard_index(index, number, folder, shard)
            more = sorted({row[0] for row in index.execute(_SHARDS_QUERY)} - set(range(len(shards))), key=str)
            yield from (f"{INDEX_NAME} has packs of a shard that is not there: {quote(number)}" for number in more)
    except (OSError, sqlite3.Error) as error:
        yield f"{INDEX_NAME} can't be read: {error}"


def _check_shard_index(index: sqlite3.Connection, number: int, folder: DatasetFolder, shard: str) -> Iterator[str]:
    with folder.open(shard) as file:
        packs = list(group_files_by_pack(TarScan(file)))
    samples = [(pack.key, place, pack.start, pack.end - pack.start) for place, pack in enumerate(packs)]
    parts = [(place, *part) for place, pack in enumerate(packs) for part in pack.parts]
    for noun, expected, query in (("packs", samples, _SAMPLES_QUERY), ("parts", parts, _PARTS_QUERY)):
        rows: list[Any] = index.execute(query, (number,)).fetchall()
        if len(rows) != len(expected):
            yield f"{INDEX_NAME} has {len(rows)} {noun} of {shard}, there are {len(expected)}"
        elif rows != expected:
            ours, right = next(pair for pair in zip(rows, expected, strict=True) if pair[0] != pair[1])
            yield f"{INDEX_NAME} has {quote(ours)} of {shard}, there is {quote(right)}"


# ------------------------------------------------------------------------------------------------ packs and samples


def check_pack_keys(folder: DatasetFolder, shards: Sequence[VerifiedShard], plan: PlanFile | None) -> Iterator[str]:
    """Yield packs that are in the shards twice, and packs of the plan that are in no shard."""
    packs = joined_hashes([shard.pack_hashes for shard in shards])
    if len(twice := repeated_hashes(packs)):
        all_keys = (pack.files.key for shard in shards for _, pack, _ in read_packs(folder, shard.name))
        yield from (f"{key} is there twice" for key in names_with(twice, all_keys))
    if plan is None:
        return
    try:
        planned = joined_hashes([name_hashes(map(str, dict.fromkeys(column))) for (column,) in plan.columns("pack")])
        missing = np.setdiff1d(planned, packs)
        if len(missing):
            in_plan = (str(key) for (column,) in plan.columns("pack") for key in column)
            yield from (f"{key} of the plan is in no shard" for key in names_with(missing, in_plan))
    except PackError as error:
        yield str(error)


def check_each_sample_once(folder: DatasetFolder, shards: Sequence[VerifiedShard]) -> Iterator[str]:
    """Yield samples that are in packs twice, and cut samples that lack a part or have one twice."""
    parts: dict[str, list[str]] = {}
    for shard in shards:
        for sample, numbers in shard.cut_parts.items():
            parts.setdefault(sample, []).extend(numbers)
    if len(twice := repeated_hashes(joined_hashes([*(shard.sample_hashes for shard in shards), name_hashes(parts)]))):
        packs = (pack for shard in shards for _, pack, _ in read_packs(folder, shard.name))
        all_samples = (sample for pack in packs for sample, _ in samples_in_pack(pack, None))
        yield from (f"{sample} is there twice" for sample in names_with(twice, all_samples))
    for sample, numbers in parts.items():
        is_pair = numbers[0] in SIDES
        number = len(SIDES) if is_pair else int(numbers[0].partition("of")[2])
        if sorted(numbers) != sorted(SIDES if is_pair else (f"{i + 1}of{number}" for i in range(number))):
            yield f"{sample} has the parts {', '.join(sorted(numbers)[:8])}: not each of {number} once"


def packed_sample_hashes(shards: Sequence[VerifiedShard]) -> Hashes:
    """Return the hashes of all samples that are in packs, whole or in parts."""
    cut = {sample for shard in shards for sample in shard.cut_parts}
    return joined_hashes([*(shard.sample_hashes for shard in shards), name_hashes(cut)])
