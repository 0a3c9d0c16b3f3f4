"""Classes whose layers carry a state are exact by their kernels, and are refused with a kernel that can't begin anew.

The kernels are references in plain torch: no GPU takes part. The other classes with a state are in
`test_the_table_says_what_is_found_today` and in docs/tables/classes.csv.
"""

import csv
import importlib
import importlib.metadata
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from energon_pack.training.batch import PackedBatch
from energon_pack.training.layout import IGNORE, RowForm, lay_out_neat_rows
from energon_pack.training.proof import try_masks, try_small_model
from energon_pack.training.small_model import build_small_model
from support.emulated_flash import emulated_flash
from support.running import ROOT, command
from support.tiny import TEXT, Values, text_members, tf
from support.with_kernels import with_kernels

_MAMBA: Values = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 2}
_LINEAR: Values = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8}
#: by type of model: the class, and its config; a convolution, Mamba 2 with a fused kernel in training, a delta net
HYBRIDS: dict[str, tuple[str, Values]] = {
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "falcon_h1": ("FalconH1", {**_MAMBA, "head_dim": 8}),
    "qwen3_5": (
        "Qwen3_5",
        {**_LINEAR, "linear_value_head_dim": 8, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"]},
    ),
}


def config_of(kind: str) -> Any:
    name, more = HYBRIDS[kind]
    make = getattr(tf, f"{name}TextConfig" if kind == "qwen3_5" else f"{name}Config")
    return make(**TEXT, **more)


@pytest.fixture(params=HYBRIDS)
def hybrid(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """A class with the reference kernels, and its config."""
    kind: str = request.param
    with with_kernels(kind) as (module,):
        yield getattr(module, f"{HYBRIDS[kind][0]}ForCausalLM"), config_of(kind)


def test_members_are_apart_by_the_kernels_alone(hybrid: tuple[Any, Any]) -> None:
    """docs/tables/classes.csv said that no class is exact by kernels, for none were there to ask."""
    make, config = hybrid
    tried = try_masks(make, config, text_members(64))
    assert [(proof.mask, proof.is_exact) for proof in tried] == [
        ("positions", False),
        ("dict4d", False),
        ("hybrid", True),
    ]


def test_a_step_on_a_pack_is_a_step_on_its_members(hybrid: tuple[Any, Any]) -> None:
    """Loss and gradients in train(), where the fused kernels run; alone each runs on transformers' own torch code."""
    make, config = hybrid
    torch.manual_seed(0)
    packed = make(config).train()
    plain = getattr(tf, make.__name__)(config).train()
    plain.load_state_dict(packed.state_dict())
    members = [member.tokens for member in text_members(64)]
    for member in members:
        member.labels[0] = IGNORE  # nothing before it is of the same member
    batch = PackedBatch(lay_out_neat_rows([members], RowForm()))
    batch.mask = "hybrid"
    loss = packed(**batch.model_inputs(packed)).loss
    loss.backward()
    total: Tensor = torch.zeros(())
    for member in members:
        logits = plain(input_ids=member.ids[None], use_cache=False).logits[0, :-1]
        total = total + cross_entropy(logits, member.labels[1:], reduction="sum")
    total = total / sum(len(member.ids) - 1 for member in members)
    total.backward()
    assert float((loss - total).detach().abs()) < 1e-5
    for one, other in zip(packed.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-3, atol=1e-4 * float(other.grad.abs().max()) + 1e-7)


def test_a_fused_kernel_that_knows_no_members_is_refused() -> None:
    """transformers drops what a kernel does not take: in eval() nothing showed, and a step was off by 7.5."""
    with with_kernels():
        kernels = importlib.import_module("mamba_ssm.ops.triton.ssd_combined")
        fused = kernels.mamba_split_conv1d_scan_combined

        def old(*args: Any, **settings: Any) -> Any:
            return fused(*args, **settings)

        taken = inspect.signature(fused).parameters
        vars(old)["__signature__"] = inspect.Signature([one for name, one in taken.items() if name != "seq_idx"])
        vars(kernels)[fused.__name__] = old
        with with_kernels("falcon_h1") as (module,):
            tried = try_masks(module.FalconH1ForCausalLM, config_of("falcon_h1"), text_members(64), "hybrid")
    assert not tried[-1].is_exact
    assert "in train(), packed and alone differ" in str(tried[-1])


@pytest.mark.parametrize("window", [None, 4096])
def test_flash_attention_keeps_members_apart_by_its_boundaries(window: int | None) -> None:
    """Emulated: with kernels of variable length, what tells members apart is cu_seq_lens alone."""
    config = tf.MistralConfig(**TEXT, sliding_window=window)
    with emulated_flash():
        assert try_masks(tf.MistralForCausalLM, config, text_members(64), "positions", "flash_attention_2")[-1].is_exact
        torch.manual_seed(0)
        models = [tf.MistralForCausalLM._from_config(config, attn_implementation="flash_attention_2")]
    models.append(tf.MistralForCausalLM._from_config(config, attn_implementation="sdpa"))
    models[1].load_state_dict(models[0].state_dict())
    ids = text_members(64)[0].tokens.ids[None]
    with torch.no_grad(), emulated_flash():
        one, other = (model.eval()(input_ids=ids).logits for model in models)
    assert torch.allclose(one, other, atol=1e-4)


def test_learned_positions_are_refused_in_bfloat16_too() -> None:
    """On an H100 the copy is in bfloat16: BlenderbotSmall, which ignores position_ids, passed with 3.1 % of 5 %."""
    sizes = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64, "vocab_size": 64}
    config = tf.BlenderbotSmallConfig(**sizes, max_position_embeddings=64, is_decoder=True, is_encoder_decoder=False)
    with emulated_flash():
        model = build_small_model(tf.BlenderbotSmallForCausalLM, config, "flash_attention_2").to(torch.bfloat16)
        finding = try_small_model(model, text_members(64))
    assert finding.is_conclusive
    assert 0.02 < max(finding.differences) < 0.2
    assert finding.mixes


TABLE = ROOT / "docs" / "tables" / "classes.csv"
#: of each verdict some: exact by positions, by masks and by kernels, refused of every kind, with images and without
SAMPLE = (
    "AfmoeForCausalLM",
    "BambaForCausalLM",
    "BertLMHeadModel",
    "BloomForCausalLM",
    "FalconForCausalLM",
    "GptOssForCausalLM",
    "GraniteMoeHybridForCausalLM",
    "JambaForCausalLM",
    "Lfm2ForCausalLM",
    "LlamaForCausalLM",
    "MiniMaxM3VLForCausalLM",
    "OPTForCausalLM",
    "Qwen3_5ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "MllamaForConditionalGeneration",
    "PaliGemmaForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
)


def verdicts(table: Path) -> dict[str, list[str]]:
    """What the table of classes says of media, eager and sdpa, by class."""
    with table.open(newline="") as file:
        return {row[0]: row[1:4] for row in csv.reader(file)}


@pytest.mark.slow
def test_the_table_says_what_is_found_today(tmp_path: Path) -> None:
    if f"transformers {importlib.metadata.version('transformers')} " not in (ROOT / "docs/models.md").read_text():
        pytest.skip("the table is of another transformers")
    new = tmp_path / "classes.csv"
    results = tmp_path / "classes.jsonl"
    run = (ROOT / "benchmarks" / "classes.py", "--attention", "eager", "sdpa", "--results", results, "--save", new)
    done = command(*run, "--only", *SAMPLE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found, said = verdicts(new), verdicts(TABLE)
    assert len(found) == 1 + len(SAMPLE)
    assert found == {name: said[name] for name in ("class", *SAMPLE)}
