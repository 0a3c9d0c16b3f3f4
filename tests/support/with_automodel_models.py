"""NeMo Automodel's own models on batches of packs, on a CPU; run by tests/test_automodel.py."""

from importlib import import_module
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from energon_pack.automodel import PackRows, check_members_kept_apart, collate
from energon_pack.errors import PackError
from energon_pack.training.encoded import TrainingPack
from energon_pack.training.forward_inputs import missing_kernels
from energon_pack.training.joining import join
from support.tiny import FAMILIES, make_batch, make_members, make_model


class TinyPacks:
    """Two packs of random members, as a LazyPackedDataset would have them."""

    def __init__(self, name: str):
        self.members = make_members(name, make_model(name))
        self.encoder = SimpleNamespace(layout="neat", mask=FAMILIES[name].mask, batch=self._batch)
        self._name = name

    def __getitem__(self, index: int) -> TrainingPack:
        return TrainingPack("", self.members[:3] if index == 0 else self.members[3:], {}, [])

    def _batch(self, packs: list[TrainingPack]) -> Any:
        batch = make_batch(self._name, [pack.members for pack in packs], shifted=True)
        media = join(member.media for pack in packs for member in pack.members)
        none = torch.zeros(len(packs), dtype=torch.long)
        return batch | {"media_keys": sorted(media), "n_images_per_sample": none, "n_videos_per_sample": none}


def largest_difference(model: Any, rows: PackRows) -> float:
    """Return the largest difference between the logits of two packs in a batch and the logits of each member alone."""
    batch = collate([rows[0], rows[1]])
    del batch["labels"]
    with torch.no_grad():
        logits = model(**{name: as_model(value, model) for name, value in batch.items()}).logits
        worst = 0.0
        for index in range(2):
            start = 0
            for member in rows[index].pack.members:
                of = member.tokens
                given = {"input_ids": of.ids[None], "mm_token_type_ids": of.types[None], **member.media}
                assert of.rope is not None
                given |= {"position_ids": of.rope[:, None]}
                given = {name: as_model(value, model) for name, value in given.items()}
                alone = model(**given, use_cache=False).logits[0]
                worst = max(worst, float((alone - logits[index, start : start + len(of)]).abs().max()))
                start += len(of)
    return worst


def as_model(value: Any, model: Any) -> Any:
    """Move a tensor to the device of a model; what is no index takes its type, too."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(model.device, model.dtype if value.is_floating_point() else None)


def rows_of(name: str, mask: str, metadata: bool = False) -> PackRows:
    packs: Any = TinyPacks(name)
    return PackRows(lambda: packs, mask, metadata, None)


@pytest.fixture(scope="module")
def qwen3_vl() -> Any:
    """Automodel's own class, with sdpa."""
    plain = make_model("qwen3_vl")
    own = import_module("nemo_automodel.components.models.qwen3_vl.model").Qwen3VLForConditionalGeneration(plain.config)
    own.load_state_dict(plain.state_dict())
    return own.float().eval()


@pytest.mark.parametrize("mask", ["positions", "block_causal", "flash_varlen", "document_ids", "metadata"])
def test_what_check_lets_pass_is_exact_in_qwen3_vl(qwen3_vl: Any, mask: str) -> None:
    """And what it refuses is wrong by much: with sdpa, which Automodel falls back to where flash attention is not."""
    rows = rows_of("qwen3_vl", mask)
    difference = largest_difference(qwen3_vl, rows)
    print(f"Qwen3-VL, sdpa, mask={mask}: {difference:.1e}")
    if mask in ("positions", "block_causal"):
        check_members_kept_apart([qwen3_vl], rows)
        assert difference < 1e-5
    else:
        with pytest.raises(PackError, match="mask: block_causal or positions"):
            check_members_kept_apart([qwen3_vl], rows)
        assert difference > 0.1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="flash attention has no CPU")
