"""Packs without a writing step: those that are written to disk, epoch after epoch, from any place on."""

import json
import pickle
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.energon import WorkerConfig, get_loader, get_train_dataset
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, Sampler

from energon_pack.config import Engine, Layout, PackConfig
from energon_pack.errors import PackError, SamplesLost
from energon_pack.loading import train_arguments
from energon_pack.loading.task_encoder import PackedTaskEncoder
from energon_pack.online.lazy import LazyPackedDataset
from energon_pack.samples.member import MemberInput
from energon_pack.templates.template import Template
from energon_pack.templates.tokens.pieces import Ids
from energon_pack.trainers.samplers import LengthGroupedSampler, PackSampler
from energon_pack.training.batch import PackedBatch
from energon_pack.training.encoded import BadPack
from support.marks import first_of
from support.packed import conversations, demo_config, packed, samples
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


@pytest.mark.parametrize("layout", first_of(Layout))
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


@pytest.mark.parametrize("engine", first_of(Engine))
def test_ids_are_made_by_the_engine_of_packing(
    config: Config, packs: LazyPackedDataset, monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    """Else each text was tokenized anew in the loader, in three times the CPU of writing it."""
    lazy = packs if engine == Engine.auto else LazyPackedDataset(config(measure__engine=engine))
    texts: list[str] = []
    by_tokenizers = Template._by_tokenizers

    def asked(self: Template, text: str, positions: Sequence[int]) -> tuple[Ids, list[int]]:
        texts.append(text)
        return by_tokenizers(self, text, positions)

    monkeypatch.setattr(Template, "_by_tokenizers", asked)
    member_ids = [member.tokens.ids.tolist() for member in lazy[0].members]
    assert len(texts) == (len(member_ids) if engine == Engine.tokenizers else 0)
    assert member_ids == [member.tokens.ids.tolist() for member in packs[0].members]


def test_overrides_are_those_of_the_command_line(
    demo: tuple[Path, Path], cache: Path, packs: LazyPackedDataset
) -> None:
    """One training has one list of settings, whether it packs to disk or not."""
    told = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", f"source.path={demo[0]}", f"cache_dir={cache}"]
    lazy = LazyPackedDataset([*told, f"packing.max_token_len={LEN}", "executor.num_workers=1"])
    assert len(lazy) == len(packs)
    assert ids([lazy[0]]) == ids([packs[0]])
    with pytest.raises(PackError, match=r"unknown key packing\.max_tokens; did you mean packing\.max_token_len"):
        LazyPackedDataset([*told, "packing.max_tokens=1"])
    with pytest.raises(PackError, match="a list of them"):
        LazyPackedDataset("+model=qwen2_5_vl")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"layout": "flat"}, ValueError, "layout=flat: one of neat"),
        ({"layout": "mlm", "loss_weight": "token"}, ValueError, "loss_weight=token: layout=mlm has none"),
        ({"dummy_imag": True}, TypeError, "dummy_imag=True: no such option; there are: layout, pad_to"),
    ],
)
def test_options_are_refused_before_anything_is_measured(
    options: dict[str, Any], error: type[Exception], said: str
) -> None:
    """They were refused after it, which may be hours later."""
    with pytest.raises(error, match=said):
        LazyPackedDataset(["+model=qwen2_5_vl", "source.path=/nowhere"], **options)


def test_every_epoch_has_each_sample_once_in_as_many_packs(packs: LazyPackedDataset, config: Config) -> None:
    """A later epoch that loses samples, or has another number of packs, would shift a schedule made by `len`."""
    plans = [packs.plan_of(epoch) for epoch in range(3)]
    for epoch, plan in enumerate(plans):
        assert plan.num_packs == len(packs)
        assert sorted(plan.items) == sorted(plans[0].items)
        assert Counter(packs.lens(epoch)) == Counter(packs.lens(0))
    mates = [{frozenset(p) for p in np.split(plan.items, plan.starts[1:-1])} for plan in plans]
    assert max(len(mates[0] & mates[1]), len(mates[1] & mates[2])) < 0.7 * len(packs)  # of 320 samples few are alike
    again = LazyPackedDataset(config())
    assert ids([again[(1, number)] for number in range(3)]) == ids([packs[(1, number)] for number in range(3)])
    assert ids([packs[(1, 0)]]) != ids([packs[(0, 0)]])


