"""Measure some samples of a source, and again with settings that may cure what is lost of them."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from energon_pack.config import PackConfig
from energon_pack.config.stage_settings import StageSettings
from energon_pack.errors import PackError
from energon_pack.inspect.lost_samples import lost_sample_examples, setting_named_in
from energon_pack.plan.pack_lengths import LengthFigures, TriedLength
from energon_pack.plan.report import num_lost_to_bad_data
from energon_pack.report.images import ShrinkAdvice
from energon_pack.report.which_length import MOST_DROPPED
from energon_pack.run.workshop import Workshop
from energon_pack.samples.media.kinds import MEDIA_TYPES, VIDEO
from energon_pack.stages.measuring import Measured

_FEWER_FRAMES = ["media=fps", "media.fps=1"]


@dataclass(frozen=True)
class TrialRun:
    """Some samples, spread over the source, measured with one set of settings, and estimates for the whole source."""

    config: PackConfig
    settings: StageSettings
    workshop: Workshop
    num_files: int
    measured: Measured
    sample_every: int  # one sample in so many is measured
    sample_share: float  # of the samples of all files
    choices: LengthFigures  # scaled to the whole source
    best: TriedLength | None
    shrink_advice: ShrinkAdvice | None

    @property
    def num_lost_to_bad_data(self) -> int:
        return num_lost_to_bad_data(self.measured.lengths.reasons)

    @property
    def _rank(self) -> tuple[int, int, int]:
        longest = self.best.max_token_len if self.best else 1 << 62
        return self.num_lost_to_bad_data, longest, self.choices.tokens

    def is_better_than(self, other: "TrialRun") -> bool:
        """Tell whether this run loses fewer samples than another; or as many, with shorter packs or fewer tokens."""
        return self._rank < other._rank


def find_cures(
    tried: TrialRun, measure: Callable[[Sequence[str]], TrialRun]
) -> tuple[list[TrialRun], list[str], list[str]]:
    """Look for settings with which less is lost than in a run without them.

    What a run with a setting asks for is tried, too; together with that setting, if it is no better alone.

    Returns:
        Runs, each better than the one before it; the settings of the last; and those that were tried and did not help.
    """
    better, cures, useless, waiting = list[TrialRun](), list[str](), list[str](), deque(_settings_to_try(tried))
    names = {name for cure in waiting for name in _names(cure)}
    while waiting:
        cure = waiting.popleft()
        useless += cure
        with suppress(PackError):
            run = measure([*cures, *cure])
            if is_better := run.is_better_than(better[-1] if better else tried):
                better, cures = [*better, run], [*cures, *cure]
            for asked in _settings_to_try(run):
                if names.isdisjoint(_names(asked)):
                    names |= _names(asked)
                    waiting.append(asked if is_better else [*cure, *asked])
    return better, cures, [setting for setting in useless if setting not in cures]


def _names(settings: Sequence[str]) -> set[str]:
    return {setting.partition("=")[0] for setting in settings}


def _settings_to_try(tried: TrialRun) -> list[list[str]]:
    """Return lists of settings to try: those that details of losses name, and settings for smaller media."""
    examples = lost_sample_examples(tried.measured.lengths, tried.config.packing)
    typed = [[named] for named in dict.fromkeys(setting_named_in(detail) for _, detail in examples.values()) if named]
    if tried.shrink_advice:
        return [*typed, tried.shrink_advice.knob.split()]
    are_dropped = tried.best is not None and tried.best.dropped_tokens_share > MOST_DROPPED
    has_videos = bool((tried.measured.lengths.items.media == MEDIA_TYPES.index(VIDEO.kind)).any())
    return [*typed, *([_FEWER_FRAMES] if are_dropped and has_videos else [])]
