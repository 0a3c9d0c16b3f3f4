"""A user's own step on each record, `source.map=module:function`: packs hold what it makes, whoever reads a sample.

Each run is the command line in a folder of its own, where the step lies beside the data, as a user has it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import PackConfig, plain
from energon_pack.config.compose import compose_config
from energon_pack.config.naming import content_settings
from energon_pack.errors import PackError
from energon_pack.samples.raw_record import apply_map_function
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.sources.settings import SourceConfig
from support.marks import slow
from support.packed import json_lines, samples
from support.running import command, command_here
from support.samples import picture, write_tar

STEP = """
def shorten(record):
    if record.get("spam"):
        return None
    if record.get("broken"):
        raise KeyError("broken")
    record["prompts"] = [text.split(" ||")[0] for text in record["prompts"]]
    return record

def split(record):
    return [record, record]

def whole(record):
    return record

def odd(record):
    return {"prompts": {1, 2}}

class Counted:
    def __init__(self):
        self.seen = 0

    def record(self, record):
        self.seen += 1
        return {**record, "number": self.seen}

class Bare:
    pass

class Needy(Counted):
    def __init__(self, file):
        self.file = file
"""
Write = Callable[[Path], list[str]]
LINES: list[dict[str, Any]] = [
    {"prompts": ["one || and much more that nobody wants to learn from"], "captions": ["yes"]},
    {"prompts": ["two"], "captions": ["no"], "spam": True},
    {"prompts": ["three"], "captions": ["no"], "broken": True},
    {"prompts": ["<image>four || five six"], "captions": ["yes"], "images": ["a.png"]},
]


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A step in the current folder, under a name of its own: a process keeps what it has imported."""
    monkeypatch.chdir(tmp_path)
    name = "step_" + "".join(filter(str.isalnum, tmp_path.name))
    (tmp_path / f"{name}.py").write_text(STEP)
    return name


