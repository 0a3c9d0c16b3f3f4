"""Read a question and an answer in separate texts of a tar: together they become the JSON of a sample.

00012.jpg, 00012.question.txt, 00012.answer.txt  ──►  {"question": "…", "answer": "…"}
"""

import json
from collections.abc import Mapping
from itertools import takewhile

from energon_pack.samples.bytes import Bytes, Range
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.copies import source_key
from energon_pack.sources.tar import BLOCK, TarScan

_QUESTIONS = tuple(f"{name}.txt" for name in ("question", "context", "prompt", "query", "instruction"))
_ANSWERS = tuple(f"{name}.txt" for name in ("answer", "response", "output", "completion"))
#: the parts that are a question or an answer
SIDES = frozenset((*_QUESTIONS, *_ANSWERS))

_Member = tuple[str, int, int]  # part, offset, size


def first_of_pair(parts: Mapping[str, _Member]) -> _Member | None:
    """Return the first text of a question with its answer; None: there is no such pair, or a third text."""
    if SIDES.isdisjoint(parts):
        return None
    sides = [parts[name] for name in parts if name in SIDES]
    is_pair = len(sides) == 2 and len({name in _QUESTIONS for name, _, _ in sides}) == 2
    return min(sides, key=lambda member: member[1]) if is_pair and min(size for *_, size in sides) >= 0 else None


def question_and_answer(first: bytes, file: Bytes, key: str, part: str, offset: int) -> bytes:
    """Return the JSON of a question with its answer; the second text follows the first in the tar."""
    start = -(-(offset + len(first)) // BLOCK) * BLOCK
    keys = key, source_key(key)
    names = {f"{each}.{name}": name for each in keys for name in SIDES}
    begins = tuple(f"{each}." for each in keys)
    own = takewhile(lambda member: member[0].startswith(begins), TarScan(Range(file, start, file.size - start)))
    second = next(((names[name], start + place, size) for name, place, size in own if name in names), None)
    if second is None:
        raise Skip(Reason.NON_ADJACENT_MEMBER, f"no other text of its key follows {part}")
    texts = {part: first, second[0]: file.read(*second[1:])}
    try:
        sides = {name in _QUESTIONS: text.decode().strip() for name, text in texts.items()}
    except UnicodeDecodeError as error:
        raise Skip(Reason.BAD_MESSAGE, f"{' or '.join(texts)} is not UTF-8: {error}") from None
    return json.dumps({"question": sides[True], "answer": sides[False]}).encode()
