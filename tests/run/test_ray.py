"""Tasks of a Ray cluster: four nodes on this machine keep what an executor promises."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from energon_pack.config import ExecutorConfig, ExecutorKind, PackConfig
from energon_pack.errors import PackError, SamplesLost
from energon_pack.pack import pack
from energon_pack.run.executors import JobFolder, admission
from energon_pack.run.packages import package_versions
from energon_pack.run.workshop import executor_of
from support.jobs import (
    about,
    die,
    die_once,
    die_where_first,
    double,
    fail_beside,
    hold,
    large,
    listed,
    refuse,
    where,
)  # fmt: skip
from support.packed import files
from support.ray_cluster import Nodes, nodes
from support.running import ROOT, command

ray = pytest.importorskip("ray", reason="Ray is not installed")
RayExecutor = pytest.importorskip("energon_pack.run.executors.ray").RayExecutor


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes() as made:
        yield made


@pytest.fixture
def settings(cluster: Nodes) -> ExecutorConfig:
    return ExecutorConfig(kind=ExecutorKind.ray, address=cluster.address, give_up_after=120.0)


def wait_for(is_so: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
def test_a_cluster_packs_the_same_bytes(
    config: Callable[..., PackConfig], settings: ExecutorConfig, tmp_path: Path
) -> None:
    shared = {"packing__max_token_len": 512, "output__max_shard_packs": 8, "measure__verify": 0.01}
    local = config(**shared, cache_dir=str(tmp_path / "cache"))
    pack(local)
    other = tmp_path / "other"
    remote = config(**shared, cache_dir=str(other / "cache"), output__dir=str(other / "out"), executor=settings)
    pack(remote)
    assert files(other / "out" / "packed") == files(Path(local.output.dir) / "packed")
    assert listed(other / "cache") == ["index", "lengths", "templates"]


@pytest.mark.slow
def test_results_come_in_order_from_all_nodes(settings: ExecutorConfig) -> None:
    with executor_of(settings) as executor:
        assert list(executor.map(double, range(50))) == [2 * number for number in range(50)]
        found = list(executor.map(where, [0.2] * 40))
    assert len({node for _, node in found}) > 2


@pytest.mark.slow
def test_a_worker_measures_without_torch_and_with_one_thread(settings: ExecutorConfig) -> None:
    with executor_of(settings) as executor:
        assert set(executor.map(about, range(4))) == {(False, "1", "false")}


@pytest.mark.slow
def test_jobs_are_taken_as_nodes_become_free(settings: ExecutorConfig) -> None:
    """Else all jobs of a large set, or all results, would be in memory."""
    numbers = itertools.count()
    with executor_of(settings) as executor:
        results = executor.map(double, numbers)
        assert [next(results) for _ in range(3)] == [0, 2, 4]
    assert next(numbers) < 4 * 2 + 4


@pytest.mark.slow
def test_an_error_comes_with_its_type_in_its_turn(settings: ExecutorConfig) -> None:
    with executor_of(settings) as executor:
        results = executor.map(refuse, range(8))
        assert next(results) == 0
        with pytest.raises(SamplesLost, match=r"^number 1$") as caught:
            next(results)
    assert caught.value.page == "page"
    assert "in refuse" in str(caught.value.__cause__)  # where it was raised


@pytest.mark.slow
def test_the_job_of_a_lost_worker_is_done_again(settings: ExecutorConfig, tmp_path: Path) -> None:
    """Each job has a retry of its own."""
    paths, settings.task = [tmp_path / str(number) for number in range(6)], {"max_retries": 1}
    with executor_of(settings) as executor:
        assert list(executor.map(die_once, paths)) == [path.name for path in paths]


@pytest.mark.slow
def test_a_job_that_one_node_has_no_room_for_is_done_on_another(settings: ExecutorConfig, tmp_path: Path) -> None:
    """One node short of memory ended the run: its jobs came back to it until there were no tries left."""
    paths = [tmp_path / str(number) for number in range(4)]
    with executor_of(settings) as executor:
        assert list(executor.map(die_where_first, paths)) == [path.name for path in paths]


@pytest.mark.slow
def test_a_ray_that_the_run_starts_is_this_machines_and_this_runs_alone(tmp_path: Path) -> None:
    """It listened on all interfaces, so anyone who reached the host could run code as the user."""
    script = """
import json, os, psutil
from energon_pack.config import ExecutorConfig, ExecutorKind
from energon_pack.run.executors.ray import connected_to_ray
with connected_to_ray(ExecutorConfig(kind=ExecutorKind.ray, num_workers=1)):
    import ray
    from ray._raylet import get_authentication_mode
    ray.get(ray.remote(lambda: 1).remote())
    mine = [psutil.Process(), *psutil.Process().children(recursive=True)]
    open_to = {c.laddr.ip for p in mine for c in p.net_connections("inet") if c.status == "LISTEN"}
    mode = str(get_authentication_mode())
