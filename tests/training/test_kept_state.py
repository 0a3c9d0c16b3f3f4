"""A training has the same bits with the guard and without, whatever a model holds; what can't be put back is named."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from energon_pack.training.forward_inputs import MixingError
from energon_pack.training.guards import guard
from support.tiny import make_batch, make_members, make_model, tf

Hold = Callable[[Any], Callable[[], Any]]


def on_norm(model: Any, note: Callable[[Tensor], object]) -> None:
    def hook(_: Any, __: Any, out: Tensor) -> None:
        note(out.detach().mean((0, 1)))

    model.model.norm.register_forward_hook(hook)


def running(tensor: Tensor) -> Callable[[Tensor], object]:
    def note(mean: Tensor) -> None:
        with torch.no_grad():
            tensor.mul_(0.9).add_(0.1 * mean)

    return note


def a_buffer(model: Any) -> Callable[[], Any]:
    model.model.norm.mean = nn.Buffer(torch.zeros(32))
    on_norm(model, running(model.model.norm.mean))
    return lambda: model.model.norm.mean


def a_tensor_in_an_attribute(model: Any) -> Callable[[], Any]:
    model.model.norm.mean = torch.zeros(32)
    on_norm(model, running(model.model.norm.mean))
    return lambda: model.model.norm.mean


def a_frozen_codebook(model: Any) -> Callable[[], Any]:
    model.model.norm.codes = nn.Parameter(torch.zeros(32), requires_grad=False)
    on_norm(model, running(model.model.norm.codes))
    return lambda: model.model.norm.codes


def a_list_in_a_dict_in_a_list(model: Any) -> Callable[[], Any]:
    """As histories of amax in FP8 recipes."""
    model.model.norm.history = [{"amax": []}]
    on_norm(model, lambda mean: model.model.norm.history[0]["amax"].append(mean))
    return lambda: torch.stack([torch.zeros(32), *model.model.norm.history[0]["amax"]])


def an_object(model: Any) -> Callable[[], Any]:
    model.model.norm.state = SimpleNamespace(calls=0, mean=torch.zeros(32))

    def note(mean: Tensor) -> None:
        model.model.norm.state.calls += 1
        model.model.norm.state.mean = model.model.norm.state.mean + mean

    on_norm(model, note)
    return lambda: (model.model.norm.state.calls, model.model.norm.state.mean)


def counters_of_hooks(model: Any) -> Callable[[], Any]:
    calls, number = [0], 0

    def note(_: Tensor) -> None:
        nonlocal number
        number += 1
        calls[0] += 1

    on_norm(model, note)
    return lambda: (number, calls[0])


def the_counter_of_a_parameters_hook(model: Any) -> Callable[[], Any]:
    calls: list[Tensor] = []
    model.lm_head.weight.register_hook(lambda grad: calls.append(grad.mean()))
    return lambda: torch.stack(calls)


def a_generator_of_its_own(model: Any) -> Callable[[], Any]:
    model.model.norm.random = torch.Generator().manual_seed(3)
    on_norm(model, lambda mean: torch.rand(1, generator=model.model.norm.random))
    return lambda: torch.rand(4, generator=model.model.norm.random)


class Packed8Bit(nn.Module):
    """As bitsandbytes' layer: the first forward moves what its weight holds into a state."""

    def __init__(self, linear: Any):
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.weight = nn.Parameter((linear.weight.detach() / scale).round().to(torch.int8), requires_grad=False)
        weight: Any = self.weight
        weight.CB, weight.SCB = self.weight.data, scale
        self.state = SimpleNamespace(CB=None, SCB=None)

    def forward(self, x: Tensor) -> Tensor:
        weight: Any = self.weight
        if weight.CB is not None:
            self.state.CB, self.state.SCB = weight.CB, weight.SCB
            weight.CB = weight.SCB = None
        out: Tensor = x @ (self.state.CB * self.state.SCB).T.to(x.dtype)
        return out


def weights_that_a_first_forward_moves(model: Any) -> Callable[[], Any]:
    for layer in model.model.layers:
        layer.mlp.up_proj = Packed8Bit(layer.mlp.up_proj)
    part = model.model.layers[0].mlp.up_proj
    return lambda: (part.weight.CB is None, part.state.CB)


class Repacked(nn.Module):
    """As GPTQ's and Marlin's layers: the first forward lays its codes out anew, in other memory."""

    def __init__(self, linear: Any):
        super().__init__()
        self.codes, self.is_ready = nn.Buffer(linear.weight.detach().clone()), False

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_ready:
            self.codes.data, self.is_ready = self.codes.data.T.contiguous(), True
        out: Tensor = x @ self.codes
        return out


def codes_that_a_first_forward_repacks(model: Any) -> Callable[[], Any]:
    for layer in model.model.layers:
        layer.mlp.up_proj = Repacked(layer.mlp.up_proj)
    return lambda: (model.model.layers[0].mlp.up_proj.codes, model.model.layers[0].mlp.up_proj.is_ready)


def hooks_that_a_first_forward_puts_in(model: Any) -> Callable[[], Any]:
    """As transformers' recorder of hidden states, which LLaVA asks for: in twice, it gave another layer, or none."""
    norm = model.model.norm

    def enter(part: Any, _: Any) -> None:
        if not getattr(part, "is_ready", False):
            part.is_ready = True
            part.register_forward_hook(lambda *_: None)

    norm.register_forward_pre_hook(enter)
    return lambda: (norm.is_ready, len(norm._forward_hooks))


