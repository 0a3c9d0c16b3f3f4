"""A table that is wider than the terminal loses none of its numbers."""

import pytest
from rich.console import Console
from rich.table import Table

from energon_pack.run import console
from energon_pack.run.console import print_table


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
    made = Table("", "packs", "fill", box=None, pad_edge=False)
    for column in made.columns[1:]:
        column.justify = "right"
    made.add_row("text", "6", "96.00%")
    monkeypatch.setattr(console, "console", lambda: Console(width=width))
    print_table(made)
    assert capsys.readouterr().out == shown
