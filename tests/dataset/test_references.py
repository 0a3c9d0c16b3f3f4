"""output.media=reference: packs of text and byte ranges give what packs of copies give, from wherever the source lies.

A source that changed ends the training: no reader may get another medium than the one that was packed.
"""

import json
import os
import pickle
import runpy
import shutil
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from megatron.energon import DefaultTaskEncoder
from megatron.energon.errors import FatalSampleError

from energon_pack.config import Flavor, Format, MediaIn, Overlong, PackConfig
from energon_pack.dataset.damaged_shards import refuse_damaged_shards
from energon_pack.dataset.manifest import read_manifest
from energon_pack.dataset.pack_json import ShardWithReferencedMedia
from energon_pack.dataset.source_media import ReferencedMediaReader, source_root
from energon_pack.errors import PackError
from energon_pack.loading import cookers
from energon_pack.pack import pack
from energon_pack.samples.flavors import PACKED_FLAVORS
from energon_pack.samples.flavors.base import without_references
from energon_pack.samples.sample import Reference
from energon_pack.sources.find import Source
from energon_pack.sources.referenced_media import SourceMediaReader
from energon_pack.sources.shard import Shard, TarShard
from energon_pack.unpack import unpack
from support.batches import same
from support.damage import change, found, lines, read_shard
from support.marks import slow
from support.packed import demo_config, files, packed, samples, train
from support.running import ROOT, command_here, need_torchvision
from support.samples import chat, npy, picture, video, write_source, write_tar
from support.stores import Bucket

Make = Callable[..., PackConfig]
BOTH = tuple(MediaIn)


class Cooked(DefaultTaskEncoder[Any, Any, Any, Any]):
    """A task encoder like a user's, for crude datasets."""

    decoder = None
    cookers = cookers()


# ------------------------------------------------------------------------------------------------------ sources


def write_tars(folder: Path) -> Path:
    """Two shards: many turns with an image each, videos, a name that needs a PAX header, one that is not ASCII."""
    talk = [text for i in range(9) for text in (f"<image>question {i}", f"{i} yes " * 20)]
    long = {"talk.json": chat(*talk), **{f"talk.{i}.png": picture(28 * (i + 2), 56, "PNG") for i in range(9)}}
    odd = {f"{'d' * 120}.json": chat("<image>?", "a"), f"{'d' * 120}.jpg": picture(60, 40)}
    odd |= {"ä/ö.json": chat("<image>?", "b"), "ä/ö.jpg": picture(40, 60)}
    film = {"v.json": chat("<video>and <image>?", "both"), "v.mp4": video(8), "v.jpg": picture(56, 28)}
    many: dict[str, bytes] = {}
    for i in range(12):
        many |= {f"i{i:02d}.json": chat("<image> or <image>?", f"{i}", name=["b.jpg", "a.png"])}
        many |= {f"i{i:02d}.b.jpg": picture(40 + i, 30), f"i{i:02d}.a.png": picture(28, 50 + i, "PNG")}
    write_tar(folder / "a.tar", {**long, **odd, "t.json": chat("no image", "at all")})
    write_tar(folder / "sub" / "b.tar", {**film, **many})
    return folder


