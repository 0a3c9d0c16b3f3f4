"""`python -m energon_pack.simulate`: what ranks wait for, from the plan alone, as Energon's own loader reads."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from energon_pack.config.schema import SplitsConfig
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.simulate import main, simulate
from energon_pack.steps.cost import cost_model
from energon_pack.steps.topology import Topology, stream
from support.packed import demo_config, packed
from support.running import command_here


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, demo: tuple[Path, Path], cache: Path) -> Path:
    """The demo in some 110 packs, for two ranks, a tenth of it for validation."""
    out = tmp_path_factory.mktemp("simulate")
    settings: dict[str, Any] = {"packing__max_token_len": 512, "packing__topology": Topology(2), "max_skipped": 0.5}
    return packed(demo_config(demo, cache, out, output__splits=SplitsConfig(val=0.2), **settings))


def costs(dataset: Path) -> dict[str, float]:
    """FLOPs of each pack, added up row by row."""
    model = cost_model(None)
    found: dict[str, float] = {}
    for row in pq.read_table(dataset / "pack_plan.parquet").to_pylist():
        num_images = sum(part["kind"] == "image" for part in row["parts"])
        lm = model.lm(np.array([row["token_len"]]))[0]
        vision = model.vision(np.array([row["num_visual_tokens"]]), np.array([num_images]))[0]
        found[row["pack"]] = found.get(row["pack"], 0.0) + lm + vision
    return found


def test_the_replay_by_hand(dataset: Path) -> None:
    """Three ranks without workers read three stretches side by side."""
    num = json.loads((dataset / ".nv-meta" / "energon_pack.json").read_text())["splits"]["train"]["packs"]
    of_packs = [*costs(dataset).values()][:num]
    ends = np.cumsum([num // 3 + (rank in {0: (), 1: (0,), 2: (0, 1)}[num % 3]) for rank in range(3)])
    stretches = [of_packs[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    steps = [*zip(*stretches, strict=False)]
    expected = sum(map(max, steps)) / (sum(map(sum, steps)) / 3)
    found = simulate(dataset, [Topology(3)], "energon")
    assert found.worlds[0].in_order["both"]["epoch"] == round(expected, 4)
    assert (found.packs, found.worlds[0].in_order["steps"]) == (num, num // 3)


def test_the_plans_order_is_that_of_the_report(dataset: Path) -> None:
    """report.json and the simulator must say the same of the ranks that a dataset was laid out for."""
    report = json.loads((dataset / "report.json").read_text())["steps"]
    world = simulate(dataset, [Topology(2)]).worlds[0]
    assert {"in_order": world.in_order, "by_chance": world.by_chance} == {
        name: report[name] for name in ("in_order", "by_chance")
    }


def test_fewer_packs_than_a_step_are_not_called_even(
    demo: tuple[Path, Path], cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error in `data_parallel` was told as steps of 1.000."""
    run = demo_config(demo, cache, tmp_path, source__limit=20, packing__topology=Topology(100_000), dry_run=True)
    pack(run)
    printed = " ".join(capsys.readouterr().out.split())
    assert "steps: none is whole, for" in printed
    assert "1.000" not in printed


def test_workers_change_nothing_of_the_plans_order(dataset: Path) -> None:
    """PackedTaskEncoder reads the same steps with any of them, and Energon itself does not."""
    worlds = [Topology(3, workers) for workers in (1, 4)]
    plan, energon = ([w.in_order for w in simulate(dataset, worlds, loader).worlds] for loader in ("plan", "energon"))
    assert plan[0] == plan[1]
    assert energon[0] != energon[1]


