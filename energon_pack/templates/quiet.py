"""Loading processors without transformers' warnings."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from energon_pack.run.heavy_imports import importing
from energon_pack.templates.torchvision_shim import prepare_torchvision


@contextmanager
def errors_only() -> Iterator[None]:
    """Have transformers log errors alone, and warn of nothing, for a while; a training's own warnings are not lost.

    Processors warn of what they are made of; where Python makes errors of warnings, they would refuse all media.
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
