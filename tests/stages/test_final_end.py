"""A whole run by a template that leaves the end of a last answer to the next turn, as GLM's does.

Without it, a run would pack with old lengths, or the audit would call the added token a difference.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from energon_pack.config import Expand, Format, ModelConfig, PackConfig
from energon_pack.dataset.manifest import MANIFEST
from energon_pack.dataset.packing_template import load_template
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.run.files import META_FOLDER
from energon_pack.templates.sample import Sample
from support.packed import packed, train
from support.processors import write_tokenizer

GLM = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TURNS = [{"role": role, "content": text} for role, text in (("user", "q"), ("assistant", "a")) * 2]


@pytest.fixture
def run(config: Callable[..., PackConfig], tmp_path: Path) -> PackConfig:
    (tmp_path / "tokenizer").mkdir()
    write_tokenizer(tmp_path / "tokenizer", "", ["<|user|>", "<|assistant|>"], {})
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.jsonl").write_text(json.dumps({"messages": TURNS}))
    model = ModelConfig("glm", "text", processor=str(tmp_path / "tokenizer"), chat_template=GLM)
    return config(tmp_path / "source" / "a.jsonl", source__format=Format.jsonl, model=model, measure__verify=1.0)


def test_the_token_is_packed_and_nothing_of_before_is_taken_for_it(run: PackConfig) -> None:
    before = replace(run, labels=replace(run.labels, final_end="none"))
    pack(before)
    with pytest.raises(PackError, match="exists"):
        pack(run)
    folder = packed(replace(run, output=replace(run.output, overwrite=True)))
    [sample] = train(folder)
    template = load_template(folder, run.model.processor)
    ids = template.encode(Sample(TURNS, []))
    assert template.tokenizer.decode(ids.ids, skip_special_tokens=False) == (
        "<|user|>q<|assistant|>a<|user|>q<|assistant|>a<|user|>"
    )
    assert sample.token_lens == [9] == [len(ids.ids)]
    assert sample.num_supervised == [4] == [ids.num_supervised]


def test_each_sample_of_an_expanded_conversation_ends_with_it(run: PackConfig) -> None:
    """All that the whole conversation trains is trained once: so is the token that ends its first answer."""
    run.labels.expand = Expand.turns
    [sample] = train(packed(run))
    assert sorted(sample.token_lens) == [5, 9]
    assert sample.num_supervised == [2, 2]


def test_a_dataset_of_before_is_read_as_it_was_packed(run: PackConfig) -> None:
    """Its manifest has no such setting: a sample of it that is tokenized again must have the length of before."""
    folder = packed(replace(run, labels=replace(run.labels, final_end="none")))
    file = folder / META_FOLDER / MANIFEST
    manifest = json.loads(file.read_bytes())
    del manifest["content"]["labels"]["final_end"]
    file.write_text(json.dumps(manifest))
    [sample] = train(folder)
    assert sample.token_lens == [8] == [len(load_template(folder, run.model.processor).encode(Sample(TURNS, [])).ids)]
