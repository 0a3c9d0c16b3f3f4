"""How samples are measured."""

from dataclasses import dataclass
from functools import partial

from energon_pack.run.context import Run
from energon_pack.samples.settings import ReadSettings
from energon_pack.templates.choose import Choice
from energon_pack.templates.identity import Identity
from energon_pack.templates.processor import choice_of, date_of, identity_of, prepare_template, saved_template
from energon_pack.templates.settings import TemplateSettings


@dataclass(frozen=True)
class Method:
    """All that lengths depend on beside the samples: one travels with every job that measures, cuts or audits."""

    template_folder: str  # in the cache: `load_saved` takes the template from it
    read: ReadSettings
    engine: str = "auto"  # what counts tokens

    @property
    def identity(self) -> Identity:
        """The fingerprints of its template."""
        return identity_of(self.template_folder)

    @property
    def choice(self) -> Choice:
        """Whose rules count the media, and what they were compared with."""
        return choice_of(self.template_folder)

    def lines(self, asked: str) -> list[str]:
        """What to say of it before samples are measured.

        Args:
            asked: `model.template` of the config.
        """
        date = date_of(self.template_folder)
        said = [] if date is None else [f"the chat template writes a date: {date} (model.date)"]
        return [*self.choice.lines(asked), *said]


def prepare(settings: TemplateSettings, read: ReadSettings, engine: str, run: Run) -> Method:
    """Have the template of a model in the cache, built by a process beside, which imports transformers.

    Args:
        settings: with the folder of its processor: a hub id would be looked up here and there.

    Raises:
        PackError: no such processor, or one that the model's family can't use.
    """
    folder = saved_template(settings, run.cache())
    if folder is None:
        build = partial(prepare_template, cache_dir=run.cache())
        folder = run.executor.result(run.executor.start(build, settings))
    return Method(folder, read, engine)
