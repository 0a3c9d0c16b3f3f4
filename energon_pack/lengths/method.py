"""The method that measures samples: template, token counter and settings."""

from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from energon_pack.lengths.schema import LENGTHS_SCHEMA, REMOVED_FIELD, SHARED_SCHEMA
from energon_pack.run.workshop import Workshop
from energon_pack.samples.settings import MissingMediaPolicy, ReadSettings
from energon_pack.templates.choose_rules import MediaRulesChoice
from energon_pack.templates.identity import TemplateIdentity
from energon_pack.templates.processor import (
    lines_about_template,
    prepare_template,
    read_media_rules_choice,
    read_template_identity,
    saved_template_folder,
)
from energon_pack.templates.settings import TemplateSettings


@dataclass(frozen=True)
class Method:
    """How samples are measured: all that lengths depend on, except the samples themselves. Every job carries one."""

    template_folder: str  # a folder in the cache, from which `load_saved_template` reads the template
    read: ReadSettings
    engine: str = "auto"  # the engine that counts tokens
    with_beginnings: bool = False  # for `packing.share`: media are read whole, and beginnings are hashed
    keep_damaged: bool = False  # of a damaged file, whole samples are taken; if False, the run ends

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of its tables of lengths."""
        removes = self.read.missing_media is MissingMediaPolicy.remove
        schema = SHARED_SCHEMA if self.with_beginnings else LENGTHS_SCHEMA
        return schema.append(REMOVED_FIELD) if removes else schema

    @property
    def identity(self) -> TemplateIdentity:
        """Return the hashes of the template that lengths depend on, read from its folder."""
        return read_template_identity(self.template_folder)

    @property
    def media_rules_choice(self) -> MediaRulesChoice:
        """Return which rules the template counts media with, and how they compared with the model's full processor."""
        return read_media_rules_choice(self.template_folder)

    def template_lines(self, template_setting: str) -> list[str]:
        """Return the lines that a run prints about the template before it measures samples.

        Args:
            template_setting: the value of `model.template`.
        """
        return [*self.media_rules_choice.lines(template_setting), *lines_about_template(self.template_folder)]


def build_method(
    settings: TemplateSettings, read: ReadSettings, engine: str, workshop: Workshop, with_beginnings: bool = False
) -> Method:
    """Return the method that measures for a model; if the cache lacks its template, another process builds it first."""
    folder = saved_template_folder(settings, workshop.cache())
    if folder is None:
        build = partial(prepare_template, cache_dir=workshop.cache())
        folder = workshop.executor.result(workshop.executor.start(build, settings))
    return Method(folder, read, engine, with_beginnings)
