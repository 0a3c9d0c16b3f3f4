"""A source of texts alone: large enough that measuring takes a while."""

from pathlib import Path
from random import Random

from support.samples import chat, write_tar


def write_texts(folder: Path, num_tars: int, num_samples: int, num_words: int) -> Path:
    """Write tars of conversations of random words; the folder of them."""
    random = Random(0)
    words = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(2, 9))) for _ in range(5000)]
    for number in range(num_tars):
        texts = (" ".join(random.choices(words, k=num_words)) for _ in range(num_samples))
        members = [(f"{i:05d}.json", chat("what?", text)) for i, text in enumerate(texts)]
        write_tar(folder / f"{number:03d}.tar", members)
    return folder
