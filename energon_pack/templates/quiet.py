"""Silence the warnings and logs of transformers while a processor is loaded."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from energon_pack.run.heavy_imports import importing
from energon_pack.templates.torchvision_shim import prepare_torchvision


@contextmanager
def errors_only() -> Iterator[None]:
    """Make transformers log only errors and give no warnings in this context; other code's warnings are not lost.

    Processors warn about their own settings. If Python turns warnings into errors, they would refuse all media.
    """
    with importing():
        prepare_torchvision()
        from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
