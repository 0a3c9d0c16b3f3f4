"""Accelerate's own functions and transformers' Trainer on batches of packs; run by tests/training/test_trainer.py."""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from train_tiny import tiny_model
from train_trainer import PackedTrainer

from energon_pack.errors import PackError
from energon_pack.loading import train_arguments
from energon_pack.loading.task_encoder import PackedTaskEncoder
from energon_pack.online.lazy import LazyPackedDataset
from energon_pack.online.streaming import StreamingPackedDataset
from energon_pack.trainers.collator import LOSS_KEYS, weighted
from energon_pack.trainers.samplers import PackSampler
from energon_pack.training.batch import PackedBatch, total_weight, weighted_loss
from energon_pack.training.guards import guard
from support.alone import pack_demo
from support.packed import demo_config
from support.tiny import make_batch, make_members, make_model, tf

accelerate: Any = import_module("accelerate")
operations: Any = import_module("accelerate.utils.operations")
CUT = "a batch of packs was cut.*dispatch_batches"


@pytest.fixture(scope="module")
def batch() -> PackedBatch:
    return make_batch("gemma3", [make_members("gemma3", make_model("gemma3"))])


@pytest.mark.parametrize(
    "way",
    [
        lambda batch: operations.send_to_device(batch, "cpu"),
        lambda batch: operations.recursively_apply(torch.clone, batch),
        operations.convert_to_fp32,
        operations.gather,
        operations.broadcast,
        lambda batch: operations.concatenate([batch]),
        lambda batch: operations.initialize_tensors(operations.get_data_structure(batch)),
    ],
)
def test_it_stays_what_it_is(batch: PackedBatch, way: Callable[[PackedBatch], PackedBatch]) -> None:
    found = way(batch)
    assert isinstance(found, PackedBatch)
    assert found.mask == "dict4d"
    assert {name: getattr(value, "shape", value) for name, value in found.items()} == {
        name: getattr(value, "shape", value) for name, value in batch.items()
    }


def test_what_cuts_joins_or_pads_it_is_refused(batch: PackedBatch) -> None:
    with pytest.raises(ValueError, match=CUT):
        operations.slice_tensors(batch, slice(0, 1))
    with pytest.raises(TypeError, match="Can only concatenate tensors"):
        operations.concatenate([batch, batch])
    with pytest.raises(TypeError, match="Unsupported types"):
        operations.pad_across_processes(batch)


class Packs(torch.utils.data.IterableDataset[Any]):
    """A dataset as a user of the Trainer would make one of Energon's loader."""

    def __init__(self, make: Callable[[], Any]):
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory, demo: tuple[Path, Path], cache: Path) -> tuple[Any, Packs]:
    """The encoder of the demo's packs, and the packs."""
    dataset = pack_demo(demo, cache, tmp_path_factory.mktemp("packs"))
    encoder = PackedTaskEncoder(dataset, str(demo[1]))
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    arguments = train_arguments(dataset, encoder, worker)
    return encoder, Packs(lambda: get_savable_loader(get_train_dataset(dataset, **arguments)))


@pytest.mark.parametrize(
    ("settings", "loader", "said"),
    [
        ({}, lambda packs: torch.utils.data.DataLoader(packs, batch_size=None), CUT),
        ({"split_batches": True}, lambda packs: torch.utils.data.DataLoader(packs, collate_fn=lambda x: x[0]), CUT),
        ({}, lambda packs: packs.make(), CUT),
        ({"dispatch_batches": False}, lambda packs: torch.utils.data.DataLoader(packs, batch_size=None), None),
    ],
)
def test_a_loader_that_is_prepared(
    packs: tuple[Any, Packs], settings: dict[str, Any], loader: Callable[[Packs], Any], said: str | None
) -> None:
    config = accelerate.utils.DataLoaderConfiguration(**settings)
    stream = iter(accelerate.Accelerator(cpu=True, dataloader_config=config).prepare(loader(packs[1])))
    if said is None:
        assert isinstance(next(stream), PackedBatch)
    else:
        with pytest.raises(ValueError, match=said):
            next(stream)


