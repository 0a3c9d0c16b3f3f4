"""Trainers wrap a model, before the guard or after it: the one within is shown, and is the one that is checked."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from energon_pack.training.forward_inputs import MixingError
from energon_pack.training.guards import guard
from energon_pack.training.model_wrappers import class_of, unwrapped
from energon_pack.training.trial_inputs import MemberSpan, trial_inputs
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
    with pytest.raises(MixingError, match=r"a Module is no model of transformers.*: its policy is a LlamaForCausalLM"):
        guard(other)


@pytest.mark.slow
def test_ranks_of_sharded_parameters_try_together(tmp_path: Path) -> None:
    """Layers are gathered from all ranks: one that ran more forwards than the others would wait for ever."""
    script = ROOT / "tests/support/first_batch_ranks.py"
    result = command("-W", "ignore", script, cwd=tmp_path, PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}", OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    print(result.stdout)
    assert result.stdout.count("the same as without the trial, tried in step 2") == 6
    assert result.stdout.count("mixes the members of its first batch: ") == 1
    assert result.stdout.count("mixes the members of its first batch on another rank: ") == 1


# Facts about a batch by hand-computed cases: places of members, words that may change, and single members.

#: one row: a text of 4 tokens, a picture (9, 9) between two words, a text of 3, padding
IDS = torch.tensor([[11, 12, 13, 14, 15, 9, 9, 16, 17, 18, 2, 0, 0]])
POSITIONS = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 0, 1]])
CONFIG = SimpleNamespace(image_token_id=9, eos_token_id=[2], hidden_size=16)
MEDIA = frozenset(("pixel_values",))
MEDIA_NAMES = frozenset(("pixel_values", "image_grid_thw"))


def asked(**more: Any) -> Any:
    return trial_inputs({"input_ids": IDS, "position_ids": POSITIONS, "use_cache": False, **more}, CONFIG, MEDIA)


def test_members_and_words() -> None:
    """Padding is no member; special tokens and image tokens stay, or a model would look for other images."""
    found = asked(labels=IDS, logits_to_keep=1)
    assert found.members == [MemberSpan(0, 0, 4), MemberSpan(0, 4, 8), MemberSpan(0, 8, 11)]
    assert found.changed_members == [MemberSpan(0, 0, 4)]
    assert not {"labels", "logits_to_keep"} & found.unchanged.keys()
    other = found.other_words["input_ids"]
    assert (other != IDS).tolist() == [[True] * 4 + [False] * 9]
    assert set(other.flatten().tolist()) <= set(IDS.flatten().tolist())
    assert [one[1] for one in found.runs] == [[MemberSpan(0, 4, 8), MemberSpan(0, 8, 11)]] * 2
    turned = trial_inputs({"input_ids": IDS[:, 4:], "position_ids": POSITIONS[:, 4:]}, CONFIG, MEDIA)
    assert turned is not None
    assert (turned.other_words["input_ids"] != IDS[:, 4:]).tolist() == [[True, False, False, True] + [False] * 5]


def test_the_last_member_stays_where_there_are_others() -> None:
    """It may see all members before it: with it changed, nothing of that would show."""
    five = torch.arange(10, 20)[None], torch.tensor([[0, 1] * 5])
    found = trial_inputs({"input_ids": five[0], "position_ids": five[1]}, SimpleNamespace(), MEDIA)
    assert found is not None
    assert [one.start for one in found.changed_members] == [0, 4]


def test_pixels_of_the_first_and_the_last_picture() -> None:
    """They have as many patches as their grids give. What the last ones let through was never looked at."""
    patches, grid = torch.zeros(6, 2), torch.tensor([[1, 2, 2], [1, 1, 2]])
    given = {"input_ids": IDS, "position_ids": POSITIONS, "pixel_values": patches, "image_grid_thw": grid}
    found = trial_inputs(given, SimpleNamespace(), MEDIA_NAMES)
    assert found is not None
    first, last = (one["pixel_values"][:, 0].tolist() for one in found.other_media)
    assert first == [0.5] * 4 + [0.0] * 2
    assert last == [0.0] * 4 + [0.5] * 2


def test_features_of_sounds() -> None:
    """Without them the guard would say nothing of what a model hears."""
    features = torch.zeros(2, 3, 4)
    given = {"input_ids": IDS, "position_ids": POSITIONS, "input_features": features}
    found = trial_inputs(given, SimpleNamespace(), frozenset(("input_features",)))
    assert found is not None
    means = [one["input_features"].mean((1, 2)).tolist() for one in found.other_media]
    assert means == [[0.5, 0.0], [0.0, 0.5]]


def test_what_can_not_be_asked() -> None:
    assert trial_inputs({"input_ids": IDS[:, :4], "position_ids": POSITIONS[:, :4]}, CONFIG, MEDIA) is None
    assert trial_inputs({"input_ids": IDS[:, :4] * 0 + 9, "position_ids": POSITIONS[:, 2:6]}, CONFIG, MEDIA) is None
