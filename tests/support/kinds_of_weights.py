"""Two steps of training of one model for each kind of weights, with the guard and without: what is other, bit by bit.

Run as a script in an environment with the packages that make such weights: it writes by name what was found.
"""

import copy
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from energon_pack.training.forward_inputs import MixingError
from energon_pack.training.guards import guard
from support.tiny import TEXT, make_batch, make_members, tf

Make = Callable[[], Any]
SIZES = {**TEXT, "hidden_size": 64, "intermediate_size": 128}


def plain(**more: Any) -> Any:
    torch.manual_seed(0)
    return tf.LlamaForCausalLM._from_config(tf.LlamaConfig(**SIZES, **more), attn_implementation="sdpa").train()


def loaded(folder: str, **more: Any) -> Any:
    return tf.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", **more).train()


def saved(make: Callable[[str], Any]) -> Any:
    """Save a plain model, and make one of the folder."""
    with tempfile.TemporaryDirectory() as folder:
        plain().save_pretrained(folder)
        return make(folder)


def with_lora(model: Any) -> Any:
    """As a model whose weights can't be trained is trained."""
    peft: Any = import_module("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False, lora_dropout=0.0)
    return peft.get_peft_model(model, config).train()


# ------------------------------------------------------------------------------------------------------ of torch alone


def tied() -> Any:
    return plain(tie_word_embeddings=True)


def float16() -> Any:
    return plain().to(torch.float16)


def bfloat16() -> Any:
    return plain().to(torch.bfloat16)


def float64() -> Any:
    return plain().to(torch.float64)


def meta_then_loaded() -> Any:
    """Made without memory, and filled by assigning."""
    state = plain().state_dict()
    with torch.device("meta"):
        model = tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES))
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = copy.deepcopy(plain().model.rotary_emb)  # its buffers are in no state
    return model.train()


def mapped() -> Any:
    """Weights that lie in a file."""
    model = plain()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), f"{folder}/weights")
        model.load_state_dict(torch.load(f"{folder}/weights", mmap=True), assign=True)
    for one in model.parameters():
        one.requires_grad_()
    return model


def views_of_one_tensor() -> Any:
    """As fused and flat weights: many parameters are parts of one memory."""
    model = plain()
    flat = torch.cat([one.detach().flatten() for one in model.parameters()])
    at = 0
    for one in model.parameters():
        one.data = flat[at : at + one.numel()].view_as(one)
        at += one.numel()
    return model


def parts(model: Any, change: Callable[[nn.Module], Any]) -> Any:
    """Change the projections of MLPs; what a function returns stands in place of them."""
    for layer in model.model.layers:
        layer.mlp.up_proj = change(layer.mlp.up_proj)
        layer.mlp.down_proj = change(layer.mlp.down_proj)
    return model


def weight_norm() -> Any:
    return parts(plain(), nn.utils.parametrizations.weight_norm)


def spectral_norm() -> Any:
    """Each forward moves its vectors."""
    return parts(plain(), nn.utils.parametrizations.spectral_norm)


def old_spectral_norm() -> Any:
    """By a hook before each forward, which makes the weight anew as an attribute."""
    return parts(plain(), nn.utils.spectral_norm)


def pruned() -> Any:
    return parts(plain(), lambda part: prune.random_unstructured(part, "weight", 0.5))


