"""Preference pairs that are packed while they are loaded: whole in one pack, and never seen by an SFT loss."""

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from energon_pack import (
    LazyPackedDataset,
    PackedDataset,
    PackedTaskEncoder,
    PackSampler,
    StreamingPackedDataset,
    automodel,
    check_trainer,
    guard,
    member_logps,
    use_tree_attention,
    weighted_loss,
)
from energon_pack.config import PackConfig
from energon_pack.errors import PackError
from energon_pack.plan.settings import Overlong, SharedBeginnings
from energon_pack.samples.member import MemberInput
from energon_pack.samples.settings import PreferenceTake
from energon_pack.training.encoded import IGNORE, BadPack
from energon_pack.training.member_encoder import UnreadableMember
from energon_pack.training.preference import write_reference_logps
from support.alone import demo_model
from support.packed import demo_config, packed
from support.pairs import check_whole, write_pairs
from support.running import need_torchvision

pytestmark = pytest.mark.usefixtures("one_thread")
NUM_PAIRS = 24
SFT = "preference pairs, whose rejected answers no SFT loss may see"


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    need_torchvision()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of texts, several turns, one and two images."""
    return write_pairs(tmp_path_factory.mktemp("pairs"), NUM_PAIRS)


Config = Callable[..., PackConfig]


@pytest.fixture(scope="module")
def config(demo: tuple[Path, Path], cache: Path, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("out")

    def make(share: SharedBeginnings, **settings: Any) -> PackConfig:
        words: dict[str, Any] = {"packing__max_token_len": 400, "packing__share_min_tokens": 1, **settings}
        path = words.pop("path", source)
        return demo_config(demo, cache, folder, path, source__take=PreferenceTake.both, packing__share=share, **words)

    return make


def ids(packs: Any) -> list[list[str]]:
    return [[*pack.members.sample_ids] for pack in packs]


def epoch_of(lazy: LazyPackedDataset, epoch: int) -> list[list[str]]:
    lazy.set_epoch(epoch)
    return ids(lazy[number] for number in range(len(lazy)))


def all_packs(packs: Any) -> Iterator[Any]:
    return map(packs.__getitem__, range(len(packs))) if isinstance(packs, LazyPackedDataset) else iter(packs)


SHARES = pytest.mark.parametrize("share", [SharedBeginnings.none, SharedBeginnings.prefix], ids=["whole", "shared"])


@SHARES
def test_lazy_pairs_are_those_on_disk(config: Config, share: SharedBeginnings, tmp_path: Path) -> None:
    """The first epoch's batches, bit for bit; and its ledger."""
    run = config(share)
    lazy = LazyPackedDataset(run)
    run.output.dir = str(tmp_path)
    written = PackedDataset(packed(run))
    assert len(lazy) == len(written) > 5
    for number in range(len(lazy)):
        batch, expected = lazy.collate([lazy[number]]), written.collate([written[number]])
        assert batch.keys() == expected.keys()
        for name in batch.keys() - {"__key__"}:
            value, other = batch[name], expected[name]
            assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other, name
        assert {"preference_pairs", "labels"} <= batch.keys()
    once = check_whole(epoch_of(lazy, 0))
    assert {*once.values()} == {1}
    assert lazy.report is not None
    assert (lazy.report.samples_in, lazy.report.pairs) == (NUM_PAIRS, len(once))
    ledger = [json.loads(line)["sample_id"] for line in lazy.skipped.read_text().splitlines()]
    assert sorted([*ledger, *once]) == sorted(f"pairs.jsonl:{number + 1}" for number in range(NUM_PAIRS))
    assert lazy.lens(1).tolist() == [lazy.collate([lazy[1, n]])["num_tokens"] for n in range(len(lazy))]


@SHARES
def test_each_epoch_of_lazy_pairs_has_other_packs(config: Config, share: SharedBeginnings, tmp_path: Path) -> None:
    """Pairs that take as much room change places, both sides at once; a side alone would be with another's."""
    lazy = LazyPackedDataset(config(share, path=write_pairs(tmp_path, 60, 6, with_media=False)))
    rows = [epoch_of(lazy, epoch) for epoch in range(3)]
    assert [check_whole(each) for each in rows] == 3 * [Counter(f"pairs.jsonl:{n + 1}" for n in range(60))]
    assert len({json.dumps(sorted(map(sorted, each))) for each in rows}) == 3
    assert max(map(len, rows[0])) > 2


