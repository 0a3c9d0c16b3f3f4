"""Decide how often each sample of a mixture is packed, by the trained tokens that its entry should have. Pure.

weights 40, 60 ──► epochs of each entry, with as many trained tokens in total as all entries have
epochs 2.3     ──► each sample twice, and samples with 0.3 of the entry's trained tokens once more
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from energon_pack.errors import PackError
from energon_pack.run.seeded import Ints, random_keys
from energon_pack.sources.mixture import Entry, WeightOf

#: a sample that comes more often than this is named in the report
MANY_EPOCHS = 4.0


@dataclass(frozen=True)
class EntryShare:
    """The share that an entry should have, and the draws that give it."""

    name: str
    asked: float | None  # the requested share; None: epochs were requested
    epochs: float  # how often each of its samples comes
    samples: int  # samples that may be drawn
    tokens: int  # their trained tokens
    of: WeightOf = "tokens"  # whether `asked` is a share of the trained tokens or of the samples


def shares_of(entries: Sequence[Entry], entry: Ints, trained: Ints) -> list[EntryShare]:
    """Decide how often the samples of each entry come.

    Args:
        entry: int[num_samples] index into `entries`.
        trained: int[num_samples] trained tokens; 0: the sample can't be packed.

    Raises:
        PackError: an entry with a weight has nothing to train on.
    """
    tokens = np.bincount(entry, trained, len(entries))
    samples = np.bincount(entry, trained > 0, len(entries))
    sizes = samples if entries[0].weight_of == "samples" else tokens
    total, weights = sizes.sum(), sum(item.weight or 0.0 for item in entries)
    shares = list[EntryShare]()
    for item, num_tokens, num_samples in zip(entries, tokens.tolist(), samples.tolist(), strict=True):
        if item.weight and not num_tokens:
            raise PackError(f"mixture: {item.name} has the weight {item.weight:g}, and no sample that can be trained")
        asked = None if item.weight is None else item.weight / weights
        epochs = (item.epochs or 0.0) if asked is None else float(asked * total / max(1, sizes[len(shares)]))
        shares.append(EntryShare(item.name, asked, epochs, int(num_samples), int(num_tokens), item.weight_of))
    return shares


def draws(times: float, trained: Ints, by_tokens: bool, seed: int, stream: int, num_epochs: int = 1) -> Ints:
    """Return how often each sample of an entry comes in each epoch.

    Args:
        times: how often a sample comes on average.
        trained: int[num_samples] trained tokens of each.
        by_tokens: average over tokens, else over samples.
        stream: a number of the entry, so that two entries do not draw alike.

    Returns:
        int64[num_epochs, num_samples]: `times` rounded down or up. The samples that are rounded up hold the fraction of
        `times` of the tokens, or of the samples, to the nearest sample. They take turns: over any consecutive epochs
        the counts of two samples differ by at most 1.
    """
    whole = int(times)
    by_chance = np.argsort(random_keys(len(trained), seed, stream), kind="stable")
    size = trained[by_chance].astype(np.float64) if by_tokens else np.ones(len(trained))
    place = np.empty(len(trained))
    place[by_chance] = (np.cumsum(size) - size / 2) / max(1.0, size.sum())
    more = times - whole
    starts = np.arange(num_epochs) * more
    return whole + ((place - starts[:, None]) % 1 < more).astype(np.int64)


def chosen(num: int, most: int | None, seed: int, stream: int) -> np.ndarray:
    """Choose at most `most` of `num` samples at random: bool[num]."""
    is_in = np.ones(num, np.bool_)
    if most is not None and most < num:
        is_in[np.argsort(random_keys(num, seed, stream), kind="stable")[most:]] = False
    return is_in
