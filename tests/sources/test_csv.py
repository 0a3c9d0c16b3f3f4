"""CSV and TSV: a record is a sample, found by the quotes before its end, and read by its place."""

import base64
import csv
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_pack.errors import PackError
from energon_pack.samples.dialects.rewrite import with_cells_parsed_as_lists
from energon_pack.samples.settings import Columns, PreferenceTake, ReadSettings, Roles
from energon_pack.samples.skip import Skip
from energon_pack.sources import csv_rows
from energon_pack.sources.csv_rows import CsvRecordScanner, CsvTable, cached_csv_table, index_csv
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.source_path import find_source, source_summary
from energon_pack.sources.storage import InMemoryFile
from energon_pack.sources.wds import index_metadata, parse_index_damage
from support.read_source import Read, read
from support.samples import picture

PNG, WIDE = picture(56, 56, "PNG"), picture(112, 56, "PNG")


def read_text(path: Path, text: str | bytes, **settings: Any) -> dict[str, Read]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(path, **settings)


def texts_of(found: dict[str, Read]) -> list[str]:
    """The texts of the only sample."""
    (sample,) = found.values()
    assert not isinstance(sample, str), sample
    return sample[0]


def records_of(data: bytes, delimiter: str = ",") -> tuple[list[bytes], bool]:
    records = CsvRecordScanner(InMemoryFile(data, ""), 0, delimiter)
    found = [zip(*map(np.ndarray.tolist, places), strict=True) for places in records.places()]
    return [data[offset : offset + size] for block in found for offset, size in block], records.is_open


