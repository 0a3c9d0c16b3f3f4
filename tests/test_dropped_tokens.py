"""Much that is dropped is dropped by name alone, and what the page calls wrong is on the terminal."""

from pathlib import Path

from support.packed import files
from support.running import run_here


def test_much_is_dropped_by_name_alone(tmp_path: Path, cache: Path) -> None:
    """Nine pictures were 32 % of the tokens, nineteen clips 99 %: `skipped: 9 overlong`, exit code 0."""
    short = ["+model=qwen2_5_vl", f"cache_dir={cache}", "packing.max_token_len=512"]
    code, out, errors = run_here(*short, cwd=tmp_path)
    assert code == 3
    assert len(errors.splitlines()) == 1
    assert "40 overlong samples have 36% of all tokens, packing.max_dropped_tokens=0.1 allows less" in errors
    assert "packing.overlong=drop" in errors
    assert "skipped: 40 overlong, 29,234 tokens, 35.52% of all" in out
    assert "wrong: 29.2k tokens (36%) are dropped: 40 samples are longer than 512" in out
    assert {path.name for path in (tmp_path / "packed").iterdir()} == {
        "demo-qwen2_5_vl-neat-512.report.html", "demo-qwen2_5_vl-neat-512.skipped.jsonl",
    }  # fmt: skip

    code, out, _ = run_here(*short, "stage=plan", cwd=tmp_path)  # which is there to see it
    assert (code, "wrong: 29.2k tokens (36%) are dropped" in out) == (0, True)

    code, out, _ = run_here(*short, "packing.overlong=drop", cwd=tmp_path)  # a decision: it is told once, as no fault
    assert (code, "wrong:" in out) == (0, False)
    assert out.count("29,234 tokens, 35.52% of all") == out.count("overlong") == 1
    code, _, _ = run_here(*short, "packing.max_dropped_tokens=0.36", "output.name=other", cwd=tmp_path)
    assert code == 0
    made = tmp_path / "packed"
    assert files(made / "other") == files(made / "demo-qwen2_5_vl-neat-512")  # and the name has no hash


def test_little_is_dropped_as_ever(tmp_path: Path, cache: Path) -> None:
    """5 samples of 320: 7 % of the tokens."""
    code, out, _ = run_here("+model=qwen2_5_vl", f"cache_dir={cache}", "packing.max_token_len=1024", cwd=tmp_path)
    assert code == 0
    assert "wrong:" not in out
