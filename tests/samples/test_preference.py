"""Preference data is refused by name, or its good side is taken: a rejected answer is never trained."""

from typing import Any

import pytest

from energon_pack.samples.record import parse_record
from energon_pack.samples.sample import Message
from energon_pack.samples.settings import ReadSettings, Take
from energon_pack.samples.skip import Skip
from energon_pack.sources.jsonl.dialects import Lines, parse_line

USER, GOOD, BAD = ({"role": r, "content": t} for r, t in (("user", "q"), ("assistant", "good"), ("assistant", "bad")))
CHAT: list[Message] = [USER, GOOD]
CHOSEN = ReadSettings(take=Take.chosen)

FORMS: dict[str, dict[str, Any]] = {
    "TRL, texts": {"prompt": "q", "chosen": "good", "rejected": "bad"},
    "TRL, turns": {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
    "TRL, conversations": {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "conversations beside their prompt": {"prompt": "q", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "the good one twice": {"messages": CHAT, "chosen": CHAT, "rejected": [USER, BAD]},
    "LLaMA-Factory": {
        "conversations": [{"from": "human", "value": "q"}],
        "chosen": {"from": "gpt", "value": "good"},
        "rejected": {"from": "gpt", "value": "bad"},
    },
    "ms-swift": {"messages": CHAT, "rejected_response": "bad"},
    "ms-swift, messages": {"messages": CHAT, "rejected_messages": [USER, BAD]},
    "KTO": {"messages": CHAT, "label": True},
    "KTO, LLaMA-Factory": {"messages": CHAT, "kto_tag": True},
    "KTO, TRL": {"prompt": [USER], "completion": [GOOD], "label": True},
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_refused_by_name_or_its_good_side_is_taken(form: str) -> None:
    with pytest.raises(Skip, match=r"preference_data: .*source\.take=chosen") as skip:
        parse_record(FORMS[form], ReadSettings())
    assert not skip.value.reason.is_policy  # exit code 3, not a run that lost everything by choice
    record = parse_record(FORMS[form], CHOSEN)
    assert record.messages == CHAT
    assert "bad" not in str(record)


def test_what_is_labelled_false_is_left_out_by_choice() -> None:
    """All six samples of a KTO set were packed, the three rejected answers, too."""
    with pytest.raises(Skip, match="not_chosen: label=False") as skip:
        parse_record({"messages": CHAT, "label": False}, CHOSEN)
    assert skip.value.reason.is_policy


def test_an_answer_without_its_prompt_is_no_sample() -> None:
    with pytest.raises(Skip, match="bad_message: the chosen answer has no prompt"):
        parse_record({"chosen": "\n\nHuman: q\n\nAssistant: good", "rejected": "x"}, CHOSEN)


@pytest.mark.parametrize("more", [{"label": "cat"}, {"label": 3}, {"label": None}, {"rejected": "x"}, {"chosen": True}])
def test_other_fields_of_those_names_are_fields(more: dict[str, Any]) -> None:
    assert parse_record({"messages": CHAT, **more}, ReadSettings()).fields == more


def test_alpaca_by_a_meta_file() -> None:
    columns = (("prompt", "instruction"), ("query", "input"))
    value = {"instruction": "q", "input": "", "chosen": "good", "rejected": "bad"}
    assert parse_line(value, Lines("", columns), CHOSEN).messages == CHAT
