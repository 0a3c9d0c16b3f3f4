"""What is shown of a class of models, and what is refused with a way out."""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch

from energon_pack.training import proof
from energon_pack.training.forward_inputs import MixingError
from energon_pack.training.guards import guard
from energon_pack.training.layout import IGNORE
from energon_pack.training.proof import part_kinds_of, replaced_forwards, try_masks, try_small_model
from energon_pack.training.shrunk_config import shrink_config
from energon_pack.training.small_model import SMALL_LEN, build_small_model
from support.tiny import TEXT, MadeEncoder, make_batch, make_members, make_model, text_members, tf

CLASSES = {
    # hands its positions on to its mask
    "Qwen2ForCausalLM": ["positions"],
    # does not, and takes masks
    "AfmoeForCausalLM": ["dict4d"],
    # neither; one attends to both sides, one carries a state
    "OPTForCausalLM": [],
    "MambaForCausalLM": [],
}


def config_of(name: str, **more: Any) -> Any:
    config = getattr(tf, name).config_class(vocab_size=64, **more)
    config.hidden_size = min(config.hidden_size, 64)
    return config


@pytest.mark.parametrize("name", CLASSES)
def test_what_keeps_members_apart_is_found(name: str) -> None:
    """All four passed a guard that looked at names of layer types, and two leak whatever is done."""
    tried = try_masks(getattr(tf, name), config_of(name), text_members(64))
    assert [one.mask for one in tried if one.is_exact] == CLASSES[name]


def test_a_window_shorter_than_members_is_tried() -> None:
    """Of 4,096 tokens, no probe of short members would see anything; a mask without it must not pass."""
    small = build_small_model(tf.MistralForCausalLM, tf.MistralConfig(**TEXT), members=text_members(64))
    assert small.config.sliding_window == SMALL_LEN
    assert try_masks(tf.MistralForCausalLM, tf.MistralConfig(**TEXT, sliding_window=4096), text_members(64))[
        -1
    ].is_exact


@pytest.mark.parametrize(("longest", "is_exact"), [(4096, True), (8192, False), (None, False)])
def test_angles_that_depend_on_the_longest_member(longest: int | None, is_exact: bool) -> None:
    """Phi-3's RoPE takes other factors for all of a batch where one position is beyond 4,096."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    config = tf.Phi3Config(
        **TEXT,
        rope_parameters={**rope, "original_max_position_embeddings": 4096},
        original_max_position_embeddings=4096,
    )
    config.max_position_embeddings = 131072
    tried = try_masks(tf.Phi3ForCausalLM, config, text_members(64), "positions", longest=longest)
    assert tried[-1].is_exact == is_exact, str(tried[-1])


@pytest.mark.parametrize(("longest", "is_exact"), [(8192, True), (16384, False), (None, False)])
def test_attention_whose_scale_grows_along_a_row(longest: int | None, is_exact: bool) -> None:
    """Llama 4's layers without RoPE count from the row's first token, from 8,192 on: no short probe reaches so far."""
    config = tf.Llama4TextConfig(
        **{**TEXT, "num_hidden_layers": 8}, head_dim=8, intermediate_size_mlp=48, num_local_experts=2
    )
    tried = try_masks(tf.Llama4ForCausalLM, config, text_members(64), longest=longest)
    assert tried[-1].is_exact == is_exact, str(tried[-1])
    config.floor_scale = 24  # the same in a model of its full size
    model = tf.Llama4ForCausalLM(config).eval()
    assert try_small_model(model, text_members(64)).mixes


def test_nothing_is_shown_by_a_model_that_answers_nothing() -> None:
    """No member moves another, and none moves itself."""

    class Silent(tf.Qwen2ForCausalLM):
        def forward(self, **inputs: Any) -> Any:
            out = super().forward(**inputs)
            out.logits = out.logits * 0
            return out

    assert not try_masks(Silent, tf.Qwen2Config(**TEXT), text_members(64))[0].is_exact


class Remembering(torch.nn.Module):
    """Hands on what it saw, across members."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.cumsum(1)


