"""What is trained of turns with tool calls, thoughts and ends of their own, in the ways that published templates write.

Each template here is a small one of our own, written in the way that its name says.
"""

from typing import Any

import pytest

from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.chat.template import ChatTemplate
from energon_pack.templates.chat.turns import CLOSE, OPEN
from energon_pack.templates.settings import LabelsConfig, ToolCalls, TrainOn

SPECIAL = [
    *("<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|turn>", "<turn|>"),
    *("<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<begin>", "<say>", "</say>", "<end>"),
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
    '{% for call in m.tool_calls %}{{ "\n" }}<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_END = (  # GLM's: a turn ends where the next begins
    "{% for m in messages %}{% if m.role == 'tool' %}<|observation|>\n{{ m.content }}"
    "{% else %}<|{{ m.role }}|>\n{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls %}{{ '\n' }}<tool_call>{{ call.function.name }}"
    "{% for k, v in call.function.arguments.items() %}{{ '\n' }}<arg_key>{{ k }}</arg_key>\n"
    "<arg_value>{{ v }}</arg_value>"
    "{% endfor %}{{ '\n' }}</tool_call>{% endfor %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
PROMPT_CLOSES_THOUGHT = (  # Qwen3.5's without thoughts: the prompt holds an empty one, turns with calls hold none
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not m.tool_calls %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls %}<tool_call>\n<function={{ call.function.name }}>"
    "{% for k, v in call.function.arguments.items() %}{{ '\n' }}<parameter={{ k }}>{{ v }}</parameter>{% endfor %}"
    "{{ '\n' }}</function></tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
)
RESULT_IN_TURN = (  # Gemma 4's: the tool answers within the model's turn
    "{% for m in messages %}{% if m.role == 'tool' %}<|tool_response>{{ m.name }}: {{ m.content }}<tool_response|>"
    "{% else %}{% if m.role != 'assistant' or messages[loop.index0 - 1].role != 'tool' %}"
    "<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls %}<|tool_call>{{ call.function.name }}{{ call.function.arguments | tojson }}"
    "<tool_call|>{% endfor %}{% if not m.tool_calls %}<turn|>\n{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}<|turn>model\n{% endif %}"
)
TWO_ENDS = (  # Cohere's: what is said ends, and then the turn
    "{% for m in messages %}<begin>{{ m.role }}<say>{{ m.content }}</say><end>{% endfor %}"
    "{% if add_generation_prompt %}<begin>assistant<say>{% endif %}"
)
GENERATION = (  # LLaVA-OneVision's: its own blocks leave the end of the turn out
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = LabelsConfig()


def call(name: str = "tide", arguments: Any = None) -> dict[str, Any]:
    function = {"name": name, "arguments": {"at": "Rome"} if arguments is None else arguments}
    return {"id": "call_0001", "type": "function", "function": function}


def with_tool(*calls: dict[str, Any], content: str = "", **more: Any) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "How high?"},
        {"role": "assistant", "content": content, "tool_calls": [*calls] or [call()], **more},
        {"role": "tool", "content": "SECRET 20", "name": "tide"},
        {"role": "assistant", "content": "It is 20."},
    ]


def trained(source: str, messages: list[dict[str, Any]], labels: LabelsConfig = PLAIN) -> list[str]:
    template = ChatTemplate(source, {}, SPECIAL)
    marked, _, _ = template.render_marked(messages, None, labels)
    assert marked.replace(OPEN, "").replace(CLOSE, "") == template.render(messages, None)
    return [piece.partition(CLOSE)[0] for piece in marked.split(OPEN)[1:]]


def test_a_call_is_trained_whole_with_the_token_that_generation_stops_at() -> None:
    """Where turns have no end of their own: else no argument, and no stop, was ever trained."""
    called = "\n<tool_call>tide\n<arg_key>at</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>"
    assert trained(NO_END, with_tool()) == [f"{called}<|observation|>", "It is 20."]
    assert trained(NO_END, [*with_tool(), {"role": "user", "content": "x"}])[1] == "It is 20.<|user|>"


def test_a_call_begins_before_its_name() -> None:
    """Where the prompt's header is no beginning of such a turn: else it began within the name."""
    called = "<tool_call>\n<function=tide>\n<parameter=at>Rome</parameter>\n</function></tool_call><|im_end|>"
    assert trained(PROMPT_CLOSES_THOUGHT, with_tool()) == [called, "It is 20.<|im_end|>"]


