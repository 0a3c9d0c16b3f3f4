"""Assumptions that measuring makes about a chat template: the shortcut, reasoning, the date, the first token."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from energon_pack.config import PackConfig
from energon_pack.lengths.index import index_shards
from energon_pack.lengths.measure import measure_shards
from energon_pack.lengths.method import Method, build_method
from energon_pack.lengths.table_cache import chunks_of_pieces
from energon_pack.pack import pack
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.run.progress import Progress
from energon_pack.run.workshop import Workshop
from energon_pack.samples.settings import ReadSettings
from energon_pack.templates.chat.jinja import environment
from energon_pack.templates.full_processor import load_full_processor
from energon_pack.templates.models import read_model_config
from energon_pack.templates.processor import (
    build_uncached_template,
    lines_about_template,
    load_saved_template,
    prepare_template,
)
from energon_pack.templates.processor_inputs import full_processor_ids
from energon_pack.templates.sample import Sample
from energon_pack.templates.settings import TemplateDrops
from energon_pack.templates.template import Template
from support.finding import find_shards
from support.models import of_model
from support.packed import json_lines, packed
from support.processors import change
from support.running import need_torchvision
from support.samples import chat, write_tar

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LOOKING = CHATML.replace("{{ m.content }}", "{{ 'A NOTE ' if m.content == 'PING' }}{{ m.content }}")
PINGS = 400


@pytest.fixture
def pings(tmp_path: Path) -> Path:
    """Questions that the template looks for, each with another answer."""
    members = {f"{number:04d}.json": chat("PING", f"pong {number}") for number in range(PINGS)}
    write_tar(tmp_path / "source" / "a.tar", members)
    return tmp_path / "source"


def measure(source: Path, processor: Path, cache: Path) -> tuple[list[int], Method]:
    """Measure a source; return the lengths in order, and their method."""
    with LocalExecutor(1) as executor:
        workshop = Workshop(executor, Progress(quiet=True), cache)
        settings = of_model("text", processor, chat_template=LOOKING)
        method = build_method(settings, ReadSettings(), "auto", workshop)
        indexed = index_shards(find_shards(str(source)).shards, False, 0, workshop)
        measured = measure_shards(indexed, method, workshop)
        [chunk] = chunks_of_pieces(enumerate(item.pieces for item in measured))
        return chunk.read()["token_len"].to_pylist(), method


def truth(template: Template) -> list[int]:
    turns = [[{"role": "user", "content": "PING"}, {"role": "assistant", "content": f"pong {i}"}] for i in range(PINGS)]
    texts = [environment().from_string(LOOKING).render(messages=messages) for messages in turns]
    return [len(template.ids_of(text)) for text in texts]


def test_a_template_that_looks_at_texts_is_measured_right_at_once(
    pings: Path, demo: tuple[Path, Path], tmp_path: Path
) -> None:
    lens, method = measure(pings, demo[1], tmp_path / "cache")
    assert lens == truth(load_saved_template(method.template_folder))


def test_a_date_is_in_the_fingerprint_of_templates_that_write_it_alone(demo: tuple[Path, Path]) -> None:
    """Other sets would be packed anew for a setting that changes nothing of them."""

    def fingerprint(chat_template: str, date: str) -> str:
        return build_uncached_template(of_model("text", demo[1], chat_template=chat_template, date=date)).fingerprint

    dated = "{{ strftime_now('%d %b %Y') }}" + CHATML
    assert fingerprint(CHATML, "2024-07-26") == fingerprint(CHATML, "2025-01-01")
    assert fingerprint(dated, "2024-07-26") != fingerprint(dated, "2025-01-01")


THOUGHTFUL = CHATML.replace("{{ m.content }}", "{{ m.reasoning_content }}{{ m.content }}")


@pytest.mark.parametrize(("chat_template", "num_left_out"), [(CHATML, 2), (THOUGHTFUL, 0)])
def test_samples_whose_reasoning_a_template_leaves_out_are_counted(
    tmp_path: Path, config: Callable[..., PackConfig], chat_template: str, num_left_out: int, capsys: Any
) -> None:
    """On the screen and in report.json: a set of thoughts is else packed without any, and nothing says so."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    thinking = [[turns[0], {**turns[1], name: "why"}, *turns] for name in ("reasoning", "thinking")]
    nothing_else = [turns[0], {"role": "assistant", "content": None, "reasoning_content": "why"}, *turns]
    lines = [turns, *thinking, turns if num_left_out else nothing_else]
    members = {f"{i}.json": json.dumps({"messages": messages}).encode() for i, messages in enumerate(lines)}
    source = write_tar(tmp_path / "source" / "a.tar", members).parent
    dataset = packed(config(source, model__template="text", model__chat_template=chat_template))
    report = json.loads((dataset / "report.json").read_bytes())
    assert report["samples_packed"] == 4
    assert report["samples_with_reasoning_left_out"] == num_left_out
    noted = "noted: 2 samples with reasoning left out (labels.expand=turns trains"
    assert (noted in capsys.readouterr().out) == bool(num_left_out)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_thought_of_the_last_answer_that_a_template_drops_costs_the_sample_or_is_counted(
    tmp_path: Path, config: Callable[..., PackConfig], keeps: bool, capsys: Any
) -> None:
    """A model would be taught to answer at once, from data that were made for their thoughts."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    lines = [turns, [turns[0], {**turns[1], "reasoning": "I see a harbour."}]]
    members = {f"{i}.json": json.dumps({"messages": messages}).encode() for i, messages in enumerate(lines)}
    source = write_tar(tmp_path / "source" / "a.tar", members).parent
    run = config(source, model__template="text", model__chat_template=CHATML, max_skipped=1.0)
    run.labels.template_drops = TemplateDrops.keep if keeps else TemplateDrops.skip
    dataset = packed(run)
    assert ("noted: 1 sample with words left out" in capsys.readouterr().out) == keeps
    report = json.loads((dataset / "report.json").read_bytes())
    assert report["skipped_by_reason"] == ({} if keeps else {"template_drops": 1})
    if not keeps:
        (entry,) = json_lines(dataset / "skipped.jsonl")
        assert "the thought 'I see a harbour.' of message 1" in entry["detail"]


def test_the_run_says_which_date_a_template_writes(
    pings: Path, tmp_path: Path, config: Callable[..., PackConfig], capsys: Any
) -> None:
    date = "2025-08-05"
    for name, template in (("dated", "{{ strftime_now('%Y-%m-%d') }}" + CHATML), ("plain", CHATML)):
        given = config(pings, model__template="text", model__chat_template=template, model__date=date)
        given.output.name = name
        pack(given)
        said = "the chat template writes a date: 2025-08-05 (model.date)" in capsys.readouterr().out
        assert said == (template != CHATML)


def test_one_bos_is_what_gemma_3_is_given(real: Path, tmp_path: Path) -> None:
    """Two were, as a processor's plain call makes them; inference has the template's alone. `true` makes two."""
    processor = real / "processors" / "gemma3"
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    node = read_model_config("gemma3")
    for setting, num in ((node["add_special_tokens"], 1), (True, 2)):
        template = build_uncached_template(of_model("shapes", processor, add_special_tokens=setting))
        ids = template.encode(Sample(messages, [])).ids
        assert [template.token_id("<bos>") == token for token in ids].count(True) == num
        assert ids == full_processor_ids(
            load_full_processor(template.spec.processor), template, Sample(messages, []), {}
        )


def test_special_tokens_are_those_of_the_processors_own_call(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """16 YAMLs said false: 29 tokens for the 30 of `apply_chat_template(tokenize=True)`, and the audit was told so.

    A tokenizer alone adds none there.
    """
    need_torchvision()
    folder = tmp_path / "processor"
    shutil.copytree(demo[1], folder)
    tokenizer = build_uncached_template(of_model("qwen_vl", folder)).tokenizer
    first = "<|endoftext|>", tokenizer.token_to_id("<|endoftext|>")
    tokenizer.post_processor = TemplateProcessing(single=f"{first[0]} $A", special_tokens=[first])
    tokenizer.save(str(folder / "tokenizer.json"))
    change(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast", bos_token=first[0])
    sample = Sample([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], [])

    def num_tokens(family: str, adds: bool | None) -> tuple[int, list[str]]:
        saved = prepare_template(of_model(family, folder, add_special_tokens=adds), tmp_path / "cache")
        template = load_saved_template(saved)
        ids = template.encode(sample).ids
        assert ids == full_processor_ids(load_full_processor(template.spec.processor), template, sample, {})
        return len(ids), [line for line in lines_about_template(saved) if "add_special_tokens" in line]

    by_itself, _ = num_tokens("qwen_vl", None)
    assert num_tokens("qwen_vl", True) == (by_itself, [])
    without, (line,) = num_tokens("qwen_vl", False)
    assert without == by_itself - 1
    assert line.endswith("model.add_special_tokens=false leaves out tokens that its own call adds")
    for file in ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json"):
        (folder / file).unlink(missing_ok=True)
    assert num_tokens("text", None) == (without, [])


def test_what_a_template_would_read_of_a_record_is_named(demo: tuple[Path, Path], cache: Path, tmp_path: Path) -> None:
    """`tool_choice` counted as harmless whatever the template, and a slip in a sample's variable was passed over."""
    said = {**json.loads(chat("a", "b")), "tool_choice": "auto", "chat_template_kwargs": {"calm": 1, "clam": 1}}
    source = tmp_path / "source"
    write_tar(source / "a.tar", {"0.json": json.dumps(said).encode(), "1.json": chat("a", "b")})
    for template, expected in (
        (CHATML, ["chat_template_kwargs.calm", "chat_template_kwargs.clam"]),
        ("{{ tool_choice }}{{ calm }}" + CHATML, ["tool_choice", "chat_template_kwargs.clam"]),
    ):
        with LocalExecutor(1) as executor:
            workshop = Workshop(executor, Progress(quiet=True), cache)
            method = build_method(of_model("text", demo[1], chat_template=template), ReadSettings(), "auto", workshop)
            measured = measure_shards(
                index_shards(find_shards(str(source)).shards, False, 0, workshop), method, workshop
            )
            [chunk] = chunks_of_pieces(enumerate(item.pieces for item in measured))
            assert chunk.read()["unknown_keys"].to_pylist() == [expected, None]