def write_lines(folder: Path) -> Path:
    """Files with arrays beside them, and images of an LMDB."""
    lmdb = pytest.importorskip("lmdb")
    write_source(folder)
    with lmdb.open(str(folder / "i.lmdb"), subdir=False) as database, database.begin(write=True) as transaction:
        for i in range(3):
            transaction.put(f"k{i}".encode(), picture(30 + i, 44))
    more = [
        {"images": [f"i.lmdb::k{i}", "f0.jpg"], "prompts": ["<image><image>?"], "captions": ["two"]} for i in range(3)
    ]
    with open(folder / "media.jsonl", "a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in more))
    return folder / "media.jsonl"


def tars(make: Make, folder: Path) -> dict[str, Any]:
    return {"source": write_tars(folder), "packing__max_token_len": 512, "packing__overlong": Overlong.split_turns}


def captioning_tars(make: Make, folder: Path) -> dict[str, Any]:
    """Frames with patch positions in a tar."""
    members: dict[str, bytes] = {}
    for i in range(9):
        names = {"name": [f"{n}.jpg" for n in range(3)], "patch_positions": [f"{n}.npy" for n in range(2)] + [""]}
        members |= {f"s{i}.json": chat("<image><image><image>?", "what", fps=30, **names)}
        members |= {f"s{i}.{n}.jpg": picture(40 + i, 30 + n) for n in range(3)}
        members |= {f"s{i}.{n}.npy": npy(15 * n) for n in range(2)}
    return {"source": write_tar(folder / "a.tar", members).parent, "output__flavor": Flavor.packed_captioning}


def lines_of(flavor: Flavor, make: Make, folder: Path) -> dict[str, Any]:
    cut = {"packing__overlong": Overlong.split_turns}
    return {"source": write_lines(folder), "source__format": Format.jsonl, "output__flavor": flavor, **cut}


def demo_folders(flavor: Flavor, make: Make, folder: Path) -> dict[str, Any]:
    return {"source": None, "output__flavor": flavor, "source__limit": 90}


SOURCES: dict[str, Callable[[Make, Path], dict[str, Any]]] = {
    "demo": partial(demo_folders, Flavor.packed_multi_mix_qa),
    "demo, captioning": partial(demo_folders, Flavor.packed_captioning),
    "tars, videos, cut": tars,
    "tars, positions": captioning_tars,
    "lines, lmdb": partial(lines_of, Flavor.packed_multi_mix_qa),
    "lines, lmdb, captioning": partial(lines_of, Flavor.packed_captioning),
}


@pytest.fixture(
    scope="module", params=[slow(name) if "captioning" in name or "positions" in name else name for name in SOURCES]
)
def both(
    request: pytest.FixtureRequest, demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """The same plan with copies and with references."""
    folder = tmp_path_factory.mktemp("both")
    make = partial(demo_config, demo, cache, folder / "out")
    settings = {"packing__max_token_len": 700, "max_skipped": 0.9, **SOURCES[request.param](make, folder / "source")}
    copied, referred = (packed(make(output__media=media, output__name=media.value, **settings)) for media in BOTH)
    return copied, referred


@pytest.fixture
def referred(config: Make, tmp_path: Path) -> Path:
    """Two shards of images, referred to; the source lies in tmp_path/source."""
    settings = {"packing__max_token_len": 512, "packing__overlong": Overlong.split_turns}
    return packed(config(write_tars(tmp_path / "source"), output__media=MediaIn.reference, **settings))


# ------------------------------------------------------------------------------------------------- what is loaded


def plain(sample: Any) -> dict[str, Any]:
    """The fields of a sample of any flavour, its images as pixels and its arrays as lists."""

    def value(item: Any) -> Any:
        if isinstance(item, list):
            return [value(each) for each in item]
        if isinstance(item, np.ndarray):
            return item.tolist()
        return (item.size, item.tobytes()) if hasattr(item, "tobytes") else item

    names = [field.name for field in fields(sample) if field.name not in ("__sources__", "__restore_key__")]
    return {name: value(getattr(sample, name)) for name in names}


@pytest.mark.parametrize(("config_name", "num_workers"), [("dataset.yaml", 0), ("crude.yaml", 2)])
def test_every_pack_is_the_one_with_copies(both: tuple[Path, Path], config_name: str, num_workers: int) -> None:
    """Through Energon's own loaders, in the order of each other; all fields, pixel by pixel."""
    encoder = Cooked if config_name == "crude.yaml" else DefaultTaskEncoder
    copied, referred = (
        [plain(pack) for pack in train(folder, num_workers, encoder(), dataset_config=config_name)] for folder in both
    )
    assert copied == referred
    assert sum(map(len, (image for pack in copied for image in pack["images"]))) > 8


def test_batches_are_those_of_copies(both: tuple[Path, Path], demo: tuple[Path, Path]) -> None:
    need_torchvision()
    import webdataset as wds
    from torch.utils.data import DataLoader

    from energon_pack.loading.task_encoder import PackedTaskEncoder
    from energon_pack.webdataset import packs, shard_urls

    of_energon, of_webdataset = [], []
    for folder in both:
        encoder = PackedTaskEncoder(folder, str(demo[1]), tokens_per_second=2)
        of_energon.append([encoder.batch([pack]) for pack in train(folder, encoder=encoder)])
        encoded = packs(folder, str(demo[1]), tokens_per_second=2)
        shards = wds.WebDataset(shard_urls(folder), shardshuffle=False, nodesplitter=wds.split_by_node).compose(encoded)
        of_webdataset.append(list(DataLoader(shards, batch_size=1, collate_fn=encoded.collate)))
    for copied, referred in (of_energon, of_webdataset):
        assert len(copied) == len(referred) > 1
        assert all(map(same, copied, referred))


def test_only_text_is_written(both: tuple[Path, Path]) -> None:
    """The plan is the same file; shards hold the same packs, and no medium."""
    copied, referred = both
    assert (copied / "pack_plan.parquet").read_bytes() == (referred / "pack_plan.parquet").read_bytes()
    assert (copied / "skipped.jsonl").read_bytes() == (referred / "skipped.jsonl").read_bytes()
    flavor = PACKED_FLAVORS[json.loads((copied / ".nv-meta" / "energon_pack.json").read_text())["flavor"]]
    theirs, ours = samples(copied), samples(referred)
    assert list(theirs) == list(ours)
    for key, parts in ours.items():
        assert list(parts) == ["json", "tokens"]
        assert parts["tokens"] == theirs[key]["tokens"]
        value, wanted = json.loads(parts["json"]), json.loads(theirs[key]["json"])
        assert flavor.media_field not in value
        for member, names in zip(value["media_refs"], flavor.parts(wanted), strict=True):
            assert [len(place) for place in member] == [len(place) for place in member if place]
            assert len(member) == len(names)
        restored = without_references(value, flavor)
        del restored["_meta"]["media_parts"]
        assert restored == wanted


def test_tools_read_them(both: tuple[Path, Path], tmp_path: Path) -> None:
    """`verify` with all its checks, `unpack` and `inspect` give the same results as with copies."""
    findings = [found(folder, source=[], decode=True) for folder in both]
    assert list(map(lines, findings)) == ["", ""]
    looked_at, at_references = (dict(each.num_checked) for each in findings)
    assert at_references.pop("references") == at_references["kinds"] > 8
    assert looked_at.pop("media") == at_references["parts"] - 2 * at_references["json"]  # all but JSON and tokens
    looked_at["files"] -= 1  # media.crc32
    assert looked_at == at_references
    copied, referred = both
    for folder in both:
        unpack(folder, tmp_path / folder.name)
    assert files(tmp_path / "copy") == files(tmp_path / "reference")
    for number in ("0", "-1"):
        told = [command_here("energon_pack.inspect", folder, number, cwd=folder.parent).stdout for folder in both]
        assert told[0].replace(str(copied), "") == told[1].replace(str(referred), "") != ""
    assert command_here("energon_pack.inspect", referred, "0", "--html", "p.html", cwd=tmp_path).returncode == 0
    assert "No batch" not in (tmp_path / "p.html").read_text()


def test_a_reader_of_copies_fails_at_once(both: tuple[Path, Path]) -> None:
    """It would else train on conversations whose images are not there."""
    flavor = json.loads((both[1] / ".nv-meta" / "energon_pack.json").read_text())["flavor"]
    loader = runpy.run_path(str(ROOT / "energon_pack" / "dataset" / "sample_loaders" / f"{flavor}.py"))["sample_loader"]
    for parts in samples(both[1]).values():
        with pytest.raises(KeyError, match=r"media_files|images"):
            loader(parts)


# ------------------------------------------------------------------------------------------------- where it lies


def test_bytes_do_not_depend_on_the_place(config: Make, tmp_path: Path) -> None:
    """Nor on the number of workers, nor on a run that was there before; no folder of this machine is in them."""
    found = []
    for number in (1, 2):
        source = write_tars(tmp_path / f"place{number}" / "deep" / "source")
        run = config(source, output__media=MediaIn.reference, output__dir=str(tmp_path / f"out{number}"))
        run.executor.num_workers, run.output.max_shard_packs, run.packing.max_token_len = number, 1, 1200
        found.append(files(packed(run)))
    assert found[0] == found[1]
    assert not any(str(tmp_path).encode() in data for data in found[0].values())


def test_the_source_may_be_moved(referred: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where report.json says, unless the environment says otherwise, unless dataset.yaml does."""
    whole = [plain(pack) for pack in train(referred)]
    (tmp_path / "source").rename(tmp_path / "moved")
    with pytest.raises(FatalSampleError, match=r"source/.*can't be read \(No such file.*ENERGON_PACK_SOURCE=FOLDER"):
        list(train(referred))
    monkeypatch.setenv("ENERGON_PACK_SOURCE", str(tmp_path / "moved"))
    assert [plain(pack) for pack in train(referred)] == whole
    assert [plain(pack) for pack in train(referred, encoder=Cooked(), dataset_config="crude.yaml")] == whole
    assert lines(found(referred, source=[str(tmp_path / "moved")])) == ""
    assert lines(found(referred)) == ""
    monkeypatch.setenv("ENERGON_PACK_SOURCE", str(tmp_path / "nowhere"))
    path = referred / ".nv-meta" / "dataset.yaml"
    value = yaml.safe_load(path.read_text())
    value["sample_loader"]["source_root"] = str(tmp_path / "moved")
    path.write_text(yaml.safe_dump(value))
    assert [plain(pack) for pack in train(referred)] == whole
    monkeypatch.delenv("ENERGON_PACK_SOURCE")
    assert lines(found(referred, source=[str(tmp_path / "moved")])) == ""
    (referred / "report.json").unlink()
    with pytest.raises(
        PackError, match=r"no report.json beside it says where that is: ENERGON_PACK_SOURCE=FOLDER does"
    ):
        source_root(referred)


def test_a_cooker_is_told_where_it_lies(referred: Path, tmp_path: Path) -> None:
    (tmp_path / "source").rename(tmp_path / "moved")

    class Told(Cooked):
        cookers = cookers(source_root=str(tmp_path / "moved"))

    assert len(list(train(referred, encoder=Told(), dataset_config="crude.yaml"))) > 1


def test_lines_of_several_folders_have_one_root(config: Make, tmp_path: Path) -> None:
    """Each file's media lie beside it; one that a line names by its whole path in there moves with them."""
    for name in ("x/a", "y/b"):
        folder = tmp_path / "source" / name
        folder.mkdir(parents=True)
        (folder / "i.jpg").write_bytes(picture(len(name) + 40, 30))
        names = [str(folder / "i.jpg"), "i.jpg"]
        line = {"images": names, "prompts": ["<image><image>?"], "captions": ["yes"]}
        (folder / "s.jsonl").write_text(json.dumps(line) + "\n")
    source = [str(tmp_path / "source" / name / "s.jsonl") for name in ("x/a", "y/b")]
    folder = packed(config(source, source__format=Format.jsonl, output__media=MediaIn.reference))
    assert source_root(folder) == str(tmp_path / "source")
    (value,) = (json.loads(parts["json"]) for parts in samples(folder).values())
    assert sorted(value["media_refs"]) == [[["x/a/i.jpg"]] * 2, [["y/b/i.jpg"]] * 2]
    shutil.move(tmp_path / "source", tmp_path / "moved")
    media = ReferencedMediaReader(folder, str(tmp_path / "moved"))
    defects = found(folder)
    assert (defects.num_defects.total(), lines(defects).count("can't be read")) == (4, 4)
    name, size, checksum = value["_meta"]["media_parts"][0][0]
    reference = Reference(name, tuple(value["media_refs"][0][0]), size, checksum, "")
    assert media.read([reference])[0][:2] == b"\xff\xd8"


@pytest.mark.parametrize("kind", ["tars", slow("lines")])
def test_a_source_that_moved_to_an_object_store(
    config: Make, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Packed from there or from disk it is the same, and media of a pack are read in few requests."""
    source = write_tars(tmp_path / "source") if kind == "tars" else write_source(tmp_path / "source").parent
    format, name = (Format.wds, "") if kind == "tars" else (Format.jsonl, "/media.jsonl")
    address = bucket.put_folder(source, "data")
    make = partial(config, source__format=format, output__media=MediaIn.reference, max_skipped=0.9)
    local = packed(make(f"{source}{name}", output__name="local"))
    stored = packed(make(f"{address}{name}", output__name="stored", source__media_root=None))
    assert files(local) == files(stored)
    assert source_root(stored) == address
    whole = [plain(pack) for pack in train(local)]
    assert [plain(pack) for pack in train(stored)] == whole
    monkeypatch.setenv("ENERGON_PACK_SOURCE", address)
    shutil.rmtree(source)
    bucket.seen()
    assert [plain(pack) for pack in train(local)] == whole
    monkeypatch.setenv("ENERGON_PACK_SOURCE", f"{address}/nowhere")
    with pytest.raises(FatalSampleError, match=r"data/nowhere/.* can't be read"):
        list(train(local))


def test_two_stores_have_no_folder_in_common() -> None:
    shards: list[Shard] = [TarShard("a.tar", f"s3://{bucket}/a.tar", 1, "") for bucket in ("one", "two")]
    with pytest.raises(PackError, match=r"output.media=reference: the source lies in s3://one and s3://two: no folder"):
        _ = Source(shards, frozenset()).root


def test_a_loader_of_plain_python_can_not_have_them(config: Make) -> None:
    run = config(output__media=MediaIn.reference, output__sample_loader_py=True, output__sample_type="m:C")
    with pytest.raises(PackError, match=r"output\.media=copy puts them into the packs"):
        run.output.check()


# ------------------------------------------------------------------------------------------- a source that changed


def replace_bytes(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))


def other_pixels(source: Path) -> None:
    """Another image of the same name and size, in place."""
    image = dict(read_shard(source / "sub" / "b.tar"))["i03.b.jpg"]
    replace_bytes(source / "sub" / "b.tar", image, image[:-40] + bytes(38) + image[-2:])


def other_name(source: Path) -> None:
    """Two members of one size that changed places."""
    path = source / "sub" / "b.tar"
    members = read_shard(path)
    renamed = {"i03.b.jpg": "i99.b.jpg"}
    write_tar(path, [(renamed.get(name, name), data) for name, data in members])


def shifted(source: Path) -> None:
    members = read_shard(source / "sub" / "b.tar")
    write_tar(source / "sub" / "b.tar", [("new.json", b"{}"), *members])


def cut(source: Path) -> None:
    os.truncate(source / "sub" / "b.tar", 12 << 10)


def gone(source: Path) -> None:
    (source / "sub" / "b.tar").unlink()


@pytest.mark.parametrize(
    ("damage", "num_workers"), [(other_pixels, 0), (other_name, 0), (shifted, 0), (cut, 0), (gone, 2)]
)
def test_a_stale_tar_ends_the_training(
    referred: Path, tmp_path: Path, damage: Callable[[Path], None], num_workers: int
) -> None:
    """Energon logs other errors and continues without the pack, so the user would not notice."""
    damage(tmp_path / "source")
    with pytest.raises(Exception, match=r"source/sub/b\.tar") as caught:
        list(train(referred, num_workers))
    told = str(caught.value)
    assert "FatalSampleError" in told + type(caught.value).__name__
    assert "ENERGON_PACK_SOURCE=FOLDER" in told
    assert "pack again" in told or "can't be read" in told
    defects = lines(found(referred))
    assert defects.startswith("references: packed-000000.tar: ")
    assert "of sub/b.tar/" in defects
    with pytest.raises(PackError, match=r"sub/b\.tar"):
        unpack(referred, tmp_path / "single")
    assert not (tmp_path / "single").exists()


def test_a_lost_source_is_said_before_training(referred: Path, tmp_path: Path) -> None:
    """In training it stood in the middle of a traceback."""
    shards = [path.name for path in referred.glob("*.tar")]
    refuse_damaged_shards(str(referred), read_manifest(referred), shards)
    shutil.move(tmp_path / "source", tmp_path / "moved")
    with pytest.raises(PackError, match=r"\.tar, where .* lies, can't be read.*ENERGON_PACK_SOURCE=FOLDER"):
        refuse_damaged_shards(str(referred), read_manifest(referred), shards)
    defects = found(referred)
    assert defects.num_defects["references"] > 2


@pytest.mark.parametrize(
    ("name", "change_file", "what"),
    [
        ("f0.jpg", lambda data: data[:-40] + bytes(38) + data[-2:], "is not img"),
        ("f0.jpg", lambda data: data + b"\0", "is not img"),
        ("p.png", lambda data: None, "can't be read"),
        ("f1.npy", lambda data: data[:-8] + b"\1" * 8, "is not img"),
    ],
)
def test_a_stale_file_ends_the_training(
    config: Make, tmp_path: Path, name: str, change_file: Callable[[bytes], bytes | None], what: str
) -> None:
    folder = packed(
        config(
            max_skipped=0.9,
            output__media=MediaIn.reference,
            **lines_of(Flavor.packed_captioning, config, tmp_path / "source"),
        )
    )
    path = tmp_path / "source" / name
    data = change_file(path.read_bytes())
    path.unlink() if data is None else path.write_bytes(data)
    with pytest.raises(FatalSampleError, match=f"source/{name}.*{what}"):
        list(train(folder))


def test_a_run_that_was_stopped_goes_on(config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It continues from the shards that it had written, compares them with the source, and gets the bytes of a single
    run.
    """
    source = write_tars(tmp_path / "source")
    make = partial(
        config, source, output__media=MediaIn.reference, output__max_shard_packs=1, packing__max_token_len=1300
    )
    whole = files(packed(make(output__name="whole")))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("energon_pack.stages.publishing.publish", stop)
        with pytest.raises(KeyboardInterrupt):
            pack(make())
    (left,) = (tmp_path / "out" / ".staging").glob("*/*/packed-000000.tar")
    written = left.stat().st_ino
    again = packed(make())
    assert files(again) == whole
    assert (again / left.name).stat().st_ino == written


# ------------------------------------------------------------------------------------------------- damaged packs


@pytest.mark.parametrize(
    ("change_json", "what"),
    [
        (lambda value: value["media_refs"][0].pop(), "media_refs and _meta.media_parts are not of the same media"),
        (lambda value: value["media_refs"].pop(), "not of the same media"),
        (lambda value: value["media_refs"][0][0].append(1), "not a list of lists of places in the source"),
        (lambda value: value.update(media_refs=None), "media_refs is None, not a list"),
        (lambda value: value["_meta"].pop("media_parts"), "_meta.media_parts is None, not a list"),
        (lambda value: value["_meta"]["media_parts"][0][0].__setitem__(1, -1), "not a list of lists of a name"),
        (lambda value: value["_meta"].update(sample_ids=[1]), "_meta.sample_ids is list of 1, not a list of strings"),
        (lambda value: value["media_refs"][0][0].__setitem__(1, 4), "lies at byte 4 of"),
        (lambda value: value["_meta"]["media_parts"][0][0].__setitem__(2, 4), "as it was packed"),
    ],
)
def test_verify_tells_what_is_damaged(referred: Path, change_json: Callable[[Any], None], what: str) -> None:
    change(change_json)(referred)
    assert what in lines(found(referred, source=[]))


# ------------------------------------------------------------------------------------------------- how it is read


def test_few_files_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source may have a hundred thousand shards."""
    monkeypatch.setattr("energon_pack.sources.media_files._MAX_OPEN_FILES", 2)
    media = SourceMediaReader(str(tmp_path))
    for i in range(5):
        (tmp_path / f"{i}.jpg").write_bytes(bytes([i]) * 5)
    from zlib import crc32

    def reference(i: int) -> Reference:
        return Reference("s000.i00.jpg", (f"{i}.jpg",), 5, crc32(bytes([i]) * 10), "s")

    media = pickle.loads(pickle.dumps(media))  # as to a worker that is spawned
    for i in (0, 1, 0, 2, 3, 4, 0):
        assert media.read([reference(i)]) == [bytes([i]) * 5]
        assert len(media._files) <= 2


def test_places_behind_a_pack() -> None:
    """Readers of a pack read its media as if they lay behind its JSON."""

    class Data(bytes):
        @property
        def size(self) -> int:
            return len(self)

        def read(self, offset: int, size: int) -> bytes:
            return self[offset : offset + size]

    class Media(ReferencedMediaReader):
        def opened(self, reference: Reference) -> Data:
            return contents[reference.name]

    contents = {"a": Data(b"abc"), "b": Data(b"defg")}
    references = [Reference(name, (name,), len(data), 0, "") for name, data in contents.items()]
    file = ShardWithReferencedMedia(Data(b"0123"), 4, references, Media("", "/source"))
    assert (file.read(1, 2), file.read(4, 3), file.read(5, 1), file.read(7, 4), file.size) == (
        b"12",
        b"abc",
        b"b",
        b"defg",
        11,
    )
    assert file.read(11, 5) == b""
