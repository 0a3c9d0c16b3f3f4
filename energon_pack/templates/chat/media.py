"""Find the text that a chat template writes for a medium, from a rendering."""

from collections.abc import Callable

from energon_pack.samples.skip import Skip
from energon_pack.templates.chat.turns import shared_beginning

_TEXTS = [{"type": "text", "text": f"energon_pack_probe_{number}"} for number in range(2)]


def medium_in_question(render: Callable[..., str], kind: str) -> str:
    """Return the text of a medium in a question: its token and the text around it; empty: the template refuses it.

    Args:
        render: renders messages and tools; raises Skip.
    """
    try:
        alone, both = (
            render([{"role": "user", "content": [_TEXTS[0], *medium, _TEXTS[1]]}], None)
            for medium in ([], [{"type": kind}])
        )
    except Skip:
        return ""
    start = len(shared_beginning(alone, both))
    end = len(shared_beginning(alone[start:][::-1], both[start:][::-1]))
    return both[start : len(both) - end]
