"""A mixture: what is trained of each entry is what its weight asks for, and no other weight measures anything again."""

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.config.schema import MediaIn, SplitsConfig
from energon_pack.dataset.files import PlanFile
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.errors import PackError
from energon_pack.online.lazy import LazyPackedDataset
from energon_pack.pack import pack
from energon_pack.plan.epoch_draws import compute_entry_shares, num_draws_by_epoch
from energon_pack.sources.mixture import Entry
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.source_path import find_source
from energon_pack.trainers.on_disk import PackedDataset
from energon_pack.trainers.samplers import PackSampler
from support.marks import first_of, slow
from support.packed import Make, json_lines, samples
from support.running import command_here, run_here
from support.samples import chat, noise, write_tar

NAMES = ("charts", "chat", "maths")


def entry(name: str = "a", weight: float | None = None, epochs: float | None = None) -> Entry:
    return Entry(name, name, weight, epochs, None, {})


def test_weights_are_shares_of_the_trained_tokens() -> None:
    """Entries of 100 and 300 tokens are asked for 200 each: one comes twice, of the other two samples of three."""
    shares = compute_entry_shares(
        [entry("a", 1), entry("b", 1)], np.array([0, 1, 1, 1]), np.array([100, 100, 100, 100])
    )
    assert [share.requested_share for share in shares] == [0.5, 0.5]
    assert [round(share.epochs, 9) for share in shares] == [2.0, round(2 / 3, 9)]
    assert num_draws_by_epoch(shares[1].epochs, np.array([100, 100, 100]), True, 0, 1).sum() == 2


@given(st.floats(0, 9), st.lists(st.integers(1, 1000), min_size=1, max_size=200), st.booleans(), st.integers(0, 9))
def test_draws_are_even(epochs: float, trained: list[int], by_tokens: bool, seed: int) -> None:
    """Each sample comes as often as another, or once more, in one epoch and in several; tokens or samples are as many
    as asked for, but for one at each end.
    """
    lens = np.array(trained)
    counts = num_draws_by_epoch(epochs, lens, by_tokens, seed, 3, num_epochs=4)
    assert set(counts.ravel().tolist()) <= {int(epochs), int(epochs) + 1}
    for start in range(3):
        assert np.ptp(counts[start:].sum(axis=0)) <= 1
    size = lens if by_tokens else np.ones(len(lens))
    assert (abs((counts * size).sum(axis=1) - epochs * size.sum()) <= 2 * size.max()).all()
    assert abs((counts[0] * size).sum() - epochs * size.sum()) <= size.max()


