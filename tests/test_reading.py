"""Packs in the order of their plan through Energon's real loader, from the beginning and from where others were."""

import json
import logging
import multiprocessing
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from megatron.energon import (
    DefaultTaskEncoder,
    SkipSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)

from energon_pack import metadataset
from energon_pack.config import Rope
from energon_pack.errors import PackError
from energon_pack.loading import Journal, train_arguments
from energon_pack.loading.in_order import PacksInOrder
from energon_pack.loading.task_encoder import PackedTaskEncoder
from energon_pack.steps.topology import Topology
from support.marks import slow
from support.packed import demo_config
from support.packed import packed as pack_of

pytestmark = pytest.mark.usefixtures("one_thread")
NUM = 41
IN_ORDER: dict[str, Any] = {"shuffle_over_epochs_multiplier": None, "parallel_shard_iters": 1}


class Plain(PacksInOrder, DefaultTaskEncoder[Any, Any, Any, Any]):
    """A user's task encoder that returns packs unchanged."""

    decoder = None


class Energons(DefaultTaskEncoder[Any, Any, Any, Any]):
    """The same, dealt by Energon itself."""

    decoder = None


class Skipping(PackedTaskEncoder):
    """Leaves out whole packs, as those are whose members are all dropped."""

    skipped: Sequence[str] = ()

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        if sample.__key__ in self.skipped:
            raise SkipSample
        return super().encode_sample(sample)


@pytest.fixture(scope="module")
def dataset(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """41 packs, a shard each."""
    settings: dict[str, Any] = {"output__max_shard_packs": 1, "source__limit": 149, "model__rope": Rope.qwen2_5_vl}
    return pack_of(demo_config(demo, cache, tmp_path_factory.mktemp("packed"), packing__max_token_len=840, **settings))


def part(dataset: Path, folder: Path, num: int, topology: Topology | None = None) -> Path:
    """The first packs of a dataset, laid out for somebody."""
    folder.mkdir()
    for path in dataset.iterdir():
        if path.name != ".nv-meta":
            (folder / path.name).symlink_to(path)
    meta = folder / ".nv-meta"
    meta.mkdir()
    for path in filter(Path.is_file, (dataset / ".nv-meta").iterdir()):
        (meta / path.name).write_bytes(path.read_bytes())
    (meta / "processor").symlink_to(dataset / ".nv-meta" / "processor")
    shards = yaml.safe_load((meta / "split.yaml").read_text())["split_parts"]["train"][:num]
    (meta / "split.yaml").write_text(yaml.safe_dump({"split_parts": {"train": shards}, "exclude": []}))
    manifest = json.loads((meta / "energon_pack.json").read_text())
    manifest.pop("topology", None)
    manifest |= {} if topology is None else {"topology": asdict(topology)}
    (meta / "energon_pack.json").write_text(json.dumps(manifest))
    return folder


def keys(folder: Path, encoder: Any, ranks: int, workers: int, num: int | None = None) -> list[list[str]]:
    """The packs of each rank: all of an epoch, or so many."""
    found = []
    for rank in range(ranks):
        worker = WorkerConfig(rank=rank, world_size=ranks, num_workers=workers)
        settings: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, **IN_ORDER}
        settings |= {"batch_size": None, "repeat": num is not None, "task_encoder": encoder}
        packs = get_savable_loader(get_train_dataset(folder, worker_config=worker, **settings))
        found.append([pack.__key__ for pack in islice(packs, num)])
    return found


@pytest.mark.parametrize(
    ("num", "ranks", "workers"), [(7, 2, 1), slow(8, 2, 2), slow(13, 3, 2), (30, 4, 0), slow(41, 4, 2), (3, 2, 2)]
)
def test_it_is_what_energon_itself_reads_unshuffled(
    dataset: Path, tmp_path: Path, num: int, ranks: int, workers: int
) -> None:
    """Else a plan's steps would not be those of the loader.

    What is over after whole rows goes to the first ranks, not to those whose stretch has it: a row is then filled up.
    """
    real = max(1, workers)
    folder = part(dataset, tmp_path / "x", num, Topology(ranks, real, real))
    expected, found = (keys(folder, encoder, ranks, workers) for encoder in (Energons(), Plain()))
    whole = num // (ranks * real) * real
    assert [rank[:whole] for rank in found] == [rank[:whole] for rank in expected]
    everything = [key for rank in found for key in rank]
    assert sorted(everything) == sorted(key for rank in expected for key in rank)
    assert len(set(everything)) == num


