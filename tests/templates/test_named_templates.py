"""Several chat templates in a processor's folder: each sample is rendered with the one that transformers takes for it.

Only `default` was taken, also by the audit, which handed it to the full processor: 12 tokens were trained for 50.
"""

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from energon_pack.errors import PackError
from energon_pack.templates.full_processor import files_state, load_full_processor
from energon_pack.templates.processor import build_uncached_template, load_saved_template, prepare_template
from energon_pack.templates.processor_inputs import full_processor_ids
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template
from support.models import of_model
from support.running import command_here, need_torchvision

_TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}CALLS<|im_end|>\n"
_PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
DEFAULT = "{% for m in messages %}" + _TURN.replace("CALLS", "") + "{% endfor %}" + _PROMPT
#: as those of Command R and Hermes, it refuses a conversation without tools
FOR_TOOLS = (
    "Tools: {% for tool in tools %}{{ tool | tojson }}{% endfor %}{% for m in messages %}"
    + _TURN.replace("CALLS", "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}{% endfor %}")
    + "{% endfor %}"
    + _PROMPT
)
#: it writes calls, too, so that nothing was refused
WITH_CALLS = DEFAULT.replace("{{ m.content }}", "{{ m.content or (m.tool_calls[0].function | tojson) }}")
TOOL = {"type": "function", "function": {"name": "tide", "description": "When it is high", "parameters": {}}}
CALL = {"type": "function", "function": {"name": "tide", "arguments": {"harbour": "Hull"}}}
ASKED = {"role": "user", "content": "When?"}
SAMPLES = [
    Sample([ASKED, {"role": "assistant", "content": "At six."}], [], [TOOL]),
    Sample([ASKED, {"role": "assistant", "content": "", "tool_calls": [CALL]}], [], [TOOL]),
    Sample([ASKED, {"role": "assistant", "content": "At six."}], []),
]
Make = Callable[..., Path]


@pytest.fixture
def folder_of(demo: tuple[Path, Path], tmp_path: Path) -> Make:
    """Make a folder whose templates stand in files, or in a list of tokenizer_config.json."""

    def make(default: str, in_files: bool, only_tokenizer: bool = True) -> Path:
        folder = tmp_path / f"processor{len(list(tmp_path.iterdir()))}"
        shutil.copytree(demo[1], folder)
        for file in folder.glob("*processor_config.json") if only_tokenizer else ():
            file.unlink()
        (folder / "chat_template.jinja").unlink()
        if in_files:
            (folder / "chat_template.jinja").write_text(default)
            (folder / "additional_chat_templates").mkdir()
            (folder / "additional_chat_templates" / "tool_use.jinja").write_text(FOR_TOOLS)
            return folder
        path, named = folder / "tokenizer_config.json", {"default": default, "tool_use": FOR_TOOLS}
        listed = [{"name": name, "template": template} for name, template in named.items()]
        path.write_text(json.dumps({**json.loads(path.read_bytes()), "chat_template": listed}))
        return folder

    return make


def by_itself(template: Template, sample: Sample) -> list[int]:
    need_torchvision()
    return full_processor_ids(load_full_processor(template.spec.processor), template, sample, {})


@pytest.mark.parametrize("default", [DEFAULT, WITH_CALLS])
@pytest.mark.parametrize("in_files", [False, True])
def test_a_sample_with_tools_gets_the_tokenizers_template_for_them(
    folder_of: Make, tmp_path: Path, default: str, in_files: bool
) -> None:
    folder = folder_of(default, in_files)
    template = load_saved_template(prepare_template(of_model("text", folder), tmp_path / "cache"))
    written = [template.render(sample) for sample in SAMPLES]
    assert ["Tools: " in each.text for each in written] == [True, True, False]
    assert not any(each.leaves_out_tools for each in written)
    ids = [template.encode(sample).ids for sample in SAMPLES]
    assert ids == [by_itself(template, sample) for sample in SAMPLES]
    text, (span,) = written[1].text, written[1].spans
    assert text[slice(*span)] == '<tool_call>{"name": "tide", "arguments": {"harbour": "Hull"}}<|im_end|>'