def test_a_sampler_goes_on_with_lazy_pairs(config: Config) -> None:
    """With another number of ranks, each pack is dealt once: both sides of its pairs with it."""
    lazy = LazyPackedDataset(config(SharedBeginnings.prefix))
    first = [PackSampler(lazy, rank, 2) for rank in range(2)]
    seen = [islice(sampler, 3) for sampler in first]
    rows = ids(lazy[index] for each in seen for index in each)
    states = [json.loads(json.dumps(sampler.state_dict(num_packs=3))) for sampler in first]
    rows += ids(lazy[index] for index in PackSampler(lazy, 0, 1, states=states))
    assert {*check_whole(rows).values()} == {1}
    assert len(rows) == len(lazy)


@SHARES
@pytest.mark.parametrize("overlong", [Overlong.drop, Overlong.own_pack])
def test_each_pair_of_a_stream_is_in_one_pack_or_counted(
    config: Config, share: SharedBeginnings, overlong: Overlong
) -> None:
    own = {"packing__hard_limit": 500} if overlong is Overlong.own_pack else {}
    run = config(share, packing__overlong=overlong, **own)
    streams = [
        StreamingPackedDataset(run, replacement=False, buffer_size=8, rank=rank, world_size=2) for rank in range(2)
    ]
    packs = [pack for stream in streams for pack in stream]
    once = check_whole(ids(packs))
    told = [stream.statistics() for stream in streams]
    left_out = sum((Counter(each["left_out"]) for each in told), Counter[str]())
    assert {*once.values()} == {1}
    assert sum(each["samples"] for each in told) == len(once) == NUM_PAIRS - left_out["overlong"]
    lazy = LazyPackedDataset(run)
    assert lazy.report is not None
    assert left_out == lazy.report.skipped_by_reason  # a pair is as long as in a plan
    batches = [streams[0].collate([pack]) for pack in packs]
    assert sum(each["tokens"] for each in told) == sum(batch["num_tokens"] for batch in batches)
    assert sum(each["tokens"] for each in told) == lazy.lens(0).sum()
    for batch in batches:
        assert batch["num_tokens"] <= (400 if len(batch["sample_ids"][0]) > 2 else run.packing.sample_token_limit[1])
        assert batch["preference_pairs"].flatten().tolist() == [*range(len(batch["sample_ids"][0]))]


def test_a_stream_of_pairs_goes_on_from_any_pack_and_on_other_ranks(config: Config) -> None:
    """A pair that waits is in the state with the lengths of both sides, and with what they share."""
    run = config(SharedBeginnings.prefix, source__limit=10)
    options: dict[str, Any] = {"replacement": False, "buffer_size": 6, "seed": 5}
    whole = ids(StreamingPackedDataset(run, **options))
    first, again = StreamingPackedDataset(run, **options), StreamingPackedDataset(run, **options)
    stream = iter(first)
    for number in range(0, len(whole), 5):
        again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert ids(again) == whole[number:]
        assert ids(islice(stream, 5)) == whole[number : number + 5]
    halves = [StreamingPackedDataset(run, rank=rank, world_size=2, **options) for rank in range(2)]
    seen = [row for half in halves for row in ids(islice(half, 2))]
    states = [json.loads(json.dumps(half.state_dict())) for half in halves]
    seen += ids(StreamingPackedDataset(run, rank=0, world_size=1, states=states, **options))
    assert check_whole(seen) == check_whole(whole)
    again.set_epoch(1)
    assert check_whole(ids(again)) == check_whole(whole)


def wide(inputs: dict[str, Any]) -> dict[str, Any]:
    floats = {name: value.double() for name, value in inputs.items() if getattr(value, "dtype", None) == torch.float32}
    return {**inputs, **floats}


