"""Jobs of a sweep, and runs, that would write what is there already, or what another job writes."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack import cli
from energon_pack.config import PackConfig
from energon_pack.errors import PackError
from energon_pack.pack import pack
from support.marks import slow
from support.packed import packed
from support.running import run_here
from support.samples import renamed_in_place


@pytest.fixture
def told(demo: tuple[Path, Path], cache: Path) -> list[str]:
    """A source that is no built-in demo: a dataset of it is not replaced."""
    return ["+model=qwen2_5_vl", f"source.path={demo[0]}", f"model.processor={demo[1]}", f"cache_dir={cache}"]


def last_sweep(folder: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(sorted(folder.glob(".runs/*-sweep/sweep.json"))[-1].read_text())
    return made


def test_a_dataset_of_the_same_source_and_settings_is_there_already(tmp_path: Path, told: list[str]) -> None:
    """A sweep that was interrupted, or over a length that was packed before, had a failed job for each."""
    name = "source-qwen2_5_vl-neat-4096"
    one, made = [*told, "packing.max_token_len=4096", f"output.name={name}"], tmp_path / "packed" / name
    assert run_here(*one, cwd=tmp_path)[0] == 0
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    sweep = [*told, "-m", "packing.max_token_len=4096,8192", "packing.overlong=drop"]  # the bytes are the same
    code, out, errors = run_here(*sweep, cwd=tmp_path)
    assert (code, errors) == (0, "")
    assert out.count(f"there already: packed/{name}") == 1
    assert [row["packs"] for row in last_sweep(tmp_path / "packed")["rows"]] == [21, 11]
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before

    code, _, errors = run_here(*one, "seed=1", cwd=tmp_path)  # other settings
    assert (code, "exists; output.overwrite=true" in errors) == (1, True)


def test_a_damaged_dataset_is_not_there_already(
    tmp_path: Path, config: Callable[..., PackConfig], demo: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without its plan, or an index that Energon needs, it was `there already`, exit code 0."""
    source = tmp_path / "source"
    source.mkdir()
    shutil.copy(min(demo[0].glob("*.tar")), source)
    one = config(source)
    made = packed(one)
    shard = next(made.glob("*.tar"))
    for path in (
        made / "pack_plan.parquet",
        made / f"{shard.name}.idx",
        made / ".nv-meta" / "energon_pack.json",
        shard,
    ):
        whole = path.read_bytes()
        path.unlink()
        with pytest.raises(PackError, match=r"exists; output\.overwrite=true replaces it"):
            pack(one)
        path.write_bytes(whole[:-8])
        with pytest.raises(PackError, match=r"exists; output\.overwrite=true replaces it"):
            pack(one)
        path.write_bytes(whole)
    energon = made / ".nv-meta" / "dataset.yaml"
    whole = energon.read_bytes()
    for damaged in (b"{", whole.replace(b"energon_pack.flavors", b"energon_pack.flavour")):
        energon.write_bytes(damaged)
        with pytest.raises(PackError, match=r"dataset\.yaml is damaged or was changed"):
            pack(one)
    assert "there already" not in capsys.readouterr().out
    energon.write_bytes(whole + b"  mine: added\n")  # a user's own subflavor
    pack(one)
    assert "there already" in capsys.readouterr().out