class SamplerItems(torch.utils.data.Dataset[Any]):
    """What a sampler gives, as the items of a dataset."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, item: Any) -> Any:
        return item


@pytest.fixture(scope="module")
def lazy(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> LazyPackedDataset:
    return LazyPackedDataset(demo_config(demo, cache, tmp_path_factory.mktemp("lazy"), packing__max_token_len=1024))


@pytest.mark.parametrize("split_batches", [False, True])
def test_a_share_of_one_rank_is_not_dealt_once_more(lazy: LazyPackedDataset, split_batches: bool) -> None:
    """Each of two ranks trained a quarter of the packs."""

    def prepared(share: Any, num: int = 2) -> Any:
        loader = torch.utils.data.DataLoader(SamplerItems(), 2, sampler=share, collate_fn=list)
        settings = {"put_on_device": False, "split_batches": split_batches}
        return accelerate.data_loader.prepare_data_loader(loader, num_processes=num, process_index=num - 1, **settings)

    with pytest.raises(PackError, match="PackSampler deals to 2 ranks, and BatchSamplerShard would deal the share of"):
        next(iter(prepared(PackSampler(lazy, 1, 2))))
    assert next(iter(prepared(PackSampler(lazy, 0, 1))))
    assert next(iter(prepared(PackSampler(lazy, 1, 2), 1)))


def test_a_prepared_loader_goes_on_with_its_sampler_s_state(lazy: LazyPackedDataset) -> None:
    """Accelerate sets epoch 0 in a new process, and then each later one: the sampler began epoch 0 anew."""
    sampler = PackSampler(lazy, 0, 1)
    list(sampler)
    stream = iter(sampler)
    for _ in range(5):
        next(stream)
    states = [sampler.state_dict()]
    again = PackSampler(lazy, 0, 1, states=states)
    loader = torch.utils.data.DataLoader(SamplerItems(), sampler=again, collate_fn=lambda items: items[0])
    prepared = accelerate.Accelerator(cpu=True).prepare(loader)
    expected = PackSampler(lazy, 0, 1, states=states)
    assert [list(prepared) for _ in range(3)] == [list(expected) for _ in range(3)]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", ["sampler", "stream", "rows"])
def test_a_stateful_loader_goes_on_in_its_epoch(
    lazy: LazyPackedDataset, demo: tuple[Path, Path], cache: Path, tmp_path: Path, kind: str, num_workers: int
) -> None:
    """`load_state` refused a stream's state, and the second loop had the first one's epoch once more."""

    def prepared() -> tuple[Any, Any]:
        accelerate.state.AcceleratorState._reset_state(True)
        given = accelerate.utils.DataLoaderConfiguration(use_stateful_dataloader=True, dispatch_batches=False)
        accelerator = accelerate.Accelerator(cpu=True, dataloader_config=given)
        options: dict[str, Any] = {"num_workers": num_workers, "collate_fn": lambda items: items[0]}
        if kind == "sampler":
            loader = StatefulDataLoader(SamplerItems(), sampler=PackSampler(lazy, 0, 1), **options)
        else:
            config = demo_config(demo, cache, tmp_path, packing__max_token_len=1024)
            packs = StreamingPackedDataset(config, replacement=False, buffer_size=4)
            loader = torch.utils.data.DataLoader(packs if kind == "stream" else packs.as_dataset(), **options)
        return accelerator, accelerator.prepare(loader)

    def named(item: Any) -> Any:
        return item if kind == "sampler" else (item if kind == "stream" else item["pack"]).key

    accelerator, loader = prepared()
    assert [*loader]
    first = []
    for item in loader:
        first.append(named(item))
        if len(first) == 2:
            accelerator.save_state(str(tmp_path / "state"))
    expected = [first[2:], [*map(named, loader)]]
    accelerator, again = prepared()
    accelerator.load_state(str(tmp_path / "state"))
    assert [[*map(named, again)] for _ in range(2)] == expected


def test_gradients_of_accelerate_alone(packs: tuple[Any, Packs]) -> None:
    """Model and optimizer prepared, the loader not, as the page on training says."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    inner, stream = tiny_model(packs[0]), iter(packs[1])
    model = accelerator.prepare(inner)
    batches = [next(stream).to(accelerator.device) for _ in range(2)]
    total = accelerator.reduce(sum(map(total_weight, batches)), "sum")

    def loss(batch: PackedBatch, divisor: torch.Tensor) -> torch.Tensor:
        return weighted_loss(model(**batch.model_inputs(inner)).logits, batch, divisor)

    for batch in batches:
        with accelerator.accumulate(model):
            share = total / (accelerator.num_processes * accelerator.gradient_accumulation_steps)
            accelerator.backward(loss(batch, share))
    found = [parameter.grad for parameter in inner.parameters()]
    inner.zero_grad()
    torch.stack([loss(batch, total) for batch in batches]).sum().backward()
    for parameter, grad in zip(inner.parameters(), found, strict=True):
        torch.testing.assert_close(parameter.grad, grad, atol=1e-6, rtol=1e-4)