@pytest.mark.slow
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
        state = {**vars(dataset), "encoder": None, "_epoch": None}
        sizes.append(len(pickle.dumps(state)))
    assert abs(sizes[1] - sizes[0]) < 64


def test_max_packs_are_a_fair_share(config: Config) -> None:
    """The first ones by size or by media would be no sample of the data (Automodel: the texts alone)."""
    whole, some = LazyPackedDataset(config()), LazyPackedDataset(config(), max_packs=20)
    assert len(some) == 20
    assert ids([some[i] for i in range(20)]) == ids([whole[i] for i in range(20)])

    def share(dataset: LazyPackedDataset) -> float:
        plan, first = dataset.plan_of(0), dataset._plans.first
        assert first is not None
        return float((first.lengths.items.counts["num_visual_tokens"][plan.items] > 0).mean())

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
    told = conversations(demo[0])
    lazy = LazyPackedDataset(config(source__path=None), told, fingerprint="demo")
    assert len(told) == 320
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
    for member in packs.members(0, number):
        assert isinstance(member, MemberInput)
        encoded = packs.encoder.members.encode_alone(member)
        found.append((encoded.sample_id, (encoded, encoded.media)))
    return found


# ----------------------------------------------------------------------------------------------- what may go wrong


def test_a_sample_that_fails_costs_itself_alone(config: Config, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Automodel takes another sample at random; ours is dropped with a count, or ends the training by its name."""
    told = conversations(demo[0])[:60]
    dropping = LazyPackedDataset(config(source__path=None), told, fingerprint="60", on_bad_member="drop")
    raising = LazyPackedDataset(config(source__path=None), told, fingerprint="60")
    (number, pack) = next((i, raising[i]) for i in range(len(raising)) if len(raising[i].members) > 1)
    broken = int(pack.members[0].sample_id.partition("/")[2])
    told[broken]["messages"] = [{"role": "user", "content": "nobody answers"}]
    with pytest.raises(BadPack, match=rf"conversations/{broken} in .*no_assistant_turn.*on_bad_member=drop"):
        raising[number]
    found = dropping[number]
    assert found.dropped == [f"conversations/{broken}"]
    assert ids([found]) == [ids([pack])[0][1:]]
    assert dropping.collate([found])["num_dropped"] == 1
    for member in pack.members[1:]:
        told[int(member.sample_id.partition("/")[2])]["messages"] = []
    with pytest.raises(BadPack, match=f"none of its {len(pack.members)} members can be encoded"):
        dropping[number]


def test_a_sample_that_was_changed_is_not_trained_on(config: Config, demo: tuple[Path, Path]) -> None:
    """Another length would overflow the pack."""
    told = conversations(demo[0])[:30]
    lazy = LazyPackedDataset(config(source__path=None), told, fingerprint="30")
    told[0]["messages"][-1]["content"] += " And more."
    (number,) = (i for i in range(len(lazy)) if 0 in lazy._plans.items_of_pack(0, i))
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
    told = [*conversations(demo[0])[:20], {"messages": [{"role": "user", "content": "?"}]}]
    with pytest.raises(SamplesLost, match=r"bad data cost 1 of 21 samples.*skipped\.jsonl"):
        LazyPackedDataset(config(source__path=None), told, fingerprint="21")
    lazy = LazyPackedDataset(config(source__path=None, max_skipped=0.1), told, fingerprint="21")
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


def sampler(packs: Any, rank: int, ranks: int, **settings: Any) -> PackSampler:
    return PackSampler(packs, rank, ranks, **settings)


@settings(max_examples=15)
@given(num=st.integers(1, 40), ranks=st.integers(1, 5), micro_batches=st.integers(1, 3), epochs=st.integers(1, 4))
def test_ranks_share_each_epoch_and_take_as_many_steps(num: int, ranks: int, micro_batches: int, epochs: int) -> None:
    """A pack lost or twice, or a rank with one step more, which would wait for ever."""
    packs: Any = Fake(num, micro_batches)
    if num < ranks * micro_batches:
        with pytest.raises(ValueError, match="fewer than a step"):
            sampler(packs, 0, ranks)
        return
    samplers = [sampler(packs, rank, ranks) for rank in range(ranks)]
    taken = []
    for _ in range(epochs):
        lens = [len(one) for one in samplers]
        found = [list(one) for one in samplers]
        assert list(map(len, found)) == lens
        assert len({*lens}) == 1
        assert lens[0] % micro_batches == 0
        taken += [pack for step in zip(*found, strict=True) for pack in step]
    assert len(taken) == epochs * num // (ranks * micro_batches) * ranks * micro_batches
    assert len({*taken}) == len(taken)
    assert all(epoch < epochs for epoch, _ in taken)
    whole = Counter(epoch for epoch, _ in taken)
    assert all(whole[epoch] == num for epoch in range(epochs - 1))


@settings(max_examples=15)
@given(
    num=st.integers(12, 40), worlds=st.lists(st.integers(1, 4), min_size=2, max_size=4), micro=st.integers(1, 2),
    steps=st.integers(0, 30),
)  # fmt: skip
def test_other_ranks_go_on_where_some_stopped(num: int, worlds: list[int], micro: int, steps: int) -> None:
    """After a resume packs would come twice, or never."""
    packs: Any = Fake(num, micro)
    states: list[dict[str, Any]] = []
    taken: list[tuple[int, int]] = []
    for ranks in worlds:
        samplers = [sampler(packs, rank, ranks, states=states) for rank in range(ranks)]
        streams = [chain.from_iterable(repeat_call(one)) for one in samplers]
        for _ in range(steps * micro):
            taken += [next(stream) for stream in streams]
        states = [one.state_dict() for one in samplers]
        assert states == json.loads(json.dumps(states))
    assert len({*taken}) == len(taken)
    last = max((epoch for epoch, _ in taken), default=0)
    assert all(n == num for epoch, n in Counter(epoch for epoch, _ in taken).items() if epoch < last - 1)


def repeat_call(one: PackSampler) -> Iterator[list[tuple[int, int]]]:
    while True:
        yield from ([pack] for pack in one)


@settings(max_examples=15)
@given(num=st.integers(8, 40), ranks=st.integers(1, 4), after=st.integers(0, 100))
def test_a_rank_goes_on_with_its_own_state(num: int, ranks: int, after: int) -> None:
    """From any place, also counted by the training where a loader reads ahead."""
    packs: Any = Fake(num)
    one = sampler(packs, ranks - 1, ranks)
    expected = list(islice(chain.from_iterable(repeat_call(one)), after + 20))
    for state in (one.state_dict(after), json.loads(json.dumps(one.state_dict(after)))):
        other = sampler(packs, ranks - 1, ranks)
        other.load_state_dict(state)
        assert list(islice(chain.from_iterable(repeat_call(other)), 20)) == expected[after:]
    alone = sampler(packs, 0, 1)  # the state of any rank is that of all
    alone.load_state_dict(one.state_dict(after))
    of_all = one.of_all_ranks(after * ranks + 20)[after * ranks :]
    assert list(islice(chain.from_iterable(repeat_call(alone)), 20)) == of_all
    with pytest.raises(ValueError, match="states of another dataset"):
        sampler(Fake(num + 1), ranks - 1, ranks).load_state_dict(one.state_dict())
    with pytest.raises(ValueError, match=r"^states: a list"):
        sampler(packs, ranks - 1, ranks).load_state_dict(None)  # type: ignore[arg-type]
    if after:
        with pytest.raises(ValueError, match="states of several steps"):
            sampler(packs, 0, 2, states=[one.state_dict(after), one.state_dict(after - 1)])


def test_steps_stay_whole_where_they_change() -> None:
    """Going on with other `micro_batches`, an epoch would end in the middle of an accumulation."""
    packs: Any = Fake(20)
    one = sampler(packs, 0, 2, micro_batches=3)
    before = list(islice(chain.from_iterable(repeat_call(one)), 3))
    state = one.state_dict()
    for _ in range(2):  # its own state, too
        other = sampler(packs, 0, 2, micro_batches=4)
        other.load_state_dict(state)
        found = list(other)
        assert len(found) == 4
        assert not {*before} & {*found}
        assert len(list(other)) % 4 == 0
        other.load_state_dict(state)
        state = other.state_dict()


def test_an_epoch_may_be_named(packs: LazyPackedDataset) -> None:
    """Trainers call `set_epoch` before each; one that is under way goes on."""
    one = sampler(packs, 0, 2)
    epochs = [list(one) for _ in range(3)]
    other = sampler(packs, 0, 2)
    for number in (2, 0, 1):
        other.set_epoch(number)
        assert len(other) == len(epochs[number])
        assert list(islice(other, 4)) == epochs[number][:4]
        other.set_epoch(number)
        assert list(other) == epochs[number][4:]


def test_a_finished_iteration_is_finished_whoever_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """A job that was started again at the end of its epoch read another whole one, though it named its epoch."""
    packs: Any = Fake(24)

    def going_on(states: Any, *numbers: tuple[int, int], epoch: int | None = None) -> list[list[int]]:
        found = [sampler(packs, rank, ranks, states=states) for rank, ranks in numbers]
        for one in found:
            if epoch is not None:
                one.set_epoch(epoch)
        return [[at for at, _ in one] for one in found]

    one_left, ended, inside = list[Any](), list[Any](), list[Any]()
    for rank in range(3):
        one = sampler(packs, rank, 3)
        assert len(list(islice(one, 7))) == 7
        one_left.append(one.state_dict())
        assert len(list(one)) == 1
        assert one.state_dict(8) == one.state_dict()
        ended.append(one.state_dict())
        assert len(list(islice(one, 2))) == 2
        inside.append(one.state_dict())
    worlds = [(0, 1)], [(0, 2), (1, 2)], [(rank, 3) for rank in range(3)]
    for world in worlds:
        ranks = len(world)
        assert going_on(ended, *world) == [[]] * ranks
        assert going_on(ended, *world, epoch=0) == [[]] * ranks
        assert going_on(ended, *world, epoch=1) == [[1] * (24 // ranks)] * ranks
        assert sum(map(len, going_on(one_left, *world))) == 3 // ranks * ranks
        assert sum(map(len, going_on(inside, *world))) == 18
    assert "the state is of the end of an epoch: this iteration of the sampler is empty" in caplog.text
    one.load_state_dict(ended[-1])
    assert [len(list(one)) for _ in range(3)] == [0, 8, 8]
    one.load_state_dict(one.state_dict())
    assert list(one) == []


class SecondDealer(Sampler[Any]):
    """Deals a share to two processes, as Accelerate's BatchSamplerShard does."""

    num_processes, process_index = 2, 0
    __module__ = "accelerate.data_loader"

    def __init__(self, share: Any):
        self.share = share

    def __iter__(self) -> Iterator[Any]:
        yield from islice(self.share, self.process_index, None, self.num_processes)


class WholeShare(Sampler[Any]):
    """Gives all of a share, and knows how many ranks there are."""

    num_processes, process_index, num_replicas, rank = 2, 0, 2, 0

    def __init__(self, share: Any):
        self.share = share

    def __iter__(self) -> Iterator[Any]:
        yield from self.share


class SamplerItems(Dataset[Any]):
    """What a sampler gives, as the items of a dataset."""

    def __getitem__(self, item: Any) -> Any:
        return item


class ShareItems(Dataset[Any]):
    """A sampler's items by number, as Lightning lists them for torch's DistributedSampler."""

    def __init__(self, share: Any):
        self.share = share

    def __len__(self) -> int:
        return len(self.share)


class ReplacementSampler(DistributedSampler[Any]):
    """Takes a sampler's place, as Lightning's DistributedSamplerWrapper does."""

    def __iter__(self) -> Iterator[Any]:
        share: Any = self.dataset
        items, taken = list(share.share), super().__iter__()
        return (items[index] for index in taken)


def test_a_share_of_one_rank_is_not_dealt_to_ranks_once_more() -> None:
    """Each of two ranks trained a quarter of the packs, where Accelerate or Lightning got the loader."""
    packs: Any = Fake(12)

    def wrapped(share: Any) -> list[Any]:
        again = ReplacementSampler(ShareItems(share), 2, 0, shuffle=False)
        return [SecondDealer(share), SecondDealer(BatchSampler(share, 1, False)), again, BatchSampler(again, 1, False)]

    for share in (sampler(packs, 1, 2), LengthGroupedSampler([3, 4, 5], 1, rank=0, world_size=3)):
        for once_more in wrapped(share):
            with pytest.raises(PackError, match=r"Sampler deals to [23] ranks, and .* to 2 once more.*as_dataset\(\)"):
                next(iter(once_more))
        assert len(list(share)) == len(list(DataLoader(range(99), batch_sampler=share)))  # type: ignore[arg-type]
    for whole in wrapped(sampler(packs, 0, 1)):  # it was dealt to nobody before
        assert len(list(whole)) == 6
    share = sampler(packs, 1, 2)
    assert len(list(WholeShare(share))) == 6  # it was refused for its names
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecondDealer, "num_processes", 1)
        assert len(list(SecondDealer(share))) == 6


