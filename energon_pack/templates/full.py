"""Load transformers' full processor (tokenizer and media), once in each process."""

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energon_pack.templates.folder import has_media, state_of
from energon_pack.templates.quiet import errors_only

if TYPE_CHECKING:  # families import this module
    from energon_pack.templates.families.rules import ProcessorSettings


def full_processor(processor: "ProcessorSettings") -> Any:
    """Load the processor with its tokenizer and media processors, or a folder's tokenizer if it holds no more; all
    callers share it, so none may change it.

    Raises:
        ImportError: it needs a package that is not here, torchvision for most.
        Exception: any error of its class on its files.
    """
    folder = processor.folder
    return _loaded(folder, json.dumps(processor.kwargs, sort_keys=True), state_of(Path(folder)))


@lru_cache(maxsize=2)
@errors_only()
def _loaded(folder: str, kwargs: str, state: str) -> Any:
    from transformers import AutoProcessor, AutoTokenizer

    from energon_pack.templates.voxtral import with_call

    loads = AutoProcessor if has_media(Path(folder)) else AutoTokenizer
    return with_call(loads.from_pretrained(folder, **json.loads(kwargs)))
