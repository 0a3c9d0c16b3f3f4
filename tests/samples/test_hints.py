"""A setting that a message names was tried on the sample: it is named only where the sample is then read whole."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from energon_pack.online.user_dataset import UserSamples
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip, setting_word
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.sample import read_sample
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.source_file import IndexRow, rows_of
from energon_pack.sources.source_path import find_source
from support.samples import picture

ASKED, ANSWERED = {"role": "user", "content": "How deep?"}, {"role": "assistant", "content": "3 m"}
GEMINI = [{"role": "user", "parts": [{"text": "How deep?"}]}, {"role": "model", "parts": [{"text": "3 m"}]}]


def why(folder: Path, record: Any) -> str:
    """Return why a record is left out, as a file's line and as an item of a dataset."""
    path = folder / "a.jsonl"
    path.write_text(json.dumps(record))
    (shard,) = find_source(SourceConfig(), str(path)).shards
    (row,) = rows_of(shard.index(), IndexRow)
    with SourceReader() as reader, pytest.raises(Skip) as of_line:
        read_sample(reader, shard, row, ReadSettings())
    with pytest.raises(Skip) as of_item:
        UserSamples([record], ReadSettings(), str(folder)).read(0)
    assert of_item.value.detail == of_line.value.detail
    return of_line.value.detail


@pytest.mark.parametrize(
    ("record", "hint"),
    [
        ({"talk": [ASKED, ANSWERED]}, "source.messages_key=talk reads its turns"),
        ({"notes": [ANSWERED], "talk": [ASKED, ANSWERED]}, "source.messages_key=talk reads its turns"),
        ({"it's": [ASKED, ANSWERED]}, """'source.messages_key="it'"'"'s"' reads its turns"""),
        (
            {"preferred_output": [ANSWERED], "non_preferred_output": [ANSWERED], "input": {"messages": [ASKED]}},
            "source.take=chosen packs the good conversations",
        ),
        ({"input": [ASKED], "output": "3 m"}, None),
        ({"prompt": [ASKED], "answer_text": "3 m"}, None),
        ({"contents": GEMINI}, None),
        ({"chosen": [ASKED, ANSWERED], "rejected": [ASKED]}, "source.take=chosen packs the good conversations"),
        ({"chosen": [ANSWERED], "rejected": [ANSWERED]}, None),
        ({"shots": ["0.png"], "messages": [ASKED, ANSWERED]}, "source.columns.images=shots reads it;"),
        ({"image": "0.png", "imgae": "1.png", "messages": [ASKED, ANSWERED]}, None),  # the other would be lost
        ({"talk": [ASKED, ANSWERED], "shots": ["0.png"]}, "source.messages_key=talk reads its turns"),  # one of two
        ({"imgae": "0.png", "vidoe": "1.mp4", "messages": [ASKED, ANSWERED]}, "source.columns.images=imgae reads it;"),
        ({"imgae": "0.png", "image2": "1.png", "messages": [ASKED, ANSWERED]}, None),  # one setting can't name both
        ({"notes": [ANSWERED], "shots": ["0.png"]}, None),
    ],
)
def test_a_setting_is_named_only_if_the_sample_is_read_with_it(tmp_path: Path, record: Any, hint: str | None) -> None:
    """`source.messages_key=preferred_output reads its turns`: an answer without its question.

    A sample that needs two settings names the first; it named none.
    """
    for name in ("0.png", "1.png"):
        (tmp_path / name).write_bytes(picture(28, 28, "PNG"))
    detail = why(tmp_path, record)
    if hint is None:
        assert not any(f"source.{name}=" in detail for name in ("messages_key", "take", "columns.images")), detail
    else:
        assert hint in detail


@pytest.mark.parametrize("value", ["a/b.c-d", "it's", 'say "hi"', "a b", "x\\", '\\"', "[1],{a}", "${a:X}", "größe"])
def test_a_printed_setting_is_one_word_for_a_shell_and_for_hydra(value: str) -> None:
    (word,) = shlex.split(setting_word("source.messages_key", value))
    assert OverridesParser.create().parse_override(word).value() == value
