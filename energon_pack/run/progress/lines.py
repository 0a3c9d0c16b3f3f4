"""What is said of a stage: pure text, cut to the width there is."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from energon_pack.errors import amount
from energon_pack.run.progress.pace import Pace

_NAME = 9  # characters of the longest stage's name
_NARROWEST_BAR, _WIDEST_BAR = 8, 40
_NARROW = 60  # columns: no room to the left of what belongs together
_LEFT = 18  # characters of the time left
_SHORTEST_FOR_RATES = 0.1  # seconds: a rate over less says nothing
_ENOUGH = 0.02  # share that is done, by which one can tell the time left
_NEVER_OF_USE = 2 * 86_400.0  # seconds: a time left beyond it is counted in days


class Signs(NamedTuple):
    """The characters that are no ASCII, or what stands for them."""

    done: str
    failed: str
    spinner: str
    full: str
    empty: str
    dot: str


_SIGNS = Signs("✓", "✗", "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "━", "─", "·")
_ASCII = Signs("+", "x", "|/-\\", "#", ".", "-")


def signs_for(encoding: str | None) -> Signs:
    """What can be written in an encoding."""
    try:
        "".join(_SIGNS).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return _ASCII
    return _SIGNS


@dataclass
class Done:
    """What a stage did in this run, and what it found done."""

    samples: int = 0
    bytes: int = 0  # read or written
    cached: int = 0  # samples of which the cache knew all
    skipped: Counter[str] = field(default_factory=Counter)  # samples by reason


def _nothing_begun() -> float:
    return 0.0


@dataclass
class Work:
    """Something that a stage counts."""

    name: str
    total: int
    unit: str
    pace: Pace
    done: int = 0
    cost: float = 0.0
    #: cost of what is begun and not told of yet
    begun: Callable[[], float] = _nothing_begun

    def seen(self, now: float, start: float) -> tuple[int, float, float | None]:
        """Units that are done, the share of the cost, and seconds left, what is begun counted.

        Args:
            now, start: times; of the work's begin.
        """
        begun = self.begun()
        share = min(1.0, self.pace.share + self.pace.part(begun))
        left = self.pace.seconds_left(now)
        if left is None and share >= _ENOUGH:
            left = (now - start) * (1 - share) / share
        return min(self.total, max(self.done, int(share * self.total) if begun else 0)), share, left


def running_lines(
    stage: str, seconds: float, work: Work | None, done: Done, now: float, width: int, signs: Signs
) -> list[str]:
    """A stage at work: its bar, what is left of it, its rates and what it leaves out.

    Args:
        seconds: since it began.
        now: the time.
    """
    head = f"{stage:<{_NAME}}"
    if work is None:
        return [f"{head}  {_clock(seconds)}"]
    number, share, left = work.seen(now, now - seconds)
    ends = [f"{int(100 * share):>3} %", _clock(seconds), "" if left is None else _left(left)]
    if width < len(f"{head}  {'  '.join(ends[:2])}  ") + _LEFT:
        ends[1] = ""  # what is left is of more use
    room = min(_WIDEST_BAR, width - len(f"{head}    {'  '.join(filter(None, ends[:2]))}  ") - _LEFT)
    bar = [_bar(share, room, signs)] if room >= _NARROWEST_BAR else []
    what = "" if work.name == stage else f"{work.name}: "
    counts = [f"{what}{number:,} of {work.total:,} {work.unit}", *_rates(work.pace.rates), *_cached(done)]
    return [
        "  ".join([head, *bar, *filter(None, ends)]),
        *_folded(["", *counts, *_skipped(done)], width, len(head) + 2)[1:],
    ]


def finished_lines(name: str, seconds: float, done: Done, width: int) -> list[str]:
    """What a stage came to."""
    said = [amount(done.samples, "sample")] if done.samples else []
    if seconds >= _SHORTEST_FOR_RATES:
        said += _rates((done.samples / seconds, done.bytes / seconds))
    said += [*_cached(done), *_skipped(done)]
    head = f"{name:<{_NAME}}  {_seconds(seconds):>8}"
    return _folded([head, *said], width, len(head) + 2)


def log_line(work: Work, done: Done, now: float) -> str:
    """The same figures in a line of a log."""
    left = work.pace.seconds_left(now)
    said = [f"{work.done:,} of {work.total:,} {work.unit}", *_rates(work.pace.rates), *_skipped(done)]
    return f"{work.name}: {', '.join([*said, *([] if left is None else [_left(left)])])}"


def _bar(share: float, width: int, signs: Signs) -> str:
    full = int(share * width)
    return signs.full * full + signs.empty * (width - full)


def _rates(rates: tuple[float, float] | None) -> Iterator[str]:
    if rates is None:
        return
    samples, num_bytes = rates
    if samples:
        yield f"{_figure(samples)} samples/s"
    if num_bytes:
        yield f"{_figure(num_bytes / 1e6)} MB/s"


def _figure(value: float) -> str:
    """Two digits at least."""
    return f"{value:,.0f}" if value >= 10 else f"{value:,.1f}" if value >= 1 else f"{value:.2g}"


def _cached(done: Done) -> Iterator[str]:
    if done.cached:
        yield f"{done.cached:,} {'' if done.samples else 'samples '}from the cache"


def _skipped(done: Done) -> Iterator[str]:
    if done.skipped:
        [(reason, number)] = done.skipped.most_common(1)
        yield f"{done.skipped.total():,} skipped ({f'{number:,} ' if len(done.skipped) > 1 else ''}{reason})"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds)))


def _left(seconds: float) -> str:
    if seconds > _NEVER_OF_USE:
        return f"about {seconds / 86_400:,.0f} days left"
    return f"about {timedelta(seconds=round(seconds))} left"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else _clock(seconds)


def _folded(pieces: Sequence[str], width: int, indent: int) -> list[str]:
    """Pieces on as few lines as hold them, all but the first line below each other; none is broken."""
    lines = [*pieces[:1]]
    for piece in pieces[1:]:
        if lines[-1] and len(lines[-1]) + 2 + len(piece) <= width:
            lines[-1] += f"  {piece}"
        else:
            lines.append(f"{'':{indent if width >= _NARROW else 0}}{piece}")
    return lines


def to_come(stages: Sequence[str], signs: Signs) -> str:
    """The stages that are still to come."""
    return f" {signs.dot} ".join(stages)
