"""Functions by which tests read a dataset: files, samples, lengths, and Energon's view of it."""

import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml
from PIL import Image

from energon_pack.config import Flavor, Format, ModelConfig, OutputConfig, Overlong, PackConfig, SourceConfig
from energon_pack.pack import pack

Make = Callable[..., PackConfig]


def demo_config(
    demo: tuple[Path, Path], cache: Path, out: Path, source: Path | str | list[str] | None = None, **settings: Any
) -> PackConfig:
    """One run in this process with the demo's processor, into out/packed.

    Args:
        source: None: the demo itself.
        settings: `packing__max_token_len=512` is packing.max_token_len=512.
    """
    result = PackConfig(
        model=ModelConfig("qwen2_5_vl", "qwen_vl", "Qwen/Qwen2.5-VL-7B-Instruct", str(demo[1])),
        source=SourceConfig(path=[str(s) for s in source] if isinstance(source, list) else str(source or demo[0])),
        output=OutputConfig(dir=str(out), name="packed"),
        cache_dir=str(cache),
    )
    result.executor.num_workers = 1
    result.measure.verify = 0.0
    result.packing.overlong = Overlong.drop  # by name: packs may be as short as a test wants them
    result.packing.max_dropped_tokens = 1.0  # also where a policy cuts
    for key, value in settings.items():
        node, _, name = key.partition("__")
        setattr(getattr(result, node) if name else result, name or node, value)
    return result


def packed(run: PackConfig) -> Path:
    """Pack; the folder of the dataset."""
    pack(run)
    return Path(run.output.dir) / str(run.output.name)


def pack_into(make: Make, source: Path | None, flavor: Flavor, **settings: Any) -> Path:
    """Pack the lines of a JSONL, or with no source the demo, in this flavor."""
    format = Format.jsonl if source is not None else Format.wds
    run = make(source, source__format=format, output__flavor=flavor, max_skipped=0.5, **settings)
    return packed(run)


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a packed dataset but the report, which holds facts of the run."""
    names = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.stem != "report")
    return {str(path.relative_to(folder)): path.read_bytes() for path in names}


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def samples(folder: Path) -> dict[str, dict[str, bytes]]:
    """`<shard>/<key>` → part → bytes, in the order of the tars."""
    found: dict[str, dict[str, bytes]] = {}
    for path in sorted(folder.rglob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, part = member.name.partition(".")
                parts = found.setdefault(f"{path.relative_to(folder).as_posix()}/{key}", {})
                assert part not in parts
                parts[part] = tar.extractfile(member).read()  # type: ignore[union-attr]
    return found


def lengths(dataset: Path) -> dict[tuple[str, str, str], tuple[int, int, list[str]]]:
    """Return the plan's row of every member, by shard, key and part of a cut sample."""
    rows = pq.read_table(dataset / "pack_plan.parquet").to_pylist()
    found = {}
    for row in rows:
        name = row["shard"], row["key"], row["cut"]["part"] if row["cut"] else ""
        found[name] = row["token_len"], row["num_supervised"], [part["name"] for part in row["parts"]]
    assert len(found) == len(rows)
    return found


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


def copy_templates(cache: Path, other: Path) -> None:
    """Copy the templates of the cache of all tests, but for those that another process is making."""
    shutil.copytree(cache / "templates", other / "templates", ignore=shutil.ignore_patterns("tmp*"))


def prepare(folder: Path, dataset_yaml: dict[str, Any]) -> Path:
    """Prepare a source as a user does by hand: `energon prepare` and a dataset.yaml."""
    from megatron.energon.flavors import BaseWebdatasetFactory

    shards = sorted(path.name for path in folder.glob("*.tar"))
    BaseWebdatasetFactory.prepare_dataset(
        folder, shards, split_parts_ratio=[("train", 1.0)], shuffle_seed=None, workers=1
    )
    (folder / ".nv-meta" / "dataset.yaml").write_text(yaml.safe_dump(dataset_yaml))
    return folder


def typed(sample_class: str, flavor: str) -> dict[str, Any]:
    return {
        "sample_type": {"__module__": "energon_pack.flavors", "__class__": sample_class},
        "sample_loader": {"__module__": "energon_pack.loading", "__function__": "make_sample_loader", "flavor": flavor},
        "part_filter": {"__module__": "energon_pack.loading", "__function__": "make_part_filter"},
        "decoder": None,
    }


def conversations(source: Path) -> list[dict[str, Any]]:
    """Return the demo as a user's own conversations, whose images are Pillow's, or bytes."""
    found = []
    for number, parts in enumerate(samples(source).values()):
        names = [name for name in parts if name.rpartition(".")[2] in ("jpg", "png")]
        media: list[Any] = [parts[name] for name in names]
        item = json.loads(parts["json"])
        item.pop("name", None)
        item["images"] = media if number % 2 else [Image.open(io.BytesIO(data)) for data in media]
        found.append(item)
    return found