class Gated(Remembering):
    """Lets it through by a gate that begins closed, as those of Llama 3.2's cross-attention do."""

    def __init__(self, rest: torch.nn.Module) -> None:
        super().__init__()
        self.rest, self.gate = rest, torch.nn.Parameter(torch.zeros(1))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rest: torch.Tensor = self.rest(hidden)
        return rest + self.gate.tanh() * super().forward(hidden)


class Fused(Gated):
    """Does so while it is trained alone: five hybrids have a fused kernel there."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden) if self.training else self.rest(hidden)


@pytest.mark.parametrize(("part", "said"), [(Gated, "positions): packed"), (Fused, "in train(), packed")])
def test_what_does_nothing_in_a_new_model_in_eval_is_tried(part: type[Gated], said: str) -> None:
    """A gate of 0 hides what it lets through later: Mllama was said to be exact, and mixes images once it learns."""

    class With(tf.Qwen2ForCausalLM):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model.layers[0].mlp = part(self.model.layers[0].mlp)

    tried = try_masks(With, tf.Qwen2Config(**TEXT), text_members(64), "positions")
    assert not tried[-1].is_exact
    assert said in str(tried[-1])


def test_dropout_is_no_difference() -> None:
    """What is random in train() would look as if members were mixed."""
    config = tf.PhiConfig(**TEXT, attention_dropout=0.5, resid_pdrop=0.5, embd_pdrop=0.5)
    assert try_masks(tf.PhiForCausalLM, config, text_members(64), "positions")[-1].is_exact
    assert config.attention_dropout == 0.5


def test_rounding_that_grows_is_no_difference() -> None:
    """HrmText's recursion makes 1e-3 of it: float64 shows that there is nothing; a leak of that size stays one."""

    class Coarse(tf.Qwen2ForCausalLM):
        leak = 0.0

        def forward(self, **inputs: Any) -> Any:
            out = super().forward(**inputs)
            out.logits = out.logits + 2e4 - 2e4 + self.leak * out.logits.cumsum(1)
            return out

    class Leaky(Coarse):
        leak = 1e-4

    members = text_members(64)
    assert try_masks(Coarse, tf.Qwen2Config(**TEXT), members, "positions")[-1].is_exact
    assert not try_masks(Leaky, tf.Qwen2Config(**TEXT), members, "positions")[-1].is_exact


def test_a_small_model_is_of_float32_and_has_few_logits() -> None:
    """Configs say bfloat16, whose rounding looks as if members were mixed; all logits would take gigabytes."""
    config = tf.PhiConfig(**{**TEXT, "vocab_size": 1000})
    config.dtype = "bfloat16"
    head = build_small_model(tf.PhiForCausalLM, config).get_output_embeddings()
    assert (str(head.weight.dtype), head.weight.shape[0], head.bias.shape[0]) == ("torch.float32", 256, 256)
    assert config.dtype == "bfloat16", "the user's own config was changed"


