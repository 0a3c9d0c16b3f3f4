"""Load transformers' full processor (tokenizer and media), once in each process."""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from energon_pack.templates.folder import has_media, state_of
from energon_pack.templates.quiet import errors_only


class InFolder(Protocol):
    """A processor, by its folder and the arguments to load it with."""

    @property
    def folder(self) -> str: ...

    @property
    def kwargs(self) -> Mapping[str, Any]: ...


def full_processor(processor: InFolder) -> Any:
    """Load the processor with its tokenizer and media processors, or a folder's tokenizer if it holds no more; all
    callers share it, so none may change it.

    Raises:
        ImportError: it needs a package that is not here, torchvision for most.
        Exception: any error of its class on its files.
    """
    folder = processor.folder
    return _loaded(folder, json.dumps(dict(processor.kwargs), sort_keys=True), state_of(Path(folder)))


@lru_cache(maxsize=2)
@errors_only()
def _loaded(folder: str, kwargs: str, state: str) -> Any:
    from transformers import AutoProcessor, AutoTokenizer

    from energon_pack.templates.voxtral import with_call

    loads = AutoProcessor if has_media(Path(folder)) else AutoTokenizer
    return with_call(loads.from_pretrained(folder, **json.loads(kwargs)))