HOLDS: list[Hold] = [
    a_buffer, a_tensor_in_an_attribute, a_frozen_codebook, a_list_in_a_dict_in_a_list, an_object, counters_of_hooks,
    the_counter_of_a_parameters_hook, a_generator_of_its_own, weights_that_a_first_forward_moves,
    codes_that_a_first_forward_repacks, hooks_that_a_first_forward_puts_in,
]  # fmt: skip


@pytest.mark.parametrize("hold", HOLDS, ids=lambda hold: hold.__name__)
def test_a_step_leaves_what_a_model_holds_as_without_the_guard(hold: Hold) -> None:
    found: list[list[Any]] = []
    for first_batch in (True, False):
        model = make_model("llama")
        held = hold(model)
        inputs = make_batch("llama", [make_members("llama", model)] * 2).model_inputs()
        guarded = guard(model, first_batch=first_batch)
        loss = model(**inputs).loss
        loss.backward()
        assert len(guarded.trials) == first_batch
        values = held()
        found.append([loss.detach(), *(values if isinstance(values, tuple) else (values,))])
    for one, other in zip(*found, strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))


def test_what_is_too_large_to_put_back_is_refused_by_name() -> None:
    model = make_model("llama")
    model.model.norm.table = nn.Buffer(torch.zeros(2**20 + 64))
    on_norm(model, lambda mean: model.model.norm.table.add_(mean.sum()))
    guard(model)
    inputs = make_batch("llama", [make_members("llama", model)]).model_inputs()
    with pytest.raises(MixingError, match=r"writes into model\.norm\.table \(1,048,640 values\): too large to be put"):
        model(**inputs)


class Dropping(nn.Module):
    """An adapter that drops by a function; nothing in it has the name of a rate."""

    def __init__(self, part: Any, drop: Callable[[Tensor], Tensor]):
        super().__init__()
        self.part, self.keep, self.drop = part, 0.9, drop

    def forward(self, x: Tensor) -> Any:
        return self.part(self.drop(x))


def by_a_mask(x: Tensor) -> Tensor:
    return x * (torch.rand_like(x) > 0.1)


@pytest.mark.parametrize("drop", [lambda x: nn.functional.dropout(x, 0.1), lambda x: torch.dropout(x, 0.1, True)])
def test_dropout_is_silenced_by_what_it_does(drop: Callable[[Tensor], Tensor]) -> None:
    """Right adapters were refused: rates were looked for by the names of attributes."""
    model = make_model("llama")
    model.model.layers[0].mlp = Dropping(model.model.layers[0].mlp, drop)
    held = guard(model)
    model(**make_batch("llama", [make_members("llama", model)]).model_inputs())
    assert held.trials[0].is_conclusive
    model.model.layers[0].mlp.drop = by_a_mask
    guard(model)
    with pytest.raises(MixingError, match="draws random numbers in train"):
        model(**make_batch("llama", [make_members("llama", model)]).model_inputs())


# -------------------------------------------------------------------------------------------------- past the hooks


def test_layers_that_run_one_by_one_are_said_once_and_train_on(caplog: pytest.LogCaptureFixture) -> None:
    """As stages of a pipeline run them: no part with ids is called, so nothing was tried, and nothing said so."""
    model = make_model("llama")
    inputs = make_batch("llama", [make_members("llama", model)]).model_inputs()
    held = guard(model)
    hidden = model.model.embed_tokens(inputs["input_ids"])
    angles = model.model.rotary_emb(hidden, inputs["position_ids"])
    for _ in range(2):
        for layer in model.model.layers:
            hidden = layer(hidden, position_embeddings=angles)
    text = "LlamaDecoderLayer runs outside of a call of LlamaForCausalLM, so members are not tried"
    assert caplog.text.count(text) == 1
    assert "never tried" not in caplog.text
    held.remove()
    assert caplog.text.count("LlamaForCausalLM was guarded, and never tried") == 1


def test_a_forward_past_its_hooks_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """The inner model is tried, the head and the loss are not."""
    model = make_model("llama")
    inputs = make_batch("llama", [make_members("llama", model)]).model_inputs()
    held = guard(model)
    for _ in range(2):
        model.forward(**inputs)
    text = "LlamaModel runs outside of a call of LlamaForCausalLM, so the head and the loss of members are not tried"
    assert caplog.text.count(text) == 1
    assert len(held.trials) == 2
    caplog.clear()
    model(**inputs).loss.backward()
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_that_run_layers_in_the_backward_are_no_calls_outside(
    reentrant: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model("llama")
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    guard(model)
    inputs = make_batch("llama", [make_members("llama", model)]).model_inputs()
    model(**inputs).loss.backward()
    assert "outside" not in caplog.text


def test_a_copy_of_a_guarded_model_is_a_model_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """An EMA, a reference model: no forward of an instance is replaced, which a copy would run on the original."""
    import copy

    model = make_model("llama")
    inputs = make_batch("llama", [make_members("llama", model)]).model_inputs()
    held = guard(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.lm_head.weight.zero_()
        assert float(other(**inputs).logits.abs().max()) == 0
        assert float(model(**inputs).logits.abs().max()) > 0
    assert "forward" not in vars(model)
    assert "outside" not in caplog.text
    assert isinstance(torch.optim.swa_utils.AveragedModel(model).module, tf.LlamaForCausalLM)
    held.remove()
