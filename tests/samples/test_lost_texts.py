"""A question and its answer keep what belongs to them (input, context, options, thought), or are left out by name."""

from typing import Any

import pytest

from energon_pack.samples.dialects.rewrite import with_cells_parsed_as_lists
from energon_pack.samples.keys import similar_key_hint
from energon_pack.samples.record import Record, parse_record
from energon_pack.samples.sample import REASONING_KEYS
from energon_pack.samples.settings import Columns, ReadSettings, SampleType
from energon_pack.samples.skip import Skip
from energon_pack.samples.turns import count_empty_answers
from energon_pack.sources.jsonl.dialects import RowSettings, parse_row

AUTO = ReadSettings()
TURNS = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
LONG = "First we subtract 1 from both sides, so x = 1."


def read(value: Any, settings: ReadSettings = AUTO) -> Record:
    return parse_row(value, RowSettings("/data"), settings)


def texts(value: Any, settings: ReadSettings = AUTO) -> list[str]:
    return [message["content"] for message in read(value, settings).messages]


def named(prompt: str, response: str) -> ReadSettings:
    return ReadSettings(columns=Columns(prompt=prompt, response=response))


def said_of(value: Any, settings: ReadSettings = AUTO) -> str:
    with pytest.raises(Skip) as skip:
        read(value, settings)
    assert str(skip.value).startswith("bad_message")
    return skip.value.detail


# ------------------------------------------------------------------------------------------- parts of a question


@pytest.mark.parametrize("part", ["input", "context"])
@pytest.mark.parametrize("answer", ["output", "response"])
def test_an_instruction_is_joined_with_its_input_or_context(part: str, answer: str) -> None:
    """Dolly, GPTeacher and LaMini were `no_messages`, and alpaca's `context` was dropped."""
    assert texts({"instruction": "When?", part: "In August.", answer: "August."}) == ["When?\nIn August.", "August."]
    assert texts({"instruction": "When?", part: "", answer: "August."}) == ["When?", "August."]
    both = {"instruction": "When?", "input": "In August.", "context": "In May.", answer: "August."}
    assert "input is 'In August.' and context 'In May.'" in said_of(both)
    assert texts(both | {"context": "In August."}) == ["When?\nIn August.", "August."]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            {"question": "How many?", "context": "CREATE TABLE head", "answer": "SELECT"},
            "context stands beside question, and nothing reads it: source.columns.prompt=question"
            " source.columns.response=answer trains without context; source.map can join",
        ),
        ({"question": "Who?", "context": "Bob.", "answers": ["Bob", "He"]}, "context stands beside question"),
        ({"question": "Who?", "context": "Bob.", "answers": {"text": ["Bob"]}}, "context stands beside question"),
        ({"question": "Is it?", "context": {"contexts": ["Bob."]}, "answer": "yes"}, "context stands beside question"),
        ({"question": "Who?", "context": "Bob.", "response": "Bob"}, "context stands beside question"),
        ({"prompt": "Who?", "input": "Bob.", "response": "Bob"}, "input stands beside prompt"),
        ({"prompt": "Who?", "input": "Bob.", "completion": "Bob"}, "input stands beside prompt"),
        (
            {"query": "Who?", "input": "Bob.", "response": "Bob", "history": [["a", "b"]]},
            "nothing reads it: source.map",
        ),
        ({"questions": ["Who?", "When?"], "input": "Bob.", "answers": ["Bob", "May"]}, "input stands beside questions"),
        ({"instruction": "Answer.", "context": "Bob.", "answer": "Bob"}, "instruction stands beside context"),
    ],
)
def test_a_question_without_its_passage_is_left_out(value: dict[str, Any], said: str) -> None:
    """It was trained without its table or passage: an answer that nobody can know."""
    assert said in said_of(value)


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        ({"question": "Bob sings. Who sings?", "context": "Bob  sings.", "answer": "Bob"}, "Bob sings. Who sings?"),
        ({"question": "Who?", "context": "", "answer": "Bob"}, "Who?"),
        ({"question": "Who?", "context": {"contexts": []}, "answer": "Bob"}, "Who?"),
        ({"context": "Who?", "answers": ["Bob"]}, "Who?"),  # Energon's VQASample
        ({"prompt": [{"role": "user", "content": "Who?"}], "completion": [TURNS[1]], "context": "Bob."}, "Who?"),
        ({"messages": [{"role": "user", "content": "Who?"}, TURNS[1]], "context": ["Bob.", "Eve."]}, "Who?"),
    ],
)
def test_a_passage_that_is_said_or_stands_beside_turns_costs_nothing(value: dict[str, Any], asked: str) -> None:
    """Whole sets would be left out that are trained with all that they hold."""
    assert texts(value)[0] == asked


