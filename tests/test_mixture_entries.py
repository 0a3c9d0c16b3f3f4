"""Entries of a mixture with settings of their own: each is measured, packed and trained as it would be alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from energon_pack.errors import PackError
from energon_pack.loading import options_of
from energon_pack.loading.task_encoder import PackedTaskEncoder
from energon_pack.pack import pack
from energon_pack.samples.settings import Columns, ReadSettings, Roles
from energon_pack.sources.mixture import read_entry_settings
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.source_path import find_source
from energon_pack.templates.settings import LabelsConfig, TrainOn
from support.packed import Make, demo_config, lengths, packed, samples, train
from support.running import command_here
from support.samples import noise

TURNS = [{"role": role, "content": f"{role} says {'word ' * 9}"} for role in ("user", "assistant") * 2]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chats under a name of their own, chats of two turns, and questions on images."""
    folder = tmp_path_factory.mktemp("sets")
    asked = [{"who": "me", "what": "Why?"}, {"who": "it", "what": "Because of a long story."}]
    lines: dict[str, Any] = {
        "named": [{"chat": asked}] * 6,
        "turns": [{"messages": TURNS}] * 6,
        "seen": [{"images": ["a.png"], "messages": [{"role": "user", "content": "<image>?"}, TURNS[1]]}] * 6,
    }
    for name, each in lines.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in each))
    (folder / "a.png").write_bytes(noise(0, 280))
    return folder


NAMED: dict[str, Any] = {
    "columns": {"messages": "chat", "role": "who", "content": "what"},
    "roles": {"user": "me", "assistant": "it"},
}
LAST: dict[str, Any] = {"labels": {"train_on": "last", "end_of_turn": False}}
SMALL: dict[str, Any] = {"max_pixels": 28 * 28 * 16}


def mixture(sets: Path, *entries: dict[str, Any], name: str = "mix.yaml") -> str:
    path = sets / name
    path.write_text(json.dumps({"mixture": entries}))
    return str(path)


def all_of(sets: Path) -> str:
    return mixture(
        sets,
        {"path": "named.jsonl", **NAMED},
        {"path": "turns.jsonl", **LAST},
        {"path": "seen.jsonl", **SMALL},
        name="all.yaml",
    )


