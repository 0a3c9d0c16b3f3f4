"""A source of your own, in a package of its own: `pip install recipes/plugins/tsv_source`, and then

    energon-pack +model=qwen2_5_vl source=jsonl source.format=tsv source.path=a.tsv

A line is a question, an answer and the images of the question, with tabs between them.
"""

import re
from typing import Any

from energon_pack import JsonlShard


class TsvShard(JsonlShard):
    """Lines of a *.tsv."""

    names = re.compile(r"\.tsv$")

    def value(self, raw: bytes) -> dict[str, Any]:
        """The sample of a line, as a line of JSONL would say it."""
        question, answer, *images = raw.decode(errors="replace").split("\t")
        return {"prompts": ["<image>" * len(images) + question], "captions": [answer], "images": images}
