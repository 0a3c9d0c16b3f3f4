"""NeMo Automodel's own loader, collate functions and recipe on packs; run by tests/test_automodel.py.

On a CPU Automodel builds no model and has no Transformer Engine or flash attention: a model is made here, and of those
attentions it is shown that their batches have Automodel's own tensors.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_pack.automodel import PackRow, PackRows, collate, dataset
from energon_pack.templates.full_processor import prepare_torchvision
from energon_pack.training.encoded import TrainingPack
from energon_pack.training.member_encoder import Encoded
from support.alone import losses_alone
from support.automodel import pack_overrides
from support.running import ROOT
from support.tiny import tf

prepare_torchvision()
collaters: Any = import_module("nemo_automodel.components.datasets.vlm.collate_fns")
packing: Any = import_module("nemo_automodel.components.datasets.vlm.neat_packing_vlm")
contracts: Any = import_module("nemo_automodel.components.models.common.packing")
recipes: Any = import_module("nemo_automodel.recipes.vlm.finetune")
RecipeConfig: Any = import_module("nemo_automodel.recipes._typed_config").RecipeConfig
load: Any = import_module("nemo_automodel.components.config._arg_parser").parse_args_and_load_config

YAMLS = sorted((ROOT / "recipes" / "automodel").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Variables of the environment that the YAMLs read."""
    for name in ("TRAIN", "CACHE", "SAVE"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.fixture
def pack(demo: tuple[Path, Path], cache: Path) -> list[str]:
    return pack_overrides(*demo, cache, "packing.group_by=none", "output.splits.val=0.2")


# ------------------------------------------------------------------------------------------------- collate functions


def as_theirs(row: PackRow, shift: Callable[[Any], dict[str, torch.Tensor]]) -> Any:
    """A pack as Automodel's `PackedDatasetWrapper` would give it."""
    samples = []
    for member in row.pack.members:
        of = member.tokens
        given = {"input_ids": of.ids, "labels": of.labels, "mm_token_type_ids": of.types, "position_ids": of.rope}
        samples.append(shift({**given, "attention_mask": torch.ones_like(of.ids)}))
    samples[0] |= row.pack.media
    return packing._build_packed_vlm_sample(samples, 0, 0, has_mrope=True)


def shifted(sample: dict[str, Any]) -> dict[str, Any]:
    """Labels as Automodel shifts them, and the last token, which it leaves out, with nothing to learn."""
    return {**sample, "labels": torch.cat([sample["labels"][1:], torch.tensor([-100])])}


def assert_same(ours: dict[str, Any], theirs: dict[str, Any], is_text: torch.Tensor) -> None:
    """Every tensor; positions where there is no token are 0 there, and count on here."""
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        other = ours[name]
        if name == "position_ids":
            other, value = other * is_text, value * is_text
        if isinstance(value, torch.Tensor):
            assert other.dtype == value.dtype, name
            assert torch.equal(other, value), name
        else:
            assert other == value, name


@pytest.fixture
def pad(demo: tuple[Path, Path]) -> int:
    """The id of the padding token, as Automodel's loader finds it."""
    found: int = tf.AutoProcessor.from_pretrained(demo[1]).tokenizer.pad_token_id
    return found


@pytest.mark.parametrize("metadata", [False, True])
@pytest.mark.parametrize("mask", ["flash_varlen", "block_causal", "document_ids"])
def test_a_neat_batch_is_that_of_automodel(pack: list[str], pad: int, mask: str, metadata: bool) -> None:
    rows = dataset(pack, mask=mask, metadata=metadata)
    chosen = [rows[0], rows[len(rows) - 1]]
    contract = contracts.PackingCapabilities(mask, metadata)
    theirs = collaters.neat_packed_vlm_collater([as_theirs(row, shifted) for row in chosen], pad, packing=contract)
    ours = collate(chosen)
    assert (ours["_packed_seq_ids"] == 0).any()
    assert_same(ours, theirs, ours["_packed_seq_ids"] > 0)


def test_automodel_leaves_out_the_last_token_of_each_member(pack: list[str]) -> None:
    """It is never to be learnt from: all other tokens, and all labels, are the same."""
    rows = dataset(pack, mask="flash_varlen")
    theirs = as_theirs(rows[0], lambda sample: packing._shift_sample(sample, has_mrope=True))
    ours = collate([rows[0]])
    ends = torch.tensor([len(member.tokens) for member in rows[0].pack.members]).cumsum(0) - 1
    kept = torch.ones(ours["input_ids"].shape[1], dtype=torch.bool).index_fill(0, ends, False)
    assert (ours["labels"][0, ~kept] == -100).all()
    for name in ("input_ids", "labels", "mm_token_type_ids"):
        assert torch.equal(ours[name][0, kept], theirs[name])
    assert torch.equal(ours["position_ids"][:, 0, kept], theirs["position_ids"])


def test_a_thd_batch_is_that_of_automodel(pack: list[str], pad: int) -> None:
    """Also after its conversion to one row of tokens, from which Transformer Engine has its boundaries."""
    rows = dataset([*pack, "packing=thd", "packing.pad_to_multiple_of=1"], pad_to="max_token_len")
    ours = collate([rows[0]])
    theirs = collaters.packed_sequence_thd_vlm_collater([as_theirs(rows[0], shifted)], pad, max_length=800)
    is_text = torch.arange(800) < sum(ours["seq_lens"].flatten())
    assert_same(ours, theirs, is_text)
    convert = import_module("nemo_automodel.components.distributed.thd_utils").process_input_for_thd
    assert_same(convert(ours), convert(theirs), is_text)


# --------------------------------------------------------------------------------------------------- YAMLs and loader


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_a_yaml_is_what_automodel_reads(path: Path) -> None:
    """Each section, as its recipe resolves it; the model and the ranks are GPUs' to build."""
    config = RecipeConfig(load(str(path), []))
    sections = ("step_scheduler", "optimizer", "lr_scheduler", "loss_fn", "checkpoint", "freeze_config", "mtp")
    assert all(getattr(config, name) is not None for name in sections)
    assert config.step_scheduler.max_steps == 1000
    for name in ("vlm_dataloader", "vlm_validation_dataloader"):
        built = getattr(config, name)
        assert built.packing is built.pretokenization is None
        assert isinstance(built.dataset_config.build(), PackRows)
        assert built.collator.build(processor=None).func is collate
    parse = import_module("nemo_automodel.recipes._dist_utils").parse_distributed_section
    sizes = parse(config.get("distributed").to_dict())["parallelism_sizes"]
    assert (sizes.ep_size, sizes.cp_size, sizes.pp_size) == (8 if "30b" in path.stem else 1, 1, 1)
    assert recipes._is_recipe_target(config.model._target_)
    if config.get("model.backend") is not None:
        assert config.model.backend.instantiate().attn == "te"


def loader_of(pack: list[str], processor: Path, workers: int, rank: int = 0, num_ranks: int = 1) -> Any:
    """Automodel's own loader of a YAML, for the demo."""
    given = {"dataset.pack": repr(pack), "dataset.mask": "positions", "dataloader.num_workers": str(workers)}
    given |= {"dataloader.pin_memory": "false"}
    config = RecipeConfig(
        load(str(YAMLS[-1]), [word for name, value in given.items() for word in (f"--{name}", value)])
    )
    place = {"dp_rank": rank, "dp_world_size": num_ranks}
    return config.vlm_dataloader.build(pretrained_model_name_or_path=str(processor), batch_size=1, **place).dataloader


def ids(batches: Iterator[dict[str, Any]], number: int = 99) -> list[list[int]]:
    return [batch["input_ids"][0].tolist() for batch in islice(batches, number)]


@pytest.mark.parametrize("workers", [0, 2])
def test_its_loader_deals_packs_and_goes_on(pack: list[str], demo: tuple[Path, Path], workers: int) -> None:
    whole = ids(iter(loader_of(pack, demo[1], workers)))
    ranks = [ids(iter(loader_of(pack, demo[1], workers, rank, 2))) for rank in range(2)]
    assert {len(dealt) for dealt in ranks} == {-(-len(whole) // 2)}
    assert set(map(tuple, whole)) == {tuple(row) for dealt in ranks for row in dealt}
    loader = loader_of(pack, demo[1], workers)
    stream = iter(loader)
    assert ids(stream, 3) == whole[:3]
    state = loader.state_dict()
    other = loader_of(pack, demo[1], workers)
    other.load_state_dict(state)
    assert ids(iter(other)) == whole[3:]


def test_its_scheduler_tells_of_epochs(pack: list[str], demo: tuple[Path, Path]) -> None:
    """Each epoch has a plan of its own."""
    loader = loader_of(pack, demo[1], 0)
    schedule = import_module("nemo_automodel.components.training.step_scheduler").StepScheduler
    scheduler = schedule(1, 1, 1, loader, num_epochs=2, preemption_signal=None)
    epochs = []
    for epoch in scheduler.epochs:
        scheduler.set_epoch(epoch)
        epochs.append(sorted(token for (batch,) in scheduler for row in ids(iter([batch])) for token in row))
        assert f"_{epoch:03d}_" in loader.dataset[0].pack.key
    assert len(epochs) == 2
    assert epochs[0] == epochs[1]


# -------------------------------------------------------------------------------------------------------------- recipe


def each_alone(pack: TrainingPack) -> dict[str, Encoded]:
    """The members of a pack of images by id, each with its own media."""
    found, first, patches = {}, 0, 0
    for member in pack.members:
        media = {}
        if member.num_images:
            grids = pack.media["image_grid_thw"][first : first + member.num_images]
            number = int(grids.prod(1).sum())
            media = {"image_grid_thw": grids, "pixel_values": pack.media["pixel_values"][patches : patches + number]}
            first, patches = first + member.num_images, patches + number
        found[member.sample_id] = Encoded(member.sample_id, member.tokens, media)
    return found


#: Automodel computes in bfloat16 else
FP32 = {
    "model.torch_dtype": "float32",
    "distributed.mp_policy._target_": "torch.distributed.fsdp.MixedPrecisionPolicy",
    "distributed.mp_policy.param_dtype": "float32",
    "distributed.mp_policy.reduce_dtype": "float32",
    "distributed.mp_policy.output_dtype": "float32",
}


def build_here(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU Automodel builds no model."""
    make = tf.AutoModelForImageTextToText.from_pretrained
    monkeypatch.setattr(recipes, "build_model", lambda *_, **__: make(model_dir))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda *_: None)


@pytest.mark.parametrize("mask", ["positions", "block_causal"])
def test_losses_of_its_recipe_are_those_of_the_samples_alone(
    mask: str,
    pack: list[str],
    demo: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`recipes/automodel/finetune.py` with a tiny model. All is Automodel's; without a GPU the model is made here."""
    on_gpu = torch.cuda.is_available()
    finetune, tiny = import_module("automodel.finetune"), import_module("train_tiny").tiny_model
    model_dir, steps, lr = tmp_path / "model", 5, 2e-3
    shutil.copytree(demo[1], model_dir)
    packs = dataset(pack, mask=mask).packs
    tiny(packs.encoder).save_pretrained(model_dir)
    if not on_gpu:
        build_here(model_dir, monkeypatch)
    for name, value in {
        "RANK": 0,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": 1,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 0,
    }.items():
        monkeypatch.setenv(name, str(value))
    given = FP32 | {
        "model.pretrained_model_name_or_path": model_dir, "checkpoint.checkpoint_dir": tmp_path, "lr_scheduler": None,
        "checkpoint.enabled": False, "optimizer.lr": lr, "optimizer.weight_decay": 0.0,
        "dist_env.backend": "nccl" if on_gpu else "gloo", "model.attn_implementation": "sdpa",
        "freeze_config.freeze_vision_tower": False,
        "step_scheduler.global_batch_size": 2, "step_scheduler.max_steps": steps, "step_scheduler.val_every_steps": 3,
    }  # fmt: skip
    for part in ("", "validation_"):
        given |= {f"{part}dataset.pack": repr(pack), f"{part}dataset.mask": mask}
        given |= {f"{part}dataset.pixels": None, f"{part}dataloader.num_workers": 0}
        given |= {f"{part}dataloader.pin_memory": False, f"{part}dataloader.shuffle": False}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    finetune.main([str(ROOT / "recipes" / "automodel" / "qwen3_vl_4b.yaml"), *words])
    losses = [json.loads(line)["loss"] for line in (tmp_path / "training.jsonl").read_text().splitlines()]

    shown = [each_alone(packs[number]) for number in range(2 * steps)]
    members = {name: member for pack in shown for name, member in pack.items()}
    model = tf.AutoModelForImageTextToText.from_pretrained(model_dir).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    expected = losses_alone(model, optimizer, members, [[*shown[2 * i], *shown[2 * i + 1]] for i in range(steps)])
    largest = max(abs(one - other) for one, other in zip(losses, expected, strict=True))
    print(f"{mask}, {steps} steps: {largest:.1e}, from {expected[0]:.3f} to {expected[-1]:.3f}")
    assert largest < 1e-4
    assert (tmp_path / "validation.jsonl").read_text().count("val_loss") == 2
