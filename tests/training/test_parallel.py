"""Members stay apart, and come out as alone, when a batch is spread over ranks as Megatron spreads it.

Classes of transformers run as ranks of context parallelism in one process (`support.parallel`), sharded by
megatron-core's own functions. `-s` prints the largest differences.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from energon_pack.training.batch import PackedBatch
from energon_pack.training.fixed_shapes import packed_seq_params
from energon_pack.training.forward_inputs import MEDIA_KEYS
from energon_pack.training.joining import join
from energon_pack.training.layout import IGNORE, Member, RowForm
from energon_pack.training.megatron_layouts import thd
from energon_pack.training.member_encoder import Encoded
from support.running import ROOT, command
from support.tiny import FAMILIES, alone, make_batch, make_members, make_model

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from support.gpt import VOCABULARY
from support.gpt_ranks import DEPTH, MICRO_BATCHES, multiple
from support.gpt_ranks import make_members as make_gpt_members
from support.parallel import Ranks, context_parallel, loss_of_ranks, sees_images_whole
from support.shards import Group

CLASSES = [name for name in FAMILIES if name != "qwen3_5"]  # needs kernels
LAYOUTS = ("neat", "thd")
SHAPES = ("1,2,1", "2,1,1", "2,2,1")  # ranks that are tensor, context and pipeline parallel


def make(layout: str, name: str, members: list[Encoded], multiple: int) -> PackedBatch:
    """One row of `thd`, or two of `neat`, which are as wide as so many chunks need; labels are shifted already."""
    if layout == "thd":
        form = RowForm(multiple=multiple, rope=FAMILIES[name].rope is not None)
        return PackedBatch(thd([member.tokens for member in members], form) | join(member.media for member in members))
    packs = [members[:3], members[3:]]
    longest = max(sum(len(member.tokens) for member in pack) for pack in packs)
    return make_batch(name, packs, shifted=True, width=-(-longest // multiple) * multiple)


def inputs_of(name: str, model: Any, batch: PackedBatch) -> dict[str, Any]:
    """Return the inputs of the model, without labels."""
    if "cu_seq_lens_q" in batch:
        return batch.model_inputs(model, labels=False)
    names = ["input_ids", "position_ids", *MEDIA_KEYS, *(["mm_token_type_ids"] if FAMILIES[name].rope else [])]
    inputs: dict[str, Any] = {key: batch[key] for key in names if key in batch} | {"use_cache": False}
    if FAMILIES[name].mask == "dict4d":  # the attention of the ranks makes them
        inputs["attention_mask"] = {"full_attention": None, "sliding_attention": None}
    return inputs


def own(rows: Tensor, batch: PackedBatch, members: list[Encoded]) -> list[Tensor]:
    """[B, S, …] → of each member."""
    is_real = batch["doc_ids"] > 0 if "doc_ids" in batch else ~batch["padding_mask"]
    return list(rows[is_real].split([len(member.tokens) for member in members]))


def difference(some: list[Tensor], others: list[Tensor]) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(some, others, strict=True))


def gradients(model: Any, loss: Tensor) -> list[Tensor]:
    found = [p for p in model.parameters() if p.requires_grad]
    return list(torch.autograd.grad(loss, found, allow_unused=True, materialize_grads=True))


class Alone:
    """A tiny model, and its outputs for each member alone, without our code."""

    def __init__(self, name: str):
        self.name, self.model = name, make_model(name, "eager")
        self.members = make_members(name, self.model)
        single = [alone(name, self.model, member) for member in self.members]
        self.logits = [out.logits[0] for out in single]
        trained = [int((member.tokens.labels[1:] != IGNORE).sum()) for member in self.members]
        losses = [out.loss * n for out, n in zip(single, trained, strict=True) if n]
        self.loss = torch.stack(losses).sum() / sum(trained)
        self.gradients = gradients(self.model, self.loss)

    def differences(self, batch: PackedBatch, num_ranks: int, seen: Tensor | None = None) -> tuple[float, float, float]:
        """Return the largest differences of logits, loss and gradients, gathered from the ranks."""
        ranks = Ranks(batch, num_ranks, sees_images_whole(self.model), seen)
        with context_parallel(self.model, ranks):
            logits = self.model(**inputs_of(self.name, self.model, batch)).logits
        num_rows, width = batch["input_ids"].shape
        assert logits.shape[:2] == (num_rows * num_ranks, width // num_ranks)
        loss = loss_of_ranks(logits, batch, ranks)
        largest = max(1.0, *(float(grad.abs().max()) for grad in self.gradients))
        return (
            difference(own(ranks.gather(logits), batch, self.members), self.logits),
            float((loss - self.loss).detach().abs()),
            difference(gradients(self.model, loss), self.gradients) / largest,
        )


@pytest.mark.parametrize("name", CLASSES)
def test_ranks_of_context_parallelism_give_what_each_member_gives_alone(name: str) -> None:
    single = Alone(name)
    for num_ranks in (2, 4, 8):
        for layout in LAYOUTS:
            found = single.differences(make(layout, name, single.members, 2 * num_ranks), num_ranks)
            print(f"cp={num_ranks} {name} {layout}", "logits {:.1e} loss {:.1e} gradients {:.1e}".format(*found))
            assert max(found) <= 1e-5


# ------------------------------------------------------------------------------- what is wrong is seen


@pytest.mark.parametrize("name", ["qwen2_5_vl", "llama"])
def test_a_member_one_token_early_is_seen(name: str) -> None:
    """The first member has one pad too few, and the last one too many: no boundary and no shape tells."""
    single = Alone(name)
    batch = make("thd", name, single.members, 4)
    end = int(batch["cu_seqlens_q_padded"][1])
    assert batch["padding_mask"][0, end - 1]
    order = torch.cat([torch.arange(end - 1), torch.arange(end, batch["total_tokens"]), torch.tensor([end - 1])])
    for key in ("input_ids", "labels", "loss_mask", "position_ids", "padding_mask", "mm_token_type_ids"):
        batch[key] = batch[key][..., order]
    logits, loss, grads = single.differences(batch, 2)
    print(f"{name} one token early: logits {logits:.1e} loss {loss:.1e} gradients {grads:.1e}")
    assert min(logits, loss) > 1e-2


@pytest.mark.parametrize("name", ["qwen2_5_vl", "llama"])
def test_real_boundaries_where_padded_ones_are_due_are_seen(name: str) -> None:
    single = Alone(name)
    batch = make("thd", name, single.members, 4)
    logits, loss, grads = single.differences(batch, 2, seen=batch["cu_seqlens_q"])
    print(f"{name} real boundaries: logits {logits:.1e} loss {loss:.1e} gradients {grads:.1e}")
    assert min(logits, loss) > 1e-2
    unpadded = PackedBatch({key: of for key, of in batch.items() if not key.endswith("q_padded")})
    with pytest.raises(ValueError, match="tokens on 2 ranks"):
        single.differences(unpadded, 2)


def test_labels_are_shifted_before_they_are_sharded() -> None:
    """Shifted by each rank, a chunk's last token would be trained on the first of another chunk."""
    single = Alone("llama")
    batch = make("neat", "llama", single.members, 4)
    ranks = Ranks(batch, 2)
    unshifted = make_batch("llama", [single.members[:3], single.members[3:]], width=batch["input_ids"].shape[1])
    late = ranks.shard({"labels": unshifted["labels"]})["labels"].roll(-1, 1)
    assert not torch.equal(late, ranks.shard({"labels": batch["labels"]})["labels"])


