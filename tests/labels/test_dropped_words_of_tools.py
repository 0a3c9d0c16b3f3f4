"""No published template loses a word of real tool conversations by our account that it does write."""

import json
from pathlib import Path
from typing import Any

import pytest

from energon_pack.samples.record import parse_record
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from support.labels.folders import build_template, make_folder
from support.running import REAL

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not REAL.is_dir(), reason="../shared/real is not here")]

#: templates that write tools, calls and all of their arguments
WRITING = (
    *("diffusion_gemma", "gemma4", "gemma4_v5", "glm4moe", "gptoss", "lfm2_v2", "llama3_1", "llama3_2"),
    *("muse_glimmer", "nemotron_3_nano", "nemotron_3_super", "qwen2_5", "qwen3", "qwen3_5_think"),
    *("qwen3_6", "qwen3_instruct_2507", "qwen3_vl"),
)
#: templates that write no calls
SILENT = ("deepseek_r1_distill", "phi3", "qwen2_5_vl")


def with_calls(row: dict[str, Any]) -> dict[str, Any] | None:
    """The conversation with its calls, which stand as JSON in its texts, as `tool_calls`; None: it has none."""
    messages, names = [dict(message) for message in row.get("messages", ())], set[str]()
    for number, message in enumerate(messages):
        if message["role"] == "assistant" and message["content"].startswith('{"name"'):
            function = json.loads(message["content"])
            call_id = f"call_{number:05d}"
            call = {"id": call_id, "type": "function", "function": function}
            message |= {"content": "", "tool_calls": [call]}
            if number + 1 < len(messages) and messages[number + 1]["role"] == "tool":
                messages[number + 1] |= {"tool_call_id": call_id, "name": function["name"]}
            names.add(function["name"])
    parameters = {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}}
    tools = [
        {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": parameters}}
        for name in sorted(names)
    ]
    return {"messages": messages, "tools": tools} if names else None


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    lines = (REAL / "jsonl" / "text_toolcall.jsonl").read_text().splitlines()
    return [row for row in map(with_calls, map(json.loads, lines)) if row][:120]


@pytest.mark.parametrize("base", [*WRITING, *SILENT])
def test_calls_that_a_template_writes_are_never_called_lost(
    base: str, rows: list[dict[str, Any]], trl_templates: Path, tmp_path: Path
) -> None:
    chat = build_template(f"trl_{base}", make_folder(f"trl_{base}", trl_templates, tmp_path))._tool_chat
    reasons = list[str]()
    for row in rows:
        record = parse_record(row, ReadSettings())
        try:
            chat.render_marked(chat.renderer.in_template_form(record.messages), record.tools)
        except Skip as skip:
            reasons.append(f"{skip}")
    assert len(rows) == 120
    if base in SILENT:
        assert len(reasons) == 120
        assert all("leaves out the call" in reason for reason in reasons)
    else:
        assert reasons == []
