"""The cache has few files for any number of shards, trusts no damaged file, and loses no measured length."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from energon_pack.config import Format, PackConfig, Stage
from energon_pack.errors import PackError
from energon_pack.lengths import worker as measuring
from energon_pack.pack import pack
from energon_pack.sources.demo import make_demo_source_and_processor
from support.marks import slow
from support.packed import files
from support.running import run_here
from support.samples import chat, picture, write_tar

Make = Callable[..., PackConfig]


def kept(cache: Path, of: str) -> list[Path]:
    return sorted(path for path in (cache / of).rglob("*") if path.is_file())


@pytest.fixture
def measured_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples each slice had that was measured."""
    sizes: list[int] = []
    measure = measuring.measure

    def spy(job: measuring.MeasureJob):  # type: ignore[no-untyped-def]
        sizes.append(job.samples.num_rows)
        return measure(job)

    monkeypatch.setattr("energon_pack.lengths.measure.measure", spy)
    return sizes


# ------------------------------------------------------------------------------------------------ many small shards


def test_many_shards_share_few_files(config: Make, tmp_path: Path, measured_rows: list[int]) -> None:
    """A Parquet file a shard made a plan of 5,000 tars of one sample take 30 times as long as of three tars."""
    source, cache = tmp_path / "s", tmp_path / "cache"
    for number in range(300):
        write_tar(source / f"{number:03d}.tar", {f"{number}.json": chat("question " * (number % 7), "answer")})
    run = config(source, cache_dir=str(cache))
    assert pack(run)["cache"] == {"shards_reused": 0, "shards_measured": 300}
    assert sum(len(kept(cache, of)) for of in ("index", "lengths")) <= 4
    expected = files(tmp_path / "out" / "packed")

    measured_rows.clear()
    run.output.overwrite = True
    os.utime(source / "123.tar")
    assert pack(run)["cache"] == {"shards_reused": 299, "shards_measured": 1}
    assert measured_rows == [1]
    assert files(tmp_path / "out" / "packed") == expected


def test_the_lengths_of_a_shard_do_not_depend_on_its_neighbours(config: Make, tmp_path: Path) -> None:
    """Shards in one file, in files of many runs, in another order: the same packs."""
    source = tmp_path / "s"
    members = {f"{n:02d}.tar": {f"{n}{k}.json": chat("q " * (n + k), "a" * k) for k in range(n % 4)} for n in range(12)}
    for names in (sorted(members)[5:7], sorted(members)[::2], sorted(members)):
        for name in names:
            if not (source / name).exists():
                write_tar(source / name, members[name])
        pack(config(source, cache_dir=str(tmp_path / "grown"), stage=Stage.plan))
    for cache in ("grown", "fresh"):
        pack(config(source, cache_dir=str(tmp_path / cache), output__name=cache))
    assert files(tmp_path / "out" / "grown") == files(tmp_path / "out" / "fresh")


