"""Show what a packed dataset holds, or will hold: `python -m energon_pack.inspect DIR`, `… --source PATH +model=…`

A pack is read by its place: no tokenizer is imported to show it, and no other pack is read.
"""

import argparse
import random
import shlex
from pathlib import Path

from energon_pack.errors import PackError
from energon_pack.inspect import is_hydra_override
from energon_pack.inspect.dataset import description_lines, open_dataset
from energon_pack.report.views.screens import print_blocks, print_commands, print_pack
from energon_pack.report.views.text import SentenceBlock
from energon_pack.run.command import make_tool_parser, positive_int
from energon_pack.run.console import say

_MAX_THUMBNAILS = 24
_EXAMPLES = (
    "packed/demo-qwen2_5_vl-neat-8192",
    "packed/demo-qwen2_5_vl-neat-8192 7 --tokens",
    "packed/demo-qwen2_5_vl-neat-8192 -1 --html pack.html",
    "packed/demo-qwen2_5_vl-neat-8192 demo-000000.tar/demo_00192",
    "--source FOLDER +model=qwen2_5_vl model.processor=FOLDER 12",
)
_EXIT_CODES = {1: "nothing is called so; or refused, in one line"}


def main() -> int:
    """Run the command; return its exit code."""
    options = _arguments()
    if options.source is not None:
        from energon_pack.inspect.source import show_sample  # imports Hydra

        return show_sample(options)
    return _show_pack(options)


def _show_pack(options: argparse.Namespace) -> int:
    if not options.given:
        raise PackError("a folder of a packed dataset, or --source PATH +model=MODEL; --help says more")
    if len(options.given) > 2 or any(map(is_hydra_override, options.given[1:])):
        raise PackError(f"{' '.join(options.given[1:])}: one number or key of a pack; overrides are for --source")
    opened = open_dataset(options.given[0])
    with opened.packs:
        named = options.given[1] if len(options.given) > 1 else "0"
        if options.random is not None:
            number = random.Random(options.random or None).randrange(len(opened.packs))
        else:
            number = opened.number_of(named)
        if len(options.given) == 1 and options.random is None:
            for line in description_lines(opened):
                say(line)
            say("")
        vocabulary, missing = None, None
        if options.tokens or options.processor or options.html:
            from energon_pack.inspect.vocabulary import load_token_decoder

            vocabulary, missing = load_token_decoder(opened, options.processor, options.trust_remote_code)
        located = opened.packs[number]
        view = opened.view(located, vocabulary, _MAX_THUMBNAILS if options.html else 0)
        if options.html:  # written before anything is printed, because `| head` ends the process
            from energon_pack.inspect.pack_page import pack_page
            from energon_pack.inspect.vocabulary import choose_processor

            how = {"trust_remote_code": options.trust_remote_code}
            _write_page(
                options.html, pack_page(opened, located, view, choose_processor(opened, options.processor), how)
            )
        print_blocks(SentenceBlock(note, "bad") for note in (*opened.notes, *([missing] if missing else [])))
        print_pack(view, options.full)
        following = min(number + 1, len(opened.packs) - 1)
        print_commands(
            f"python -m energon_pack.inspect {shlex.quote(options.given[0])} {following}", _unused_options(options)
        )
    return 0


def _write_page(out: str, page: str) -> None:
    """Write an HTML page to the path `out`, which may be a link or a device; print the path."""
    try:
        Path(out).write_text(page, encoding="utf-8")
    except OSError as error:
        raise PackError(f"--html {out}: {error.strerror}") from None
    say(f"written: {out} ({len(page) / 1000:,.0f} kB)\n")


def _unused_options(options: argparse.Namespace) -> list[str]:
    """Return the options of `inspect` that were not used yet, for the line of next commands."""
    return ["a sample", "--random", *["--tokens"] * (not options.tokens), *["--html OUT"] * (not options.html)]


def _arguments() -> argparse.Namespace:
    takes = "DIR [PACK] | --source PATH +model=MODEL [OVERRIDES] [SAMPLE]"
    purpose = "Look at a pack of a dataset, or at a sample of a source before it is packed."
    tool = make_tool_parser("inspect", takes, purpose, _EXAMPLES, _EXIT_CODES)
    named = "a packed dataset, and the number or key of a pack, or a sample in it"
    tool.add_argument("given", nargs="*", metavar="DIR [PACK]", help=named)
    tool.add_argument("--random", nargs="?", type=positive_int, const=0, metavar="SEED", help="any pack, or any sample")
    tool.add_argument("--full", action="store_true", help="all members, all text")
    tool.add_argument("--tokens", action="store_true", help="the text as tokens; needs the processor")
    tool.add_argument("--html", metavar="OUT", help="write a page: pictures, tokens, what training gets")
    tool.add_argument("--processor", metavar="FOLDER", help="for --tokens, --html (default: as when it was packed)")
    tool.add_argument("--trust-remote-code", action="store_true", help="run the processor's own code")
    tool.add_argument("--source", metavar="PATH", help="look at a source: overrides as of `energon-pack`, and a sample")
    return tool.parse_args()
