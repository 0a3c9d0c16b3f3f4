"""The command line as users meet it: what a run says, names and leaves; mistakes are in test_cli_mistakes.py."""

import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from energon_pack import LazyPackedDataset, StreamingPackedDataset, cli, compose_config
from energon_pack.config import PackConfig, conf_dir
from energon_pack.config.compose import config_of
from energon_pack.config.naming import output_name
from energon_pack.dataset.manifest import read_manifest
from energon_pack.errors import PackError
from energon_pack.pack import pack
from support.html_page import check_page
from support.marks import slow
from support.packed import copy_templates
from support.running import PIPELINE, ROOT, command, run_alone, run_here
from support.samples import chat, write_tar


@pytest.fixture
def shared(cache: Path) -> str:
    """The cache of all tests, where what is asked has nothing to do with it: the demo and its template are there."""
    return f"cache_dir={cache}"


def test_a_published_processor_offline_is_one_line(tmp_path: Path, demo: tuple[Path, Path]) -> None:
    """A real source with the model's published processor: the toy is never used instead."""
    code, _, errors = run_alone("+model=qwen2_5_vl", f"source.path={demo[0]}", cwd=tmp_path)
    assert code == 1
    assert "Qwen/Qwen2.5-VL-7B-Instruct" in errors
    assert "model.processor=FOLDER" in errors


def test_a_refused_run_leaves_nothing(tmp_path: Path, demo: tuple[Path, Path]) -> None:
    """Not even a folder: the output may lie in the source, or may be the user's own empty one."""
    shutil.copytree(demo[0], tmp_path / "source")
    (tmp_path / "mine").mkdir()
    before = sorted(tmp_path.rglob("*"))
    wrong = (
        ["source.path=/nowhere"],
        ["source.path=source", "output.dir=source/deep/er"],
        ["output.dir=mine", "seed=x"],
    )
    for arguments in wrong:
        assert run_here("+model=qwen2_5_vl", *arguments, cwd=tmp_path)[0] == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_the_demo(tmp_path: Path, typed_demo: Path) -> None:
    """A first run, in a process of its own, and others after it."""
    shutil.copytree(typed_demo / "packed", tmp_path / "packed")
    out = (typed_demo / "out.txt").read_text()
    assert "verified: 1 sample in the full processor" in out
    assert out.splitlines()[0].startswith("built-in demo")
    assert "packed into packed/demo-qwen2_5_vl-neat-8192" in out
    config = json.loads((tmp_path / "packed/demo-qwen2_5_vl-neat-8192/report.json").read_text())["config"]
    assert config["packing"]["max_token_len"] == 8192
    assert run_here("+model=qwen2_5_vl", cwd=tmp_path)[0] == 0  # a demo may be run again; a dataset is kept:
    cached = tmp_path / "packed" / ".cache" / "demo" / "v1"
    given = ["+model=qwen2_5_vl", f"source.path={cached}/source", f"model.processor={cached}/processor"]
    (tmp_path / "packed" / "demo-qwen2_5_vl-neat-8192").rename(tmp_path / "packed" / "source-qwen2_5_vl-neat-8192")
    code, _, errors = run_here(*given, "seed=1", "output.name=source-qwen2_5_vl-neat-8192", cwd=tmp_path)
    assert code == 1
    assert "output.overwrite=true" in errors


@pytest.mark.slow
def test_an_ascii_locale_ends_no_run(tmp_path: Path, demo: tuple[Path, Path], shared: str) -> None:
    write_tar(tmp_path / "s" / "ä.tar", {"ключ.json": chat("a", "b"), "плохо.json": b"{"})
    arguments = ["+model=qwen2_5_vl", "source.path=s", "max_skipped=1", "output.name=x"]
    arguments += [f"model.processor={demo[1]}", shared]
    script = ["-X", "utf8=0", "-m", "energon_pack", *arguments]
    result = command(*script, cwd=tmp_path, LC_ALL="C", PYTHONCOERCECLOCALE="0")
    assert result.returncode == 0, result.stderr
    assert "плохо" in (tmp_path / "packed" / "x" / "skipped.jsonl").read_text(encoding="utf-8")


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    """As a file size limit, which fails in the same place."""
    script = (
        "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, 2**18));"
        "runpy.run_module('energon_pack', run_name='__main__')"
    )
    result = command("-c", script, "+model=qwen2_5_vl", cwd=tmp_path)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert not list(tmp_path.glob("packed/demo*"))


