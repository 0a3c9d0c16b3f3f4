"""Packs in a trainer with a loader of its own: what it is given, and what `check_trainer` sees of its way with it.

The trainers here are stand-ins, with one way each; `test_trainer_recipes.py` runs the real ones.
"""

import importlib.util
import json
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from energon_pack import PackError, guard
from energon_pack.dataset.packing_template import load_template
from energon_pack.plan.settings import Layout, SharedBeginnings
from energon_pack.samples.settings import PreferenceTake
from energon_pack.trainers.check import check_trainer
from energon_pack.trainers.collator import Collator, dataset_hash, weighted
from energon_pack.trainers.on_disk import PackedDataset
from energon_pack.training import member_encoder
from energon_pack.training.batch import total_weight, weighted_loss
from energon_pack.training.encoded import BadPack
from energon_pack.training.member_encoder import MemberEncoder
from energon_pack.training.rope import rope_positions
from support.alone import demo_model
from support.packed import demo_config, packed
from support.running import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(demo_packs: PackedDataset, demo_folder: Path, demo: tuple[Path, Path]) -> Any:
    made = demo_model(load_template(demo_folder, str(demo[1])))
    guard(made, demo_packs.encoder)
    return made


def rows(packs: PackedDataset) -> list[dict[str, int]]:
    """What `as_dataset` gives, without `datasets`."""
    return [{"pack": number, "epoch": 0, "length": int(length)} for number, length in enumerate(packs.lens())]


# ------------------------------------------------------------------------------------------------------- the collator


def test_a_collator_makes_the_inputs_of_the_model_and_holds_no_weights(demo_packs: PackedDataset, model: Any) -> None:
    """A forked worker would copy the weights, and could not make masks on their device."""
    collate = demo_packs.collator(model)
    batch = collate(rows(demo_packs)[:2], padding_to=8)
    expected = demo_packs.collate([demo_packs[0], demo_packs[1]]).model_inputs(model)
    assert batch.keys() == expected.keys()
    assert torch.equal(batch["position_ids"], expected["position_ids"])
    assert torch.equal(collate([demo_packs[0], demo_packs[1]])["labels"], expected["labels"])
    kept = pickle.dumps(collate)
    assert len(kept) < len(pickle.dumps(demo_packs)) + 2000
    assert torch.equal(pickle.loads(kept)(rows(demo_packs)[:2])["input_ids"], batch["input_ids"])


def test_rows_that_name_no_pack_are_refused(demo_packs: PackedDataset, model: Any) -> None:
    """As after a trainer removed columns, or tokenised something."""
    with pytest.raises(PackError, match=r"columns input_ids, and none names a pack.*remove_unused_columns=False"):
        demo_packs.collator(model)([{"input_ids": [1, 2]}])
    with pytest.raises(PackError, match="a row has a str"):
        demo_packs.collator(model)(["text"])


def test_rows_of_another_split_are_refused(
    demo_folder: Path, demo_packs: PackedDataset, model: Any, tmp_path: Path
) -> None:
    """`eval_dataset=val.as_dataset()` evaluated the training packs of those numbers, and nothing said so."""
    collate, number = demo_packs.collator(model), dataset_hash(demo_packs.fingerprint)
    row = rows(demo_packs)[0]
    assert torch.equal(collate([row | {"packs_of": number}])["input_ids"], collate([row])["input_ids"])
    other = Path(shutil.copytree(demo_folder, tmp_path / "packed"))
    split = other / ".nv-meta/split.yaml"
    split.write_text(split.read_text().replace("train:", "val:", 1).replace("val: []", "train: []", 1))
    of_val = PackedDataset(other, demo_packs.encoder.rules.folder, split="val")
    with pytest.raises(PackError, match=r"another dataset or split.*eval_dataset=packs"):
        collate([row | {"packs_of": dataset_hash(of_val.fingerprint)}])