def test_what_could_not_be_tried_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that was short once would have refused this class for ever."""

    def short(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(proof, "build_small_model", short)
        with pytest.raises(MixingError, match="nothing could be tried here"):
            guard(make_model("qwen2"))
    guard(make_model("qwen2")).remove()


def test_an_encoder_that_mixes_images_of_a_batch_is_caught() -> None:
    """Both rows had the same images, so a mean over them showed nothing, and only the first batch was refused."""

    class Leaky(tf.Qwen2_5_VLForConditionalGeneration):
        def __init__(self, config: Any):
            super().__init__(config)
            self.model.visual.merger.register_forward_hook(lambda _, __, out: out + 0.1 * out.mean(0))

    model = make_model("qwen2_5_vl")
    members = make_members("qwen2_5_vl", model)
    shown = try_masks(type(model), model.config, members, "positions")[-1]
    assert shown.is_exact, shown
    for mask in ("positions", "hybrid"):
        assert not try_masks(Leaky, model.config, members, mask)[-1].is_exact


def test_a_class_that_leaks_is_refused_unless_it_is_trusted(caplog: pytest.LogCaptureFixture) -> None:
    model = tf.OPTForCausalLM(config_of("OPTForCausalLM", word_embed_proj_dim=64, num_attention_heads=2))
    with pytest.raises(MixingError, match=r"OPTForCausalLM is not shown to keep .* nothing tried here .*trust='OPTFor"):
        guard(model)
    with pytest.raises(MixingError):
        guard(model, trust="Another")
    guard(model, trust="OPTForCausalLM")
    assert "trained all the same: trust=OPTForCausalLM" in caplog.text


def test_a_batch_whose_mask_is_to_be_found_has_that_of_the_guard() -> None:
    model = make_model("gpt_oss", "eager")
    batch = make_batch("gpt_oss", [text_members(64)])
    batch.mask = "auto"
    with pytest.raises(ValueError, match=r"guard\(model, encoder\) finds"):
        batch.model_inputs(model)
    guard(model)
    assert set(batch.model_inputs(model)["attention_mask"]) == {"full_attention", "sliding_attention"}
    model(**batch.model_inputs(model))
    batch.mask = "positions"
    with pytest.raises(MixingError, match="mask=positions, and GptOssForCausalLM was shown with mask=dict4d"):
        model(**batch.model_inputs(model))


@pytest.mark.parametrize("name", ["Gemma4Unified", "Gemma4"])
def test_a_model_that_sees_images_whole_gets_masks_in_which_it_does(name: str) -> None:
    """Packed by positions, transformers looks for a member's images where those of the row are.

    Images are longer than the window, in which the one sees them whole and the other does not.
    """
    text = {**TEXT, "head_dim": 8, "global_head_dim": 8, "use_bidirectional_attention": "vision"}
    text |= {"layer_types": ["sliding_attention", "full_attention"], "hidden_size_per_layer_input": 0}
    config = getattr(tf, f"{name}Config")(text_config=text, vision_config=None, audio_config=None)
    members = text_members(64)
    for start, member in enumerate(members[:2], 1):
        member.tokens.types[start : start + 5] = 1
    tried = try_masks(getattr(tf, f"{name}ForConditionalGeneration"), config, members)
    assert [(proof.mask, proof.is_exact) for proof in tried] == [("positions", False), ("dict4d", True)]


def test_a_model_that_reads_prefixes_whole_gets_the_mask_for_it() -> None:
    """PaliGemma reads all before the answer in both directions: by positions alone the difference was 11."""
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    text = {**TEXT, "model_type": "gemma", "head_dim": 8}
    config = tf.PaliGemmaConfig(text_config=text, vision_config={**vision, "image_size": 8, "patch_size": 4})
    members = text_members(64)
    for member in members:
        member.tokens.labels[:4] = IGNORE
    make = tf.PaliGemmaForConditionalGeneration
    assert [(proof.mask, proof.is_exact) for proof in try_masks(make, config, members)] == [("prefix4d", True)]
    assert not try_masks(make, config, members, "positions")[-1].is_exact


def test_layers_that_there_are_for_one_attention_alone_are_not_missed_in_another() -> None:
    """SAM has a class of layers for sdpa: a model with eager attention was refused for want of it."""
    config = shrink_config(tf.DeepseekVLHybridConfig())
    make = tf.DeepseekVLHybridForConditionalGeneration
    assert "SamVisionSdpaAttention" in proof._part_kinds_at_full_size(make, config, "sdpa")
    assert "SamVisionSdpaAttention" not in proof._part_kinds_at_full_size(make, config, "eager")


# The subject of a proof: the code that a model runs now, and every kind of its layers.

masking_utils, modeling_qwen2 = tf.masking_utils, tf.models.qwen2.modeling_qwen2
Replace = Callable[[pytest.MonkeyPatch], None]


def a_decorator(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = modeling_qwen2.Qwen2Model.forward

    @functools.wraps(forward)
    def wrapped(self: Any, *args: Any, **keywords: Any) -> Any:
        return forward(self, *args, **{**keywords, "position_ids": None})

    monkeypatch.setattr(modeling_qwen2.Qwen2Model, "forward", wrapped)


def a_helper_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda *_, **__: None)


def an_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmasked(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **keywords: Any) -> Any:
        return tf.integrations.sdpa_attention.sdpa_attention_forward(module, query, key, value, None, **keywords)

    monkeypatch.setitem(tf.modeling_utils.ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", unmasked)


@pytest.mark.parametrize("replaced", [a_decorator, a_helper_of_transformers, an_attention])
def test_replaced_code_is_proved_as_it_runs(replaced: Replace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these makes members of Qwen2 see each other; an earlier proof of the class says nothing of it."""
    text = MadeEncoder(text_members(64))
    guard(model := make_model("qwen2"), text).remove()
    replaced(monkeypatch)
    with pytest.raises(MixingError, match="is not shown to keep members of packs apart"):
        guard(model, text)


