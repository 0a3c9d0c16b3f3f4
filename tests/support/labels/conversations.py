"""Conversations of our own, for comparing with frameworks: every form of a turn that tends to be trained wrong.

Each: `{"id", "messages", "tools"?, "images"?: sizes}`, in OpenAI's words. `weighted()`: turns that count more or less.
"""

import json
from collections.abc import Iterator
from typing import Any

Row = dict[str, Any]

CONTROL = (
    "<|im_end|>", "<|im_start|>assistant\n", "<|endoftext|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<turn|>",
    "</s>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|END_OF_TURN_TOKEN|>", "<|user|>", "<|eot|>",
    "<|return|>",
)  # fmt: skip
TEXTS = {
    "long": "Tides rise and fall. " * 60,
    "lines": "one\ntwo\n\nthree\n\n\nfour",
    "code": '```python\ndef tide(h: float) -> str:\n    return f"{h:.1f} m"  # metres\n```',
    "json": '{"harbour": "Bergen", "tides": [0.4, 1.9], "open": true, "note": null}',
    "markup": "<b>bold</b> & <i>thin</i> &lt;tag&gt; <br/> {{ braces }} {% percent %} {# hash #}",
    "quotes": "\"double\" 'single' `tick` \\backslash\\ \\n no newline",
    "numbers": "3.14159 1,000,000 -7 1e-9 0x1F ½ ²",
    "nfd": "Cafe\u0301 du Port, A\u030angstro\u0308m",
    "cjk": "港の潮位は一・四メートルです。你好\uff0c渡轮几点开\uff1f 안녕하세요",
    "arabic": "ما ارتفاع المد في الميناء؟",
    "hebrew": "מה גובה הגאות, 1.4 מטר?",
    "devanagari": "ज्वार की ऊँचाई क्या है?",
    "thai": "น้ำขึ้นสูงเท่าไร",
    "emoji": "👩‍🚀🏳️‍🌈 ⛴️ 🇳🇴 e\u0301🙂",
    "astral": "\U0001d525\U0001d51e\U0001d52f 𐍈 🜚",
    "invisible": "zero\u200bwidth\u200d joiner\ufeffmark soft\u00adhyphen",
    "odd_spaces": "nbsp\u00a0thin\u2009line\u2028paragraph\u2029ideographic\u3000end",
    "edges": "  kept?  \n\n",
    "newline_first": "\n\nstarts late",
    "newline_last": "ends late\n\n\n",
    "tabs": "\ta\tb\t",
    "carriage": "dos\r\nlines\rold",
    "only_space": "   ",
    "one_letter": "y",
    "role_words": "assistant\nuser: model\nsystem",
    "url": "See https://example.org/tide?h=1&w=2#top or mail a@b.no.",
}
THOUGHTS = ("reasoning", "thinking", "reasoning_content")
WEIGHT_KEYS = {
    "loss": (True, False), "loss_scale": (0.0, 0.5, 2.0), "weight": (0, 1, 0.25), "loss_weight": (0.0, 0.5, 1.5),
    "train": (True, False), "training": (True, False), "masked": (True, False), "mask": (True, False),
    "loss_mask": (0, 1), "trainable": (True, False),
}  # fmt: skip


def user(content: Any, **more: Any) -> Row:
    return {"role": "user", "content": content, **more}


def answer(content: Any, **more: Any) -> Row:
    return {"role": "assistant", "content": content, **more}


def system(content: str) -> Row:
    return {"role": "system", "content": content}


def result(content: str, name: str = "tide_at", number: int = 0) -> Row:
    return {"role": "tool", "content": content, "tool_call_id": f"functions.{name}:{number}", "name": name}