def test_a_lost_shard_is_named_before_and_while_it_is_read(dataset: Path, tmp_path: Path) -> None:
    """The training ended hours later in an error of `tarfile`, which named no shard and nothing to do."""
    folder = part(dataset, tmp_path / "x", 7)
    shard, worker = folder / "packed-000003.tar", WorkerConfig(rank=0, world_size=1, num_workers=0)
    settings: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, **IN_ORDER}
    begun = get_train_dataset(
        folder, worker_config=worker, batch_size=None, repeat=False, task_encoder=Plain(), **settings
    )
    shard.unlink()
    with pytest.raises(PackError, match=r"packed-000003\.tar can't be read: No such file or directory: copy it again"):
        list(get_savable_loader(begun))
    with pytest.raises(PackError, match=r"packed-000003\.tar is missing: copy it again from where it is whole"):
        keys(folder, Plain(), 1, 0)
    shard.write_bytes(bytes(1000))
    with pytest.raises(PackError, match=r"packed-000003\.tar is cut: it has 1,000 bytes of [\d,]+: copy it again"):
        keys(folder, Plain(), 1, 0)


@pytest.mark.parametrize(("ranks", "workers"), [(2, 0), slow(4, 1), slow(2, 2)])
def test_a_later_epoch_has_the_steps_in_another_order(dataset: Path, tmp_path: Path, ranks: int, workers: int) -> None:
    """Whoever reads, with however many ranks and workers: a loader that repeats had the same order in every epoch."""
    folder = part(dataset, tmp_path / "x", 40, Topology(4, 1, 1))
    of_ranks = keys(folder, Plain(), ranks, workers, 3 * 40 // ranks)
    in_time = [key for turn in zip(*of_ranks, strict=True) for key in turn]
    epochs = [in_time[start : start + 40] for start in (0, 40, 80)]
    assert all(len(set(epoch)) == 40 for epoch in epochs)
    steps = [[frozenset(epoch[start : start + 4]) for start in range(0, 40, 4)] for epoch in epochs]
    assert set(steps[0]) == set(steps[1]) == set(steps[2])
    assert len({tuple(epoch) for epoch in steps}) == 3
    alone = keys(folder, Plain(), 1, 0, 120)[0]
    assert alone == in_time


def test_packs_of_several_epochs_are_read_in_their_order(dataset: Path, tmp_path: Path) -> None:
    """With a stretch of shards each, one rank would be in the first epoch while another is in the last."""
    folder = part(dataset, tmp_path / "x", 40)
    meta = folder / ".nv-meta" / "energon_pack.json"
    manifest = json.loads(meta.read_text())
    manifest["turns"] = 4
    meta.write_text(json.dumps(manifest))
    in_time = [key for turn in zip(*keys(folder, Plain(), 4, 0, 20), strict=True) for key in turn]
    written = keys(folder, Energons(), 1, 0)[0]
    assert in_time == written + written


def test_packs_that_were_laid_out_for_nobody(dataset: Path, tmp_path: Path) -> None:
    """Each rank reads a stretch of shards, however many workers it or another has: ranks may differ in theirs."""
    folder = part(dataset, tmp_path / "x", 13)
    one = keys(folder, Plain(), 3, 0)
    assert [rank[:4] for rank in one] == [rank[:4] for rank in keys(folder, Energons(), 3, 0)]
    assert keys(folder, Plain(), 3, 2) == one
    assert len({key for rank in one for key in rank}) == 13


def begun(folder: Path, encoder: Any, world: tuple[int, int, int], states: Any = ()) -> tuple[Any, Journal]:
    """The loader of a rank of so many ranks and workers, and its journal."""
    rank, ranks, workers = world
    worker = WorkerConfig(rank=rank, world_size=ranks, num_workers=workers)
    packs = get_train_dataset(folder, **train_arguments(folder, encoder, worker, states))
    return get_savable_loader(packs), Journal(packs, states)


def run(folder: Path, encoder: Any, world: tuple[int, int], states: Any, num: int) -> tuple[list[Any], list[Any]]:
    """Batches of so many steps of all ranks, and the ranks' states as JSON keeps them; then they are killed."""
    (ranks, workers), batches, ends = world, [], []
    for rank in range(ranks):
        loader, journal = begun(folder, encoder, (rank, ranks, workers), states)
        for batch in islice(loader, num):
            journal.add(batch)
            batches.append(batch)
        ends.append(json.loads(json.dumps(journal.state())))
        raising = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises for a worker that is killed
        for process in multiprocessing.active_children():
            process.terminate()
            process.join()
        signal.signal(signal.SIGCHLD, raising)
    return batches, ends


@pytest.fixture(scope="module")
def laid_out(dataset: Path, demo: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """Packs laid out for four ranks of two workers, an encoder that skips two of them, and samples by pack."""
    folder = part(dataset, tmp_path_factory.mktemp("packs") / "x", NUM, Topology(4, 2, 2))
    encoder = Skipping(folder, str(demo[1]))
    batches, _ = run(folder, encoder, (1, 0), (), NUM)
    members = {batch["__key__"][0]: batch["sample_ids"][0] for batch in batches}
    assert len(members) == NUM
    encoder.skipped = [batches[9]["__key__"][0], batches[12]["__key__"][0]]
    return folder, encoder, members


def without_skipping(encoder: Skipping) -> Skipping:
    """The same encoder, which takes all packs."""
    whole = encoder.going_on(())
    whole.skipped = ()
    return whole


@pytest.mark.parametrize(
    ("skips", "workers"), [(True, 1), slow(True, 2), slow(False, 0), slow(False, 2), slow(True, 0)]
)
@pytest.mark.parametrize(
    "kills", [(3, 5, 2), slow((1, 1, 1)), slow((6, 2, 4)), slow((2, 9, 3)), slow((7, 0, 5)), slow((4, 11, 1))]
)
def test_each_sample_is_seen_once_in_an_epoch_by_2_then_1_then_3_then_4_ranks(
    laid_out: tuple[Path, Any, Any], workers: int, skips: bool, kills: tuple[int, int, int]
) -> None:
    """Killed after so many steps each time: what workers had read ahead is neither lost nor seen twice."""
    folder, encoder, members = laid_out
    if not skips:
        encoder = without_skipping(encoder)
    batches: list[Any] = []
    states: list[Any] = []
    for ranks, num in zip((2, 1, 3, 4), (*kills, 18), strict=True):
        more, states = run(folder, encoder, (ranks, workers), states, num)
        batches += more
    seen = Counter(name for batch in batches if batch["positions"][0] < NUM for name in batch["sample_ids"][0])
    assert seen == Counter(name for key in members.keys() - set(encoder.skipped) for name in members[key])
    assert set(seen.values()) == {1}


def test_what_was_consumed_is_kept(laid_out: tuple[Path, Any, Any]) -> None:
    """By all ranks together, whoever they were; Bridge's own count is of capacity."""
    folder, encoder, _ = laid_out
    batches, states = run(folder, encoder, (2, 0), (), 6)
    more, states = run(folder, encoder, (3, 0), states, 2)
    _, journal = begun(folder, encoder, (0, 1, 0), states)
    both = batches + more
    assert journal.before.samples == sum(len(batch["sample_ids"][0]) for batch in both)
    assert journal.before.tokens == sum(int((batch["doc_ids"] > 0).sum()) for batch in both)
    assert journal.before.trained == sum(int((batch["labels"] != -100).sum()) for batch in both)
    assert len(both) <= journal.before.packs <= len(both) + 2
    assert journal.epochs(journal.before) == journal.before.packs / NUM
    assert journal.own.packs == 0


@pytest.mark.parametrize("workers", [slow(0), 2])
@pytest.mark.parametrize("goes_on", [slow(False), True])
def test_energons_own_state_and_that_of_one_rank_go_on_in_the_same_world(
    laid_out: tuple[Path, Any, Any], workers: int, goes_on: bool
) -> None:
    """Megatron-Bridge hands a rank no other's state; a pack is found again by its restore key."""
    folder, encoder = laid_out[0], without_skipping(laid_out[1])
    states = run(folder, encoder, (3, 1), (), 3)[1] if goes_on else ()
    loader, journal = begun(folder, encoder, (1, 2, workers), states)
    stream = iter(loader)
    for batch in islice(stream, 5):
        journal.add(batch)
    saved, state = loader.save_state_rank(), journal.state()
    expected = [batch["__key__"] for batch in islice(stream, 20)]
    again, _ = begun(folder, encoder, (1, 2, workers), ())
    again.restore_state_rank(saved)
    assert [batch["__key__"] for batch in islice(again, 20)] == expected
    if workers == 0:
        restored = again.restore_sample(batch["__restore_key__"])
        assert (restored["__key__"], restored["positions"]) == (batch["__key__"], batch["positions"])
    alone, _ = begun(folder, encoder, (1, 2, 1), [state])
    assert [batch["__key__"] for batch in islice(alone, 20)] == expected
    for process in multiprocessing.active_children():
        process.terminate()


def test_packs_that_are_excluded_are_passed_over(dataset: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """By `exclude` of split.yaml, as Energon does."""
    folder = part(dataset, tmp_path / "x", 6)
    names = keys(folder, Plain(), 1, 0)[0]
    split = folder / ".nv-meta" / "split.yaml"
    content = yaml.safe_load(split.read_text())
    shard = content["split_parts"]["train"][2]
    split.write_text(yaml.safe_dump({**content, "exclude": [f"{shard}/{names[2]}"]}))
    assert sorted(keys(folder, Plain(), 1, 2)[0]) == names[:2] + names[3:]


def test_crude_datasets_are_read_in_order(dataset: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    folder = part(dataset, tmp_path / "x", 6)
    encoder, worker = PackedTaskEncoder(folder, str(demo[1])), WorkerConfig(rank=0, world_size=1, num_workers=0)
    arguments = train_arguments(folder, encoder, worker)
    typed, crude = (
        [batch["__key__"] for batch in islice(get_savable_loader(get_train_dataset(folder, **more, **arguments)), 6)]
        for more in ({}, {"dataset_config": "crude.yaml"})
    )
    assert crude == typed


def test_states_that_this_dataset_can_not_go_on_from(
    laid_out: tuple[Path, Any, Any], dataset: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line that says what to give."""
    folder, encoder, _ = laid_out
    _, states = run(folder, encoder, (2, 0), (), 2)
    other = part(dataset, tmp_path / "x", 40)
    with pytest.raises(ValueError, match=r"states of another dataset, of 41 packs .* has 40 .*: go on with the one"):
        begun(other, encoder, (0, 1, 0), states)
    for not_states in (states[0], [{"loader": states[0]}]):
        with pytest.raises(ValueError, match=r"states: a list with what Journal.state\(\) was on each rank"):
            begun(folder, encoder, (0, 1, 0), not_states)
    energons = begun(folder, encoder, (0, 1, 0))[0].save_state_rank()
    with pytest.raises(ValueError, match=r"states of another dataset, of 41 packs \(.*; this one has 40"):
        begun(other, encoder, (0, 1, 0))[0].restore_state_rank(energons)
    later = run(folder, encoder, (2, 0), (), 3)[1]
    with pytest.raises(ValueError, match=r"of several steps \(rank 0 had 2 batches, rank 1 had 3 batches\)"):
        begun(folder, encoder, (0, 1, 0), [states[0], later[1]])
    with pytest.raises(ValueError, match="states of rank 1, but 2 ranks have trained"):
        begun(folder, encoder, (0, 1, 0), states[1:])
    blend = tmp_path / "blend.yaml"
    metadataset.main([str(blend), f"{folder}=1", f"{other}=1"])
    with pytest.raises(ValueError, match="these are shuffled, or a blend"):
        begun(blend, encoder, (0, 1, 0), states)
    loader, journal = begun(blend, encoder, (0, 1, 0))
    journal.add(next(iter(loader)))
    assert (journal.own.packs, journal.epochs(journal.own), journal.state()["position"]) == (1, None, None)
    with pytest.raises(ValueError, match="states of a blend"):
        begun(folder, encoder, (0, 1, 0), [journal.state()])
    assert "restore_state_rank" not in caplog.text
    begun(blend, encoder, (0, 1, 0), [journal.state()])  # from the beginning: that is not to happen in silence
    assert "states only say how much was consumed; which come next, Energon's restore_state_rank" in caplog.text


def test_a_run_that_would_lose_the_even_steps_is_told(
    laid_out: tuple[Path, Any, Any], dataset: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The packs are laid out for 4 ranks × 2 workers."""
    folder, encoder, _ = laid_out
    caplog.set_level(logging.WARNING)
    for ranks in (4, 2):
        begun(folder, encoder, (0, ranks, 0))
    assert caplog.messages == []
    begun(folder, encoder, (0, 3, 0))
    assert (
        "not even as planned for 4 ranks: here are 3 ranks, from pack 0 on; they are with ranks that divide 8"
        in caplog.messages[-1]
    )
    blend = tmp_path / "blend.yaml"
    metadataset.main([str(blend), f"{folder}=1", f"{folder}=2"])
    begun(blend, encoder, (0, 4, 2))
    assert "packs are shuffled or blended, so steps are not even" in caplog.messages[-1]
    assert len(caplog.messages) == 2
    begun(part(dataset, tmp_path / "fewer", 40, Topology(4, 2, 2)), encoder, (0, 4, 2))
    excluding = part(dataset, tmp_path / "excluding", NUM, Topology(4, 2, 2))
    split = excluding / ".nv-meta" / "split.yaml"
    content = yaml.safe_load(split.read_text())
    split.write_text(yaml.safe_dump({**content, "exclude": [f"{content['split_parts']['train'][0]}/x"]}))
    begun(excluding, encoder, (0, 4, 2))
    assert [message.endswith("with no pack excluded") for message in caplog.messages[2:]] == [True] * 2


def test_steps_of_other_numbers_of_packs_are_told(
    laid_out: tuple[Path, Any, Any], dataset: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sums of 4 packs of each of 4 ranks are even: fewer lose that, though the ranks are as planned."""
    folder, encoder = part(dataset, tmp_path / "x", NUM, Topology(4, 1, 4)), laid_out[1]
    for ranks, num in ((4, 4), (4, 8), (2, 8), (4, None)):
        worker = WorkerConfig(rank=0, world_size=ranks, num_workers=0)
        get_train_dataset(folder, **train_arguments(folder, encoder, worker, micro_batches=num))
    assert caplog.messages == []
    for ranks, num in ((4, 1), (2, 4), (2, None)):
        worker = WorkerConfig(rank=0, world_size=ranks, num_workers=0)
        get_train_dataset(folder, **train_arguments(folder, encoder, worker, micro_batches=num))
    assert [message.partition("here are ")[2].partition("; they are with ")[0] for message in caplog.messages] == [
        "4 ranks with 1 pack each, from pack 0 on",
        "2 ranks with 4 packs each, from pack 0 on",
        "2 ranks, from pack 0 on",
    ]
    assert all("steps of 16 packs of all ranks" in message for message in caplog.messages)


def test_going_on_within_a_step_is_told(laid_out: tuple[Path, Any, Any], caplog: pytest.LogCaptureFixture) -> None:
    """4 ranks, 3, and 4 again: from there on each step had parts of two that are even, and nothing said so."""
    folder, encoder = laid_out[0], without_skipping(laid_out[1])
    of_four = run(folder, encoder, (4, 0), (), 1)[1]
    for num, said in ((4, []), (2, ["4 ranks, from pack 10 on; they are with"])):
        of_three = run(folder, encoder, (3, 0), of_four, num)[1]
        caplog.clear()
        for rank in range(4):
            begun(folder, encoder, (rank, 4, 0), of_three)
        assert len(caplog.messages) == len(said)
        assert all(part in message for part, message in zip(said, caplog.messages, strict=True))


def test_an_epoch_that_is_read_once_goes_on_where_it_ended(laid_out: tuple[Path, Any, Any]) -> None:
    """41 packs end for 3 ranks in a row of 2: as states of several steps they were refused."""
    folder, encoder = laid_out[0], without_skipping(laid_out[1])
    states = []
    for rank in range(3):
        worker = WorkerConfig(rank=rank, world_size=3, num_workers=0)
        packs = get_train_dataset(folder, **train_arguments(folder, encoder, worker), repeat=False)
        journal = Journal(packs)
        for batch in get_savable_loader(packs):
            journal.add(batch)
        states.append(journal.state())
    assert [state["batches"] for state in states] == [14, 14, 13]
    assert run(folder, encoder, (1, 0), states, 1)[0][0]["positions"] == [NUM]


def read(
    folder: Path, encoder: Any, world: tuple[int, int, int], states: Any = (), before: int = NUM, repeat: bool = False
) -> tuple[list[int], Any]:
    """The positions below a bound that a rank reads, in a world of rank, ranks, workers; and its state then."""
    rank, ranks, workers = world
    worker = WorkerConfig(rank=rank, world_size=ranks, num_workers=workers)
    arguments = train_arguments(folder, encoder, worker, states)
    packs = get_train_dataset(folder, **arguments, repeat=repeat)
    journal, positions = Journal(packs, states), list[int]()
    for batch in get_savable_loader(packs):
        if batch["positions"][0] >= before:
            break
        journal.add(batch)
        positions += batch["positions"]
    return positions, journal.state()


@pytest.mark.parametrize("workers", [0, slow(2)])
@pytest.mark.parametrize(("ranks", "others"), [(3, 2), slow(1, 4), slow(4, 1), slow(2, 2)])
def test_a_finished_epoch_is_finished_whoever_goes_on(
    laid_out: tuple[Path, Any, Any], ranks: int, others: int, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A job that had read all packs once with `repeat=False`, and was started again, read them all once more."""
    packs, last_row = (laid_out[0], without_skipping(laid_out[1])), (NUM - 1) // ranks * ranks

    def read_by_all(states: Any, before: int = NUM, repeat: bool = False) -> tuple[list[int], list[Any]]:
        found = [read(*packs, (rank, others, workers), states, before, repeat) for rank in range(others)]
        return sorted(position for positions, _ in found for position in positions), [state for _, state in found]

    ended, before = ([read(*packs, (r, ranks, 0), (), at)[1] for r in range(ranks)] for at in (NUM, last_row))
    caplog.clear()
    nothing, again = read_by_all(ended)
    assert nothing == read_by_all(again)[0] == []
    assert [message.partition(": ")[2] for message in caplog.messages if "finished" in message] == [
        "the states are of a finished epoch: repeat=False reads nothing, repeat=True the next epoch"
    ] * 2
    assert read_by_all(before)[0] == [*range(last_row, NUM)]
    assert read_by_all(again, NUM + 8, repeat=True)[0] == [*range(NUM, NUM + 8)]
    for rank, state in enumerate(ended):  # its own state alone, in the same world
        assert read(*packs, (rank, ranks, 0), [state])[0] == []


@pytest.mark.parametrize("workers", [0, slow(2)])
@pytest.mark.parametrize("at", [slow(NUM - 1), NUM, slow(NUM + 1)])
def test_a_loader_that_energon_restores_at_the_end_has_nothing_left(
    laid_out: tuple[Path, Any, Any], at: int, workers: int
) -> None:
    """After the last pack, and after the loop found that there is no other, all packs came again."""
    folder, encoder = laid_out[0], without_skipping(laid_out[1])

    def loader() -> Any:
        arguments = train_arguments(folder, encoder, WorkerConfig(rank=0, world_size=1, num_workers=workers))
        return get_savable_loader(get_train_dataset(folder, **arguments, repeat=False))

    first = loader()
    list(islice(first, at))
    again = loader()
    again.restore_state_rank(first.save_state_rank())
    assert len(list(again)) == max(0, NUM - at)
    assert len(list(again)) == NUM  # this process goes on with the next epoch


def test_other_encoders_are_refused_where_they_would_lose_it(laid_out: tuple[Path, Any, Any]) -> None:
    """What Energon deals itself is in order only where the product is the planned one: 4 ranks × 2 workers."""
    folder = laid_out[0]
    train_arguments(folder, Energons(), WorkerConfig(rank=0, world_size=4, num_workers=2))
    with pytest.raises(
        ValueError, match=r"for 4 ranks × 2 workers \(8\), these are 2 × 2: set num_workers=4, or read with"
    ):
        train_arguments(folder, Energons(), WorkerConfig(rank=0, world_size=2, num_workers=2))
    with pytest.raises(ValueError, match="these are 3 × 2: read with PackedTaskEncoder"):
        train_arguments(folder, Energons(), WorkerConfig(rank=0, world_size=3, num_workers=2))
