"""A processor is asked for what it writes, and is afterwards as it was."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from energon_pack.samples.media.medium import Media
from energon_pack.templates.families.asking import Asking
from energon_pack.templates.families.stand_ins import Blank


class Sizes(Blank):
    """Media that are their sizes."""

    def stand_in(self, medium: Media, num_frames: int) -> Any:
        return medium.width, medium.height


class Slow:
    """A processor that writes as many words as an image is wide; slower the second time."""

    def __init__(self) -> None:
        self.tokenizer = str.split
        self._seconds = iter((0.2, 0.4))
        self.begun = threading.Event()

    def __call__(self, text: list[str], images: list[tuple[int, int]], return_tensors: str) -> Any:
        self.begun.set()
        time.sleep(next(self._seconds))
        return self.tokenizer(text[0].replace("<image>", "x" * images[0][0]))


def test_two_threads_may_ask_one_processor() -> None:
    """The one that ended last put the other's tokenizer back: no later call was of the processor as it was."""
    processor = Slow()
    asking = Asking(processor, Sizes(), {"image": {}, "video": {}})

    def written(width: int) -> list[str]:
        return asking.texts({"image": "<image>"}, [Media("image", width, 9)], [()])[0]

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(written, 3)
        assert processor.begun.wait(60)
        second = pool.submit(written, 5)
        assert (first.result(), second.result()) == (["xxx"], ["xxxxx"])
    assert processor.tokenizer is str.split
