"""What a person sees of a dataset and of a source: all of it that can be seen, and a line where something can't."""

import json
import random
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from energon_pack.dataset.files import PLAN, PlanFile
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.manifest import REPORT
from energon_pack.errors import PackError
from energon_pack.inspect.dataset import open_dataset
from energon_pack.inspect.vocabulary import load_token_decoder
from energon_pack.report.views.screens import pack_section
from support.corruptions import CORRUPTIONS
from support.damage import HOSTILE, packed_to_damage, places, read_shard, set_at, write_shard
from support.marks import slow
from support.running import command, command_here, need_torchvision
from support.samples import chat, picture, write_tar

Show = Callable[..., str]


@pytest.fixture(scope="module")
def dataset(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed_to_damage(demo, cache, tmp_path_factory.mktemp("inspect"))


@pytest.fixture
def shown(tmp_path: Path) -> Show:
    """What the tool prints."""

    def show(*arguments: str | Path) -> str:
        result = command_here("energon_pack.inspect", *arguments, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return show


def refusal(folder: Path, *arguments: str | Path) -> str:
    """The one line by which the tool refuses."""
    result = command_here("energon_pack.inspect", *arguments, cwd=folder)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    return line


# --------------------------------------------------------------------------------------------------------- a pack


def test_a_dataset_says_what_it_is_and_shows_its_first_pack(dataset: Path, shown: Show) -> None:
    text = shown(dataset)
    with open_dataset(dataset).packs as packs:
        num_packs, first = len(packs), packs[0].pack
    assert f"{dataset}: packed_multi_mix_qa, for qwen2_5_vl, layout neat" in text
    assert f"{num_packs} packs in" in text
    assert f"pack 0 of {num_packs}  {first.files.key}" in text
    for sample_id in first.sample_ids:
        assert f"#{first.sample_ids.index(sample_id)} {sample_id}\n" in text
    assert f"next: python -m energon_pack.inspect {dataset} 1" in text
    assert max(map(len, text.splitlines()[:-1])) <= 120


def test_a_pack_is_named_by_number_key_or_from_the_end(dataset: Path, shown: Show, tmp_path: Path) -> None:
    (*_, last), num_packs = [key for (keys,) in PlanFile(DatasetFolder(dataset)).columns("pack") for key in keys], 0
    with open_dataset(dataset).packs as packs:
        num_packs = len(packs)
    for name in (str(num_packs - 1), last, "-1"):
        assert f"pack {num_packs - 1} of {num_packs}  {last}" in shown(dataset, name)
    assert shown(dataset, "--random", "7") == shown(dataset, "--random", "7")
    assert f"there are {num_packs}, from 0 on" in refusal(tmp_path, dataset, str(num_packs))
    assert "no such key of a pack, and no such sample" in refusal(tmp_path, dataset, "nothing")
    assert "overrides are for --source" in refusal(tmp_path, dataset, "model.processor=x")


def test_a_pack_is_found_by_its_sample(dataset: Path, shown: Show, tmp_path: Path) -> None:
    """Whoever looks for a sample that was skipped saw others with a like number, or that there is none."""
    copy = Path(shutil.copytree(dataset, tmp_path / "copy"))
    (copy / "skipped.jsonl").write_text('{"sample_id": "a.tar/gone7", "reason": "overlong", "detail": "9 tokens"}\n[\n')
    for sample in ("a.tar/t02", "sub/b.tar/i10", "t01"):
        assert re.search(rf"#\d+ (.*/)?{sample}\b", shown(copy, sample))
    assert refusal(tmp_path, copy, "a.tar/gone7").endswith("in no pack: overlong: 9 tokens")
    (copy / PLAN).unlink()
    assert "no such sample in its plan or ledger" in refusal(tmp_path, copy, "sub/b.tar/i10")


def test_tokens_are_shown_with_the_processor_it_was_packed_with(dataset: Path, shown: Show) -> None:
    text = shown(dataset, "--tokens", "--full")
    assert "<|im_start|>user" in text
    assert re.search(r"«[^«»]*<\|im_end\|>»", text)  # what is trained on, without colours
    assert "no tokens" not in text


def test_the_tokenizer_in_a_dataset_is_enough(dataset: Path, tmp_path: Path) -> None:
    """On another machine, where nobody has the folder it was packed with; one that was exchanged is refused."""
    copy = Path(shutil.copytree(dataset, tmp_path / "copy"))
    report = json.loads((copy / REPORT).read_text())
    report["config"]["model"]["processor"] = "/no/such/folder"
    (copy / REPORT).write_text(json.dumps(report))
    vocabulary, missing = load_token_decoder(open_dataset(copy), None, False)
    assert missing is None
    assert vocabulary is not None
    assert vocabulary.feature_ids.keys() == {"image", "video"}
    CORRUPTIONS["another vocabulary"][0](copy)
    _, missing = load_token_decoder(open_dataset(copy), None, False)
    assert "processor/vocab.json is not as it was packed" in str(missing)


def test_without_a_processor_the_rest_is_shown(dataset: Path, shown: Show) -> None:
    text = shown(dataset, "--tokens", "--processor", "/no/such/folder")
    assert "! no tokens: " in text
    assert "user       " in text


@pytest.mark.parametrize("variables", [{"PYTHONIOENCODING": "ascii"}, slow({"NO_COLOR": "1", "COLUMNS": "40"})])
def test_any_terminal_will_do(dataset: Path, tmp_path: Path, variables: dict[str, str]) -> None:
    """A pipe, an ASCII locale: no traceback, and signs become `?`; no tokenizer is imported."""
    script = (
        "import sys; from energon_pack.inspect.command import main;"
        "from energon_pack.run.command import prepare_tool_process; sys.argv[1:] = [sys.argv[1]];"
        "prepare_tool_process(); main();"
        "print(sorted({'torch', 'transformers', 'tokenizers', 'hydra', 'pandas'} & set(sys.modules)))"
    )
    result = command("-c", script, dataset, cwd=tmp_path, **variables)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("[]\n")
    assert ("×" in result.stdout) == ("NO_COLOR" in variables)


def test_the_page_of_a_pack_shows_what_training_gets(dataset: Path, shown: Show, tmp_path: Path) -> None:
    need_torchvision()
    number = next(found.number for found in open_dataset(dataset).packs.all() if found.pack.media_type == "image")
    shown(dataset, str(number), "--html", "pack.html")
    page = (tmp_path / "pack.html").read_text()
    assert len(page) < 300_000
    assert "data:image/webp;base64," in page
    assert '<span class="special">&lt;|im_start|&gt;</span>' in page
    assert "No batch" not in page
    for key in ("cu_seq_lens_q", "cu_seqlens_q", "pixel_values", "visual_inputs.image_grid_thw", "doc_ids"):
        assert f"<code>{key}</code>" in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "<script" not in page


def test_a_page_says_what_could_not_be_made(dataset: Path, shown: Show, tmp_path: Path) -> None:
    text = shown(dataset, "--html", "pack.html", "--processor", "/no/such/folder")
    page = (tmp_path / "pack.html").read_text()
    assert "! no tokens" in text
    assert page.count("No batch: ") == 2


def test_a_page_is_written_into_what_is_there(dataset: Path, shown: Show, tmp_path: Path) -> None:
    """Renamed into place it would be put where `/dev/stdout` is; and a refusal names what was typed."""
    (tmp_path / "link.html").symlink_to("pack.html")
    shown(dataset, "--html", "link.html", "--processor", "/no/such/folder")
    assert (tmp_path / "link.html").is_symlink()
    assert "No batch: " in (tmp_path / "pack.html").read_text()
    (tmp_path / "folder").mkdir()
    for out, why in (("folder", "Is a directory"), ("none/pack.html", "No such file or directory")):
        said = refusal(tmp_path, dataset, "--html", out, "--processor", "/no/such/folder")
        assert said == f"energon_pack.inspect: --html {out}: {why}"


# ------------------------------------------------------------------------------------------- others', and damaged


def test_what_is_no_dataset_is_refused(dataset: Path, tmp_path: Path) -> None:
    """The line says what to give instead."""
    assert "Metadatasets name some" in refusal(tmp_path, dataset / PLAN)
    assert "packed datasets in it" in refusal(tmp_path, dataset.parent)
    assert "nothing is in it" in refusal(tmp_path, tmp_path / "nothing")
    write_tar(tmp_path / "source" / "a.tar", {"a.json": chat("q", "a")})
    assert "of a source: --source" in refusal(tmp_path, tmp_path / "source")
    assert "a folder of a packed dataset, or --source" in refusal(tmp_path)


#: `tests/verify` finds all of them in the ordinary run; here are a few
@pytest.mark.parametrize("name", [slow(name) if number % 6 else name for number, name in enumerate(CORRUPTIONS)])
def test_of_a_damaged_dataset_the_rest_is_shown(dataset: Path, tmp_path: Path, name: str) -> None:
    """Whatever is wrong, each pack is either shown or refused in a line."""
    copy = Path(shutil.copytree(dataset, tmp_path / "copy"))
    CORRUPTIONS[name][0](copy)
    opened, num_shown = open_dataset(copy), 0
    for number in range(len(opened.packs)):
        try:
            view = opened.view(opened.packs[number], max_thumbnails=2)
        except PackError:
            continue
        num_shown += 1
        assert view.key in pack_section(view)
    assert num_shown >= len(opened.packs) - 4


def test_no_value_in_a_packs_json_ends_in_a_traceback(dataset: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(dataset, tmp_path / "copy"))
    path = sorted(copy.glob("*.tar"))[-1]
    good = read_shard(path)
    value = json.loads(good[0][1])
    chance = random.Random(0)
    for place in [*chance.sample(list(places(value)), 40), ("messages",), ("media_files",), ("_meta",)]:
        changed = json.loads(good[0][1])
        set_at(*place, to=chance.choice(HOSTILE))(changed)
        write_shard(path, [(good[0][0], json.dumps(changed).encode()), *good[1:]])
        opened = open_dataset(copy)
        number = opened.number_of(good[0][0].removesuffix(".json"))
        with suppress(PackError):
            assert pack_section(opened.view(opened.packs[number]))


# ------------------------------------------------------------------------------------------------------- a source


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    long = chat("q", "word " * 9_000)
    samples: dict[str, Any] = {
        "put_in.json": chat("What is it?", "A cat."),
        "put_in.jpg": picture(56, 84),
        "named.json": chat("<image> here", "<b>Yes</b>"),
        "named.jpg": picture(28, 28),
        "two.json": chat("<image> and <image>", "No"),
        "two.jpg": picture(28, 28),
        "role.json": json.dumps({"messages": [{"role": "robot", "content": "x" * 900}]}).encode(),
        "cut.json": b'{"messages": [',
        "long.json": long,
    }
    write_tar(folder / "a.tar", samples)
    write_tar(folder / "b.tar", {"last.json": chat("q", "a")})
    return folder


@pytest.fixture
def how(source: Path, demo: tuple[Path, Path]) -> list[str]:
    """What is looked at, and for which model."""
    return ["--source", str(source), "+model=qwen2_5_vl", f"model.processor={demo[1]}"]


def test_a_sample_is_shown_before_it_is_packed(how: list[str], shown: Show, tmp_path: Path) -> None:
    text = shown(*how)
    assert "a.tar/put_in\nsample 0 of a.tar, a file of 2 in the source" in text
    assert "! placeholders put in: the model reads media there" in text
    assert "user       <image>What is it?" in text
    assert "image 56×84, 6 tokens  jpg" in text
    assert "[image 56×84, 6 tokens]" in text
    assert "«A cat.<|im_end|>»" in text
    assert f"next: python -m energon_pack.inspect {' '.join(how)} 1\n" in text
    assert "b.tar/last\nsample 0 of b.tar" in shown(*how, "6")
    assert "b.tar/last" in shown(*how, "b.tar/last")
    assert "b.tar/last" in shown(*how, "last")
    assert shown(*how, "--random", "3") == shown(*how, "--random", "3")
    assert "--html is for a pack" in refusal(tmp_path, *how, "--html", "sample.html")


@pytest.mark.parametrize(
    ("name", "reason", "around"),
    [
        ("two", "placeholder_mismatch: 2 images in the text for 1 image", '"<image> and <image>"'),
        ("role", "bad_message: message 0 has the role 'robot'", "x" * 119),
        ("cut", "invalid_json", '{"messages": ['),
    ],
)
def test_why_a_sample_would_be_in_no_pack(how: list[str], shown: Show, name: str, reason: str, around: str) -> None:
    """The reason is the ledger's, and all of the JSON is there, in which the fault is to be found."""
    text = shown(*how, name)
    assert f"It would be in no pack: {reason}" in text
    assert around in text


def test_overrides_mean_what_they_mean_to_packing(how: list[str], shown: Show, tmp_path: Path) -> None:
    assert "> packing.max_token_len=4096: packing.overlong=split_turns says" in shown(
        *how, "packing.max_token_len=4096", "packing.overlong=split_turns", "long"
    )
    seen = shown(*how, "media=resize_longest_side", "media.longest_side=28", "put_in")
    assert re.search(r"image 56×84 → \d+×28", seen)
    assert "unknown key modle" in refusal(tmp_path, *how, "modle.processor=x")
    assert "! no tokens: " in shown(*how[:3], "model.processor=/no/such", "last")
    lines = tmp_path / "lines.jsonl"
    lines.write_text(
        json.dumps({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})
    )
    assert "lines.jsonl:1" in shown("--source", lines, *how[2:], "source=jsonl")
    assert "source=jsonl reads JSONL" in refusal(tmp_path, "--source", lines, *how[2:], "source=wds")


def test_overrides_are_told_from_samples() -> None:
    """An id may hold a `=` after a slash."""
    from energon_pack.inspect import is_hydra_override

    assert all(map(is_hydra_override, ("+model=x", "++a.b=c", "~media", "source=jsonl", "model.processor=/a=b")))
    assert not any(map(is_hydra_override, ("12", "a.tar/key=1", "a.jsonl:7", "key", "-1")))