class Coded(nn.Module):
    """A frozen codebook: 4 bits a weight."""

    def __init__(self, linear: Any):
        super().__init__()
        weight = linear.weight.detach()
        self.codebook = nn.Parameter(torch.linspace(float(weight.min()), float(weight.max()), 16), requires_grad=False)
        self.codes = nn.Buffer((weight[..., None] - self.codebook).abs().argmin(-1).to(torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.codebook[self.codes.long()])


def frozen_codebooks() -> Any:
    return parts(plain(), Coded)


class Calibrated(nn.Module):
    """As GPTQ's and FP8's layers: the first forward lays codes out anew, each notes its largest value."""

    def __init__(self, linear: Any):
        super().__init__()
        weight = linear.weight.detach()
        self.scale = nn.Buffer(weight.abs().amax(1, keepdim=True) / 127)
        self.codes: Tensor = nn.Buffer((weight / self.scale).round().to(torch.int8))
        self.largest = nn.Buffer(torch.zeros(()))
        self.layout: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.layout is None:
            self.layout, self.codes = self.codes.T.contiguous(), torch.empty(0, dtype=torch.int8)
        self.largest.copy_(torch.maximum(self.largest, x.detach().abs().amax()))
        return x @ (self.layout * self.scale.T)


def gptq_like() -> Any:
    return parts(plain(), Calibrated)


class Large(Calibrated):
    """The same with a table that is written at each forward and too large to copy."""

    def __init__(self, linear: Any):
        super().__init__(linear)
        self.table = nn.Buffer(torch.zeros(2**20 + 1))

    def forward(self, x: Tensor) -> Tensor:
        self.table.add_(1)
        return super().forward(x)


def a_large_table() -> Any:
    return parts(plain(), Large)


def float8() -> Any:
    """Kept in 8 bits, computed in 32."""

    class Float8(nn.Module):
        def __init__(self, linear: Any):
            super().__init__()
            self.weight = nn.Parameter(linear.weight.detach().to(torch.float8_e4m3fn), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.weight.to(x.dtype))

    return parts(plain(), Float8)


def lazy() -> Any:
    """Its first forward makes the weights, of random numbers."""

    def change(part: Any) -> Any:
        return nn.LazyLinear(part.out_features, bias=False)

    return parts(plain(), change)


def dynamic_int8() -> Any:
    """torch's own: scales over the whole batch, which mixes its members."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(plain(), {nn.Linear}, torch.qint8)


# ---------------------------------------------------------------------------------------------------------- of packages


def bitsandbytes_8_bit() -> Any:
    config = tf.BitsAndBytesConfig(load_in_8bit=True)
    return saved(lambda folder: loaded(folder, quantization_config=config, device_map="cpu"))


def bitsandbytes_4_bit() -> Any:
    config = tf.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    return saved(lambda folder: loaded(folder, quantization_config=config, device_map="cpu"))


def bitsandbytes_8_bit_lora() -> Any:
    return with_lora(bitsandbytes_8_bit())


def bitsandbytes_4_bit_lora() -> Any:
    return with_lora(bitsandbytes_4_bit())


def torchao_int8() -> Any:
    ao: Any = import_module("torchao.quantization")
    model = plain()
    ao.quantize_(model.model, ao.Int8WeightOnlyConfig())
    return model


def torchao_int8_dynamic() -> Any:
    """Activations in 8 bits, too, by a scale for each token."""
    ao: Any = import_module("torchao.quantization")
    model = plain()
    ao.quantize_(model.model, ao.Int8DynamicActivationInt8WeightConfig())
    return model


def torchao_qat() -> Any:
    """Trained as if it were of 8 and 4 bits."""
    ao: Any = import_module("torchao.quantization")
    qat: Any = import_module("torchao.quantization.qat")
    group = import_module("torchao.quantization.granularity").PerGroup(32)
    model, four = plain(), getattr(torch, "int4")  # noqa: B009  # unknown to torch's own types
    base = ao.Int8DynamicActivationIntxWeightConfig(weight_dtype=four, weight_granularity=group)
    ao.quantize_(model, qat.QATConfig(base, step="prepare"))
    return model


def torchao_float8(recipe: str) -> Any:
    float8: Any = import_module("torchao.float8")
    config = replace(float8.Float8LinearConfig.from_recipe_name(recipe), emulate=True)
    return float8.convert_to_float8_training(plain().to(torch.bfloat16), config=config)


def torchao_float8_by_rows() -> Any:
    """Trained with products of 8 bits, a scale for each token."""
    return torchao_float8("rowwise")


def torchao_float8_by_tensors() -> Any:
    """A scale for all tokens of a batch."""
    return torchao_float8("tensorwise")


def quanto_int8() -> Any:
    quanto: Any = import_module("optimum.quanto")
    model = plain()
    quanto.quantize(model, weights=quanto.qint8)
    quanto.freeze(model)
    return with_lora(model)


def hqq_4_bit() -> Any:
    hqq: Any = import_module("hqq.core.quantize")
    config = hqq.BaseQuantizeConfig(nbits=4, group_size=64)
    return parts(plain(), lambda part: hqq.HQQLinear(part, config, compute_dtype=torch.float32, device="cpu"))


_PARTS = {"target_modules": ["q_proj", "up_proj"], "init_weights": False}
_ONE_PART = {"target_modules": ["q_proj"], "init_weights": False}
_LORA = {"r": 4, "target_modules": ["q_proj", "up_proj"], "init_lora_weights": False}
#: adapters of PEFT that change no inputs: the name of a config, and its settings
ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "lora, dropout": ("Lora", {**_LORA, "lora_dropout": 0.1}),
    "dora": ("Lora", {**_LORA, "use_dora": True}),
    "lora of embeddings": ("Lora", {**_LORA, "target_modules": ["q_proj", "embed_tokens"], "use_rslora": True}),
    "lora beside a trained head": ("Lora", {**_LORA, "modules_to_save": ["lm_head"]}),
    "adalora": ("AdaLora", {**_LORA, "total_step": 100}),
    "ia3": ("IA3", {**_PARTS, "feedforward_modules": ["up_proj"]}),
    "loha": ("LoHa", {**_PARTS, "r": 4}),
    "lokr": ("LoKr", {**_PARTS, "r": 4}),
    "oft": ("OFT", {**_PARTS, "r": 0, "oft_block_size": 8}),
    "boft": ("BOFT", {**_PARTS, "boft_block_size": 8}),
    "hra": ("HRA", {**_PARTS, "r": 4}),
    "vera": ("Vera", {**_ONE_PART, "r": 4}),
    "randlora": ("RandLora", {**_ONE_PART, "r": 4}),
    "fourierft": ("FourierFT", {**_ONE_PART, "n_frequency": 16}),
    "vblora": ("VBLoRA", {"target_modules": ["q_proj"], "r": 2, "vector_length": 8, "num_vectors": 16}),
    "norms": ("LNTuning", {"target_modules": ["input_layernorm", "norm"]}),
    "tokens": ("TrainableTokens", {"token_indices": [9, 10], "target_modules": ["embed_tokens"]}),
    "miss": ("Miss", {**_PARTS, "r": 4}),
    "shira": ("Shira", {**_PARTS, "r": 4}),
    "c3a": ("C3A", {**_ONE_PART, "block_size": 8}),
    "road": ("Road", {**_PARTS, "group_size": 8}),
    "waveft": ("WaveFT", {**_ONE_PART, "n_frequency": 16}),
    "delora": ("Delora", {**_PARTS, "r": 4}),
    "gralora": ("Gralora", {**_PARTS, "r": 4, "gralora_k": 2}),
    "adaption prompt": ("AdaptionPrompt", {"adapter_len": 4, "adapter_layers": 2, "task_type": "CAUSAL_LM"}),
}


def adapted(name: str) -> Any:
    peft: Any = import_module("peft")
    torch.manual_seed(0)
    kind, settings = ADAPTERS[name]
    settings = {"init_ia3_weights" if (kind, key) == ("IA3", "init_weights") else key: v for key, v in settings.items()}
    return peft.get_peft_model(plain(), getattr(peft, f"{kind}Config")(**settings)).train()


OF_TORCH: list[Make] = [
    tied, float16, bfloat16, float64, meta_then_loaded, mapped, views_of_one_tensor, weight_norm, spectral_norm,
    old_spectral_norm, pruned, frozen_codebooks, gptq_like, a_large_table, float8, lazy, dynamic_int8,
]  # fmt: skip
OF_PACKAGES: list[Make] = [
    bitsandbytes_8_bit, bitsandbytes_4_bit, bitsandbytes_8_bit_lora, bitsandbytes_4_bit_lora, torchao_int8,
    torchao_int8_dynamic, torchao_qat, torchao_float8_by_rows, torchao_float8_by_tensors, quanto_int8, hqq_4_bit,
]  # fmt: skip


def tensors_of(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """All tensors in a value, by names: in containers, in attributes of objects and of tensors."""
    if isinstance(value, Tensor):
        yield name, value
    if depth > 6 or isinstance(value, (type, str, bytes)):
        return
    if isinstance(value, dict):
        inner = [*value.items()]
    elif isinstance(value, (list, tuple)):
        inner = [*enumerate(value)]
    else:
        inner = [*getattr(value, "__dict__", {}).items()]
    for key, one in inner:
        if not (isinstance(one, nn.Module) or callable(one)) and key != "grad_fn":
            yield from tensors_of(f"{name}.{key}", one, depth + 1)


def bits_of(value: Tensor) -> Tensor:
    value = value.detach()
    if hasattr(value, "dequantize") and type(value) is not nn.Parameter and type(value) is not Tensor:
        value = value.dequantize()
    return (
        value.cpu().clone().contiguous().view(torch.uint8)
        if value.dim()
        else value.cpu().clone()[None].view(torch.uint8)
    )


def steps(make: Make, is_guarded: bool) -> tuple[dict[str, Tensor], int]:
    """Train two steps; return all bits that were seen and are left, by name, and the number of trials."""
    model = make()
    inputs = make_batch("llama", [make_members("llama", model)] * 2).model_inputs()
    held = guard(model, first_batch=is_guarded)
    trained = [one for one in model.parameters() if one.requires_grad and one.is_floating_point()]
    seen: dict[str, Tensor] = {}
    optimizer = torch.optim.SGD(trained, lr=1e-2) if trained else None
    for number in range(2):
        torch.manual_seed(number)
        out = model(**inputs)
        out.loss.backward()
        seen |= {f"outputs {number}": bits_of(out.logits), f"loss {number}": bits_of(out.loss)}
        seen |= {f"grad {number} {name}": bits_of(p.grad) for name, p in model.named_parameters() if p.grad is not None}
        seen[f"random {number}"] = torch.get_rng_state()
        if number == 0:
            seen |= state_of("held by the first", model)
        if optimizer:
            optimizer.step()
            optimizer.zero_grad()
    held.remove()
    return seen | state_of("held", model), len(held.trials)


def state_of(when: str, model: Any) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, part in model.named_modules():
        own = {key: value for key, value in vars(part).items() if "hooks" not in key and key != "_modules"}
        found |= {f"{when}: {key}": bits_of(one) for key, one in tensors_of(name, own)}
    return found


def found_with(make: Make) -> str:
    """`equal` and the number of tensors; `other`, with the first names; or the refusal."""
    try:
        (with_guard, num), (without, _) = steps(make, True), steps(make, False)
    except MixingError as error:
        return f"refused: {error}"
    if num != 2:
        return f"{num} trials"
    names = [*with_guard.keys() ^ without.keys()]
    names += [name for name in with_guard.keys() & without.keys() if not torch.equal(with_guard[name], without[name])]
    return f"other: {sorted(names)[:4]}" if names else f"equal: {len(with_guard)}"


def main() -> None:
    found: dict[str, str] = {}
    makes = {make.__name__: make for make in OF_PACKAGES} | {name: partial(adapted, name) for name in ADAPTERS}
    for name, make in makes.items():
        found[name] = found_with(make)
        print(name, found[name][:300], flush=True)
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
