"""A new user sees in seconds what a source holds, what would be lost, and what to type next."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from energon_pack.plan.pack_lengths import LengthFigures, TriedLength
from energon_pack.report.terminal_summary import print_tried_lengths
from support.pairs import write_pairs
from support.running import command_here
from support.samples import chat, picture, video, write_tar


def tried(folder: Path, *words: str | Path) -> "subprocess.CompletedProcess[str]":
    return command_here("energon_pack.inspect.try_source", *words, cwd=folder)


def test_a_source_is_shown_from_its_form_to_the_next_command(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Without it a user packs first, and learns afterwards that the length was wrong."""
    source, processor = demo
    shown = tried(tmp_path, source, f"model.processor={processor}", "executor.num_workers=1")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("read as: WebDataset tars, ")
    assert lines[0].endswith("320 samples")
    assert sum(" tokens · " in line and " trained on (" in line for line in lines) == 5
    assert any("«" in line for line in lines)
    said = (
        "nothing, as far as texts and headers of media say: every sample can be packed, if it is not longer than a pack"
    )
    assert said in lines
    chosen = next(line for line in lines if line.startswith("packing.max_token_len="))
    rule = "the shortest that drops at most 1% of the tokens and fills 95% of its packs"
    assert chosen == f"packing.max_token_len=2048 is {rule}: it drops 0.00% of the tokens and fills 95.67% of its packs"
    kinds = [line.rpartition("  (")[2] for line in lines if line.startswith("demo-") and "samples (" in line]
    assert len(kinds) == 5
    assert kinds[:2] == [
        "140 of 320 text samples (44%), the longest)",
        "140 of 320 text samples (44%), of the rarest kind)",
    ]
    assert "180 of 320 image samples (56%))" in kinds
    assert any(line.startswith(f"energon-pack source.path={source} ") and line.endswith("=2048") for line in lines)
    assert "a pack holds 7.6 samples on average: divide your batch size by that" in shown.stdout, (
        "320 samples in 42 packs"
    )
    named = source.name
    assert f"torchrun recipes/train_ddp.py packed/{named} --model tiny --save checkpoints --max-steps 1" in lines
    assert any(line.startswith(f"python -m energon_pack.recipes tiny {processor} tiny") for line in lines)
    assert not any(tmp_path.iterdir())


def test_a_second_try_asks_no_processor(
    demo: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each `try` imported torch and transformers and measured anew: 8 s of a CPU."""
    words = (demo[0], f"model.processor={demo[1]}", "executor.num_workers=1")
    first = tried(tmp_path, *words)

    def never(*_: object) -> None:
        raise AssertionError("it is known")

    monkeypatch.setattr("energon_pack.lengths.method.prepare_template", never)
    monkeypatch.setattr("energon_pack.templates.processor.build", never)
    monkeypatch.setattr("energon_pack.lengths.measure.measure", never)
    second = tried(tmp_path, *words)
    assert second.returncode == 0, second.stderr
    assert without_times(second.stdout) == without_times(first.stdout)


def without_times(shown: str) -> list[str]:
    return [line for line in shown.splitlines() if not re.search(r"\d s\b", line)]


def test_what_would_be_lost_is_said_with_its_reason(demo: tuple[Path, Path], tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "A cat."}]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"messages": turns, "images": ["gone.png"]}) + "\n")
    shown = tried(tmp_path, path, f"model.processor={demo[1]}", "executor.num_workers=1")
    assert shown.returncode == 3
    assert "1 of 1  missing_media, as a.jsonl:1: 'gone.png' is not there (source.media_root)" in shown.stdout
    assert "no sample can be packed: what would be lost, above, says why" in shown.stderr


def test_lengths_of_no_sample_have_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Each length dropped 0 samples and 100% of them."""
    row = TriedLength(
        512, dropped=0, dropped_share=1.0, dropped_tokens_share=1.0, packs=0, fill=0.0, is_beyond_model=False
    )
    print_tried_lengths(LengthFigures(2, 0, 0, {"missing_media": 2}, {}, [row]))
    assert capsys.readouterr().out.splitlines() == ["no sample has a length", "skipped: 2 missing_media"]


def test_what_cures_is_in_the_next_command(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Nine tenths were lost, and the command that was printed next lost them again; it ended with exit code 0."""
    user, good, bad = ({"role": role, "content": role} for role in ("user", "assistant", "assistant"))
    records = [*[{"messages": [user, good]}] * 3, *[{"prompt": [user], "chosen": [good], "rejected": [bad]}] * 7]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    shown = tried(tmp_path, path, f"model.processor={demo[1]}", "executor.num_workers=1")
    assert "with source.take=chosen, measured again: 0 lost" in shown.stdout
    (command,) = re.findall("^energon-pack source.path=.*", shown.stdout, re.MULTILINE)
    assert " source.take=chosen " in command
    assert shown.returncode == 3
    assert "bad data cost 7 of 10 samples, max_skipped=0.01 allows fewer: without source.take=chosen" in shown.stderr


def test_what_drops_too_much_ends_as_the_run_does_and_names_fewer_frames(
    demo: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that was printed next dropped 70 % of the tokens and published nothing; `try` ended with 0."""
    pytest.importorskip("av")
    members = {
        "t.json": chat("a", "b"),
        "v.json": chat("<video>a", "b", name=["0.mp4"]),
        "v.0.mp4": video(24, 280, 280),
    }
    source = write_tar(tmp_path / "s" / "x.tar", members)
    words = (source, f"model.processor={demo[1]}", "executor.num_workers=1")
    monkeypatch.setattr("energon_pack.steps.cost.read_context_len", lambda _: 1024)
    shown = tried(tmp_path, *words, "report.lens=[512]")
    assert shown.returncode == 3
    assert "with media=fps media.fps=1, measured again: 0 lost" in shown.stdout
    (command,) = re.findall("^energon-pack source.path=.*", shown.stdout, re.MULTILINE)
    assert " media=fps media.fps=1 " in command
    assert "packing.max_dropped_tokens=0.1 allows less: without media=fps media.fps=1 nothing" in shown.stderr


def test_a_field_of_turns_with_another_name_is_read_by_the_next_command(
    demo: tuple[Path, Path], tmp_path: Path
) -> None:
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "A cat."}]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"talk": turns}) + "\n")
    shown = tried(tmp_path, path, f"model.processor={demo[1]}", "executor.num_workers=1")
    assert (
        "no messages or conversations or texts among ['talk'] (source.messages_key=talk reads its turns)"
        in shown.stdout
    )
    assert "with source.messages_key=talk, measured again: 0 lost" in shown.stdout
    assert shown.returncode == 3


