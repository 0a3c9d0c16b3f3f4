"""Loading processors without transformers' warnings."""

from collections.abc import Iterator
from contextlib import contextmanager

from energon_pack.run.heavy_imports import importing
from energon_pack.templates.torchvision_shim import prepare_torchvision


@contextmanager
def errors_only() -> Iterator[None]:
    """Have transformers log errors alone for a while; a training's own warnings, after it, are not lost."""
    with importing():
        prepare_torchvision()
        from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
