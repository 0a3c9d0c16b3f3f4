"""What the tests share: the demo's processor, small tars, and the real data where they are."""

import io
import json
import multiprocessing
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from PIL import Image

from energon_pack.config import ModelConfig, OutputConfig, PackConfig, SourceConfig
from energon_pack.demo import make_demo
from energon_pack.templates import ModelSettings, Template, load_saved, prepare_template
from energon_pack.templates.torchvision_shim import prepare_torchvision

# Shared machines pause at any time: how long an example takes is no failure.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

ROOT = Path(__file__).resolve().parents[1]
REAL = ROOT.parent / "shared" / "real"


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The built-in demo: its folder of tars, and the folder of its processor."""
    source, processor = make_demo(tmp_path_factory.mktemp("demo"))
    return Path(source), Path(processor)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that all tests share, so that the template is built once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def template(demo: tuple[Path, Path], cache: Path) -> Template:
    """The demo's template."""
    return load_saved(prepare_template(ModelSettings("qwen_vl", str(demo[1])), cache))


@pytest.fixture(scope="session")
def real() -> Path:
    """The folder of real processors and samples; the test is skipped where it is not."""
    if not REAL.is_dir():
        pytest.skip("../shared/real is not here")
    return REAL


@pytest.fixture(autouse=True)
def _no_worker_is_left() -> Iterator[None]:
    """A loader that is not read to its end waits 5 seconds for each of its workers when it is collected.

    A worker of torch ends well at its parent's SIGTERM; for one that is killed, torch raises in whatever runs next.
    """
    yield
    for process in multiprocessing.active_children():
        process.terminate()


@pytest.fixture
def config(demo: tuple[Path, Path], cache: Path, tmp_path: Path) -> Callable[..., PackConfig]:
    """Makes a config for one run: the demo's processor, one worker, into tmp_path/out/packed."""

    def make(source: Path | str | list[str] | None = None, **settings: Any) -> PackConfig:
        result = PackConfig(
            model=ModelConfig("qwen2_5_vl", "qwen_vl", "Qwen/Qwen2.5-VL-7B-Instruct", str(demo[1])),
            source=SourceConfig(path=[str(s) for s in source] if isinstance(source, list) else str(source or demo[0])),
            output=OutputConfig(dir=str(tmp_path / "out"), name="packed"),
            cache_dir=str(cache),
        )
        result.executor.num_workers = 1
        result.measure.verify = 0.0
        for key, value in settings.items():
            node, _, name = key.partition("__")
            setattr(getattr(result, node) if name else result, name or node, value)
        return result

    return make


def need_torchvision() -> None:
    """Most of transformers' full processors are built only with it."""
    prepare_torchvision()
    pytest.importorskip("torchvision", reason="transformers' full processor needs torchvision")


def picture(width: int = 40, height: int = 30, format: str = "JPEG", **save: Any) -> bytes:
    """An image file."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(file, format, **save)
    return file.getvalue()


def chat(*texts: str, **fields: Any) -> bytes:
    """The JSON of a sample: texts are the turns, user first."""
    turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    return json.dumps({"messages": turns, **fields}).encode()


def write_tar(path: Path, members: dict[str, bytes] | list[tuple[str, bytes]], **how: Any) -> Path:
    """A tar of the members, in their order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **how) as tar:
        for name, data in members.items() if isinstance(members, dict) else members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def command(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python ...` in a folder, offline."""
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env=variables, capture_output=True, text=True, timeout=300
    )


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a packed dataset but the report, which holds facts of the run."""
    names = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "report.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in names}


def train(path: Path, num_workers: int = 0, encoder: Any = None, **settings: Any) -> Iterator[Any]:
    """Every pack of a dataset once, through Energon."""
    from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset

    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
        task_encoder=encoder or DefaultTaskEncoder(),
        **settings,
    )
    return iter(get_savable_loader(dataset))


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def structure(content: str, has_media: bool) -> Any:
    """A user's string as transformers' chat templates want it: placeholders as parts of their own, nothing stripped."""
    if not has_media:
        return content
    pieces = content.split("<image>")
    parts: list[dict[str, str]] = [{"type": "text", "text": pieces[0]}]
    for piece in pieces[1:]:
        parts += [{"type": "image"}, {"type": "text", "text": piece}]
    return parts