@pytest.mark.parametrize(
    ("value", "settings", "unread"),
    [
        ({"instruction": "q", "context": "Bob.", "response": "a"}, named("instruction", "response"), ["context"]),
        ({"instruction": "q", "input": "Bob.", "output": "a"}, named("instruction", "output"), ["input"]),
        ({"question": "q", "history": [["x", "y"]], "answer": "a"}, named("question", "answer"), ["history"]),
        ({"messages": TURNS, "conversations": [*TURNS, *TURNS, {"user": "x", "assistant": "y"}]},
         ReadSettings(messages_key="messages"), ["conversations"]),
        ({"instruction": "q", "input": "", "output": "a"}, named("instruction", "output"), []),
        ({"question": "q", "answer": "a", "text": "### q ### a"}, named("question", "answer"), []),
    ],
)  # fmt: skip
def test_what_settings_leave_out_is_listed(value: dict[str, Any], settings: ReadSettings, unread: list[str]) -> None:
    """Dolly's passages and alpaca's inputs were dropped without a word."""
    record = read(value, settings)
    assert record.messages == TURNS
    assert sorted(record.unknown) == unread


# ------------------------------------------------------------------------------------------------- longer answers


@pytest.mark.parametrize(
    ("asks", "answers"), [("question", "answer"), ("instruction", "output"), ("prompt", "response")]
)
def test_a_longer_answer_than_the_one_that_is_read_costs_the_sample(asks: str, answers: str) -> None:
    """LIMO's solutions were dropped without a word, and its numbers trained."""
    value = {asks: "Find x: x + 1 = 2", "solution": LONG, answers: "1"}
    said = said_of(value)
    assert f"solution is a longer answer than {answers}: source.columns.prompt={asks}" in said
    assert "source.columns.response=solution trains it" in said
    assert f"and source.columns.response={answers} the other" in said
    assert texts(value, named(asks, "solution")) == ["Find x: x + 1 = 2", LONG]
    assert texts(value, named(asks, answers)) == ["Find x: x + 1 = 2", "1"]


def test_columns_are_no_advice_where_they_would_lose_a_text() -> None:
    """Who followed the advice would train questions without their inputs, or answers without their thoughts."""
    value = {"instruction": "Find x", "input": "x + 1 = 2", "solution": LONG, "output": "1"}
    assert "source.columns" not in said_of(value)
    thought = {"question": "Find x", "reasoning": "Hm.", "solution": LONG, "answer": "1"}
    assert "source.columns" not in said_of(thought)
    renamed = ReadSettings(columns=Columns(prompt="problem"))  # its question is called `prompt` by then
    assert "source.columns" not in said_of({"problem": "Find x", "solution": LONG, "response": "1"}, renamed)


@pytest.mark.parametrize(
    "value",
    [
        {"question": "q", "answer": "a", "solution": "<answer> a </answer>", "ground_truth": "$\\boxed{a}$"},
        {"question": "q", "answer": "a", "solution": ""},
        {"question": "q", "answer": "a", "ground_truth": {"target": ["a", "an a"]}},
        {"question": "q", "answer": "a", "ground_truth": "x1=3, y1=4, x2=10, y2=22, label=a"},
        {"question": "q", "answer": "a", "solution": "a, by the second law"},
        {"question": "q", "answer": "a", "solution": "def add(one, two): return one + two"},  # another answer
        {"messages": TURNS, "solution": LONG},
        {"problem": "q", "solution": LONG, "answer": "a", "messages": TURNS},  # OpenR1
    ],
)
def test_a_solution_for_rewards_costs_nothing(value: dict[str, Any]) -> None:
    """Sets for reinforcement learning, whose solution is the answer once more, would be left out."""
    record = read(value)
    assert record.messages == TURNS
    assert not {"solution", "ground_truth"} & record.unknown.keys()
    reasoned = "<think>We subtract.</think> So it is 1."
    assert texts({"question": "q", "answer": reasoned, "solution": "1"}) == ["q", reasoned]