@SHARES
def test_a_side_has_the_logps_that_it_has_alone(config: Config, share: SharedBeginnings) -> None:
    """In a pack that is made in training, whatever stands beside it."""
    run = config(share, model__rope="qwen2_5_vl", source__limit=12)
    stream, lazy = StreamingPackedDataset(run, replacement=False, buffer_size=8), LazyPackedDataset(run)
    model = demo_model(lazy.encoder.rules).double()
    use_tree_attention(model)
    found = dict[str, float]()
    for packs in (stream, lazy):
        for pack in all_packs(packs):
            batch = stream.collate([pack])
            logps = member_logps(model(**wide(batch.model_inputs(model))).logits, batch).tolist()
            for name, value in zip(batch["sample_ids"][0], logps, strict=True):
                assert found.setdefault(name, value) == pytest.approx(value, rel=1e-12)
    number_seen = 0
    for number in range(len(lazy)):
        for member in lazy.members(0, number):
            assert isinstance(member, MemberInput)
            alone = lazy.encoder.members.encode_alone(member)
            inputs = {"input_ids": alone.tokens.ids[None], "mm_token_type_ids": alone.tokens.types[None], **alone.media}
            with torch.no_grad():
                logits = model(**wide(inputs), use_cache=False).logits[0, :-1]
            labels = alone.tokens.labels[1:]
            expected = -torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum")
            assert found[member.sample_id] == pytest.approx(float(expected), rel=1e-9)
            number_seen += 1
    assert number_seen == len(found) >= 12


def test_no_sft_loss_sees_pairs_that_are_packed_in_training(config: Config) -> None:
    """Each door of lazy packs and of a stream refuses them in one line; `guard` proves a model for them."""
    run = config(SharedBeginnings.prefix, source__limit=8)
    with pytest.raises(ValueError, match=SFT):
        _ = automodel.dataset(run, mask="positions").packs  # type: ignore[arg-type]  # a config is one, too
    lazy, stream = LazyPackedDataset(run), StreamingPackedDataset(run)
    model = demo_model(lazy.encoder.rules)
    use_tree_attention(model)
    for packs, pack in ((lazy, lazy[0]), (stream, next(iter(stream)))):
        batch = packs.collate([pack])
        inputs = batch.model_inputs(model)
        assert "labels" not in inputs
        assert model(**inputs).loss is None
        doors: dict[str, Callable[[], Any]] = {
            "weighted_loss": partial(weighted_loss, torch.zeros(*batch["input_ids"].shape, 2), batch),
            "collator": partial(packs.collator, model),
            "loss_func": packs.loss_func,
            "labels": partial(type(packs), run, labels="shifted"),
            "loss_weight": partial(type(packs), run, loss_weight="token"),
            "layout": partial(type(packs), run, layout="thd"),
            "check_trainer": partial(check_trainer, fake_trainer(packs.pair_collator())),
        }
        for name, door in doors.items():
            with pytest.raises(ValueError, match=SFT) as refused:
                door()
            assert "\n" not in str(refused.value), name
        with pytest.raises(TypeError, match=r"mask=positions: no such option; there are: layout, "):
            type(packs)(run, mask="positions")
    assert guard(model, stream.encoder).trees is not None


def fake_trainer(collate: Any) -> Any:
    """A trainer with a loader, and no more than `check_trainer` asks of it before it sees the collator."""
    loader = SimpleNamespace(collate_fn=collate)
    accelerator = SimpleNamespace(num_processes=1)
    return SimpleNamespace(args=SimpleNamespace(), accelerator=accelerator, get_train_dataloader=lambda: loader)


def test_pairs_with_a_medium_that_is_damaged_are_left_out_whole(config: Config, tmp_path: Path) -> None:
    """Both sides have it: a stream goes on without the pair, counts it, and never trains one side of it."""
    file = write_pairs(tmp_path, 12)
    for name in ("1.png", "3.png"):
        path = tmp_path / name
        data = path.read_bytes()
        path.write_bytes(data[:48] + bytes(30) + data[78:])  # its header is whole
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    damaged = {f"pairs.jsonl:{n}" for n, line in enumerate(lines, 1) if {"1.png", "3.png"} & {*line.get("images", ())}}
    run = config(SharedBeginnings.prefix, path=file, packing__max_token_len=600)
    stream = StreamingPackedDataset(run, replacement=False, buffer_size=4, on_bad_member="drop")
    packs = [*stream]
    told = stream.statistics()
    assert damaged
    assert check_whole(ids(packs)).total() == 12 - len(damaged) == told["samples"]
    assert told["dropped"] == 2 * len(damaged)
    assert {name.rpartition("+")[0] for pack in packs for name in pack.dropped} <= damaged
    for pack in packs:
        assert len(stream.collate([pack])["preference_pairs"]) == len(pack.members) // 2
    with pytest.raises(BadPack, match=r"pairs\.jsonl:\d+\+chosen in .*on_bad_member=drop leaves such a member out"):
        list(StreamingPackedDataset(run, replacement=False, buffer_size=4))


