"""Weights of turns and samples from a source to the batch: packed, looked at, verified, unpacked, by real tools."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from energon_pack.automodel import PackRow, PackRows, collate
from energon_pack.config import Flavor, PackConfig
from energon_pack.flavors import PackedCaptioningSample, PackedMultiMixQASample
from energon_pack.loading.task_encoder import PackedTaskEncoder, inputs_of
from energon_pack.samples.member import SampleOptions
from energon_pack.templates.settings import UntrainedSamplePolicy
from energon_pack.training.batch import PackedBatch
from energon_pack.training.encoded import BadPack, TrainingPack
from energon_pack.training.layout import IGNORE
from energon_pack.unpack import unpack
from energon_pack.verify import Options, verify
from support.damage import read_shard, write_shard
from support.marks import first_of, slow
from support.packed import packed, prepare, samples, train, typed
from support.running import command_here, need_torchvision
from support.samples import picture, write_tar
from support.weighted import turns

Make = Callable[..., PackConfig]
UNTRAINED = {"loss": False}
QWEN3 = {"enable_thinking": False, "words": ["a", {"deep": 1}]}


def said(question: str, answer: str, **fields: Any) -> dict[str, Any]:
    asked = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": asked, **fields}


#: by key; `turns` says how much each answer counts
VALUES: dict[str, dict[str, Any]] = {
    "half": {"messages": turns(0.5, 1.0, 0.0)},
    "quarter": said("Why?", "So.", weight=0.25, chat_template_kwargs=QWEN3),
    "plain": said("What?", "That.", id=7),
    "nothing": said("Who?", "Me.", weight=0),
    "seen": said("<image>What?", "A picture.", weight=2, note="kept"),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    parts = [
        (f"{key}.{name}", data)
        for key, value in VALUES.items()
        for name, data in (
            ("json", json.dumps(value).encode()),
            *([("0.png", picture(60, 40))] if key == "seen" else []),
        )
    ]
    return write_tar(tmp_path / "source" / "0.tar", parts).parent


def options_by_key(folder: Path) -> dict[str, SampleOptions]:
    """Return what training gets for each member through Energon."""
    found = {}
    for sample in train(folder):
        assert isinstance(sample, (PackedMultiMixQASample, PackedCaptioningSample))
        for member in inputs_of(sample):
            found[member.sample_id.rpartition("/")[2]] = member.options
    return found


@pytest.mark.parametrize("flavor", first_of(Flavor))
def test_what_a_sample_asks_for_comes_through_energon(config: Make, source: Path, flavor: Flavor) -> None:
    """`weight` and `chat_template_kwargs` are what they were in the source; lost, a sample trains as any other.

    packed_captioning has no place for keys of turns, and keeps those of samples in source_fields.
    """
    folder = pack_of(config, source, flavor)
    found = options_by_key(folder)
    left_out = {"half"} if flavor is Flavor.packed_captioning else set()
    assert found.keys() == VALUES.keys() - left_out
    assert found["quarter"] == SampleOptions(weight=0.25, chat_template_kwargs=QWEN3)
    assert found["plain"] == SampleOptions()
    assert (found["nothing"].weight, found["seen"].weight) == (0.0, 2.0)


def test_a_typed_source_has_its_options(source: Path) -> None:
    """Unpacked samples that are blended with packs are trained as they would be in one."""
    prepare(source, typed("MultiMixQASample", "multi_mix_qa"))
    found = {of.sample_id.rpartition("/")[2]: of.options for sample in train(source) for of in inputs_of(sample)}
    assert found["quarter"] == SampleOptions(weight=0.25, chat_template_kwargs=QWEN3)
    assert found["plain"] == SampleOptions()


def test_what_was_packed_is_counted_shown_verified_and_unpacked(
    config: Make, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One dataset with weights of every kind, by all that look at one."""
    folder = pack_of(config, source)
    printed = capsys.readouterr().out
    report = json.loads((folder / "report.json").read_text())
    trained = {of["key"]: of["num_supervised"] for of in rows_of(folder)}
    assert trained["nothing"] == 0
    assert report["samples_with_weights"] == 3
    assert "noted: 3 samples with weights" in printed
    weighted = trained["half"] / 2 + trained["quarter"] + trained["seen"]  # of half's two answers one counts 1
    assert report["weighted_share"] == pytest.approx(weighted / sum(trained.values()), abs=1e-5)
    page = (folder / "report.html").read_text()
    assert "3 of 5 samples (60%) have weights" in page
    assert '<span class="weight">×0.5</span></mark>' in page
    assert "the whole sample counts ×0.25" in page

    looked = [command_here("energon_pack.inspect", folder, str(n), "--tokens", "--full", cwd=tmp_path) for n in (0, 1)]
    text = "".join(result.stdout for result in looked)
    assert "«Say 0<|im_end|>»×0.5" in text
    assert "«Say 1<|im_end|>»\n" in text
    assert "assistant\nSay 2<|im_end|>" in text
    assert "the whole sample counts ×0.25" in text

    assert verify(folder, Options(source=[], num_workers=1)).first_defects(99) == []
    unpack(folder, tmp_path / "unpacked")
    found = samples(tmp_path / "unpacked")
    values = {name.rpartition("/")[2]: json.loads(parts["json"]) for name, parts in found.items()}
    assert {key: {name: value[name] for name in VALUES[key]} for key, value in values.items()} == VALUES


