"""A stream of packs: every sample where it belongs, and after a restart as if nothing had happened."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hydra
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate
from hydra.version import getbase
from torch.utils.data import DataLoader, IterableDataset

from energon_pack.config.compose import compose_config
from energon_pack.errors import PackError
from energon_pack.online.lazy import LazyPackedDataset
from energon_pack.online.streaming import StreamingPackedDataset
from energon_pack.samples.media.lazy_image import LazyImage
from energon_pack.samples.member import MemberInput
from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.model_inputs import sample_of
from energon_pack.templates.sample import Sample
from energon_pack.trainers import check
from support.alone import demo_model
from support.packed import demo_config, json_lines, lengths, packed
from support.running import need_torchvision
from support.samples import picture


class Conversations:
    """Some conversations in memory: words, and of every third one a picture."""

    def __init__(self, name: str, num: int, with_images: bool = False, bad: Sequence[int] = ()):
        self.name, self.num, self.with_images, self.bad = name, num, with_images, bad

    def __len__(self) -> int:
        return self.num

    def sample_id(self, i: int) -> str:
        return f"{self.name}/{i}"

    def sample_for_measuring(self, i: int) -> Sample:
        if i in self.bad:
            raise Skip(Reason.UNREADABLE_MEDIA, "torn")
        return sample_of(self.member(i))

    def member(self, i: int) -> MemberInput:
        images = [LazyImage(picture(28 * (2 + i % 5), 56), f"{i}.png")] if self.with_images and i % 3 == 0 else []
        ask = "<image>" * len(images) + "say it " * (1 + i % 23)
        messages = [{"role": "user", "content": ask}, {"role": "assistant", "content": f"word {i} " * (1 + i % 7)}]
        return MemberInput(self.sample_id(i), messages, images)


@pytest.fixture(scope="module")
def make(demo: tuple[Path, Path], cache: Path) -> Any:
    """A stream of packs of 256 tokens."""

    def made(sources: Sequence[Any], *overrides: str, **options: Any) -> StreamingPackedDataset:
        config = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", f"cache_dir={cache}", "executor.num_workers=1"]
        options = {"on_bad_member": "drop", "tokens_per_second": 2.0, **options}
        return StreamingPackedDataset([*config, "packing.max_token_len=256", *overrides], sources, **options)

    return made


def ids(packs: Any) -> list[list[str]]:
    return [[member.sample_id for member in pack.members] for pack in packs]


@pytest.mark.parametrize("buffer_size", [0.5, 2.0, 0])
def test_a_buffer_is_a_whole_number_of_samples(buffer_size: Any) -> None:
    """A fraction was taken, and compared with numbers of samples."""
    with pytest.raises(ValueError, match=f"buffer_size={buffer_size}: a whole number of samples"):
        StreamingPackedDataset(["+model=qwen2_5_vl", "source.path=/nowhere"], buffer_size=buffer_size)


SOURCES = [Conversations("a", 90), Conversations("b", 40, with_images=True)]


def test_each_sample_is_in_one_pack_of_one_lane(make: Any) -> None:
    """With two ranks and no replacement, each sample is seen by exactly one of them."""
    lanes = [ids(make(SOURCES, replacement=False, buffer_size=12, rank=rank, world_size=2)) for rank in range(2)]
    assert Counter(name for packs in lanes for pack in packs for name in pack) == dict.fromkeys(
        [f"{source.name}/{i}" for source in SOURCES for i in range(len(source))], 1
    )
    assert all(lanes)


def test_packs_are_full_and_what_they_say(make: Any) -> None:
    dataset = make(SOURCES, buffer_size=30)
    packs = list(islice(dataset, 50))
    lens = [sum(len(member.tokens) for member in pack.members) for pack in packs]
    assert max(lens) <= 256
    assert sum(lens) > 0.97 * 256 * 50
    statistics = dataset.statistics()
    assert statistics["packs"] == 50
    assert statistics["samples"] == sum(len(pack.members) for pack in packs)
    assert statistics["tokens"] == sum(lens)
    assert statistics["fill"] == sum(lens) / 50 / 256
    assert statistics["left_out"] == {}
    batch = dataset.collate(packs[:2])
    assert batch["input_ids"].shape[0] == 2
    assert all(len({"a": 1, "b": 2}.keys() & {name[0] for name in pack}) for pack in ids(packs))


def test_a_member_of_a_pack_has_the_logits_it_has_alone(make: Any, one_thread: None) -> None:
    """A member that sees another one, or its image, would train on a wrong context."""
    need_torchvision()
    dataset = make(SOURCES, "packing.group_by=none", "model.rope=qwen2_5_vl", buffer_size=20)
    model = demo_model(dataset.encoder.rules).eval()
    seen_media = 0
    for pack in islice(dataset, 4):
        batch = dataset.collate([pack])
        with torch.no_grad():
            together = model(**batch.model_inputs()).logits[0]
            starts = batch["cu_seq_lens_q"].tolist()
            for member, (start, end) in zip(pack.members, pairwise(starts), strict=True):
                name, _, number = member.sample_id.partition("/")
                source = next(source for source in SOURCES if source.name == name)
                alone = dataset.encoder.members.encode_alone(source.member(int(number)))
                tokens = alone.tokens
                inputs = {"input_ids": tokens.ids[None], "mm_token_type_ids": tokens.types[None], **alone.media}
                logits = model(**inputs, attention_mask=torch.ones_like(tokens.ids[None]), use_cache=False).logits[0]
                assert torch.equal(batch["input_ids"][0, start:end], tokens.ids)
                assert float((together[start:end] - logits).abs().max()) < 1e-5
                seen_media += alone.num_images
    assert seen_media > 0


def test_a_stream_goes_on_from_any_pack_as_if_nothing_had_happened(make: Any) -> None:
    """With JSON in between; without what waits, the packs after a restart would be other ones."""
    for replacement in (True, False):
        options = {"replacement": replacement, "buffer_size": 12, "seed": 5}
        whole = ids(islice(make(SOURCES, **options), 40 if replacement else None))
        dataset, again = make(SOURCES, **options), make(SOURCES, **options)
        stream = iter(dataset)
        for number in range(len(whole) - 2):
            again.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
            assert ids(islice(again, 3)) == whole[number : number + 3]
            assert again.statistics() == again.statistics() | {"packs": number + 3}
            next(stream)
        if not replacement:
            assert ids(stream) == whole[-2:], "an end that is planned is in the state, too"
            again.load_state_dict(dataset.state_dict())
            assert list(again) == []


def test_other_ranks_go_on_with_a_stream_and_no_sample_is_lost(make: Any) -> None:
    """2, then 3, then 1 rank, with what waited in their workers; before, only as many went on with a state."""
    options = {"replacement": False, "buffer_size": 12, "seed": 3}
    states: list[Any] = []
    seen = Counter[str]()
    for ranks, num in ((2, 3), (3, 2), (1, None)):
        streams = [make(SOURCES, rank=rank, world_size=ranks, states=states, **options) for rank in range(ranks)]
        for stream in streams:
            stream.set_epoch(0)  # as a trainer says of the epoch that is under way
            seen += Counter(name for pack in ids(islice(stream, num)) for name in pack)
        states = [{"worker_0": json.loads(json.dumps(stream.state_dict()))} for stream in streams]
    assert seen == dict.fromkeys([f"{source.name}/{i}" for source in SOURCES for i in range(len(source))], 1)
    ended = make(SOURCES, rank=0, world_size=1, states=states, **options)
    assert list(ended) == [], "a finished epoch is finished"
    ended.set_epoch(1)
    assert len(seen) == sum(map(len, ids(ended)))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_loader_of_torchdata_goes_on(make: Any, num_workers: int, world_size: int) -> None:
    """Each rank saves the state of its loader, workers and all; a new one goes on with the same batches."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader(rank: int, **more: Any) -> Any:
        options = {"replacement": False, "buffer_size": 12, "rank": rank, "world_size": world_size, **more}
        dataset = make(SOURCES, **options)
        return stateful.StatefulDataLoader(dataset, 1, num_workers=num_workers, collate_fn=dataset.collate)

    def names(batches: Any) -> list[Any]:
        return [batch["sample_ids"] for batch in batches]

    for rank in range(world_size):
        whole = names(loader(rank))
        first = loader(rank)
        before = names(islice(first, 4))
        state = first.state_dict()
        again = loader(rank)
        again.load_state_dict(state)
        assert before + names(again) == whole


