"""Media in the words of other tools: each is where its owner put it, or the sample is left out with what to do."""

from typing import Any

import pytest

from energon_pack.errors import PackError
from energon_pack.samples.conversation import match_placeholders_with_media
from energon_pack.samples.media_parts import find_media_parts
from energon_pack.samples.record import parse_record
from energon_pack.samples.sample import Part
from energon_pack.samples.settings import Columns, ReadSettings, Roles
from energon_pack.samples.skip import Skip
from energon_pack.sources.jsonl.dialects import RowSettings, parse_row
from energon_pack.sources.settings import SourceConfig

AUTO = ReadSettings()
LINES = RowSettings("/data")


def asked(content: Any, answer: str = "a", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": answer}], **fields}


def placed(value: Any, *kinds: str, settings: ReadSettings = AUTO) -> tuple[list[Any], list[str] | None]:
    """The contents as packs store them, and the media, of a line of JSONL."""
    record = parse_row(value, LINES, settings)
    kinds = kinds or ("image",) * len(record.listed_media or ())
    return [m["content"] for m in match_placeholders_with_media(record, kinds).messages], record.listed_media


def said_of(value: Any, settings: ReadSettings = AUTO, kinds: tuple[str, ...] = ()) -> str:
    with pytest.raises(Skip) as skip:
        placed(value, *kinds, settings=settings)
    return str(skip.value)


# ----------------------------------------------------------------------------------------- media in the text


def test_a_path_in_the_text_is_a_medium_in_its_place() -> None:
    """Qwen-VL's own form was `unsupported_media`."""
    value = asked("Picture 1: <img>a.png</img>\nPicture 2: <img>b.jpg</img>\nWhich is <ref>a dog</ref>?")
    text = "Picture 1: <image>\nPicture 2: <image>\nWhich is <ref>a dog</ref>?"
    assert placed(value) == ([text, "a"], ["a.png", "b.jpg"])
    assert placed(asked("<img>v.mp4</img>What?"), "video") == (["<video>What?", "a"], ["v.mp4"])
    tar = parse_record(asked("<img>0.jpg</img>What?"), AUTO)
    assert [part.name for part in find_media_parts(tar, "k", [Part("0.jpg", 0, 1)])] == ["0.jpg"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (asked("<img>a.png</img>?", images=["b.png"]), "and other media in the sample"),
        (asked("<image><img>a.png</img>?"), "and other media in the sample"),
        (asked("<img>https://x.y/a.png</img>?"), "img2dataset"),
        (asked("<audio>a.wav</audio>?", images=["b.png"]), "<audio>a.wav</audio> in a text, and other media"),
        (asked("<img>b.png</img>, <img>a.png</img>?", images=["a.png", "b.png"]), "and other media in the sample"),
        (asked("<image>data:image/png;base64,AA==</image>?"), "is read from a value of its own"),
    ],
)
def test_a_path_in_the_text_beside_other_media_is_no_guess(value: Any, said: str) -> None:
    assert said_of(value).startswith("unsupported_media")
    assert said in said_of(value)


@pytest.mark.parametrize(
    ("text", "kinds", "expected"),
    [
        ("Audio 1: <audio>a.wav</audio>\nWhat is said?", ["audio"], "Audio 1: <audio>\nWhat is said?"),
        ("<video> v.mp4 </video>What?", ["video"], "<video>What?"),
        ("<image>a.png</image>What?", ["image"], "<image>What?"),
        ("<img>a.png</img><audio>b.mp3</audio>What?", ["image", "audio"], "<image><audio>What?"),
    ],
)
def test_a_path_in_a_tag_of_any_kind_is_a_medium_in_its_place(text: str, kinds: list[str], expected: str) -> None:
    """Qwen-Audio's form lost its sounds: their paths were trained as letters, and nothing said so."""
    contents, names = placed(asked(text), *kinds)
    assert contents == [expected, "a"]
    assert names is not None
    assert len(names) == len(kinds)
    listed: dict[str, Any] = {f"{kind}s": [name] for kind, name in zip(kinds, names, strict=True)}
    assert placed(asked(text, **listed), *kinds) == ([expected, "a"], names)  # named twice, it is one
    in_folder: dict[str, Any] = {key: [f"x/{name}" for name in paths] for key, paths in listed.items()}
    assert placed(asked(text, **in_folder), *kinds)[0] == [expected, "a"]


@pytest.mark.parametrize(
    "content",
    [
        "Why is <video><source></video> black?",
        "Is <audio>text</audio> right?",
        "Fix `<image>a.png</image>`\n```xml\n<video>v.mp4</video>\n```",
    ],
)
def test_tags_of_html_and_code_are_letters(content: str) -> None:
    """Questions about a page or a program would lose their words, or be refused for files that are not there."""
    assert placed(asked(content)) == ([content, "a"], None)
    assert placed(asked("q", "<list><audio>a.wav</audio></list>")) == (["q", "<list><audio>a.wav</audio></list>"], None)


def test_tags_of_an_xml_in_a_raw_text_or_a_result_of_a_tool_are_letters() -> None:
    """A text of pre-training may be any file: it would be left out for media that its file names."""
    xml = "<item><image>logo.png</image><video>v.mp4</video></item>"
    assert placed({"text": xml}) == ([xml], None)
    turns = [*asked("q")["messages"][:1], {"role": "tool", "content": xml}, {"role": "assistant", "content": "a"}]
    assert placed({"messages": turns})[0][1] == xml


