"""Any key that seven trackers know, anywhere in a record: honoured, harmless by the table, or named; none is silent.

Without it, a key that means something to its owner is dropped, the run ends with exit 0, and the loss looks normal.
"""

import random
from collections import Counter
from pathlib import Path

import pytest

from energon_pack.templates.build import build
from energon_pack.templates.template import Template
from support.labels.forms import FORMS, fresh
from support.labels.fuzz import Fuzzed, add, fuzzed, judge
from support.labels.meaning import TEMPLATE
from support.labels.tracker_keys import KEYS, values_of
from support.models import of_model

GOOD = {"honoured", "harmless", "unknown", "skipped"}


@pytest.fixture(scope="module")
def writes_all(demo: tuple[Path, Path]) -> Template:
    """A template that writes all that a record can say."""
    return build(of_model("qwen_vl", demo[1], chat_template=TEMPLATE), demo[1])


def wrong_of(template: Template, records: list[Fuzzed]) -> tuple[Counter[str], list[str]]:
    """Count the records of each outcome, and return one wrong record of each kind."""
    counts: Counter[str] = Counter()
    wrong: dict[str, str] = {}
    for record in records:
        verdict = judge(template, record)
        counts[verdict if verdict in GOOD else "wrong"] += 1
        if verdict not in GOOD:
            wrong.setdefault(
                f"{verdict[:30]} {[(a.key.place, a.key.name) for a in record.added]}", f"{verdict}\n  {record}"
            )
    return counts, list(wrong.values())


def test_each_form_alone_is_what_it_means(writes_all: Template) -> None:
    counts, wrong = wrong_of(writes_all, [Fuzzed(fresh(form)) for form in FORMS])
    assert wrong == []
    assert counts == {"harmless": len(FORMS)}


def test_each_key_with_each_value_is_honoured_harmless_or_named(writes_all: Template) -> None:
    chance, records = random.Random(0), []
    for key in KEYS:
        for value, is_good in values_of(key):
            for form in chance.sample(FORMS, 3):
                record = Fuzzed(fresh(form))
                add(record, key, value, is_good, chance)
                records.append(record)
    counts, wrong = wrong_of(writes_all, records)
    assert wrong == []
    assert min(counts[outcome] for outcome in GOOD) > 10


@pytest.mark.slow
def test_100_000_records(writes_all: Template) -> None:
    chance = random.Random(1)
    for _ in range(100):
        _, wrong = wrong_of(writes_all, [fuzzed(chance) for _ in range(1000)])
        assert wrong == []