class LosesAnImage(list[dict[str, Any]]):
    """Conversations of which the second can be read once, to be measured."""

    num_read = 0

    def __getitem__(self, number: Any) -> Any:
        self.num_read += number == 1
        row = super().__getitem__(number)
        return {**row, "images": ["gone.png"]} if number == 1 and self.num_read > 1 else row


def test_a_pair_that_can_not_be_read_again_is_named_by_both_sides(config: Config) -> None:
    """As one that can't be encoded: a batch's `num_dropped` counts members, whichever step lost them."""
    run = config(SharedBeginnings.prefix)
    run.source = replace(run.source, path=None)
    stream = StreamingPackedDataset(run, [LosesAnImage(rows_in_memory(3))], replacement=False, on_bad_member="drop")
    (pack,) = stream
    assert check_whole(ids([pack])) == Counter({"conversations/0": 1, "conversations/2": 1})
    assert pack.dropped == ["conversations/1+chosen", "conversations/1+rejected"]
    assert stream.collate([pack])["num_dropped"] == 2
    told = stream.statistics()
    assert (told["samples"], told["left_out"]) == (2, {"missing_media": 1})


@SHARES
def test_a_side_that_fails_takes_the_other_one_with_it(config: Config, share: SharedBeginnings) -> None:
    """Else the rest of its pack would have a side without its pair, or the pack would end the training."""
    lazy = LazyPackedDataset(config(share, packing__max_token_len=1200), on_bad_member="drop")
    number = max(range(len(lazy)), key=lambda one: len(lazy[one].members))
    pack, members = lazy[number], [*lazy.members(0, number)]
    names = [member.sample_id for member in members]
    for place in range(4):
        tried = [*members]
        tried[place] = UnreadableMember(names[place], OSError("gone"), members[place].shared)
        kept = lazy.encoder.encode(pack.key, tried)
        assert kept is not None
        first = place // 2 * 2
        assert sorted(kept.dropped) == names[first : first + 2]
        assert ids([kept]) == [names[:first] + names[first + 2 :]]
        assert len(lazy.collate([kept])["preference_pairs"]) == len(members) // 2 - 1
    both = [UnreadableMember(member.sample_id, OSError("gone"), member.shared) for member in members[:2]]
    assert lazy.encoder.encode(pack.key, both) is None


def test_reference_logps_hold_for_each_epoch(config: Config, tmp_path: Path) -> None:
    """A member has one key in all epochs of a lazy dataset; in a stream, its id alone."""
    run, path = config(SharedBeginnings.prefix, source__limit=8), tmp_path / "reference.npz"
    for make in (partial(LazyPackedDataset, run), partial(StreamingPackedDataset, run, replacement=False)):
        packs = make()
        batches = [packs.collate([pack]) for pack in all_packs(packs)]
        values = {name: float(n) for n, name in enumerate(name for batch in batches for name in batch["sample_ids"][0])}
        write_reference_logps(
            path, [(batch, torch.tensor([values[name] for name in batch["sample_ids"][0]])) for batch in batches]
        )
        again = make(reference_logps=str(path))
        again.set_epoch(2)
        batch = again.collate([next(all_packs(again))])
        assert batch["reference_logps"].tolist() == [values[name] for name in batch["sample_ids"][0]]
        more = type(packs)(replace(run, source=replace(run.source, limit=9)), reference_logps=str(path))
        with pytest.raises(BadPack, match=r"has no reference_logps of .*: write_reference_logps writes them"):
            list(map(more.collate, zip(all_packs(more), strict=True)))
    with pytest.raises(PackError, match="members of several sources may have the same id"):
        StreamingPackedDataset(
            replace(run, source=replace(run.source, path=[run.source.path] * 2)), reference_logps=str(path)
        )