def test_few_large_pictures_come_first(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """`try` said "16,384 is right" of a set in which one picture of sixty needed it."""
    members = {f"{n:02}.json": chat("word " * 150, "b") for n in range(30)}
    members |= {"p.json": chat("<image>a", "b", name=["0.png"]), "p.0.png": picture(1680, 1680, "PNG")}
    source = write_tar(tmp_path / "s" / "x.tar", members)
    shown = tried(
        tmp_path, source, f"model.processor={demo[1]}", "executor.num_workers=1", "report.lens=[512,1024,4096]"
    )
    assert shown.returncode == 0, shown.stderr
    assert "first: 1 image sample alone needs packs of 4,096 tokens; with model.max_pixels=" in shown.stdout
    (command,) = re.findall("^energon-pack source.path=.*", shown.stdout, re.MULTILINE)
    assert re.search(r" model\.max_pixels=\d+ .*packing\.max_token_len=4096$", command)


def test_large_pictures_that_a_setting_reads_come_first_too(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Where a cure was needed, nothing was said of pixels; and of two settings that read a sample, neither."""
    for name, size in (("small.png", 56), ("large.png", 1680)):
        (tmp_path / name).write_bytes(picture(size, size, "PNG"))
    small = {"talk": answers("word " * 60), "shots": "small.png"}
    records = [small] * 30 + [{"talk": answers("b"), "shots": "large.png"}]
    path = write_lines(tmp_path / "a.jsonl", *records)
    shown = tried(tmp_path, path, f"model.processor={demo[1]}", "executor.num_workers=1", "report.lens=[512,1024,4096]")
    assert "with source.messages_key=talk source.columns.images=shots model.max_pixels=" in shown.stdout, shown.stdout
    before, _, after = shown.stdout.partition("measured again: 0 lost")
    assert "does not help" not in before
    assert "first: 1 image sample alone needs packs of 4,096 tokens; with model.max_pixels=" in after
    (command,) = re.findall("^energon-pack source.path=.*", shown.stdout, re.MULTILINE)
    assert re.search(r"=talk source\.columns\.images=shots model\.max_pixels=\d+ .*packing\.max_token_len=", command)


def test_pairs_are_trained_by_the_recipes_of_pairs(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """The commands of other trainings were printed, which refuse packs of pairs."""
    lines = write_pairs(tmp_path, 12, with_media=False)
    shown = tried(tmp_path, lines, f"model.processor={demo[1]}", "source.take=both", "executor.num_workers=1").stdout
    following = shown.partition("── next")[2].splitlines()
    assert following[-2:] == [
        "python recipes/reference_logps.py packed/pairs reference.npz --model tiny",
        "python recipes/train_preference.py packed/pairs reference.npz --model tiny --max-steps 1",
    ]
    assert "train_ddp" not in shown


def test_without_a_processor_one_line_says_so(tmp_path: Path) -> None:
    """It listed the names of 53 models, of which none helped."""
    (tmp_path / "a.jsonl").write_text("{}\n")
    shown = tried(tmp_path, tmp_path / "a.jsonl")
    assert shown.returncode == 1
    (line,) = shown.stderr.splitlines()
    assert "no model: model.processor=FOLDER (or its hub id) is enough" in line
    assert len(line) < 200


def test_what_would_be_cut_off_is_said(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """ "Nothing would be lost", and then nine tenths of the tokens were nowhere."""
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "word " * 900}) + "\n" + json.dumps({"text": "short"}) + "\n")
    cut = ["packing.overlong=truncate_text", "packing.max_token_len=256"]
    shown = tried(tmp_path, path, f"model.processor={demo[1]}", "executor.num_workers=1", *cut)
    assert "packing.overlong=truncate_text, 256 tokens a pack: cut off: 3,3" in shown.stdout
    assert "nothing would be published: 1 overlong sample loses 93% of all tokens" in shown.stdout


def answers(*texts: str, **more: object) -> list[dict[str, object]]:
    asked: dict[str, object] = {"role": "user", "content": "?"}
    return [turn for text in texts for turn in (asked, {"role": "assistant", "content": text, **more})]


def write_lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_what_is_trained_is_shown_after_a_long_system_turn_and_whole_with_full(
    demo: tuple[Path, Path], tmp_path: Path
) -> None:
    """Of samples with tools only the preamble was seen; the cut text named an option that `try` did not have."""
    turns = [{"role": "system", "content": "preamble " * 200}, *answers("what is trained")]
    path = write_lines(tmp_path / "a.jsonl", {"messages": turns})
    words = (path, f"model.processor={demo[1]}", "executor.num_workers=1")
    shown = tried(tmp_path, *words)
    assert "«what is trained" in shown.stdout
    assert re.search(r" … [\d,]+ characters \(--full\) … ", shown.stdout.replace("\n", " ")), shown.stdout
    full = tried(tmp_path, *words, "--full")
    assert "(--full)" not in full.stdout
    assert full.stdout.count("preamble") == 200


def test_what_packing_would_note_stands_under_what_would_be_lost(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """ "Nothing would be lost", and packing then noted what it had left out."""
    records = [{"messages": answers("a"), "mood": 1}, {"messages": [*answers("a")[1:], *answers("b")]}]
    path = write_lines(tmp_path / "a.jsonl", *records)
    words = (f"model.processor={demo[1]}", "executor.num_workers=1")
    lost = tried(tmp_path, path, *words).stdout.partition("what would be lost")[2].partition("──")[0]
    assert lost.lstrip().startswith("no sample: every sample can be packed")
    packed = command_here("energon_pack", f"source.path={path}", *words, cwd=tmp_path)
    noted = [line for line in packed.stdout.splitlines() if line.startswith(("noted: ", "unknown keys"))]
    assert len(noted) == 2, packed.stdout
    for line in noted:
        assert line in lost.splitlines()


def test_the_printed_command_allows_the_losses_that_were_shown(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """The command that `try` printed published nothing."""
    good, bad = {"messages": answers("a")}, {"messages": answers("a")[:1]}
    path = write_lines(tmp_path / "a.jsonl", *[good] * 8, *[bad] * 2)
    shown = tried(tmp_path, path, f"model.processor={demo[1]}", "executor.num_workers=1")
    assert shown.returncode == 3
    assert "max_skipped=0.01 allows fewer: so nothing would be published without max_skipped=0.22" in shown.stderr
    (command,) = re.findall("^energon-pack source.path=.*", shown.stdout, re.MULTILINE)
    packed = command_here("energon_pack", *command.split()[1:], cwd=tmp_path)
    assert packed.returncode == 0, packed.stderr


def test_the_page_of_help_has_the_exit_code_of_losses() -> None:
    assert re.search(r"^  3 +too much is lost: .* would be published$", tried(Path(), "--help").stdout, re.MULTILINE)


def test_a_setting_that_does_not_help_is_said_to(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """`source.tools=text writes calls as text`: the template then refused what the tool returned."""
    template = tmp_path / "one.jinja"
    template.write_text(
        "{% set ns = namespace(called=false) %}{% for m in messages %}{% if m.tool_calls %}{% set ns.called = true %}"
        "{% elif m.role == 'tool' and not ns.called %}{{ raise_exception('no call before it') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    call = {"type": "function", "function": {"name": "tide", "arguments": {"town": "Brest"}}}
    turns = [answers("x")[0], {"role": "assistant", "content": "", "tool_calls": [call]}]
    path = write_lines(tmp_path / "a.jsonl", {"messages": [*turns, {"role": "tool", "content": "3 m"}, *answers("3")]})
    words = ("+model=text", f"model.processor={demo[1]}", f"model.chat_template={template}", "executor.num_workers=1")
    shown = tried(tmp_path, path, *words)
    assert "source.tools=text was tried, and does not help)" in shown.stdout, shown.stdout + shown.stderr
