"""Packs without a writing step: those that are written to disk, epoch after epoch, from any place on."""

import io
import json
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megatron.energon import WorkerConfig, get_loader, get_train_dataset
from PIL import Image
from torch.utils.data import DataLoader

from energon_pack.config import Layout, PackConfig
from energon_pack.errors import PackError, SamplesLost
from energon_pack.lazy import LazyPackedDataset
from energon_pack.loading import train_arguments
from energon_pack.task_encoder import PackedTaskEncoder
from energon_pack.training.batch import PackedBatch
from energon_pack.training.pack_encoder import BadPack
from support.packed import demo_config, packed, samples
from support.running import need_torchvision

pytestmark = pytest.mark.usefixtures("one_thread")
LEN = 1024
Config = Callable[..., PackConfig]


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    need_torchvision()


@pytest.fixture(scope="module")
def config(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("lazy")

    def make(**settings: Any) -> PackConfig:
        return demo_config(demo, cache, folder, packing__max_token_len=LEN, **settings)

    return make


@pytest.fixture(scope="module")
def packs(config: Config) -> LazyPackedDataset:
    return LazyPackedDataset(config())


def conversations(source: Path) -> list[dict[str, Any]]:
    """The demo as a list of conversations whose images are Pillow's, or bytes."""
    found = []
    for number, parts in enumerate(samples(source).values()):
        if not any(name in parts for name in ("mp4", "0.mp4")):
            names = [name for name in parts if name.rpartition(".")[2] in ("jpg", "png")]
            media: list[Any] = [parts[name] for name in names]
            item = json.loads(parts["json"])
            item.pop("name", None)
            item["images"] = media if number % 2 else [Image.open(io.BytesIO(data)) for data in media]
            found.append(item)
    return found


def ids(packs: Sequence[Any]) -> list[list[str]]:
    return [[member.sample_id for member in pack.members] for pack in packs]


def same(found: PackedBatch, expected: PackedBatch) -> None:
    """All but names of packs and what Energon adds."""
    own = {"__key__", "__restore_key__", "positions"}
    assert found.keys() - own == expected.keys() - own
    for name in found.keys() - own:
        value, other = found[name], expected[name]
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other), name
        elif name != "visual_inputs":
            assert value == other, name


@pytest.mark.parametrize("layout", list(Layout))
def test_the_first_epoch_is_what_is_written_to_disk(config: Config, tmp_path: Path, layout: Layout) -> None:
    """Else a lazy run could not be compared with one from shards: the same packs in their order, bit for bit."""
    settings = {"packing__layout": layout, "packing__pad_to_multiple_of": 8, "source__limit": 60}
    run = config(**settings)
    run.output.dir = str(tmp_path)
    folder = packed(run)
    encoder = PackedTaskEncoder(folder, run.model.processor)
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    loader = get_loader(get_train_dataset(folder, repeat=False, **train_arguments(folder, encoder, worker)))
    lazy = LazyPackedDataset(config(**settings))
    written = list(loader)
    assert len(written) == len(lazy) > 5
    for number, batch in enumerate(written):
        same(lazy.collate([lazy[number]]), batch)


def test_overrides_are_those_of_the_command_line(
    demo: tuple[Path, Path], cache: Path, packs: LazyPackedDataset
) -> None:
    """One training has one list of settings, whether it packs to disk or not."""
    given = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", f"source.path={demo[0]}", f"cache_dir={cache}"]
    lazy = LazyPackedDataset([*given, f"packing.max_token_len={LEN}", "executor.num_workers=1"])
    assert len(lazy) == len(packs)
    assert ids([lazy[0]]) == ids([packs[0]])
    with pytest.raises(PackError, match=r"unknown key packing\.max_tokens; did you mean packing\.max_token_len"):
        LazyPackedDataset([*given, "packing.max_tokens=1"])
    with pytest.raises(PackError, match="a list of them"):
        LazyPackedDataset("+model=qwen2_5_vl")