def rows_in_memory(number: int) -> list[dict[str, Any]]:
    """Pairs as datasets of Hugging Face have them for TRL, with images in memory."""
    return [
        {
            "prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": f"Count {n}."}]}],
            "chosen": [{"role": "assistant", "content": [{"type": "text", "text": f"There are {n}."}]}],
            "rejected": [{"role": "assistant", "content": [{"type": "text", "text": "There are none, or so."}]}],
            "images": [Image.new("RGB", (56, 84), "teal")],
        }
        for n in range(number)
    ]


def test_a_stream_takes_pairs_of_conversations(config: Config) -> None:
    run = config(SharedBeginnings.prefix)
    run.source = replace(run.source, path=None)
    stream = StreamingPackedDataset(run, [rows_in_memory(10), rows_in_memory(6)], [1, 2], replacement=False)
    packs = [*stream]
    seen = check_whole(ids(packs))
    assert seen == Counter({f"conversations/{n}": 2 if n < 6 else 1 for n in range(10)})
    assert stream.statistics()["images"] == 16  # each once, for both sides
    batch = stream.collate(packs[:2])
    assert len(batch["preference_pairs"]) == sum(len(pack.members) // 2 for pack in packs[:2])
    with pytest.raises(PackError, match="lazy pairs are in files"):
        LazyPackedDataset(run, rows_in_memory(3))


def whole_conversations(number: int, picture: Callable[[], Any]) -> list[dict[str, Any]]:
    """Pairs without a prompt of their own: each side is a conversation that holds the image of the question."""

    def side(answer: str) -> list[dict[str, Any]]:
        asked = [{"type": "image", "image": picture()}, {"type": "text", "text": "Count."}]
        return [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]

    return [{"chosen": side(f"There are {n}."), "rejected": side("There are none.")} for n in range(number)]


def test_both_conversations_of_a_pair_may_hold_its_image(config: Config, source: Path) -> None:
    """As the same object, as equal ones, or as bytes; other images are no pair, and a damaged one is left out by name.

    Named by its place in the item, each side had another image, and no such pair was packed.
    """
    run = config(SharedBeginnings.prefix)
    run.source = replace(run.source, path=None)
    image, data = Image.new("RGB", (56, 84), "teal"), (source.parent / "1.png").read_bytes()
    pictures: list[Callable[[], Any]] = [lambda: image, image.copy, lambda: {"bytes": bytes(data), "path": None}]
    rows = [row for picture in pictures for row in whole_conversations(2, picture)]
    twice = {"prompt": "<image><image>Same?", "chosen": "Yes.", "rejected": "No.", "images": [image, image.copy()]}
    stream = StreamingPackedDataset(run, [[*rows, twice]], replacement=False)
    assert check_whole(ids(stream)) == Counter(f"conversations/{n}" for n in range(7))
    assert stream.statistics()["images"] == 8
    other = iter([Image.new("RGB", (56, 84), name) for name in ("teal", "red")])
    damaged = data[: len(data) // 2]
    rows = [*whole_conversations(1, other.__next__), *whole_conversations(1, lambda: Image.open(io.BytesIO(damaged)))]
    stream = StreamingPackedDataset(run, [rows], replacement=False, on_bad_member="drop")
    with pytest.raises(PackError, match="none of the samples drawn can be packed: no_pair"):
        ids(stream)
    assert stream.statistics()["left_out"] == {"no_pair": 2}


def test_pairs_and_other_samples_share_no_stream(demo: tuple[Path, Path], cache: Path, source: Path) -> None:
    words = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", f"cache_dir={cache}"]
    pairs = [f"source.path={source}", "source.take=both"]
    with pytest.raises(PackError, match=r"sources\[1\]: pairs share no stream with other samples"):
        StreamingPackedDataset(words, [pairs, str(demo[0])])
    for make in (LazyPackedDataset, StreamingPackedDataset):
        with pytest.raises(PackError, match=r"packing\.share=prefix is for packs on disk, and for preference pairs"):
            make([*words, "packing.share=prefix"])


def test_energons_buffer_takes_no_pairs(config: Config, tmp_path: Path) -> None:
    run = config(SharedBeginnings.none)
    run.output.dir = str(tmp_path)
    with pytest.raises(PackError, match="packing_buffer_size packs single samples, and the dataset has preference"):
        PackedTaskEncoder(packed(run), packing_buffer_size=10)