def test_the_answer_of_a_tool_is_never_trained() -> None:
    """In the same turn as its call, too."""
    spans = trained(RESULT_IN_TURN, with_tool())
    assert spans[0].startswith('<|tool_call>tide{"at": "Rome"}<tool_call|>')
    assert spans[1] == "It is 20.<turn|>"
    assert not any("SECRET" in span for span in spans)


def test_answers_that_a_template_writes_as_one_turn_are_both_trained() -> None:
    """Gemma 4's: a second answer has no header, and the sample was left out as one that shows no beginning."""
    one_turn = (
        "{% for m in messages %}{% if not (loop.index0 and messages[loop.index0 - 1].role == m.role) %}"
        "<|turn>{{ m.role }}\n{% endif %}{{ m.content }}{{ '<turn|>\n' if loop.last or loop.nextitem.role != m.role }}"
        "{% endfor %}{% if add_generation_prompt %}<|turn>assistant\n{% endif %}"
    )
    messages = [
        {"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("assistant", "c"))
    ]
    assert "".join(trained(one_turn, messages)) == "bc<turn|>"


def test_a_blank_thought_is_another_form_of_a_turn() -> None:
    """gpt-oss writes it: whether it was trained hung on which answers its process had rendered before."""
    source = (
        "{% for m in messages %}<begin>{{ m.role }}"
        "{% if m.reasoning_content is defined %}<say>{{ m.reasoning_content }}</say><begin>assistant{% endif %}"
        "<say>{{ m.content }}<end>{% endfor %}"
        "{% if add_generation_prompt %}<begin>assistant{% endif %}"
    )
    question, template = {"role": "user", "content": "a"}, ChatTemplate(source, {}, SPECIAL)
    for thought, expected in (("hm", "<say>hm</say>"), (None, ""), ("", "<say></say>")):
        answer = {"role": "assistant", "content": "b", "reasoning_content": thought}
        marked, _, _ = template.render_marked([question, answer], [{"type": "function"}])
        answered = f"<begin>assistant{OPEN}{expected}{'<begin>assistant' if expected else ''}<say>b<end>{CLOSE}"
        assert marked.endswith(answered), thought


def test_two_ends_are_both_trained() -> None:
    assert trained(TWO_ENDS, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]) == [
        "b</say><end>"
    ]


@pytest.mark.parametrize("source", [CHATML, PROMPT_CLOSES_THOUGHT, RESULT_IN_TURN])
def test_a_token_that_an_argument_spells_ends_no_turn(source: str) -> None:
    """All that follows it would be untrained."""
    spans = trained(source, with_tool(call(arguments={"at": "Bodø <|im_end|><turn|>", "days": 3})))
    assert "3" in spans[0]
    assert spans[0].count("Bodø") == 1


def test_several_calls_a_text_and_a_thought_are_one_turn() -> None:
    messages = with_tool(call(), call("wind", {}), content="I look.", reasoning_content="Hm.")
    assert trained(CHATML, messages)[0] == (
        '<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{"name": "tide", "arguments": {"at": "Rome"}}\n</tool_call>'
        '\n<tool_call>\n{"name": "wind", "arguments": {}}\n</tool_call><|im_end|>'
    )


def test_arguments_as_text_are_written_as_an_object() -> None:
    """OpenAI's are JSON in a string: a template that writes objects would quote it once more."""
    as_text = with_tool(call(arguments='{"at": "Rome"}'))
    assert trained(CHATML, as_text) == trained(CHATML, with_tool())
    raw = CHATML.replace("{{ call.function.arguments | tojson }}", "{{ call.function.arguments }}")
    assert '"arguments": {"at": "Rome"}}' in trained(raw, as_text)[0]  # it writes text as it is
    assert '"arguments": "Rome"}' in trained(CHATML, with_tool(call(arguments="Rome")))[0]  # no object at all


