"""Trainers wrap a model, before the guard or after it: the one within is shown, and is the one that is checked."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from energon_pack.training.forward_inputs import MixingError
from energon_pack.training.guards import guard
from energon_pack.training.model_wrappers import class_of, unwrapped
from support.running import ROOT, command
from support.tiny import make_batch, make_members, make_model, tf


class Adapted(nn.Module):
    """As PEFT's models: what is not its own is looked up in the model within, and `forward` is called past hooks."""

    def __init__(self, model: Any):
        super().__init__()
        self.base_model = model

    def get_base_model(self) -> Any:
        return self.base_model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_model"), name)

    def forward(self, **inputs: Any) -> Any:
        return self.base_model.forward(**inputs)


@pytest.fixture
def one_rank(tmp_path: Path) -> Any:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def compiled(model: Any) -> Any:
    """After a call: what is compiled knows of no hook that comes later."""
    wrapper: Any = torch.compile(model, backend="eager")
    wrapper(input_ids=torch.tensor([[9, 10, 11]]), use_cache=False)
    return wrapper


def sharded(model: Any) -> Any:
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


WRAPPERS: dict[str, Any] = {
    "DDP": nn.parallel.DistributedDataParallel,
    "FSDP2": sharded,
    "compile": compiled,
    "adapted": Adapted,
    "adapted in DDP": lambda model: nn.parallel.DistributedDataParallel(Adapted(model)),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.slow] if way == "compile" else []) for way in WRAPPERS]
)
def test_what_was_wrapped_before_is_unwrapped(way: str, one_rank: Any) -> None:
    """Each ended in an error of its own: no attribute 'config', no class FSDPQwen2_5_VL… in a copy."""
    inner = make_model("llama")
    members = make_members("llama", inner)
    batch = make_batch("llama", [members])
    batch.mask = "auto"
    wrapper = WRAPPERS[way](inner)
    held = guard(wrapper)
    inputs = batch.model_inputs(wrapper)
    wrapper(**inputs)
    assert held.proofs[-1].model == "LlamaForCausalLM"
    assert len(held.trials) == 1
    assert not held.trials[0].mixes
    with pytest.raises(MixingError, match="mask of ones"):
        wrapper(**{**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])})
    for layer in inner.model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda _, args, keywords: (args, {**keywords, "attention_mask": None}), with_kwargs=True
        )
    with pytest.raises(MixingError, match=r"LlamaForCausalLM mixes .* first shows in (model\.)?layers\.0\.self_attn"):
        wrapper(**inputs)
    held.remove()


def test_the_class_is_that_of_the_model(one_rank: Any) -> None:
    model = make_model("llama")
    assert unwrapped(sharded(model)) is model
    assert type(model).__name__ == "FSDPLlamaForCausalLM"
    assert class_of(model) is tf.LlamaForCausalLM
    assert unwrapped(nn.Linear(1, 1)).in_features == 1


def test_what_is_no_whole_model_is_refused_in_words() -> None:
    """A part makes no logits; a module of one's own may do anything before the model."""
    model = make_model("llama")
    with pytest.raises(MixingError, match=r"LlamaModel makes no logits.*guard the whole model that it is a part of"):
        guard(model.model)
    other = nn.Module()
    other.policy = model
    vars(other)["config"] = object()  # as Megatron's GPTModel has one of another kind: it was an AttributeError
    with pytest.raises(MixingError, match=r"a Module is no model of transformers.*: its policy is a LlamaForCausalLM"):
        guard(other)


@pytest.mark.slow
def test_ranks_of_sharded_parameters_try_together(tmp_path: Path) -> None:
    """Layers are gathered from all ranks: one that ran more forwards than the others would wait for ever."""
    script = ROOT / "tests/support/first_batch_ranks.py"
    result = command("-W", "ignore", script, cwd=tmp_path, PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}", OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    print(result.stdout)
    assert result.stdout.count("the same as without the trial, tried in step 2") == 14
    assert result.stdout.count("mixes the members of a batch: ") == 1
    assert result.stdout.count("mixes the members of a batch on another rank: ") == 1


