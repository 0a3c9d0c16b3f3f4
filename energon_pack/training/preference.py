"""Preference pairs in batches: which members are a pair, their log-probabilities, and the losses over them.

logits, batch ──member_logps──► log p of each side's answer ──preference_loss──► one number, by pairs
reference model ──write_reference_logps──► a file ──PairBatchKeys──► `reference_logps` of a batch
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from energon_pack.training.encoded import IGNORE, BadPack, TrainingPack

#: the error of an SFT loss, or of a door to one, for a batch of preference pairs
SFT_REFUSED = (
    "these packs hold preference pairs, whose rejected answers no SFT loss may see: preference_loss trains them,"
    " source.take=chosen packs the good sides for SFT"
)
#: settings of an encoder that pairs allow one value of
_OPTIONS = {"layout": "neat", "labels": "unshifted", "loss_weight": None}


def refuse_sft_options(layout: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError for an option of a `PackEncoder` that would train a side of a pair by SFT."""
    asked = {**_OPTIONS, **options, "layout": options.get("layout") or layout}
    if name := next((name for name, only in _OPTIONS.items() if asked[name] != only), None):
        raise ValueError(f"{name}={asked[name]}: {SFT_REFUSED}")


class PairBatchKeys:
    """Makes the keys that preference pairs add to a batch: `preference_pairs`, and `reference_logps` from a file.

    It also keeps the pairs of a pack whole.

    Args:
        made: energon_pack.json of the dataset.
        layout, options: of a `PackEncoder`.

    Raises:
        ValueError: the layout or an option would train a side of a pair by SFT; or there are no pairs.
    """

    def __init__(self, made: Mapping[str, Any], layout: str, options: Mapping[str, Any]):
        self._file, self._parts = options["reference_logps"], [f"{part['name']}/" for part in made.get("parts") or ()]
        if not made.get("pairs"):
            raise ValueError(
                f"reference_logps={self._file}: the packs hold no preference pairs: source.take=both packs some"
            )
        refuse_sft_options(layout, options)
        if self._file is not None:
            with np.load(self._file, allow_pickle=False) as content:
                self._members, self._logps = content["members"], content["logps"]

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the keys; BadPack: a member is no side of a pair, or the file lacks one."""
        keys = {"preference_pairs": pairs_in(batch["sample_ids"])}
        if self._file is None:
            return keys
        names = np.array(_member_names(batch, self._parts))
        places = np.searchsorted(self._members, names) % max(1, len(self._members))
        if len(missing := names[self._members[places] != names] if len(self._members) else names):
            why = f"{self._file} has no reference_logps of {missing[0].decode()}"
            raise BadPack(f"{why}: write_reference_logps writes them, recipes/reference_logps.py for packs on disk")
        return {**keys, "reference_logps": torch.from_numpy(self._logps[places])}

    def without_broken_pairs(
        self, pack: TrainingPack | None, members: Iterable[Any], encode: Callable[[list[Any]], TrainingPack | None]
    ) -> TrainingPack | None:
        """Return a pack without the other sides of its members that were dropped; None: no pair of it is left.

        Args:
            pack: made of `members`; None: all were dropped.
            encode: makes a pack of some of them.
        """
        if pack is None or not pack.dropped:
            return pack
        lost = {name.rpartition("+")[0] for name in pack.dropped}
        kept = [member for member in members if member.sample_id.rpartition("+")[0] not in lost]
        if len(kept) == len(pack.members):
            return pack
        gone = [member.sample_id for member in members if member.sample_id.rpartition("+")[0] in lost]
        again = encode(kept) if kept else None
        return again and replace(again, dropped=[*gone, *again.dropped])


def write_reference_logps(path: str | PathLike[str], batches: Iterable[tuple[Mapping[str, Any], Tensor]]) -> int:
    """Write a reference model's `member_logps` of all batches to a file (.npz) that `PackEncoder` reads.

    `batches`: pairs of a batch and its log-probabilities. Returns the number of members.
    """
    logps = {
        name: one for batch, each in batches for name, one in zip(_member_names(batch), each.tolist(), strict=True)
    }
    names = sorted(logps)
    np.savez(path, members=np.array(names, "S"), logps=np.array([logps[name] for name in names], np.float64))
    return len(names)


def _member_names(batch: Mapping[str, Any], parts: Sequence[str] = ()) -> list[bytes]:
    """Return for each member of a batch the name of its dataset and its id.

    The name is the beginning of its pack's key, before a lazy dataset's epoch; that of a stream is empty.

    Args:
        parts: what ids begin with in an order over several datasets, and not in these.
    """
    rows = zip(batch["__key__"], batch["sample_ids"], strict=True)
    names = ((key.rpartition("_")[0].partition("_")[0], sample_id) for key, row in rows for sample_id in row)
    parts_of = ((name, sample_id, next(filter(sample_id.startswith, parts), "")) for name, sample_id in names)
    return [f"{name}/{sample_id.removeprefix(part)}".encode() for name, sample_id, part in parts_of]


def pairs_in(sample_ids: Sequence[Sequence[str]]) -> Tensor:
    """Return `preference_pairs` of a batch, int64 [n, 2]: the numbers of each pair's chosen and rejected member.

    Members are counted from 0 over all rows, in the order of `sample_ids`. Raises BadPack for one without its pair.
    """
    for row in sample_ids:
        for place in range(0, len(row), 2):
            sample = row[place].removesuffix("+chosen")
            if [*row[place : place + 2]] != [f"{sample}+chosen", f"{sample}+rejected"]:
                raise BadPack(f"{row[place]}: no side of a preference pair with the other side behind it")
    return torch.arange(sum(map(len, sample_ids))).view(-1, 2)


def member_logps(logits: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """Return the log-probability of each member's trained tokens, summed in float64: [members], with gradients.

    Args:
        logits: [B, S, vocabulary] of a batch of preference pairs.

    Raises:
        ValueError: the batch has no pairs: trained tokens may then belong to several members.
    """
    is_trained, number = _trained_places(batch)
    kept = logits[:, :-1][is_trained.to(logits.device)]  # [n, vocabulary]: no copy of all logits
    labels = batch["labels"][:, 1:][is_trained].to(logits.device)
    each = -cross_entropy(kept if kept.dtype == torch.float64 else kept.float(), labels, reduction="none")
    sums = torch.zeros(sum(map(len, batch["sample_ids"])), dtype=torch.float64, device=logits.device)
    return sums.index_add(0, number.to(logits.device), each.double())


def _trained_places(batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return which places predict a trained token, bool [B, S - 1], and the number of the member of each: [n]."""
    if "preference_pairs" not in batch:
        raise ValueError("this batch has no preference pairs: source.take=both packs some")
    is_trained, of_row = batch["labels"][:, 1:] != IGNORE, batch["doc_ids"][:, 1:].long() - 1
    before = torch.tensor([0, *map(len, batch["sample_ids"])], device=of_row.device).cumsum(0)[:-1]
    return is_trained, (of_row + before[:, None])[is_trained]