def test_a_templates_own_blocks_say_what_is_trained() -> None:
    """With the token that ends the turn, which a model has to write whatever they say."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert trained(GENERATION, messages) == ["b<|im_end|>"]
    assert trained(GENERATION, [*messages, *messages]) == ["b<|im_end|>", "b<|im_end|>"]
    with_role = GENERATION.replace("{% generation %}", "{% generation %}!")
    assert trained(with_role, [*messages, {"role": "user", "content": "c"}]) == ["!b<|im_end|>"]
    assert trained(GENERATION, [*messages, messages[0], {**messages[1], "loss": False}]) == ["b<|im_end|>"]


def test_a_template_without_calls_costs_the_sample() -> None:
    source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    with pytest.raises(Skip) as skip:
        trained(source, with_tool())
    assert skip.value.reason is Reason.TEMPLATE_DROPS
    assert "leaves out the call 'tide' of message 1" in skip.value.detail


@pytest.mark.parametrize(
    ("message", "weights"),
    [
        ({}, [1.0]),
        ({"loss_scale": 0.5}, [0.5]),
        ({"weight": 2, "loss_scale": 0.5}, [1.0]),
        ({"loss_weight": 0.25}, [0.25]),
        ({"masked": False}, [1.0]),
        *(({key: True}, []) for key in ("masked", "mask")),
        *(({key: 0}, []) for key in ("loss", "weight", "loss_scale", "loss_weight", "train", "loss_mask", "trainable")),
    ],
)
def test_weights_of_turns_in_every_spelling(message: dict[str, Any], weights: list[float]) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", **message}]
    assert ChatTemplate(CHATML, {}, SPECIAL).render_marked(messages, None).weights == weights


def test_turns_of_others_are_trained_where_their_tracker_means_so() -> None:
    def asked(source: str = CHATML, **keys: Any) -> list[str]:
        question = {"role": "user", "content": "a", **keys}
        return trained(source, [question, {"role": "assistant", "content": "b"}])

    assert asked(loss=True) == asked(weight=1) == ["b<|im_end|>"]  # ms-swift's and OpenAI's are of answers
    assert asked(train=True) == asked(loss_weight=0.5) == ["a<|im_end|>", "b<|im_end|>"]
    assert asked(GENERATION, train=True) == ["a<|im_end|>", "b<|im_end|>"]  # whose blocks name answers alone


def test_an_answer_that_says_so_is_trained_beside_the_last() -> None:
    messages = [
        {"role": role, "content": text, **more}
        for role, text, more in (("user", "a", {}), ("assistant", "b", {"loss": True}), ("user", "c", {}))
    ] + [{"role": "assistant", "content": "d"}]
    assert trained(CHATML, messages, LabelsConfig(TrainOn.last)) == ["b<|im_end|>", "d<|im_end|>"]


@pytest.mark.parametrize("weight", [-1, "much", [1]])
def test_a_weight_that_is_none_costs_the_sample(weight: Any) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "loss_weight": weight}]
    with pytest.raises(Skip) as skip:
        trained(CHATML, messages)
    assert skip.value.reason is Reason.BAD_MESSAGE


def test_calls_that_are_not_trained() -> None:
    labels = LabelsConfig(tool_calls=ToolCalls.mask)
    assert trained(CHATML, with_tool(), labels) == ["<|im_end|>", "It is 20.<|im_end|>"]
    messages = with_tool(content="I look.", reasoning_content="Hm.")
    assert trained(CHATML, messages, labels)[:2] == ["<think>\nHm.\n</think>\n\nI look.", "<|im_end|>"]


def test_calls_that_are_not_trained_are_looked_for_once_a_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one's beginning was looked for by a rendering of all before it: 1,000 calls took a minute."""
    template = ChatTemplate(CHATML, {}, SPECIAL)
    rendered: list[int] = []
    render = template.renderer.render

    def counting(messages: Any, *args: Any, **more: Any) -> str:
        rendered.append(len(messages))
        return render(messages, *args, **more)

    monkeypatch.setattr(template._spans, "_render", counting)
    marked, weights, _ = template.render_marked(with_tool() * 40, None, LabelsConfig(tool_calls=ToolCalls.mask))
    assert len(rendered) < 10
    assert len(weights) == 80
    pieces = [piece.partition(CLOSE)[0] for piece in marked.split(OPEN)[1:]]
    assert pieces == ["<|im_end|>", "It is 20.<|im_end|>"] * 40


def test_a_turn_without_a_header_begins_with_its_space() -> None:
    """The question's turn ends with the prompt: a tokenizer that joins a space to a word would lose the first word."""
    source = (
        "{% for m in messages %}{{ '[INST] ' + m.content + ' [/INST]' if m.role == 'user'"
        " else ' ' + m.content + '<end>' }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert trained(source, [*messages, *messages]) == [" b<end>", " b<end>"]
