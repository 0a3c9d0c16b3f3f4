"""Refuse what would train packs in another way than they were packed for.

Packed datasets that are joined agree in all that one training reads in one way, and in the pixels of their media. A
processor in place of a dataset's own, and another transformers, make the same inputs of media.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from energon_pack.dataset.manifest import (
    HASHED_FILES,
    PACK_TOTALS_FILE,
    PROCESSOR_FOLDER,
    KeptInputRules,
    PackTotals,
    pack_folders_of,
    read_kept_rules,
    read_metadata_file,
    read_unchanged,
    refuse_other_manifests,
)
from energon_pack.errors import PackError, one_line
from energon_pack.run.packages import version_of
from energon_pack.run.untrusted_input import parse_json
from energon_pack.samples.input_rules import InputRules
from energon_pack.samples.media.kinds import AUDIO, KINDS
from energon_pack.templates.full_processor import (
    load_full_processor,
    load_image_processor_alone,
    refuse_old_transformers,
)
from energon_pack.templates.pixels import (
    describe_figure_difference,
    describe_inputs_changed_since_packing,
    different_setting,
    flat_values,
    media_settings,
    settings_hash,
)

#: the name of a setting, and its values in two processors
Difference = tuple[str, str, str]

#: ends of names of settings in files that say nothing about pixels
_NAMES_OF_OTHERS = ("_type", "_class", "_version", "_path")
#: rules whose inputs were compared in this process, by all that the comparison depends on
_compared: set[str] = set()


# --------------------------------------------------------------------------------------------- datasets that are joined


def refuse_incompatible_datasets(
    manifests: Mapping[str | Path, Mapping[str, Any]], more_fields: Sequence[str] = ()
) -> None:
    """Raise PackError if packed datasets can't be read by one training, or make other pixels.

    Args:
        manifests: energon_pack.json of each, by the dataset's folder.
        more_fields: more fields of energon_pack.json that have to be alike.
    """
    refuse_other_manifests(manifests, more_fields)
    refuse_different_pixels([*manifests])


def refuse_different_pixels(datasets: Sequence[str | Path]) -> None:
    """Raise PackError if the processors of packed datasets make other pixels of media."""
    first, *others = _with_media(_kept_rules_of(datasets))
    _refuse_differences(first, others)


def refuse_packs_unfit_for_encoder(
    encoder_dataset: str | Path,
    encoder_manifest: Mapping[str, Any],
    other_manifests: Mapping[str | Path, Mapping[str, Any]],
) -> None:
    """Raise PackError if the encoder of one dataset can't read packs of others, or prepares their media otherwise.

    Media of packs without the files that say how they were prepared are not compared.

    Args:
        encoder_dataset: the encoder's dataset; `encoder_manifest`: its energon_pack.json.
        other_manifests: energon_pack.json of each other dataset, by its folder.
    """
    refuse_other_manifests({encoder_dataset: encoder_manifest, **other_manifests})
    parts = [part for folder in other_manifests for part in pack_folders_of(folder)]
    comparable = [part for part in parts if all(read_metadata_file(part, name) is not None for name in HASHED_FILES)]
    _refuse_differences(kept_rules_of_all_packs(encoder_dataset), filter(_has_media, map(read_kept_rules, comparable)))


def _kept_rules_of(datasets: Iterable[str | Path]) -> list[KeptInputRules]:
    return [read_kept_rules(part) for folder in datasets for part in pack_folders_of(folder)]


def _refuse_differences(first: KeptInputRules, others: Iterable[KeptInputRules]) -> None:
    for other in others:
        if difference := _difference_of_datasets(first, other):
            name, *values = difference
            raise PackError(
                f"{first.dataset} and {other.dataset} make other pixels of media: {name} is {values[0]} in the first,"
                f" and {values[1]} in the second: pack one of both again with the processor of the other"
            )


def kept_rules_of_all_packs(dataset: str | Path) -> KeptInputRules:
    """Return what prepares all packs of a dataset; of several that are joined, the one with the most processor files.

    Datasets without media may have another processor than those with media, whose processor is then taken.
    """
    every = _with_media(_kept_rules_of([dataset]))
    return max(every, key=lambda kept: len(kept.files))


def _with_media(every: list[KeptInputRules]) -> list[KeptInputRules]:
    """Leave out datasets without media if the processors may differ; if no dataset has media, keep the first."""
    if len(set(map(_pixels_key, every))) == 1:
        return every
    return [*filter(_has_media, every)] or every[:1]


def _pixels_key(kept: KeptInputRules) -> str:
    """Return all that a processor's pixels depend on, as a text; two texts may differ and mean the same pixels."""
    rules = kept.rules
    return rules.pixels or str([sorted(kept.files.items()), rules.kwargs, rules.call_settings, rules.looks])


def _has_media(kept: KeptInputRules) -> bool:
    """Say whether a pack has media; sounds cost nothing in a vision encoder, so they count wherever they may be."""
    sums = PackTotals.read(read_unchanged(kept.dataset, PACK_TOTALS_FILE))
    return AUDIO.kind in kept.rules.media_tokens or bool(sums.vision_cost.any())