# ------------------------------------------------------------------------------- megatron-core's GPTModel


def run_ranks(folder: Path, *shapes: str) -> Path:
    """Each member alone, and then so many ranks: TP,CP,PP."""
    script, path = ROOT / "tests/support/gpt_ranks.py", f"{ROOT}:{ROOT / 'tests'}"
    result = command("-W", "ignore", script, folder, "1,1,1", *shapes, cwd=folder, PYTHONPATH=path, OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    return folder


def load(folder: Path, shape: str) -> list[dict[str, Any]]:
    return [torch.load(path) for path in sorted(folder.glob(f"{shape.replace(',', '-')}-*.pt"))]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_ranks(tmp_path_factory.mktemp("ranks"), *SHAPES, "1,1,2")


def gathered(found: list[dict[str, Any]], batch: dict[str, Any], depth: int = 0) -> tuple[Tensor, Tensor]:
    """Logits [T, vocabulary] and labels [T] of all ranks, each token where it was in the batch."""
    total = batch["total_tokens"]
    place = torch.cat([of["place"] for of in found]).bincount(minlength=total)
    assert place.unique().numel() == 1  # as often as there are tensor-parallel ranks
    logits, labels = torch.zeros(total, VOCABULARY), torch.full((total,), IGNORE)
    for of in found:
        logits[of["place"]] = of["logits"][depth]
        labels[of["place"]] = torch.where(of["masks"][depth] > 0, of["labels"][depth], IGNORE)
    return logits, labels


def later_labels(members: list[Member], batch: dict[str, Any], depth: int) -> tuple[Tensor, list[slice]]:
    """What is predicted so many tokens after the next: labels [T], and where each member has some."""
    labels = torch.full((batch["total_tokens"],), IGNORE)
    starts = batch.get("cu_seqlens_q_padded", batch["cu_seqlens_q"]).tolist()
    rows = [slice(start, start + max(0, len(m) - 1 - depth)) for start, m in zip(starts, members, strict=False)]
    for row, member in zip(rows, members, strict=True):
        labels[row] = member.labels[1 + depth :]
    return labels, rows


def check_depths(folder: Path, shape: str) -> None:
    """The next token and those that are predicted after it; and M-RoPE, whose rows the model is given whole."""
    (single,), found = load(folder, "1,1,1"), load(folder, shape)
    tp, cp, _ = map(int, shape.split(","))
    members = make_gpt_members()
    batch = thd(members, RowForm(multiple=multiple(tp, cp)))
    for depth in range(DEPTH + 1):
        logits, labels = gathered(found, batch, depth)
        expected, rows = later_labels(members, batch, depth)
        own = [of["logits"][depth][: row.stop - row.start] for row, of in zip(rows, single["members"], strict=True)]
        some = [(logits[row], of) for row, of in zip(rows, own, strict=True) if len(of)]
        different = max(difference([made], [of]) for made, of in some)
        print(f"GPTModel tp={tp} cp={cp} depth {depth}: logits {different:.1e}")
        assert labels.tolist() == expected.tolist()
        assert different <= 1e-5
    whole = mrope_difference(found, "mrope", batch, single)
    print(f"GPTModel tp={tp} cp={cp} M-RoPE: logits {whole:.1e}")
    assert whole <= 1e-5
    if cp == 2:
        cut = mrope_difference(found, "mrope_cut", batch, single)
        print(f"GPTModel tp={tp} cp={cp} M-RoPE, rows as megatron-core cuts them: logits {cut:.1e}")
        assert cut > 1e-2


def mrope_difference(found: list[dict[str, Any]], kind: str, batch: dict[str, Any], single: dict[str, Any]) -> float:
    logits, _ = gathered([of[kind] for of in found], batch)
    starts = batch.get("cu_seqlens_q_padded", batch["cu_seqlens_q"]).tolist()
    own = [of["logits"][0] for of in single["mrope"]]
    return difference([logits[start : start + len(of)] for start, of in zip(starts, own, strict=False)], own)


@pytest.mark.parametrize("shape", SHAPES)
def test_ranks_of_megatron_give_what_each_member_gives_alone(ranks: Path, shape: str) -> None:
    """Context parallel, tensor and sequence parallel, both; the next token, and two of multi-token prediction."""
    check_depths(ranks, shape)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["1,4,1", "1,8,1", "2,4,1"])
