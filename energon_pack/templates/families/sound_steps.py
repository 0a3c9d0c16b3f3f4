"""Ask for the tokens of a sound once for all lengths that give the same tokens: tokens grow with samples, in steps.

If answers grow with lengths, all lengths between two with the same answer have this answer. Whether they grow is
checked first, on the first lengths and around windows of 30 seconds. If they do not, each length is asked.
"""

from bisect import bisect, insort
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

_NUM_LENGTHS_ASKED_FIRST = 64  # lengths that are asked one by one before steps are used
_MAX_STEP_SAMPLES = 1 << 20  # samples
_WINDOW_SAMPLES = 480_000  # samples of 30 seconds at 16 kHz
_CHECKED_LENGTHS = tuple(edge + off for edge in (16_000, _WINDOW_SAMPLES, 2 * _WINDOW_SAMPLES) for off in (-1, 0, 1))
_Answer = TypeVar("_Answer")


class LengthRangeCache(Generic[_Answer]):
    """Caches a slow function of an integer length; whole ranges of lengths have one answer, so it computes few."""

    def __init__(self, ask: Callable[[int], _Answer], size: Callable[[_Answer], Any]):
        """Store the function without calling it.

        Args:
            ask: returns the answer for a length; its errors reach the caller.
            size: returns the size of an answer; equal answers have equal sizes.
        """
        self._ask, self._answer_size = ask, size
        self._answers: dict[int, _Answer] = {}
        self._lengths: list[int] = []  # the lengths of `_answers`, ascending
        self._answers_grow: bool | None = None  # None: not checked yet
        self._step = (0, 1)  # the first length of a step, and how many lengths it has

    def __call__(self, length: int) -> _Answer:
        """Return the answer for a length: a known one, one that a shorter and a longer length share, or a new one."""
        if length in self._answers:
            return self._answers[length]
        if len(self._lengths) < _NUM_LENGTHS_ASKED_FIRST or not self._check_growth():
            return self._ask_once(length)
        between = self._shared_answer(length)
        if between is None:
            first, size = self._step
            begin = first + (length - first) // size * size
            with suppress(Exception):  # the function may refuse an end of the step, yet take the length
                for end in (max(begin, 1), begin + size - 1):
                    self._ask_once(end)
            between = self._shared_answer(length)
        return self._ask_once(length) if between is None else between

    def _ask_once(self, length: int) -> _Answer:
        if length not in self._answers:
            self._answers[length] = self._ask(length)
            insort(self._lengths, length)
        return self._answers[length]

    def _shared_answer(self, length: int) -> _Answer | None:
        """Return the answer that the nearest known lengths below and above share; None: they have different ones."""
        place = bisect(self._lengths, length)
        below, above = self._lengths[max(place - 1, 0)], self._lengths[min(place, len(self._lengths) - 1)]
        answer = self._answers[below]
        return answer if below <= length <= above and answer == self._answers[above] else None

    def _check_growth(self) -> bool:
        if self._answers_grow is None:
            for length in _CHECKED_LENGTHS:
                with suppress(Exception):
                    self._ask_once(length)
            self._step = self._find_step()
            answers = [self._answers[length] for length in self._lengths]
            sizes = [self._answer_size(answer) for answer in answers]
            pairs = zip(zip(answers, sizes, strict=True), zip(answers[1:], sizes[1:], strict=True), strict=False)
            self._answers_grow = all(
                size <= larger and (size < larger or one == other) for (one, size), (other, larger) in pairs
            )
        return self._answers_grow

    def _find_step(self) -> tuple[int, int]:
        """Return the step that contains the length of one second: its first length, and how many lengths it has."""
        ends = []
        for outside in (1, _MAX_STEP_SAMPLES):
            inside = 16_000
            answer = self._ask_once(inside)
            while abs(outside - inside) > 1:
                middle = (outside + inside) // 2
                try:
                    is_same = self._ask_once(middle) == answer
                except Exception:  # refused: another answer, too
                    is_same = False
                inside, outside = (middle, outside) if is_same else (inside, middle)
            ends.append(inside)
        return ends[0], ends[1] - ends[0] + 1
