"""The judge of the rows of truth as a command: `PYTHONPATH=tests:. python -m support.labels.show_truth --help`.

It prints of each template: rows, skips by their reasons, and the wrong ones, ours and the truth side by side.
"""

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from hashlib import sha1
from pathlib import Path
from typing import Any

from support.labels.folders import has_real_folder
from support.labels.truth import Row, Verdict, conversations, folder_of, names, rows_of, shown


def true_text(folder: Path, row: Row, conversation: Row) -> str | None:
    """The text of a row, by transformers; None where it does not come out (another date)."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    value = json.loads(json.dumps(conversation))
    for message in value["messages"]:
        for call in message.get("tool_calls") or []:
            if isinstance(call["function"]["arguments"], str) and "parsed_text_sha1" in row:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    source = tokenizer.chat_template
    file = folder / "chat_template.jinja"
    if file.exists():
        source = file.read_text()
    for as_parts in (False, True):
        messages = [_with_parts(message, bool(value.get("images")), as_parts) for message in value["messages"]]
        try:
            text: Any = tokenizer.apply_chat_template(
                messages, value.get("tools"), chat_template=source, tokenize=False
            )
        except Exception:  # a template is a program
            continue
        hashes = {row.get(key) for key in ("text_sha1", "collapsed_sha1", "parsed_text_sha1")}
        if sha1(text.encode()).hexdigest() in hashes:
            return str(text)
    return None


def _with_parts(message: Row, has_images: bool, as_parts: bool) -> Row:
    content = message["content"]
    if not isinstance(content, str) or not (as_parts or (has_images and "<image>" in content)):
        return message
    pieces = [piece for piece in re.split("(<image>)", content) if piece]
    parts = [{"type": "image"} if p == "<image>" and has_images else {"type": "text", "text": p} for p in pieces]
    return {**message, "content": parts}


def _print(verdict: Verdict, folder: Path) -> None:
    print(f"  {verdict.name} {verdict.row['kind']} ({verdict.row['status']}): {verdict.status} {verdict.detail}")
    ours = verdict.ours
    if ours is None:
        return
    if verdict.status in ("text", "ids"):
        text = true_text(folder, verdict.row, conversations()[verdict.row["id"]])
        print(f"    ours:  {ours.text!r}\n    truth: {text!r}")
        return
    print(f"    ours:  {shown(ours.text, ours.weights)}\n    truth: {shown(ours.text, verdict.wanted)}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--template", action="append", help="a name of ../shared/real/labels/truth; several can be given"
    )
    parser.add_argument("--row", help="the id of a conversation")
    parser.add_argument("--show", type=int, default=0, help="how many wrong rows of each template to print whole")
    parser.add_argument("--space", action="store_true", help="print those that differ in white space, too")
    parser.add_argument("--words", action="store_true", help="print those that are the same in words alone, too")
    parser.add_argument("--real", action="store_true", help="the ten real folders alone")
    parser.add_argument("--where", type=Path, default=Path("/tmp/truth_folders"), help="where folders are made")
    chosen = parser.parse_args(arguments)
    total: Counter[str] = Counter()
    all_wrong: list[str] = []
    for name in chosen.template or names():
        if chosen.real and not has_real_folder(name):
            continue
        began, folder = time.perf_counter(), folder_of(name, chosen.where)
        verdicts = [v for v in rows_of(name, folder) if chosen.row in (None, v.row["id"])]
        counts = Counter(verdict.status for verdict in verdicts)
        media = sum(verdict.ours.media_labels for verdict in verdicts if verdict.ours)
        total += counts + Counter(rows=len(verdicts), media_labels=media)
        print(f"{name}: {len(verdicts)} rows {dict(counts)} {time.perf_counter() - began:.1f} s")
        skipped: dict[str, list[str]] = {}
        for verdict in (verdict for verdict in verdicts if verdict.status == "skipped"):
            skipped.setdefault(re.sub(r"\d+", "N", verdict.detail)[:90], []).append(verdict.row["id"])
        for reason, ids in skipped.items():
            print(f"  {len(ids)} skipped: {reason}: {' '.join(ids)}")
        right = {"ok", *(("space",) * (not chosen.space)), *(("words",) * (not chosen.words))}
        wrong = [verdict for verdict in verdicts if verdict.status not in right]
        all_wrong += [f"{v.name}:{v.status}" for v in wrong if v.status != "skipped"]
        for verdict in [v for v in wrong if v.status != "skipped"][: chosen.show]:
            _print(verdict, folder)
    print(f"total: {dict(total)}")
    print("wrong:", " ".join(all_wrong))
    return 0


if __name__ == "__main__":
    sys.exit(main())
