"""Fixtures that the tests share: the demo's processor and template, a config, the real data where they are."""

import gc
import importlib
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from energon_pack.config import PackConfig
from energon_pack.run.stores import client_of_profile
from energon_pack.run.stores.blocks import BlockCache
from energon_pack.sources import store_objects
from energon_pack.sources.demo import make_demo_source_and_processor
from energon_pack.templates.processor import load_saved_template, prepare_template
from energon_pack.templates.template import Template
from support.labels.folders import download_trl
from support.models import of_model
from support.packed import copy_templates, demo_config
from support.pages import blocks, commands
from support.running import REAL, command, need_torchvision
from support.stores import WHO, Bucket, Proxy, Seen, store_server

if TYPE_CHECKING:
    from energon_pack.trainers.on_disk import PackedDataset

# Shared machines pause at any time: how long an example takes is no failure.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


#: bytes of memory by which a test may grow before garbage is looked for
_LARGE_BYTES = 50_000_000
#: objects that are not frozen, above which looking for garbage among them takes tens of milliseconds
_MANY_OBJECTS = 30_000
#: bytes of memory by which tests may grow before garbage is looked for in what is frozen, too
_LARGE_GROWTH_BYTES = 300_000_000
_memory_when_frozen = [0]  # bytes
#: CPU seconds that an ordinary test may take, with its child processes; a longer one says why by `@pytest.mark.long`.
MOST_CPU_SECONDS = 3.0


def _cpu_seconds() -> float:
    """CPU seconds of this process, and of all children that it has waited for."""
    return sum(os.times()[:4])


@pytest.fixture(scope="session", autouse=True)
def _imports_are_no_tests_time() -> None:
    """Where CPU time is asked for: else whichever test comes first would pay for them."""
    if os.environ.get("TEST_CPU"):
        for name in ("torch", "transformers", "megatron.energon", "energon_pack.loading.task_encoder"):
            importlib.import_module(name)


@pytest.fixture(autouse=True)
def _takes_little_cpu_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """With TEST_CPU=FILE, each test's CPU seconds are a line of the file, and one that takes too many fails.

    Fixtures of a module or session are set up before this one, so no test pays for what it shares.
    To be judged on a machine that does nothing else: beside others, the same work takes twice the CPU seconds.
    """
    file, before = os.environ.get("TEST_CPU"), _cpu_seconds()
    yield
    if not file:
        return
    seconds = _cpu_seconds() - before
    with open(file, "a") as lines:
        lines.write(json.dumps({"test": request.node.nodeid, "cpu_s": round(seconds, 3)}) + "\n")
    if seconds > MOST_CPU_SECONDS and not any(map(request.node.get_closest_marker, ("long", "slow"))):
        pytest.fail(f"{seconds:.1f} CPU s, more than {MOST_CPU_SECONDS:g}: mark it long(WHY), or slow")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of pytest-xdist have in common; runs of many machines share caches like this, too."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session", autouse=True)
def _no_cache_of_the_user(shared_folder: Path) -> Iterator[None]:
    """Proofs about classes of models are kept in a folder for the tests only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared_folder / "xdg"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_disk_is_waited_for() -> Iterator[None]:
    """A run has the disk write each of its twenty files at once, for a machine that loses its power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr("energon_pack.dataset.in_folder.sync_file_system", lambda _: None)
        yield


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The built-in demo: its folder of tars, and the folder of its processor."""
    source, processor = make_demo_source_and_processor(tmp_path_factory.mktemp("demo"))
    return Path(source), Path(processor)


@pytest.fixture(scope="session")
def cache(shared_folder: Path) -> Path:
    """A cache that all tests share, so that each template is built once."""
    return shared_folder / "cache"


@pytest.fixture(scope="session")
def template(demo: tuple[Path, Path], cache: Path) -> Template:
    """The demo's template."""
    return load_saved_template(prepare_template(of_model("qwen_vl", demo[1]), cache))


@pytest.fixture
def own_cache(template: Template, cache: Path, tmp_path: Path) -> Path:
    """A cache of its own for lengths, where the demo's template is."""
    folder = tmp_path / "own_cache"
    copy_templates(cache, folder)
    return folder