def _difference_of_datasets(first: KeptInputRules, other: KeptInputRules) -> Difference | None:
    """Return the first setting, or input of made-up media, in which two datasets differ; None: there is none."""
    if _pixels_key(first) != _pixels_key(other):
        settings = None if other.has_code else _processor_settings(other.rules_with_own_processor)
        if difference := _difference_of_processors(
            first, other.rules.pixels, settings, other.rules_with_own_processor.folder
        ):
            return difference
    for kind, name in first.rules.classes.items():
        if kind in first.rules.media_tokens and (another := other.rules.classes.get(kind, name)) != name:
            return f"the class that prepares {KINDS[kind].nouns}", name, another
    if name := describe_figure_difference(first.rules.made, other.rules.made):
        one, another = (f"made by transformers {kept.rules.transformers}" for kept in (first, other))
        return name, one, another
    return None


# ------------------------------------------------------------------------------- another processor, other transformers


def refuse_incompatible_processor(dataset: str | Path, rules: InputRules) -> None:
    """Raise PackError if the processor of `rules`, given in place of a dataset's own, makes other inputs of media."""
    kept, settings = kept_rules_of_all_packs(dataset), _processor_settings(rules)
    pixels = "" if settings is None else settings_hash(settings)
    if difference := _difference_of_processors(kept, pixels, settings, rules.folder):
        name, packed, here = difference
        place = Path(rules.folder, file) if (file := _file_with_setting(name, kept, rules.folder)) else rules.folder
        raise PackError(
            f"{place}: {name} is {here}, and where {kept.dataset} was packed {packed}: leave the processor out, for the"
            " dataset holds its own, or pack again"
        )


def refuse_changed_trial_inputs(dataset: str | Path, rules: InputRules) -> None:
    """Raise PackError if a processor makes other inputs of made-up media than a dataset kept; once a process."""
    refuse_old_transformers()
    key = f"{rules.folder} {sorted(rules.kwargs.items())} {rules.made} {rules.classes}"
    if not (rules.made or rules.classes) or key in _compared:
        return
    versions = f"{version_of('transformers')}, and {dataset} was packed with {rules.transformers}"
    cure = f"train with transformers=={rules.transformers} and the processor of the packing, or pack again"
    try:
        processor = load_full_processor(rules)
    except ImportError:  # images are prepared without torchvision
        return
    except Exception as error:  # any class of any processor may be behind it
        if rules.transformers == version_of("transformers"):  # its first medium says so
            return
        raise PackError(
            f"{rules.folder} can't be loaded with transformers {versions}: {one_line(error, 120)}: {cure}"
        ) from None
    if why := describe_inputs_changed_since_packing(processor, rules):
        raise PackError(f"{type(processor).__name__} makes other inputs with transformers {versions}: {why}: {cure}")
    _compared.add(key)


# ------------------------------------------------------------------------------------------------------- their settings


def _difference_of_processors(
    kept: KeptInputRules, pixels: str, settings: Mapping[str, Any] | None, folder: str
) -> Difference | None:
    """Return the first setting in which another processor differs from a dataset's own; None: they make the same.

    Args:
        pixels: the hash of the other one's settings; empty: nobody knows it.
        settings: of the other one; None: it can't be loaded. `folder`: where its files are.
    """
    if pixels and pixels == kept.rules.pixels:
        return None
    own = None if settings is None or kept.has_code else _processor_settings(kept.rules_with_own_processor)
    in_files = _difference_in_files(kept, folder)
    if own is not None and settings is not None:
        difference = different_setting(own, settings)
        return in_files if difference and in_files else difference  # people know the name in a file
    is_comparable = pixels and kept.rules.pixels and kept.rules.transformers == version_of("transformers")
    if in_files is None and is_comparable:  # defaults of another version may have other names
        return "a hash of its settings", kept.rules.pixels, pixels
    return in_files


def _processor_settings(rules: InputRules) -> dict[str, Any] | None:
    """Return the settings of a processor as loaded; of its image processor, if no other part can be; None: of none."""
    try:
        try:
            processor = load_full_processor(rules)
        except ImportError:
            processor = SimpleNamespace(image_processor=load_image_processor_alone(rules))
        return media_settings(processor, rules)
    except Exception:  # any class of any processor may be behind it
        return None


def _difference_in_files(kept: KeptInputRules, folder: str) -> Difference | None:
    """Return the first setting that stands in a file of a dataset's processor and of another one with two values."""
    for packed, here in _settings_in_shared_files(kept, folder).values():
        for key in sorted(packed.keys() & here.keys()):
            if packed[key] != here[key] and not key.endswith(_NAMES_OF_OTHERS):
                return key, str(packed[key])[:60], str(here[key])[:60]
    return None


def _file_with_setting(key: str, kept: KeptInputRules, folder: str) -> str:
    """Return the name of the file in which both processors have a setting; empty: no file has it."""
    each = _settings_in_shared_files(kept, folder).items()
    return next((name for name, (packed, here) in each if key in packed.keys() & here.keys()), "")


def _settings_in_shared_files(kept: KeptInputRules, folder: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return by name the settings in each file of a dataset's processor, and in the file of that name in a folder."""
    names = [name for name in kept.files if name.endswith("processor_config.json") and Path(folder, name).is_file()]
    return {
        name: (
            flat_values(parse_json(read_unchanged(kept.dataset, f"{PROCESSOR_FOLDER}/{name}", kept.files[name]))),
            flat_values(parse_json(Path(folder, name).read_bytes())),
        )
        for name in names
    }