def test_parts_of_an_answer_are_packed_verified_and_unpacked(config: Make, tmp_path: Path) -> None:
    """A text and a call of one answer, each with its own `loss`, were two answers: the text taught an end before it."""
    call = json.dumps({"name": "tide", "args": {"at": "Bergen"}})
    asked = {"role": "user", "content": "Tide?"}
    result = [{"role": "tool_response", "content": "1.4"}, {"role": "assistant", "content": "Low."}]
    answers = {
        "text": [{"role": "assistant", "content": "I look."}, {"role": "tool_call", "content": call, **UNTRAINED}],
        "call": [{"role": "assistant", "content": "I look.", **UNTRAINED}, {"role": "tool_call", "content": call}],
    }
    records = [{"id": name, "messages": [asked, *turns, *result]} for name, turns in answers.items()]
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}<tool_call>"
        "{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    folder = packed(config(tmp_path / "source", model__template="text", model__chat_template=template))
    looked = command_here("energon_pack.inspect", folder, "0", "--tokens", "--full", cwd=tmp_path).stdout
    written = '<tool_call>{"name": "tide", "arguments": {"at": "Bergen"}}</tool_call><|im_end|>'
    assert f"assistant\n«I look.»{written}" in looked
    assert f"assistant\nI look.«{written}»" in looked
    assert verify(folder, Options(source=[], num_workers=1)).first_defects(99) == []
    unpack(folder, tmp_path / "unpacked")
    unpacked = [json.loads(parts["json"])["messages"][1] for parts in samples(tmp_path / "unpacked").values()]
    assert sorted([*answer["part_weights"]["content"][0][1].items()] for answer in unpacked) == [[], [("loss", False)]]
    assert sorted([*answer["part_weights"]["tool_calls"][0][1].items()] for answer in unpacked) == [
        [],
        [("loss", False)],
    ]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "pack_plan.parquet").to_pylist()
    return rows


@pytest.mark.parametrize("change", ["a turn", slow("the sample")])
def test_verify_sees_that_a_weight_was_taken_out(config: Make, source: Path, change: str) -> None:
    """Trained tokens have changed, and no length has."""
    folder = pack_of(config, source)

    def changed(value: dict[str, Any]) -> None:
        for member in value["messages"]:
            for message in member["messages"]:
                if change == "a turn" and message.get("loss_scale") == 0:
                    del message["loss_scale"]
            if change == "the sample" and member.get("weight") == 0:
                del member["weight"]

    for path in folder.glob("*.tar"):
        write_shard(
            path,
            [(name, _changed(data, changed) if name.endswith(".json") else data) for name, data in read_shard(path)],
        )
    defects = verify(folder, Options(source=[], num_workers=1)).defects["source text"]
    assert {of.where.rpartition("/")[2] for of in defects} == {{"a turn": "half", "the sample": "nothing"}[change]}


def _changed(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    value = json.loads(data)
    change(value)
    return json.dumps(value).encode()


@pytest.mark.parametrize("layout", [slow("neat"), "thd", "rows"])
def test_batches_have_the_weights(config: Make, demo: tuple[Path, Path], source: Path, layout: str) -> None:
    """Of Energon's loader: each trained token counts what its turn and sample say, and `num_trained` those above 0."""
    need_torchvision()
    folder = pack_of(config, source)
    encoder = PackedTaskEncoder(folder, str(demo[1]), layout=layout)
    counts: dict[float, int] = {}
    num_trained = 0
    for batch in batches_of(folder, encoder):
        weights = batch["loss_weight"] if layout == "neat" and "loss_weight" in batch else batch.get("loss_mask")
        if weights is None:  # a pack without any
            weights = (batch["labels"] != IGNORE).float()
        assert torch.equal(weights > 0, batch["labels"] != IGNORE)
        num_trained += batch["num_trained"]
        for weight in weights[weights > 0].tolist():
            counts[weight] = counts.get(weight, 0) + 1
    trained = {of["key"]: of["num_supervised"] for of in rows_of(folder)}
    assert num_trained == sum(trained.values())
    expected = {0.5: trained["half"] // 2, 1.0: trained["half"] // 2 + trained["plain"]}
    assert counts == expected | {0.25: trained["quarter"], 2.0: trained["seen"]}


def batches_of(folder: Path, encoder: PackedTaskEncoder) -> list[PackedBatch]:
    return [encoder.encoder.batch([pack]) for pack in packs_of(folder, encoder)]


def packs_of(folder: Path, encoder: PackedTaskEncoder) -> list[TrainingPack]:
    made = [encoder.encoder.encode(sample.__key__, inputs_of(sample)) for sample in train(folder)]
    return [pack for pack in made if pack is not None]


def test_stacks_without_a_place_for_weights_refuse_them(config: Make, demo: tuple[Path, Path], source: Path) -> None:
    """Megatron-LM's example and Automodel would train each token alike, and nothing would tell."""
    need_torchvision()
    folder = pack_of(config, source)
    encoder = PackedTaskEncoder(folder, str(demo[1]), layout="mlm")
    packs = packs_of(folder, encoder)
    refused = 0
    for pack in packs:
        if any(member.tokens.is_weighted for member in pack.members):
            with pytest.raises(BadPack, match=r"0\.tar/\w+ in .* weight other than 1, and layout=mlm has no place"):
                encoder.encoder.batch([pack])
            with pytest.raises(BadPack, match="Automodel's loss has no place for it"):
                collate([PackRow(pack, PackRows(None))])  # type: ignore[arg-type]
            refused += 1
    assert refused


def pack_of(config: Make, source: Path, flavor: Flavor = Flavor.packed_multi_mix_qa) -> Path:
    """The source, packed with all of its samples in a pack or two, the one that trains nothing, too."""
    kept = {"labels__untrained": UntrainedSamplePolicy.keep}
    return packed(config(source, output__flavor=flavor, packing__max_token_len=512, **kept))
