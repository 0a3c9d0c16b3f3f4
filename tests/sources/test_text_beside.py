"""A txt beside the JSON of a sample in a tar: a model's caption neither loses against an alt text, nor is it lost."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import PackConfig
from energon_pack.loading import load_multi_mix_qa
from energon_pack.pack import pack
from energon_pack.samples.record import Record
from energon_pack.samples.settings import ReadSettings, SampleType
from energon_pack.samples.skip import Skip
from energon_pack.sources.wds import JSON_AND_TEXT, json_and_text, record_of
from support.packed import json_lines, samples
from support.running import command_here
from support.samples import chat, picture, write_tar

IMG2DATASET = {"url": "http://a.b/c.jpg", "key": "000", "status": "success", "width": 112}


def read(value: Any, text: str, settings: ReadSettings | None = None, has_media: bool = True) -> Record:
    raw = json_and_text(json.dumps(value).encode(), text.encode())
    assert raw is not None
    return record_of(raw, JSON_AND_TEXT, has_media, settings or ReadSettings())


def caption(*args: Any, **settings: Any) -> str:
    text: str = read(*args, **settings).messages[-1]["content"]
    return text


@pytest.mark.parametrize("alt", [{"caption": None}, {}, {"caption": ""}])
def test_a_caption_that_the_json_lacks_is_in_the_txt(alt: dict[str, Any]) -> None:
    """Such samples were `no_messages`, or answers without a word."""
    record = read({**alt, **IMG2DATASET}, "\ufeffA cat.\n", ReadSettings(caption_prompt="What?"))
    assert [m["content"] for m in record.messages] == ["What?", "A cat."]
    assert record.is_caption
    assert record.fields["url"] == "http://a.b/c.jpg"  # its other fields stay


def test_one_caption_in_two_places_is_one() -> None:
    assert caption({"caption": " A  cat."}, "A cat.\n") == "A  cat."
    assert caption({"caption": "A cat."}, "") == "A cat."
    assert read({"text": "A cat."}, "A cat.").prompt_of_text == ""


def test_two_captions_are_no_guess() -> None:
    """The alt text of the web was trained, where a model's caption lay beside it."""
    for key in ("caption", "text"):
        with pytest.raises(Skip, match=r"bad_message: its caption is 'alt', and its txt 'A long one.', which say diff"):
            read({key: "alt", **IMG2DATASET}, "A long one.")


def test_a_txt_beside_another_conversation_says_nothing() -> None:
    """It may be what an OCR has read."""
    turns = json.loads(chat("q", "a"))
    assert caption(turns, "A cat.") == "a"
    assert caption({"question": "q", "answer": "a"}, "A cat.") == "a"
    assert caption({"text": "A <image> cat."}, "Another.") == "A <image> cat."
    assert caption({"text": "A page."}, "Another.", has_media=False) == "A page."


def test_what_is_no_caption_stays_left_out() -> None:
    for value, settings, has_media in (
        ({"caption": None}, ReadSettings(), False),
        ({"caption": ["one", "two"]}, ReadSettings(), True),
        ({"caption": None}, ReadSettings(sample_type=SampleType.chat), True),
        ({"caption": None}, ReadSettings("turns"), True),
    ):
        with pytest.raises(Skip, match="no_messages"):
            read(value, "A cat.", settings, has_media)
    assert json_and_text(b'{"txt": 1}', b"A cat.") is None
    assert json_and_text(b"[1]", b"A cat.") is None
    assert json_and_text(b"{", b"A cat.") is None
    assert json_and_text(b'{"caption": "a"}', b"\xff") is None


def test_a_step_of_the_user_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"step_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(
        "def txt(r):\n    return {**r, 'caption': r.pop('txt')}\n"
        "def alt(r):\n    return {'caption': r['caption']}\n"
        "def neither(r):\n    return {'txt': r['txt']}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    said = {
        step: caption({"caption": "alt"}, "A long one.", ReadSettings(map=f"{name}:{step}"))
        for step in ("txt", "alt", "neither")
    }
    assert said == {"txt": "A long one.", "alt": "alt", "neither": "A long one."}


def test_energon_reads_the_same_caption() -> None:
    parts = {"__key__": "000", "jpg": picture(), "json": json.dumps(IMG2DATASET).encode(), "txt": b"A cat."}
    assert load_multi_mix_qa(parts)["messages"][1]["content"] == "A cat."
    with pytest.raises(Skip, match="say different things"):
        load_multi_mix_qa({**parts, "json": b'{"caption": "alt"}'})
    assert (
        load_multi_mix_qa({**parts, "json": b'{"caption": "alt"}', "txt": b"\xff"})["messages"][1]["content"] == "alt"
    )


def test_packs_hold_the_caption_of_the_txt(config: Callable[..., PackConfig], tmp_path: Path) -> None:
    """Measured, written, and read again by verify."""
    members = dict[str, bytes]()
    for key, alt, text in (("equal", "A.", "A."), ("null", None, "A cat."), ("differs", "alt", "A long one.")):
        members[f"{key}.jpg"] = picture()
        members[f"{key}.json"] = json.dumps({"caption": alt, **IMG2DATASET}).encode()
        members[f"{key}.txt"] = text.encode()
    run = config(write_tar(tmp_path / "s.tar", members), max_skipped=1.0)
    assert pack(run)["samples_packed"] == 2
    folder = Path(run.output.dir) / "packed"
    packs = [json.loads(parts["json"]) for parts in samples(folder).values()]
    assert sorted(member["messages"][1]["content"] for one in packs for member in one["messages"]) == ["A cat.", "A."]
    assert [(line["sample_id"], line["reason"]) for line in json_lines(folder / "skipped.jsonl")] == [
        ("s.tar/differs", "bad_message")
    ]
    clean = command_here("energon_pack.verify", str(folder), "--source", "--num-workers", "1", cwd=tmp_path)
    assert (clean.returncode, clean.stderr) == (0, ""), clean.stdout
