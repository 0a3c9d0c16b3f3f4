"""Records that people really have, packed by the command line: what each says is what is trained, or it is named.

Everything here was packed with exit code 0 and trained as its owner did not mean, or was refused without a remedy.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from energon_pack.samples.media.medium import Media
from energon_pack.templates.processor import build_uncached_template
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template
from support.models import of_model
from support.packed import json_lines, samples
from support.running import REAL, command_here, run_here
from support.samples import picture, write_tar

QUESTION: dict[str, Any] = {"role": "user", "content": "Weather?"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "Rain."}
CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
TOOLS = [{"name": "weather", "description": "d", "parameters": {"type": "object"}}]
TRAINED_CALL = f"<tool_call>\n{CALL}\n</tool_call><|im_end|>"


def pack_lines(folder: Path, processor: Path, *lines: dict[str, Any], **settings: str) -> tuple[int, str]:
    """Pack JSONL into folder/out/packed; return the exit code and the output."""
    (folder / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    chosen = [f"{name.replace('__', '.')}={value}" for name, value in settings.items()]
    fixed = ["source=jsonl", "source.path=a.jsonl", "output.dir=out", "output.name=packed", "max_skipped=1"]
    code, out, error = run_here("+model=qwen2_5_vl", f"model.processor={processor}", *fixed, *chosen, cwd=folder)
    return code, out + error


def members(folder: Path) -> dict[str, dict[str, Any]]:
    """Line → member of a pack."""
    found: dict[str, dict[str, Any]] = {}
    for parts in samples(folder / "out" / "packed").values():
        value = json.loads(parts["json"])
        found |= dict(zip(value["_meta"]["sample_ids"], value["messages"], strict=True))
    return {name.removeprefix("a.jsonl:"): found[name] for name in sorted(found)}


def skipped(folder: Path) -> dict[str, str]:
    entries = json_lines(folder / "out" / "packed" / "skipped.jsonl")
    return {entry["sample_id"].removeprefix("a.jsonl:"): f"{entry['reason']}: {entry['detail']}" for entry in entries}


def trained(template: Template, member: dict[str, Any], num_images: int = 0) -> list[str]:
    """The texts that are trained of a member."""
    media = [Media("image", 40, 30)] * num_images
    rendered = template.render(Sample(member["messages"], media, member.get("tools")))
    return [rendered.text[start:end] for start, end in rendered.spans]


@pytest.mark.skipif(not REAL.exists(), reason="needs ../shared/real")
def test_calls_of_every_spelling_are_trained_as_calls(demo: tuple[Path, Path], tmp_path: Path) -> None:
    chat_template = REAL / "processors" / "qwen3_vl" / "chat_template.jinja"
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "3"}
    lines: list[dict[str, Any]] = [
        {
            "conversations": [
                {"from": "human", "value": "Weather?"},
                {"from": "function_call", "value": CALL},
                {"from": "observation", "value": "3"},
                {"from": "gpt", "value": "Rain."},
            ],
            "tools": json.dumps(TOOLS),
        },
        {
            "messages": [
                QUESTION,
                {"role": "tool_call", "content": CALL},
                {"role": "tool_response", "content": "3"},
                ANSWER,
            ],
            "tools": TOOLS,
        },
        {
            "messages": [
                QUESTION,
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result]},
                ANSWER,
            ],
            "tools": [{"name": "weather", "description": "d", "input_schema": {"type": "object"}}],
        },
        {"conversations": [{"from": "human", "value": "?"}, {"from": "function_call", "value": "I look."}]},
        {"messages": [{"role": "developer", "content": "Be brief."}, QUESTION, ANSWER]},
    ]
    code, said = pack_lines(tmp_path, demo[1], *lines, model__chat_template=str(chat_template))
    assert code == 0, said
    template = build_uncached_template(of_model("qwen_vl", demo[1], chat_template=chat_template.read_text()))
    packed = members(tmp_path)
    assert [*packed] == ["1", "2", "3"]
    texts = {template.render(Sample(member["messages"], [], member["tools"])).text for member in packed.values()}
    assert len(texts) == 1  # one thing, said in three ways
    for member in packed.values():
        assert trained(template, member) == [TRAINED_CALL, "Rain.<|im_end|>"]
    assert "bad_message: message 1 is no JSON of a tool call: I look." in skipped(tmp_path)["4"]
    assert "of message 0, of the role developer" in skipped(tmp_path)["5"]


def test_calls_where_a_template_has_no_tools(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """The demo's template is Qwen2.5-VL's: it writes neither."""
    turns = [QUESTION, {"role": "tool_call", "content": CALL}, {"role": "tool_response", "content": "3"}, ANSWER]
    line = {"messages": turns, "tools": TOOLS}
    code, _ = pack_lines(tmp_path, demo[1], line, {"messages": [QUESTION, ANSWER]})
    assert code == 0
    assert "source.tools=text" in skipped(tmp_path)["1"]
    code, said = pack_lines(tmp_path, demo[1], line, source__tools="text", output__overwrite="true")
    assert code == 0
    assert "noted: 1 sample with tools left out" in said
    template = build_uncached_template(of_model("qwen_vl", demo[1]))
    assert trained(template, members(tmp_path)["1"]) == [f"{CALL}<|im_end|>", "Rain.<|im_end|>"]


def test_preference_data(demo: tuple[Path, Path], tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"prompt": "Weather?", "chosen": "Rain.", "rejected": "Fish."},
        {"messages": [QUESTION, ANSWER], "label": True},
        {"messages": [QUESTION, {**ANSWER, "content": "Fish."}], "label": False},
    ]
    code, said = pack_lines(tmp_path, demo[1], *lines)
    assert code != 0
    assert "3 preference_data" in said
    code, said = pack_lines(tmp_path, demo[1], *lines, source__take="chosen", max_skipped="0")
    assert code == 0, said
    assert {name: member["messages"] for name, member in members(tmp_path).items()} == {
        "1": [QUESTION, ANSWER],
        "2": [QUESTION, ANSWER],
    }
    assert skipped(tmp_path) == {"3": "not_chosen: label=False (source.take=chosen)"}


def test_documents_are_packed_raw_cut_and_verified(demo: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(picture())
    lines: list[dict[str, Any]] = [
        {"text": "One two three."},
        {"messages": [{"role": "assistant", "content": "See <image> a cat."}], "images": ["cat.jpg"]},
        {"text": "four " * 400},
        {"messages": [QUESTION, ANSWER]},
    ]
    settings = {"packing__max_token_len": "128", "packing__overlong": "truncate_text", "measure__verify": "1"}
    settings |= {"packing__max_dropped_tokens": "1"}
    code, said = pack_lines(tmp_path, demo[1], *lines, **settings)
    assert code == 0, said
    template, packed = build_uncached_template(of_model("qwen_vl", demo[1])), members(tmp_path)
    assert trained(template, packed["1"]) == ["One two three.<|endoftext|>"]
    assert trained(template, packed["2"], 1) == ["See ", " a cat.<|endoftext|>"]  # no token of its image
    assert trained(template, packed["3#1of1"])[0].endswith("four<|endoftext|>")
    code, said = pack_lines(tmp_path, demo[1], *lines, source__sample_type="document", output__name="b")
    assert "1 no_messages" in said  # the chat


def test_unknown_keys_are_listed_on_the_screen_and_in_the_report(demo: tuple[Path, Path], tmp_path: Path) -> None:
    lines = [
        {"messages": [QUESTION, {**ANSWER, "mood": "calm"}], "id": 1, "shade": n, "source": "x"} for n in (None, 1, 2)
    ]
    lines.append({"messages": [QUESTION, {**ANSWER, "eot": False}], "shade": 3})
    code, said = pack_lines(tmp_path, demo[1], *lines)
    assert code == 0
    keys = "messages[].mood (3, as a.jsonl:1), shade (2, as a.jsonl:2)"
    assert f"unknown keys (samples, as in): {keys}; nothing reads them" in said, "a line a key were 25 of img2dataset"
    report = json.loads((tmp_path / "out" / "packed" / "report.json").read_text())
    assert report["unknown_keys"] == {
        "messages[].mood": {"samples": 3, "example": "a.jsonl:1"},
        "shade": {"samples": 2, "example": "a.jsonl:2"},
    }
    page = (tmp_path / "out" / "packed" / "report.html").read_text()
    assert "2 keys of records are not known: messages[].mood (3, as a.jsonl:1), shade (2, as a.jsonl:2)" in page
    assert "eot is False (torchtune: a turn without its end)" in skipped(tmp_path)["4"]


def test_images_that_lose_bits_are_named(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Images of 16 bits became white without a word, as in transformers."""
    Image.new("I;16", (90, 40)).save(tmp_path / "deep.png")
    Image.new("L", (90, 40)).save(tmp_path / "plain.png")
    asked = [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "A."}]
    lines = [{"messages": asked, "images": [name]} for name in ("plain.png", "deep.png")]
    code, said = pack_lines(tmp_path, demo[1], *lines)
    assert code == 0
    words = " ".join(said.split())
    assert "noted: 1 sample with images of mode I;16, as a.jsonl:2: values above 255 become white" in words
    report = tmp_path / "out" / "packed" / "report.json"
    assert json.loads(report.read_text())["image_modes"] == {"I;16": {"samples": 1, "example": "a.jsonl:2"}}
    assert "by mode: I;16 (1, as a.jsonl:2)" in report.with_suffix(".html").read_text()


