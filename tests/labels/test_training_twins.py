"""What we train by a published template is what the `{% generation %}` blocks of TRL's training twin of it mark.

Another witness than our own rules: each twin is written by hand, and says itself where an answer begins and ends.
"""

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest

from energon_pack.samples.skip import Skip
from energon_pack.templates.settings import EmptyAnswerPolicy, TemplateDrops
from support.labels.conversations import conversations
from support.labels.folders import build_template, make_folder
from support.labels.prefix import _Today
from support.labels.truth import sample_of
from support.running import REAL, ROOT

pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="../shared/real is not here")

BASES = (
    *("cohere", "cohere2", "deepseek_r1_distill", "deepseekv3", "diffusion_gemma", "gemma", "gemma3", "glm4moe"),
    *("gptoss", "idefics3", "lfm2", "lfm2_v2", "llama3", "llava_next", "muse_glimmer", "nemotron_3_5_lightning"),
    *("nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra", "phi3", "phi3_5", "qwen2_5", "qwen2_5_vl", "qwen3"),
    *("qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8", "qwen3_instruct_2507", "qwen3_vl", "smolvlm"),
)
#: what only one side trains, on purpose: the twins, the text, and words of the row of conventions.csv that says why
MEANT = [
    ("qwen3_[568]|nemotron", r"twin: <think>(\s*</think>)?", "that the generation prompt writes"),
    ("deepseek|gptoss|muse", r"twin: <\|start\|>assistant|twin: (<\uff5cAssistant\uff5c>?|>)", "headers of roles"),
    ("deepseek", r"twin: <\uff5ctool\u2581outputs\u2581end\uff5c>", "before an answer of DeepSeek"),
    ("diffusion_gemma", r"ours: <\|tool_response>", "after a call of Gemma 4"),
    ("glm4moe", r"ours: assistant\|>", "two answers in a row"),  # the twin ends the first by <|user|>
]
#: why a conversation has no labels here
SKIPPED = (
    "leaves out t(ools?|urns of the role)|roles must alternate|Only user and assistant roles|System (role|message)"
    "|concatenate str"
)
#: forms of turns that tend to be trained wrong; the others only vary texts
FORMS = re.compile(
    r"text_(edges|newline_last|only_space|code)|asked_edges|system_|six|same|empty_|answer_|question_|ends_|late_"
    r"|control_|reasoning|thinking|think_|tool_(?!string_|result_)"
)


def differences(base: str, templates: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield for each conversation that both write its id, and each text that only one side trains but white space."""
    from transformers.utils.chat_template_utils import render_jinja_template

    # a twin trains empty answers, and writes texts beside calls that its base drops
    more = {"empty": EmptyAnswerPolicy.train, "template_drops": TemplateDrops.keep}
    ours = build_template(f"trl_{base}", folder, after_turn=True, final_end="auto", **more)
    variables = ours.spec.processor.tokens
    twin = (templates / f"{base}_training.jinja").read_text()
    for row in conversations():
        if row.get("images") or not FORMS.match(row["id"]):
            continue
        try:
            sample = sample_of({key: value for key, value in row.items() if key != "id"})
            rendered = ours.render(sample)
        except Skip as skip:
            if not re.search(SKIPPED, skip.detail):
                yield row["id"], f"skipped: {skip.detail}"
            continue
        arguments: dict[str, Any] = {"tools": sample.tools, "chat_template": twin, **variables}
        try:
            written: Any = render_jinja_template(
                [ours.messages(sample)], return_assistant_tokens_mask=True, **arguments
            )
        except Exception:  # a template is a program: some refuse keys whose value is None
            continue
        ([text], [blocks]) = written
        trained, theirs = (
            _inside(spans, len(whole)) for spans, whole in ((rendered.spans, rendered.text), (blocks, text))
        )
        yield row["id"], ""
        for texts in _only_on_one_side(rendered.text, trained, text, theirs):
            yield row["id"], texts


def _inside(spans: Any, length: int) -> list[bool]:
    inside = [False] * length
    for start, end in spans:
        inside[start:end] = [True] * (end - start)
    return inside


def _only_on_one_side(ours: str, trained: list[bool], twin: str, theirs: list[bool]) -> Iterator[str]:
    """Compare where both have the same text: twins write thoughts that their bases leave out of earlier turns."""
    same = (
        [(0, 0, len(ours))] if ours == twin else SequenceMatcher(None, ours, twin, autojunk=False).get_matching_blocks()
    )
    for start, other, length in same:
        sides = [
            " "
            if ours[start + i].isspace()
            else "=ot"[(trained[start + i] != theirs[other + i]) * (1 + theirs[other + i])]
            for i in range(length)
        ]
        for match in re.finditer("[o ]*o|[t ]*t", "".join(sides)):
            whose = "ours" if match[0].endswith("o") else "twin"
            yield f"{whose}: {ours[start + match.start() : start + match.end()].strip()}"


@pytest.mark.slow
def test_each_training_template_is_compared(trl_templates: Path) -> None:
    assert {path.stem.removesuffix("_training") for path in trl_templates.glob("*_training.jinja")} == {*BASES}


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES)
def test_spans_by_a_base_template_are_those_of_its_training_twin(
    base: str, trl_templates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.utils import chat_template_utils

    monkeypatch.setattr(chat_template_utils, "datetime", _Today)
    compared, wrong = set[str](), set[str]()
    page = (ROOT / "docs" / "tables" / "conventions.csv").read_text()
    for name, texts in differences(base, trl_templates, make_folder(f"trl_{base}", trl_templates, tmp_path)):
        compared.add(name)
        meant = (re.match(of, base) and re.fullmatch(text, texts) and words in page for of, text, words in MEANT)
        if texts and not any(meant):
            wrong.add(f"{name} {texts}")
    assert wrong == set()
    assert len(compared) >= 20
