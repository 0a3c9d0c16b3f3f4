"""Find the added tokens of a tokenizer, such as `<|im_start|>`, which cut a text before anything else does."""

import re
from collections.abc import Iterable
from functools import cached_property

_SEAMS = {"<": "><", "[": "]["}  # first characters of tokens that come in runs, and the text between such tokens


class AddedTokens:
    """Finds added tokens in texts. If several are possible, tokenizers take the leftmost, then the longest."""

    def __init__(self, tokens: Iterable[str]):
        longest_first = sorted(tokens, key=len, reverse=True)
        self.longest = len(longest_first[0]) if longest_first else 0
        #: a regular expression without groups
        self.source = "|".join(map(re.escape, longest_first)) or "(?!)"
        self.pattern = re.compile(self.source)
        self.all = tuple(longest_first)
        self._begins = {token[:i] for token in self.all for i in range(1, len(token))}
        self._ends = {token[i:] for token in self.all for i in range(1, len(token))}
        self._stands_alone: dict[str, bool | None] = dict.fromkeys(self.all)  # None: not computed yet

    @cached_property
    def _all_stand_alone(self) -> bool:
        return all(map(self.stands_alone, self.all))

    def may_go_on(self, text: str) -> bool:
        """Say whether an added token could begin within a text and end after it."""
        return any(text[-i:] in self._begins for i in range(1, min(len(text), self.longest) + 1))

    def stands_alone(self, text: str) -> bool:
        """Say whether a text is always an added token wherever it stands: no other can overlap it."""
        known = self._stands_alone.get(text, False)
        if known is None:
            known = self._stands_alone[text] = (
                not self.may_go_on(text)
                and not any(text[:i] in self._ends for i in range(1, len(text)))
                and not any(text in other for other in self.all if other != text)
            )
        return known

    def find_all(self, text: str) -> list[tuple[int, str]]:
        """Return the places of added tokens in a text, and the tokens."""
        if not self._all_stand_alone:
            return [(match.start(), match[0]) for match in self.pattern.finditer(text)]
        found = []
        for token in self.all:
            at = text.find(token)
            while at >= 0:
                found.append((at, token))
                at = text.find(token, at + len(token))
        found.sort()
        return found

    def runs(self, text: str) -> list[tuple[str, str, int]]:
        """Cut a text behind the first token of each run of one token (say, an image's).

        Returns:
            Pieces of the text; the token that the run behind each consists of, and how many more of it come.
        """
        pieces = [(text, "", 0)]
        for begin, seam in _SEAMS.items():
            if seam in text:
                pieces = [cut for piece in pieces for cut in self._runs_at(seam, begin, *piece)]
        return pieces

    def _runs_at(self, seam: str, begin: str, text: str, last: str, num_more: int) -> list[tuple[str, str, int]]:
        pieces = []
        done, at = 0, text.find(seam)
        while at >= 0:
            end = position = at + 1
            token = text[max(text.rfind(begin, done, end), 0) : end]
            if self.stands_alone(token):
                for several in (token * 64, token * 8, token):
                    while text.startswith(several, position):
                        position += len(several)
                if position > end:
                    pieces.append((text[done:end], token, (position - end) // len(token)))
                    done = position
            at = text.find(seam, position)
        return [*pieces, (text[done:], last, num_more)]