print(json.dumps([sorted(open_to), mode, [name for name in os.environ if name.startswith("RAY_AUTH")]]))
"""
    result = command("-c", script, cwd=tmp_path, HOME=str(tmp_path))
    assert result.returncode == 0, result.stderr
    open_to, mode, left = json.loads(result.stdout)
    assert open_to
    assert {address.removeprefix("::ffff:") for address in open_to} == {"127.0.0.1"}
    assert mode == "1"  # by a token
    assert left == []
    assert not (tmp_path / ".ray").exists()  # no token is left


@pytest.mark.slow
def test_a_job_that_kills_every_worker_is_an_error_that_names_the_knobs(settings: ExecutorConfig) -> None:
    settings.task = {"max_retries": 1}
    with (
        executor_of(settings) as executor,
        pytest.raises(PackError, match=r"lost more than executor.task.max_retries=1 times, .*task\.memory or"),
    ):
        list(executor.map(die, range(2)))


@pytest.mark.slow
def test_a_worker_that_never_returns_is_an_error(settings: ExecutorConfig, tmp_path: Path) -> None:
    """Without it, a deadlock in a decoder would let a run wait for ever."""
    settings.give_up_after = 4.0
    with executor_of(settings) as executor, pytest.raises(PackError, match="for 4 s no job of this run has ended"):
        list(executor.map(hold, [tmp_path / "one", tmp_path / "two"]))


@pytest.mark.slow
def test_a_task_for_which_there_is_no_room_is_not_waited_for(settings: ExecutorConfig) -> None:
    settings.task, settings.give_up_after = {"num_cpus": 64.0}, 2.0
    with (
        executor_of(settings) as executor,
        pytest.raises(PackError, match=r"of the 4 CPUs .* free, and a task takes executor\.task\.num_cpus=64\."),
    ):
        list(executor.map(double, range(2)))


@pytest.mark.slow
def test_large_results_do_not_pile_up_in_the_store(settings: ExecutorConfig) -> None:
    with executor_of(settings) as executor:
        results = [result for result in executor.map(large, range(12)) if result[0] % 3 == 0]  # some are kept
        assert len(results) == 4
        room = ray.cluster_resources()["object_store_memory"]
        wait_for(lambda: room - ray.available_resources()["object_store_memory"] < 20e6)


@pytest.mark.slow
def test_an_error_ends_the_jobs_at_work(settings: ExecutorConfig, tmp_path: Path) -> None:
    """Without it nodes would go on with a failed run, and write beside the next one."""
    paths = [tmp_path / "fail", tmp_path / "began"]
    with pytest.raises(ValueError, match="mistake"), executor_of(settings) as executor:
        list(executor.map(fail_beside, paths))
    wait_for(lambda: not psutil.pid_exists(int(paths[1].read_text())))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_exits_with_130_and_ends_its_own_ray(
    demo: tuple[Path, Path], tmp_path: Path, number: signal.Signals
) -> None:
    """Ray's own handler would exit with other codes; its processes would go on."""
    arguments = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", f"source.path={demo[0]}", "executor=ray"]
    arguments += [f"output.dir={tmp_path / 'out'}", "executor.num_workers=1", "media.image=support.jobs:SlowImage"]
    process = subprocess.Popen(
        [sys.executable, "-m", "energon_pack", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
        text=True,
    )
    wait_for(lambda: any(tmp_path.glob("out/.cache/index/*/*.parquet")), 120)
    children = psutil.Process(process.pid).children(recursive=True)
    assert "raylet" in {child.name() for child in children}
    process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "interrupted" in said
    assert "Traceback" not in said
    assert psutil.wait_procs(children, timeout=60)[1] == []


@pytest.mark.parametrize(("end", "is_said"), [("os._exit(1)", True), ("sys.exit(1)", False), ("1 / 0", False)])
def test_a_process_that_ray_ends_has_a_last_word(tmp_path: Path, end: str, is_said: bool) -> None:
    """Ray's C++ code exits without one where the node of the process is lost: a log would just stop."""
    head = "import os, sys\nfrom energon_pack.run.executors.ray import print_if_killed"
    result = command("-c", f"{head}\nwith print_if_killed('ended by Ray'):\n {end}", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.count("ended by Ray\n") == is_said


@pytest.mark.slow
def test_another_version_on_a_node_is_refused(settings: ExecutorConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lengths might be others."""
    here = {**package_versions(), "tokenizers": "0.1"}
    monkeypatch.setattr(admission, "package_versions", lambda: here)
    with (
        executor_of(settings) as executor,
        pytest.raises(PackError, match=r"the Ray node .* has tokenizers .* instead of 0\.1: install the same"),
    ):
        list(executor.map(double, range(2)))


@pytest.mark.slow
def test_a_folder_that_a_node_does_not_see_is_named(settings: ExecutorConfig, tmp_path: Path) -> None:
    """It was a FileNotFoundError deep in a worker."""
    with executor_of(settings) as executor:
        executor.share([JobFolder("cache_dir", tmp_path, True)])
        for mark in tmp_path.iterdir():
            mark.unlink()
        with pytest.raises(PackError, match=f"does not see {tmp_path} as it is .* cache_dir has to name"):
            list(executor.map(double, range(2)))


def test_no_ray_there_and_none_installed_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "energon_pack.run.executors.ray", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PackError, match=r"pip install 'energon-pack\[ray\]'"):
        executor_of(ExecutorConfig(kind=ExecutorKind.ray))