def test_what_was_replaced_in_one_model_is_tried_with_its_first_batch() -> None:
    """No copy has it: the model itself is tried, or is refused."""
    model = make_model("qwen2")
    attention = model.model.layers[1].self_attn
    forward = attention.forward
    attention.forward = lambda *args, **keywords: forward(*args, **{**keywords, "attention_mask": None})
    with pytest.raises(MixingError, match=r"the forward of model\.layers\.1\.self_attn was replaced"):
        guard(model, first_batch=False)
    guard(model, trust="Qwen2ForCausalLM", first_batch=False).remove()
    guard(model)
    with pytest.raises(MixingError, match="mixes the members of a batch"):
        model(**make_batch("qwen2", [text_members(64)]).model_inputs())


def test_a_wrapped_forward_is_that_of_its_class() -> None:
    """torch.compile and Accelerate's mixed precision wrap it."""
    model = make_model("qwen2")
    model.forward = torch.compile(model.forward, backend="eager")
    model.model.forward = functools.wraps(model.model.forward)(lambda *args, **keywords: None)
    assert not replaced_forwards(model)


def test_a_layer_that_a_small_copy_has_not_is_not_shown() -> None:
    """The last of ten layers carries a state: with four such, members differ by 2.3. Its copy has the first."""
    config = tf.BambaConfig(vocab_size=64, num_hidden_layers=10, attn_layer_indices=list(range(9)))
    with torch.device("meta"):
        kinds = part_kinds_of(tf.BambaForCausalLM(config))
    tried = try_masks(tf.BambaForCausalLM, config, text_members(64), kinds=kinds)
    assert "a small copy of it has no BambaDecoderLayer with block_type=linear_attention" in str(tried[-1])


def test_a_part_that_was_put_in_is_tried_with_the_model_or_refused() -> None:
    """It is in no model of this config, so a copy shows nothing of it."""
    model = make_model("qwen2")
    mlp = model.model.layers[1].mlp
    mlp.__class__ = type("Qwen2Memory", (type(mlp),), {"__module__": type(mlp).__module__})
    assert guard(model).proofs[-1].is_exact
    with pytest.raises(MixingError, match="Qwen2Memory was replaced in this model alone"):
        guard(model, first_batch=False)


def test_an_attribute_that_a_user_set_is_in_no_copy_and_refuses_nothing() -> None:
    """A fused kernel's switch, a name: the error said that the processor may not go with the model."""
    model = make_model("qwen2")
    model.model.layers[0].self_attn.fused, model.model.layers[0].mlp.name = True, "mine"
    assert guard(model).proofs[-1].is_exact


