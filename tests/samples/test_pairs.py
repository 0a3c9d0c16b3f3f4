"""Preference data as pairs (`source.take=both`): each spelling has both sides, and what is no pair is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from energon_pack.errors import PackError
from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.cut import CHOSEN, REJECTED
from energon_pack.samples.pairs import cuts_of_pair
from energon_pack.samples.settings import Columns, PreferenceTake, ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.sources.mixture import read_entry_settings
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.sample import cut_sample, read_sample
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.source_file import IndexRow, rows_of
from energon_pack.sources.source_path import find_source
from support.samples import picture

USER, GOOD, BAD = ({"role": r, "content": t} for r, t in (("user", "q"), ("assistant", "good"), ("assistant", "bad")))
BOTH = ReadSettings(take=PreferenceTake.both)

FORMS: dict[str, dict[str, Any]] = {
    "TRL, texts": {"prompt": "q", "chosen": "good", "rejected": "bad"},
    "TRL, turns": {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
    "TRL, conversations": {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "conversations beside their prompt": {"prompt": "q", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "alpaca": {"instruction": "q", "input": "", "chosen": "good", "rejected": "bad"},
    "query": {"query": "q", "chosen": "good", "rejected": "bad"},
    "LLaMA-Factory": {
        "conversations": [{"from": "human", "value": "q"}],
        "chosen": {"from": "gpt", "value": "good"},
        "rejected": {"from": "gpt", "value": "bad"},
    },
    "the good one twice": {"conversations": [USER, GOOD], "chosen": "good", "rejected": "bad"},
    "ms-swift": {"messages": [USER, GOOD], "rejected_response": "bad"},
    "ms-swift, query": {"query": "q", "response": "good", "rejected_response": "bad"},
    "ms-swift, conversations": {
        "conversations": [{"from": "user", "value": "q"}, {"from": "assistant", "value": "good"}],
        "rejected_response": "bad",
    },
    "ms-swift, messages": {"messages": [USER, GOOD], "rejected_messages": [USER, BAD]},
    "OpenAI": {"input": {"messages": [USER]}, "preferred_output": [GOOD], "non_preferred_output": [BAD]},
}


def read(folder: Path, record: Any, settings: ReadSettings = BOTH, name: str = "a.jsonl") -> ReadSample:
    path = folder / name
    path.write_text(json.dumps(record))
    (shard,) = find_source(SourceConfig(), str(path)).shards
    (row,) = rows_of(shard.index(), IndexRow)
    with SourceReader() as reader:
        return read_sample(reader, shard, row, settings)


def sides(sample: ReadSample) -> list[list[Any]]:
    return [cut_sample(sample, cut).messages for cut in cuts_of_pair(sample.messages, sample.kinds)]


@pytest.mark.parametrize("form", FORMS)
def test_each_spelling_has_both_sides(tmp_path: Path, form: str) -> None:
    assert sides(read(tmp_path, FORMS[form])) == [[USER, GOOD], [USER, BAD]]


def test_the_chosen_side_of_openai_keeps_its_question(tmp_path: Path) -> None:
    """`source.messages_key=preferred_output reads its turns`: an answer without its question."""
    assert read(tmp_path, FORMS["OpenAI"], ReadSettings(take=PreferenceTake.chosen)).messages == [USER, GOOD]
    with pytest.raises(Skip, match=r"preference_data: .*source\.take=chosen"):
        read(tmp_path, FORMS["OpenAI"], ReadSettings())


def test_names_of_the_user_reach_both_sides(tmp_path: Path) -> None:
    record = {"talk": [{"who": "user", "content": "q"}], "chosen": {"who": "assistant", "content": "good"}}
    record["rejected"] = {"who": "assistant", "content": "bad"}
    settings = ReadSettings(take=PreferenceTake.both, columns=Columns(messages="talk", role="who"))
    assert sides(read(tmp_path, record, settings)) == [[USER, GOOD], [USER, BAD]]


def test_earlier_answers_are_shared_and_untrained(tmp_path: Path) -> None:
    first = [{"role": "user", "content": "p"}, {"role": "assistant", "content": "o", "loss": True}]
    chosen, rejected = sides(read(tmp_path, {"chosen": [*first, USER, GOOD], "rejected": [*first, USER, BAD]}))
    assert chosen[:3] == rejected[:3]
    assert chosen[1]["loss_weight"] == 0
    assert (chosen[3], rejected[3]) == (GOOD, BAD)


def test_images_stand_in_the_prompt_of_both(tmp_path: Path) -> None:
    """Their placeholders are put in on both sides, and the parts are the same files."""
    for name in ("0.png", "1.png"):
        (tmp_path / name).write_bytes(picture(28, 28, "PNG"))
    sample = read(tmp_path, {**FORMS["TRL, turns"], "images": ["0.png", "1.png"]})
    cuts = cuts_of_pair(sample.messages, sample.kinds)
    assert [(cut.part, cut.kinds, cut.trained_turn) for cut in cuts] == [(CHOSEN, "ii", 1), (REJECTED, "ii", 1)]
    assert [cut_sample(sample, cut).messages[0]["content"] for cut in cuts] == ["<image><image>q"] * 2
    assert [[part.name for part in cut_sample(sample, cut).parts] for cut in cuts] == [["0.png", "1.png"]] * 2


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"messages": [USER, GOOD]}, "no_pair: it has no two answers"),
        ({"messages": [USER, GOOD], "label": True}, "no_pair: it has no two answers"),
        ({"messages": [USER, GOOD], "label": False}, "no_pair: it has no two answers"),
        ({"caption": "good"}, "no_pair: it has no two answers"),
        ({"messages": [], "id": 2}, "no_pair: it has no two answers"),  # these ended the run
        ({"messages": [], "rejected_response": "bad"}, "no_pair: rejected_response is no text"),
        ({"input": {"messages": []}, "preferred_output": []}, "no_pair: it has no two answers"),
        ({"prompt": [], "completion": [], "label": True}, "no_pair: it has no two answers"),
        ({"prompt": "q", "chosen": "good", "rejected": []}, "no_pair: it has no two answers"),
        ({"prompt": "q", "chosen": [], "rejected": "bad"}, "no_pair: it has no two answers"),
        ({"input": {"messages": [USER]}, "preferred_output": [GOOD]}, "no_pair: it has no two answers"),
        ({"prompt": "q", "chosen": "good", "rejected": "good"}, "equal_answers: both sides have the same answer"),
        ({"prompt": "q", "chosen": "", "rejected": "bad"}, "empty_answer: the chosen answer says nothing"),
        ({"prompt": "q", "chosen": "good", "rejected": " "}, "empty_answer: the rejected answer says nothing"),
        (
            {"chosen": [USER, GOOD], "rejected": [{"role": "user", "content": "p"}, BAD]},
            "no_pair: its sides differ before their last answers: from turn 0 on",
        ),
        (
            {"chosen": [USER, GOOD], "rejected": [USER, GOOD, USER, BAD]},
            "no_pair: its sides differ before their last answers: 2 and 4 turns",
        ),
        ({"chosen": [USER, GOOD], "rejected": [USER, BAD, USER]}, "no_pair: the rejected side ends with a turn of"),
        ({**FORMS["ms-swift"], "rejected_images": ["b.png"]}, "no_pair: rejected_images"),
        ({**FORMS["ms-swift"], "rejected_response": ["bad"]}, "no_pair: rejected_response is no text"),
        ({**FORMS["TRL, texts"], "weight": 0.5}, "no_pair: the chosen side has a weight"),
        ({"prompt": [USER], "chosen": [{**GOOD, "weight": 0}], "rejected": [BAD]}, "no_pair: the chosen side has a we"),
    ],
)
def test_what_is_no_pair_is_named(tmp_path: Path, record: Any, why: str) -> None:
    """A sample that is none of these would be trained as a side of a pair, or be lost in silence."""
    with pytest.raises(Skip) as skip:
        read(tmp_path, record)
    assert str(skip.value).startswith(why)


def test_media_in_an_answer_are_named(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(picture(28, 28, "PNG"))
    shown = {"role": "assistant", "content": [{"type": "image"}, {"type": "text", "text": "good"}]}
    with pytest.raises(Skip, match=r"no_pair: an answer holds a medium|placeholder_mismatch"):
        read(tmp_path, {"prompt": [USER], "chosen": [shown], "rejected": [BAD], "images": ["0.png"]})


def test_a_mixture_has_pairs_in_all_its_entries_or_in_none() -> None:
    with pytest.raises(PackError, match="pairs share no dataset with other samples"):
        read_entry_settings("mixture: a", {"take": "both"}, ReadSettings())
    with pytest.raises(PackError, match="pairs share no dataset with other samples"):
        read_entry_settings("mixture: a", {"take": "chosen"}, BOTH)