def test_weights_and_other_layouts_are_refused(demo_folder: Path, demo: tuple[Path, Path], model: Any) -> None:
    """A trainer's own loss would ignore them in silence."""
    with pytest.raises(PackError, match=r"layout=thd: models of transformers, .* take layout=neat"):
        PackedDataset(demo_folder, str(demo[1]), layout="thd").collator(model)
    weighted = PackedDataset(demo_folder, str(demo[1]), loss_weight="sample")
    with pytest.raises(
        BadPack, match=r"weights other than 1.*collator\(model, weights=True\), and weighted\(trainer\)"
    ):
        weighted.collator(model)(rows(weighted)[:1])


@pytest.mark.skipif(importlib.util.find_spec("datasets") is not None, reason="datasets is installed")
def test_rows_need_datasets(demo_packs: PackedDataset) -> None:
    with pytest.raises(PackError, match="pip install datasets"):
        demo_packs.as_dataset()


@pytest.mark.parametrize("labels", ["unshifted", "shifted"])
def test_losses_of_a_step_add_up(demo_folder: Path, demo: tuple[Path, Path], labels: str, model: Any) -> None:
    packs = PackedDataset(demo_folder, str(demo[1]), labels=labels)
    batches = [packs.collate([packs[number]]) for number in (0, 1)]
    total = torch.stack([total_weight(batch) for batch in batches]).sum()
    assert total_weight(batches[0]) != total_weight(batches[1])
    for batch in batches:
        logits = torch.randn(*batch["input_ids"].shape, 1100)
        found = packs.loss_func()(SimpleNamespace(logits=logits), batch["labels"], total)
        assert float(found) == pytest.approx(float(weighted_loss(logits, batch, total)), rel=1e-5)


# ---------------------------------------------------------------------------------------------------------- the check


class Trainer:
    """A trainer of one process, with transformers' names."""

    accepts = True

    def __init__(self, model: Any, packs: PackedDataset, weights: bool = False, **settings: Any):
        self.model, self.train_dataset, self.collate = model, rows(packs), packs.collator(model, weights)
        self.args = SimpleNamespace(device=torch.device("cpu"), **settings)
        self.accelerator = SimpleNamespace(num_processes=1, process_index=0, reduce=lambda value, _: value)
        self.current_gradient_accumulation_steps = 1

    def get_train_dataloader(self) -> Any:
        return DataLoader(self.train_dataset, collate_fn=self.collate)  # type: ignore[arg-type]

    def get_batch_samples(self, batches: Iterator[Any], num: int, device: Any) -> tuple[list[Any], Any]:
        found = [next(batches) for _ in range(num)]
        return found, self._get_num_items_in_batch(found, device)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        return torch.stack([(batch["labels"] != -100).sum() for batch in batch_samples]).sum()

    def evaluate(self, batches: Sequence[Any]) -> float:
        """The mean of the batches' losses, each with the number of its own items, as transformers takes it."""
        with torch.no_grad():
            totals = [self._get_num_items_in_batch([batch], "cpu") for batch in batches]
            pairs = zip(batches, totals, strict=True)
            losses = [self.compute_loss(self.model, batch, num_items_in_batch=total) for batch, total in pairs]
        return float(torch.stack(losses).mean())

    def compute_loss(self, model: Any, batch: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        return self.loss(batch, num_items_in_batch)

    def loss(self, batch: Any, total: Any) -> Any:
        """The mean over the step's trained tokens."""
        labels = batch.pop("labels")
        return self.collate.packs.loss_func()(self.model(**batch), labels, total)

    def training_step(self, model: Any, batch: Any, total: Any = None) -> Any:
        model.train()
        loss = self.compute_loss(model, batch, num_items_in_batch=total)
        loss.backward()
        return loss.detach()


class MeanOfMeans(Trainer):
    def loss(self, batch: Any, total: Any) -> Any:
        return self.model(**batch).loss / self.current_gradient_accumulation_steps


class SumOfMeans(Trainer):
    def loss(self, batch: Any, total: Any) -> Any:
        return self.model(**batch).loss


class Mixing(Trainer):
    """Drops what keeps members apart, as ms-swift does where the config leaves the cache on."""

    def loss(self, batch: Any, total: Any) -> Any:
        del batch["use_cache"]
        return super().loss(batch, total)


def test_a_trainer_that_is_right_is_said_to_be(demo_packs: PackedDataset, model: Any) -> None:
    """And nothing is left behind: gradients, modes, random numbers. Reads of the guard's trials are no forward's."""
    model.eval()
    state = torch.get_rng_state()
    line = check_trainer(Trainer(model, demo_packs))
    assert line.startswith("✓ Trainer: a step of packs with ")
    assert f"{len(demo_packs)} packs are dealt once to 1 rank, in the order of as_dataset" in line
    assert int(line.partition(" host reads")[0].rpartition(" ")[2].replace(",", "")) < 100
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (MeanOfMeans, r"the mean of the packs' means; compute_loss_func=packs\.loss_func\(\)"),
        (SumOfMeans, "the packs' means are added up"),
        (Mixing, "use_cache"),
    ],
)
def test_what_is_lost_is_named_with_its_cure(demo_packs: PackedDataset, model: Any, kind: Any, said: str) -> None:
    """With one pack a step all of these but the last have the right loss."""
    with pytest.raises(PackError, match=said):
        check_trainer(kind(model, demo_packs))