def test_a_look_at_who_deals_keeps_nothing_of_a_training() -> None:
    """Before Python 3.13 a frame whose variables are asked holds on to them: logits of the epoch before."""
    share: Any = sampler(Fake(12), 1, 2)
    logits = torch.zeros(1)
    held = weakref.ref(logits)
    assert len(list(share)) == 6
    del logits
    assert held() is None


def test_packs_are_counted_from_the_epoch_that_is_set() -> None:
    """After a whole epoch the count went on, and a state of the second pack of epoch 1 was of that of epoch 0."""
    packs: Any = Fake(10)
    one = sampler(packs, 0, 2, micro_batches=2)
    assert len(list(one)) == 4
    one.set_epoch(1)
    stream = iter(one)
    third = [next(stream) for _ in range(3)][-1]
    one.set_epoch(1)  # it is under way
    state = one.state_dict(num_packs=2)
    assert (state["position"]["epoch"], state["position"]["turns"]["first"]) == (1, 2)
    assert next(iter(sampler(packs, 0, 2, micro_batches=2, states=[state]))) == third
    with pytest.raises(ValueError, match="num_packs=4: 3 packs were given out since it was made, loaded or sent to an"):
        one.state_dict(num_packs=4)
    assert [*map(len, (list(one), list(one)))] == [3, 4]


