"""Records of other tools through the whole command: measured, written, verified against their source, unpacked."""

import json
from pathlib import Path

from support.packed import json_lines, samples
from support.running import command_here
from support.samples import picture, write_tar

TURNS = [{"speaker": "Alice", "utterance": "q"}, {"speaker": "Bob", "utterance": "a"}]
NAMES = [
    "source.columns.messages=dialog", "source.columns.role=speaker", "source.columns.content=utterance",
    "source.roles.user=Alice", "source.roles.assistant=Bob",
]  # fmt: skip


def packed(folder: Path, *arguments: str) -> list[list[str]]:
    """Roles and contents of each packed sample, after `verify --source` found them to be those of the source."""
    own = ["+model=qwen2_5_vl", "output.dir=out", "output.name=packed", "max_skipped=0.7", "executor.num_workers=1"]
    result = command_here("energon_pack", *own, *arguments, cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    there = folder / "out/packed"
    clean = command_here("energon_pack.verify", str(there), "--source", "--num-workers", "1", cwd=folder)
    assert (clean.returncode, clean.stderr) == (0, ""), clean.stdout
    packs = [json.loads(parts["json"]) for parts in samples(there).values()]
    members = [member["messages"] for pack in packs for member in pack["messages"]]
    return sorted([f"{m['role']}: {m['content']}" for m in messages] for messages in members)


def test_lines_of_several_dialects(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """The one file had a packed sample of six; documents and videos' paths were read otherwise by each stage."""
    records = [
        {"instruction": "i", "input": "j", "output": "a"},
        {"texts": [{"user": "q", "assistant": "a", "source": "s"}], "images": ["a.png"]},
        {"texts": ["t", None], "images": [None, "a.png"]},
        {"conversations": [{"from": "user", "value": "<img>a.png</img>"}, {"from": "assistant", "value": "a"}]},
        {"instruction": "i", "output": "a", "query": "q", "response": "r"},
        {"texts": ["t", None], "images": [None, "https://x.y/a.png"]},
    ]
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (data / "a.png").write_bytes(picture(56, 56, "PNG"))
    assert packed(tmp_path, "source=jsonl", "source.path=data", f"model.processor={demo[1]}") == [
        ["user: <image>", "assistant: a"],
        ["user: <image>q", "assistant: a"],
        ["user: i\nj", "assistant: a"],
    ]
    ledger = {entry["sample_id"]: entry["reason"] for entry in json_lines(tmp_path / "out/packed/skipped.jsonl")}
    bad = dict.fromkeys(("a.jsonl:3", "a.jsonl:5"), "bad_message")
    assert ledger == {**bad, "a.jsonl:6": "unsupported_media"}


def test_tars_with_other_names(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """A setting that only one of the stages followed would be a damaged dataset."""
    members = {"1.json": json.dumps({"dialog": TURNS, "id": 1}).encode(), "1.png": picture(56, 56, "PNG")}
    write_tar(tmp_path / "data" / "a.tar", members)
    own = [*NAMES, "source.path=data", f"model.processor={demo[1]}"]
    assert packed(tmp_path, *own) == [["user: <image>q", "assistant: a"]]
    unpacked = command_here("energon_pack.unpack", "out/packed", "single", cwd=tmp_path)
    assert unpacked.returncode == 0, unpacked.stderr
    [parts] = samples(tmp_path / "single").values()
    assert [turn["role"] for turn in json.loads(parts["json"])["messages"]] == ["user", "assistant"]