def num_pairs(batch: Mapping[str, Any]) -> Tensor:
    """Return the number of pairs of a batch, float64 0-d; add it up over the batches and ranks of a step."""
    return torch.tensor(float(len(batch["preference_pairs"])), dtype=torch.float64)


def preference_loss(
    policy_logps: Tensor,
    reference_logps: Tensor,
    batch: Mapping[str, Any],
    beta: float = 0.1,
    kind: str = "sigmoid",
    total: Tensor | None = None,
) -> Tensor:
    """Return the mean loss over the pairs of a step, float64 0-d: Σ over this batch's pairs / `total`.

    With m, the log ratio of policy and reference of the chosen side minus that of the rejected side:
    `sigmoid`: -log sigmoid(βm) (DPO, arXiv 2305.18290); `hinge`: max(0, 1 - βm) (SLiC, arXiv 2305.10425); `ipo`:
    (m - 1/2β)², each side's log ratio divided by its trained tokens (arXiv 2310.12036, as TRL does).

    Args:
        policy_logps, reference_logps: [members], as `member_logps` returns them.
        total: `num_pairs` over all batches of one step, accumulated and on all ranks. By default this batch's own.

    Raises:
        ValueError: no such kind, or a β that is not above 0.
    """
    losses: dict[str, Callable[[Tensor], Tensor]] = {
        "sigmoid": lambda margin: -logsigmoid(beta * margin),
        "hinge": lambda margin: torch.relu(1 - beta * margin),
        "ipo": lambda margin: (margin - 1 / (2 * beta)) ** 2,
    }
    if kind not in losses or beta <= 0:
        raise ValueError(f"kind={kind}, beta={beta}: a kind is {', '.join(losses)}, and beta is more than 0")
    ratios = policy_logps - reference_logps.to(policy_logps.device)
    if kind == "ipo":
        ratios = ratios / torch.bincount(_trained_places(batch)[1], minlength=len(ratios)).to(ratios.device)
    chosen, rejected = batch["preference_pairs"].to(ratios.device).T
    loss: Tensor = losses[kind](ratios[chosen] - ratios[rejected]).sum()
    return loss / (num_pairs(batch) if total is None else total).to(ratios.device)