@pytest.mark.parametrize(("mask", "exact"), [("flash_varlen", True), ("document_ids", False)])
def test_flash_attention_keeps_members_apart_in_qwen3_vl(qwen3_vl: Any, mask: str, exact: bool) -> None:
    """In bfloat16. By the document ids of another kernel flash attention would let members see each other."""
    own = type(qwen3_vl)(qwen3_vl.config)
    own.load_state_dict(qwen3_vl.state_dict())
    own.set_attn_implementation("flash_attention_2")
    own = own.to("cuda", torch.bfloat16).eval()
    rows = rows_of("qwen3_vl", mask)
    difference = largest_difference(own, rows)
    print(f"Qwen3-VL, flash_attention_2, mask={mask}: {difference:.1e}")
    assert (difference < 0.02) == exact
    if exact:
        check_members_kept_apart([own], rows)
    else:
        with pytest.raises(PackError, match="flash_varlen"):
            check_members_kept_apart([own], rows)


@pytest.fixture
def qwen3_5() -> Any:
    """Automodel's own class, with sdpa, and without the kernels of its gated delta nets."""
    if not missing_kernels():
        pytest.skip("flash-linear-attention and causal-conv1d are here, and have no CPU")
    backend = import_module("nemo_automodel.components.models.common.utils").BackendConfig
    own = import_module("nemo_automodel.components.models.qwen3_5.model").Qwen3_5ForConditionalGeneration
    plain = {"attn": "sdpa", "linear": "torch", "rms_norm": "torch", "rope_fusion": False}
    return own(FAMILIES["qwen3_5"].config(), backend=backend(**plain)).float().eval()


def test_qwen3_5_without_its_kernels_mixes_members(qwen3_5: Any) -> None:
    """Automodel then says nothing, transformers that it is "correct but much slower": here the dataset is refused."""
    rows = rows_of("qwen3_5", "block_causal", metadata=True)
    check_members_kept_apart([qwen3_5], rows)  # its attention is right: what is missing is for the dataset to say
    difference = largest_difference(qwen3_5, rows)
    print(f"Qwen3.5 without kernels, sdpa, mask=block_causal: {difference:.1e}")
    assert difference > 0.01
    with pytest.raises(PackError, match="metadata: true"):
        check_members_kept_apart([qwen3_5], rows_of("qwen3_5", "block_causal"))


def test_qwen3_5_with_kernels_that_begin_anew_is_exact(qwen3_5: Any) -> None:
    """The same functions, called for each stretch that the batch's metadata name, as the kernels keep them apart."""
    for layer in qwen3_5.model.language_model.layers.values():
        if layer.layer_type == "linear_attention":
            inner = layer.linear_attn
            inner.chunk_gated_delta_rule = rule_by_stretch(inner.chunk_gated_delta_rule)
            inner.causal_conv1d_fn = convolution_by_stretch(inner.causal_conv1d_fn)
    difference = largest_difference(qwen3_5, rows_of("qwen3_5", "block_causal", metadata=True))
    print(f"Qwen3.5 with kernels by stretch, sdpa, mask=block_causal: {difference:.1e}")
    assert difference < 1e-5


def rule_by_stretch(rule: Any) -> Any:
    def by_stretch(*values: Any, cu_seqlens: Any = None, cu_seqlens_cpu: Any = None, **more: Any) -> Any:
        if cu_seqlens is None:
            return rule(*values, **more)
        outs = []
        for start, end in pairwise(cu_seqlens.tolist()):
            gates = {name: more[name][:, start:end] for name in ("g", "beta")}
            outs.append(rule(*(value[:, start:end] for value in values), **{**more, **gates})[0])
        return torch.cat(outs, dim=1), None

    return by_stretch


def convolution_by_stretch(convolve: Any) -> Any:
    def by_stretch(values: Any, *, seq_idx: Any = None, **more: Any) -> Any:
        if seq_idx is None:
            return convolve(values, **more)
        lengths = [torch.unique_consecutive(row, return_counts=True)[1].tolist() for row in seq_idx]
        rows = [
            torch.cat([convolve(part, **more) for part in row[None].split(counts, dim=2)], dim=2)
            for row, counts in zip(values, lengths, strict=True)
        ]
        return torch.cat(rows)

    return by_stretch


def test_qwen3_vl_with_experts_has_thd_alone() -> None:
    own = import_module("nemo_automodel.components.models.qwen3_vl_moe.model").Qwen3VLMoeForConditionalGeneration
    assert own.ModelCapabilities.supports_thd
    assert not hasattr(own, "requires_packed_sequence_metadata")
