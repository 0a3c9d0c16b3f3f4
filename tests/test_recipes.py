"""The recipes on packs of the demo: for transformers unchanged, for Megatron with stand-ins of it."""

import importlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import megatron_lm
import packed_data
import psutil
import pytest
import read_packs
import torch
import train_ddp
import train_tiny
import train_unpacked
import train_webdataset
import yaml
from megatron.energon import WorkerConfig
from megatron.energon.errors import FatalSampleError
from megatron_lm import one_token_per_image

from energon_pack import PackedDataset, guard, max_pack_len, metadataset, order, recipes
from energon_pack.config import ModelConfig, PackConfig, Rope
from energon_pack.dataset.manifest import read_manifest
from energon_pack.loading.task_encoder import PackedTaskEncoder
from energon_pack.pack import pack
from energon_pack.training.batch import PackedBatch, total_weight
from energon_pack.webdataset import packs
from support import processors
from support.marks import slow
from support.packed import demo_config
from support.packed import packed as pack_of
from support.ports import free_ports
from support.running import ROOT, need_torchvision
from support.samples import chat, video, write_tar
from support.shards import Group

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def packed(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 of the demo's samples, aligned to 8, in shards of a few packs; the last shard is the part val."""
    settings: dict[str, Any] = {"output__name": "demo", "output__max_shard_packs": 2, "source__limit": 60}
    settings |= {"model__rope": Rope.qwen2_5_vl, "packing__max_token_len": 800, "packing__pad_to_multiple_of": 8}
    folder = pack_of(demo_config(demo, cache, tmp_path_factory.mktemp("packed"), **settings))
    split = folder / ".nv-meta" / "split.yaml"
    content = yaml.safe_load(split.read_text())
    shards = content["split_parts"].pop("train") + content["split_parts"].pop("val")
    content["split_parts"] |= {"train": shards[:-1], "val": shards[-1:]}
    split.write_text(yaml.safe_dump(content))
    return folder


@pytest.fixture
def run_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """Runs a recipe's main as one process of one, with these arguments; what it printed."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def run(module: ModuleType, *arguments: str | Path) -> str:
        environment = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        for name, value in (environment | {"MASTER_PORT": str(free_ports(1)[0])}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", [str(module.__file__), *map(str, arguments)])
        module.main()
        return capsys.readouterr().out

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def ids(batches: Iterator[Any], number: int) -> list[Any]:
    return [batch["sample_ids"] for batch in islice(batches, number)]


def noted(file: Path) -> list[tuple[int, Any]]:
    """(step, samples) as `--ids` wrote them."""
    lines = map(json.loads, file.read_text().splitlines())
    return [(line["step"], line["ids"]) for line in lines]


# ------------------------------------------------------------------------------------------------- transformers


@pytest.mark.slow
def test_the_tiny_model_learns_packed_and_unpacked(
    packed: Path, demo: tuple[Path, Path], run_main: Callable[..., str]
) -> None:
    """The recipe itself ends with an error where the loss does not fall."""
    out = run_main(train_tiny, packed, "--processor", demo[1], "--max-steps", "4")
    assert out.count("validation loss") == 2
    assert "packed    step   3  loss" in out
    assert "unpacked  step   3  loss" in out


def test_few_steps_are_enough_to_say_that_the_loss_fell() -> None:
    """Four steps from 6.96 to 5.78 ended in "the loss did not fall": all of them were both first and last."""
    assert train_tiny.fell([6.96, 6.5, 6.1, 5.78])
    assert not train_tiny.fell([5.0, 5.0])
    assert not train_tiny.fell([1.0] * 5 + [9.0] + [1.0] * 5)
    assert train_tiny.fell([6.96])  # one step can't tell


@pytest.mark.parametrize("trains", [False, slow(True)])
def test_a_blend_is_trained_on_as_a_dataset_is(
    packed: Path, demo: tuple[Path, Path], tmp_path: Path, run_main: Callable[..., str], trains: bool
) -> None:
    """Its batches are those that the training takes in the ordinary run, too."""
    blend = tmp_path / "blend.yaml"
    metadataset.main([str(blend), f"{packed}=1", f"{packed}=2"])
    assert read_manifest(blend) == read_manifest(packed)
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    batches = packed_data.train_loader(blend, PackedTaskEncoder(blend, str(demo[1])), worker)
    assert all(batch["num_trained"] > 0 for batch in islice(batches, 3))
    if trains:
        short = ("--num-workers", "0", "--max-steps", "1", "--dtype", "bfloat16")
        assert "step 1  loss" in run_main(train_ddp, blend, "--processor", demo[1], *short)


@pytest.mark.slow
def test_the_loss_of_each_entry_of_a_mixture_is_said(
    config: Callable[..., PackConfig], demo: tuple[Path, Path], tmp_path: Path, run_main: Callable[..., str]
) -> None:
    """In training and in validation: a mean over all hides an entry that gets worse."""
    for name, length in (("short", 3), ("long", 40)):
        answers = [{"role": "assistant", "content": "word " * (1 + number % length)} for number in range(60)]
        lines = [{"messages": [{"role": "user", "content": f"{name}?"}, answer]} for answer in answers]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    entries = [{"path": f"{name}.jsonl"} for name in ("short", "long")]
    (tmp_path / "mix.yaml").write_text(json.dumps({"mixture": entries}))
    run = config(str(tmp_path / "mix.yaml"), source__format="auto", packing__max_token_len=512)
    run.output.splits.val = 0.2
    out = run_main(train_ddp, pack_of(run), "--processor", demo[1], "--num-workers", "0", "--max-steps", "2")
    assert re.search(r"step 2  loss \d\.\d{3} \(short \d\.\d{3}, long \d\.\d{3}\)", out)
    assert re.search(r"validation loss \d\.\d{3} \(short \d\.\d{3}, long \d\.\d{3}\) over [\d,]+ tokens", out)


def test_a_mixture_is_validated_on_another_dataset(
    config: Callable[..., PackConfig],
    packed: Path,
    demo: tuple[Path, Path],
    tmp_path: Path,
    run_main: Callable[..., str],
) -> None:
    """No entry of the mixture has the samples of this dataset, so the first validation ended the training."""
    line = json.dumps({"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]})
    for name in ("few", "more"):
        (tmp_path / f"{name}.jsonl").write_text(f"{line}\n" * 9)
    entries = [{"path": "few.jsonl"}, {"path": "more.jsonl"}]
    (tmp_path / "mix.yaml").write_text(json.dumps({"mixture": entries}))
    mixture = pack_of(config(str(tmp_path / "mix.yaml"), source__format="auto", packing__max_token_len=512))
    short = ("--num-workers", "0", "--max-steps", "1", "--val", packed)
    out = run_main(train_ddp, mixture, "--processor", demo[1], *short)
    assert re.search(r"step 1  loss \d\.\d{3} \(few \d\.\d{3}, more \d\.\d{3}\)", out)
    assert re.search(r"validation loss \d+\.\d{3} over [\d,]+ tokens", out)


def test_packs_of_videos_are_read(
    config: Callable[..., PackConfig], tmp_path: Path, run_main: Callable[..., str]
) -> None:
    """Also frames that a sample lists itself count."""
    source = {"a.json": chat("<video>What?", "That."), "a.0.mp4": video()}
    source |= {"b.json": chat("<video>What?", "That.", video_frames=[[0, 3, 9, 20]]), "b.0.mp4": video()}
    run = config(write_tar(tmp_path / "source" / "x.tar", source), packing__max_token_len=4096)
    pack(run)
    out = run_main(read_packs, Path(run.output.dir) / "packed")
    assert "1 packs, 2 members, 0 images" in out


def test_validation_is_the_part_val_or_another_dataset_or_none(
    packed: Path, demo: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = PackedTaskEncoder(packed, str(demo[1]))
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    val = {str(row) for row in ids(iter(packed_data.val_loader(packed, encoder, worker)), 99)}
    train = {str(row) for row in ids(iter(packed_data.train_loader(packed, encoder, worker)), 60)}
    assert val
    assert not val & train
    other = tmp_path / "other"
    other.mkdir()
    for path in packed.iterdir():
        if path.name != ".nv-meta":
            (other / path.name).symlink_to(path)
    (other / ".nv-meta").mkdir()
    for path in filter(Path.is_file, (packed / ".nv-meta").iterdir()):
        (other / ".nv-meta" / path.name).write_bytes(path.read_bytes())
    split = other / ".nv-meta" / "split.yaml"
    parts = yaml.safe_load(split.read_text())["split_parts"]
    split.write_text(yaml.safe_dump({"split_parts": {"train": parts["val"], "val": []}, "exclude": []}))
    assert packed_data.val_loader(other, encoder, worker) is None
    assert capsys.readouterr().out.startswith(f"no validation: {other} has no part val")
    given = packed_data.val_loader(other, encoder, worker, other)
    assert {str(row) for row in ids(iter(given), 99)} == val


@pytest.mark.slow
@pytest.mark.parametrize(("parallel", "dtype"), [("fsdp", "float32"), ("fsdp", "bfloat16"), ("ddp", "bfloat16")])
def test_one_process_of_the_data_parallel_recipe_goes_on_where_it_was(
    packed: Path, demo: tuple[Path, Path], tmp_path: Path, run_main: Callable[..., str], parallel: str, dtype: str
) -> None:
    """Checkpoints hold model, step and place in the data."""
    common = [packed, "--processor", demo[1], "--num-workers", "0", "--dtype", dtype, "--val-every", "2"]
    common += ["--parallel", parallel]
    common += ["--save", tmp_path / "save", "--ids", tmp_path / "ids"]
    first = run_main(train_ddp, *common, "--max-steps", "2")
    second = run_main(train_ddp, *common, "--max-steps", "4", "--resume")
    assert "goes on after step 2" in second
    losses = [float(out.partition("validation loss ")[2].split()[0]) for out in (first, second)]
    assert losses[1] < losses[0]
    steps, samples = zip(*noted(tmp_path / "ids.0"), strict=True)
    assert steps == tuple(range(1, 5))
    encoder = PackedTaskEncoder(packed, str(demo[1]))
    loader = packed_data.train_loader(packed, encoder, WorkerConfig(rank=0, world_size=1, num_workers=0))
    assert list(samples) == ids(iter(loader), 4)


def test_a_signal_ends_the_run_after_the_step_with_a_checkpoint(
    packed: Path,
    demo: tuple[Path, Path],
    tmp_path: Path,
    run_main: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def raising(batch: PackedBatch) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGTERM)
        return total_weight(batch)

    monkeypatch.setattr(train_ddp, "total_weight", raising)
    run_main(train_ddp, packed, "--processor", demo[1], "--num-workers", "0", "--save", tmp_path, "--max-steps", "9")
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000002"]


def torchrun(
    folder: Path, *arguments: str | Path, ranks: int = 2, recipe: str = "train_ddp.py"
) -> "subprocess.Popen[bytes]":
    """A recipe in several processes."""
    run = ["torch.distributed.run", "--nproc-per-node", ranks, "--master-port", *free_ports(1)]
    command = [sys.executable, "-m", *run, ROOT / "recipes" / recipe, *arguments]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with open(folder / "output", "a") as output:
        return subprocess.Popen(list(map(str, command)), cwd=folder, env=environment, stdout=output, stderr=output)


@pytest.mark.slow
def test_two_processes_killed_and_resumed_see_the_samples_of_an_undisturbed_run(
    packed: Path, demo: tuple[Path, Path], tmp_path: Path
) -> None:
    """Some steps have images in only one process; gradients equal those over all tokens together."""
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    common = (packed, "--processor", demo[1], "--num-workers", "1", "--save", "save", "--ids", "ids")
    whole = torchrun(tmp_path / "whole", *common, "--max-steps", "8", "--save-every", "1", "--val-every", "8")
    assert whole.wait(120) == 0, (tmp_path / "whole" / "output").read_text()

    folder = tmp_path / "killed"
    killed = torchrun(folder, *common, "--max-steps", "1000", "--save-every", "3", "--val-every", "1000")
    note = folder / "ids.0"
    while not (note.exists() and len(noted(note)) >= 5):  # step 3 is saved, 4 and 5 are lost
        assert killed.poll() is None, (folder / "output").read_text()
        time.sleep(0.02)
    for process in [*psutil.Process(killed.pid).children(recursive=True), psutil.Process(killed.pid)]:
        process.send_signal(signal.SIGKILL)
    killed.wait()
    before = [len(noted(folder / f"ids.{rank}")) for rank in range(2)]
    resumed = torchrun(folder, *common, "--max-steps", "8", "--save-every", "3", "--resume")
    assert resumed.wait(120) == 0, (folder / "output").read_text()
    encoder = PackedTaskEncoder(packed, str(demo[1]))
    batches = []
    for rank in range(2):
        after = noted(folder / f"ids.{rank}")
        assert after[before[rank]][0] in (4, 7)  # the step after a checkpoint
        assert dict(after) == dict(noted(tmp_path / "whole" / f"ids.{rank}"))
        assert set(dict(after)) == set(range(1, 9))
        worker = WorkerConfig(rank=rank, world_size=2, num_workers=1)
        batches.append(list(islice(packed_data.train_loader(packed, encoder, worker), 8)))
    assert any("pixel_values" in a != "pixel_values" in b for a, b in zip(*batches, strict=True))

    model = train_tiny.tiny_model(encoder)
    counts = [one[0]["num_trained"] for one in batches]
    for one, count in zip(batches, counts, strict=True):
        (model(**one[0].model_inputs(model)).loss * count / sum(counts)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    state = torch.load(tmp_path / "whole" / "save" / "step_00000001" / "model.pt")["optimizer"]["state"]
    for name, parameter in model.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(state[name]["exp_avg"], 0.1 * expected, atol=1e-6, rtol=1e-3)


@pytest.mark.slow
def test_other_numbers_of_ranks_train_what_is_left_of_the_epoch(
    packed: Path, demo: tuple[Path, Path], tmp_path: Path
) -> None:
    """Two, then one, then three: no sample is lost or seen twice, and what was consumed is kept."""
    common = (packed, "--processor", demo[1], "--save", "save", "--val-every", "1000")
    whole = PackedTaskEncoder(packed, str(demo[1]))
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    num = packed_data.train_loader(packed, whole, worker).journal.num_packs or 0
    for ranks, workers, steps, more in ((2, 1, 3, ()), (1, 0, 5, ("--resume",)), (3, 2, 20, ("--resume",))):
        arguments = (*common, "--num-workers", str(workers), "--max-steps", str(steps), "--ids", f"ids_{ranks}")
        process = torchrun(tmp_path, *arguments, *more, ranks=ranks)
        assert process.wait(240) == 0, (tmp_path / "output").read_text()
    # In the order in which packs were read: of a step, rank by rank.
    notes = [[dict(noted(tmp_path / f"ids_{ranks}.{rank}")) for rank in range(ranks)] for ranks in (2, 1, 3)]
    packs = [pack for run in notes for step in run[0] for rank in run for pack in rank[step]][:num]
    expected = ids(packed_data.train_loader(packed, whole, worker), num)
    assert sorted(packs) == sorted(pack for (pack,) in expected)
    assert len({name for pack in packs for name in pack}) == sum(map(len, packs))
    total = 3 * 2 + 2 + 15 * 3
    assert f"consumed {total} packs" in (tmp_path / "output").read_text()


@pytest.mark.slow
def test_like_lengths_are_trained_with_little_padding(
    demo: tuple[Path, Path], cache: Path, run_main: Callable[..., str]
) -> None:
    """Unpacked by chance, unpacked by length, packed: the same samples, and room for as many tokens in a batch."""
    overrides = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", f"source.path={demo[0]}", f"cache_dir={cache}"]
    overrides += [
        "packing.max_token_len=512",
        "packing.overlong=drop",
        "source.limit=60",
        "executor.num_workers=1",
        "measure.verify=0",
    ]
    out = run_main(train_unpacked, *overrides, "--max-steps", "2")
    padding = [float(share) for share in re.findall(r"([\d.]+)% padding", out)]
    assert len(padding) == 3
    assert padding[1] < padding[0] / 2


# ---------------------------------------------------------------------------------------------------- webdataset


def test_a_plain_loader_goes_round_the_shards_in_another_order_each_epoch(
    packed: Path, demo: tuple[Path, Path]
) -> None:
    """Each pack once in an epoch; the same seed has the same order."""
    encoded = packs(packed, str(demo[1]))
    epoch = read_manifest(packed)["num_packs"] - len(list(train_webdataset.val_batches(packed, encoded)))
    twice, again = (ids(train_webdataset.batches(packed, encoded, shuffle=4), 2 * epoch) for _ in range(2))
    assert twice == again
    assert twice[:epoch] != twice[epoch:]
    assert sorted(map(str, twice[:epoch])) == sorted(map(str, twice[epoch:]))
    assert len(set(map(str, twice))) == epoch


def test_webdataset_trains_one_process(packed: Path, demo: tuple[Path, Path], run_main: Callable[..., str]) -> None:
    out = run_main(train_webdataset, packed, "--processor", demo[1], "--num-workers", "0", "--max-steps", "1")
    assert "step 1  loss" in out
    assert "validation loss" in out


@pytest.mark.slow
def test_webdataset_trains_two_processes(packed: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Also where their shards hold other numbers of packs: none waits at the end of an epoch."""
    arguments = (packed, "--processor", demo[1], "--num-workers", "2", "--max-steps", "12", "--accumulate", "2")
    process = torchrun(tmp_path, *arguments, recipe="train_webdataset.py")
    assert process.wait(240) == 0, (tmp_path / "output").read_text()
    assert "validation loss" in (tmp_path / "output").read_text()


# ----------------------------------------------------------------------------------------------- Megatron-Bridge


@pytest.fixture
def bridge(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The recipe, imported where a stand-in of Bridge's base class is."""

    @dataclass
    class DatasetProvider:
        dataloader_type: str | None = None
        num_workers: int = 2
        data_sharding: bool = True
        pin_memory: bool = True
        drop_last: bool = True
        persistent_workers: bool = True
        trust_remote_code: bool | None = None

    for name in ("megatron.bridge", "megatron.bridge.data", "megatron.bridge.data.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["megatron.bridge.data.utils"].DatasetProvider = DatasetProvider  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "megatron_bridge", raising=False)
    module = importlib.import_module("megatron_bridge")
    assert issubclass(module.PackedProvider, DatasetProvider)
    yield module
    sys.modules.pop("megatron_bridge", None)


def recipe() -> Any:
    """What of a ConfigContainer the recipe looks at, as Bridge's Qwen2.5-VL recipes have it."""
    return SimpleNamespace(
        model=SimpleNamespace(
            seq_length=4096, calculate_per_token_loss=False, tensor_model_parallel_size=1, cuda_graph_impl="none",
            pipeline_model_parallel_size=1, context_parallel_size=1, expert_model_parallel_size=1,
            sequence_parallel=False, mtp_num_layers=None, freeze_vision_model=False,
        ),
        train=SimpleNamespace(micro_batch_size=2, global_batch_size=32),
        validation=SimpleNamespace(eval_micro_batch_size=None),
        ddp=SimpleNamespace(average_in_collective=True, overlap_grad_reduce=False),
        dist=SimpleNamespace(eval_context_parallel_size=None),
        comm_overlap=SimpleNamespace(),
        dataset=None,
    )  # fmt: skip


def build(cfg: Any, dp: tuple[int, int] = (0, 1), cp_rank: int = 0) -> tuple[Any, Any]:
    """Loaders as Bridge gets them on a rank."""
    groups = SimpleNamespace(dp=Group(dp[1], dp[0]), cp=Group(2, cp_rank), dp_cp=Group(dp[1] * 2, dp[0] * 2 + cp_rank))
    context = SimpleNamespace(train_samples=100, valid_samples=20, test_samples=0, pg_collection=groups)
    train, val, test = cfg.dataset.build_datasets(context)
    assert test is None
    return train, val


def test_bridge_gets_packs_and_goes_on_where_it_was(bridge: Any, packed: Path, demo: tuple[Path, Path]) -> None:
    cfg = bridge.apply_to_recipe(recipe(), packed, processor=str(demo[1]), num_workers=0)
    assert (cfg.model.seq_length, cfg.train.micro_batch_size, cfg.model.calculate_per_token_loss) == (800, 1, True)
    assert cfg.ddp.average_in_collective is False
    assert (cfg.dataset.dataloader_type, cfg.dataset.pack_sequences_in_batch) == ("external", False)
    assert cfg.dataset.dataloader_save is None  # a field, so that a command line can set it
    train, val = build(cfg)
    batch = next(train)
    assert {"input_ids", "labels", "loss_mask", "position_ids", "cu_seqlens_q", "max_seqlen_q"} <= batch.keys()
    assert all(value is None or torch.is_tensor(value) for value in vars(batch["visual_inputs"]).values())
    assert not (batch["cu_seqlens_q_padded"] % 8).any()
    next(train)
    file = io.BytesIO()
    torch.save({"dataloader_state_dict": train.save_state()}, file)
    file.seek(0)
    # Bridge loads nothing but Energon's classes, and what states of random generators are made of.
    names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    assert all(name.startswith(("megatron.energon.", "numpy.")) for name in names), names
    file.seek(0)
    expected = ids(train, 5)
    again, _ = build(cfg)
    again.restore_state(torch.load(file, weights_only=False)["dataloader_state_dict"])
    assert ids(again, 5) == expected
    encoder, worker = PackedTaskEncoder(packed, str(demo[1])), WorkerConfig(rank=0, world_size=1, num_workers=0)
    once = len(list(packed_data.val_loader(packed, encoder, worker)))
    first, second = ids(val, once), ids(val, once)
    assert sorted(map(str, first)) == sorted(map(str, second))  # the loop asks for as many as it wants
    assert not {str(row) for row in first} & {str(row) for row in expected}


def test_ranks_of_one_context_parallel_group_read_the_same(bridge: Any, packed: Path, demo: tuple[Path, Path]) -> None:
    cfg = bridge.apply_to_recipe(recipe(), packed, processor=str(demo[1]), num_workers=0)
    (first, _), (second, _), (other, _) = (build(cfg, (0, 2), 0), build(cfg, (0, 2), 1), build(cfg, (1, 2), 0))
    mine = ids(first, 2)
    assert ids(second, 2) == mine
    assert not {str(row) for row in ids(other, 2)} & {str(row) for row in mine}


def test_bridge_up_to_0_5_says_the_groups_in_a_module(bridge: Any, megatron: Any) -> None:
    worker = bridge.worker_config(None, 3)
    assert (worker.rank, worker.world_size, worker.num_workers) == (0, 1, 3)


def test_a_rank_without_data_is_an_error_not_an_endless_wait() -> None:
    with pytest.raises(ValueError, match="no pack of this part"):
        next(packed_data.Endless([]))


def test_bridge_up_to_0_5_gets_rows_but_not_for_qwen(
    bridge: Any, packed: Path, demo: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"positions qwen2_5_vl, which Bridge ≤ 0.5 does not start again"):
        bridge.apply_to_recipe(recipe(), packed, processor=str(demo[1]), layout="rows")
    content = read_manifest(packed)
    content["content"]["model"]["rope"] = "none"
    monkeypatch.setattr(bridge, "read_manifest", lambda _: content)
    cfg = bridge.apply_to_recipe(recipe(), packed, processor=str(demo[1]), layout="rows", num_workers=0)
    assert cfg.dataset.pack_sequences_in_batch
    assert (cfg.train.micro_batch_size, cfg.train.global_batch_size) == (2, 64)  # still 32 packs a step
    batch = next(build(cfg)[0])
    assert len(batch["input_ids"]) == len(batch["sample_ids"][0])


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("model.seq_length", 4096, "dataset.seq_length=800 with model.seq_length=4096: set both to the same"),
        ("train.micro_batch_size", 2, "train.micro_batch_size=2, .*: set 1"),
        ("model.calculate_per_token_loss", False, "calculate_per_token_loss=False.*: set True"),
        ("ddp.average_in_collective", True, "average_in_collective=True.*: set False"),
        ("model.pipeline_model_parallel_size", 2, "pipeline_model_parallel_size=2, .* no packs: set 1"),
        ("model.expert_model_parallel_size", 8, "pad_to_max_length=False.*: set True"),
        ("model.cuda_graph_impl", "local", "cuda_graph_impl=local.*: set none"),
        ("model.vision_cuda_graph_impl", "transformer_engine", "vision_cuda_graph_impl=transf.*: set none"),
        (
            "model.overlap_moe_expert_parallel_comm",
            True,
            "model.overlap_moe.*=True, .* neither images .*: set False",
        ),
        ("comm_overlap.overlap_moe_expert_parallel_comm", True, "comm_overlap.overlap_moe.*=True, .*: set False"),
        ("model.dist_train", SimpleNamespace(use_dist_train=True), "use_dist_train=True, .* no packs: set False"),
        ("dist.use_torch_fsdp2", True, "dist.use_torch_fsdp2=True, which waits .*: set False"),
        ("model.mtp_num_layers", 1, "mtp_num_layers=1.*: set None"),
        ("model.context_parallel_size", 2, "context_parallel_size=2, which Bridge's qwen2_5_vl has not: set 1"),
        ("dist.eval_context_parallel_size", 2, "context_parallel_size=2, which Bridge's qwen2_5_vl has not"),
        ("ddp.overlap_grad_reduce", True, "wait for gradients.*: set ddp.overlap_grad_reduce=False"),
        ("dataset.layout", "neat", "dataset.layout=neat: set thd"),
        ("dataset.pad_to_multiple_of", 12, None),
    ],
)
def test_what_bridge_would_not_notice_is_refused(
    bridge: Any, packed: Path, demo: tuple[Path, Path], place: str, value: Any, said: str | None
) -> None:
    """With `overlap_moe_expert_parallel_comm`, src/megatron/bridge/training/vlm_step.py:319 (0.7) builds a plan of
    tokens and labels alone. Graphs, pipelines and DistTrain are what Bridge's config.py refuses with its own packs.
    """
    cfg = bridge.apply_to_recipe(recipe(), packed, processor=str(demo[1]))
    bridge.check(cfg)
    part, _, name = place.partition(".")
    setattr(getattr(cfg, part), name, value)
    if said is None:
        bridge.check(cfg)  # one rank alone takes any multiple
        return
    with pytest.raises(ValueError, match=said):
        bridge.check(cfg)


def test_the_plans_multiple_has_to_fit_the_parallelism(
    bridge: Any, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed for multiples of 8: CP 4 or TP 8 with sequence parallelism fit, CP 8 does not."""
    content = read_manifest(packed)
    content["content"]["model"]["rope"] = "qwen3_vl"
    monkeypatch.setattr(bridge, "read_manifest", lambda _: content)

    def sized(cp: int, tp: int, sp: bool) -> Any:
        cfg = recipe()
        cfg.model.context_parallel_size, cfg.model.tensor_model_parallel_size = cp, tp
        cfg.model.sequence_parallel = sp
        return bridge.apply_to_recipe(cfg, packed)

    for fits in ((4, 1, False), (1, 8, True), (2, 4, True), (1, 16, False)):
        sized(*fits)
    with pytest.raises(ValueError, match=r"multiples of 8, but .* want 16: set packing.pad_to_multiple_of=16"):
        sized(8, 1, False)
    with pytest.raises(ValueError, match=r"want 12: set packing.pad_to_multiple_of=24"):
        sized(2, 6, True)


def test_expert_parallel_ranks_get_one_width(bridge: Any, packed: Path, demo: tuple[Path, Path]) -> None:
    cfg = recipe()
    cfg.model.expert_model_parallel_size = 2
    cfg = bridge.apply_to_recipe(cfg, packed, processor=str(demo[1]), num_workers=0)
    train, _ = build(cfg)
    assert {next(train)["input_ids"].shape for _ in range(3)} == {(1, 800)}
    with pytest.raises(ValueError, match="padded to 800"):
        bridge.apply_to_recipe(cfg, packed, seq_length=1024, pad_to_max_length=True)


# --------------------------------------------------------------------------------------------------- Megatron-LM


@pytest.fixture
def megatron(monkeypatch: pytest.MonkeyPatch, packed: Path, demo: tuple[Path, Path], tmp_path: Path) -> Any:
    """A stand-in of what the recipe asks of Megatron-LM; its arguments and sizes can be changed."""
    args = SimpleNamespace(
        data_path=[str(packed)], packed_processor=str(demo[1]), packed_val=None, packed_keep_feature_tokens=True,
        micro_batch_size=1, num_workers=0, seq_length=576, decoder_seq_length=800, dataloader_type="external",
        context_parallel_size=1, sequence_parallel=False, calculate_per_token_loss=True,
        load=None, dataloader_save=str(tmp_path), iteration=0, eval_iters=20, pipeline_model_parallel_size=1,
    )  # fmt: skip
    state = SimpleNamespace(args=args, tp=0, pp=0, stages=1, image_token=77)
    core, training = ModuleType("megatron.core"), ModuleType("megatron.training")
    core.parallel_state = SimpleNamespace(  # type: ignore[attr-defined]
        get_tensor_model_parallel_rank=lambda: state.tp,
        get_pipeline_model_parallel_rank=lambda: state.pp,
        get_pipeline_model_parallel_world_size=lambda: state.stages,
        get_data_parallel_rank=lambda: 0,
        get_data_parallel_world_size=lambda: 1,
        get_data_parallel_group=lambda: Group(1, 0),
    )
    training.get_args = lambda: args  # type: ignore[attr-defined]
    training.get_tokenizer = lambda: SimpleNamespace(  # type: ignore[attr-defined]
        convert_tokens_to_ids={"<image>": state.image_token}.__getitem__
    )
    for module in (core, training):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return state


def broadcast(batch: dict[str, Any]) -> None:
    """What Megatron asks of a batch to broadcast it over tensor-parallel ranks, and its example of the shapes."""
    types = {"tokens": torch.int64, "labels": torch.int64, "imgs": torch.float32}
    types |= dict.fromkeys(("num_tiles", "cu_lengths", "max_lengths"), torch.int32)
    for name, dtype in types.items():
        assert batch[name].dtype == dtype, name
        assert batch[name].dim() < 5
        assert batch[name].numel(), f"{name} is empty"
    assert batch["labels"][:, 1 : batch["tokens"].shape[1] + 1].shape == batch["tokens"].shape
    assert len(batch["cu_lengths"]) == len(batch["max_lengths"]) == 1
    assert int(batch["cu_lengths"].max()) == batch["tokens"].shape[1]


@pytest.mark.parametrize("saved", ["mp_rank_00", slow("mp_rank_00_001"), slow("mp_rank_00_000_001")])
def test_megatron_lm_gets_packs_and_goes_on_where_it_was(megatron: Any, tmp_path: Path, saved: str) -> None:
    """Megatron-LM's megatron/training/checkpointing.py (`maybe_save_dataloader_state`, `get_checkpoint_name`) names the
    folder after ranks of the model; with expert parallelism, the saver and who looks may have different ones.
    """
    train, (val,), test = megatron_lm.train_valid_test_dataloaders_provider([100, 20, 0])
    assert test is None
    seen = [next(train) for _ in range(6)]
    assert {batch["imgs"].shape == (1, 1) for batch in seen} == {True, False}  # packs of text, packs of images
    for batch in [*seen, next(val)]:
        broadcast(batch)
    state = tmp_path / "iter_0000006" / saved / "train_dataloader_dprank000.pt"
    state.parent.mkdir(parents=True)
    torch.save({"dataloader_state_dict": train.save_state()}, state)
    expected = ids(train, 4)
    megatron.args.load, megatron.args.iteration = "checkpoints", 6
    again, _, _ = megatron_lm.train_valid_test_dataloaders_provider([100, 20, 0])
    assert ids(again, 4) == expected
    megatron.args.iteration = 7
    with pytest.raises(FileNotFoundError):  # never from the beginning in silence
        megatron_lm.train_valid_test_dataloaders_provider([100, 20, 0])
    megatron.args.iteration, other = 6, state.parent.with_name("mp_rank_00_007") / state.name
    other.parent.mkdir()
    other.write_bytes(state.read_bytes())
    with pytest.raises(ValueError, match="both of this rank"):
        megatron_lm.train_valid_test_dataloaders_provider([100, 20, 0])


def test_megatron_lm_goes_on_with_another_number_of_ranks(
    megatron: Any, packed: Path, demo: tuple[Path, Path], tmp_path: Path
) -> None:
    """It looks for the states of all ranks that wrote the checkpoint; here two."""
    encoder = PackedTaskEncoder(packed, str(demo[1]), layout="mlm")
    seen = []
    for rank in range(2):
        loader = packed_data.train_loader(packed, encoder, WorkerConfig(rank=rank, world_size=2, num_workers=0))
        seen += ids(loader, 3)
        state = tmp_path / "iter_0000003" / f"mp_rank_00_{rank:03d}" / f"train_dataloader_dprank{rank:03d}.pt"
        state.parent.mkdir(parents=True)
        torch.save({"dataloader_state_dict": loader.save_state()}, state)
    megatron.args.load, megatron.args.iteration = "checkpoints", 3
    train, _, _ = megatron_lm.train_valid_test_dataloaders_provider([100, 20, 0])
    num = train.journal.num_packs
    assert train.journal.before.packs == 6
    every = ids(packed_data.train_loader(packed, encoder, WorkerConfig(rank=0, world_size=1, num_workers=0)), num)
    assert sorted(seen + ids(train, num - 6)) == sorted(every)
    state.unlink()
    with pytest.raises(FileNotFoundError, match="dprank001"):  # never without the packs of one
        megatron_lm.train_valid_test_dataloaders_provider([100, 20, 0])


def test_a_blend_goes_on_in_the_same_world_alone(packed: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Its datasets are drawn by chance in each worker, so no other can tell what is left."""
    blend = tmp_path / "blend.yaml"
    metadataset.main([str(blend), f"{packed}=1", f"{packed}=2"])
    encoder = PackedTaskEncoder(blend, str(demo[1]))
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    loader = packed_data.train_loader(blend, encoder, worker)
    next(loader)
    states = [loader.save_state()]
    expected = ids(loader, 5)
    again = packed_data.train_loader(blend, encoder, worker, states)
    assert ids(again, 5) == expected
    assert again.journal.own.packs == 6
    for ranks, workers, said in ((2, 0, "as many ranks as it began with: 1, not 2"), (1, 2, "workers .*: 1, not 2")):
        other = WorkerConfig(rank=ranks - 1, world_size=ranks, num_workers=workers)
        with pytest.raises(ValueError, match=said):
            packed_data.train_loader(blend, encoder, other, states)


def test_no_validation_data_and_validation_asked_for(
    megatron: Any, packed: Path, demo: tuple[Path, Path], tmp_path: Path
) -> None:
    """On every rank: Megatron's training loop asks for an iterator where there is none (megatron/training/training.py,
    `build_train_valid_test_data_iterators`).
    """
    without = tmp_path / "without"
    shutil.copytree(packed, without)
    split = without / ".nv-meta" / "split.yaml"
    shards = yaml.safe_load(split.read_text())["split_parts"]["train"]
    split.write_text(yaml.safe_dump({"split_parts": {"train": shards, "val": []}, "exclude": []}))
    megatron.args.data_path = [str(without)]
    for megatron.tp in (0, 1):
        with pytest.raises(ValueError, match=r"--eval-iters 20, but .*without has no part val: set --eval-iters 0"):
            megatron_lm.train_valid_test_dataloaders_provider([100, 20, 0])
    megatron.args.eval_iters, megatron.tp = 0, 0
    train, val, _ = megatron_lm.train_valid_test_dataloaders_provider([100, 20, 0])
    assert (train is not None, val) == (True, None)
    megatron.args.eval_iters, megatron.args.packed_val = 20, str(packed)
    assert megatron_lm.train_valid_test_dataloaders_provider([100, 20, 0])[1] is not None


@pytest.mark.parametrize(
    ("tp", "pp", "stages", "reads"), [(0, 0, 1, True), (1, 0, 1, False), (0, 1, 3, False), (0, 2, 3, True)]
)
def test_only_ranks_that_broadcast_read(megatron: Any, tp: int, pp: int, stages: int, reads: bool) -> None:
    megatron.tp, megatron.pp, megatron.stages = tp, pp, stages
    train, val, _ = megatron_lm.train_valid_test_dataloaders_provider([100, 20, 0])
    assert (train is not None, val is not None) == (reads, reads)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("micro_batch_size", 2, "--micro-batch-size 2: .* set 1"),
        ("dataloader_type", "cyclic", "set external"),
        ("decoder_seq_length", 512, "512 is less than the 800 tokens of a pack"),
        ("data_path", ["packed/a", "packed/b"], "--data-path packed/a packed/b: one packed dataset, or the YAML of a"),
        ("context_parallel_size", 2, "members would see each other"),
        ("sequence_parallel", True, "members would see each other"),
        ("calculate_per_token_loss", False, "set --calculate-per-token-loss"),
    ],
)
def test_arguments_that_packs_do_not_go_with(megatron: Any, name: str, value: Any, said: str) -> None:
    setattr(megatron.args, name, value)
    with pytest.raises(ValueError, match=said):
        megatron_lm.train_valid_test_dataloaders_provider([100, 20, 0])


