"""Find what turns the ids of a packed dataset into text: the tokenizer of its processor, where that is here."""

from pathlib import Path
from typing import Any

from energon_pack.dataset.inputs import read_input_rules, refuse_other_ids
from energon_pack.dataset.manifest import processor_folder
from energon_pack.errors import one_line
from energon_pack.inspect.dataset import Opened
from energon_pack.packed_with import load_template
from energon_pack.samples.media.kinds import KINDS
from energon_pack.templates.folder import local_folder
from energon_pack.templates.quiet import errors_only
from energon_pack.verify.lengths import packed_with
from energon_pack.views.member import vocabulary_of
from energon_pack.views.spans import Vocabulary


def vocabulary_for(
    opened: Opened, processor: str | None, trust_remote_code: bool, model: str | None
) -> tuple[Vocabulary | None, str | None]:
    """Return what turns ids into text, or why there is nothing.

    Args:
        processor: folder or hub id; None: the one it was packed with, or its files in the dataset.
        model: for another tool's packs, as in `+model=NAME`.
    """
    if not opened.manifest and not (model and processor):
        return None, "no tokens: --as MODEL and --processor FOLDER say what these packs are for"
    try:
        if model:
            return vocabulary_of(load_template(opened.folder.path, processor, trust_remote_code, model)), None
        return _written(opened, processor, trust_remote_code), None
    except (OSError, ValueError, ImportError) as error:
        text = " ".join(str(error).split())
        return None, f"no tokens: {text[:300]}{'' if processor else ' (--processor FOLDER names another)'}"
    except (KeyError, TypeError, AttributeError) as error:  # the manifest is damaged
        return None, f"no tokens: the manifest does not say how it was packed: {one_line(error)}"


def _written(opened: Opened, processor: str | None, trust_remote_code: bool) -> Vocabulary:
    """Load the tokenizer of a dataset; raises as `read_input_rules`, `local_folder` and `refuse_other_ids`."""
    path = opened.folder.path
    named = processor or processor_folder(path)
    rules = read_input_rules(path, None if named is None else str(local_folder(named)))
    if not any(Path(rules.folder).iterdir()):  # a dataset of text keeps no tokenizer
        rules = read_input_rules(path, str(local_folder(processor_of(opened, None) or "")))
    with errors_only():
        from transformers import AutoTokenizer

        kwargs = {**rules.kwargs, "trust_remote_code": trust_remote_code}
        tokenizer: Any = AutoTokenizer.from_pretrained(rules.folder, **kwargs).backend_tokenizer
    refuse_other_ids(rules, path, rules.folder, lambda text: tokenizer.encode(text, add_special_tokens=False).ids)
    return Vocabulary(tokenizer, {kind: own for kind in KINDS if (own := rules.feature_id(kind)) is not None})


def processor_of(opened: Opened, given: str | None) -> str | None:
    """Return the given processor, or the one that the dataset was packed with."""
    return given or (packed_with(opened.folder, opened.report) if opened.manifest else None)