# -------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            {"question": "Which of these, b or d?", "options": ["c", "d", "b", "a"], "answer": "1"},
            "the answer '1' points at options, which nothing reads: source.map can write the options into the question",
        ),
        (
            {"question": "Which?", "choices": ["cat", "dog"], "answer": 0},
            "the answer '0' points at choices",
        ),  # ScienceQA
        ({"question": "Which?", "choices": ["cat", "dog"], "answer": 1}, "the answer '1' points at choices"),
        ({"question": "Which?", "choice_a": "cat", "choice_b": "dog", "answer": "A"}, "points at choice_a, choice_b,"),
        ({"question": "Which?", "A": "cat", "B": "dog", "C": "", "answer": "(B)"}, "the answer '(B)' points at A, B,"),
        ({"question": "Which?", "options": {"A": "cat", "B": "dog"}, "answer": "b."}, "points at options"),
        (
            {"question": "Which?", "choices": {"text": ["cat", "dog"], "label": ["A", "B"]}, "answers": ["B"]},
            "'B' points",
        ),
        ({"question": "Which?", "options": "['cat', 'dog']", "answer": "B"}, "points at options"),  # MMMU, as a text
        ({"question": "Which?", "options": "A. cat\nB. dog", "answer": "B"}, "points at options"),
        ({"question": "Which?", "options": '{"A": "cat", "B": "dog"}', "answer": "B"}, "points at options"),
        ({"question": "Which?", "options": [3, 4], "answer": "Answer: $\\boxed{B}$"}, "points at options"),
        (
            {"instruction": "Choose.", "input": "Which?", "options": ["A) cat", "B) dog"], "output": "A"},
            "points at options",
        ),
    ],
)
def test_an_answer_that_points_at_unread_options_costs_the_sample(value: dict[str, Any], said: str) -> None:
    """A letter or a number was trained as the answer to a question without its options: chance."""
    assert said in said_of(value)


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ({"question": "Which? A. cat\nB. dog", "options": ["cat", "dog"], "answer": "A"}, "A"),
        ({"question": "Which? (A) cat (B) dog", "options": ["A. cat", "B. dog"], "answer": "B"}, "B"),
        ({"question": "Which? (A) Cat; (B) Bob's dog.", "options": ["A) cat", "B) Bob's dog"], "answer": "B"}, "B"),
        ({"question": "哪个: A、猫 B、狗", "options": ["A\uff0e猫", "B\uff1a狗"], "answer": "B"}, "B"),
        ({"question": "Which letter?", "options": "['A', 'B']", "answer": "B"}, "B"),
        ({"question": "Which?", "options": {"mode": "fast", "language": "en"}, "answer": "B"}, "B"),
        ({"question": "Which?", "options": "{'temperature': 1}", "answer": "A"}, "A"),
        ({"question": "How many?", "options": ["4", "5"], "answer": "4"}, "4"),
        ({"question": "How many?", "options": "['4', '5']", "answer": "4"}, "4"),
        ({"question": "How many?", "options": [3, 4], "answer": "4"}, "4"),
        ({"question": "How many?", "options": ["$1$", "$2$"], "answer": "$2$"}, "$2$"),
        ({"question": "Which, in the picture?", "options": ["A", "B"], "answer": "B"}, "B"),
        ({"question": "How many?", "options": ["many", "few"], "answer": "7"}, "7"),
        ({"question": "Which?", "options": ["cat", "dog"], "answer": "dog"}, "dog"),
        ({"question": "Which?", "A": "a remark", "answer": "A"}, "A"),
    ],
)
def test_an_answer_that_says_itself_costs_nothing(value: dict[str, Any], answer: str) -> None:
    """Questions that hold their options, and answers that are options themselves, would be left out."""
    assert texts(value)[1] == answer


def test_options_are_looked_for_where_settings_name_the_question_too() -> None:
    """Letters without their options were trained as soon as a setting named the two columns."""
    value = {"Question": "Which?", "A": "cat", "B": "dog", "Answer": "A"}
    assert "points at A, B" in said_of(value, named("Question", "Answer"))
    rows = RowSettings("/data", (("prompt", "Question"), ("response", "Answer")))
    with pytest.raises(Skip, match="points at A, B"):
        parse_row(value, rows, AUTO)
    video = {"problem": "Which?", "options": ["A. cat", "B. dog"], "solution": "<answer>A</answer>"}
    assert "the answer '<answer>A</answer>' points at options" in said_of(video, named("problem", "solution"))


def test_options_are_no_misspelt_captions() -> None:
    """Who has options was asked whether captions were meant."""
    assert similar_key_hint("options") == ""
    assert similar_key_hint("captoins") == ": did you mean captions?"


# ------------------------------------------------------------------------------------------------------- thoughts


@pytest.mark.parametrize("key", REASONING_KEYS)
@pytest.mark.parametrize(
    "value",
    [
        {"prompt": "q", "response": "a"},
        {"prompt": "q", "completion": "a"},
        {"question": "q", "answer": "a"},
        {"question": "q", "answers": ["a", "b"]},
        {"instruction": "q", "input": "", "output": "a"},
    ],
)
def test_a_thought_beside_an_answer_is_its_thought(value: dict[str, Any], key: str) -> None:
    """A thought was dropped there; in a turn it is trained."""
    record = read(value | {key: "Hm."})
    assert record.messages == [TURNS[0], {**TURNS[1], key: "Hm."}]
    assert (record.unknown, key in record.fields) == ({}, False)