@pytest.mark.slow
def test_stages_of_a_pipeline_train_as_without_the_guard(tmp_path: Path) -> None:
    """A stage that is a model is tried as one; one made of a model's parts is said to be untried. None waits."""
    script = ROOT / "tests/support/pipeline_ranks.py"
    result = command("-W", "ignore", script, cwd=tmp_path, PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}", OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    print(result.stdout, result.stderr)
    assert result.stdout.count("the same as without the guard, tried") == 2
    assert result.stdout.count("the same as without the guard, not tried") == 2
    assert result.stderr.count("LlamaForCausalLM was guarded, and never tried") == 2
    assert "LlamaDecoderLayer runs outside of a call of LlamaForCausalLM" in result.stderr


@pytest.mark.slow
def test_an_exported_model_is_refused_by_name() -> None:
    """A pipeline is cut by torch.export, which ended in an error about a decorator of this package."""
    model = make_model("llama")
    held = guard(model, first_batch=False)
    with pytest.raises(MixingError, match=r"torch\.export.*export a model that is not guarded"):
        torch.export.export(model, (torch.tensor([[9, 10, 11]]),), {"use_cache": False})
    held.remove()


def num_graphs(is_guarded: bool, **way: Any) -> int:
    """The graphs that two widths take, each three times."""
    torch._dynamo.reset()
    counter, model = CompileCounter(), make_model("llama")
    wrapper: Any = torch.compile(model, backend=counter, **way)
    members = make_members("llama", model)
    held = guard(wrapper) if is_guarded else None
    for width in (40, 40, 40, 48, 48, 48):
        wrapper(**make_batch("llama", [members, members[::-1]], width=width).model_inputs(model)).loss.backward()
    if held is not None:
        assert len(held.trials) >= 2
        held.remove()
    return counter.frame_count


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("dynamic", [None, False])
def test_compiled_code_has_no_more_graphs_with_the_guard(dynamic: bool | None) -> None:
    """A break in an inner part made two graphs for one, and a trial without labels a third: minutes of compiling."""
    assert num_graphs(False, dynamic=dynamic) == num_graphs(True, dynamic=dynamic) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled_code_with_a_fused_loss_is_tried_without_its_labels() -> None:
    """A trial runs as the training does, and such a loss leaves logits out: it ended in `no values of each token`."""

    class Fused(tf.LlamaForCausalLM):
        def forward(self, labels: Any = None, **inputs: Any) -> Any:
            """Return a loss without logits, as Liger's kernels do."""
            output = super().forward(labels=labels, **inputs)
            return output if labels is None else tf.modeling_outputs.CausalLMOutputWithPast(loss=output.loss)

    torch._dynamo.reset()
    model = make_model("llama")
    model.__class__ = Fused
    members = make_members("llama", model)
    held = guard(model)
    wrapper: Any = torch.compile(model, backend="eager")
    wrapper(**make_batch("llama", [members, members[::-1]]).model_inputs(model)).loss.backward()
    assert [one.change is not None and not one.mixes for one in held.trials] == [True]


@pytest.mark.slow
def test_a_compiled_part_that_is_called_by_itself_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Within a call of the model its hooks do nothing in compiled code; by itself they have to."""
    torch._dynamo.reset()
    model = make_model("llama")
    members = make_members("llama", model)
    inputs = make_batch("llama", [members]).model_inputs(model, labels=False)
    held = guard(model)
    model.model = torch.compile(model.model, backend="eager")
    model(**inputs)
    assert "outside of a call" not in caplog.text
    model.model(**inputs)
    assert [one.getMessage() for one in caplog.records if one.name.startswith("energon_pack")] == [
        "LlamaModel runs outside of a call of LlamaForCausalLM, so the head and the loss of members are not tried"
    ]
    assert len(held.trials) == 2


@pytest.mark.slow
def test_a_full_graph_is_refused_by_name() -> None:
    """It ended in an error about symbols that come of data, in a line of this package."""
    with pytest.raises(torch._dynamo.exc.Unsupported, match="guard reads the inputs of each call"):
        num_graphs(True, fullgraph=True)