def test_what_llavas_code_asks_beside(megatron: Any) -> None:
    """A token for images (examples/multimodal/model.py asserts one); with pipeline stages, batches of the width it pads
    to (`_preprocess_data` of megatron/core/models/multimodal/llava_model.py).
    """
    megatron.args.packed_keep_feature_tokens, megatron.image_token = False, None
    with pytest.raises(ValueError, match='no <image>: set --special-tokens "<image>"'):
        megatron_lm.train_valid_test_dataloaders_provider([100, 20, 0])
    megatron.args.pipeline_model_parallel_size, megatron.args.decoder_seq_length = 2, 1024
    with pytest.raises(ValueError, match=r"--decoder-seq-length 1024: .* 800, as they were packed"):
        megatron_lm.train_valid_test_dataloaders_provider([100, 20, 0])


def with_limits(packed: Path, out: Path, max_token_len: int, hard_limit: int) -> Path:
    """Copy a dataset, as one of `own_pack` with other limits."""
    shutil.copytree(packed, out)
    manifest = out / ".nv-meta" / "energon_pack.json"
    content = {**json.loads(manifest.read_text()), "max_token_len": max_token_len}
    content["content"]["packing"] |= {"overlong": "own_pack", "hard_limit": hard_limit, "max_token_len": max_token_len}
    manifest.write_text(json.dumps(content))
    return out