def test_a_processor_takes_its_default_for_tools_too(folder_of: Make) -> None:
    """transformers' `ProcessorMixin` does not look at tools, its tokenizers do: each is asked as it is."""
    asked = (
        "{% for p in m.content %}{{ p.text if p.type == 'text' else '<|vision_start|><|image_pad|><|vision_end|>' }}"
    )
    shown = DEFAULT.replace(
        "{{ m.content }}", "{% if m.content is string %}{{ m.content }}{% else %}" + asked + "{% endfor %}{% endif %}"
    )
    folder = folder_of(shown, in_files=True, only_tokenizer=False)
    template = build_uncached_template(of_model("qwen_vl", folder))
    assert template.encode(SAMPLES[0]).ids == by_itself(template, SAMPLES[0]) == template.encode(SAMPLES[2]).ids
    assert template.render(SAMPLES[0]).leaves_out_tools
    of_tokenizer = build_uncached_template(of_model("qwen_vl", folder_of(shown, in_files=False, only_tokenizer=False)))
    assert of_tokenizer.encode(SAMPLES[0]).ids == by_itself(of_tokenizer, SAMPLES[0])
    assert "Tools: " in of_tokenizer.render(SAMPLES[0]).text  # its processor has no template of its own


def test_a_tokenizer_that_stands_in_for_a_processor_is_told(folder_of: Make) -> None:
    """Without torchvision texts are compared with the tokenizer, which reads no chat_template.json."""
    folder = folder_of(DEFAULT, in_files=False, only_tokenizer=False)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "A chat.\n" + DEFAULT}))
    template = build_uncached_template(of_model("qwen_vl", folder))
    tokenizer = import_module("transformers").AutoTokenizer.from_pretrained(folder)
    for sample in SAMPLES[::2]:
        ids = template.encode(sample).ids
        assert ids == by_itself(template, sample) == full_processor_ids(tokenizer, template, sample, {})


def test_a_name_chooses_for_all_samples(folder_of: Make) -> None:
    """As in transformers; an unknown name would be rendered there as a template that writes that name."""
    folder = folder_of(DEFAULT, in_files=False)
    named = build_uncached_template(of_model("text", folder, chat_template="default"))
    assert named.render(SAMPLES[0]).leaves_out_tools
    assert named.encode(SAMPLES[2]).ids == by_itself(named, SAMPLES[2])
    with pytest.raises(
        PackError, match=r"model\.chat_template=rag: .* no template of that name; it has default, tool_use"
    ):
        build_uncached_template(of_model("text", folder, chat_template="rag"))


def test_both_templates_are_in_the_fingerprint(folder_of: Make, tmp_path: Path) -> None:
    folder = folder_of(DEFAULT, in_files=True)
    file = folder / "additional_chat_templates" / "tool_use.jinja"
    state, before = files_state(folder), prepare_template(of_model("text", folder), tmp_path / "cache")
    file.write_text(FOR_TOOLS.replace("Tools:", "Tool :"))
    after = prepare_template(of_model("text", folder), tmp_path / "cache")
    assert files_state(folder) != state
    assert (
        load_saved_template(before).fingerprints["chat_template"]
        != load_saved_template(after).fingerprints["chat_template"]
    )
    file.write_text("{{ strftime_now('%Y') }}" + FOR_TOOLS)
    dated = build_uncached_template(of_model("text", folder, date="1999-12-31"))
    assert dated.render(SAMPLES[0]).text.startswith("1999")
    assert dated.encode(SAMPLES[0]).ids == by_itself(dated, SAMPLES[0])


def test_the_audit_asks_as_a_user_would(folder_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was given our template, and agreed with whatever that wrote."""
    need_torchvision()
    rows: list[dict[str, Any]] = [{"messages": one.messages, "tools": one.tools} for one in SAMPLES[::2]]
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = folder_of(WITH_CALLS, in_files=False)
    run = (
        "+model=text",
        f"model.processor={folder}",
        "source.path=source",
        "measure.verify=1",
        "executor.num_workers=1",
    )
    done = command_here("energon_pack", *run, "output.name=right", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "verified: 2 samples in the full processor, none differs" in done.stdout
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other user"))  # else the right template would be found there
    monkeypatch.setattr("energon_pack.templates.build._choose_chat_templates", lambda *_: (WITH_CALLS, ""))
    done = command_here("energon_pack", *run, "output.name=wrong", "cache_dir=other", cwd=tmp_path)
    assert done.returncode == 1
    assert "tokens in the full processor" in done.stderr