def test_an_image_in_the_text_stands_for_a_video() -> None:
    """LLaVA-Video writes `<image>` for a `video`: every sample was `placeholder_mismatch`."""
    record = parse_row(asked("<image>\nWhat happens?", video="v.mp4", data_source="x"), LINES, AUTO)
    result = match_placeholders_with_media(record, ["video"])
    assert result.messages[0]["content"] == "<video>\nWhat happens?"
    assert result.placeholders_put_in


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        (asked("<image><image>?", video="v.mp4"), ("video",)),  # the counts differ
        (asked("<image><video>?", images=["a.png"], video="v.mp4"), ("image", "image")),
        (asked("<video>?", images=["a.png"]), ("image",)),  # nobody writes that
        (asked("<image>?", "<image>", video="v.mp4"), ("video",)),  # which of them is it?
    ],
)
def test_any_other_mismatch_stays_one(value: Any, kinds: tuple[str, ...]) -> None:
    assert said_of(value, kinds=kinds).startswith("placeholder_mismatch")


def test_an_image_in_an_answer_stays_text() -> None:
    assert placed(asked("q", "<image>", video="v.mp4"), "video")[0] == ["<video>q", "<image>"]


# ------------------------------------------------------------------------------------------------ API words


def test_media_of_apis_have_their_names() -> None:
    """A base64 source of Anthropic had no name at all."""
    source = {"type": "base64", "media_type": "image/png", "data": "iVBO"}
    blocks = {
        "data:image/png;base64,iVBO": {"type": "image", "source": source},
        "a.png": {"type": "image", "source": {"type": "url", "url": "a.png"}},
        "b.png": {"type": "image_url", "image_url": {"url": "b.png"}},
        "c.png": {"type": "image", "image": "c.png"},
    }
    for name, block in blocks.items():
        record = parse_record(asked([block, {"type": "text", "text": "?"}]), AUTO)
        assert record.listed_media == [name]


def test_addresses_are_to_be_downloaded() -> None:
    value = asked([{"type": "image_url", "image_url": {"url": "https://x.y/a.png"}}])
    assert "unsupported_media" in said_of(value)
    assert "img2dataset" in said_of(value)
    with pytest.raises(Skip, match=r"unsupported_media: 'https://x\.y/a\.png' is listed: media are read from files"):
        find_media_parts(parse_record(value, AUTO), "k", [Part("0.jpg", 0, 1)])


# ------------------------------------------------------------------------------------------------- columns


def test_fields_are_renamed_before_anything_looks() -> None:
    columns = Columns(messages="chat", images="pics", system="rules", tools="schemas", id="number")
    value = {
        "chat": asked("<image>q")["messages"], "pics": ["a.jpg"], "rules": "Be brief.", "number": 7,
        "schemas": [{"name": "f"}], "messages": "not these", "images": ["old.jpg"],
    }  # fmt: skip
    record = parse_row(value, LINES, ReadSettings(columns=columns))
    assert [m["content"] for m in record.messages] == ["Be brief.", "<image>q", "a"]
    assert record.listed_media == ["a.jpg"]
    assert record.tools == [{"type": "function", "function": {"name": "f"}}]
    assert record.fields == {"id": 7}
    swapped = ReadSettings(columns=Columns(images="videos", videos="images"))
    assert placed(asked("<video>q", images=["v.mp4"]), "video", settings=swapped)[1] == ["v.mp4"]


def test_roles_are_renamed_beside_those_that_are_known() -> None:
    turns = [{"role": "客户", "content": "q"}, {"role": "agent", "content": "a"}, {"role": "user", "content": "q2"}]
    value = {"messages": [*turns, {"role": "assistant", "content": "a2"}]}
    settings = ReadSettings(roles=Roles(user="客户", assistant="agent"))
    assert [m["role"] for m in parse_record(value, settings).messages] == ["user", "assistant"] * 2
    assert [m["role"] for m in parse_record(value["messages"], settings).messages] == ["user", "assistant"] * 2
    developer = {"messages": [{"role": "developer", "content": "s"}, *asked("q")["messages"]]}
    as_system = ReadSettings(roles=Roles(system="developer"))
    assert [m["role"] for m in parse_record(developer, as_system).messages] == ["system", "user", "assistant"]


@pytest.mark.parametrize("ours", ["messages", "prompt", "response"])
def test_a_column_that_is_not_there_is_named(ours: str) -> None:
    settings = ReadSettings(columns=Columns(**{ours: "mine"}))
    with pytest.raises(Skip, match=rf"no_messages: source\.columns\.{ours}=mine names no field of it; there are"):
        parse_record(asked("q"), settings)
    with pytest.raises(Skip, match=r"bad_message: source\.columns\.response=r: the field is empty"):
        parse_record({"p": "q", "r": None}, ReadSettings(columns=Columns(prompt="p", response="r")))


def test_two_settings_that_name_the_conversation_contradict_each_other() -> None:
    with pytest.raises(PackError, match=r"source\.columns\.messages: each says where the conversation is; set one"):
        SourceConfig(messages_key="x", columns=Columns(messages="y")).check()


def test_settings_that_are_not_set_change_no_key_of_a_cache() -> None:
    """Else every length would be measured anew, and every dataset have another name."""
    assert set(AUTO.identity) == {
        "messages_key", "sample_type", "take", "tools", "caption_prompt", "control_tokens", "frames",
    }  # fmt: skip
    assert ReadSettings(columns=Columns(role="speaker")).identity["columns"]["role"] == "speaker"