@pytest.mark.usefixtures("template")
def test_a_sweep_measures_once_into_folders_of_their_own(tmp_path: Path, cache: Path) -> None:
    copy_templates(cache, tmp_path / "packed" / ".cache")
    code, _, errors = run_here("-m", "+model=qwen2_5_vl", "packing.max_token_len=2048,4096", cwd=tmp_path)
    assert code == 0, errors
    reports = [
        json.loads((tmp_path / "packed" / f"demo-qwen2_5_vl-neat-{length}" / "report.json").read_text())
        for length in (2048, 4096)
    ]
    assert [report["cache"]["shards_measured"] for report in reports] == [3, 0]
    assert [report["samples_packed"] for report in reports] == [320, 320]


def test_a_failing_job_of_a_sweep_does_not_stop_the_others(tmp_path: Path, shared: str) -> None:
    """At 52 tokens every text sample is overlong: exit code 3, and its figures are in the table, in grey."""
    code, _, errors = run_here("+model=qwen2_5_vl", shared, "-m", "packing.max_token_len=52,2048", cwd=tmp_path)
    assert code == 3
    assert "every text sample was skipped" in errors
    assert (tmp_path / "packed/demo-qwen2_5_vl-neat-2048").is_dir()
    assert swept(tmp_path / "packed") == ([0, 1], [])
    assert "1 job done, 1 refused" in next((tmp_path / "packed").glob(".runs/*/sweep.html")).read_text()


def swept(folder: Path) -> tuple[list[int], list[int]]:
    """The jobs of a sweep that its page shows as done, and as failed."""
    (made,) = folder.glob(".runs/*-sweep/sweep.json")
    check_page(made.with_name("sweep.html").read_text())
    sweep = json.loads(made.read_text())
    return [row["number"] for row in sweep["rows"]], [job["number"] for job in sweep["failed"]]


def test_a_sweep_over_folders_has_one_page(tmp_path: Path, shared: str) -> None:
    """Each job's own folder of Hydra's is elsewhere then."""
    code, out, errors = run_here("-m", "+model=qwen2_5_vl", shared, "output.dir=a,b", "stage=lengths", cwd=tmp_path)
    assert code == 0, errors
    assert swept(tmp_path / "packed") == ([0, 1], [])
    assert "see it: " in out.splitlines()[-1]
    assert out.splitlines()[-1].endswith("sweep.html")


