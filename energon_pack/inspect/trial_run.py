"""Measure some samples of a source, and again with settings that may cure what is lost of them; print what is lost."""

import math
import re
import shlex
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from energon_pack.config import PackConfig
from energon_pack.config.stage_settings import StageSettings
from energon_pack.dataset.ledger import (
    ledger_entries,
    why_measured_samples_lack_media,
    why_overlong_lose_too_much,
    why_too_much_bad_data,
)
from energon_pack.errors import PackError
from energon_pack.plan.items import Lengths
from energon_pack.plan.pack_lengths import LengthFigures, TriedLength
from energon_pack.plan.packs import empty_plan
from energon_pack.plan.report import Report, num_lost_to_bad_data
from energon_pack.plan.settings import Overlong, PackingConfig
from energon_pack.report.advice import MOST_DROPPED, ShrinkAdvice
from energon_pack.report.terminal_summary import cut_and_pair_lines, describe_suspicious_data, removed_pictures_lines
from energon_pack.run.console import say
from energon_pack.run.workshop import Workshop
from energon_pack.samples.media.kinds import MEDIA_TYPES, VIDEO
from energon_pack.stages.measuring import Measured

#: cures that a detail names as they are typed
_SETTING_IN_DETAIL = re.compile(
    r"""(')?source\.(?:tools|take|remote_media|messages_key|columns\.(?:images|videos|audios))="""
    r"""(?(1)(?:[^']|'"'"')+'|[^\s;,)]+)"""
)


def lost_sample_examples(lengths: Lengths, packing: PackingConfig) -> dict[str, tuple[str, str]]:
    """Return reason → id of one sample that would be lost for it, and the detail, which tells what to do."""
    examples: dict[str, tuple[str, str]] = {}
    for entry in ledger_entries(lengths, empty_plan(lengths.items), packing) if lengths.reasons else ():
        examples.setdefault(entry["reason"], (entry["sample_id"], entry["detail"] or ""))
        if len(examples) == len(lengths.reasons):
            break
    return examples


def _setting_named_in(detail: str) -> str | None:
    """Return the first setting that a detail of a loss names as its cure; None: it names none."""
    match = _SETTING_IN_DETAIL.search(detail)
    return shlex.split(match[0])[0] if match else None


def note_useless_setting(loss_detail: str, useless_settings: Sequence[str]) -> str:
    """Return the detail of a loss, and that the setting which it names does not help, if it was `useless_settings`."""
    named = _setting_named_in(loss_detail)
    return f"{loss_detail} ({named} was tried, and does not help)" if named in useless_settings else loss_detail


def print_lost_samples(lengths: Lengths, examples: Mapping[str, tuple[str, str]]) -> None:
    """Print each reason for which samples would be lost, with their number and one example; then what packing notes."""
    noted = lengths.noted
    notes = [*describe_suspicious_data(noted.counts, *map(noted.most_frequent_names, ("image_modes", "unknown_keys")))]
    notes += removed_pictures_lines(noted.num_removed_pictures)
    if not lengths.reasons:
        known = ", as far as texts and headers of media say" * bool((lengths.items.media > 0).any())
        nothing = "no sample" if notes else "nothing"
        say(f"{nothing}{known}: every sample can be packed, if it is not longer than a pack")
    for reason, number in sorted(lengths.reasons.items(), key=lambda item: -item[1]):
        sample, detail = examples.get(reason, ("?", ""))
        say(f"{number:,} of {lengths.num_samples:,}  {reason}, as {sample}: {detail}")
    for line in notes:
        say(line)


def print_cut_off_tokens(report: Report, packing: PackingConfig) -> None:
    """Print how many tokens cutting loses at `packing.max_token_len`, and whether that prevents publishing."""
    for line in cut_and_pair_lines(report):
        say(f"packing.overlong={packing.overlong.value}, {packing.max_token_len:,} tokens a pack: {line}")
    if why := why_overlong_lose_too_much(report, packing):
        say(f"nothing would be published: {why}")


def settings_that_allow_lost_samples(lengths: Lengths, max_skipped: float) -> list[str]:
    """Return `max_skipped=…`, without which a command publishes nothing of these samples; []: it needs none.

    It is rounded up, with a tenth more, because the samples are only some of the source.
    """
    lost, total = num_lost_to_bad_data(lengths.reasons), lengths.num_samples
    is_needed = max_skipped * total < lost < total
    return [f"max_skipped={min(1.0, math.ceil(110 * lost / total) / 100):g}"] * is_needed


def why_would_not_publish(
    lengths: Lengths, choices: LengthFigures, best: TriedLength | None, packing: PackingConfig, max_skipped: float
) -> str | None:
    """Return why packing would publish nothing of these samples: too many or a whole medium lost; None: it would."""
    items = lengths.items
    for code, medium in enumerate(MEDIA_TYPES):
        lens = items.lens[items.media == code]
        if len(lens) and not lens.any():
            return f"every {medium} sample would be skipped"
    return (
        why_too_much_bad_data(choices, max_skipped)
        or why_measured_samples_lack_media(lengths, max_skipped)
        or _why_too_much_overlong(best, packing)
    )


def _why_too_much_overlong(best: TriedLength | None, packing: PackingConfig) -> str | None:
    """Return why the best pack length drops so many tokens that nothing would be published; None: it does not."""
    if packing.overlong is not Overlong.auto or best is None or best.dropped_tokens_share <= packing.max_dropped_tokens:
        return None
    too_much = f"packs of {best.max_token_len:,} tokens drop {best.dropped_tokens_share:.0%} of all tokens"
    return f"{too_much}, packing.max_dropped_tokens={packing.max_dropped_tokens:g} allows less"


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


def find_settings_losing_less(
    first_run: TrialRun, measure_with_settings: Callable[[Sequence[str]], TrialRun]
) -> tuple[list[TrialRun], list[str], list[str]]:
    """Look for settings with which less is lost than in a run without them.

    What a run with a setting asks for is tried, too; together with that setting, if it is no better alone.

    Returns:
        Runs, each better than the one before it; the settings of the last; and those that were tried and did not help.
    """
    better, cures, useless, waiting = list[TrialRun](), list[str](), list[str](), deque(_settings_to_try(first_run))
    names = {name for cure in waiting for name in _names(cure)}
    while waiting:
        cure = waiting.popleft()
        useless += cure
        with suppress(PackError):
            run = measure_with_settings([*cures, *cure])
            if is_better := run.is_better_than(better[-1] if better else first_run):
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
    typed = [[named] for named in dict.fromkeys(_setting_named_in(detail) for _, detail in examples.values()) if named]
    if tried.shrink_advice:
        return [*typed, tried.shrink_advice.knob.split()]
    are_dropped = tried.best is not None and tried.best.dropped_tokens_share > MOST_DROPPED
    has_videos = bool((tried.measured.lengths.items.media == MEDIA_TYPES.index(VIDEO.kind)).any())
    return [*typed, *([_FEWER_FRAMES] if are_dropped and has_videos else [])]
