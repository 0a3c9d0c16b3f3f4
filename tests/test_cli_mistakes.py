"""Every mistake on the command line is one line that names the value and the fix."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.marks import slow
from support.running import run_alone, run_here

MISTAKES: list[tuple[list[str], list[str]]] = [
    ([], ["+model=NAME", "qwen2_5_vl"]),
    (["+model=qwen9"], ["qwen9", "did you mean qwen3_5"]),
    (["../x.jsonl"], ["../x.jsonl: not of the form KEY=VALUE; did you mean source.path=../x.jsonl?"]),
    (["unpak", "packed/x", "out"], ["did you mean energon-pack unpack packed/x out?"]),
    (["+model=qwen2_5_vl", "source.path=a,b"], ["needs -m", "'source.path=[a,b]'"]),
    (["+model=qwen2_5_vl", "media.num_frames=8"], ["media=uniform media.num_frames=8"]),
    (["+model=[qwen2_5_vl,qwen2_5_vl]"], ["one model"]),
    (["+model=qwen2_5_vl", "--stage=plan"], ["settings have no dashes: stage=plan"]),
    (["+model=qwen2_5_vl", "packing.max_tokn_len=8"], ["packing.max_tokn_len=8", "packing.max_token_len"]),
    (["+model=qwen2_5_vl", "packing.max_packed_tokens=8"], ["near it: packing.max_", "energon-pack --help packing"]),
    (["model=/models/x"], ["model=/models/x", "write model.processor=/models/x"]),
    (["+model=qwen2_5_vl", "packing.topology=8"], ["packing.topology=8", "there are: packing.topology.data_parallel"]),
    (["+model=qwen2_5_vl", "packing.max_token_len=8k"], ["packing.max_token_len=8k", "8k"]),
    (["+model=qwen2_5_vl", "packing.max_token_len=0"], ["packing.max_token_len=0", "at least 1"]),
    (["+model=qwen2_5_vl", "packing.algorithm=best"], ["packing.algorithm=best", "best_fit_decreasing"]),
    (["+model=qwen2_5_vl", "packing.pad_to_multiple_of=3"], ["packing.pad_to_multiple_of=3", "8192"]),
    (["+model=qwen2_5_vl", "executor=slurm", "executor.num_tasks=0"], ["executor.num_tasks=0: must be at least 1"]),
    (["+model=qwen2_5_vl", "stage=write", "part=2/2"], ["part=2/2: must be NUMBER/PARTS"]),
    (["+model=qwen2_5_vl", "output.name=a/b"], ["output.name='a/b'"]),
    (["+model=qwen2_5_vl", "output.dir=/proc/nowhere"], ["/proc/nowhere"]),
    (["+model=qwen2_5_vl", "output.dir=o=1"], ["output.dir=o=1", "'output.dir=\"o=1\"'"]),
    (["+model=qwen2_5_vl", "output.sample_loader_py=true", "output.sample_type=a.B"], ["a.B", "module:Class"]),
    (["+model=qwen2_5_vl", "model.chat_template='{% if %}'"], ["chat template", "line 1"]),
    (
        ["+model=qwen2_5_vl", "labels.expand=pairs", "labels.train_on=last"],
        ["labels.expand=pairs: each part of a sample would have a last turn of its own", "labels.expand=turns"],
    ),
    (["-m", "+model=qwen2_5_vl", "output.max_shard_packs=0", "seed=0,1"], ["output.max_shard_packs=0"]),
]

#: siblings, each found by what finds one of those above
MORE_MISTAKES: list[tuple[list[str], list[str]]] = [
    (["+model=Qwen2.5-VL"], ["Qwen2.5-VL", "did you mean qwen2_5_vl?"]),
    (["model=qwen2_5_vl"], ["+model=qwen2_5_vl"]),
    (["+model=qwen2_5_vl", "source.path=it's"], ["goes in quotes: 'source.path=\"it'\"'\"'s\"'"]),
    (["+model=qwen2_5_vl", "packing.max_token_len=8,16"], ["packing.max_token_len=8,16", "needs -m"]),
    (["+model=qwen2_5_vl", "media.fps=2"], ["media=fps media.fps=2"]),
    (["+model=qwen2_5_vl", "media.image=resize_longest_side"], ["needs media.longest_side"]),
    (["+model=qwen2_5_vl", "media.image=resize"], ["media.image=resize is unknown", "center_crop"]),
    (["+model=qwen2_5_vl", "packing.max_dropped_tokens=10"], ["packing.max_dropped_tokens=10", "0 to 1"]),
    (["--model", "qwen2_5_vl"], ["settings have no dashes", "+model="]),
    (["+model=qwen2_5_vl", "--packing.max-token-len=8"], ["no dashes: packing.max_token_len=8"]),
    (["+model=qwen2_5_vl", "packing=flat"], ["flat", "neat, thd"]),
    (["+model=qwen2_5_vl", "+packing.max_tokn_len=8"], ["packing.max_tokn_len", "packing.max_token_len"]),
    (["+model=qwen2_5_vl", "packing.data_parallel_size=8"], ["did you mean packing.topology.data_parallel?"]),
    (["+model=qwen2_5_vl", "packing.max_seq_len=8"], ["packing.max_seq_len; did you mean packing.max_token_len?"]),
    (["+model=qwen2_5_vl", "max_pixels=8"], ["max_pixels; did you mean model.max_pixels?"]),
    (["+model=qwen2_5_vl", "model.model_name_or_path=/x"], ["did you mean model.processor?"]),
    (
        ["+model=qwen2_5_vl", "-m", "packing.max_token_len=8,", "16"],
        ["max_token_len=8,: a list of values has no blanks"],
    ),
    (["+model=qwen2_5_vl", "packing.topolgy.workers=8"], ["did you mean packing.topology.workers?"]),
    (["+model=qwen2_5_vl", "+sorce.path=x"], ["sorce", "source"]),
    (["+model=qwen2_5_vl", "+data.wds_dir=x"], ["unknown key data.wds_dir; there are: cache_dir, executor, labels"]),
    (["+model=qwen2_5_vl", "sample.max_token_len=8"], ["sample.max_token_len; did you mean packing.max_token_len?"]),
    (["+model=qwen2_5_vl", "source.path=/nowhere/wds"], ["source.path=/nowhere/wds"]),
    (["+model=qwen2_5_vl", "source=jsonl"], ["source=jsonl needs source.path"]),
    (["+model=qwen2_5_vl", "executor.sbatch=--exclusive"], ["executor.sbatch=--exclusive is for executor=slurm"]),
    (
        ["+model=qwen2_5_vl", "executor=slurm", "executor.sbatch={plans: --mem=8G}"],
        ["executor.sbatch={plans: --mem=8G}"],
    ),
    (["+model=qwen2_5_vl", "executor.task.max_retries=9"], ["executor.task={'max_retries': 9} is for executor=ray"]),
    (["+model=qwen2_5_vl", "executor=slurm", "executor.address=auto"], ["executor.address=auto is for executor=ray"]),
    (["+model=qwen2_5_vl", "executor=slurm", "stage=plan"], ["stage=plan takes executor=local"]),
    (["+model=qwen2_5_vl", "executor=slurm", "output.dir=s3://b/p"], ["cache on an object store", "cache_dir=FOLDER"]),
    (["+model=qwen2_5_vl", "part=1/2"], ["part=1/2: stage=all has no parts"]),
    (["+model=qwen2_5_vl", "report.lens=[0]"], ["report.lens"]),
    (["+model=qwen2_5_vl", "source.path=3"], ["source.path=3"]),
    (["+model=qwen2_5_vl", "model.processor=/nowhere"], ["model.processor=/nowhere"]),
    (["+model=qwen2_5_vl", "model.factor=32"], ["model.factor"]),
    (["+model=qwen2_5_vl", "output.dir="], ["output.dir"]),
    (["-m", "+model=qwen2_5_vl", "output.dir=o=1"], ["output.dir=o=1", "'output.dir=\"o=1\"'"]),
    (["+model=qwen2_5_vl", "seed"], ["seed: not of the form KEY=VALUE"]),
    (["+model=qwen2_5_vl", "packing.algorithm=hashbucket"], ["packing.algorithm=hashbucket", "auto, balanced"]),
    (["+model=qwen2_5_vl", "output.sample_type=a:B"], ["output.sample_type=a:B", "output.sample_loader_py=true"]),
    (["+model=qwen2_5_vl", "output.sample_loader_py=true"], ["output.sample_type=module:Class"]),
    (
        ["+model=qwen2_5_vl", "model.min_pixels=9", "model.max_pixels=8"],
        ["model.min_pixels=9", "model.max_pixels=8"],
    ),
    (["+model=qwen2_5_vl", "model.processor_kwargs.max_pixels=much"], ["longest_edge", "much"]),
    (["+model=qwen2_5_vl", "labels.think=hide"], ["labels.think=hide", "drop_history"]),
    (["+model=qwen2_5_vl", "labels.prompt_weight=-1"], ["labels.prompt_weight=-1", "at least 0"]),
    (
        ["+model=qwen2_5_vl", "labels.train_on=last", "packing.overlong=split_turns"],
        ["labels.train_on=last and packing.overlong=split_turns", "packing.overlong=drop"],
    ),
    (["-m", "packing.max_token_len=4096,8192"], ["+model=NAME"]),
]


def is_tried_alone(arguments: list[str]) -> bool:
    """Nothing is asked yet, and a job of a sweep; the rest only in `make test-slow`."""
    return not arguments or any(argument.startswith("output.max_shard") for argument in arguments)


@pytest.mark.parametrize(("arguments", "names"), [*MISTAKES, *(slow(*mistake) for mistake in MORE_MISTAKES)])
def test_mistakes_are_one_line(tmp_path: Path, arguments: list[str], names: list[str]) -> None:
    check_mistake(run_here, tmp_path, arguments, names)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [mistake if is_tried_alone(mistake[0]) else slow(*mistake) for mistake in [*MISTAKES, *MORE_MISTAKES]],
)
def test_mistakes_are_one_line_of_a_process(tmp_path: Path, arguments: list[str], names: list[str]) -> None:
    """Nothing that is imported or started on the way adds another."""
    check_mistake(run_alone, tmp_path, arguments, names)


def test_the_right_guess_is_all_that_is_said(tmp_path: Path) -> None:
    """Fifty names followed it."""
    _, _, errors = run_here("+model=Qwen2.5-VL", cwd=tmp_path)
    assert errors == "energon-pack: error: no model 'Qwen2.5-VL'; did you mean qwen2_5_vl?\n"


@pytest.mark.parametrize("settings", [["media.fps=2"], ["model.processor=/nowhere", "source.path=."]])
def test_what_needs_no_data_is_told_before_any_is_read(
    tmp_path: Path, settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took 25 s: the source was indexed and the processor loaded first."""
    (tmp_path / "a.tar").write_bytes(bytes(10240))

    def never(*_: object) -> None:
        raise AssertionError("it began to work")

    monkeypatch.setattr("energon_pack.stages.measuring.index_source", never)
    assert run_here("+model=qwen2_5_vl", *settings, cwd=tmp_path)[0] == 1


def check_mistake(
    start: Callable[..., tuple[int, str, str]], folder: Path, arguments: list[str], names: list[str]
) -> None:
    code, _, errors = start(*arguments, cwd=folder)
    assert code == 1
    assert len(errors.splitlines()) == 1, errors
    assert errors.startswith("energon-pack: error: ")
    assert all(name in errors for name in names), errors


def test_an_interrupt_while_the_package_is_imported_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the first half second printed twelve lines of imports."""

    class Interrupted:
        @property
        def main(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "energon_pack.cli", Interrupted())
    with pytest.raises(SystemExit, match="130"):
        runpy.run_module("energon_pack", run_name="__main__")
