"""Which tokens stand for a medium or frame one, by the names of a processor's special tokens: no code of ours."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.sample import Message
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.sources.jsonl.line_index import index_lines
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.sample import read_sample
from energon_pack.sources.source_file import IndexRow, rows_of
from energon_pack.sources.wds import index_tar
from energon_pack.templates.sample import Sample, Tokens
from energon_pack.templates.template import Template
from support.finding import find_lines, find_shards

_NAME = re.compile(r"image|img|vision|video|media|row_\d|fake_token|patch", re.IGNORECASE)
#: what Qwen3-VL writes before each frame of a video
_TIME = re.compile(r"<\d+(\.\d+)? seconds>(?=<\|vision_start\|>)")


def media_ids(template: Template) -> set[int]:
    """Ids of the tokens that stand for media or frame them."""
    added = template.tokenizer.get_added_tokens_decoder()
    return {id_ for id_, token in added.items() if _NAME.search(token.content)}


def wrong_labels(template: Template, sample: Sample) -> int:
    """How many tokens of media are trained; raises Skip."""
    rendered = template.render(sample)
    tokens: Tokens = template.tokenize([rendered])[0]
    trained = [i for start, end in tokens.supervised for i in range(start, end)]
    ids = media_ids(template)
    times = [match.span() for match in _TIME.finditer(rendered.text)]
    if times:
        offsets = template.tokenizer.encode(rendered.text, add_special_tokens=False).offsets
        timed = {i for i, (start, _) in enumerate(offsets) if any(first <= start < end for first, end in times)}
    else:
        timed = set()
    return sum(tokens.ids[i] in ids or i in timed for i in trained)


def answered_with_media(messages: Sequence[Message]) -> list[Message]:
    """A conversation whose media stand in the answers: those of each question move into the answer that follows."""
    moved: list[Message] = []
    waiting = ""
    for message in messages:
        content = message["content"]
        if isinstance(content, str) and message["role"] == "user":
            waiting += "".join(re.findall("<image>|<video>", content))
            message = {**message, "content": re.sub("<image>|<video>", "", content)}
        elif isinstance(content, str) and message["role"] == "assistant" and waiting:
            message, waiting = {**message, "content": f"Look: {waiting} so {content}"}, ""
        moved.append(message)
    return moved


def samples_of(path: Path) -> Iterator[ReadSample]:
    """All samples of a folder of tars, or of a JSONL file, that can be read."""
    is_lines = path.suffix == ".jsonl"
    source = find_lines(str(path)) if is_lines else find_shards(str(path))
    with SourceReader() as reader:
        for shard in source.shards:
            table = (index_lines if is_lines else index_tar)(shard.path)
            for row in rows_of(table, IndexRow):
                if row.reason is None:
                    try:
                        yield read_sample(reader, shard, row, ReadSettings())
                    except Skip:
                        continue
