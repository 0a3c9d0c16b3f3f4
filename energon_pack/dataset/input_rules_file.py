"""Keep with a dataset what turns its packs into a model's inputs, so that training needs nothing else.

.nv-meta/inputs.json      the rules (`InputRules`), and the hashes of the processor's files by name
.nv-meta/trial.tokens     short members, to try a processor and a model with
.nv-meta/processor/       files of a processor that takes media: settings, and the tokenizer, because most calls for
                          media take a text, too; no weights, and no code
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from energon_pack.dataset.manifest import (
    pack_folders_of,
    packing_processor_folder,
    read_kept_rules,
)
from energon_pack.errors import PackError
from energon_pack.samples.input_rules import InputRules


class OtherTokenizer(ValueError):
    """A processor's tokenizer makes other token ids than a dataset holds."""


def read_input_rules(dataset: str | Path, processor: str | None = None) -> InputRules:
    """Read the rules that turn packs into model inputs; for several datasets, those with the most processor files.

    Args:
        dataset: a packed dataset, an order of several, or the YAML of a Metadataset.
        processor: folder or hub id, in place of the processor's files in the dataset; None: these files.

    Raises:
        PackError: `processor` is None though it must run its own code.
        ValueError: a file of the dataset is missing or damaged.
    """
    folders = pack_folders_of(dataset)
    if len(folders) > 1:
        from energon_pack.dataset.agreement import kept_rules_of_all_packs

    kept = read_kept_rules(folders[0]) if len(folders) == 1 else kept_rules_of_all_packs(dataset)
    if kept.has_code:
        processor = processor or packing_processor_folder(dataset)
        if processor is None:
            raise PackError(f"{dataset}: its processor runs code of its own: processor=FOLDER, trust_remote_code=True")
    return kept.rules_with_own_processor if processor is None else replace(kept.rules, folder=processor)


def refuse_other_token_ids(
    rules: InputRules, dataset: str | Path, processor: str, text_to_ids: Callable[[str], list[int]]
) -> None:
    """Raise OtherTokenizer if a tokenizer (`text_to_ids`) makes other ids of texts than the dataset holds."""
    for text, ids in rules.texts:
        if (ids_here := text_to_ids(text)) != list(ids):
            raise OtherTokenizer(f"{dataset}: {_other_ids_message(text, ids, ids_here, processor)}")


def _other_ids_message(text: str, ids: Sequence[int], ids_here: Sequence[int], processor: str) -> str:
    """Return the message of OtherTokenizer: the first ids of a text in the dataset, and those that were made here."""
    in_dataset, here = (" ".join(map(str, numbers[:8])) for numbers in (ids, ids_here))
    return (
        f"its tokenizer is not that of {processor}: {text!r} begins with the ids {in_dataset} in the dataset,"
        f" {here} here: give the processor of the packing, or pack again"
    )
