"""A terminal shows what data bring, and obeys none of it; a table that is wider loses none of its numbers."""

import json
import logging
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from energon_pack.errors import PackError, amount
from energon_pack.report.pages.rows import Rows, print_table
from energon_pack.run import console
from energon_pack.run.console import LogLine, complain, in_one_piece, say
from energon_pack.run.progress import Progress
from support.running import run_here


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (30, "      packs    fill\ntext      6  96.00%\n"),
        (18, "text: packs 6, \nfill 96.00%\n"),
    ],
)
def test_a_narrow_terminal_gets_words(
    width: int, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 40 columns `47,188` was `47,…`."""
    monkeypatch.setattr("energon_pack.report.pages.rows.console", lambda: Console(width=width))
    print_table(Rows(("", "packs", "fill"), [("text", "6", "96.00%")]))
    assert capsys.readouterr().out == shown


HOSTILE = "a\x1b[31m\x1b]0;title\x07\x9b2J\u202egpj.\r\nb\udc80"  # colour, title, erase, other direction, other line
SHOWN = r"a\x1b[31m\x1b]0;title\x07\x9b2J\u202egpj.\r\nb\udc80"


def test_escape_sequences_are_shown_wherever_they_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A file may be called so, and its name erased the screen, or wrote another line than the one that is true."""
    say(HOSTILE)
    complain("energon-pack: error", HOSTILE.replace("\r\n", ""))
    print_table(Rows([HOSTILE], [[HOSTILE]]))
    console.console().print(Text.assemble((HOSTILE, "bold red")), soft_wrap=True)
    with in_one_piece("job 0"):
        say(HOSTILE)
    progress = Progress()
    progress._console.print(HOSTILE)
    out, errors = capsys.readouterr()
    record = logging.LogRecord("x", logging.WARNING, "x", 1, "%s", (HOSTILE,), None)
    printed = [out, errors, LogLine().format(record), str(PackError(HOSTILE))]
    assert out.startswith(f"{SHOWN}\n")
    assert "\\x1b[31m" in errors
    assert not {*"".join(printed)} & {*"\x1b\x07\x9b\u202e\r\udc80"}


def test_a_source_whose_names_and_keys_are_escape_sequences(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """The whole command: what it says of files, samples, keys and errors."""
    evil = "\x1b[31m\x1b[2Jevil\x9b1m"
    turns = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "That."}]
    records = [
        {"messages": turns, evil: 1},
        {"messages": [{"role": evil, "content": evil}]},
        {"images": [evil], "x": 1},
    ]
    lines = [json.dumps({"messages": turns})] * 300 + list(map(json.dumps, records))
    source, out_dir = tmp_path / "source", f"output.dir={tmp_path / 'out'}"
    source.mkdir()
    (source / f"{evil}.jsonl").write_text("\n".join(lines))
    settings = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", "max_skipped=0.5", out_dir]
    code, out, errors = run_here(*settings, f"source.path={source}", "stage=plan", "output.name=x", cwd=tmp_path)
    assert code == 3, errors  # every image is missing
    (source / f"{evil}.jsonl").unlink()
    (source / f"{evil}.tar").write_bytes(b"no tar" * 1000)
    refused = run_here(*settings, f"source.path={source}", cwd=tmp_path)
    assert (refused[0], refused[2].count(r"\x1b[31m\x1b[2Jevil\x9b1m.tar is not a tar file")) == (1, 1)
    assert out.count(r"\x1b[31m\x1b[2Jevil") >= 2
    assert not {*out, *errors, *refused[1], *refused[2]} & {*"\x1b\x9b"}


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 samples"), (1, "1 sample"), (2, "2 samples"), (1009, "1,009 samples")]
)
def test_a_number_agrees_with_its_noun(number: int, said: str) -> None:
    assert amount(number, "sample") == said
