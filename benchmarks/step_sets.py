"""Samples whose steps are hard to even: few long ones among many, and images of unequal number and size."""

from collections.abc import Callable

import numpy as np
from planner import K, lengths

from energon_pack.plan.items import Items


def _items(lens: np.ndarray, visual: np.ndarray, num_images: np.ndarray, media: np.ndarray, answers: float) -> Items:
    """Samples of which a share of the text is trained on, from half to one and a half times `answers`."""
    share = answers * np.random.default_rng(7).uniform(0.5, 1.5, len(lens))
    zeros = np.zeros(len(lens), np.int64)
    counts = {"token_len": lens, "num_images": num_images, "num_visual_tokens": visual}
    return Items(counts, media, zeros, zeros, zeros, ((lens - visual) * share).astype(np.int64))


def mixture(num: int) -> Items:
    """60 % text, 30 % images, 10 % videos; long-tailed. Packs of 8k."""
    rng = np.random.default_rng(0)
    media = rng.choice(3, num, p=[0.6, 0.3, 0.1])
    num_images = np.where(media == 1, rng.choice([1, 1, 1, 2, 4], num), 0)
    visual = np.where(media == 1, num_images * rng.integers(64, 1024, num), 0)
    visual = np.where(media == 2, rng.integers(800, 7000, num), visual)
    text = np.clip(rng.lognormal(5.4, 0.9, num), 20, 4000).astype(np.int64)
    return _items(np.minimum(text + visual, 8 * K), np.minimum(visual, 8 * K - 20), num_images, media, 0.5)


def long_tail(num: int) -> Items:
    """Text; three of five tokens are in samples of over 8k, some of 128k. Packs of 128k."""
    rng = np.random.default_rng(1)
    lens = np.where(rng.random(num) < 0.7, rng.lognormal(6, 1, num), rng.lognormal(9, 1.1, num))
    zeros = np.zeros(num, np.int64)
    return _items(np.clip(lens, 20, 128 * K).astype(np.int64), zeros, zeros, zeros, 0.5)


def tiles(num: int) -> Items:
    """Images of 1 to 13 tiles of 256 tokens, with a short text. Packs of 8k."""
    lens = lengths("256-token tiles", num, 8 * K)
    visual = np.minimum(lens // 256, 13) * 256
    ones = np.ones(len(lens), np.int64)
    return _items(lens, np.minimum(visual, lens - 9), ones, ones, 0.5)


def documents(num: int) -> Items:
    """One to eight pages of up to 4,096 tokens each, of any size. Packs of 32k."""
    rng = np.random.default_rng(2)
    num_images = rng.choice(np.arange(1, 9), num, p=[0.5, 0.2, 0.1, 0.06, 0.05, 0.04, 0.03, 0.02])
    visual = np.minimum(num_images * np.clip(rng.lognormal(6.6, 0.8, num), 64, 4096), 31_000).astype(np.int64)
    text = np.clip(rng.lognormal(5.5, 0.8, num), 20, 1500).astype(np.int64)
    return _items(visual + text, visual, num_images, np.ones(num, np.int64), 0.5)


def conversations(num: int) -> Items:
    """Lognormal texts with 0 to 4 images of 56 to 560 pixels a side, 28 a token; all media share packs of 2k."""
    rng = np.random.default_rng(0)
    num_images = rng.choice(5, num, p=[0.62, 0.21, 0.09, 0.05, 0.03])
    tokens = np.round(rng.integers(56, 561, (num, 4, 2)) / 28).prod(axis=2).astype(np.int64)
    visual = (tokens * (np.arange(4) < num_images[:, None])).sum(axis=1)
    text = np.clip(rng.lognormal(5.2, 1.15, num), 20, None).astype(np.int64)
    zeros = np.zeros(num, np.int64)
    counts = {"token_len": text + visual, "num_images": num_images, "num_visual_tokens": visual}
    return Items(counts, zeros, zeros, zeros, zeros, (text * rng.random(num)).astype(np.int64))


#: name → samples, their number, tokens of a pack
SETS: dict[str, tuple[Callable[[int], Items], int, int]] = {
    "conversations @2k": (conversations, 3_600, 2 * K),
    "mixture @8k": (mixture, 300_000, 8 * K),
    "long tail @128k": (long_tail, 300_000, 128 * K),
    "tiles @8k": (tiles, 200_000, 8 * K),
    "documents @32k": (documents, 200_000, 32 * K),
}