def test_a_sweeper_gets_a_number_of_each_job(tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna ended with "Return value must be float-castable"; a job that drops too much is no candidate."""
    values, task = list[float](), cli._run_job

    def run_one(*arguments: Any) -> float:
        values.append(task(*arguments))
        return values[-1]

    monkeypatch.setattr(cli, "_run_job", run_one)
    swept = ["-m", "stage=plan", "packing.max_token_len=512,4096,4096", "report.objective=fill,cost"]
    assert run_here(*told, *swept, cwd=tmp_path)[0] == 0
    few, few_cost, fill, cost, *again = values
    assert math.isnan(few)
    assert math.isnan(few_cost)
    assert 0.9 < fill < 1
    assert cost > 1e3
    assert again == [fill, cost]
    values.clear()
    assert run_here(*told, "-m", "stage=all", "packing.max_token_len=512", "output.messages=true", cwd=tmp_path)[0] == 3
    assert math.isnan(values[0])


@pytest.mark.parametrize("command", [slow(["part=0/1"]), ["-m", "part=0/2"]])
def test_parts_of_a_stage_have_no_figures_of_their_own(tmp_path: Path, told: list[str], command: list[str]) -> None:
    """Each task of an array ended with a KeyError after its work was done: nothing was ever planned."""
    assert run_here(*told, "stage=lengths", *command, cwd=tmp_path)[0] == 0
    assert not list(tmp_path.rglob("sweep.html"))


def test_a_run_that_would_publish_nothing_does_not_say_there_already(tmp_path: Path, told: list[str]) -> None:
    """What had been asked for by name once was then taken with exit code 0, and nothing was said to be wrong."""
    short = [*told, "packing.max_token_len=512", "output.name=mine"]
    assert run_here(*short, "packing.overlong=drop", cwd=tmp_path)[0] == 0
    made = tmp_path / "packed" / "mine"
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    code, out, errors = run_here(*short, cwd=tmp_path)
    assert (code, "there already" in out) == (3, False)
    assert "40 overlong samples have 36% of all tokens, packing.max_dropped_tokens=0.1 allows less" in errors
    assert "wrong: 29.2k tokens (36%) are dropped" in out
    code, out, _ = run_here(*short, "packing.overlong=drop", cwd=tmp_path)
    assert (code, "there already" in out, "wrong:" in out) == (0, True, False)  # what was decided
    assert out.count("skipped: 40 overlong, 29,234 tokens, 35.52% of all") == 1
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before


def test_a_source_rewritten_with_its_time_kept_is_not_there_already(
    tmp_path: Path, told: list[str], demo: tuple[Path, Path]
) -> None:
    """Its headers tell, as they tell a run that writes; the run after it measures the shard anew."""
    source = tmp_path / "source"
    shutil.copytree(demo[0], source)
    one = [*told, f"source.path={source}", f"cache_dir={tmp_path / 'cache'}", "output.name=mine"]
    assert run_here(*one, cwd=tmp_path)[0] == 0
    renamed_in_place(source / "demo-000000.tar")
    code, _, errors = run_here(*one, cwd=tmp_path)
    assert (code, "demo-000000.tar changed since it was measured" in errors) == (1, True)


def test_another_source_under_the_same_name_is_refused(
    tmp_path: Path, told: list[str], demo: tuple[Path, Path]
) -> None:
    """It is seen when lengths are known, for its settings are the same."""
    one = [*told, "output.name=mine"]
    assert run_here(*one, cwd=tmp_path)[0] == 0
    other = [f"source.path=[{next(iter(sorted(demo[0].glob('*.tar'))))}]" if "source.path" in it else it for it in one]
    code, _, errors = run_here(*other, cwd=tmp_path)
    assert (code, "mine exists, packed of another source" in errors) == (1, True)


def test_equal_jobs_of_a_sweep_are_done_once(tmp_path: Path, told: list[str]) -> None:
    sweep = [*told, "-m", "measure.engine=auto,words", "stage=plan"]
    code, out, errors = run_here(*sweep, cwd=tmp_path)
    assert (code, errors) == (0, "")
    assert out.count("see it: packed/") == 1
    assert "job 1: the same as job 0" in out
    rows = last_sweep(tmp_path / "packed")["rows"]
    assert [row["packs"] for row in rows] == [11, 11]
    assert rows[0]["page"] == rows[1]["page"]


def test_one_name_for_all_jobs_is_refused(tmp_path: Path, told: list[str]) -> None:
    """The page of the last job was that of all, and the sweep's page linked it twice."""
    sweep = [*told, "-m", "packing.max_token_len=4096,8192", "stage=plan"]
    code, _, errors = run_here(*sweep, "output.name=mine", cwd=tmp_path)
    assert code == 1
    assert errors.count("job 0 of this sweep writes") == 1
    assert "mine.plan.html, too, with other settings: leave output.name out" in errors
    assert [row["packs"] for row in last_sweep(tmp_path / "packed")["rows"]] == [21]
    assert run_here(*sweep, "output.name='mine-${packing.max_token_len}'", cwd=tmp_path)[0] == 0


def test_the_best_of_a_sweep_drops_what_it_may(tmp_path: Path, told: list[str]) -> None:
    """512 tokens drop 36 %, 256 more; the limit is no figure of a plan: each job has to leave it."""
    sweep = [*told, "-m", "packing.max_token_len=256,512", "packing.max_dropped_tokens=0.4", "stage=plan"]
    code, out, errors = run_here(*sweep, cwd=tmp_path)
    assert (code, errors, last_sweep(tmp_path / "packed")["best"]) == (0, "", 1)
    assert "\n1★ " in out