def test_every_epoch_has_each_sample_once_in_as_many_packs(packs: LazyPackedDataset, config: Config) -> None:
    """A later epoch that loses samples, or has another number of packs, would shift a schedule made by `len`."""
    plans = [packs.plan_of(epoch) for epoch in range(3)]
    lens = packs._planned.lengths.items.lens
    for plan in plans[1:]:
        assert plan.num_packs == len(packs)
        assert sorted(plan.items) == sorted(plans[0].items)
        assert Counter(plan.per_pack(lens)) == Counter(plans[0].per_pack(lens))
    mates = [{frozenset(p) for p in np.split(plan.items, plan.starts[1:-1])} for plan in plans]
    assert max(len(mates[0] & mates[1]), len(mates[1] & mates[2])) < 0.7 * len(packs)  # of 320 samples few are alike
    again = LazyPackedDataset(config())
    assert ids([again[(1, number)] for number in range(3)]) == ids([packs[(1, number)] for number in range(3)])
    assert ids([packs[(1, 0)]]) != ids([packs[(0, 0)]])


def test_workers_that_outlive_an_epoch_see_the_next_one(packs: LazyPackedDataset) -> None:
    """`set_epoch` is called in another process than the one that builds packs."""
    loader = DataLoader(packs, batch_size=None, num_workers=2, persistent_workers=True)
    found = []
    for epoch in (0, 1):
        packs.set_epoch(epoch)
        found.append(ids(list(islice(loader, len(packs)))))
        assert found[-1] == ids([packs[(epoch, number)] for number in range(len(packs))])
    packs.set_epoch(0)
    assert found[0] != found[1]


