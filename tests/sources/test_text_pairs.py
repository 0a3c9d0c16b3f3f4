"""A question and an answer that are texts of their own in a tar are one sample, as their JSON would be."""

import json
from pathlib import Path

import pytest

from energon_pack.sources.rows import IndexRow, rows_of
from energon_pack.sources.wds import dotted_of, index_tar
from energon_pack.verify import Options, verify
from support.packed import Make, json_lines, lengths, packed, samples
from support.samples import picture, write_tar

QUESTION, ANSWER = "What is this?", "A teal picture."


def texts(*names: str) -> dict[str, bytes]:
    """Members of these names, each with what its name says."""
    said = {"jpg": picture(), "json": json.dumps({"question": QUESTION, "answer": ANSWER}).encode()}
    sides = {"question.txt": QUESTION.encode(), "context.txt": QUESTION.encode(), "txt": b"A caption."}
    answers = {"answer.txt": f"{ANSWER}\n".encode(), "response.txt": ANSWER.encode()}
    return {name: (said | sides | answers)[name.partition(".")[2]] for name in names}


def rows(path: Path, *names: str) -> list[IndexRow]:
    return list(rows_of(index_tar(str(write_tar(path, texts(*names)))), IndexRow))


def test_texts_are_packed_as_their_json_would_be(config: Make, tmp_path: Path) -> None:
    """In any order in the tar, with the image between them as in a tar that is sorted by names."""
    write_tar(tmp_path / "texts" / "a.tar", texts("1.jpg", "1.question.txt", "1.answer.txt"))
    write_tar(tmp_path / "texts" / "b.tar", texts("1.answer.txt", "1.jpg", "1.question.txt"))
    write_tar(tmp_path / "texts" / "c.tar", texts("d/1.response.txt", "d/1.context.txt", "d/1.jpg"))
    for name, key in (("a", "1"), ("b", "1"), ("c", "d/1")):
        write_tar(tmp_path / "json" / f"{name}.tar", texts(f"{key}.jpg", f"{key}.json"))
    small = {"packing__max_token_len": 256, "cache_dir": str(tmp_path / "cache")}
    of_texts = packed(config(tmp_path / "texts", output__name="of_texts", **small))
    of_json = packed(config(tmp_path / "json", output__name="of_json", **small))
    assert lengths(of_texts) == lengths(of_json)
    assert len(lengths(of_texts)) == 3
    assert samples(of_texts) == samples(of_json)
    assert json_lines(of_texts / "skipped.jsonl") == []
    assert verify(of_texts, Options(source=[], num_workers=1)).first(9) == []


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["1.jpg", "1.json", "1.question.txt", "1.answer.txt"], [("json", None)]),
        (["1.jpg", "1.txt", "1.question.txt", "1.answer.txt"], [("question.txt", "bad_message")]),
        (
            ["1.question.txt", "1.answer.txt", "2.jpg", "2.question.txt"],
            [("question.txt", None), (None, "missing_json")],
        ),
        (
            ["1.question.txt", "1.answer.txt", "2.question.txt", "3.jpg", "3.txt", "2.answer.txt"],
            [("question.txt", None), (None, "non_adjacent_member"), ("txt", None)],
        ),
    ],
    ids=["a JSON comes first", "a caption, too", "an answer is missing", "the answer is elsewhere"],
)
def test_what_else_a_key_may_have(tmp_path: Path, names: list[str], found: list[tuple[str, str]]) -> None:
    assert [(row.record_part, row.reason) for row in rows(tmp_path / "a.tar", *names)] == found


def test_questions_alone_are_refused_with_what_is_read(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.question.txt": b"q", "1.answers.txt": b"a"})
    about = {name.decode(): value.decode() for name, value in index_tar(str(path)).schema.metadata.items()}
    assert "as 1.question.txt and 1.answer.txt" in str(dotted_of(str(path), about))