def test_the_lengths_of_another_version_are_named_and_made_anew(
    config: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After an upgrade a run of hours would measure all again, and nothing would say why."""
    cache = tmp_path / "cache"
    source, processor = make_demo_source_and_processor(cache / "demo")
    run = config(source, cache_dir=str(cache))
    run.model.processor = processor
    run.output.overwrite = True
    pack(run)
    assert "another version" not in capsys.readouterr().out
    (folder,) = (cache / "lengths").iterdir()
    for name in ("v12.25-0123456789abcdef01234567", "0123456789abcdef01234567"):  # before 0.1.0 without a version
        folder = folder.rename(folder.with_name(name))
        assert pack(run)["cache"] == {"shards_reused": 0, "shards_measured": 3}
        assert f"the cache in {cache} is another version's: all samples are measured anew" in capsys.readouterr().out
        shutil.rmtree(folder)
        (folder,) = (cache / "lengths").iterdir()
    assert pack(run)["cache"] == {"shards_reused": 3, "shards_measured": 0}
    assert "another version" not in capsys.readouterr().out


# -------------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("share", [slow(0.0), 0.6])
def test_a_cut_file_of_the_cache_is_measured_again(config: Make, tmp_path: Path, share: float) -> None:
    """Whichever it is: index, lengths, cuts, the template. A full disk or a power cut leaves such files."""
    cache = tmp_path / "cache"
    source, processor = make_demo_source_and_processor(cache / "demo")
    run = config(source, cache_dir=str(cache), packing__max_token_len=256, packing__overlong="split_turns")
    run.model.processor = processor
    expected = pack(run)
    packed = files(tmp_path / "out" / "packed")
    run.output.overwrite = True
    there = [path for of in ("index", "lengths", "cuts", "templates") for path in kept(cache, of)]
    assert len(there) >= 6
    for path in there:
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])
        again = pack(run)
        assert again["samples_packed"] == expected["samples_packed"], path
        assert files(tmp_path / "out" / "packed") == packed, path
        assert not path.exists() or path.read_bytes() == data, path


@pytest.mark.parametrize("share", [slow(0.0), 0.6])
def test_a_cut_file_of_the_demo_is_made_again(tmp_path: Path, share: float) -> None:
    folder = Path(make_demo_source_and_processor(tmp_path)[0]).parent
    there = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert len(there) > 6
    for path, data in there.items():
        path.write_bytes(data[: int(len(data) * share)])
    make_demo_source_and_processor(tmp_path)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == there


# -------------------------------------------------------------------------------------------------- interruptions


def json_lines(path: Path, num: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{chat(f'question {n}', 'answer ' * (n % 5 + 1)).decode()}\n" for n in range(num)))
    return path


def test_slices_that_were_measured_are_kept(
    demo: tuple[Path, Path], tmp_path: Path, measured_rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 665k-line JSON is one file to most users: an interrupt began it anew."""
    source = json_lines(tmp_path / "s" / "x.jsonl", 100)
    monkeypatch.setattr("energon_pack.lengths.measure._JOB_SAMPLES", 10)
    monkeypatch.setattr("energon_pack.lengths.measure._SMALL_COST", 0)
    command = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", "source=jsonl", f"source.path={source}", "stage=plan"]

    def interrupted(job: measuring.MeasureJob):  # type: ignore[no-untyped-def]
        if len(measured_rows) == 3:
            raise KeyboardInterrupt
        measured_rows.append(job.samples.num_rows)
        return measuring.measure(job)

    with monkeypatch.context() as patch:
        patch.setattr("energon_pack.lengths.measure.measure", interrupted)
        code, _, errors = run_here(*command, cwd=tmp_path)
    assert code == 130, errors
    assert "interrupted; the same command goes on from the lengths it has" in errors
    assert run_here(*command, cwd=tmp_path)[0] == 0
    assert measured_rows == [10] * 10  # each sample once: three slices in the first run, seven in the second


# ------------------------------------------------------------------------- content that changes, under an old time


def in_place(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change bytes of a file and keep its size and time, as restored snapshots and fixed mount times do."""
    before, data = path.stat(), path.read_bytes()
    changed = change(data)
    assert len(changed) == len(data)
    assert changed != data
    path.write_bytes(changed)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def same_packs_as_fresh(run: PackConfig, tmp_path: Path) -> None:
    """The run refuses the lengths it measured; a second run packs the present files."""
    with pytest.raises(PackError, match="changed since it was measured: run again"):
        pack(run)
    assert not (tmp_path / "out" / "packed").exists()
    pack(run)
    run.cache_dir, run.output.name = str(tmp_path / "fresh"), "fresh"
    pack(run)
    assert files(tmp_path / "out" / "packed") == files(tmp_path / "out" / "fresh")


@pytest.mark.parametrize("overlong", [slow("drop"), "split_turns"])
def test_a_json_that_changed_in_its_tar(config: Make, tmp_path: Path, overlong: str) -> None:
    """Its headers are the same: only the bytes tell, and they are in hand when it is written."""
    old, new = (text * 20 for text in ("one two three four five ", "o12, tw3; 4hree f567 fi8"))
    source = tmp_path / "s" / "x.tar"
    write_tar(source, {f"{n}.json": chat(old, "b", old, f"d{n}") for n in range(4)})
    max_token_len = 4096 if overlong == "drop" else 600
    run = config(source.parent, packing__max_token_len=max_token_len, packing__overlong=overlong, stage=Stage.plan)
    run.cache_dir = str(tmp_path / "cache")
    assert bool(pack(run)["samples_cut"]) == (overlong == "split_turns")
    in_place(source, lambda data: data.replace(old.encode(), new.encode(), 1))
    run.stage = Stage.all
    same_packs_as_fresh(run, tmp_path)


@pytest.mark.parametrize("format", [slow(Format.wds), Format.jsonl])
def test_an_image_that_changed(config: Make, tmp_path: Path, format: Format) -> None:
    """Another picture of as many bytes has other tokens, in its tar and as a file."""
    small, large = (padded_picture(*size) for size in ((64, 64), (400, 300)))
    if format is Format.wds:
        parts = {"a.json": chat("<image>", "b"), "a.jpg": small, "b.json": chat("c", "d")}
        source = image = write_tar(tmp_path / "s" / "x.tar", parts)
    else:
        source, image = (tmp_path / "s" / name for name in ("x.jsonl", "a.jpg"))
        source.parent.mkdir()
        source.write_text(json.dumps({**json.loads(chat("<image>", "b")), "images": ["a.jpg"]}) + "\n")
        image.write_bytes(small)
    run = config(source, cache_dir=str(tmp_path / "cache"), stage=Stage.plan, source__format=format)
    pack(run)
    in_place(image, lambda data: data.replace(small, large))
    run.stage = Stage.all
    same_packs_as_fresh(run, tmp_path)


def padded_picture(width: int, height: int) -> bytes:
    """JPEGs of 8,000 bytes, whatever is in them: the rest is a comment before their end."""
    data = picture(width, height)
    room = 8000 - len(data) - 4
    return data[:2] + b"\xff\xfe" + (room + 2).to_bytes(2, "big") + bytes(room) + data[2:]


# ------------------------------------------------------------------------------------- finished shards of a killed run


def pack_until_killed(run: PackConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """All shards are written, and nothing after them."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("energon_pack.stages.publishing.write_metadata", killed)
        with pytest.raises(KeyboardInterrupt):
            pack(run)


@pytest.mark.parametrize("place", [slow(0), slow(600), slow(0.3), 0.6, slow(0.9), slow(-1)])
def test_a_byte_that_changed_in_a_finished_shard(
    config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: float
) -> None:
    """Between a kill and the next run: in a header, a JSON, an image, or what fills up the end."""
    pack(config(output__name="undisturbed", output__max_shard_packs=3, packing__max_token_len=4096))
    run = config(output__max_shard_packs=3, packing__max_token_len=4096)
    pack_until_killed(run, monkeypatch)
    shards = sorted((tmp_path / "out" / ".staging" / "packed").glob("*/*.tar"))
    assert len(shards) > 2
    inodes = {path.name: path.stat().st_ino for path in shards}
    size = shards[1].stat().st_size
    at = int(place * size) if isinstance(place, float) else place % size
    in_place(shards[1], lambda data: bytes([*data[:at], data[at] ^ 1, *data[at + 1 :]]))
    pack(run)
    final = tmp_path / "out" / "packed"
    assert files(final) == files(tmp_path / "out" / "undisturbed")
    kept_shards = {name for name, inode in inodes.items() if (final / name).stat().st_ino == inode}
    assert kept_shards == inodes.keys() - {shards[1].name}  # the others were not written again


def test_an_index_that_was_cut_beside_a_finished_shard(
    config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(config(output__name="undisturbed"))
    run = config()
    pack_until_killed(run, monkeypatch)
    [index] = (tmp_path / "out" / ".staging" / "packed").glob("*/*.idx")
    index.write_bytes(index.read_bytes()[:-3])
    pack(run)
    assert files(tmp_path / "out" / "packed") == files(tmp_path / "out" / "undisturbed")
