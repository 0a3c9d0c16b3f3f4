"""Load the template of a packed dataset, where its processor can be found."""

from energon_pack.errors import one_line
from energon_pack.inspect.dataset import Opened
from energon_pack.packed_with import load_template
from energon_pack.templates.template import Template
from energon_pack.verify.lengths import packed_with


def template_of(opened: Opened, processor: str | None, trust_remote_code: bool) -> tuple[Template | None, str | None]:
    """Return the template, or why there is none.

    Args:
        processor: folder or hub id; None: the one it was packed with.
    """
    if not opened.manifest:
        return None, "no tokens: the manifest is missing"
    try:
        return load_template(opened.folder.path, processor_of(opened, processor), trust_remote_code), None
    except (OSError, ValueError, ImportError) as error:
        text = " ".join(str(error).split())
        return None, f"no tokens: {text[:300]}{'' if processor else ' (--processor FOLDER names another)'}"
    except (KeyError, TypeError, AttributeError) as error:  # the manifest is damaged
        return None, f"no tokens: the manifest does not say how it was packed: {one_line(error)}"


def processor_of(opened: Opened, given: str | None) -> str | None:
    """Return the given processor, or the one that the dataset was packed with."""
    return given or (packed_with(opened.folder, opened.report) if opened.manifest else None)
