"""Which forwards of a guarded model are tried, and how much of a trial each of them is."""

from collections.abc import Iterable

from energon_pack.training.schedule import TrialScope, TrialSituation

#: forwards and backward of a step are three; two members of eight; the check of random numbers; other words
PACKED, ALONE, CHANCE, WORDS = 3, 3 / 4, 0.25, 2


def tried(num: int, new_sizes_at: Iterable[int] = ()) -> dict[int, TrialScope]:
    """The trials of so many forwards."""
    situation, made, new = TrialSituation(), {}, {*new_sizes_at}
    for number in range(1, num + 1):
        situation.num_forwards += 1
        if situation.may_try and (extent := situation.trial_scope(number in new)).num_members:
            made[number] = extent
            situation.record(set())
    return made


def test_a_model_is_tried_for_as_long_as_it_trains() -> None:
    made = tried(2000)
    assert [*made] == [1, 2, *range(100, 1001, 100), *range(1200, 2001, 200)]
    assert [number for number, one in made.items() if one.compares_gradients] == [1, 2, 400, 800, 1600]
    assert [number for number, one in made.items() if one.replaces_words] == [
        1,
        2,
        *range(200, 1001, 200),
        1200,
        1600,
        2000,
    ]
    assert [one.num_members for one in made.values()][:3] == [16, 8, 2]


def test_a_shape_that_comes_again_is_a_size_of_its_own() -> None:
    """A model may then use what it kept by this shape from an earlier batch; a width that never changes is one size."""
    situation = TrialSituation()
    tried_alone = situation.count((2, 60), is_run=False)[1]
    known = [situation.count(shape, is_run=True)[1] for shape in ((2, 60), (2, 64), (2, 60), (1, 64), (2, 64))]
    assert (tried_alone, known) == (False, [False, False, True, False, True])
    assert situation.num_forwards == 6


def test_new_sizes_are_tried_by_and_by_with_their_gradients() -> None:
    made = tried(1500, range(1501))
    assert [*made] == [1, 2, 4, 8, 16, 25, 50, 75, *range(100, 1001, 100), 1200, 1400]
    assert all(one.compares_gradients and one.num_members >= 4 for one in made.values())


def test_ten_thousand_steps_take_one_in_a_hundred_more() -> None:
    """By forwards: a step is three. New sizes come up in the first slots."""
    for num, share in ((1000, 0.03), (10_000, 0.01)):
        forwards = 0.0
        for number, one in tried(num, (4, 8, 16, 25, 75, 200, 300)).items():
            backward = 1 if one.compares_gradients else 1 / 3
            alone = ALONE * one.num_members / 2 if number > 2 else PACKED
            forwards += backward * (PACKED + alone) + CHANCE + WORDS * one.replaces_words
        assert forwards / (3 * num) < share, (num, forwards)