def test_a_state_outlives_an_epoch_that_is_set_before_it(caplog: pytest.LogCaptureFixture) -> None:
    """Accelerate counts epochs from 0 in each process: of a state of epoch 1, epoch 0 came again, and nothing said so.

    The second loop of such a process is the epoch after the state's, and so on.
    """
    packs: Any = Fake(12)
    one = sampler(packs, 0, 1)
    whole = [list(one) for _ in range(4)]
    one.set_epoch(1)
    assert list(islice(one, 5)) == whole[1][:5]
    inside = one.state_dict()
    list(one)
    ended = one.state_dict()
    for states, expected in (([inside], [whole[1][5:], *whole[2:]]), ([ended], [[], *whole[2:]])):
        caplog.clear()
        again = sampler(packs, 0, 1, states=states)
        for epoch, items in zip([0] * (not expected[0]) + [*range(len(expected))], expected, strict=False):
            again.set_epoch(epoch)  # Accelerate does not count an empty loop
            assert list(again) == items
        assert caplog.text.count("set_epoch(0) changes nothing: a state was loaded, which goes on with epoch 1") == 1
        assert caplog.text.count("changes nothing") == 1
        again.set_epoch(7)
        assert {at for at, _ in again} == {7}
    one.load_state_dict(sampler(packs, 0, 1).state_dict())
    list(one)
    again = sampler(packs, 0, 1, states=[one.state_dict()])
    for epoch, items in ((0, []), (0, whole[1]), (1, whole[2])):
        again.set_epoch(epoch)
        assert list(again) == items
    of_names = sampler(packs, 0, 1, states=[inside])
    caplog.clear()
    for epoch, items in ((1, whole[1][5:]), (2, whole[2]), (0, whole[0])):  # it was not gone back for ever
        of_names.set_epoch(epoch)
        assert list(of_names) == items
    assert not caplog.text


