"""Where added tokens stand, and which of them nothing can hide."""

from energon_pack.templates.tokens.added import AddedTokens


def test_a_token_that_another_overlaps_or_holds_does_not_stand_alone() -> None:
    added = AddedTokens(["<a>", "<b>", "<b><c>", "x<d", "<e>", "<e", "aba", ">>"])
    assert added.stands_alone("<q>") is False
    assert AddedTokens(["<a>", "<b>"]).stands_alone("<a>")
    assert [token for token in added.all if added.stands_alone(token)] == ["x<d"]
    assert [added.may_go_on(text) for text in ("a <b", "<b><", "a", "b", "")] == [True, True, True, False, False]