class LikeLigerNorm(torch.nn.Module):
    """Stands in for LigerRMSNorm, whose Triton kernels run on no CPU."""

    def __init__(self, size: int, eps: float = 1e-6):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))
        self.variance_epsilon, self.casting_mode, self.in_place, self.row_mode = eps, "llama", True, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


class LikeLigerMLP(torch.nn.Module):
    """Stands in for LigerSwiGLUMLP."""

    def __init__(self, config: Any):
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj, self.up_proj = (torch.nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down_proj = torch.nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class LikeLigerMeanMLP(LikeLigerMLP):
    """Mixes the members of a row."""

    def forward(self, x: torch.Tensor) -> Any:
        return LikeLigerMLP.forward(self, x + 0.1 * x.mean(1, keepdim=True))


def loss_without_logits(self: Any, input_ids: Any = None, labels: Any = None, **more: Any) -> Any:
    """Stands in for Liger's lce_forward: while it trains with labels, it makes no logits."""
    hidden = self.model(input_ids=input_ids, **more)[0]
    logits = self.lm_head(hidden)
    loss = None if labels is None else self.loss_function(logits, labels, vocab_size=logits.shape[-1])
    return tf.modeling_outputs.CausalLMOutputWithPast(loss, None if self.training and labels is not None else logits)


def like_liger(model: Any, mlp: type[LikeLigerMLP], patch: pytest.MonkeyPatch) -> None:
    """Patch a model as Liger 0.8.5's apply_liger_kernel_to_qwen2(model=…) does: its classes, its parts, its forward."""
    modeling: Any = tf.models.qwen2.modeling_qwen2
    patch.setattr(modeling, "Qwen2RMSNorm", LikeLigerNorm)
    patch.setattr(modeling, "Qwen2MLP", mlp)
    norms = [part for part in model.modules() if type(part).__name__ == "Qwen2RMSNorm"]
    pairs: list[tuple[Any, Any]] = [(one, LikeLigerNorm) for one in norms]
    for part, kind in [*pairs, *((one.mlp, mlp) for one in model.model.layers)]:
        vars(part)["forward"] = MethodType(kind.forward, part)
        vars(part)["_get_name"] = MethodType(lambda _, name=kind.__name__: name, part)
    for norm in norms:
        norm.offset, norm.casting_mode, norm.in_place, norm.row_mode = 0.0, "llama", True, None
        norm.impl = norm.mode = None
    model.forward = MethodType(loss_without_logits, model)


@pytest.mark.parametrize("mlp", [LikeLigerMLP, LikeLigerMeanMLP])
def test_parts_that_liger_replaces_in_an_instance_are_tried_with_it(
    mlp: type[LikeLigerMLP], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that is made later has other classes of parts; the error said that it has no Qwen2MLP."""
    model = make_model("qwen2")
    like_liger(model, mlp, monkeypatch)
    monkeypatch.setattr(tf.models.qwen2.modeling_qwen2, "Qwen2MLP", LikeLigerMLP)
    held, batch = guard(model), make_batch("qwen2", [text_members(64)]).model_inputs()
    if mlp is LikeLigerMLP:
        model.train()(**batch).loss.backward()
        assert [trial.mixes for trial in held.trials] == [False]
    else:
        with pytest.raises(MixingError, match="mixes the members of a batch"):
            model.train()(**batch)


def test_layers_that_share_what_others_hold_are_in_the_copy() -> None:
    config = tf.Gemma4TextConfig(vocab_size=64, vocab_size_per_layer_input=64, num_kv_shared_layers=4)
    with torch.device("meta"):
        kinds = part_kinds_of(tf.Gemma4ForCausalLM(config))
    assert "Gemma4TextAttention with is_kv_shared_layer=True" in kinds
    assert kinds <= part_kinds_of(build_small_model(tf.Gemma4ForCausalLM, config))