def test_thoughts_are_read_once_and_as_they_are_meant() -> None:
    """A thought would be trained twice, or a remark such as `on` as a thought."""
    value = {"prompt": "q", "response": "a", "history": [["p", "o"]], "reasoning": "Hm."}
    assert [message.get("reasoning") for message in read(value).messages] == [None, None, None, "Hm."]
    repeated = {"prompt": "q", "response": "<think>Hm.</think>a", "reasoning": "Hm."}
    assert read(repeated).messages[1] == {"role": "assistant", "content": "<think>Hm.</think>a"}
    assert "thinking is 'Oh.' and reasoning 'Hm.': two spellings" in said_of(value | {"thinking": "Oh."})
    for remark in ("on", "multi-hop", "causal reasoning", "spatial, temporal", True, 3, ["Hm.", "Oh."]):
        other = read(value | {"reasoning": remark})
        assert (other.messages[-1], other.unknown) == (TURNS[1], {"reasoning": [remark]})
    thinks = read({"prompt": "q", "response": "<think>Hm.</think>a", "reasoning": "It is rated well: it is short."})
    assert thinks.messages[1] == {"role": "assistant", "content": "<think>Hm.</think>a"}
    assert [*thinks.unknown] == ["reasoning"]
    assert texts({"question": "q", "answer": "1", "reasoning": LONG, "solution": LONG}) == ["q", "1"]
    unread = read({"q": "q", "a": "a", "reasoning": "Hm."}, named("q", "a"))
    assert (unread.messages, unread.unknown) == (TURNS, {"reasoning": ["Hm."]})
    assert read({"messages": TURNS, "reasoning": "on"}).messages == TURNS
    empty = read({"question": "q", "answer": "", "reasoning": "Hm."})
    assert not count_empty_answers(empty.messages).are_all


# ----------------------------------------------------------------------------------------------- the first of many


def test_the_first_of_several_captions_is_read() -> None:
    """Flickr30k and MSR-VTT were `no_messages`."""
    record = read({"caption": [" a dog ", "a hound"], "image": "a.jpg"})
    assert ([turn["content"] for turn in record.messages], record.is_caption) == (["", "a dog"], True)
    captions = ReadSettings(sample_type=SampleType.captioning, caption_prompt="Say!")
    assert texts({"caption": ["a dog", "a hound"], "question": "q", "answer": "a"}, captions) == ["Say!", "a dog"]
    for other in ({"question": "q", "answer": "a"}, {"messages": TURNS}):  # captions beside a conversation are remarks
        beside = read({**other, "caption": ["a dog", "a hound"]})
        assert (beside.messages, list(beside.unknown)) == (TURNS, ["caption"])
    for nothing in ([], [None], [{"text": "a dog"}]):
        with pytest.raises(Skip, match="no_messages"):
            read({"caption": nothing, "image": "a.jpg"})


def test_an_answer_may_be_an_object() -> None:
    """VQAv2 and VizWiz were "answers is not text"."""
    answers = [{"answer": "net", "answer_confidence": "maybe"}, {"answer": "netting", "answer_confidence": "yes"}]
    assert (
        texts({"question": "q", "answers": answers}) == texts([{"question": "q", "answers": answers}]) == ["q", "net"]
    )
    for several in (answers, answers[:1]):
        assert read({"question": "q", "answers": several}).fields == {"answers": several}
    assert "answers is not text" in said_of({"question": "q", "answers": [{"text": "net"}]})
    assert "source.map can make it one" in said_of({"question": "q", "answers": {"text": ["net"]}})


@pytest.mark.parametrize(
    ("key", "cell", "first"),
    [
        ("caption", "['a dog', 'a hound']", "a dog"),
        ("caption", "[Music]", "[Music]"),
        ("answers", "[{'answer': 'net', 'answer_id': 1}, {'answer': 'netting', 'answer_id': 2}]", "net"),
    ],
)
def test_a_cell_of_a_table_may_hold_such_a_list(key: str, cell: str, first: str) -> None:
    """The brackets of the list were trained, as a part of the caption or the answer."""
    row = {key: cell} if key == "caption" else {"question": "q", key: cell}
    assert parse_record(with_cells_parsed_as_lists(row, AUTO), AUTO).messages[1]["content"] == first
