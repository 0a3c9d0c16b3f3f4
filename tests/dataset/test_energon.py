"""Training's view: packs through real Energon loaders, from typed and crude datasets, with and without workers."""

import json
import shutil
import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from megatron.energon import (
    DefaultTaskEncoder,
    SampleDecoder,
)
from megatron.energon.errors import FatalSampleError
from megatron.energon.flavors import BaseWebdatasetFactory
from PIL import Image

from energon_pack.config import DatasetYaml, PackConfig
from energon_pack.dataset.packing_template import load_template
from energon_pack.flavors import MultiMixQASample, PackedMultiMixQASample
from energon_pack.loading import cookers, make_sample_loader
from energon_pack.loading.task_encoder import PackedTaskEncoder
from energon_pack.pack import pack
from energon_pack.samples.member import MemberTokens
from energon_pack.samples.written_tokens import join_member_tokens
from support.batches import same
from support.corruptions import cut_tokens, flip_an_id
from support.damage import Members, read_shard, write_shard
from support.packed import demo_config, prepare, train, typed
from support.packed import packed as pack_of
from support.packed import samples as pack_parts
from support.running import ROOT, command_here
from support.samples import chat, picture, write_tar


class Cooked(DefaultTaskEncoder[Any, Any, Any, Any]):
    """A task encoder like a user's, for crude datasets."""

    decoder = None
    cookers = cookers()