def test_what_a_worker_is_given_does_not_grow(packs: LazyPackedDataset, config: Config) -> None:
    """Lengths of a million samples in every worker would be 44 MB each; where it is spawned, on the wire, too."""
    few = LazyPackedDataset(config(source__limit=40))
    sizes = []
    for dataset in (few, packs):
        state = {**dataset.__getstate__(), "encoder": None, "_epoch": None}
        sizes.append(len(pickle.dumps(state)))
    assert abs(sizes[1] - sizes[0]) < 64
    loader = DataLoader(few, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert ids(list(islice(loader, 2))) == ids([few[0], few[1]])


def test_max_packs_are_a_fair_share(config: Config) -> None:
    """The first ones by size or by media would be no sample of the data (Automodel: the texts alone)."""
    whole, some = LazyPackedDataset(config()), LazyPackedDataset(config(), max_packs=20)
    assert len(some) == 20
    assert ids([some[i] for i in range(20)]) == ids([whole[i] for i in range(20)])

    def share(dataset: LazyPackedDataset) -> float:
        plan = dataset.plan_of(0)
        items = dataset._planned.lengths.items
        return float((items.counts["num_visual_tokens"][plan.items] > 0).mean())

    assert share(some) == pytest.approx(share(whole), abs=0.15)
    assert sorted(some.plan_of(3).items) == sorted(some.plan_of(0).items)


def test_splits_share_no_sample(config: Config) -> None:
    """Validation on what is trained would tell nothing."""
    run = config()
    run.output.splits.val = 0.2
    train, val = (LazyPackedDataset(run, split=split) for split in ("train", "val"))
    assert not set(train.plan_of(0).items) & set(val.plan_of(0).items)
    with pytest.raises(PackError, match="split=test"):
        LazyPackedDataset(run, split="test")


# ---------------------------------------------------------------------------------------------- a dataset of a user's


def test_conversations_in_memory_are_packed_as_files_are(
    config: Config, demo: tuple[Path, Path], packs: LazyPackedDataset
) -> None:
    """The same lengths and the same tensors, from Pillow's images or bytes."""
    given = conversations(demo[0])
    lazy = LazyPackedDataset(config(), given, fingerprint="demo")
    assert len(given) == 320
    assert len(lazy.plan_of(0).items) == len(packs.plan_of(0).items)
    assert lazy.report is not None
    assert [*lazy.report.skipped_by_reason] == ["overlong"]
    names = list(samples(demo[0]))
    stored = {name: member for i in range(len(packs)) for name, member in _alone(packs, i)}
    for name, (member, media) in _alone(lazy, 0):
        number = int(name.partition("/")[2])
        other, other_media = stored[names[number]]
        assert torch.equal(member.tokens.ids, other.tokens.ids)
        assert all(torch.equal(media[key], other_media[key]) for key in media)


def _alone(packs: LazyPackedDataset, number: int) -> list[tuple[str, Any]]:
    found = []
    for given in packs._inputs(packs._plans.items(0, number)):
        encoded = packs.encoder.members.encode(given)  # type: ignore[arg-type]
        found.append((encoded.sample_id, (encoded, encoded.media)))
    return found


# ----------------------------------------------------------------------------------------------- what may go wrong


def test_a_sample_that_fails_costs_itself_alone(config: Config, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Automodel takes another sample at random; ours is dropped with a count, or ends the training by its name."""
    given = conversations(demo[0])[:60]
    dropping = LazyPackedDataset(config(), given, fingerprint="60", on_bad_member="drop")
    raising = LazyPackedDataset(config(), given, fingerprint="60")
    (number, pack) = next((i, raising[i]) for i in range(len(raising)) if len(raising[i].members) > 1)
    broken = int(pack.members[0].sample_id.partition("/")[2])
    given[broken]["messages"] = [{"role": "user", "content": "nobody answers"}]
    with pytest.raises(BadPack, match=rf"conversations/{broken} in .*no_assistant_turn.*on_bad_member=drop"):
        raising[number]
    found = dropping[number]
    assert found.dropped == [f"conversations/{broken}"]
    assert ids([found]) == [ids([pack])[0][1:]]
    assert dropping.collate([found])["num_dropped"] == 1
    for member in pack.members[1:]:
        given[int(member.sample_id.partition("/")[2])]["messages"] = []
    with pytest.raises(BadPack, match=f"none of its {len(pack.members)} members can be encoded"):
        dropping[number]


def test_a_sample_that_was_changed_is_not_trained_on(config: Config, demo: tuple[Path, Path]) -> None:
    """Another length would overflow the pack."""
    given = conversations(demo[0])[:30]
    lazy = LazyPackedDataset(config(), given, fingerprint="30")
    given[0]["messages"][-1]["content"] += " And more."
    (number,) = (i for i in range(len(lazy)) if 0 in lazy._plans.items(0, i))
    with pytest.raises(BadPack, match=r"conversations/0 has \d+ tokens in training, \d+ when it was packed"):
        lazy[number]


def test_a_file_that_changed_is_named(config: Config, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Bytes of another sample under the same name would be trained on in silence."""
    source = tmp_path / "source"
    source.mkdir()
    for path in demo[0].glob("*.tar"):
        (source / path.name).write_bytes(path.read_bytes())
    lazy = LazyPackedDataset(config(source=source))
    name = ids([lazy[0]])[0][0].partition("/")[0]
    data = (source / name).read_bytes()
    (source / name).write_bytes(data[:-512])
    fresh = pickle.loads(pickle.dumps(lazy))
    with pytest.raises(BadPack, match=rf"{name} changed since it was measured"):
        fresh[0]


def test_what_is_lost_is_named_and_counted(config: Config, demo: tuple[Path, Path]) -> None:
    """Else a run trains on a part of its data and nobody knows."""
    given = [*conversations(demo[0])[:20], {"messages": [{"role": "user", "content": "?"}]}]
    with pytest.raises(SamplesLost, match=r"bad data cost 1 of 21 samples.*skipped\.jsonl"):
        LazyPackedDataset(config(), given, fingerprint="21")
    lazy = LazyPackedDataset(config(max_skipped=0.1), given, fingerprint="21")
    (entry,) = map(json.loads, lazy.skipped.read_text().splitlines())
    assert (entry["sample_id"], entry["reason"]) == ("conversations/20", "no_assistant_turn")


# ------------------------------------------------------------------------------------------------- ranks and steps


class Fake:
    """Packs of whom only costs matter."""

    def __init__(self, num: int, micro_batches: int = 1):
        self.num, self.micro_batches, self.fingerprint = num, micro_batches, f"{num} packs"
        self.config = PackConfig()

    def __len__(self) -> int:
        return self.num

    def have_epoch(self, epoch: int) -> None:
        pass

    def costs(self, epoch: int) -> tuple[Any, Any]:
        generator = np.random.default_rng(epoch)
        return generator.lognormal(size=(2, self.num)), generator.integers(1, 100, self.num)