def test_more_ranks_of_megatron(tmp_path: Path, shape: str) -> None:
    check_depths(run_ranks(tmp_path, shape), shape)


def test_stages_of_a_pipeline_give_what_each_member_gives_alone(ranks: Path) -> None:
    """Four packs of one width through Megatron's own schedule, forwards and backwards."""
    (single,), stages = load(ranks, "1,1,1"), load(ranks, "1,1,2")
    found: dict[str, Tensor] = {}
    for stage in stages:
        found |= stage["gradients"]
    assert found.keys() == single["gradients"].keys()
    largest = max(1.0, *(float(grad.abs().max()) for grad in single["gradients"].values()))
    grads = max(float((found[key] - grad).abs().max()) for key, grad in single["gradients"].items()) / largest
    loss = abs(sum(stages[-1]["losses"]) - single["loss"])
    print(f"GPTModel pp=2: loss {loss:.1e} gradients {grads:.1e}")
    assert len(stages[-1]["losses"]) == len(MICRO_BATCHES)
    assert max(loss, grads) <= 1e-5


@pytest.mark.parametrize("multiple_of", [1, 4])
def test_labels_of_later_tokens_stay_within_their_member(multiple_of: int) -> None:
    """megatron-core shifts them between the boundaries it is given: the physical ones, where there are gaps."""
    from megatron.core.transformer.multi_token_prediction import roll_tensor

    members = make_gpt_members()
    batch = thd(members, RowForm(multiple=multiple_of))
    num_wrong = {True: 0, False: 0}
    for physical in num_wrong:
        params = packed_seq_params(batch, physical=physical)
        labels, mask = batch["labels"], batch["loss_mask"]
        for depth in range(1, DEPTH + 1):
            labels, mask = (roll_tensor(x, packed_seq_params=params)[0] for x in (labels, mask))
            expected, _ = later_labels(members, batch, depth)
            num_wrong[physical] += int((torch.where(mask > 0, labels, IGNORE)[0] != expected).sum())
    print(f"multiple {multiple_of}: wrong labels by physical, by real boundaries: {num_wrong}")
    assert num_wrong[True] == 0
    assert (num_wrong[False] > 0) == (multiple_of > 1)


def test_sequence_parallelism_needs_members_that_its_ranks_divide() -> None:
    """T is a sum of members; megatron-core splits it evenly, or not at all."""
    from megatron.core.tensor_parallel.mappings import _split_along_first_dim

    for tp, cp in ((2, 1), (4, 1), (2, 2), (4, 2), (8, 4)):
        own = thd(make_gpt_members(), RowForm(multiple=multiple(tp, cp)))["total_tokens"] // cp
        assert _split_along_first_dim(torch.zeros(own), Group(tp, 0)).shape == (own // tp,)
    with pytest.raises(AssertionError, match="divisible by tensor parallel size"):
        _split_along_first_dim(torch.zeros(thd(make_gpt_members(), RowForm())["total_tokens"] + 1), Group(2, 0))