@pytest.mark.parametrize(
    ("text", "records"),
    [
        ("a,b\n1,2\n", ["a,b", "1,2"]),
        ("a\r\n\r\n1\r\n", ["a", "1"]),
        ("a\r1\r\r2", ["a", "1", "2"]),
        ('a,"1\n2"\n3', ['a,"1\n2"', "3"]),
        ('a,"say ""hi""\n"\nb', ['a,"say ""hi""\n"', "b"]),
        ('a 5" screen\nb', ['a 5" screen', "b"]),
        ('"",\n"x', ['"",', '"x']),
    ],
)
def test_records_end_where_no_quote_is_open(text: str, records: list[str]) -> None:
    assert records_of(text.encode())[0] == [record.encode() for record in records]


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 7, 1 << 20])
def test_records_are_those_of_pythons_csv(block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block may end in a doubled quote, or between CR and LF: a wrong end shifts all ids behind it."""
    monkeypatch.setattr(csv_rows, "_BLOCK_BYTES", block_bytes)
    drawn, num_compared = random.Random(block_bytes), 0
    for _ in range(400):
        text = "".join(drawn.choices('ab,"\n\r"', k=drawn.randrange(1, 30)))
        records, is_open = records_of(text.encode())
        if not is_open:
            expected = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
            assert [next(csv.reader([record.decode()])) for record in records] == expected, text
            num_compared += 1
    assert num_compared > 100


def test_a_table_of_questions(tmp_path: Path) -> None:
    """As a spreadsheet writes it: a byte order mark, CRLF, a line end and quotes in a cell, "007", a blank line."""
    (tmp_path / "a b.png").write_bytes(WIDE)
    text = '\ufeffimage,question,answer\r\na b.png,"What, ""now""\r\nis it?",007\r\n\r\n,No image?,"ja, ä"\r\n'
    assert read_text(tmp_path / "a.csv", text) == {
        "0": (['<image>What, "now"\r\nis it?', "007"], [WIDE]),
        "1": (["No image?", "ja, ä"], []),
    }


@pytest.mark.parametrize(
    ("name", "text", "called"),
    [
        ("a.csv", "question,answer\nq;r,a\n", "CSV, 1 file"),
        ("a.csv", "question;answer\nq;a\n", "CSV (;), 1 file"),
        ("a.csv", "question\tanswer\nq\ta\n", "CSV (tab), 1 file"),
        ("a.tsv", "question\tanswer\nq\ta\n", "TSV, 1 file"),
        ("A.TSV", "question,answer\nq,a\n", "TSV (,), 1 file"),
    ],
)
def test_the_header_tells_what_separates_cells(name: str, text: str, called: str, tmp_path: Path) -> None:
    texts = texts_of(read_text(tmp_path / name, text))
    assert (texts[0][0], texts[1]) == ("q", "a")
    assert source_summary(find_source(SourceConfig(), str(tmp_path / name))) == called


def test_columns_are_those_of_the_dialects(tmp_path: Path) -> None:
    """As JSONL has them; lists are JSON, or Python as pandas writes it."""
    (tmp_path / "a.png").write_bytes(PNG)
    turns = [{"role": "user", "content": "it's?"}, {"role": "assistant", "content": "yes"}]
    tables = {
        "instruction,input,output\ni,,o\n": ["i", "o"],
        "prompt,completion\np,c\n": ["p", "c"],
        "file_name,text\na.png,A cat.\n": ["<image>", "A cat."],
        "image_file_name,question,answer\na.png,q,a\n": ["<image>q", "a"],
        "image,caption\na.png,A cat.\n": ["<image>", "A cat."],
        "image,file_name,text\n,a.png,A cat.\n": ["<image>", "A cat."],
        ",question,answer\n0,q,a\n": ["q", "a"],  # the index of pandas
        "question,answer,,\nq,a,,\n": ["q", "a"],  # empty columns of a spreadsheet
    }
    for written in (json.dumps(turns), repr(turns)):
        line = io.StringIO()
        csv.writer(line).writerows([["messages"], [written]])
        tables[line.getvalue()] = ["it's?", "yes"]
    for text, expected in tables.items():
        assert texts_of(read_text(tmp_path / "a.csv", text)) == expected, text


USER, GOOD, BAD = ({"role": r, "content": t} for r, t in (("user", "q"), ("assistant", "good"), ("assistant", "bad")))


def read_row(path: Path, row: dict[str, str], **settings: Any) -> Read:
    """The only sample of a CSV with one row."""
    line = io.StringIO()
    csv.writer(line).writerows([[*row], [*row.values()]])
    (sample,) = read_text(path, line.getvalue(), **settings).values()
    return sample


@pytest.mark.parametrize("written", [repr, json.dumps], ids=["Python", "JSON"])
def test_a_cell_that_is_a_list_is_one(tmp_path: Path, written: Callable[[Any], str]) -> None:
    """`['cat', 'kitty']` was trained, brackets and all, and turns with their roles; a history of `[]` cost its row."""
    path, twice = tmp_path / "a.csv", written(["one", 'say "Go!" "No!"'])
    history = {"instruction": "i", "output": "o", "history": written([["p", "r"]])}
    rows: list[tuple[dict[str, str], list[str]]] = [
        ({"question": "q", "answers": written(["cat", "kitty"])}, ["q", "cat"]),
        ({"questions": twice, "answers": twice}, ["one", "one", 'say "Go!" "No!"', 'say "Go!" "No!"']),
        ({"prompts": twice, "captions": written(["a", "b"])}, ["one", "a", 'say "Go!" "No!"', "b"]),
        (history, ["p", "r", "i", "o"]),
        ({**history, "history": "[]"}, ["i", "o"]),
        ({"prompt": written([USER]), "completion": written([GOOD])}, ["q", "good"]),
    ]
    for row, texts in rows:
        assert read_row(path, row) == (texts, [])
    pairs = [
        ({"prompt": "q"}, [USER, GOOD], [USER, BAD]),
        ({"prompt": written([USER])}, [GOOD], [BAD]),
        ({"conversations": written([USER])}, GOOD, BAD),
    ]
    for prompt, good, bad in pairs:
        row = {**prompt, "chosen": written(good), "rejected": written(bad)}
        assert read_row(path, row, take=PreferenceTake.chosen) == (["q", "good"], [])
    sides = {"messages": written([USER, GOOD]), "rejected_messages": written([USER, BAD])}
    assert read_row(path, sides, take=PreferenceTake.both) == (["q", "good"], [])


@pytest.mark.parametrize(
    "answer",
    ["['a', 'b']", "[1, 2]", "[[1, 2]]", '[{"name": "Bo", "role": "cook"}]', "[{'role': 'user', 'content': 'x'}]"],
)
def test_an_answer_that_is_a_list_stays_a_text(tmp_path: Path, answer: str) -> None:
    """An answer in JSON or code is what is trained."""
    path = tmp_path / "a.csv"
    for row in ({"prompt": "q", "completion": answer}, {"question": "q", "answer": answer}):
        assert read_row(path, row) == (["q", answer], [])
    pair = {"prompt": "q", "chosen": answer, "rejected": "bad"}
    assert read_row(path, pair, take=PreferenceTake.chosen) == (["q", answer], [])
    if "'" not in answer:
        assert read_row(path, {"question": "q", "answers": answer}) == (["q", answer], [])
    (tmp_path / "a.jsonl").write_text(json.dumps({"question": "q", "answers": answer}))  # it can hold lists
    assert texts_of(read(tmp_path / "a.jsonl")) == ["q", answer]


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q", "answers": str(np.array(["cat", "kitty"], object))},
        {"prompt": str(np.array([USER, GOOD, USER])), "completion": repr([GOOD])},
        {"prompt": "q", "chosen": str(np.array([USER, GOOD])), "rejected": str(np.array([USER, BAD]))},
    ],
)
def test_a_list_as_numpy_prints_it_is_named(tmp_path: Path, row: dict[str, str]) -> None:
    """pandas writes it so after reading Parquet; it was trained as a text."""
    said = read_row(tmp_path / "a.csv", row, take=PreferenceTake.chosen)
    assert "is a list as numpy prints it" in str(said)


@pytest.mark.parametrize(
    "text",
    [
        '[Bob] said "yes" "no" [end]',
        "[the dogs' 'bone']",
        "['a' 'b'] and ['c']",
        "[see 'a' 'b']",
    ],
)
def test_a_text_with_brackets_and_quotes_is_no_list(tmp_path: Path, text: str) -> None:
    """It was refused as a list that numpy prints."""
    assert read_row(tmp_path / "a.csv", {"question": "q", "answers": text}) == (["q", text], [])
    row = {"questions": text, "answers": "a"}
    assert with_cells_parsed_as_lists(row, ReadSettings()) == row
    asked = {"questions": "[1] 'a' 'b'?\n[2]", "answers": "a"}
    assert with_cells_parsed_as_lists(asked, ReadSettings()) == asked


@pytest.mark.parametrize("texts", [["it's", None, 'a\n"b"'], [None, "a", "b"], ["a"] * 2000])
def test_texts_of_numpy_may_be_missing_or_left_out(texts: list[str | None]) -> None:
    """They would be trained, brackets and all."""
    with pytest.raises(Skip, match="answers is a list as numpy prints it"):
        with_cells_parsed_as_lists({"question": "q", "answers": f" {np.array(texts, object)}\n"}, ReadSettings())


@pytest.mark.parametrize(
    "cell",
    [
        '{"from": "bob@x.org", "content": "hi"}',
        '{"role": "admin", "value": "x"}',
        '[{"from": "Paris", "value": 3}]',
        '{"role": "user", "content": 3}',
        '{"role": "user", "content": ["x"]}',
        '{"role": ["user"], "content": "x"}',
        str(np.array([{"from": "Paris", "value": 3}, {"from": "Rome", "value": 4}])),
    ],
)
def test_an_object_with_another_role_is_no_turn(tmp_path: Path, cell: str) -> None:
    """Answers and questions in JSON were refused: a mail, or an account, is no turn."""
    path, other = tmp_path / "a.csv", cell.replace("3", "5").replace("x", "y")
    rows = [
        ({"prompt": "q", "chosen": cell, "rejected": other}, ["q", cell]),
        ({"prompt": cell, "chosen": "a", "rejected": "b"}, [cell, "a"]),
        ({"prompt": cell, "completion": other}, [cell, other]),
    ]
    for row, texts in rows:
        assert read_row(path, row, take=PreferenceTake.chosen) == (texts, [])


@pytest.mark.parametrize("written", [repr, json.dumps], ids=["Python", "JSON"])
def test_a_cell_may_be_one_turn(tmp_path: Path, written: Callable[[Any], str]) -> None:
    """A question that is one object was refused. Roles are known by the settings, too, and calls need no text."""
    path, one = tmp_path / "a.csv", written(USER)
    pair = {"prompt": one, "chosen": "good", "rejected": "bad"}
    assert read_row(path, pair, take=PreferenceTake.chosen) == (["q", "good"], [])
    assert read_row(path, {"prompt": one, "completion": written(GOOD)}) == (["q", "good"], [])
    in_parts = [{**USER, "content": [{"type": "text", "text": "q"}]}]
    assert read_row(path, {"prompt": written(in_parts), "completion": written([GOOD])}) == (["q", "good"], [])
    spelled = {"prompt": written({"who": "Kunde", "said": "q"}), "completion": written({"who": "Bot", "said": "good"})}
    settings = ReadSettings(columns=Columns(role="who", content="said"), roles=Roles(user="Kunde", assistant="Bot"))
    assert with_cells_parsed_as_lists(spelled, settings)["completion"] == [{"who": "Bot", "said": "good"}]
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "args": {}}]}
    called = {"prompt": written([USER]), "completion": written([call])}
    assert with_cells_parsed_as_lists(called, ReadSettings())["completion"] == [call]


def test_an_empty_list_of_answers_is_named(tmp_path: Path) -> None:
    """The question was named in its place."""
    said = "bad_message: read as 'question and answers', and its answers is empty or of another form: '[]'"
    assert read_row(tmp_path / "a.csv", {"question": "q", "answers": "[]"}) == said


def test_fields_that_are_not_read_stay_as_they_are(tmp_path: Path) -> None:
    row = {"messages": repr([USER, GOOD]), "answers": "['a']", "history": "[['p', 'r']]"}
    assert with_cells_parsed_as_lists(row, ReadSettings()) == row
    assert read_row(tmp_path / "a.csv", row) == (["q", "good"], [])


def test_bad_rows_cost_themselves(tmp_path: Path) -> None:
    rows = [b"q,a", b"q", b"q,a,b", b'"q" x,a', b"q,caf\xe9", b"messages,[{'role': array(1)}]", b'q,"b\n\xc3\xa4"']
    found = read_text(tmp_path / "a.csv", b"question,answer\n" + b"\n".join(rows) + b"\n")
    assert [*found] == [str(number) for number in range(7)]
    assert [found[key] for key in ("0", "6")] == [(["q", "a"], []), (["q", "b\nä"], [])]
    assert found["1"] == "invalid_json: 1 cells for 2 columns (question, answer): 'q'"
    assert found["2"] == "invalid_json: 3 cells for 2 columns (question, answer): 'q, a, b'"
    assert str(found["3"]).startswith("invalid_json: its quotes: ',' expected after '\"'")
    assert (
        found["4"] == "invalid_json: byte 0xe9 is not UTF-8, in b'q,caf\\xe9': iconv -f LATIN1 -t UTF-8 may write it so"
    )
    (lost,) = read_text(tmp_path / "d.csv", "image_file_name,text\n,A cat.\n").values()  # it was a document
    assert str(lost).startswith("missing_media: it is a caption, and image is empty")
    joined = read_text(tmp_path / "c.csv", "question,answer\nq,a\nquestion,answer\n")  # it was trained
    assert str(joined["1"]).startswith("invalid_json: it names the columns again, as in files that were joined")
    unread = read_text(tmp_path / "b.csv", "messages\n\"[{'role': array(1)}]\"\n")["0"]
    assert str(unread).startswith(("no_messages", "bad_message"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'q,a\n1,2\n3,"4\n5,6\n', "record 1 has a quote without an end, and all behind it is in this cell"),
        (b"q,a\n1,2\n3,4\n5", "it breaks off within record 2, at byte 13: 1 cells"),
        (b"", "it is empty"),
        (b"q,a\n1,2\n3,4\n\0\0\0\0", "NUL bytes in place of text"),
    ],
)
def test_a_cut_table_is_damaged(text: bytes, said: str, tmp_path: Path) -> None:
    """`source.on_damaged=keep` packs the records before the damage."""
    path = tmp_path / "a.csv"
    with pytest.raises(PackError, match=said):
        read_text(path, text)
    index = index_csv(str(path))
    assert said in parse_index_damage(index_metadata(index))[0][1]
    assert index["reason"].to_pylist()[:-1] == [None] * (len(index) - 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            b"q,a,q\n",
            "has the name 'q' twice: 'q, a, q': name each column once, as image,question,answer, in a line before it if"
            " it is a row, else in its place; source.columns.* takes other names",
        ),
        (b"q,,a\n", "has a column without a name: 'q, , a'"),
        (b",,\n1,2,3\n", "has a column without a name"),
        ("q,a\n1,2\n".encode("utf-16"), "is UTF-16, and tables are read in UTF-8: iconv writes them so"),
        (b"caf\xe9,a\n", "its first line, which names the columns: byte 0xe9 is not UTF-8"),
        (b'q,"a\n1,2\n3,4\n', "has no end"),
        (b"PAR1 and more", "is Parquet"),
        (b"\x1f\x8b and more", "is compressed"),
    ],
)
def test_a_file_that_names_no_columns_is_refused(text: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(text)
    with pytest.raises(PackError) as raised:
        index_csv(str(path))
    assert said in str(raised.value)


def test_images_in_base64_are_named_by_their_record(tmp_path: Path) -> None:
    """As the TSVs of VLMEvalKit; a quote without an end in one file may not shift the images of another."""
    text = "index\timage\tquestion\tanswer\n" + "".join(
        f"{n}\t{base64.b64encode(image + bytes(300)).decode()}\tq\ta\n\n" for n, image in enumerate((PNG, WIDE))
    )
    found = read_text(tmp_path / "a.tsv", text)
    assert found == {"0": (["<image>q", "a"], [PNG + bytes(300)]), "1": (["<image>q", "a"], [WIDE + bytes(300)])}
    assert csv_rows.open_cell(str(tmp_path / "a.tsv"), "1/image").read(0, 99) == (WIDE + bytes(300))[:99]
    for key in ("2/image", "1/picture", "x/image"):
        with pytest.raises(KeyError):
            csv_rows.open_cell(str(tmp_path / "a.tsv"), key)


@pytest.mark.parametrize("written", [repr, json.dumps], ids=["Python", "JSON"])
def test_a_list_of_images_in_base64_is_one_cell(tmp_path: Path, written: Callable[[Any], str]) -> None:
    """As the TSVs of VLMEvalKit that have several images a question: each was a path that nobody has."""
    images = [base64.b64encode(image + bytes(300)).decode() for image in (PNG, WIDE)]
    cell = written(images).replace('"', '""')
    found = read_text(tmp_path / "a.tsv", f'image\tquestion\tanswer\n"{cell}"\t<image>or<image>?\ta\n')
    assert found == {"0": (["<image>or<image>?", "a"], [PNG + bytes(300), WIDE + bytes(300)])}
    assert csv_rows.open_cell(str(tmp_path / "a.tsv"), "0/image/1").read(0, 99) == (WIDE + bytes(300))[:99]
    with pytest.raises(KeyError):
        csv_rows.open_cell(str(tmp_path / "a.tsv"), "0/image/2")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_carriage_return_is_text_where_it_ends_no_line(end: str, tmp_path: Path) -> None:
    """pandas writes it without quotes: the rest of the text became the question of another sample."""
    cell = "lost?\rfound?" if end != "\r" else '"lost?\rfound?"'
    rows = ["question,answer", f"{cell},a", 'b,"c\rd"', ""]
    expected: dict[str, Read] = {"0": (["lost?\rfound?", "a"], []), "1": (["b", "c\rd"], [])}
    assert read_text(tmp_path / "a.csv", end.join(rows)) == expected
    assert read_text(tmp_path / "b.csv", "\n".join(rows[:2]) + "\r") == {"0": expected["0"]}


@pytest.mark.parametrize("block_bytes", [1, 4, 7, 1 << 20])
def test_a_quote_without_an_end_is_damage_wherever_it_stands(
    block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took all rows up to the next quote into one cell, and the ledger had one line for all of them."""
    monkeypatch.setattr(csv_rows, "_BLOCK_BYTES", block_bytes)
    rows = ["question,answer", '"q, or ""r""?\nNo.",a', '"q" x,a', '"lost,a', *["q,a"] * 5, '"q, or r?",a', "q,a", ""]
    with pytest.raises(PackError, match="record 2 takes 7 lines, for a quote in it has no end or is not doubled at"):
        read_text(tmp_path / "a.csv", "\n".join(rows))
    found = read_text(tmp_path / "a.csv", "\n".join(rows[:3]))
    assert (found["0"], str(found["1"])[:12]) == ((['q, or "r"?\nNo.', "a"], []), "invalid_json")


def test_a_huge_cell_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell of 2 GB took the memory of the whole run."""
    monkeypatch.setattr(csv_rows, "_MAX_ROW_BYTES", 1000)
    found = read_text(tmp_path / "a.csv", f"question,answer\nq,{'a' * 2000}\nq,a\n")
    assert found["0"] == "invalid_json: record 0 has 2.0 kB, and 1.0 kB are read"
    assert found["1"] == (["q", "a"], [])


def test_cells_are_texts_and_empty_ones_are_none() -> None:
    table = CsvTable("a.csv", ",", ["a", "b", "c"], 0)
    assert table.cells(b'007,,"x, y"') == {"a": "007", "c": "x, y"}
    with pytest.raises(Skip, match="2 cells for 3 columns"):
        table.cells(b"1,2")


def test_a_header_alone_has_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("question,answer")
    assert (cached_csv_table(str(path)).columns, len(index_csv(str(path)))) == (["question", "answer"], 0)