TURNS = [{"speaker": "Alice", "utterance": "q"}, {"speaker": "Bob", "utterance": "a"}]
NAMES = [
    "source.columns.messages=dialog", "source.columns.role=speaker", "source.columns.content=utterance",
    "source.roles.user=Alice", "source.roles.assistant=Bob",
]  # fmt: skip


def packed(folder: Path, *arguments: str) -> list[list[str]]:
    """Roles and contents of each packed sample, after `verify --source` found them to be those of the source."""
    own = ["+model=qwen2_5_vl", "output.dir=out", "output.name=packed", "max_skipped=0.7", "executor.num_workers=1"]
    result = command_here("energon_pack", *own, *arguments, cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    there = folder / "out/packed"
    clean = command_here("energon_pack.verify", str(there), "--source", "--num-workers", "1", cwd=folder)
    assert (clean.returncode, clean.stderr) == (0, ""), clean.stdout
    packs = [json.loads(parts["json"]) for parts in samples(there).values()]
    members = [member["messages"] for pack in packs for member in pack["messages"]]
    return sorted([f"{m['role']}: {m['content']}" for m in messages] for messages in members)


def test_lines_of_several_dialects(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """The one file had a packed sample of six; documents and videos' paths were read otherwise by each stage."""
    records = [
        {"instruction": "i", "input": "j", "output": "a"},
        {"texts": [{"user": "q", "assistant": "a", "source": "s"}], "images": ["a.png"]},
        {"texts": ["t", None], "images": [None, "a.png"]},
        {"conversations": [{"from": "user", "value": "<img>a.png</img>"}, {"from": "assistant", "value": "a"}]},
        {"instruction": "i", "output": "a", "query": "q", "response": "r"},
        {"texts": ["t", None], "images": [None, "https://x.y/a.png"]},
    ]
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (data / "a.png").write_bytes(picture(56, 56, "PNG"))
    assert packed(tmp_path, "source=jsonl", "source.path=data", f"model.processor={demo[1]}") == [
        ["document: t<image>"],
        ["user: <image>", "assistant: a"],
        ["user: <image>q", "assistant: a"],
        ["user: i\nj", "assistant: a"],
    ]
    ledger = {entry["sample_id"]: entry["reason"] for entry in json_lines(tmp_path / "out/packed/skipped.jsonl")}
    assert ledger == {"a.jsonl:5": "bad_message", "a.jsonl:6": "unsupported_media"}


def test_tars_with_other_names(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """A setting that only one of the stages followed would be a damaged dataset."""
    members = {"1.json": json.dumps({"dialog": TURNS, "id": 1}).encode(), "1.png": picture(56, 56, "PNG")}
    write_tar(tmp_path / "data" / "a.tar", members)
    own = [*NAMES, "source.path=data", f"model.processor={demo[1]}"]
    assert packed(tmp_path, *own) == [["user: <image>q", "assistant: a"]]
    unpacked = command_here("energon_pack.unpack", "out/packed", "single", cwd=tmp_path)
    assert unpacked.returncode == 0, unpacked.stderr
    [parts] = samples(tmp_path / "single").values()
    assert [turn["role"] for turn in json.loads(parts["json"])["messages"]] == ["user", "assistant"]
