"""Find what turns the ids of a packed dataset into text: the tokenizer of its processor, where that is here."""

from pathlib import Path

from energon_pack.dataset.encoder import load_checked_tokenizer, read_checked_input_rules
from energon_pack.dataset.manifest import packing_processor_folder
from energon_pack.errors import one_line
from energon_pack.inspect.dataset import OpenDataset
from energon_pack.report.views.view import TokenDecoder
from energon_pack.samples.media.kinds import KINDS
from energon_pack.verify.source_checks import packing_processor


def load_token_decoder(
    opened: OpenDataset, processor: str | None, trust_remote_code: bool
) -> tuple[TokenDecoder | None, str | None]:
    """Load the tokenizer of a dataset, or return None and why it is not here. `processor`: None: the dataset's own."""
    if not opened.manifest:
        return None, "no tokens: the manifest is missing"
    try:
        return _load_vocabulary(opened, processor, trust_remote_code), None
    except (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError) as error:  # or a damaged manifest
        return None, f"no tokens: {one_line(error, 300)}{'' if processor else ' (--processor FOLDER names another)'}"


def _load_vocabulary(opened: OpenDataset, processor: str | None, trust_remote_code: bool) -> TokenDecoder:
    """Load the tokenizer of a dataset; raises as `read_checked_input_rules` and `load_checked_tokenizer`."""
    path = opened.folder.path
    rules = read_checked_input_rules(path, processor or packing_processor_folder(path), trust_remote_code)
    if not any(Path(rules.folder).iterdir()):  # a dataset of text keeps no tokenizer
        rules = read_checked_input_rules(path, choose_processor(opened, None), trust_remote_code)
    tokenizer = load_checked_tokenizer(rules, path).backend_tokenizer
    return TokenDecoder(
        tokenizer, {kind: number for kind in KINDS if (number := rules.feature_token_id(kind)) is not None}
    )


def choose_processor(opened: OpenDataset, processor: str | None) -> str | None:
    """Return `processor`, or if it is None, the folder or hub id of the processor the dataset was packed with."""
    return processor or (packing_processor(opened.folder, opened.report) if opened.manifest else None)