@pytest.fixture(scope="module")
def packed(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo, packed into three shards."""
    settings: dict[str, Any] = {"output__name": "demo", "output__max_shard_packs": 4, "output__sqlite": True}
    return pack_of(demo_config(demo, cache, tmp_path_factory.mktemp("packed"), **settings))


def members(path: Path) -> dict[str, dict[str, Any]]:
    """Sample id → what the packs' JSON holds of it."""
    import tarfile

    found = {}
    for shard in sorted(path.glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                if member.name.endswith(".json"):
                    value = json.load(tar.extractfile(member))  # type: ignore[arg-type]
                    for sample_id, message in zip(value["_meta"]["sample_ids"], value["messages"], strict=True):
                        found[sample_id] = message
    return found


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("dataset_config", ["dataset.yaml", "crude.yaml"])
def test_every_pack_once_with_its_images(packed: Path, num_workers: int, dataset_config: str) -> None:
    """And the same from the typed dataset as through cookers."""
    encoder = Cooked() if dataset_config == "crude.yaml" else None
    packs = list(train(packed, num_workers, encoder, dataset_config=dataset_config))
    assert {type(p) for p in packs} == {PackedMultiMixQASample}
    assert set(Counter(p.__key__ for p in packs).values()) == {1}
    assert len(packs) == 11
    ids = [sample_id for p in packs for sample_id in p.sample_ids]
    assert len(set(ids)) == len(ids) == 320
    images = [image for p in packs for member in p.images for image in member]
    assert all(isinstance(image, Image.Image) for image in images)
    assert {image.mode for image in images} == {"RGB"}
    for p in packs:
        num_placeholders = [sum(m["content"].count("<image>") for m in messages) for messages in p.messages]
        assert num_placeholders == [len(member) for member in p.images]
        assert p.media_type == ("image" if any(p.images) else "text")


def test_another_processor_trains_the_tokens_that_were_packed(
    packed: Path, demo: tuple[Path, Path], tmp_path: Path
) -> None:
    """What was written is what is trained: a chat template that other files bring changes no token."""
    other = tmp_path / "other"
    shutil.copytree(demo[1], other)
    (other / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    samples = [*train(packed)][:2]
    ours, theirs = (PackedTaskEncoder(packed, str(folder)) for folder in (demo[1], other))
    fingerprints = [load_template(packed, str(folder)).fingerprints for folder in (demo[1], other)]
    assert fingerprints[0]["chat_template"] != fingerprints[1]["chat_template"]
    for sample in samples:
        assert same(*(encoder.batch([encoder.encode_sample(sample)]) for encoder in (ours, theirs)))


def test_images_come_upright(config: Callable[..., PackConfig], tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    members = {"a.0.jpg": picture(60, 30, exif=exif), "a.json": chat("<image>", "x")}
    run = config(write_tar(tmp_path / "s" / "x.tar", members))
    pack(run)
    image = next(train(Path(run.output.dir) / "packed")).images[0][0]
    assert image.size == (30, 60)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_damaged_image_is_named_when_it_is_decoded(
    config: Callable[..., PackConfig], tmp_path: Path, num_workers: int
) -> None:
    """Its header and end mark are fine, so measuring lets it pass; no worker hangs, and no other image is lost."""
    damaged = bytearray(picture(300, 200, "PNG"))
    damaged[60:80] = bytes(20)
    members = {
        "x.png": bytes(damaged),
        "x.json": chat("<image>", "b"),
        "y.png": picture(),
        "y.json": chat("<image>", "b"),
    }
    run = config(write_tar(tmp_path / "s" / "x.tar", members))
    pack(run)
    (only,) = train(Path(run.output.dir) / "packed", num_workers)
    x, y = (only.images[only.sample_ids.index(f"x.tar/{key}")][0] for key in "xy")
    assert (x.size, x.mode) == ((300, 200), "RGB")
    with pytest.raises(OSError, match=rf"{only.__key__}\.s00\d\.i00\.png"):
        x.load()
    assert np.asarray(y).shape == (30, 40, 3)


@pytest.mark.parametrize("decoder", [None, SampleDecoder(), SampleDecoder(image_decode="pil")])
def test_videos_are_videos_under_any_decoder(tmp_path: Path, decoder: Any) -> None:
    """A wrong guess would put an image placeholder into the text."""
    sample = {
        "__key__": "k",
        "json": chat("<video>what?", "that", name=["0.mp4"]),
        "0.mp4": b"\0\0\0\x18ftypmp42" + bytes(99),
    }
    fields = make_sample_loader("multi_mix_qa")(decoder(sample) if decoder else sample)
    assert fields["image"] is None
    assert len(fields["video"]) == 1
    assert fields["messages"][0]["content"] == "<video>what?"


@pytest.mark.parametrize("decoder", [SampleDecoder(), SampleDecoder(image_decode="pil", av_decode="torch")])
def test_tokens_are_bytes_under_any_decoder(packed: Path, decoder: Any) -> None:
    """An extension that a decoder knows would hand training an object of its own making."""
    (parts,) = [*pack_parts(packed).values()][:1]
    assert decoder({"__key__": "k", "tokens": parts["tokens"]})["tokens"] == parts["tokens"]


def break_json(members: Members, index: int) -> None:
    members[index] = (members[index][0], members[index][1][:-9])


@pytest.mark.parametrize("damage", [cut_tokens, flip_an_id, break_json])
def test_a_damaged_pack_ends_the_training(packed: Path, tmp_path: Path, damage: Callable[..., None]) -> None:
    """Energon only logged it, and trained the other packs: the run ended with 0."""
    copy = Path(shutil.copytree(packed, tmp_path / "copy"))
    shard = min(copy.glob("*.tar"))
    members = read_shard(shard)
    damage(members, next(i for i, (name, _) in enumerate(members) if name.endswith(".json")))
    write_shard(shard, members)
    with pytest.raises(FatalSampleError, match=r"TokensDamaged|JSON"):
        [*train(copy, encoder=PackedTaskEncoder(copy))]


def test_unpacked_samples_are_read_with_the_settings_of_packing() -> None:
    sample = {"__key__": "k", "json": json.dumps({"mine": json.loads(chat("a", "b"))["messages"]}).encode()}
    assert make_sample_loader("multi_mix_qa", messages_key="mine")(sample)["messages"][1]["content"] == "b"
    assert len(cookers(messages_key="mine")) == 4


def test_a_missing_image_is_named_where_it_is_asked_for() -> None:
    """An error of the loader would cost the whole pack; printing the sample, as Energon does, is no asking."""
    parts = {
        "__key__": "p_0",
        "json": json.dumps(
            {
                "messages": [{"messages": []}],
                "media_files": [["s000.i00.jpg", "s000.v00.mp4"]],
                "media_type": "mix",
                "_meta": {
                    "format": 3,
                    "sample_ids": ["x/0"],
                    "fingerprint": "f",
                    "token_lens": [1],
                    "num_supervised": [1],
                },
            }
        ),
        "tokens": join_member_tokens([MemberTokens(np.zeros(1, np.int64), [])]).to_bytes(),
    }
    fields = make_sample_loader()(parts)
    (image,), (video,) = fields["images"][0], fields["videos"][0]
    assert repr(image) == "<LazyImage p_0.s000.i00.jpg>"
    for ask in (image.load, lambda: image.size):
        with pytest.raises(OSError, match=r"p_0\.s000\.i00\.jpg: missing from its pack"):
            ask()
    assert video == b""


def test_the_index_is_what_energon_prepares(packed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(packed, copy)
    shutil.rmtree(copy / ".nv-meta")
    ours = {path.name: path.read_bytes() for path in copy.glob("*.idx")}
    for path in copy.glob("*.idx"):
        path.unlink()
    shards = sorted(path.name for path in copy.glob("*.tar"))
    BaseWebdatasetFactory.prepare_dataset(
        copy, shards, split_parts_ratio=[("train", 1.0)], shuffle_seed=None, workers=1
    )
    assert {path.name: path.read_bytes() for path in copy.glob("*.idx")} == ours
    prepared = json.loads((copy / ".nv-meta" / ".info.json").read_text())
    assert prepared["shard_counts"] == json.loads((packed / ".nv-meta" / ".info.json").read_text())["shard_counts"]
    for table in ("samples", "sample_parts"):
        ours_rows, theirs_rows = (rows_of(folder / ".nv-meta" / "index.sqlite", table) for folder in (packed, copy))
        assert ours_rows == theirs_rows
    assert len(ours_rows) > 180
    assert uuid.UUID((packed / ".nv-meta" / "index.uuid").read_text()).version == 5  # derived, not by chance


def rows_of(database: Path, table: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return sorted(connection.execute(f"SELECT * FROM {table}").fetchall())


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of what Energon's lint calls of its own
@pytest.mark.parametrize("tool", ["info", "lint"])
def test_energons_own_tools_work(packed: Path, tool: str) -> None:
    result = command_here("megatron.energon.cli.main", tool, packed, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    if tool == "info":
        assert "PackedMultiMixQASample" in result.stdout
        assert "11 samples" in result.stdout


def test_the_two_dataset_yamls_may_swap_roles(config: Callable[..., PackConfig]) -> None:
    run = config(output__dataset_yaml=DatasetYaml.crude)
    pack(run)
    folder = Path(run.output.dir) / "packed"
    assert yaml.safe_load((folder / ".nv-meta" / "dataset.yaml").read_text())["__class__"] == "CrudeWebdataset"
    typed = [p.__key__ for p in train(folder, dataset_config="typed.yaml")]
    assert [p.__key__ for p in train(folder, encoder=Cooked())] == typed


# ------------------------------------------------------------------------------------------------- other flavours


@pytest.mark.parametrize("crude", [False, True])
def test_unpacked_sources_load_as_multi_mix_qa(
    demo: tuple[Path, Path], packed: Path, tmp_path: Path, crude: bool
) -> None:
    """Packed and unpacked samples can be blended, because both say the same of a sample."""
    source = tmp_path / "source"
    shutil.copytree(demo[0], source)
    crude_yaml = {
        "__module__": "megatron.energon",
        "__class__": "CrudeWebdataset",
        "subflavors": {"sample_type": "multi_mix_qa"},
    }
    prepare(source, crude_yaml if crude else typed("MultiMixQASample", "multi_mix_qa"))
    samples = list(train(source, encoder=Cooked() if crude else None))
    assert {type(sample) for sample in samples} == {MultiMixQASample}
    assert len(samples) == 320
    in_packs = {sample_id.partition("/")[2]: member["messages"] for sample_id, member in members(packed).items()}
    assert {sample.__key__: sample.messages for sample in samples} == in_packs
    for sample in samples:
        assert sum(m["content"].count("<image>") for m in sample.messages) == len(sample.image or [])


def test_an_unknown_flavor_is_named() -> None:
    with pytest.raises(ValueError, match="packed_multi_mix_qa"):
        make_sample_loader("nope")