def write_lines(folder: Path) -> list[str]:
    (folder / "a.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    (folder / "a.png").write_bytes(picture(56, 56, "PNG"))
    return ["source=jsonl", "source.path=a.jsonl"]


def write_tars(folder: Path) -> list[str]:
    """The same samples, with keys as the numbers of the lines."""
    members = {}
    for number, line in enumerate(LINES, 1):
        names = line.get("images", [])
        members[f"{number}.json"] = json.dumps({key: value for key, value in line.items() if key != "images"}).encode()
        members |= {f"{number}.png": picture(56, 56, "PNG") for _ in names}
    write_tar(folder / "tars" / "a.tar", members)
    return ["source.path=tars"]


@pytest.mark.parametrize("write", [slow(write_lines), write_tars])
def test_packs_hold_what_the_step_makes(write: Write, step: str, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Measured, written, verified, looked at and unpacked: a reader without the step would give other texts."""
    own = [f"source.map={step}:shorten", "+model=qwen2_5_vl", f"model.processor={demo[1]}"]
    out = ["output.dir=out", "output.name=packed", "max_skipped=0.5", "executor.num_workers=1"]
    result = command_here("energon_pack", *write(tmp_path), *own, *out, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "out/packed"
    packs = [json.loads(parts["json"]) for parts in samples(folder).values()]
    asked = sorted(member["messages"][0]["content"] for pack in packs for member in pack["messages"])
    assert asked == ["<image>four", "one"]
    ledger = {
        entry["sample_id"][-1]: (entry["reason"], entry["detail"]) for entry in json_lines(folder / "skipped.jsonl")
    }
    assert ledger == {
        "2": ("left_out_by_map", f"{step}:shorten returned None"),
        "3": ("map_error", f"{step}:shorten raised KeyError: 'broken'"),
    }
    verify = ("energon_pack.verify", str(folder), "--source", "--num-workers", "1")
    refused = command_here(*verify, cwd=tmp_path)
    assert refused.returncode == 1
    assert f"--map {step}:shorten runs that code" in refused.stderr
    clean = command_here(*verify, "--map", f"{step}:shorten", cwd=tmp_path)
    assert (clean.returncode, clean.stderr) == (0, ""), clean.stdout
    shown = command_here(
        "energon_pack.inspect", "--source", write(tmp_path)[-1].partition("=")[2], *own, *write(tmp_path)[:-1], "1",
        cwd=tmp_path,
    )  # fmt: skip
    assert f"left_out_by_map: {step}:shorten returned None" in shown.stdout
    assert command_here("energon_pack.unpack", str(folder), "single", cwd=tmp_path).returncode == 0
    texts = [json.dumps(parts["json"].decode()) for parts in samples(tmp_path / "single").values()]
    assert len(texts) == 2
    assert not any("||" in text for text in texts)


@pytest.mark.slow
def test_another_version_of_the_step_measures_anew(step: str, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """In processes of their own, with workers, by a console script: nobody has the folder on his path."""
    arguments = [*write_lines(tmp_path), f"source.map={step}:shorten", "+model=qwen2_5_vl", "output.dir=out"]
    arguments += [f"model.processor={demo[1]}", "max_skipped=0.5", "executor.num_workers=2", "measure.verify=1"]
    script = "import sys; sys.path.pop(0); from energon_pack.cli import main; main()"
    first = command("-c", script, *arguments, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    again = command("-c", script, *arguments, cwd=tmp_path)
    assert "there already" in again.stdout
    (tmp_path / f"{step}.py").write_text(
        STEP.replace("return record\n", 'return record | {"system": "Be brief."}\n', 1)
    )
    other = command("-c", script, *arguments, cwd=tmp_path)
    assert other.returncode == 0, other.stderr
    reports = [json.loads(path.read_text()) for path in sorted((tmp_path / "out").glob("*/report.json"))]
    assert len(reports) == 2
    assert len({report["tokens"] for report in reports}) == 2


def test_the_file_of_a_step_is_part_of_what_results_are_kept_by(step: str, tmp_path: Path) -> None:
    """Or lengths of another version would be taken from the cache, and its dataset would be there already."""
    (tmp_path / f"{step}_b.py").write_text(STEP + "\n# another version\n")
    configs = [PackConfig(source=SourceConfig(map=f"{name}:shorten")) for name in (step, f"{step}_b")]
    hashes = [str(config.source.map).partition("#")[2] for config in configs]
    assert [len(text) for text in hashes] == [12, 12]
    assert hashes[0] != hashes[1]
    assert configs[0].source.reading.identity["map"] == configs[0].source.map
    assert content_settings(plain(configs[0]))["source"]["map"] == configs[0].source.map
    assert SourceConfig(map=configs[0].source.map) == configs[0].source
    with pytest.raises(PackError, match=r"the file of .*:shorten has changed since"):
        SourceConfig(map=f"{step}:shorten#0123456789ab")


def test_without_a_step_nothing_changes() -> None:
    """What was measured, and datasets that were packed, before there were steps are still found."""
    assert "map" not in ReadSettings().identity
    assert "map" not in content_settings(plain(PackConfig()))["source"]
    value = {"messages": [{"role": "user", "content": "x"}]}
    assert apply_map_function(value, ReadSettings()) is value


def test_what_a_step_may_return(step: str) -> None:
    """A record, or None; anything else costs that sample, by name."""
    for name, reason, detail in (
        ("split", "map_error", "returned a list, not a record or None"),
        ("odd", "map_error", "returned what JSON can't hold: Object of type set is not JSON serializable"),
    ):
        with pytest.raises(Skip, match=detail) as skip:
            apply_map_function({"prompts": ["a"]}, ReadSettings(map=f"{step}:{name}"))
        assert skip.value.reason == reason
    listed = apply_map_function([{"role": "user"}], ReadSettings(map=f"{step}:whole"))
    assert listed == {"messages": [{"role": "user"}]}  # a list at the root is a list of messages
    assert apply_map_function("text", ReadSettings(map=f"{step}:whole")) == "text"  # which is refused for what it is


def test_a_class_is_a_step_by_its_method_record(step: str) -> None:
    """It loads what it needs once in a process; without this, a function would keep it in a global."""
    settings = ReadSettings(map=f"{step}:Counted")
    assert [apply_map_function({"prompts": ["a"]}, settings)["number"] for _ in range(2)] == [1, 2]
    with pytest.raises(PackError, match=r"Bare is a class without a method record\(self, record\)"):
        SourceConfig(map=f"{step}:Bare")
    with pytest.raises(PackError, match=r"Needy: TypeError: .*missing 1 required positional argument: 'file'"):
        SourceConfig(map=f"{step}:Needy")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere:f", "source.map=nowhere:f: ModuleNotFoundError"),
        ("json", "source.map=json: code is named module:attribute"),
        ("json:nothing", "source.map=json:nothing: AttributeError"),
        ("math:pi", "source.map=math:pi is a float, not a function"),
        ("sys:getsizeof", "source.map=sys:getsizeof has no source to read"),
    ],
)
def test_a_step_that_is_none_is_refused_before_any_work(name: str, says: str) -> None:
    with pytest.raises(PackError, match=f"^{says}"):
        compose_config(["+model=qwen2_5_vl", f"source.map={name}"])
