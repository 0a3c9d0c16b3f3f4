"""What TRL trains: run inside an environment that has it, `python run_trl.py CONVERSATIONS.json FOLDER OUT.json`.

Its `assistant_only_loss`: the training template it swaps in, or the folder's own, and the mask of `{% generation %}`.
OUT.json: for each conversation `{"id", "ids", "weights"}`, one weight a token, or `{"id", "error"}`.
"""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer
from transformers.utils import chat_template_utils
from trl.chat_template_utils import get_training_chat_template, has_generation_markers


def with_parts(message: dict[str, Any], has_images: bool) -> dict[str, Any]:
    """Texts and placeholders as parts of the content, which TRL's own preparation makes of them for models that see."""
    content = message["content"]
    if not isinstance(content, str):
        return message
    parts: list[dict[str, Any]] = []
    for i, text in enumerate(content.split("<image>") if has_images else [content]):
        parts += [{"type": "image"}] * bool(i) + ([{"type": "text", "text": text}] if text else [])
    return {**message, "content": parts}


class Today(datetime):
    """The day on which truth was made, for templates that write today's date."""

    @classmethod
    def now(cls, tz: Any = None) -> "Today":
        return cls(2026, 11, 23)


chat_template_utils.datetime = Today  # type: ignore[attr-defined]


def shows(tokenizer: Any, content: str) -> bool:
    """Whether the template writes a content that is text."""
    return content in tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False)


def main(conversations: Path, folder: Path, out: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    for name in ("chat_template.jinja", "chat_template.json"):
        if (folder / name).exists():
            text = (folder / name).read_text()
            tokenizer.chat_template = json.loads(text)["chat_template"] if name.endswith(".json") else text
    template = tokenizer.chat_template
    if not has_generation_markers(template):
        template = get_training_chat_template(tokenizer)
    wants_parts = not shows(tokenizer, "probe")
    rows = []
    for item in json.loads(conversations.read_text()):
        messages, images = item["messages"], bool(item.get("images"))
        if wants_parts or images:
            messages = [with_parts(message, images) for message in messages]
        try:
            made: Any = tokenizer.apply_chat_template(
                messages,
                tools=item.get("tools"),
                chat_template=template,
                return_dict=True,
                return_assistant_tokens_mask=True,
                **item.get("chat_template_kwargs", {}),
            )
            weights = [float(mask) for mask in made["assistant_masks"]]
            rows.append({"id": item["id"], "ids": list(made["input_ids"]), "weights": weights})
        except Exception as error:
            rows.append({"id": item["id"], "error": f"{type(error).__name__}: {error}"[:300]})
    out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
