"""The encoder for the packs of a dataset, by what the dataset itself holds."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from energon_pack.dataset.input_rules_file import read_input_rules, refuse_other_token_ids
from energon_pack.dataset.manifest import is_metadataset, packed_datasets, read_manifest
from energon_pack.run.packages import version_of
from energon_pack.samples.input_rules import InputRules
from energon_pack.samples.member import MemberInput, MemberTokens
from energon_pack.templates.full_processor import find_or_download_folder, quiet_transformers
from energon_pack.training.pack_encoder import PackEncoder
from energon_pack.training.worker_start import schedule_trial_at_fork


def pack_encoder(
    path: str | Path, processor: str | None = None, trust_remote_code: bool = False, **options: Any
) -> PackEncoder:
    """Return the encoder of a dataset's packs. `read_checked_input_rules` says what `processor` … are."""
    manifest, rules = read_manifest(path), read_checked_input_rules(path, processor, trust_remote_code)
    is_given, is_other = processor is not None or trust_remote_code, version_of("transformers") != rules.transformers
    if is_metadataset(path) or (rules.media_tokens and (is_given or is_other)):
        from energon_pack.dataset import agreement

        if is_metadataset(path):
            agreement.refuse_different_pixels([*packed_datasets(path)])  # `read_manifest` compared all else
        if is_given:
            agreement.refuse_incompatible_processor(path, rules)
        agreement.refuse_changed_trial_inputs(path, rules)
    encoder = PackEncoder(manifest, rules, **options)
    copies = manifest["content"].get("output", {}).get("media", "copy") == "copy"
    if not copies or "media.crc32" in manifest.get("hashes", ("media.crc32",)):
        schedule_trial_at_fork(encoder.members.media_processor)
    return encoder


def read_checked_input_rules(dataset: str | Path, processor: str | None, trust_remote_code: bool) -> InputRules:
    """Return the rules that turn packs of a dataset into model inputs.

    Args:
        processor: folder or hub id, in place of the processor's files in the dataset; None: these files.
        trust_remote_code: run the processor's own code.

    Raises:
        OtherTokenizer: this processor's tokenizer makes other ids than the dataset holds.
    """
    folder = None if processor is None else str(find_or_download_folder(processor))
    rules = read_input_rules(dataset, folder)
    tokenize = partial(_tokenize_like_packs, str(dataset), processor, trust_remote_code)
    rules = replace(rules, kwargs={**rules.kwargs, "trust_remote_code": trust_remote_code}, tokenize=tokenize)
    if processor is not None:
        load_checked_tokenizer(rules, dataset)
    return rules


def load_checked_tokenizer(rules: InputRules, dataset: str | Path) -> Any:
    """Load the tokenizer of the rules' processor; raises OtherTokenizer if its ids are not those of the dataset."""
    with quiet_transformers():
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(rules.folder, **rules.kwargs)
    refuse_other_token_ids(
        rules, dataset, rules.folder, lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"])
    )
    return tokenizer


def _tokenize_like_packs(
    dataset: str, processor: str | None, trust_remote_code: bool, member: MemberInput
) -> MemberTokens:
    """Tokenize a sample that is in no pack, in the same way as the packs of a dataset."""
    from energon_pack.dataset.packing_template import tokenize_like_packs

    return tokenize_like_packs(dataset, processor, trust_remote_code, member)
