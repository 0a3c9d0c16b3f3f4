"""The full processor of transformers, loaded once a process."""

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energon_pack.templates.folder import state_of
from energon_pack.templates.quiet import errors_only

if TYPE_CHECKING:  # families ask for it themselves
    from energon_pack.templates.families.rules import ProcessorSettings


def full_processor(processor: "ProcessorSettings") -> Any:
    """The processor with its tokenizer and all that prepares media; the same one for all who ask, none may change it.

    Raises:
        ImportError: it needs a package that is not here, torchvision for most.
        Exception: whatever its class makes of its files.
    """
    folder = processor.folder
    return _loaded(folder, json.dumps(processor.kwargs, sort_keys=True), state_of(Path(folder)))


@lru_cache(maxsize=2)
@errors_only()
def _loaded(folder: str, kwargs: str, state: str) -> Any:
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(folder, **json.loads(kwargs))
