"""The whole run: totals reconcile, bytes are the same every time, and nothing is published that should not be."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from energon_pack.config import OnDamaged, Overlong, PackConfig, Stage
from energon_pack.dataset import energon_check as checking
from energon_pack.dataset import shards
from energon_pack.dataset.in_folder import FolderDestination
from energon_pack.errors import PackError, SamplesLost
from energon_pack.pack import pack
from energon_pack.samples.flavors import PACKED_FLAVORS
from support.marks import slow
from support.packed import copy_templates, files, json_lines
from support.running import ROOT
from support.samples import chat, picture, renamed_in_place, write_tar

Make = Callable[..., PackConfig]


def output(config: PackConfig) -> Path:
    return Path(config.output.dir) / str(config.output.name)


def test_the_demo_is_packed_whole(config: Make) -> None:
    run = config()
    figures = pack(run)
    assert (figures["samples_in"], figures["samples_packed"], figures["samples_skipped"]) == (320, 320, 0)
    folder = output(run)
    assert sorted(path.name for path in folder.iterdir()) == [
        ".nv-meta",
        "pack_plan.parquet",
        "packed-000000.tar",
        "packed-000000.tar.idx",
        "report.html",
        "report.json",
        "skipped.jsonl",
    ]
    assert sorted(path.name for path in Path(run.output.dir).iterdir()) == ["packed"]
    report = json.loads((folder / "report.json").read_text())
    assert report["packs"] == report["packs_lower_bound"] == figures["packs"]
    assert report["tokens"] == sum(media["tokens"] for media in report["by_media"].values())
    assert report["fill"] == pytest.approx(report["tokens"] / (report["packs"] * 8192), abs=1e-6)
    assert set(report["seconds"]) == {"index", "processor", "lengths", "plan", "write", "check", "verify"}


def test_the_plan_file_names_the_tar_of_each_pack(config: Make) -> None:
    run = config(output__max_shard_packs=3, output__shard_prefix="node1")
    pack(run)
    rows = pq.read_table(output(run) / "pack_plan.parquet", columns=["pack", "output_shard"]).to_pylist()
    found: dict[str, str] = {}
    for path in output(run).glob("*.tar"):
        with tarfile.open(path) as tar:
            found |= {name.partition(".")[0]: path.name for name in tar.getnames()}
    assert {row["pack"]: row["output_shard"] for row in rows} == found
    assert len({*found.values()}) > 3


def test_the_same_bytes_every_time(config: Make, tmp_path: Path, demo: tuple[Path, Path], cache: Path) -> None:
    """Whatever the workers, the folder, the cache and the time: only the report tells runs apart."""
    first = config()
    pack(first)
    copy = tmp_path / "elsewhere" / "source"
    shutil.copytree(demo[0], copy)
    for shard in copy.iterdir():
        os.utime(shard)
    again = config(copy, output__dir=str(tmp_path / "out2"), output__name="other", executor__num_workers=2)
    again.cache_dir = str(tmp_path / "cache2")  # of lengths; a template made anew is in tests/run/test_executor.py
    copy_templates(cache, tmp_path / "cache2")
    pack(again)
    assert files(output(first)) == files(output(again))


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """98 good samples, one bad, one overlong."""
    members = {f"{i:03d}.json": chat(f"How often? {i}", "Twice.") for i in range(98)}
    members |= {"098.json": b"{", "099.json": chat("long", "word " * 9000)}
    return write_tar(tmp_path / "mixed" / "x.tar", members).parent


def test_the_ledger_names_what_is_left_out(config: Make, mixed: Path) -> None:
    run = config(mixed)
    figures = pack(run)
    assert (figures["samples_in"], figures["samples_packed"]) == (100, 98)
    lines = json_lines(output(run) / "skipped.jsonl")
    assert [(line["sample_id"], line["reason"]) for line in lines] == [
        ("x.tar/098", "invalid_json"),
        ("x.tar/099", "overlong"),
    ]
    assert lines[1]["token_len"] > 8192


def test_too_much_bad_data_publishes_nothing(config: Make, mixed: Path) -> None:
    run = config(mixed, max_skipped=0.005)
    with pytest.raises(SamplesLost, match=r"bad data cost 1 of 100 samples, max_skipped=0\.005") as lost:
        pack(run)
    assert lost.value.exit_code == 3
    assert not output(run).exists()
    assert "packed.skipped.jsonl" in str(lost.value)
    assert len((output(run).parent / "packed.skipped.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("stage", [Stage.plan, Stage.lengths])
def test_a_plan_of_bad_data_is_an_error(config: Make, mixed: Path, stage: Stage) -> None:
    """A script that plans first would go on to a run that can't succeed."""
    with pytest.raises(SamplesLost, match="bad data cost 1 of 100 samples") as lost:
        pack(config(mixed, max_skipped=0.005, stage=stage))
    assert lost.value.exit_code == 3
    pack(config(mixed, stage=stage))