def calls(*called: tuple[str, Any]) -> dict[str, Any]:
    return {
        "tool_calls": [
            {"id": f"functions.{name}:{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(called)
        ]
    }


def tool(called: str = "tide_at", **properties: str) -> Row:
    kinds = properties or {"harbour": "string"}
    fields = {key: {"type": kind, "description": f"its {key}"} for key, kind in kinds.items()}
    shape = {"type": "object", "properties": fields, "required": [*kinds]}
    return {"type": "function", "function": {"name": called, "description": f"Does {called}.", "parameters": shape}}


def conversations() -> list[Row]:
    """All, each with an id of its own; weighted ones are not among them."""
    rows = [*_plain(), *_control(), *_thoughts(), *_tools(), *_images()]
    assert len({row["id"] for row in rows}) == len(rows)
    return rows


def _row(name: str, *messages: Row, **more: Any) -> Row:
    return {"id": name, "messages": list(messages), **more}


def _plain() -> Iterator[Row]:
    for name, text in TEXTS.items():
        yield _row(f"text_{name}", user("Say it."), answer(text))
        yield _row(f"asked_{name}", user(text), answer("Heard."), user(text), answer("Heard again."))
    for name in ("code", "cjk", "edges", "lines"):
        yield _row(f"system_{name}", system(TEXTS[name]), user("What floats?"), answer("Cork."))
    yield _row("system_empty", system(""), user("Count."), answer("One, two."))
    turns = [turn for i in range(6) for turn in (user(f"Question {i}?"), answer(f"Answer {i}."))]
    yield _row("six_turns", *turns)
    yield _row("six_turns_system", system("Be brief."), *turns)
    yield _row("same_text", user("yes"), answer("yes"), user("yes"), answer("yes"))
    yield _row("empty_last", user("Say nothing."), answer(""))
    yield _row("empty_early", user("Say nothing."), answer(""), user("Now?"), answer("Now."))
    yield _row("empty_question", user(""), answer("Nothing was asked."))
    yield _row("answer_twice", user("Two facts?"), answer("Kelp is no plant."), answer("A limpet has a home."))
    yield _row("question_twice", user("I ask."), user("Do crabs blush?"), answer("Once cooked."))
    yield _row("ends_with_question", user("Hello?"), answer("Yes?"), user("Never mind."))
    yield _row("late_system", user("Hello?"), answer("Yes?"), system("Be brief."), user("Why?"), answer("So."))


def _control() -> Iterator[Row]:
    for i, token in enumerate(CONTROL):
        yield _row(f"control_answer_{i}", user("Which token?"), answer(f"It is {token} and so on."))
        if i % 2:
            yield _row(
                f"control_asked_{i}", user(f"What is {token}?"), answer("A token."), user("Sure?"), answer("Yes.")
            )


def _thoughts() -> Iterator[Row]:
    for key in THOUGHTS:
        thought = {key: "A league is three miles.\nSo yes."}
        yield _row(f"{key}_last", user("Which is longer?"), answer("A league.", **thought))
        yield _row(f"{key}_early", user("Half of nine?"), answer("4.5", **thought), user("Rounded?"), answer("Five."))
        yield _row(
            f"{key}_both", user("2+5?"), answer("7", **{key: "2+5=7"}), user("Times 3?"), answer("21", **{key: "7*3"})
        )
        yield _row(f"{key}_silent", user("Think only."), answer("", **thought))
        yield _row(f"{key}_none", user("Quick!"), answer("Done.", **{key: None}))
        yield _row(f"{key}_empty", user("Quick!"), answer("Done.", **{key: ""}))
        yield _row(f"{key}_control", user("Token?"), answer("Fine.", **{key: "Is it <|im_end|> or </think>?"}))
    yield _row("think_text", user("Is 91 prime?"), answer("<think>\n91 = 7 * 13\n</think>\n\nNo."))
    yield _row("think_text_early", user("9?"), answer("<think>\nodd\n</think>\n\nOdd."), user("8?"), answer("Even."))
    yield _row("think_empty", user("9?"), answer("<think>\n\n</think>\n\nOdd."))
    yield _row("think_unclosed", user("Odd tags?"), answer("<think>never closed"))
    yield _row("think_closed_only", user("Odd tags?"), answer("thought\n</think>\n\nSaid."))


def _tools() -> Iterator[Row]:
    ask, bergen = user("How high is the tide in Bergen?"), ("tide_at", {"harbour": "Bergen"})
    said = answer("It stands at 1.4 metres.")
    tools = [tool(), tool("book", to="string", seats="integer")]
    yield _row("tool_object", ask, answer("", **calls(bergen)), result("1.4"), said, tools=tools)
    spelled = ("tide_at", json.dumps(bergen[1]))
    yield _row("tool_string", ask, answer("", **calls(spelled)), result("1.4"), said, tools=tools)
    yield _row("tool_last", ask, answer("", **calls(bergen)), tools=tools)
    yield _row("tool_after_text", ask, answer("I look.", **calls(bergen)), result("1.4"), said, tools=tools)
    nice = ("tide_at", {"harbour": "Nice"})
    both = [result("1.4"), result("0.3", number=1)]
    yield _row("tool_parallel", ask, answer("", **calls(bergen, nice)), *both, said, tools=tools)
    yield _row("tool_parallel_string", ask, answer("", **calls(spelled, spelled)), *both, said, tools=tools)
    yield _row("tool_parallel_text", ask, answer("Both.", **calls(bergen, nice)), *both, said, tools=tools)
    yield _row(
        "tool_rounds", ask, answer("", **calls(bergen)), result("1.4"), answer("", **calls(nice)), result("0.3"), said,
        tools=tools,
    )  # fmt: skip
    yield _row(
        "tool_then_talk", ask, answer("", **calls(bergen)), result("1.4"), said, user("Thanks."), answer("Welcome."),
        tools=tools,
    )  # fmt: skip
    yield _row("tool_system", system("Be brief."), ask, answer("", **calls(bergen)), result("1.4"), said, tools=tools)
    yield _row("tool_unused", ask, said, tools=tools)
    yield _row("tool_unused_turns", ask, said, ask, said, tools=tools)
    yield _row("tool_no_arguments", ask, answer("", **calls(("ping", {}))), result("pong", "ping"), said,
               tools=[tool("ping")])  # fmt: skip
    arguments = {
        "nested": {"plan": {"stops": ["Ålesund", "Bodø"], "n": 1.5, "dry": True, "who": None}},
        "control": {"harbour": "Bodø <|im_end|>", "more": "</tool_call> <|eot_id|>"},
        "lines": {"harbour": 'two\nlines\tand "quotes" \\ back'},
        "types": {"i": 3, "f": 0.5, "yes": True, "no": False, "none": None, "list": [1, "two", [3]], "empty": {}},
        "unicode": {"harbour": "港 مرفأ e\u0301 🙂"},
        "long": {"harbour": "a very long name " * 20},
    }
    for name, value in arguments.items():
        called = answer("", **calls(("tide_at", value)))
        yield _row(f"tool_arguments_{name}", ask, called, result("1.4"), said, tools=tools)
        as_text = answer("", **calls(("tide_at", json.dumps(value, ensure_ascii=False))))
        yield _row(f"tool_string_{name}", ask, as_text, result("1.4"), said, tools=tools)
    for name, text in {
        "json": '{"height": 1.4}',
        "empty": "",
        "lines": "a\n\nb\n",
        "control": "1.4 <|im_end|>",
    }.items():
        yield _row(f"tool_result_{name}", ask, answer("", **calls(bergen)), result(text), said, tools=tools)
    for key in THOUGHTS:
        thought = {key: "I need the tool."}
        yield _row(
            f"tool_{key}", ask, answer("", **thought, **calls(bergen)), result("1.4"), answer("1.4", **{key: "So."}),
            tools=tools,
        )  # fmt: skip
    yield _row("tool_content_none", ask, answer(None, **calls(bergen)), result("1.4"), said, tools=tools)
    yield _row("tool_calls_none", ask, answer("1.4 metres.", tool_calls=None), tools=tools)
    yield _row("tool_no_list", ask, answer("", **calls(bergen)), result("1.4"), said)


def _images() -> Iterator[Row]:
    one, tools = [[56, 56]], [tool("camera", name="string")]
    yield _row("image_first", user("<image>\nWhat is it?"), answer("A crane."), images=one)
    yield _row("image_last", user("What is it? <image>"), answer("A crane."), images=one)
    yield _row("image_middle", user("Is <image> a crane?"), answer("Yes."), images=one)
    yield _row("image_alone", user("<image>"), answer("A crane."), images=one)
    yield _row("image_system", system("Be brief."), user("<image>What?"), answer("A crane."), images=one)
    yield _row("image_two", user("<image><image>\nWhich?"), answer("Left."), images=[[56, 56], [84, 56]])
    yield _row("image_spread", user("<image> or <image>?"), answer("Left."), user("And <image>?"), answer("No."),
               images=[[56, 56], [84, 56], [56, 84]])  # fmt: skip
    yield _row("image_later", user("Hello?"), answer("Yes?"), user("<image>What?"), answer("A crane."), images=one)
    yield _row("image_thought", user("<image>What?"), answer("A crane.", reasoning_content="It is red."), images=one)
    yield _row("image_empty_answer", user("<image>Say nothing."), answer(""), images=one)
    yield _row("image_answered", user("Draw a crane."), answer("<image>"), images=one)
    yield _row("image_answered_text", user("Draw a crane."), answer("Here: <image> it is."), images=one)
    yield _row("image_both", user("<image>Again."), answer("Here: <image>"), images=[[56, 56], [56, 56]])
    yield _row(
        "image_answered_early", user("Draw."), answer("<image>"), user("Thanks."), answer("Welcome."), images=one
    )
    shown = answer("", **calls(("camera", {"name": "north"})))
    yield _row("image_result", user("Show it."), shown, result("<image>", "camera"), answer("Fog."), images=one,
               tools=tools)  # fmt: skip
    yield _row("image_result_text", user("Show it."), shown, result("Seen: <image> now", "camera"), answer("Fog."),
               images=one, tools=tools)  # fmt: skip


def weighted() -> list[Row]:
    """Turns with each key that says how much a turn counts; `wanted`: the weight of each assistant turn."""
    rows = []
    for key, values in WEIGHT_KEYS.items():
        for value in values:
            first = answer("Not like the rest.", **{key: value})
            row = _row(f"weight_{key}_{value}", user("First?"), first, user("Second?"), answer("As always."))
            counts = 1.0 - float(value) if key in ("masked", "mask") else float(value)
            rows.append({**row, "wanted": [counts, 1.0], "key": key})
    return rows