def test_a_state_goes_on_with_the_same_settings_alone(make: Any) -> None:
    """With others, samples would be drawn by two lanes, or by none; it is refused in one line."""
    state = make(SOURCES, rank=0, world_size=2, buffer_size=12).state_dict()
    for damaged in (None, {}, {**state, "positions": []}, {**state, "pool": {}}):
        with pytest.raises(ValueError, match=r"^a state that is damaged"):
            make(SOURCES, rank=0, world_size=2, buffer_size=12).load_state_dict(damaged)
    for options, said in (
        ({"rank": 0, "world_size": 4}, "states of worker 0, but 2 workers have trained: give the state of each"),
        ({"rank": 1, "world_size": 2}, "states of worker 0, but 2 workers have trained"),
        ({"rank": 0, "world_size": 2, "buffer_size": 13}, "buffer_size=13: .* buffer_size=12 alone"),
        ({"rank": 0, "world_size": 2, "weights": [1, 2]}, r"weights=\[1.0, 2.0\]: .* weights=None alone"),
    ):
        with pytest.raises(ValueError, match=said):
            make(SOURCES, **{"buffer_size": 12, **options}).load_state_dict(state)
    for states, said in (
        ([state], "states of worker 0, but 2 workers have trained"),
        ([{"loader": 1}], "states: a list with the state of every rank's loader; these have none of a stream"),
        ([{"_steps_since_snapshot": 1, "worker_0": state}], "states that are older than the last batch"),
        ([{**state, "buffer_size": 13}], "buffer_size=12: this state goes on with buffer_size=13 alone"),
    ):
        with pytest.raises(ValueError, match=said):
            make(SOURCES, rank=0, world_size=1, buffer_size=12, states=states)
    with pytest.raises(ValueError, match="fingerprint="):
        make(SOURCES, "packing.max_images=4", rank=0, world_size=2, buffer_size=12).load_state_dict(state)


