"""Load the template that a dataset was packed with, to tokenize samples that are in no pack, or to look at packs."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from energon_pack.dataset.input_rules_file import read_input_rules, refuse_other_token_ids
from energon_pack.dataset.manifest import packing_processor_folder, read_manifest
from energon_pack.errors import PackError
from energon_pack.run.untrusted_input import dataclass_from_dict
from energon_pack.samples.member import MemberInput, MemberTokens
from energon_pack.templates.families import ASKING_FAMILIES, AUTO
from energon_pack.templates.identity import labels_from_recorded
from energon_pack.templates.model_inputs import tokenize_foreign_member
from energon_pack.templates.processor import build_uncached_template as load_model_template
from energon_pack.templates.settings import MediaConfig, ModelConfig, TemplateSettings
from energon_pack.templates.template import Template


def load_template(path: str | Path, processor: str | None = None, trust_remote_code: bool = False) -> Template:
    """Load the template that a dataset was packed with; `load_template(path).encode(sample)` has the measured length.

    Args:
        path: folder of a packed dataset, or the YAML of a Metadataset of several.
        processor: folder or hub id of the model's processor; by default the folder that the dataset was packed with,
            if it exists here, else the model's published one.
        trust_remote_code: run the processor's own code; this is never taken from the dataset.

    Raises:
        OtherTokenizer: the processor has another tokenizer than that of the packing.
        PackError: it can't be loaded.
    """
    manifest = read_manifest(path)
    node = manifest["content"]["model"]
    processor = processor or packing_processor_folder(path) or node["hub_id"]
    if processor is None:
        raise ValueError(f"{path}: model={node['name']} has no hub id: give its processor")
    content = manifest["content"]
    changes = {"processor": processor, "trust_remote_code": trust_remote_code}
    settings = TemplateSettings(
        dataclass_from_dict(ModelConfig, {**node, **changes}),
        dataclass_from_dict(MediaConfig, content["media"]),
        labels_from_recorded(content["labels"]),
    )
    template = _build_template(settings)
    refuse_other_token_ids(read_input_rules(path, processor), path, processor, template.ids_of)
    return template


def tokenize_like_packs(
    dataset: str, processor: str | None, trust_remote_code: bool, member: MemberInput
) -> MemberTokens:
    """Tokenize a sample that is in no pack, in the same way as the packs of a dataset."""
    return tokenize_foreign_member(_cached_template(dataset, processor, trust_remote_code), member)


@lru_cache(maxsize=4)
def _cached_template(dataset: str, processor: str | None, trust_remote_code: bool) -> Template:
    return load_template(dataset, processor, trust_remote_code)


def _build_template(settings: TemplateSettings) -> Template:
    """Build the template by the template that packing chose; if this processor does not fit it, choose another."""
    try:
        return load_model_template(settings)
    except PackError:
        if settings.model.template not in ASKING_FAMILIES:
            raise
        return load_model_template(replace(settings, model=replace(settings.model, template=AUTO)))
