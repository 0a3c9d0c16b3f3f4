"""Lengths of sounds are asked once a step: as many calls as steps, and the answer that a call would have given."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.templates.families.steps import Steps


def count(length: int, hop: int = 160, frames: int = 4, most: int = 1500) -> int:
    """Tokens of a rule like Whisper's."""
    return min(-(-(length // hop) // frames), most)


def drawn(number: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(400, 1_200_000) for _ in range(number)]


def test_a_step_is_asked_once() -> None:
    """Were each length asked, a set of a million clips would take half an hour of calls."""
    asked: list[int] = []

    def ask(length: int) -> int:
        asked.append(length)
        return count(length)

    answers = Steps(ask, int)
    lengths = drawn(5000)
    assert [answers(length) for length in lengths] == [count(length) for length in lengths]
    assert len(asked) < 3 * 1500
    known = len(asked)
    assert [answers(length) for length in lengths] == [count(length) for length in lengths]
    assert len(asked) == known


@pytest.mark.parametrize("rule", [lambda n: n // 160 % 50, lambda n: -(n // 640), lambda n: (n // 640, n // 64 % 2)])
def test_what_does_not_grow_is_asked_each_time(rule: object) -> None:
    """Between two lengths with one answer others may lie, or one size may have two answers."""
    assert callable(rule)
    answers = Steps(rule, lambda answer: answer[0] if isinstance(answer, tuple) else answer)
    assert all(answers(length) == rule(length) for length in drawn(400))


def test_what_is_refused_is_refused() -> None:
    """Lengths that the processor refuses, at the end of a step, cost none of the others."""

    def ask(length: int) -> int:
        if length < 5000 or length > 1_000_000:
            raise ValueError(f"{length} samples")
        return count(length)

    answers = Steps(ask, int)
    for length in drawn(600):
        if 5000 <= length <= 1_000_000:
            assert answers(length) == count(length)
    for length in (4999, 1_000_001, 1_100_000):
        with pytest.raises(ValueError, match=f"{length} samples"):
            answers(length)


@given(st.integers(1, 700), st.integers(1, 9), st.integers(1, 4000), st.integers(0, 1 << 30))
def test_any_rule_of_steps(hop: int, frames: int, most: int, seed: int) -> None:
    answers = Steps(lambda length: count(length, hop, frames, most), int)
    assert all(answers(length) == count(length, hop, frames, most) for length in drawn(150, seed))