def talk(folder: Path, name: str, num: int = 20) -> str:
    """Write a JSONL of short conversations of two answers; return its path."""
    folder.mkdir(exist_ok=True)
    rows = []
    for i in range(num):
        turns = [("user", f"{name} {i:02d}?"), ("assistant", "Yes."), ("user", "So?"), ("assistant", "No.")]
        rows.append({"messages": [{"role": role, "content": text} for role, text in turns]})
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


class Table(list[Any]):
    """Conversations in memory, with a fingerprint as Hugging Face's datasets have it."""

    def __init__(self, items: Sequence[Any], fingerprint: str):
        super().__init__(items)
        self._fingerprint = fingerprint


def test_a_state_goes_on_with_the_same_sources_alone(
    make: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In another order some samples came twice, and some never; their numbers were compared alone.

    A fingerprint of Hugging Face may be another one for the same samples, and a list has none: states were lost.
    """
    options = {"replacement": False, "buffer_size": 6, "weights": [3, 1]}
    here, there = ([talk(tmp_path / folder, name) for name in "xy"] for folder in ("here", "there"))
    stream = make(here, **options)
    before = Counter(name for pack in ids(islice(stream, 2)) for name in pack)
    state = json.loads(json.dumps(stream.state_dict()))
    said = r"^sources\[0\] has other samples than the source there when this state was saved"
    for sources, number in ((here[::-1], "0"), ([here[0], [f"source.path={here[1]}", "source.columns.id=name"]], "1")):
        with pytest.raises(ValueError, match=said.replace("0", number)):
            make(sources, **options, states=[state])
    earlier = {key: value for key, value in state.items() if key != "sources"}
    for sources, kept in ((here, state), (there, state), (here, earlier)):  # a copy elsewhere is the same
        rest = Counter(name for pack in ids(make(sources, **options, states=[kept])) for name in pack)
        assert before + rest == {f"{name}.jsonl:{i}": 1 for name in "xy" for i in range(1, 21)}
    items = [json.loads(line) for line in Path(here[0]).read_text().splitlines()]
    table, first, second = (Table(items, name) for name in "aab")
    first_state = make([table]).state_dict()
    for then, now, warns in (
        (table, first, False),
        (table, second, True),
        (table, items, False),
        (items, table, False),
        (here[0], table, True),
    ):
        caplog.clear()
        with caplog.at_level("WARNING"):
            make([now], states=[make([then]).state_dict()])
        assert caplog.text.count("sources[0] had another fingerprint of Hugging Face") == warns
    with pytest.raises(ValueError, match=r"^a state that is damaged"):
        make([table], states=[{**first_state, "sources": None}])


def test_sources_differ_in_what_is_read_and_agree_in_all_else(make: Any, tmp_path: Path) -> None:
    """One source may set what holds for all, and so may all of them."""
    first, second = (talk(tmp_path, name) for name in "xy")
    once = {"replacement": False, "buffer_size": 6}

    def trained(sources: list[Any], *overrides: str) -> dict[str, int]:
        packs = make(sources, *overrides, **once)
        return {one.sample_id: int((one.tokens.labels != -100).sum()) for pack in packs for one in pack.members}

    last = [[f"source.path={path}", "labels.train_on=last"] for path in (first, second)]
    for_all = trained([first, second], "labels.train_on=last")
    assert trained(last) == for_all
    assert trained(last[:1]).items() <= for_all.items()
    assert sum(trained([first, second]).values()) > sum(for_all.values())
    limited = trained([[f"source.path={first}", "source.limit=3"], second])
    assert sorted(name for name in limited if name.startswith("x")) == [f"x.jsonl:{i}" for i in range(1, 4)]
    assert len(limited) == 23


def test_sources_may_differ_in_what_no_pack_depends_on(
    make: Any, demo: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams that ran were refused for their numbers of workers, folders, or two names of one processor."""
    path = talk(tmp_path / "talks", "x")
    monkeypatch.chdir(demo[1].parent)
    for override in ("executor.num_workers=2", f"output.dir={tmp_path / 'out'}", f"model.processor={demo[1].name}"):
        assert next(iter(make([path, [f"source.path={path}", override]]))).members
    for override in ("seed=5", f"model.processor={tmp_path}", "labels.train_on=last"):
        key = override.split("=")[0]
        with pytest.raises(PackError, match=rf"^sources\[0\] has {key}=.*, and sources\[1\] {key}=.*: only source"):
            make([path, [f"source.path={path}", override]])


def test_a_look_at_the_first_packs_takes_none(make: Any) -> None:
    """`check_trainer` looks at rows: a resumed epoch began anew, and these packs were counted."""
    options = {"replacement": False, "buffer_size": 12, "seed": 3}
    whole = ids(make(SOURCES, **options))
    stream = make(SOURCES, **options)
    assert ids(stream.peek(2)) == whole[:2]
    assert stream.statistics()["packs"] == 0
    before = ids(islice(stream, 4))
    assert ids(stream.peek(2)) == whole[:2], "an iteration without states begins with the epoch"
    state = json.loads(json.dumps(stream.state_dict()))
    again = make(SOURCES, **options, states=[state])
    collator = SimpleNamespace(pack_of_row=lambda row: row)
    trainer = SimpleNamespace(train_dataset=again, accelerator=SimpleNamespace(process_index=0))
    looked: Any = check._rows_to_compare(trainer, collator, None)  # type: ignore[arg-type]
    assert {name for pack in ids(looked) for name in pack} <= {name for pack in whole[4:] for name in pack}
    assert again.statistics()["packs"] == 4
    assert before + ids(again) == whole
    assert again.statistics()["packs"] == len(whole)


def test_workers_that_stay_hear_of_the_next_epoch(make: Any) -> None:
    """With `persistent_workers=True` each epoch was the first one."""
    options = {"replacement": False, "buffer_size": 12}
    stream, other = make(SOURCES, **options), make(SOURCES, **options)
    loader = DataLoader(stream, batch_size=None, num_workers=1, persistent_workers=True)
    first = ids(loader)
    stream.set_epoch(1)
    other.set_epoch(1)
    assert ids(loader) == ids(other) != first


def test_workers_begin_with_the_epoch_of_the_loaders_start(make: Any) -> None:
    """Each read the epoch when it got to it: of `set_epoch` meanwhile one worker heard, and another one did not."""
    stream = make(SOURCES, replacement=False, buffer_size=12)
    loader = DataLoader(stream, batch_size=None, num_workers=2, persistent_workers=True)
    for epoch in (0, 1):
        packs = iter(loader)
        stream.set_epoch(1)
        found = [*packs]
        assert {pack.key.split("/")[0] for pack in found} == {str(epoch)}
        assert {*Counter(name for pack in ids(found) for name in pack).values()} == {1}


def test_a_state_that_a_worker_loads_changes_no_epoch_that_was_set(make: Any) -> None:
    """The worker wrote the state's epoch where the next iterations of all workers look."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader_of(stream: Any) -> Any:
        return stateful.StatefulDataLoader(stream, None, num_workers=1, persistent_workers=True)

    first = loader_of(make(SOURCES, replacement=False, buffer_size=12))
    before = [*islice(first, 2)]
    stream = make(SOURCES, replacement=False, buffer_size=12)
    loader = loader_of(stream)
    loader.load_state_dict(first.state_dict())
    stream.set_epoch(1)
    for epoch, found in (("0", [*before, *loader]), ("1", [*loader])):
        assert {pack.key.split("/")[0] for pack in found} == {epoch}
        assert sum(map(len, ids(found))) == 130


def test_a_state_of_workers_is_not_asked_of_the_stream(make: Any) -> None:
    """The state was of the beginning, or of an earlier checkpoint: what the workers had read came twice."""
    options = {"replacement": False, "buffer_size": 12}
    stream = make(SOURCES, **options)
    beginning = stream.state_dict()
    loader = DataLoader(stream, batch_size=None, num_workers=1)
    assert len([*islice(loader, 3)]) == 3
    assert stream.statistics()["packs"] >= 3
    stream.set_epoch(0)  # as a trainer says of the epoch that is under way
    with pytest.raises(PackError, match=r"a loader's workers make these packs.*StatefulDataLoader\(…\)\.state_dict"):
        stream.state_dict()
    stream.load_state_dict(beginning)
    assert stream.state_dict()["positions"] == beginning["positions"]
    next(iter(loader))
    with pytest.raises(PackError, match="a loader's workers make these packs"):
        stream.state_dict()
    stream.set_epoch(1)
    assert stream.state_dict()["positions"][0]["epoch"] == 1
    next(iter(loader))
    own = iter(stream)  # this process reads
    before, state = next(own), stream.state_dict()
    rest = make(SOURCES, **options, states=[state])
    assert sorted(name for pack in [*ids([before]), *ids(rest)] for name in pack) == sorted(
        f"{source.name}/{i}" for source in SOURCES for i in range(len(source))
    )


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_resumed_stream_counts_epochs_from_its_own(
    make: Any, num_workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Accelerate counts epochs from 0 in each process: the state was thrown away, and epoch 0 came again."""
    options = {"replacement": False, "buffer_size": 12}
    first = make(SOURCES, **options)
    first.set_epoch(1)
    begun = iter(first)
    before = ids([next(begun) for _ in range(3)])
    states = [first.state_dict()]
    again = make(SOURCES, **options, states=states)
    loader = DataLoader(again, batch_size=None, num_workers=num_workers)
    found = []
    for epoch in range(2):
        again.set_epoch(epoch)
        found.append([*loader])
    assert [{pack.key.partition("/")[0] for pack in packs} for packs in found] == [{"1"}, {"2"}]
    assert sorted(name for pack in [*before, *ids(found[0])] for name in pack) == sorted(
        f"{source.name}/{i}" for source in SOURCES for i in range(len(source))
    )
    assert caplog.text.count("set_epoch(0) goes to epoch 1: an epoch before that of the loaded state was set") == 1
    by_number = make(SOURCES, **options, states=states)
    for epoch in (1, 2, 0):
        by_number.set_epoch(epoch)
        assert {pack.key.partition("/")[0] for pack in by_number} == {str(epoch)}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_that_a_loader_loads_after_an_earlier_epoch_was_set(make: Any, num_workers: int) -> None:
    """Accelerate sets epoch 0, and then the loader loads the state: its second loop had the state's epoch once more.

    An epoch that is set after the loop, or a later one before it, is meant as it is said.
    """
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader_of(stream: Any) -> Any:
        return stateful.StatefulDataLoader(stream, None, num_workers=num_workers)

    first = make(SOURCES, replacement=False, buffer_size=12)
    first.set_epoch(1)
    loader = loader_of(first)
    next(iter(loader))
    state = loader.state_dict()
    for named, expected in (((0, 1), ["1", "2"]), ((1, 2), ["1", "2"]), ((None, 2), ["1", "2"]), ((3, 4), ["1", "4"])):
        again = make(SOURCES, replacement=False, buffer_size=12)
        loader = loader_of(again)
        loader.load_state_dict(state)
        found = []
        for epoch in named:
            if epoch is not None:
                again.set_epoch(epoch)
            found.append({pack.key.partition("/")[0] for pack in loader}.pop())
        assert found == expected


def test_a_state_is_read_by_torch_load(make: Any, tmp_path: Path) -> None:
    """`torch.load` refused it: since PyTorch 2.6 it reads plain values alone, and keys were members of an enum."""
    state = make(SOURCES).state_dict()
    torch.save(state, tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == state


class Shard(IterableDataset[Any]):
    """Gives every second item of a stream, as Accelerate's IterableDatasetShard does on each of two processes."""

    num_processes, process_index = 2, 0
    __module__ = "accelerate.data_loader"

    def __init__(self, packs: Any):
        self.packs = packs

    def __iter__(self) -> Any:
        for number, pack in enumerate(self.packs):
            if number % self.num_processes == self.process_index:
                yield pack


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_of_one_rank_is_not_dealt_to_ranks_once_more(make: Any, num_workers: int) -> None:
    """Each of two ranks trained every second pack of its own."""
    shard: Any = Shard(make(SOURCES, rank=1, world_size=2))
    with pytest.raises(PackError, match="StreamingPackedDataset deals to 2 ranks, and Shard would deal the share"):
        next(iter(DataLoader(shard, batch_size=None, num_workers=num_workers)))
    shard.num_processes = 1
    assert next(iter(shard)).members
    whole = Shard(make(SOURCES, rank=0, world_size=1))
    assert next(iter(whole)).members


def test_a_sample_that_can_not_be_read_is_counted_or_ends_the_training(make: Any) -> None:
    """Never is it replaced by another, and never is it missing without a word."""
    sources = [Conversations("a", 30, bad=[3, 7])]
    dataset = make(sources, replacement=False)
    packs = list(dataset)
    assert sorted(name for pack in ids(packs) for name in pack) == sorted(
        f"a/{i}" for i in range(30) if i not in (3, 7)
    )
    assert dataset.statistics()["left_out"] == {"unreadable_media": 2}
    with pytest.raises(ValueError, match=r"a/[37]: unreadable_media: torn \(on_bad_member=drop leaves"):
        list(make(sources, replacement=False, on_bad_member="raise"))
    with pytest.raises(ValueError, match="none of the samples drawn can be packed: unreadable_media: torn"):
        next(iter(make([Conversations("a", 5, bad=range(5))])))


def test_a_rank_that_can_pack_nothing_says_so(make: Any) -> None:
    """It ended without a pack and without an error, where samples are drawn once; each of its workers drew a share."""
    short = ["packing.max_token_len=8"]
    said = "none of the samples drawn can be packed: overlong"
    sources, options = [Conversations("a", 23), Conversations("never", 9)], {"replacement": False, "weights": [1, 0]}
    for rank, world_size in ((0, 1), (1, 2)):
        with pytest.raises(ValueError, match=said):
            list(make(sources, *short, rank=rank, world_size=world_size, **options))
    workers = make(sources, *short, **options)
    first, second = (workers._make_packs(worker, 2) for worker in range(2))
    assert [*first] == []  # the other one may pack some
    with pytest.raises(ValueError, match=said):
        next(second)
    few = make([Conversations("a", 3, bad=[1])], replacement=False)
    alone = [few._make_packs(worker, 3) for worker in range(3)]  # one worker has the bad sample alone
    assert sorted(name for packs in alone for pack in ids(packs) for name in pack) == ["a/0", "a/2"]


def test_overlong_samples_as_the_settings_say(make: Any) -> None:
    """Left out and counted, in a pack of their own, or an error that names one; cutting them needs a plan."""
    sources = [Conversations("a", 23)]
    short = ["packing.max_token_len=64"]
    dataset = make(sources, *short, replacement=False)
    found = [name for pack in ids(dataset) for name in pack]
    assert dataset.statistics()["left_out"] == {"overlong": 23 - len(found)}
    assert 0 < len(found) < 23
    own = make(sources, *short, "packing.overlong=own_pack", "packing.hard_limit=256", replacement=False)
    packs = list(own)
    assert len([name for pack in ids(packs) for name in pack]) == 23
    lens = [sum(len(of.tokens) for of in pack.members) for pack in packs]
    assert all(len(pack.members) == 1 for pack, num in zip(packs, lens, strict=True) if num > 64)
    assert own.statistics()["fill"] == sum(lens) / sum(max(64, num) for num in lens) <= 1
    with pytest.raises(ValueError, match=r"a/\d+: overlong: \d+ > packing.max_token_len=64 \(packing.overlong=drop"):
        list(make(sources, *short, "packing.overlong=error", replacement=False))
    with pytest.raises(ValueError, match=r"packing\.overlong=split_turns needs a plan over all samples"):
        make(sources, "packing.overlong=split_turns")


def test_tars_lines_and_conversations_in_one_stream(make: Any, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Each source as its overrides say; what of the tars is in no pack is what offline packing leaves out."""
    turns = [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "A word."}]
    (tmp_path / "a.png").write_bytes(picture(56, 56, "PNG"))
    lines = [{"messages": turns, "images": ["a.png"]}] * 5
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    held = [{"messages": [{"role": "user", "content": "hi"}, turns[1]]} for _ in range(4)]
    sources = [str(demo[0]), ["source=jsonl", f"source.path={tmp_path / 'a.jsonl'}", "source.limit=3"], held]
    offline = packed(demo_config(demo, tmp_path / "cache", tmp_path, packing__max_token_len=1024, max_skipped=1.0))
    dataset = make(sources, "packing.max_token_len=1024", replacement=False)
    names = Counter(name for pack in ids(dataset) for name in pack)
    expected = {f"{shard}/{key}": 1 for shard, key, _ in lengths(offline)}
    assert {name: count for name, count in names.items() if name in expected} == expected
    others = sorted(names.keys() - expected.keys())
    assert others == sorted([*(f"a.jsonl:{i}" for i in range(1, 4)), *(f"conversations/{i}" for i in range(4))])
    ledger = Counter(line["reason"] for line in json_lines(offline / "skipped.jsonl"))
    assert dataset.statistics()["left_out"] == ledger == {"overlong": 5}


def test_a_trainer_that_runs_in_hydra_builds_its_data(
    make: Any, demo: tuple[Path, Path], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within `@hydra.main` all three ended with "GlobalHydra is already initialized"; the application goes on."""
    settings = [f"cache_dir={cache}", f"output.dir={tmp_path}", f"source.path={demo[0]}", f"model.processor={demo[1]}"]
    settings = ["+model=qwen2_5_vl", *settings, "executor.num_workers=1", "packing.max_token_len=2048"]
    made: list[Any] = []

    @hydra.main(version_base="1.2", config_path=str(tmp_path))
    def train(_: Any) -> None:
        application, base = GlobalHydra.instance().hydra, getbase()
        made.append(compose_config(settings))
        made.append(make([Conversations("a", 40)]))
        made.append(LazyPackedDataset(settings))
        made.append(instantiate({"_target_": "energon_pack.LazyPackedDataset", "config": settings}))
        with pytest.raises(PackError, match="no model 'qwen2_5_lv'"):
            compose_config(["+model=qwen2_5_lv"])
        assert GlobalHydra.instance().hydra is application
        assert getbase() == base

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "sys.argv", ["train.py", "hydra.output_subdir=null", "hydra.run.dir=.", "hydra/job_logging=none"]
    )
    train()
    config, stream, packs, again = made
    assert config.packing.max_token_len == 2048
    assert next(iter(stream)).members
    assert len(packs) == len(again) > 1
    assert not GlobalHydra.instance().is_initialized()