def write_set(folder: Path, name: str, num: int, length: int) -> Path:
    drawn = random.Random(name)
    path = folder / f"{name}.jsonl"
    lines = [
        {
            "id": number,
            "messages": [
                {"role": "user", "content": f"{name} {number}?"},
                {"role": "assistant", "content": " ".join(["word"] * drawn.randint(1, length))},
            ],
        }
        for number in range(num)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    folder = tmp_path / "sets"
    folder.mkdir()
    for name, num, length in zip(NAMES, (300, 200, 60), (20, 60, 40), strict=True):
        write_set(folder, name, num, length)
    return folder


def write_mixture(folder: Path, *entries: dict[str, Any]) -> Path:
    path = folder / "mix.yaml"
    path.write_text(json.dumps({"mixture": entries}))  # JSON is YAML
    return path


def test_the_packs_hold_what_was_asked_for(config: Make, sets: Path, tmp_path: Path) -> None:
    """Shares of samples would be those of lengths, too: a long set trained more than anybody asked for."""
    weights = dict(zip(NAMES, (20, 50, 30), strict=True))
    path = write_mixture(sets, *({"path": f"{name}.jsonl", "weight": weights[name]} for name in NAMES))
    run = config(str(path), source__format="auto", packing__max_token_len=512, output__splits=SplitsConfig(val=0.1))
    report = pack(run)
    for item in report["mixture"]:
        assert item["asked"] == weights[item["name"]] / 100
        assert abs(item["share"] - item["asked"]) < 0.005
    packed = Path(run.output.dir) / "packed"
    columns = PlanFile(DatasetFolder(packed)).columns("shard", "key")
    ids = Counter(f"{shard}:{key}" for shards, keys in columns for shard, key in zip(shards, keys, strict=True))
    assert max(ids.values()) == 1
    times = Counter(name.partition("@")[0] for name in ids)
    assert {name.partition("/")[0] for name in times} == set(NAMES)
    left = {line["sample_id"]: line["reason"] for line in json_lines(packed / "skipped.jsonl")}
    assert set(left.values()) == {"not_drawn"}
    assert len(times) + len(left) == 560
    assert times.keys().isdisjoint(left)
    for source in ((), (str(path),)):  # where it was, and the YAML named by hand
        verified = command_here(
            "energon_pack.verify", str(packed), "--source", *source, "--num-workers", "1", cwd=tmp_path
        )
        assert verified.returncode == 0, verified.stdout + verified.stderr


def test_other_weights_measure_nothing(config: Make, sets: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With 10 M samples, measuring again takes an hour, planning seconds."""
    for name in ("first", "second"):
        weights = (1, 1, 1) if name == "first" else (5, 2, 1)
        entries = [{"path": f"{n}.jsonl", "weight": weight} for n, weight in zip(NAMES, weights, strict=True)]
        report = pack(config(str(write_mixture(sets, *entries)), source__format="auto", output__name=name))
        assert report["cache"]["shards_measured"] == (3 if name == "first" else 0)
    assert "(asked: 62.50%), " in capfd.readouterr().out


def test_epochs_say_how_often_a_sample_comes(config: Make, sets: Path) -> None:
    path = write_mixture(sets, {"path": "charts.jsonl", "epochs": 2}, {"path": "maths.jsonl", "epochs": 0.5},
                         {"path": "chat.jsonl", "max_samples": 50})  # fmt: skip
    report = pack(config(str(path), source__format="auto"))
    assert [item["samples"] for item in report["mixture"]] == [600, 30, 50]
    assert report["skipped_by_reason"] == {"not_drawn": 30 + 150}


@pytest.mark.parametrize("media", first_of(MediaIn))
def test_tars_and_lines_with_images_are_drawn_again(config: Make, sets: Path, tmp_path: Path, media: MediaIn) -> None:
    """A copy has another key than its members in the tar: the run ended with "changed since it was measured"."""
    members: dict[str, bytes] = {}
    for number in range(6):
        members |= {f"{number}.json": chat("<image>?", f"{number}"), f"{number}.png": noise(number)}
    write_tar(sets / "tars/a.tar", members)
    path = write_mixture(sets, {"path": "tars", "epochs": 2.5}, {"path": "maths.jsonl"})
    run = config(str(path), source__format="auto", packing__max_token_len=512, output__media=media)
    report = pack(run)
    assert [item["samples"] for item in report["mixture"]] == [15, 60]
    packed = Path(run.output.dir) / "packed"
    verified = command_here(
        "energon_pack.verify", str(packed), "--source", "--decode", "--num-workers", "1", cwd=tmp_path
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_the_page_has_a_line_for_each_entry_and_warns_of_what_comes_often(config: Make, sets: Path) -> None:
    path = write_mixture(sets, {"path": "chat.jsonl", "weight": 1}, {"path": "maths.jsonl", "weight": 9})
    run = config(str(path), source__format="auto", packing__max_token_len=512, packing__epochs=2)
    report = pack(run)
    text = re.sub(r"<[^>]+>", " ", (Path(run.output.dir) / "packed" / "report.html").read_text())
    maths = report["mixture"][1]
    assert maths["epochs"] > 4
    assert f"each sample of maths comes {maths['epochs']:.1f} times" in text
    assert re.search(r"mixture: maths (89\.9|90\.0)\d% of the trained tokens \(asked: 90\.00%\)", text)
    assert re.search(r"turn 1: \d+ samples in \d+ packs", text)
    assert maths["token_len"]["min"] >= 20
    assert 0.9 < maths["fill"] <= 1


def test_one_entry_is_the_set_alone(config: Make, sets: Path) -> None:
    """A mixture that is made smaller and smaller ends as what it is made of."""
    pack(config(str(sets / "chat.jsonl"), source__format="auto", output__name="alone"))
    run = config(str(write_mixture(sets, {"path": "chat.jsonl"})), source__format="auto", output__name="mixed")
    pack(run)
    alone, mixed = (samples(Path(run.output.dir) / name) for name in ("alone", "mixed"))
    assert list(alone.values()) == list(mixed.values())


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([{"path": "chat.jsonl", "weight": -1}], "entry 1: weight is -1, not a number from 0"),
        ([{"path": "chat.jsonl", "weight": 0}], "the weights of all entries are 0"),
        ([{"weight": 1}], "entry 1 has no path"),
        ([{"path": "chat.jsonl", "weigth": 1}], "'weigth' is no setting of an entry; there are name, path, weight"),
        ([{"path": "chat.jsonl", "weight": 1}, {"path": "maths.jsonl"}], "chat has a weight and maths has none"),
        ([{"path": "chat.jsonl", "weight": 1, "epochs": 1}], "entry 1 has a weight and epochs"),
        ([{"path": "chat.jsonl"}, {"path": "chat.jsonl"}], "two entries are called chat"),
        ([{"path": "chat.jsonl"}, {"path": "chat.jsonl", "name": "b"}], "chat.jsonl is in chat and in b"),
        ([{"path": "chat.jsonl"}, {"path": "gone.jsonl"}], "mixture: gone: source.path=.*: no such folder or file"),
        ([{"path": "chat.jsonl", "max_samples": 0}], "max_samples is 0, not a number of samples"),
        ([{"path": "chat.jsonl", "phase": 0}], "phase is 0, not a number from 1 to 100"),
    ],
)
def test_what_makes_no_sense_is_one_line(sets: Path, entries: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(PackError, match=said):
        find_source(SourceConfig(), str(write_mixture(sets, *entries)))


def test_an_entry_without_anything_to_train_is_named(config: Make, sets: Path) -> None:
    (sets / "empty.jsonl").write_text('{"messages": []}\n')
    path = write_mixture(sets, {"path": "chat.jsonl", "weight": 1}, {"path": "empty.jsonl", "weight": 1})
    with pytest.raises(PackError, match="mixture: empty has the weight 1, and no sample that can be trained"):
        pack(config(str(path), source__format="auto"))


# --------------------------------------------------------------------------------------------------- phases, config


def entries_of_packs(folder: Path) -> list[set[str]]:
    """The entries in each pack, in the order of the packs."""
    found: dict[str, set[str]] = {}
    for names, shards in PlanFile(DatasetFolder(folder)).columns("pack", "shard"):
        for name, shard in zip(names, shards, strict=True):
            found.setdefault(name, set()).add(shard.partition("/")[0])
    return list(found.values())


@pytest.mark.parametrize("epochs", [slow(1), 2])
def test_phases_come_one_after_another(config: Make, sets: Path, epochs: int) -> None:
    """A curriculum: captions first, then chats with maths; each phase has all its epochs before the next begins."""
    path = write_mixture(sets, {"path": "charts.jsonl", "epochs": 2}, {"path": "chat.jsonl", "phase": 2},
                         {"path": "maths.jsonl", "phase": 2})  # fmt: skip
    run = config(str(path), source__format="auto", packing__max_token_len=512, packing__epochs=epochs)
    report = pack(run)
    folder = Path(run.output.dir) / "packed"
    packs = entries_of_packs(folder)
    assert [turn["samples"] for turn in report["turns"]] == [600] * epochs + [260] * epochs
    first = sum(turn["packs"] for turn in report["turns"][:epochs])
    assert all(entries == {"charts"} for entries in packs[:first])
    assert not any("charts" in entries for entries in packs[first:])
    assert any(entries == {"chat", "maths"} for entries in packs[first:])
    manifest = json.loads((folder / ".nv-meta/energon_pack.json").read_text())
    assert manifest["turns"] == 2 * epochs


@pytest.mark.parametrize("planned", [1, 4])
def test_phases_come_one_after_another_on_any_ranks(
    config: Make, sets: Path, demo: tuple[Path, Path], planned: int
) -> None:
    """`PackSampler` and `as_dataset` made steps even over all packs: on two ranks phase 2 came among phase 1."""
    path = write_mixture(sets, {"path": "charts.jsonl"}, {"path": "chat.jsonl", "phase": 2})
    run = config(str(path), source__format="auto", packing__max_token_len=512)
    run.packing.topology.data_parallel = planned
    pack(run)
    folder = Path(run.output.dir) / "packed"
    is_second = ["chat" in entries for entries in entries_of_packs(folder)]
    packs = PackedDataset(folder, str(demo[1]))
    for ranks in (1, 2, 3):
        order = [number for _, number in PackSampler(packs, 0, ranks, 1).of_all_ranks(len(packs))]
        assert sorted(order) == [*range(len(packs))]
        phases = [is_second[number] for number in order]
        late = phases[phases.index(True) :].count(False)  # packs that make no whole step come with the next phase
        assert late < planned, (ranks, late)


def test_a_dataset_that_packs_in_training_has_no_phases(config: Make, sets: Path) -> None:
    """Its later epochs exchange samples of all packs: they would mix the phases."""
    path = write_mixture(sets, {"path": "charts.jsonl"}, {"path": "chat.jsonl", "phase": 2})
    with pytest.raises(PackError, match="mixture: chat has phase=2: phases are for packs on disk"):
        LazyPackedDataset(config(str(path), source__format="auto"))


def test_a_mixture_of_the_config_is_composed_and_swept_over(demo: tuple[Path, Path], sets: Path) -> None:
    """One file of Hydra for the entries, and their weights on the command line."""
    conf = sets / "conf/source"
    conf.mkdir(parents=True)
    entries = {name: {"path": f"{name}.jsonl", "weight": 1} for name in NAMES}
    (conf / "mine.yaml").write_text(json.dumps({"defaults": ["auto", "_self_"], "path": entries}))
    code, said, errors = run_here(
        *("--config-dir", "conf", "-m", "+model=qwen2_5_vl", f"model.processor={demo[1]}"),
        *("source=mine", "source.path.chat.weight=1,6", "output.dir=out"),
        cwd=sets,
    )
    assert code == 0, said + errors
    folders = sorted(path for path in (sets / "out").iterdir() if path.name.startswith("mixture-"))
    assert len(folders) == 2
    asked = set()
    for folder in folders:
        report = json.loads((folder / "report.json").read_text())
        asked |= {item["asked"] for item in report["mixture"] if item["name"] == "chat"}
        verified = command_here("energon_pack.verify", str(folder), "--source", "--num-workers", "1", cwd=sets)
        assert verified.returncode == 0, verified.stdout + verified.stderr
    assert asked == {1 / 3, 6 / 8}


def test_weights_by_the_root_of_the_length_are_those_of_internvl(config: Make, sets: Path) -> None:
    """Its `use_data_resampling` draws a set by the root of its number of samples."""
    roots = {name: num**0.5 for name, num in zip(NAMES, (300, 200, 60), strict=True)}
    path = sets / "mix.yaml"
    entries = [{"path": f"{name}.jsonl", "weight": root} for name, root in roots.items()]
    path.write_text(json.dumps({"weights": "samples", "mixture": entries}))
    report = pack(config(str(path), source__format="auto"))
    for item in report["mixture"]:
        assert abs(item["share"] - roots[item["name"]] / sum(roots.values())) < 1 / 560