def test_packs_of_own_pack_need_room_for_its_limit(
    bridge: Any, megatron: Any, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLaVAModel cuts what is longer than `--decoder-seq-length`: the ends of such packs were lost without a word."""
    content = read_manifest(packed)
    content["content"]["packing"] |= {"overlong": "own_pack", "hard_limit": 2048}
    with pytest.raises(ValueError, match="--decoder-seq-length 800 is less than the 2048 tokens of a pack"):
        megatron_lm.check(megatron.args, content)
    megatron.args.decoder_seq_length, megatron.args.pipeline_model_parallel_size = 2048, 2
    megatron_lm.check(megatron.args, content)
    megatron.args.pipeline_model_parallel_size, megatron.args.decoder_seq_length = 1, 800
    megatron.args.packed_val = str(with_limits(packed, tmp_path / "val", 800, 904))
    with pytest.raises(ValueError, match="800 is less than the 904 tokens of a pack"):
        megatron_lm.train_valid_test_dataloaders_provider([100, 20, 0])
    monkeypatch.setattr(bridge, "read_manifest", lambda _: content)
    cfg = bridge.apply_to_recipe(recipe(), packed)
    assert cfg.model.seq_length == 2048
    cfg.model.seq_length = cfg.dataset.seq_length = 1024
    with pytest.raises(ValueError, match="but packs have up to 2048 tokens: set both to 2048"):
        bridge.check(cfg)


def test_batches_of_one_width_have_room_for_training_and_validation(
    bridge: Any, megatron: Any, packed: Path, demo: tuple[Path, Path], tmp_path: Path
) -> None:
    """A limit of 1003 tokens, or of packs for validation, had no width that the next check or the encoder took.

    Members of 8·n tokens fill 1000 of 1003.
    """
    longer = with_limits(packed, tmp_path / "longer", 800, 1003)
    for train, val in ((longer, None), (packed, str(longer))):
        cfg = recipe()
        cfg.model.expert_model_parallel_size = 2
        bridge.apply_to_recipe(cfg, train, processor=str(demo[1]), num_workers=0, val_path=val)
        assert cfg.model.seq_length == 1000
        assert [next(loader)["input_ids"].shape[1] for loader in build(cfg)] == [1000, 1000]
    megatron.args.packed_val, megatron.args.decoder_seq_length = str(longer), 1000
    megatron.args.pipeline_model_parallel_size = 2
    megatron_lm.check(megatron.args, read_manifest(packed))
    manifest = longer / ".nv-meta" / "energon_pack.json"
    manifest.write_text(json.dumps({**read_manifest(longer), "pad_to_multiple_of": 1}))
    assert packed_data.longest_pack(read_manifest(packed), longer) == 1008  # its members are padded to 8 in training


def test_validation_data_may_be_what_energon_alone_reads(
    bridge: Any, megatron: Any, packed: Path, tmp_path: Path
) -> None:
    """A Metadataset with addresses of another store, for training with `packed=`, and for validation."""
    there = tmp_path / "there.yaml"
    parts = {name: {"path": "/nowhere/packs"} for name in ("train", "val")}
    there.write_text(yaml.safe_dump({"__class__": "MetadatasetV2", "splits": parts}))
    cfg = bridge.apply_to_recipe(recipe(), there, packed=str(packed), val_path=str(there))
    assert cfg.model.seq_length == 800
    megatron.args.packed_val = str(there)
    megatron_lm.check(megatron.args, read_manifest(packed))


def test_a_blend_is_as_long_as_its_longest_packs(packed: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Packs of `own_pack` are longer than `max_token_len`: each limit is the largest of all datasets.

    The limit of the longest packs alone made `max_token_len` 512, for which other packs have no room.
    """
    other, ordered = with_limits(packed, tmp_path / "other", 512, 2048), tmp_path / "ordered"
    blend = tmp_path / "blend.yaml"
    metadataset.main([str(blend), str(packed), str(other)])
    assert max_pack_len(read_manifest(packed)) == 800
    order.main([str(ordered), str(packed), str(other)])
    for several in (blend, ordered):
        assert read_manifest(several)["max_token_len"] == 800
        assert max_pack_len(read_manifest(several)) == 2048
    encoder = PackedTaskEncoder(blend, str(demo[1]), pad_to="max_token_len")
    loader = packed_data.train_loader(blend, encoder, WorkerConfig(rank=0, world_size=1, num_workers=0))
    assert {next(loader)["input_ids"].shape[1] for _ in range(8)} == {800}


def test_an_image_is_one_token_with_its_tiles() -> None:
    """9 is the feature token, two a tile: an image of two tiles, and one of one. 77 is what the model looks for."""
    batch = PackedBatch(
        tokens=torch.tensor([[5, 9, 9, 9, 9, 6, 7, 9, 9, 8]]),
        labels=torch.tensor([[-100, -100, -100, -100, -100, 6, -100, -100, -100, 8, -100]]),
        imgs=torch.zeros(3, 3, 2, 2),
        cu_lengths=torch.tensor([[0, 6, 10]], dtype=torch.int32),
    )
    made = one_token_per_image(PackedBatch(batch), 9, 77)
    assert made["tokens"].tolist() == [[5, 77, 6, 7, 77, 8]]
    assert made["labels"].tolist() == [[-100, -100, 6, -100, -100, 8, -100]]
    assert made["num_tiles"].tolist() == [2, 1]
    assert made["cu_lengths"].tolist() == [[0, 6, 10]]  # of the whole sequence, as the model makes it
    with pytest.raises(ValueError, match=r"images of \[4, 2\] tokens are not made of 4 equal tiles"):
        one_token_per_image(PackedBatch(batch, imgs=torch.zeros(4, 3, 2, 2)), 9, 77)
    with pytest.raises(ValueError, match=r"are no tiles .* \[16, 1176\]"):
        one_token_per_image(PackedBatch(batch, imgs=torch.zeros(16, 1176)), 9, 77)
    with pytest.raises(ValueError, match="5 is Megatron's <image>, and another token of the processor's"):
        one_token_per_image(PackedBatch(batch), 9, 5)


@pytest.mark.slow
@pytest.mark.parametrize("same", [False, True])
def test_llavas_own_code_finds_the_images_of_a_real_pack(
    real: Path, config: Callable[..., PackConfig], tmp_path: Path, same: bool
) -> None:
    """megatron-core's LLaVAModel puts the features of each tile in place of the token that examples/multimodal/model.py
    gave it (`image_token_index`), and comes to the lengths of the batch. With the processor's own token it finds no
    image: `split_sizes to sum exactly to 4, got [0]`.
    """
    llava = pytest.importorskip("megatron.core.models.multimodal.llava_model", reason="megatron-core is not installed")
    processor = str(real / "processors" / "internvl3_hf")
    run = config(str(real / "wds" / "image_demo"), source__limit=2, packing__max_token_len=8192)
    run.model = ModelConfig("internvl3", "internvl", processor=processor)
    pack(run)
    folder = Path(run.output.dir) / "packed"
    image_token = 151667 if same else 151674  # <IMG_CONTEXT>, or one after all the processor's
    assert llava.IMAGE_TOKEN == megatron_lm.IMAGE_TOKEN
    encoder = megatron_lm.OneTokenPerImage(folder, processor, layout="mlm", image_token=image_token)
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    batch = next(iter(packed_data.train_loader(folder, encoder, worker)))
    tokens, tiles, per_tile = batch["tokens"], batch["num_tiles"], 256
    labels = batch["labels"][:, 1 : tokens.shape[1] + 1]  # examples/multimodal/train.py, get_batch
    model = SimpleNamespace(
        add_decoder=True, pre_process=True, post_process=True, img_seq_len=per_tile, context_parallel_lm=1,
        _language_is_pipeline_parallel=False, _language_max_sequence_length=8192,
    )  # fmt: skip
    features, words = torch.ones(per_tile, int(tiles.sum()), 1), torch.zeros(*tokens.shape, 1)
    embedded, its_labels, mask = llava.LLaVAModel._preprocess_data(
        model, features, words, tokens, (labels != -100).float(), labels, False, None, image_token, tiles
    )
    assert len(embedded) == batch["cu_lengths"][0, -1] == its_labels.shape[1]
    assert embedded.sum() == per_tile * len(batch["imgs"]) > 0
    assert (its_labels[mask > 0] != -100).all()
    assert mask.sum() == (labels != -100).sum()


def test_images_without_tiles_end_the_training_of_llava(megatron: Any) -> None:
    megatron.args.packed_keep_feature_tokens = False
    train, _, _ = megatron_lm.train_valid_test_dataloaders_provider([100, 20, 0])
    with pytest.raises(FatalSampleError, match="not for LLaVAModel"):
        list(islice(train, 20))


def test_a_tiny_folder_is_a_model_for_its_processor(packed: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """A newcomer's first step needed a model of some gigabytes, or a script that knows one class."""
    assert recipes.main(["tiny", str(demo[1]), str(tmp_path / "tiny")]) == 0
    model = importlib.import_module("transformers").AutoModelForImageTextToText.from_pretrained(tmp_path / "tiny")
    packs = PackedDataset(packed, str(tmp_path / "tiny"))
    guard(model.train(), packs.encoder)
    batch = packs.collator(model)([packs[0]])
    assert model(**batch).loss.isfinite()
    assert sum(parameter.numel() for parameter in model.parameters()) < 3_000_000


@pytest.mark.slow
def test_a_tiny_folder_keeps_the_ids_of_media_that_its_config_states(real: Path, tmp_path: Path) -> None:
    """Gemma 3's processor calls the mark before an image `image_token`: the model found one token for 256 features."""
    need_torchvision()
    transformers = importlib.import_module("transformers")
    vision = {"image_size": 896, "patch_size": 14}
    given = {"image_token_index": 262144, "mm_tokens_per_image": 256, "eos_token_id": [1, 106]}
    config = transformers.Gemma3Config(vision_config=vision, **given)
    processor = shutil.copytree(real / "processors" / "gemma3", tmp_path / "processor")
    (processor / "config.json").unlink()
    config.save_pretrained(processor)
    assert recipes.main(["tiny", str(processor), str(tmp_path / "tiny")]) == 0
    assert json.loads((tmp_path / "tiny" / "config.json").read_text())["image_token_index"] == 262144


def test_a_tiny_folder_of_a_config_in_bfloat16_is_in_float32(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """A CPU without bfloat16 took minutes for the backward of one pack with the 151,665 ids of a real vocabulary."""
    processor = shutil.copytree(demo[1], tmp_path / "processor")
    (processor / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl", "dtype": "bfloat16"}))
    assert recipes.main(["tiny", str(processor), str(tmp_path / "tiny")]) == 0
    assert "bfloat16" not in (tmp_path / "tiny" / "config.json").read_text()
    model = importlib.import_module("transformers").AutoModelForImageTextToText.from_pretrained(tmp_path / "tiny")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_tiny_folder_is_made_of_a_processor_that_hears_and_of_nothing_else(tmp_path: Path) -> None:
    """ "No class trains a qwen2_5_omni": sounds had no first step; a folder of data ended with a traceback."""
    processors.qwen2_5_omni(tmp_path / "processor")
    assert recipes.main(["tiny", str(tmp_path / "processor"), str(tmp_path / "tiny")]) == 0
    config = json.loads((tmp_path / "tiny" / "config.json").read_text())
    assert config["architectures"] == ["Qwen2_5OmniThinkerForConditionalGeneration"]
    assert config["audio_config"]["num_mel_bins"] == 8
    (tmp_path / "data").mkdir()
    with pytest.raises(SystemExit, match="transformers loads no processor from it"):
        recipes.main(["tiny", str(tmp_path / "data"), str(tmp_path / "none")])
