"""Preference pairs in batches: which members are a pair, their log-probabilities, and the losses over them.

logits, batch ──member_logps──► log p of each side's answer ──preference_loss──► one number, by pairs
reference model ──write_reference_logps──► a file ──ReferenceLogps──► `reference_logps` of a batch
"""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from energon_pack.training.encoded import BadPack
from energon_pack.training.layout import IGNORE

#: the error of an SFT loss, or of a door to one, for a batch of preference pairs
SFT_REFUSED = (
    "these packs hold preference pairs, whose rejected answers no SFT loss may see: preference_loss trains them,"
    " source.take=chosen packs the good sides for SFT"
)
#: settings of an encoder that pairs allow one value of
_OPTIONS = {"layout": "neat", "labels": "unshifted", "loss_weight": None, "on_bad_member": "raise"}


class PairKeys:
    """Makes the keys that preference pairs add to a batch: `preference_pairs`, and `reference_logps` from a file.

    Args:
        made: energon_pack.json of the dataset.
        layout, options: of a `PackEncoder`.

    Raises:
        ValueError: the layout or an option would lose a side of a pair, or train it by SFT; or there are no pairs.
    """

    def __init__(self, made: Mapping[str, Any], layout: str, options: Mapping[str, Any]):
        file, asked = options.get("reference_logps"), {**options, "layout": layout}
        if not made.get("pairs"):
            raise ValueError(f"reference_logps={file}: the packs hold no preference pairs: source.take=both packs some")
        if name := next((name for name, only in _OPTIONS.items() if asked.get(name, only) != only), None):
            raise ValueError(f"{name}={asked[name]}: {SFT_REFUSED}")
        self._reference = None if file is None else ReferenceLogps(file)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the keys; BadPack: a member is no side of a pair, or the file lacks one."""
        keys = {"preference_pairs": pairs_in(batch["sample_ids"])}
        return keys if self._reference is None else keys | {"reference_logps": self._reference.of_batch(batch)}


def pairs_in(sample_ids: Sequence[Sequence[str]]) -> Tensor:
    """Return `preference_pairs` of a batch, int64 [n, 2]: the numbers of each pair's chosen and rejected member.

    Members are counted from 0 over all rows, in the order of `sample_ids`. Raises BadPack for one without its pair.
    """
    ids = [sample_id for row in sample_ids for sample_id in row]
    for row in sample_ids:
        for place in range(0, len(row), 2):
            sample = row[place].removesuffix("+chosen")
            if [*row[place : place + 2]] != [f"{sample}+chosen", f"{sample}+rejected"]:
                raise BadPack(f"{row[place]}: no side of a preference pair with the other side behind it")
    return torch.arange(len(ids)).view(-1, 2)


def member_logps(logits: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """Return the log-probability of each member's trained tokens, summed in float64: [members], with gradients.

    Args:
        logits: [B, S, vocabulary] of a batch of preference pairs.

    Raises:
        ValueError: the batch has no pairs: trained tokens may then belong to several members.
    """
    labels, number = _labels_and_members(batch)
    is_trained = labels != IGNORE
    of_trained = logits[:, :-1][is_trained.to(logits.device)]  # [n, vocabulary]: no copy of all logits
    wide = of_trained if of_trained.dtype == torch.float64 else of_trained.float()
    each = -cross_entropy(wide, labels[is_trained].to(logits.device), reduction="none")
    sums = torch.zeros(_num_members(batch), dtype=torch.float64, device=logits.device)
    return sums.index_add(0, number[is_trained].to(logits.device), each.double())


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
        ValueError: no such kind; or a β that is not above 0.
    """
    if beta <= 0:
        raise ValueError(f"beta={beta}: more than 0")
    ratios = policy_logps - reference_logps.to(policy_logps.device)
    if kind == "ipo":
        labels, number = _labels_and_members(batch)
        counts = torch.bincount(number[labels != IGNORE], minlength=len(ratios))
        ratios = ratios / counts.to(ratios.device)
    chosen, rejected = batch["preference_pairs"].to(ratios.device).T
    margin = ratios[chosen] - ratios[rejected]
    if kind == "sigmoid":
        losses = -logsigmoid(beta * margin)
    elif kind == "hinge":
        losses = torch.relu(1 - beta * margin)
    elif kind == "ipo":
        losses = (margin - 1 / (2 * beta)) ** 2
    else:
        raise ValueError(f"kind={kind}: sigmoid, hinge or ipo")
    loss: Tensor = losses.sum() / (num_pairs(batch) if total is None else total).to(ratios.device)
    return loss


def _num_members(batch: Mapping[str, Any]) -> int:
    if "preference_pairs" not in batch:
        raise ValueError("this batch has no preference pairs: source.take=both packs some")
    return sum(map(len, batch["sample_ids"]))


def _labels_and_members(batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return for the places that predict a token, [B, S - 1] each: its label, and the number of its member."""
    num_before = np.cumsum([0, *map(len, batch["sample_ids"])])[:-1]
    _num_members(batch)
    labels, of_row = batch["labels"][:, 1:], batch["doc_ids"][:, 1:].long() - 1
    return labels, of_row + torch.from_numpy(num_before).to(of_row.device)[:, None]


# -------------------------------------------------------------------------------------- of a reference model, on disk


def write_reference_logps(path: str | PathLike[str], batches: Iterable[tuple[Mapping[str, Any], Tensor]]) -> int:
    """Write a reference model's `member_logps` of all batches to a file (.npz) that `PackEncoder` reads.

    `batches`: pairs of a batch and its log-probabilities. Returns the number of members.
    """
    logps = {
        key: value for batch, of_batch in batches for key, value in zip(_keys(batch), of_batch.tolist(), strict=True)
    }
    keys = sorted(logps)
    np.savez(path, keys=np.array(keys), logps=np.array([logps[key] for key in keys], np.float64))
    return len(keys)


def _keys(batch: Mapping[str, Any]) -> list[bytes]:
    """Return for each member of a batch the name of its dataset (the beginning of its pack's key) and its id."""
    rows = zip(batch["__key__"], batch["sample_ids"], strict=True)
    return [f"{key.rpartition('_')[0]}/{sample_id}".encode() for key, row in rows for sample_id in row]


class ReferenceLogps:
    """The log-probabilities that a reference model gives to members, from a file of `write_reference_logps`."""

    def __init__(self, path: str | PathLike[str]):
        self._path = path
        with np.load(path, allow_pickle=False) as content:
            self._keys, self._logps = content["keys"], content["logps"]
        if not len(self._keys):
            raise ValueError(f"{path} holds no reference_logps: recipes/reference_logps.py writes them")

    def of_batch(self, batch: Mapping[str, Any]) -> Tensor:
        """Return those of a batch's members, float64 [members]; BadPack: the file has none of a member."""
        wanted = np.array(_keys(batch))
        places = np.searchsorted(self._keys, wanted).clip(max=len(self._keys) - 1)
        is_there = self._keys[places] == wanted
        if not is_there.all():
            missing = wanted[int(np.argmin(is_there))].decode()
            raise BadPack(f"{self._path} has no reference_logps of {missing}: recipes/reference_logps.py writes them")
        return torch.from_numpy(self._logps[places])