@pytest.fixture(scope="module")
def mixed(demo: tuple[Path, Path], cache: Path, sets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All three in one dataset."""
    out = tmp_path_factory.mktemp("mixed")
    return packed(demo_config(demo, cache, out, all_of(sets), source__format="auto", packing__max_token_len=512))


def test_each_is_packed_as_it_would_be_alone(config: Make, sets: Path, mixed: Path, tmp_path: Path) -> None:
    """With the settings of the run, names would not be found, all turns trained, and images four times as large."""
    found: dict[str, set[tuple[int, int]]] = {}
    for (shard, _, _), (token_len, num_supervised, _) in lengths(mixed).items():
        found.setdefault(shard.partition("/")[0], set()).add((token_len, num_supervised))
    alone: dict[str, set[tuple[int, int]]] = {}
    given: dict[str, dict[str, Any]] = {
        "named": {},
        "turns": {"labels": LabelsConfig(TrainOn.last, end_of_turn=False)},
        "seen": {"model__max_pixels": SMALL["max_pixels"]},
    }
    for name, settings in given.items():
        one = config(sets / f"{name}.jsonl", source__format="auto", output__name=name, **settings)
        if name == "named":
            names: dict[str, Any] = {"columns": Columns(**NAMED["columns"]), "roles": Roles(**NAMED["roles"])}
            one.source = SourceConfig(format="auto", path=one.source.path, **names)
        alone[name] = {of[:2] for of in lengths(packed(one)).values()}
    assert found == alone
    verified = command_here(
        *("energon_pack.verify", str(mixed), "--source", "--decode", "--num-workers", "1"),
        cwd=tmp_path,
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_training_knows_what_each_asked_for(mixed: Path, demo: tuple[Path, Path]) -> None:
    """Packs hold the settings of each member, so that the encoder trains as many tokens as were planned."""
    planned = sum(num_supervised for _, num_supervised, _ in lengths(mixed).values())
    encoder = PackedTaskEncoder(mixed, str(demo[1]))
    encoded = list(train(mixed, encoder=encoder))
    trained = sum(int((member.tokens.labels != -100).sum()) for pack_ in encoded for member in pack_.members)
    assert trained == planned


def test_other_settings_of_one_entry_measure_that_entry_alone(config: Make, sets: Path) -> None:
    pack(config(all_of(sets), source__format="auto", output__name="first"))
    path = mixture(sets, {"path": "named.jsonl", **NAMED}, {"path": "turns.jsonl"}, {"path": "seen.jsonl", **SMALL})
    report = pack(config(path, source__format="auto", output__name="second"))
    assert report["cache"]["shards_measured"] == 1
    with pytest.raises(PackError, match="packed of another source"):
        pack(config(all_of(sets), source__format="auto", output__name="second"))


def test_a_sample_that_says_it_itself_keeps_it(config: Make, tmp_path: Path) -> None:
    """An entry trains the last turn; one of its records asks for all, by the field that packs hold."""
    own = {"messages": TURNS, "label_settings": {"train_on": "all"}}
    (tmp_path / "turns.jsonl").write_text("".join(json.dumps(line) + "\n" for line in ({"messages": TURNS}, own)))
    path = mixture(tmp_path, {"path": "turns.jsonl", "labels": {"train_on": "last"}})
    folder = packed(config(path, source__format="auto"))
    last, both = sorted(num for _, num, _ in lengths(folder).values())
    assert both == 2 * last
    (members,) = (json.loads(parts["json"])["messages"] for parts in samples(folder).values())
    assert sorted(options_of(member).labels["train_on"] for member in members) == ["all", "last"]


def test_pixels_of_an_entry_may_be_floats_or_null() -> None:
    """As other tools write them in JSON: `max_pixels is 50176.0, not a number of pixels`."""
    own = read_entry_settings("a", {"max_pixels": 50176.0, "min_pixels": None}, ReadSettings())
    assert own.options == {"chat_template_kwargs": {"max_pixels": 50176}}
    assert type(own.options["chat_template_kwargs"]["max_pixels"]) is int


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"columns": {"turns": "chat"}}, r"columns\.turns: there are messages, role"),
        ({"roles": ["me"]}, r"roles is \['me'\], no values by name"),
        ({"messages_key": 3}, "messages_key is 3, no text"),
        ({"sample_type": "song"}, "'song' is not a valid SampleType"),
        ({"max_pixels": -4}, "max_pixels is -4, not a number of pixels"),
        ({"max_pixels": 4, "min_pixels": 9}, "min_pixels=9 is more than max_pixels=4"),
        ({"map": "a:b"}, "map is no setting of an entry: source.map is code, which the run names"),
        ({"media": {"image": "center_crop"}}, "media is no setting of an entry: the run prepares all media in one way"),
    ],
)
def test_what_makes_no_sense_is_one_line(sets: Path, own: dict[str, Any], said: str) -> None:
    with pytest.raises(PackError, match=said):
        find_source(SourceConfig(), mixture(sets, {"path": "turns.jsonl", **own}))


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({"train_on": "first"}, r"mixture: turns: labels\.train_on=first: there are all, last"),
        ({"trains": "all"}, r"labels\.trains: there are train_on, think"),
        ({"end_of_turn": 1}, r"labels\.end_of_turn=1: true or false"),
        ({"prompt_weight": -1}, r"labels\.prompt_weight=-1: must be at least 0"),
    ],
)
def test_labels_that_make_no_sense_are_one_line(
    config: Make, sets: Path, tmp_path: Path, labels: dict[str, Any], said: str
) -> None:
    run = config(mixture(sets, {"path": "turns.jsonl", "labels": labels}), source__format="auto")
    with pytest.raises(PackError, match=said):
        pack(run)
    assert not Path(run.output.dir, "packed").exists()
