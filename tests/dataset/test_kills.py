"""A kill at any moment leaves no dataset or a whole one, and the same command then writes the same bytes.

Promise 6: without it a job that ran out of its hours would start again, or train on half a dataset.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from energon_pack.dataset import staging_files
from energon_pack.dataset.in_folder import FolderDestination
from support.packed import demo_config, files, packed
from support.running import ROOT, run_here

SETTINGS = (
    "output.name=packed",
    "output.max_shard_packs=1",
    "output.sqlite=true",
    "packing.max_token_len=1024",
    "packing.overlong=split_turns",
)


def start(arguments: list[str]) -> subprocess.Popen[Any]:
    """The run as a user would start it."""
    return subprocess.Popen(
        [sys.executable, "-m", "energon_pack", *arguments],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def of_demo(demo: tuple[Path, Path]) -> list[str]:
    """The arguments of a run on the demo."""
    return ["+model=qwen2_5_vl", f"model.processor={demo[1]}", f"source.path={demo[0]}", *SETTINGS]


def kill_and_rerun(
    command: list[str],
    tmp_path: Path,
    moments: Sequence[tuple[str, int]],
    has_template: bool = False,
    least_shards: int = 50,
) -> None:
    """Kill runs and go on.

    Args:
        command: the arguments of the run.
        moments: when: a glob below the output folder and how many such files there are by then, and milliseconds more.
        has_template: whether the template is in the cache before: a run that is killed later comes there sooner.
        least_shards: that the run writes, at least.
    """
    templates = tmp_path / "undisturbed" / ".cache" / "templates"
    assert run_here(*command, f"output.dir={tmp_path / 'undisturbed'}", cwd=ROOT)[0] == 0
    expected = files(tmp_path / "undisturbed" / "packed")
    assert len([name for name in expected if name.endswith(".tar")]) > least_shards

    num_resumed = num_whole = 0
    for i, (glob, number) in enumerate(moments):
        output_dir = tmp_path / str(i)
        arguments = [*command, f"output.dir={output_dir}"]
        if has_template:
            shutil.copytree(templates, output_dir / ".cache" / "templates")
        process = start([*arguments, "executor.num_workers=2", "measure.verify=0"])
        while process.poll() is None and len(list(output_dir.glob(glob))) < number:
            time.sleep(0.001)
        time.sleep(0.001 * (i * 37 % 50))
        process.kill()
        process.wait()
        final = output_dir / "packed"
        if final.exists():  # the kill came too late, or while the run cleaned up
            num_whole += 1
        else:
            num_resumed += any(output_dir.glob(".staging/packed/*/*.tar.idx"))
            assert run_here(*arguments, cwd=ROOT)[0] == 0
        assert files(final) == expected
        shutil.rmtree(output_dir)
    print(f"{len(moments)} kills: {num_whole} after the end, {num_resumed} went on from finished shards")


@pytest.mark.long("runs that are killed, and those that go on")
def test_a_few_kills(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """While it writes; tests/test_pack.py kills one that measures."""
    moments = [(".staging/packed/*/*.idx", 8)]
    kill_and_rerun([*of_demo(demo), "source.limit=100"], tmp_path, moments, has_template=True, least_shards=15)


@pytest.mark.slow
def test_kills_at_thirty_moments(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Spread over all stages: the demo, the index, lengths, the template, the plan, shards, metadata, publishing."""
    places = [
        (".cache", 1), (".cache/demo/**", 9), (".cache/index/*", 1), (".cache/index/*/*", 1), (".cache/templates/*", 1),
        (".cache/lengths/*/*", 1), (".cache/cuts/*/*", 1), (".staging/packed", 1), (".staging/packed/*/.identity", 1),
        (".staging/packed/*/skipped.jsonl", 1), (".staging/packed/*/pack_plan.*", 1), (".staging/packed/*/*.tmp", 1),
        *((".staging/packed/*/*.idx", number) for number in range(1, 75, 8)), (".staging/packed/*/.nv-meta", 1),
        *((f".staging/packed/*/.nv-meta/{name}", 1) for name in ("*.yaml", "index.sqlite", "index.uuid", "energon*")),
        (".staging/packed/*/report.json", 1), ("packed", 1), ("packed/report.json", 1),
    ]  # fmt: skip
    kill_and_rerun(of_demo(demo), tmp_path, places)


@pytest.mark.long("a run that is killed, and three that find its dataset")
@pytest.mark.parametrize("overwrites", [False, True])
def test_what_a_kill_behind_publishing_left_is_removed_by_the_next_call(
    demo: tuple[Path, Path], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrites: bool
) -> None:
    """`.staging/NAME` stayed for ever, with `output.overwrite=true` with the whole old dataset in it."""
    config = partial(demo_config, demo, cache, tmp_path, packing__max_token_len=1024)
    if overwrites:
        packed(config(seed=1))
    with monkeypatch.context() as patch:
        patch.setattr(FolderDestination, "_remove_ledger_and_page", stop)
        patch.setattr(staging_files, "remove_folder", lambda path: None)
        with pytest.raises(KeyboardInterrupt):
            packed(config(output__overwrite=overwrites))
    (left,) = (tmp_path / ".staging").iterdir()
    (left / "0123.gone").mkdir()
    assert any(left.glob("*.old/*.tar")) == overwrites
    other = left / "another identity.12345678"
    other.mkdir()
    expected = files(tmp_path / "packed")
    with FolderDestination(tmp_path / "packed")._locked(fcntl.LOCK_SH):
        packed(config())
    assert any(left.glob("*.old")) == overwrites  # another process was at work
    packed(config())
    assert [path.name for path in left.iterdir() if path.name != "lock"] == [other.name]
    other.rmdir()
    packed(config())
    assert not left.parent.exists()
    assert files(tmp_path / "packed") == expected


def stop(*_: object) -> None:
    raise KeyboardInterrupt