def test_an_interrupted_sweep_shows_what_is_done(tmp_path: Path, shared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours of jobs were done, and no page said what they came to."""
    jobs = []

    def pack_once(config: PackConfig) -> dict[str, Any]:
        jobs.append(config)
        if len(jobs) > 1:
            raise KeyboardInterrupt
        return pack(config)

    monkeypatch.setattr(PIPELINE, "pack", pack_once)
    code, _, errors = run_here("-m", "+model=qwen2_5_vl", shared, "stage=lengths", "seed=1,2,3", cwd=tmp_path)
    assert code == 130
    assert "interrupted" in errors
    assert swept(tmp_path / "packed") == ([0], [1])


def test_a_setting_makes_a_sweep_as_its_option_does(tmp_path: Path) -> None:
    """The option alone is looked at where no word is about Hydra."""
    code, _, errors = run_here("hydra.mode=MULTIRUN", "+model=qwen2_5_vl", "source.path=/a,/b", cwd=tmp_path)
    assert (code, errors.count("no such folder or file")) == (1, 2)


@pytest.mark.slow
def test_jobs_of_a_parallel_launcher_fail_and_are_named_as_others(
    tmp_path: Path, demo: tuple[Path, Path], shared: str
) -> None:
    """joblib's jobs run in processes of its own: an error ended there with exit code 0, their workers could not start,
    and two sources of one name had one folder."""
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="hydra-joblib-launcher is not installed")
    for folder in ("a/wds", "b/wds"):
        shutil.copytree(demo[0], tmp_path / folder)
    arguments = [f"model.processor={demo[1]}", "source.path=/nope,a/wds,b/wds", "executor.num_workers=2", shared]
    arguments.append("stage=plan")
    code, _, errors = run_alone("-m", "+model=qwen2_5_vl", *arguments, "hydra/launcher=joblib", cwd=tmp_path)
    assert code == 1
    assert "energon-pack: error: source.path=/nope: no such folder or file" in errors
    names = planned(tmp_path)
    assert len(names) == 2
    assert all(name.startswith("wds-qwen2_5_vl-neat-8192-") for name in names)
    assert swept(tmp_path / "packed") == ([1, 2], [0])


def test_paths_may_hold_an_equals_sign(tmp_path: Path, demo: tuple[Path, Path], shared: str) -> None:
    """The arguments of a sweep were read once more by hand, and anything with = was taken for an override."""
    (tmp_path / "my=conf").mkdir()
    shutil.copytree(demo[0], tmp_path / "a=b" / "wds")
    processor = f"model.processor={demo[1]}"
    source = "source.path='a=b/wds'"
    config_dir = ["--config-dir", str(tmp_path / "my=conf")]
    arguments = (*config_dir, "-m", "+model=qwen2_5_vl", processor, source, "stage=plan", shared)
    code, _, errors = run_here(*arguments, cwd=tmp_path)
    assert code == 0, errors


def planned(folder: Path) -> list[str]:
    """Names of the datasets that runs with stage=plan would write."""
    return sorted(path.name.removesuffix(".plan.html") for path in (folder / "packed").glob("*.plan.html"))


def test_other_settings_get_a_name_of_their_own(tmp_path: Path, shared: str) -> None:
    for setting in ("output.max_shard_packs=5", "model.processor_kwargs.max_pixels=200704", "packing=thd"):
        run_here("+model=qwen2_5_vl", setting, "stage=plan", shared, cwd=tmp_path)
    names = planned(tmp_path)
    assert len(names) == 3
    assert all(name.startswith("demo-qwen2_5_vl-neat-8192-") for name in names[:2])
    assert names[2] == "demo-qwen2_5_vl-thd-8192"


def test_a_run_says_how_even_its_steps_are(tmp_path: Path, shared: str) -> None:
    """Of 11 packs 512 ranks have no whole step: 1.000 would promise that none of them waits."""
    said = {}
    for ranks in (2, 512):
        topology = f"packing.topology.data_parallel={ranks}"
        _, out, _ = run_here("+model=qwen2_5_vl", "stage=plan", topology, shared, cwd=tmp_path)
        said[ranks] = [line for line in out.splitlines() if line.startswith("steps: ")]
    assert said[2][0].startswith("steps: 5 of train; 1 is the time of an epoch without waiting")
    three = r"1\.\d+ \(1\.\d+; 1\.\d+\)"
    assert re.fullmatch(rf"steps: language model {three}, vision encoder {three}, both {three}", said[2][1])
    assert re.fullmatch(r"steps: trained tokens of a step are off the mean by up to .*% \(.*%; .*%\)", said[2][2])
    assert said[512] == ["steps: none is whole, for 11 packs of train are fewer than a step has"]


def test_a_model_built_upon_another_has_a_name_of_its_own(tmp_path: Path, shared: str) -> None:
    """Both datasets would lie in one folder, and the second run would be refused, or replace the first."""
    (tmp_path / "conf" / "model").mkdir(parents=True)
    base = "defaults: [qwen2_5_vl]\n"
    (tmp_path / "conf" / "model" / "same.yaml").write_text(base)
    for name, pixels in (("small", 200704), ("smaller", 100352)):
        (tmp_path / "conf" / "model" / f"{name}.yaml").write_text(f"{base}max_pixels: {pixels}\n")
    for model in ("same", "small", "smaller"):
        assert run_here("--config-dir", "conf", f"+model={model}", "stage=plan", shared, cwd=tmp_path)[0] == 0
    names = planned(tmp_path)
    assert names[0] == "demo-qwen2_5_vl-neat-8192"
    assert len(names) == 3
    assert all(name.startswith("demo-qwen2_5_vl-neat-8192-") for name in names[1:])


@pytest.mark.parametrize("every", [pytest.param(8, id="an eighth of the models"), slow(1)])
def test_every_choice_of_groups_composes(every: int) -> None:
    """Values of each model are looked at in tests/templates/test_models.py, too."""
    from hydra import compose, initialize_config_dir

    from energon_pack.config.validate import to_config

    options: dict[str, list[str]] = {path.parent.name: [] for path in conf_dir().glob("*/*.yaml")}
    for path in conf_dir().glob("*/*.yaml"):
        options[path.parent.name].append(path.stem)
    assert set(options) == {"model", "media", "packing", "source", "executor"}
    models = options.pop("model")[::every]
    assert len(models) >= max(map(len, options.values()))  # so that each choice comes with some model
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        for number, model in enumerate(models):
            others = [f"{group}={names[number % len(names)]}" for group, names in options.items()]
            to_config(compose("config", [f"+model={model}", *others]))


def test_help_names_what_there_is(tmp_path: Path) -> None:
    code, out, _ = run_here("--help", cwd=tmp_path)
    assert code == 0
    for word in (
        "+model=NAME",
        "source.path",
        "packing: neat, thd",
        "model: audio_flamingo3, auto",
        "qwen2_5_vl",
        "Exit codes",
    ):
        assert word in out


def test_version(tmp_path: Path) -> None:
    assert run_alone("--version", cwd=tmp_path)[1].startswith("energon-pack 0.")
    assert run_here("-V", cwd=tmp_path)[1].startswith("energon-pack 0.")


def test_the_second_run_needs_no_transformers(tmp_path: Path) -> None:
    """Start-up is seconds the first time only; workers never import torch."""
    run_here("+model=qwen2_5_vl", "stage=plan", cwd=tmp_path)
    script = (
        "import atexit, sys\nfrom energon_pack.cli import main\n"
        "sys.argv = ['energon-pack', '+model=qwen2_5_vl', 'stage=plan', 'executor.num_workers=1']\n"
        "atexit.register(lambda: print({'torch', 'transformers'} & set(sys.modules)))\nmain()"
    )
    result = command("-c", script, cwd=tmp_path)
    assert (result.returncode, result.stdout.splitlines()[-1]) == (0, "set()"), result.stderr


_LOG_IMPORTS = """
import os, sys

class Log:
    def find_spec(self, name, path=None, target=None):
        if name in ("energon_pack", "torch", "transformers"):
            with open(os.environ["IMPORTS"], "a") as file:
                print(name, os.getpid(), file=file)

sys.meta_path.insert(0, Log())
"""


@pytest.mark.slow
def test_a_small_set_is_packed_by_two_processes(tmp_path: Path, demo: tuple[Path, Path]) -> None:
    """Torch takes seconds to import: the lengths, the verification and the look through Energon share one process,
    and a second run, which asks nothing anew, imports none.
    """
    (tmp_path / "sitecustomize.py").write_text(_LOG_IMPORTS)
    log = tmp_path / "imports"
    source = (f"source.path={min(demo[0].rglob('*.tar'))}", f"model.processor={demo[1]}", "executor.num_workers=8")
    for again in (False, True):
        log.write_text("")
        more = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "IMPORTS": str(log)}
        name = f"output.name={again}"
        result = command("-m", "energon_pack", "+model=qwen2_5_vl", *source, name, cwd=tmp_path, **more)
        assert result.returncode == 0, result.stderr
        imported = Counter(line.split()[0] for line in {*log.read_text().splitlines()})
        assert imported == ({"energon_pack": 2} | ({} if again else {"torch": 1, "transformers": 1}))


def test_groups_for_other_hydra_apps(tmp_path: Path) -> None:
    """Another app keeps its own `model` group, and can mount ours under its name, with all keys of the node."""
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "resnet.yaml").write_text("depth: 50\n")
    (tmp_path / "conf" / "config.yaml").write_text(
        "defaults:\n  - model: resnet\n  - energon_pack/packing@data.packing: thd\n"
        "  - energon_pack/source@data.source: jsonl\n  - _self_\n"
    )
    (tmp_path / "app.py").write_text(
        "import hydra\nfrom hydra.core.plugins import Plugins\n"
        "from energon_pack.hydra_plugin import EnergonPackSearchPath\n"
        "Plugins.instance().register(EnergonPackSearchPath)\n"
        "@hydra.main(version_base='1.3', config_path='conf', config_name='config')\n"
        "def main(cfg): print(cfg.model.depth, *[cfg.data.packing[key] for key in ('layout', 'max_token_len',"
        " 'pad_to_multiple_of', 'algorithm')], cfg.data.source.format, cfg.data.source.columns.messages)\nmain()\n"
    )
    overrides = ["data.packing.max_token_len=4096", "data.source.columns.messages=talk"]
    result = command(tmp_path / "app.py", *overrides, cwd=tmp_path)
    assert result.stdout == "50 thd 4096 8 auto jsonl talk\n", result.stderr
    assert "qwen2_5_vl" not in command(tmp_path / "app.py", "--info", "defaults", cwd=tmp_path).stdout


def test_the_page_on_hydra_packs_with_mounted_nodes(tmp_path: Path) -> None:
    """A user had to write a flattener of nodes into words; each job of a sweep replaced the dataset of the last."""
    page = (ROOT / "docs" / "hydra.md").read_text()
    [program] = [part for part in page.split("```text\n") if part.startswith("import hydra\n")]
    register = "from energon_pack.hydra_plugin import EnergonPackSearchPath\n"
    register += "from hydra.core.plugins import Plugins\nPlugins.instance().register(EnergonPackSearchPath)\n"
    (tmp_path / "app.py").write_text(register + program.partition("```")[0])
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("defaults: [energon_pack/packing@data.packing: thd, _self_]\n")
    few = command(tmp_path / "app.py", "data.packing.max_token_len=4096", cwd=tmp_path)
    assert few.returncode == 0, few.stderr
    assert read_manifest(tmp_path / "packed" / "mine_4096")["content"]["packing"]["max_token_len"] == 4096
    refused = command(tmp_path / "app.py", "data.packing.pad_to_multiple_of=-3", cwd=tmp_path)
    assert refused.returncode == 1
    assert "PackError: packing.pad_to_multiple_of=-3: must be at least 1" in refused.stderr


@pytest.mark.parametrize("use", [pack, LazyPackedDataset, StreamingPackedDataset])
def test_a_config_that_was_made_in_python_is_checked(use: Callable[[PackConfig], object], tmp_path: Path) -> None:
    """A multiple that the command line refuses was packed."""
    config = compose_config(["+model=qwen2_5_vl", f"output.dir={tmp_path}"])
    config = replace(config, packing=replace(config.packing, max_token_len=4096, pad_to_multiple_of=-3))
    with pytest.raises(PackError, match=r"^packing\.pad_to_multiple_of=-3: must be at least 1$"):
        use(config)
    assert [*tmp_path.iterdir()] == []


def test_a_config_that_was_made_in_python_may_name_the_file_of_a_template(tmp_path: Path) -> None:
    """It was taken for the name of one. The text may have an address that no setting may have."""
    text = "{# as in postgres://user:pw@host #}{% for m in messages %}{{ m.content }}{% endfor %}"
    (tmp_path / "chat.jinja").write_text(text)
    given = compose_config(["+model=qwen2_5_vl"])
    given.model.chat_template = str(tmp_path / "chat.jinja")
    assert config_of(given).model.chat_template == text
    assert config_of(config_of(given)) == config_of(given)
    assert given.model.chat_template == str(tmp_path / "chat.jinja"), "a caller's own config stays as it is"


def test_a_models_name_with_a_slash_is_no_folder() -> None:
    config = compose_config(["+model=qwen2_5_vl", "model.name=team/qwen"])
    assert output_name(config, config) == "demo-team_qwen-neat-8192"


def test_plugins_of_others_are_not_heard(tmp_path: Path) -> None:
    """multi-storage-client's search path plugin printed a traceback of 12 lines for each look."""
    (tmp_path / "exp").mkdir()
    code, _, errors = run_alone("+model=qwen2_5_vl", "hydra.searchpath=[file://exp]", "--cfg", "job", cwd=tmp_path)
    assert (code, errors) == (0, "")


def test_the_source_tree_is_the_one_that_runs() -> None:
    assert (ROOT / "energon_pack").samefile(Path(sys.modules["energon_pack"].__file__ or "").parent)


@pytest.mark.parametrize(
    "settings",
    [
        slow(["source.path=/x/a"]),
        ["packing=thd", "seed=1"],
        slow(["model.max_pixels=200704"]),
        ["source.path={a: {path: /x/a, weight: 2}, b: {path: /x/b}}"],  # two mixtures had one name
    ],
)
def test_an_output_has_the_same_name_whether_defaults_are_composed_or_known(
    settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Composing them is a tenth of a start; with another name a second run would pack everything again."""
    names: list[str | None] = []

    def pack_nothing(config: PackConfig, *_: object) -> dict[str, Any]:
        names.append(config.output.name)
        return {}

    monkeypatch.setattr(cli, "_pack", pack_nothing)
    run_here("+model=qwen2_5_vl", "stage=plan", *settings, cwd=tmp_path)
    monkeypatch.setattr(cli, "_keeps_the_name", lambda _: False)
    run_here("+model=qwen2_5_vl", "stage=plan", *settings, cwd=tmp_path)
    assert names[0] == names[1]
    assert names[0] is not None