@pytest.mark.parametrize("fault", ["pixels", "positions"])
def test_a_fault_of_the_encoder_itself_is_noticed(
    demo_packs: PackedDataset, demo_folder: Path, demo: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A sample's own pack would have it, too: samples alone are given no positions, and pixels by a plain call."""
    unguarded = demo_model(load_template(demo_folder, str(demo[1])))
    if fault == "pixels":
        join = MemberEncoder.encode_together

        def encode_all(self: MemberEncoder, *inputs: Any) -> tuple[Any, dict[str, torch.Tensor]]:
            members, media = join(self, *inputs)
            return members, media | ({"pixel_values": media["pixel_values"] * -4} if media else {})

        monkeypatch.setattr(MemberEncoder, "encode_together", encode_all)
    else:
        halved: Callable[..., torch.Tensor] = lambda *given, **media: rope_positions(*given, **media) // 2  # noqa: E731
        monkeypatch.setattr(member_encoder, "rope_positions", halved)
    with pytest.raises(PackError, match="members see each other, or the loss is another one"):
        check_trainer(Trainer(unguarded, demo_packs))


@pytest.mark.parametrize("labels", ["unshifted", "shifted"])
def test_a_weighted_trainer_has_the_mean_of_the_samples_losses(
    demo_folder: Path, demo: tuple[Path, Path], model: Any, labels: str
) -> None:
    """And one that is not is refused before it ignores them."""
    by_sample = PackedDataset(demo_folder, str(demo[1]), labels=labels, loss_weight="sample")
    with pytest.raises(PackError, match=r"ignores the weights of tokens: weighted\(trainer\)"):
        check_trainer(Trainer(model, by_sample, weights=True))
    line = check_trainer(weighted(Trainer(model, by_sample, weights=True)))
    by_token = check_trainer(Trainer(model, PackedDataset(demo_folder, str(demo[1]))))
    assert line.startswith("✓ Trainer: a step of packs with ")
    assert line.split(" alone ")[1].split()[0] != by_token.split(" alone ")[1].split()[0]


def test_a_weighted_trainer_evaluates_by_weights(demo_folder: Path, demo: tuple[Path, Path], model: Any) -> None:
    """`eval_loss` was divided by tokens, and so was a fraction of the loss."""
    by_sample = PackedDataset(demo_folder, str(demo[1]), loss_weight="sample")
    trainer = weighted(Trainer(model, by_sample, weights=True))
    expected = []
    for number in range(2):
        batch = by_sample.collate([by_sample[number]])
        with torch.no_grad():
            expected.append(float(weighted_loss(model(**batch.model_inputs(model, labels=False)).logits, batch)))
    found = trainer.evaluate([trainer.collate([by_sample[number]]) for number in range(2)])
    assert found == pytest.approx(sum(expected) / 2, rel=1e-5)


def test_a_collator_that_is_not_ours_is_named(demo_packs: PackedDataset, model: Any) -> None:
    trainer = Trainer(model, demo_packs)
    trainer.collate = dict  # type: ignore[assignment]
    with pytest.raises(PackError, match=r"made by dict.*data_collator=packs\.collator\(model\)"):
        check_trainer(trainer)


def test_a_trainer_that_shuffles_is_told_how_steps_stay_even(demo_packs: PackedDataset, model: Any) -> None:
    class Shuffling(Trainer):
        def get_train_dataloader(self) -> Any:
            return DataLoader(
                self.train_dataset,  # type: ignore[arg-type]
                sampler=RandomSampler(self.train_dataset, generator=torch.Generator().manual_seed(0)),
                collate_fn=self.collate,
            )

    assert 'train_sampling_strategy="sequential"' in check_trainer(Shuffling(model, demo_packs))


def test_a_lazy_dataset_and_a_stream_have_the_same_doors() -> None:
    from energon_pack import LazyPackedDataset, StreamingPackedDataset

    makers: list[Callable[..., Any]] = [LazyPackedDataset, StreamingPackedDataset, PackedDataset]
    for kind in makers:
        assert all(hasattr(kind, name) for name in ("as_dataset", "collator", "loss_func"))
    assert Collator.__doc__


def test_deepspeed_is_checked_before_it_has_an_engine(demo_packs: PackedDataset, model: Any) -> None:
    """Accelerate's backward goes through the engine, which is made when training begins."""

    class Accelerator(SimpleNamespace):
        deepspeed_engine_wrapped = None
        distributed_type = "DistributedType.DEEPSPEED"

        def backward(self, loss: Any, **_: Any) -> None:
            raise AttributeError("no engine")

    class Deep(Trainer):
        def training_step(self, model: Any, batch: Any, total: Any = None) -> Any:
            loss = self.compute_loss(model, batch, num_items_in_batch=total)
            self.accelerator.backward(loss, scale_wrt_gas=False)
            return loss.detach()

    trainer = Deep(model, demo_packs)
    trainer.accelerator = Accelerator(**vars(trainer.accelerator))
    assert check_trainer(trainer).startswith("✓ ")
    assert "backward" not in vars(trainer.accelerator)


# ------------------------------------------------------------------- the recipes of trainers with loops of their own

#: what each kind of packs is packed with
KINDS: dict[str, dict[str, Any]] = {
    "trees": {"packing__share": SharedBeginnings.prefix, "packing__share_min_tokens": 1},
    "weights": {},
    "pairs": {"source__take": PreferenceTake.both},
    "thd": {"packing__layout": Layout.thd, "packing__pad_to_multiple_of": 8},
}
LOOPS = ("verl", "torchtune", "torchtitan")


@pytest.fixture(scope="module")
def of_kind(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Packs of texts of each kind, 512 tokens long."""
    made, folder = {}, tmp_path_factory.mktemp("kinds")
    for kind, settings in KINDS.items():
        records: list[dict[str, Any]] = []
        for number in range(8):
            turns: list[dict[str, Any]] = [{"role": "system", "content": "Answer in one word. " * 8}]
            turns += [{"role": "user", "content": f"Which {number}?"}, {"role": "assistant", "content": "That."}]
            turns[-1] |= {"loss_scale": 0.01} if kind == "weights" else {}
            records.append({"messages": turns})
            if kind == "pairs":
                records[-1] = {"prompt": turns[:2], "chosen": turns[2:], "rejected": [{**turns[2], "content": "None."}]}
        (source := folder / f"{kind}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        run = demo_config(demo, cache, folder / kind, source, packing__max_token_len=512, **settings)
        made[kind] = packed(run)
    return made


def first_of_recipe(
    name: str, folder: Path, processor: str, monkeypatch: pytest.MonkeyPatch, seq_len: int = 512
) -> dict[str, Any]:
    """Return the first pack as a trainer's recipe gives it; stand-ins take the place of what the recipe imports."""

    @dataclass
    class Loader:
        packs: PackedDataset
        rank: int
        ranks: int
        batch_size: int
        collate_fn: Any
        sampler: Any
        num_workers: int

        class Config:
            pass

    modules = ("verl", "verl.trainer", "torchtitan", "torchtitan.components", "torchtitan.models")
    contents: dict[str, dict[str, Any]] = {
        **{module: {} for module in modules},
        "verl.trainer.sft_trainer": {"SFTTrainer": object, "main": lambda: None},
        "torchtitan.components.dataloader": {"ParallelAwareDataloader": Loader},
        "torchtitan.models.qwen3": {"config_registry": None, "model_registry": None},
    }
    for module, content in contents.items():
        stand_in = ModuleType(module)
        vars(stand_in).update(content)
        monkeypatch.setitem(sys.modules, module, stand_in)
        parent, _, child = module.rpartition(".")
        if parent:
            monkeypatch.setattr(sys.modules[parent], child, stand_in, raising=False)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    monkeypatch.setattr(PackedDataset, "as_dataset", lambda packs, **_: rows(packs))
    (path,) = (ROOT / "recipes" / "trainers").glob(f"*{name}*.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    recipe: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    tokenizer = SimpleNamespace(name_or_path=processor, tokenizer_path=processor)
    if name == "torchtitan":
        config = SimpleNamespace(dataset_path=folder, num_workers=0)
        ranks = {"dp_rank": 0, "dp_world_size": 1, "local_batch_size": 1}
        loader = recipe.PackLoader(config, tokenizer=tokenizer, seq_len=seq_len, **ranks)
        inputs, labels = loader.collate_fn([loader.packs[0]])
        return {**inputs, "labels": labels}
    if name == "torchtune":
        packs = recipe.Packs(tokenizer, folder, processor, packed=True)
    else:
        packs = recipe.Packs(folder, tokenizer, SimpleNamespace(train_batch_size=1))
    first: dict[str, Any] = packs[0]
    return first


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("trees", "it shares tokens with the sample before it, for which {} has no place"),
        ("weights", "tokens have weights other than 1, which {} ignores"),
        ("pairs", "these packs hold preference pairs"),
    ],
)
def test_a_recipe_refuses_what_its_trainer_has_no_place_for(
    of_kind: dict[str, Path], demo: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, name: str, kind: str, said: str
) -> None:
    """Members saw each other, weights were dropped and rejected answers trained, and nothing said so."""
    with pytest.raises(ValueError, match=said.format(name)):
        first_of_recipe(name, of_kind[kind], str(demo[1]), monkeypatch)


@pytest.mark.parametrize("name", ["torchtune", "torchtitan"])
def test_a_recipe_for_texts_refuses_media(
    demo_folder: Path, demo: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Their tokens were trained without their pixels."""
    length = PackedDataset(demo_folder, str(demo[1])).config.packing.max_token_len
    with pytest.raises(ValueError, match=f"these packs have media, and {name} takes texts alone"):
        first_of_recipe(name, demo_folder, str(demo[1]), monkeypatch, length)


@pytest.mark.parametrize("name", LOOPS)
def test_a_recipe_trains_packs_of_another_layout(
    of_kind: dict[str, Path], demo: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """`packing=thd` has labels that are shifted already: verl shifted its mask once more, torchtune had no lengths."""
    packs = PackedDataset(of_kind["thd"], str(demo[1]), layout="neat", labels="unshifted")
    expected, found = packs.collate([packs[0]]), first_of_recipe(name, of_kind["thd"], str(demo[1]), monkeypatch)
    is_trained = expected["labels"][0] != -100
    if name == "verl":
        assert torch.equal(found["input_ids"], expected["input_ids"][0])
        assert torch.equal(found["loss_mask"], is_trained.long())
        assert torch.equal(found["position_ids"], expected["position_ids"][:, 0])
    elif name == "torchtune":
        assert torch.equal(found["labels"], expected["labels"][0])
        assert torch.equal(found["input_pos"], expected["position_ids"][0, 0])
        assert found["seq_lens"].tolist() == [len(member.tokens) for member in packs[0].members]
    else:
        num = len(is_trained)
        assert torch.equal(found["input"][:, :num], expected["input_ids"])
        assert torch.equal(found["positions"][:, :num], expected["position_ids"][0])
        assert torch.equal(found["labels"][0, : num - 1], expected["labels"][0, 1:])
