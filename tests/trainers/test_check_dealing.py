"""How a trainer deals rows and epochs, and which of its settings break packs: seen without a step."""

from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader

from energon_pack import PackError
from energon_pack.trainers.check_dealing import (
    check_dealt_rows,
    check_packs_dealt_to_ranks,
    find_setting_for_row_order,
    find_setting_that_breaks_packs,
)
from energon_pack.trainers.dealer import ranks_to_deal_to


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"packing": True}, "packing=True: the trainer would pack packs again: packing=False"),
        ({"padding_free": True}, "padding_free=False"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor=0"),
        ({"neat_packing": True}, "neat_packing=False"),
        ({"use_asft_loss": True}, "no positions"),
        ({"sequence_parallel_size": 2}, "cut over ranks, and see each other: sequence_parallel_size=1"),
        ({"packing": False, "label_smoothing_factor": 0.0, "sequence_parallel_size": 1}, ""),
    ],
)
def test_settings_that_break_packs_are_named(settings: dict[str, Any], said: str) -> None:
    found = find_setting_that_breaks_packs(of(**settings))
    assert said in found
    assert bool(said) is bool(found)


def of(ranks: int = 1, parallelism: Any = None, finetuning: Any = None, **settings: Any) -> Any:
    """A trainer with settings."""
    accelerator = SimpleNamespace(num_processes=ranks, parallelism_config=parallelism)
    return SimpleNamespace(args=SimpleNamespace(**settings), accelerator=accelerator, finetuning_args=finetuning)


def test_settings_elsewhere_than_in_the_arguments_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU Accelerate knows of other ranks with use_cpu alone, and each would take all packs."""
    assert find_setting_that_breaks_packs(of(2, SimpleNamespace(cp_size=2, sp_size=1))).startswith("cp_size=2")
    assert find_setting_that_breaks_packs(of(2, average_tokens_across_devices=False)).endswith(
        "average_tokens_across_devices=True"
    )
    assert find_setting_that_breaks_packs(of(1, average_tokens_across_devices=False)) == ""
    assert find_setting_that_breaks_packs(of(finetuning=SimpleNamespace(use_dft_loss=True))).endswith(
        "use_dft_loss=False"
    )
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "Accelerate knows of 1: on a CPU use_cpu=True" in find_setting_that_breaks_packs(of(1))
    assert find_setting_that_breaks_packs(of(2)) == ""


@pytest.mark.parametrize(
    ("started", "given", "warns"),
    [
        ({"SLURM_STEP_NUM_TASKS": "8"}, (), True),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, (), True),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"}, (), False),  # a batch script, which starts torchrun
        ({"SLURM_STEP_NUM_TASKS": "8", "RANK": "3", "WORLD_SIZE": "8"}, (), False),
        ({"SLURM_STEP_NUM_TASKS": "8"}, (3, 8), False),
        ({"SLURM_STEP_NUM_TASKS": ""}, (), False),
    ],
)
def test_tasks_that_know_nothing_of_each_other_are_told_of(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    started: dict[str, str],
    given: tuple[int, ...],
    warns: bool,
) -> None:
    """A sampler that is made before torch.distributed begins takes all packs for its own, on each rank."""
    for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    assert ranks_to_deal_to(*given) == (given or (int(started.get("RANK", 0)), int(started.get("WORLD_SIZE", 1))))
    assert ("all packs are for this process, rank 0 of 1, and " in caplog.text) == warns


def deal(num: int, ranks: int, size: int = 1) -> list[list[list[int]]]:
    batches = [[*range(start, start + size)] for start in range(0, num, size)]
    return [batches[rank::ranks] for rank in range(ranks)]


@pytest.mark.parametrize(("num", "ranks", "size"), [(8, 1, 1), (8, 2, 1), (12, 2, 3), (9, 2, 1)])
def test_rows_that_are_dealt_once_are_said_to_be(num: int, ranks: int, size: int) -> None:
    assert check_dealt_rows(deal(num, ranks, size), num, "").endswith("in the order of as_dataset, so steps are even")


def test_rows_that_are_dealt_twice_or_never_are_refused() -> None:
    """As a sampler that knows ranks inside a loader that deals its share once more; or none that deals."""
    with pytest.raises(PackError, match="6 of 8 packs reach no rank"):
        check_dealt_rows([[[0]], [[2]]], 8, "")
    with pytest.raises(PackError, match="8 of 8 packs are dealt twice"):
        check_dealt_rows([deal(8, 1)[0], deal(8, 1)[0]], 8, "")


class Epochs(list[Any]):
    """Rows of a dataset whose epochs differ, as a LazyPackedDataset by itself."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Telling(DataLoader[Any]):
    """A loader that tells its dataset the epoch, as Accelerate's."""

    def set_epoch(self, epoch: int) -> None:
        self.dataset.set_epoch(epoch)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("loader", "num"), [(DataLoader, 1), (Telling, 0)])
def test_epochs_that_never_arrive_are_noticed(loader: Any, num: int) -> None:
    """Every epoch would have the packs of the first; looking leaves the epoch as it was."""
    data = Epochs([0, 1])
    trainer = SimpleNamespace(train_dataset=data, args=SimpleNamespace(), accelerator=SimpleNamespace(num_processes=1))
    line = check_packs_dealt_to_ranks(trainer, loader(data))
    assert line.count("set_epoch never arrives") == num
    assert data.epoch == 0
    data.set_epoch(3)
    assert data.epoch == 3


def test_epochs_of_the_trainer_over_rows_of_one_are_noticed() -> None:
    class Columns(list[Any]):
        column_names = ("pack", "epoch")

    data = Columns(range(4))
    args = SimpleNamespace(num_train_epochs=3.0, max_steps=-1)
    trainer = SimpleNamespace(train_dataset=data, args=args, accelerator=SimpleNamespace(num_processes=1))
    assert "as_dataset(epochs=3) and num_train_epochs=1" in check_packs_dealt_to_ranks(trainer, DataLoader(data))  # type: ignore[arg-type]
    args.max_steps = 5
    assert "epochs" not in check_packs_dealt_to_ranks(trainer, DataLoader(data))  # type: ignore[arg-type]


def test_a_loader_that_reads_the_share_of_one_rank_is_refused() -> None:
    """As ms-swift's of a stream; with one rank there is no other share."""
    dispatcher = type("DataLoaderDispatcher", (), {"__module__": "swift.dataloader.dispatcher"})
    trainer = SimpleNamespace(
        train_dataset=iter(()), args=SimpleNamespace(), accelerator=SimpleNamespace(num_processes=2)
    )
    with pytest.raises(PackError, match=r"its own share alone.*LazyPackedDataset or packs on disk"):
        check_packs_dealt_to_ranks(trainer, dispatcher())
    trainer.accelerator.num_processes = 1
    assert check_packs_dealt_to_ranks(trainer, dispatcher()) == "a stream for 1 rank"
    with pytest.raises(PackError, match="dispatch_batches"):
        check_packs_dealt_to_ranks(trainer, type("DataLoaderDispatcher", (), {})())


def test_the_setting_that_keeps_the_order_is_the_trainer_s_own() -> None:
    """TRL, LLaMA-Factory and axolotl are subclasses of transformers' Trainer, and shuffle by settings of their own."""
    theirs = type("Trainer", (), {"__module__": "transformers.trainer"})
    swift = type("Seq2SeqTrainer", (theirs,), {"__module__": "swift.trainers.seq2seq_trainer"})
    assert find_setting_for_row_order(theirs()) == 'train_sampling_strategy="sequential"'
    assert find_setting_for_row_order(swift()) == "train_dataloader_shuffle=False"