@pytest.mark.parametrize(("knob", "stage"), [("output.dir", Stage.all), ("cache_dir", Stage.plan)])
def test_a_folder_that_cannot_be_written_is_found_first(
    config: Make, tmp_path: Path, knob: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was found after hours of measuring."""
    monkeypatch.setattr("energon_pack.stages.measuring.index_shards", lambda *_: pytest.fail("work has begun"))
    closed = Path("/proc/nowhere")  # not even root writes there
    run = config(stage=stage, cache_dir=str(closed if knob == "cache_dir" else tmp_path / "cache"))
    run.output.dir = str(closed if knob == "output.dir" else tmp_path / "out")
    with pytest.raises(PackError, match=rf"{knob}=/proc/nowhere: /proc can't be written"):
        pack(run)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("writer", "knob"),
    [
        ("energon_pack.lengths.table_cache.write_atomically", "cache_dir"),
        ("energon_pack.dataset.energon.write_atomically", "output.dir"),
    ],
)
def test_a_full_disk_says_which(config: Make, tmp_path: Path, knob: str, writer: str, monkeypatch: Any) -> None:
    """The system says `No space left on device` of a write, and names no file."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer, fail)
    run = config(cache_dir=str(tmp_path / "cache"))
    folder = tmp_path / ("cache" if knob == "cache_dir" else "out")
    with pytest.raises(PackError, match=rf"{folder}: No space left on device; make room, or choose another {knob}"):
        pack(run)


def test_losing_a_modality_publishes_nothing(config: Make, tmp_path: Path) -> None:
    """One image sample among many texts is far below max_skipped, and yet all the images there are."""
    members = {f"{i:03d}.json": chat("a", "b") for i in range(200)}
    members |= {"x.jpg": picture(400, 300)[:500], "x.json": chat("<image>", "b")}
    run = config(write_tar(tmp_path / "s" / "x.tar", members))
    with pytest.raises(SamplesLost, match="every image sample was skipped"):
        pack(run)


def test_an_empty_source_publishes_nothing(config: Make, tmp_path: Path) -> None:
    """And names no ledger: there is nothing in it."""
    empty = config(write_tar(tmp_path / "s" / "x.tar", {}))
    with pytest.raises(SamplesLost, match=r"no samples: no file of source\.path holds one: nothing is published$"):
        pack(empty)
    assert not list(Path(empty.output.dir).glob("*.jsonl"))
    prepared = write_tar(tmp_path / "p" / "x.tar", {"0.json": chat("a", "b")}).parent
    (prepared / ".nv-meta").mkdir()
    (prepared / ".nv-meta" / "split.yaml").write_text('{"split_parts": {"train": ["x.tar"]}, "exclude": ["x.tar/0"]}')
    with pytest.raises(SamplesLost, match=r"no samples: the settings leave out 1 sample, which is every one"):
        pack(config(prepared))


def test_overlong_may_be_an_error(config: Make, mixed: Path) -> None:
    with pytest.raises(PackError, match=r"first x\.tar/099"):
        pack(config(mixed, packing__overlong=Overlong.error))


def test_a_limit_counts_the_rest_as_excluded(config: Make) -> None:
    figures = pack(config(source__limit=10))
    assert (figures["samples_in"], figures["samples_excluded"]) == (10, 310)


def test_stages_before_writing_leave_no_dataset(config: Make) -> None:
    run = config(stage=Stage.plan)
    assert pack(run)["packs"] == 11
    assert not output(run).exists()


def test_a_stage_without_a_ledger_names_the_first_sample_of_each_reason(
    config: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`skipped: 5 bad_message` said neither which nor why, where no page can be opened."""
    turns = json.dumps({"messages": [{"role": "USER", "content": "a"}]}).encode()
    write_tar(tmp_path / "s" / "0.tar", {"a.json": turns, "b.json": turns, "c.json": b"{", "d.json": chat("a", "b")})
    pack(config(tmp_path / "s", stage=Stage.plan, max_skipped=1.0))
    message, damaged = [line for line in capsys.readouterr().out.splitlines() if line.startswith("first ")]
    assert message.startswith("first bad_message: 0.tar/a: message 0 has the role 'USER': did you mean user? known ")
    assert damaged.startswith("first invalid_json: 0.tar/c: Expecting property name")


def test_a_finished_dataset_is_not_overwritten(config: Make) -> None:
    pack(config())
    with pytest.raises(PackError, match=r"output\.overwrite=true"):
        pack(config(seed=1))
    run = config(output__overwrite=True, source__limit=50)
    pack(run)
    assert json.loads((output(run) / "report.json").read_text())["samples_in"] == 50


def test_only_a_dataset_is_overwritten(config: Make) -> None:
    run = config(output__overwrite=True)
    output(run).mkdir(parents=True)
    (output(run) / "thesis.tex").write_text("years of work")
    with pytest.raises(PackError, match="not a packed dataset"):
        pack(run)
    assert (output(run) / "thesis.tex").exists()


@pytest.mark.parametrize("where", [".", "inside", "deep/er"])
def test_the_source_is_never_written_to(config: Make, demo: tuple[Path, Path], tmp_path: Path, where: str) -> None:
    source = tmp_path / "source"
    shutil.copytree(demo[0], source)
    before = sorted(source.rglob("*"))
    for run in (config(source, output__dir=str(source / where)), config(source, cache_dir=str(source / where))):
        with pytest.raises(PackError, match="lies in the source"):
            pack(run)
    assert sorted(source.rglob("*")) == before


def test_nothing_is_written_beside_single_tars(config: Make, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Else the folder, read as a source next time, would give packs of packs."""
    source = tmp_path / "source"
    shutil.copytree(demo[0], source)
    with pytest.raises(PackError, match="lies in the source"):
        pack(config(f"{source}/*.tar", output__dir=str(source)))
    pack(config(f"{source}/*.tar", output__dir=str(source / "packed")))


def test_a_source_inside_the_output_is_not_replaced(config: Make, demo: tuple[Path, Path]) -> None:
    run = config(output__overwrite=True)
    pack(run)
    inside = output(run) / "raw"
    shutil.copytree(demo[0], inside)
    run.source.path = str(inside)
    with pytest.raises(PackError, match="lies in"):
        pack(run)


def test_a_dataset_that_appears_meanwhile_is_kept(config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run = config()

    def slow_check(*_: object) -> None:
        output(run).mkdir()
        (output(run) / "theirs").touch()

    monkeypatch.setattr("energon_pack.stages.publishing.check_readable", slow_check)
    with pytest.raises(PackError, match="exists"):
        pack(run)
    assert [path.name for path in output(run).iterdir()] == ["theirs"]


def test_a_kill_between_the_two_renames_loses_nothing(config: Make) -> None:
    """The old dataset waits in the staging folder; the next run puts it back first."""
    run = config()
    pack(run)
    before = files(output(run))
    staging = output(run).parent / ".staging" / "packed"
    staging.mkdir(parents=True)
    os.rename(output(run), staging / "killed.old")
    with FolderDestination(output(run)).open_staging("identity"):
        assert files(output(run)) == before
    assert not staging.parent.exists()


@pytest.fixture
def stopped(config: Make, monkeypatch: pytest.MonkeyPatch) -> PackConfig:
    """A run of 6 shards that was killed after 3."""
    run = config(output__max_shard_packs=2)
    written: list[shards.WrittenShard] = []

    def write(job: shards.ShardJob) -> shards.WrittenShard:
        if len(written) == 3:
            job.path.with_suffix(".tmp").write_bytes(b"half a shard")
            raise KeyboardInterrupt
        written.append(shards.write_shard(job))
        return written[-1]

    with monkeypatch.context() as patch:
        patch.setattr("energon_pack.dataset.in_folder.write_shard", write)
        with pytest.raises(KeyboardInterrupt):
            pack(run)
    assert not output(run).exists()
    return run


def test_a_run_goes_on_from_the_finished_shards(stopped: PackConfig, config: Make, tmp_path: Path) -> None:
    """And comes to the same bytes as one that was not disturbed."""
    staging = output(stopped).parent / ".staging" / "packed"
    before = {path.name: path.stat().st_ino for path in staging.glob("*/*.tar")}
    assert len(before) == 3
    pack(stopped)
    after = {path.name: path.stat().st_ino for path in output(stopped).glob("*.tar")}
    assert len(after) == 6
    assert before.items() <= after.items()
    undisturbed = config(output__max_shard_packs=2, output__dir=str(tmp_path / "other"))
    pack(undisturbed)
    assert files(output(stopped)) == files(output(undisturbed))
    assert not staging.parent.exists()


@pytest.mark.parametrize(("ends", "are_kept"), [(KeyboardInterrupt(), True), (OSError(5, "I/O error"), False)])
def test_shards_that_a_disk_takes_in_are_kept_by_a_kill_alone(
    config: Make, monkeypatch: pytest.MonkeyPatch, ends: BaseException, are_kept: bool
) -> None:
    """That may take minutes, hours after the run began; where the disk fails nobody knows what it has."""

    def sync(_: Path) -> None:
        raise ends

    run = config(output__max_shard_packs=2)
    with monkeypatch.context() as patch:
        patch.setattr("energon_pack.dataset.in_folder.sync_file_system", sync)
        with pytest.raises(type(ends)):
            pack(run)
    staging = output(run).parent / ".staging" / "packed"
    before = {path.name: path.stat().st_mtime_ns for path in staging.glob("*/*.tar")}
    pack(run)
    after = {path.name: path.stat().st_mtime_ns for path in output(run).glob("*.tar")}
    assert len(before) == len(after) == 6
    assert (before == after) == are_kept


def test_shards_of_another_run_are_not_used(stopped: PackConfig, config: Make, tmp_path: Path) -> None:
    """Another seed is another plan under the same name."""
    stopped.seed = 1
    pack(stopped)
    undisturbed = config(output__max_shard_packs=2, output__dir=str(tmp_path / "other"), seed=1)
    pack(undisturbed)
    assert files(output(stopped)) == files(output(undisturbed))


def test_shards_that_energon_cannot_read_are_not_kept(config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*_: object) -> None:
        raise PackError("Energon can't read it")

    run = config()
    with monkeypatch.context() as patch:
        patch.setattr("energon_pack.stages.publishing.check_readable", check)
        with pytest.raises(PackError, match="can't read"):
            pack(run)
    assert not (output(run).parent / ".staging").exists()


def test_energon_opens_the_first_dataset_of_a_form_and_each_shard_is_read(
    config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Energon's import is more than half of a start with lengths in the cache; what it would have noticed of one
    dataset, and not of every other of that form, is an index or a pack that is not as the metadata say.
    """
    run = config(output__max_shard_packs=3)
    pack(run)
    opened: list[str] = []
    by_energon = checking._first_packs

    def first_packs(folder: str, *form: str) -> dict[str, Any]:
        opened.append(folder)
        return by_energon(folder, *form)

    monkeypatch.setattr(checking, "_first_packs", first_packs)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    folder = output(run)
    counts = json.loads((folder / ".nv-meta/.info.json").read_bytes())["shard_counts"]
    written = [shards.WrittenShard(name, number, 0, 0, 0) for name, number in counts.items()]
    job = checking.check_job_of(folder, PACKED_FLAVORS["packed_multi_mix_qa"], written, None)
    checking.check_readable(job)
    checking.check_readable(job)
    assert opened == [str(folder)]
    checking.check_readable(replace(job, cache_key="another version"))
    assert len(opened) == 2

    last = folder / list(counts)[-1]
    index = last.with_suffix(".tar.idx").read_bytes()
    last.with_suffix(".tar.idx").write_bytes(index[:-8])
    with pytest.raises(PackError, match="has no index of its"):
        checking.check_readable(job)
    last.with_suffix(".tar.idx").write_bytes(index)
    last.write_bytes(last.read_bytes().replace(b".tokens\0", b".tokenz\0"))
    with pytest.raises(PackError, match="are not those its JSON names"):
        checking.check_readable(job)
    assert len(opened) == 2


def test_a_full_disk_is_refused_before_writing(config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(PackError, match=r"output\.dir: the shards take about [1-9]"):
        pack(config())


def test_a_disk_that_fills_publishes_nothing(config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next run, with room again, goes on."""
    run = config(output__max_shard_packs=2)
    write, left = os.write, [400_000]

    def full(fd: int, data: Any) -> int:
        left[0] -= len(data)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr("energon_pack.dataset.tar_writer.os.write", full)
        with pytest.raises(PackError, match=r"/out: No space left on device; .* another output\.dir"):
            pack(run)
    assert not output(run).exists()
    assert pack(run)["samples_packed"] == 320


def test_a_source_rewritten_with_its_time_kept_is_noticed(
    config: Make, demo: tuple[Path, Path], tmp_path: Path
) -> None:
    """Same size and time, other members at the same places: their headers tell."""
    source = tmp_path / "source"
    shutil.copytree(demo[0], source)
    pack(config(source))
    shard = source / "demo-000000.tar"
    renamed_in_place(shard)
    with pytest.raises(PackError, match=r"demo-000000.*changed since it was measured"):
        pack(config(source, output__name="again"))


def test_many_shards_with_few_open_files(config: Make, tmp_path: Path) -> None:
    """10,000 shards are usual, and so is a limit of 1,024 open files."""
    import resource

    for i in range(300):
        write_tar(tmp_path / "many" / f"{i:03d}.tar", {f"k{i}.json": chat("a", "b")})
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_open = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + 100, limits[1]))
    try:
        assert pack(config(tmp_path / "many"))["samples_packed"] == 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_excluded_samples_are_counted(config: Make, tmp_path: Path) -> None:
    source = write_tar(tmp_path / "s" / "x.tar", {f"{i}.json": chat("a", "b") for i in range(5)}).parent
    (source / ".nv-meta").mkdir()
    (source / ".nv-meta" / "split.yaml").write_text("split_parts: {train: [x.tar]}\nexclude: ['x.tar/{1..2}']\n")
    figures = pack(config(source))
    assert (figures["samples_in"], figures["samples_excluded"], figures["samples_packed"]) == (3, 2, 3)


def test_a_field_named_like_the_packs_own_is_kept(config: Make, tmp_path: Path) -> None:
    turns = json.loads(chat("a", "b"))["messages"]
    record = {"mine": turns, "messages": ["draft"], "id": 1}
    run = config(
        write_tar(tmp_path / "s" / "x.tar", {"k.json": json.dumps(record).encode()}), source__messages_key="mine"
    )
    pack(run)
    with tarfile.open(output(run) / "packed-000000.tar") as tar:
        value = json.load(tar.extractfile(tar.getnames()[0]))  # type: ignore[arg-type]
    assert value["messages"] == [{"messages": turns, "id": 1, "source_fields": {"messages": ["draft"]}}]


def test_a_damaged_tar_may_be_kept(config: Make, demo: tuple[Path, Path], tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(demo[0], source)
    shard = source / "demo-000000.tar"
    shard.write_bytes(shard.read_bytes()[:200_000])
    with pytest.raises(PackError, match=r"on_damaged=keep"):
        pack(config(source))
    run = config(source, source__on_damaged=OnDamaged.keep)
    figures = pack(run)
    assert figures["skipped_by_reason"] == {"truncated_tar": 1}
    assert 213 < figures["samples_packed"] < 320


def test_unknown_fields_and_names_travel(config: Make, tmp_path: Path) -> None:
    """Fields that packing does not know, odd names, unicode: all in the pack's JSON as they were."""
    record: dict[str, Any] = {
        "conversations": [{"from": "human", "value": "<image> 什么"}, {"from": "gpt", "value": "方"}]
    }
    record |= {
        "id": 7,
        "source": {"url": "x"},
        "score": 0.5,
        "name": ["0 пример.PNG"],
        "media": "image",
        "tools": [{"f": 1}],
    }
    members = {"dir/k ключ.0 пример.PNG": picture(), "dir/k ключ.json": json.dumps(record).encode()}
    run = config(write_tar(tmp_path / "s" / "a b.tar", members))
    pack(run)
    with tarfile.open(output(run) / "packed-000000.tar") as tar:
        names = tar.getnames()
        value = json.load(tar.extractfile(names[0]))  # type: ignore[arg-type]
        image = tar.extractfile(names[2]).read()  # type: ignore[union-attr]
    key = names[0].removesuffix(".json")
    assert names == [f"{key}.json", f"{key}.tokens", f"{key}.s000.i00.jpg"]  # JPEG bytes: content names the extension
    assert image == picture()
    assert value["messages"] == [
        {
            "messages": [{"role": "user", "content": "<image> 什么"}, {"role": "assistant", "content": "方"}],
            "tools": [{"f": 1}],
            "id": 7,
            "source": {"url": "x"},
            "score": 0.5,
        }
    ]
    assert value["media_files"] == [["s000.i00.jpg"]]
    assert value["media_type"] == "image"
    meta = value["_meta"]
    assert meta["sample_ids"] == ["a b.tar/dir/k ключ"]
    assert meta["source_parts"] == [["0 пример.PNG"]]
    assert meta["total_token_len"] == sum(meta["token_lens"])
    assert meta["format"] == 3
    assert meta["pack_id"] == key


def start(run: PackConfig, tmp_path: Path, *more: str) -> subprocess.Popen[Any]:
    arguments = [
        "+model=qwen2_5_vl",
        f"model.processor={run.model.processor}",
        f"source.path={run.source.path}",
        f"output.dir={run.output.dir}",
        "output.name=packed",
        *more,
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "energon_pack", *arguments],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
        text=True,
    )


def test_a_second_run_on_the_same_output_refuses(config: Make) -> None:
    import fcntl

    run = config()
    locks = Path(run.output.dir) / ".staging" / "packed"
    locks.mkdir(parents=True)
    with open(locks / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(PackError, match="another run"):
            pack(run)


def test_a_killed_run_publishes_nothing_and_leaves_no_workers(config: Make, tmp_path: Path) -> None:
    """SIGKILL of the parent: workers notice, and the next run starts clean."""
    import psutil

    run = config(cache_dir=None)
    process = start(run, tmp_path, "executor.num_workers=2")
    children: list[psutil.Process] = []
    for _ in range(600):
        children = [
            p for p in psutil.Process(process.pid).children() if "multiprocessing.spawn" in " ".join(p.cmdline())
        ]
        if children:
            break
        time.sleep(0.02)
    assert children
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not output(run).exists()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
    assert pack(run)["samples_packed"] == 320


@pytest.mark.parametrize("number", [signal.SIGINT, slow(signal.SIGTERM)])
def test_an_interrupted_run_exits_with_130(config: Make, tmp_path: Path, number: signal.Signals) -> None:
    run = config(cache_dir=None)
    process = start(run, tmp_path, "executor.num_workers=2")
    while not list(Path(run.output.dir).glob(".cache/index/*/*.parquet")):  # the run is at work
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert not output(run).exists()