@pytest.fixture(scope="module")
def demo_folder(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the packed demo, whose packs have texts, images and videos."""
    from support.alone import pack_demo  # imports torch

    need_torchvision()
    return pack_demo(demo, cache, tmp_path_factory.mktemp("demo_packs"))


@pytest.fixture(scope="module")
def demo_packs(demo_folder: Path, demo: tuple[Path, Path]) -> "PackedDataset":
    from energon_pack.trainers.on_disk import PackedDataset  # imports torch

    return PackedDataset(demo_folder, str(demo[1]))


@pytest.fixture(scope="session")
def typed_demo(shared_folder: Path) -> Path:
    """The folder where README's command packed the demo, in a process of its own; what it printed is out.txt.

    The first process of tests that asks for it makes it for all.
    """
    folder = shared_folder / "docs"
    with FileLock(f"{folder}.lock"):
        if not (folder / "out.txt").exists():
            folder.mkdir(exist_ok=True)
            (line,) = (
                line for text in blocks("sh", "README.md") for line in commands(text) if "-m energon_pack" in line
            )
            result = command(*line.split()[1:], cwd=folder)
            assert (result.returncode, result.stderr) == (0, "")
            (folder / "out.txt").write_text(result.stdout)
    return folder


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A server of the S3 protocol that clients of this process and of its children find by their environment."""
    with pytest.MonkeyPatch.context() as patch, store_server() as proxy:
        for name, value in {**WHO, "AWS_ENDPOINT_URL": proxy.url, "AWS_EC2_METADATA_DISABLED": "true"}.items():
            patch.setenv(name, value)
        patch.setenv("MSC_CONFIG", str(tmp_path_factory.mktemp("msc") / "none.yaml"))
        yield proxy


@pytest.fixture
def bucket(s3: Proxy, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket, and a folder of temporary files in which nothing of an object is kept."""
    with tempfile.TemporaryDirectory() as folder:  # in a longer path, workers of a loader could have no socket
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setattr(store_objects, "BLOCKS", BlockCache())
        client_of_profile.cache_clear()
        s3.fault, s3.pause = lambda request: None, 0.05
        s3.seen = Seen()
        yield Bucket(f"b{zlib.crc32(request.node.nodeid.encode()):08x}", s3)
    # Each process forked later would renew the clients of all buckets that were: a fifth of a second for each.
    if clients := sys.modules.get("multistorageclient.shortcuts"):
        vars(clients)["_STORAGE_CLIENT_CACHE"].clear()


@pytest.fixture(scope="session")
def real() -> Path:
    """The folder of real processors and samples; the test is skipped where it is not."""
    if not REAL.is_dir():
        pytest.skip("../shared/real is not here")
    return REAL


def pytest_unconfigure() -> None:
    """Unfreeze the objects frozen below: DuckDB reports objects that were never freed as leaks."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _what_lasts_is_no_garbage() -> None:
    """Energon looks for garbage with each loader it makes, so with each pack: a second, in all that tests keep.

    What is frozen is looked at again where memory has grown: a module's fixtures may be garbage by then.
    """
    if energon := sys.modules.get("megatron.energon.wrappers.gc_dataset"):  # after a loop it would unfreeze everything
        vars(energon)["gc"] = SimpleNamespace(collect=gc.collect, freeze=int, unfreeze=int, get_objects=gc.get_objects)
    if len(gc.get_objects()) < _MANY_OBJECTS:
        return
    if (memory := psutil.Process().memory_info().rss) > _memory_when_frozen[-1] + _LARGE_GROWTH_BYTES:
        _memory_when_frozen.append(memory)
        gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _large_garbage_is_collected() -> Iterator[None]:
    """An error refers to its frames, and they to it: tokenizers of refused models came to 4 GB, which forks copy."""
    before = psutil.Process().memory_info().rss
    yield
    if psutil.Process().memory_info().rss > before + _LARGE_BYTES:
        gc.collect()


@pytest.fixture(autouse=True)
def _no_watchdog_is_left() -> Iterator[None]:
    """Energon's loaders never end the thread that watches them: a thousand of them wake each second."""
    yield
    for thread in threading.enumerate():
        watchdog = getattr(getattr(thread, "_target", None), "__self__", None)
        if watchdog is not None and type(watchdog).__module__ == "megatron.energon.watchdog":
            watchdog.finish()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny models on busy cores: threads would wait for each other."""
    import torch

    need_torchvision()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _no_worker_is_left() -> Iterator[None]:
    """A loader that is not read to its end waits 5 seconds for each of its workers when it is collected.

    torch watches its workers, and raises in whatever runs next for one that is killed: a worker that has only just
    begun dies of SIGTERM. So it is told first that they are watched no longer.
    """
    yield
    if not (processes := multiprocessing.active_children()):
        return
    if signals := sys.modules.get("torch.utils.data._utils.signal_handling"):
        for iterator in gc.get_objects():
            # torchdata has a class of its own
            if type(iterator).__name__.endswith("MultiProcessingDataLoaderIter") and iterator._worker_pids_set:
                signals._remove_worker_pids(id(iterator))
                iterator._worker_pids_set = False
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(5)


@pytest.fixture
def config(demo: tuple[Path, Path], cache: Path, tmp_path: Path) -> Callable[..., PackConfig]:
    """Makes a config for one run: the demo's processor, one worker, into tmp_path/out/packed."""

    return partial(demo_config, demo, cache, tmp_path / "out")


@pytest.fixture(scope="session")
def trl_templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of chat templates in TRL's wheel; the test is skipped where it can't be downloaded."""
    try:
        return download_trl(tmp_path_factory.mktemp("trl"))
    except OSError as error:
        pytest.skip(str(error))