class Plain(tf.Trainer):
    """The Trainer's own loss."""

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **more: Any) -> Any:
        return super().compute_loss(model, inputs.model_inputs(self.model), *arguments, **more)


def losses(packs: tuple[Any, Packs], kind: Any, folder: Path, collate: Any, **settings: Any) -> list[float]:
    model = tiny_model(packs[0])
    guard(model, packs[0])
    arguments = tf.TrainingArguments(
        str(folder), max_steps=1, gradient_accumulation_steps=2, logging_steps=1, save_strategy="no",
        per_device_train_batch_size=1, report_to="none", disable_tqdm=True, use_cpu=True, **settings,
    )  # fmt: skip
    trainer = kind(model, arguments, train_dataset=packs[1], data_collator=collate)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_a_weighted_trainer_evaluates_by_weights(packs: tuple[Any, Packs], tmp_path: Path) -> None:
    """`eval_loss` of both trainers, `weighted` and the recipe's, was divided by tokens: a fraction of the loss."""
    model, stream = tiny_model(packs[0]), iter(packs[1])
    guard(model, packs[0])
    batches = [next(stream) for _ in range(2)]
    for batch in batches:
        batch["loss_weight"] = (batch["labels"] != -100) / 100
    inputs = [
        batch.model_inputs(model, labels=False) | {name: batch[name] for name in LOSS_KEYS if name in batch}
        for batch in batches
    ]
    settings: dict[str, Any] = {"report_to": "none", "disable_tqdm": True, "use_cpu": True}
    settings |= {"remove_unused_columns": False, "per_device_eval_batch_size": 1}
    arguments = tf.TrainingArguments(str(tmp_path), **settings)
    trainer: Any = tf.Trainer(model, arguments, eval_dataset=inputs, data_collator=lambda rows: rows[0])
    model.eval()
    with torch.no_grad():
        losses = [weighted_loss(model(**b.model_inputs(model, labels=False)).logits, b) for b in batches]
    expected = pytest.approx(float(torch.stack(losses).mean()), rel=1e-5)
    assert weighted(trainer).evaluate()["eval_loss"] == expected
    recipe: Any = PackedTrainer(model, arguments, None)  # type: ignore[arg-type]
    recipe.data_collator = lambda rows: rows[0]
    assert recipe.evaluate(eval_dataset=batches)["eval_loss"] == expected


def test_a_trainer_given_a_dataset(packs: tuple[Any, Packs], tmp_path: Path) -> None:
    """Refused by name, but with both settings; and then its loss is the mean of the packs' means."""
    given: tuple[Any, ...] = (packs, Plain, tmp_path, lambda rows: rows[0])
    with pytest.raises(AttributeError, match="'dict' object has no attribute 'model_inputs'"):
        losses(*given)
    with pytest.raises(ValueError, match=CUT):
        losses(*given, remove_unused_columns=False)
    with pytest.raises(ValueError, match=CUT):
        losses(packs, tf.Trainer, tmp_path, lambda rows: rows[0].model_inputs(), remove_unused_columns=False)
    both: dict[str, Any] = {"remove_unused_columns": False, "accelerator_config": {"dispatch_batches": False}}
    (found,) = losses(*given, **both)
    model, stream = tiny_model(packs[0]), iter(packs[1])
    means = [float(model(**next(stream).model_inputs()).loss.detach()) for _ in range(2)]
    assert found == pytest.approx(sum(means) / 2, abs=1e-6)
