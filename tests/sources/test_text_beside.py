"""A txt beside the JSON of a sample in a tar is its caption where the JSON has no text, and costs nothing elsewhere."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import PackConfig
from energon_pack.loading import load_multi_mix_qa
from energon_pack.pack import pack
from energon_pack.samples.caption_beside import read_with_caption_beside
from energon_pack.samples.record import Record, parse_record
from energon_pack.samples.settings import ReadSettings, UnreadMediaPolicy
from energon_pack.samples.skip import Skip
from support.packed import json_lines, samples
from support.running import command_here
from support.samples import chat, picture, write_tar

IMG2DATASET = {"url": "http://a.b/c.jpg", "key": "000", "status": "success", "width": 112}


def read(value: Any, txt: bytes | str) -> tuple[Record, bool]:
    return read_with_caption_beside(partial(parse_record, settings=ReadSettings()), value, lambda: txt)


@pytest.mark.parametrize("alt", [{"caption": None}, {}])
@pytest.mark.parametrize("txt", [b"\xef\xbb\xbfA cat.", "\ufeffA cat."])
def test_a_caption_that_the_json_lacks_is_in_the_txt(alt: dict[str, Any], txt: bytes | str) -> None:
    """Such samples were `no_messages`."""
    record, is_captioned = read({**alt, **IMG2DATASET}, txt)
    assert (record.messages[1]["content"], record.fields, is_captioned) == ("A cat.", IMG2DATASET, True)


@pytest.mark.parametrize(
    ("value", "txt"),
    [
        ({"question": "q", "answer": None}, b"A cat."),  # it is no answer
        ({"caption": [1]}, b"A cat."),
        ({"messages": []}, b"A cat."),
        ({"prompt": "A cat"}, b"A cat."),
        ({"chat": [{"role": "user", "content": "q"}]}, b"A cat."),  # turns, which a setting reads
        (IMG2DATASET, b" \n"),
        (IMG2DATASET, b"\xff"),
    ],
)
def test_a_txt_beside_the_parts_of_a_conversation_says_nothing(value: Any, txt: bytes) -> None:
    """A description would be trained in the place of an answer."""
    with pytest.raises(Skip):
        read(value, txt)


def test_energon_reads_the_same_caption() -> None:
    """A source that Energon trains unpacked would differ from its packs."""
    parts = {"__key__": "000", "jpg": picture(), "json": json.dumps(IMG2DATASET).encode(), "txt": b"A cat."}
    assert load_multi_mix_qa(parts)["messages"][1]["content"] == "A cat."
    for text in (b"A long one.", b"\xff"):
        read = load_multi_mix_qa({**parts, "json": b'{"caption": "alt"}', "txt": text})
        assert read["messages"][1]["content"] == "alt"
    for lacking in ({**parts, "txt": None}, {key: part for key, part in parts.items() if key != "jpg"}):
        with pytest.raises(Skip, match="no_messages"):
            load_multi_mix_qa(lacking)


def test_packs_hold_the_caption_of_the_txt(config: Callable[..., PackConfig], tmp_path: Path) -> None:
    """Measured, written, and read again by verify; a txt beside a text is not read, and costs nothing."""
    members, turns = dict[str, bytes](), chat("<image>q", "b")
    captions = {"null": None, "alt": "alt"}
    jsons = {key: json.dumps({"caption": text, **IMG2DATASET}).encode() for key, text in captions.items()}
    for key, record in {**jsons, "turns": turns, "question": b'{"question": "q", "answer": null}'}.items():
        members |= {f"{key}.jpg": picture(), f"{key}.json": record, f"{key}.txt": b"A cat."}
    run = config(write_tar(tmp_path / "s.tar", members), max_skipped=1.0)
    assert pack(run)["samples_packed"] == 3
    folder = Path(run.output.dir) / "packed"
    packs = [json.loads(parts["json"]) for parts in samples(folder).values()]
    assert sorted(member["messages"][1]["content"] for one in packs for member in one["messages"]) == [
        "A cat.",
        "alt",
        "b",
    ]
    assert [(line["sample_id"], line["reason"]) for line in json_lines(folder / "skipped.jsonl")] == [
        ("s.tar/question", "no_messages")
    ]
    clean = command_here("energon_pack.verify", str(folder), "--source", "--num-workers", "1", cwd=tmp_path)
    assert (clean.returncode, clean.stderr) == (0, ""), clean.stdout


def test_verify_reads_a_caption_whose_record_lists_no_medium(config: Callable[..., PackConfig], tmp_path: Path) -> None:
    """The medium is not packed, and so the txt was not read again: verify said that its tar had changed."""
    members = {"a.jpg": picture(), "a.json": b'{"media_files": [[]]}', "a.txt": b"A cat."}
    run = config(write_tar(tmp_path / "s.tar", members), source__media=UnreadMediaPolicy.ignore)
    assert pack(run)["samples_packed"] == 1
    folder = str(Path(run.output.dir) / "packed")
    clean = command_here("energon_pack.verify", folder, "--source", "--num-workers", "1", cwd=tmp_path)
    assert (clean.returncode, clean.stderr) == (0, ""), clean.stdout