def test_a_loader_that_keeps_no_state_of_the_sampler_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Its state holds only a number of packs. After a resume in epoch 1 the packs of epoch 0 came, and nothing said so.

    Accelerate makes such a loader of a plain DataLoader.
    """
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    one = sampler(Fake(12), 0, 1)
    for kind in (DataLoader, stateful):
        assert next(iter(kind(SamplerItems(), sampler=one, collate_fn=list)))
    assert not caplog.text
    assert next(iter(stateful(SamplerItems(), batch_sampler=BatchSampler(one, 1, False), collate_fn=list)))  # type: ignore[arg-type]
    assert "BatchSampler deals these packs to a StatefulDataLoader, whose state has their number alone" in caplog.text


def test_steps_are_even_whatever_is_shuffled(packs: LazyPackedDataset) -> None:
    """Visual tokens of the ranks of a step: a rank with many is waited for (Automodel's balance goes with its shuffle).

    Half of what chance gives is easily met, with trained tokens as even as by chance.
    """
    ranks = 4
    for epoch in range(2):
        costs, _ = packs.costs(epoch)

        def waits(order: Sequence[int], cost: Any = costs[1]) -> float:
            steps = cost[np.array(order)[: len(order) // ranks * ranks].reshape(-1, ranks)]
            return float((steps.max(axis=1) - steps.mean(axis=1)).sum())

        samplers = [sampler(packs, rank, ranks) for rank in range(ranks)]
        for one in samplers:
            one.set_epoch(epoch)
        ours = [number for step in zip(*samplers, strict=True) for at, number in step if at == epoch]
        shuffled: Any = packs
        by_chance = [DistributedSampler[Any](shuffled, ranks, rank, drop_last=True) for rank in range(ranks)]
        assert waits(ours) < 0.5 * waits([number for step in zip(*by_chance, strict=True) for number in step])


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_training_goes_on_in_the_middle(packs: LazyPackedDataset, num_workers: int) -> None:
    """With a plain loader and with torchdata's, whose workers read ahead."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    settings: dict[str, Any] = {"batch_size": 2, "collate_fn": packs.collate, "num_workers": num_workers}
    one = sampler(packs, 1, 2)
    expected = [batch["sample_ids"] for batch in DataLoader(packs, sampler=one, **settings)]
    again = sampler(packs, 1, 2)
    stream = iter(DataLoader(packs, sampler=again, **settings))
    found = [next(stream)["sample_ids"] for _ in range(5)]
    state = again.state_dict(num_packs=10)
    other = sampler(packs, 1, 2)
    other.load_state_dict(state)
    found += [batch["sample_ids"] for batch in DataLoader(packs, sampler=other, **settings)]
    assert found == expected

    loader = StatefulDataLoader(packs, sampler=sampler(packs, 1, 2), **settings)
    stateful = iter(loader)
    found = [next(stateful)["sample_ids"] for _ in range(5)]
    state = loader.state_dict()
    del stateful
    loader = StatefulDataLoader(packs, sampler=sampler(packs, 1, 2), **settings)
    loader.load_state_dict(state)
    assert found + [batch["sample_ids"] for batch in loader] == expected
