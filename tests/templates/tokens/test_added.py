"""Where added tokens stand, and which of them nothing can hide."""

from energon_pack.templates.tokens.added import AddedTokens


def test_a_token_that_another_overlaps_or_holds_does_not_stand_alone() -> None:
    added = AddedTokens(["<a>", "<b>", "<b><c>", "x<d", "<e>", "<e", "aba", ">>"])
    assert added.stands_alone("<q>") is False
    assert AddedTokens(["<a>", "<b>"]).stands_alone("<a>")
    assert [token for token in added.all if added.stands_alone(token)] == ["x<d"]
    assert [added.may_go_on(text) for text in ("a <b", "<b><", "a", "b", "")] == [True, True, True, False, False]


def test_runs_are_shortened_and_their_tokens_known() -> None:
    added = AddedTokens(["<a>", "[b]", "<c>", "<c><c>"])
    assert added.runs("x<a>" + "<a>" * 1000 + "y[b][b] <a>") == [
        ("x<a>", "<a>", 1000),
        ("y[b]", "[b]", 1),
        (" <a>", "", 0),
    ]
    assert added.runs("<c><c><c>") == [("<c><c><c>", "", 0)]
    assert added.runs("<a><z><z><a><a>[b]<") == [("<a><z><z><a>", "<a>", 1), ("[b]<", "", 0)]
    assert added.runs("><][") == [("><][", "", 0)]
    assert added.runs("[b][b]<a><a>") == [("[b]", "[b]", 1), ("<a>", "<a>", 1), ("", "", 0)]