def test_a_dataset_of_before_and_other_splits(dataset: Path, tmp_path: Path) -> None:
    """One that says neither topology nor costs is read as it lies, with weights by default."""
    manifest = json.loads((dataset / ".nv-meta" / "energon_pack.json").read_text())
    assert simulate(dataset, [Topology(2)], split="val").packs == manifest["splits"]["val"]["packs"]
    with pytest.raises(PackError, match="--split test: no pack is in it; there are: train, val"):
        simulate(dataset, [Topology(2)], split="test")
    old = tmp_path / "old"
    (old / ".nv-meta").mkdir(parents=True)
    kept = {name: value for name, value in manifest.items() if name not in ("topology", "cost", "splits")}
    (old / ".nv-meta" / "energon_pack.json").write_text(json.dumps(kept))
    (old / "pack_plan.parquet").write_bytes((dataset / "pack_plan.parquet").read_bytes())
    found = simulate(old, [Topology(2)])
    assert (found.packs, found.cost) == (manifest["num_packs"], cost_model(None))


def test_a_table_a_world(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(dataset), "--data-parallel", "2,512", "--micro-batches", "1,2"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("by chance") == 4
    assert "costs: FLOPs; no config.json: 28 layers × 3584" in printed


def test_without_arguments_ranks_are_those_of_the_layout(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures of eight ranks would say that a layout for two is uneven."""
    assert main([str(dataset)]) == 0
    printed = capsys.readouterr().out
    assert "laid out for 2 ranks × 1 worker, 1 pack each in a step" in printed
    assert main([str(dataset), "--json"]) == 0
    world = json.loads(capsys.readouterr().out)["worlds"][0]
    assert (world["data_parallel"], world["workers"], world["micro_batches"]) == (2, 1, 1)


def test_what_cannot_be_simulated_is_said_in_one_line(dataset: Path, tmp_path: Path) -> None:
    """A Metadataset is drawn from by chance, and a table of it would promise an order that no loader has."""
    (tmp_path / "blend.yaml").write_text("__module__: megatron.energon\n")
    for arguments, said in {
        (str(tmp_path / "blend.yaml"),): "draws from a Metadataset's datasets by chance; simulate each by its folder",
        (str(tmp_path),): "is no dataset that energon_pack packed",
        (str(dataset), "--model", str(tmp_path)): f"--model {tmp_path}: there is no config.json in it",
    }.items():
        result = command_here("energon_pack.simulate", *arguments, cwd=tmp_path)
        assert (result.returncode, result.stdout) == (1, "")
        assert said in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(
    ("ranks", "workers"),
    [
        (2, 2),
        pytest.param(3, 2, marks=pytest.mark.slow),
        pytest.param(4, 1, marks=pytest.mark.slow),
        pytest.param(5, 3, marks=pytest.mark.slow),
    ],
)
def test_energons_own_loader_reads_as_it_is_simulated(dataset: Path, ranks: int, workers: int) -> None:
    """Of each rank the real loader, with its worker processes; whole rows of one pack a worker are steps."""
    keys = list(dict.fromkeys(pq.read_table(dataset / "pack_plan.parquet")["pack"].to_pylist()))
    found = simulate(dataset, [Topology(ranks, workers)], "energon")
    in_order = np.array(keys)[stream(found.packs, Topology(ranks, workers))]
    num_steps = found.packs // (ranks * workers) * workers
    read = [read_by(dataset, rank, ranks, workers) for rank in range(ranks)]
    assert [*zip(*(mine[:num_steps] for mine in read), strict=True)] == [
        tuple(step) for step in in_order[: num_steps * ranks].reshape(-1, ranks).tolist()
    ]
    assert sorted(key for mine in read for key in mine[num_steps:]) == sorted(in_order[num_steps * ranks :].tolist())


def read_by(dataset: Path, rank: int, ranks: int, workers: int) -> list[str]:
    """Keys of the packs of one epoch of a rank."""
    from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset

    packs = get_train_dataset(
        dataset,
        worker_config=WorkerConfig(rank=rank, world_size=ranks, num_workers=workers),
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        shuffle_over_epochs_multiplier=None,
        parallel_shard_iters=1,
        repeat=False,
        task_encoder=DefaultTaskEncoder(),
    )
    return [str(pack.__key__) for pack in get_savable_loader(packs)]
