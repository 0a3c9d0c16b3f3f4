"""A page is whole, small and safe whatever a run came to, and says what its ledger and its dataset say."""

import base64
import io
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from energon_pack.config import ModelConfig, PackConfig, Stage, plain
from energon_pack.errors import SamplesLost
from energon_pack.pack import pack
from energon_pack.plan.items import Items
from energon_pack.plan.packs import PackPlan
from energon_pack.plan.report import RunFacts
from energon_pack.report.contact_sheet import choose_example_packs
from energon_pack.report.figures import FolderOutcome
from energon_pack.report.page import PageFacts, build_run_page
from energon_pack.report.pages.bars import log_histogram
from energon_pack.report.pages.html import Html
from energon_pack.report.remarks import collect_remarks
from energon_pack.report.run_report import choose_sections_that_fit, first_entries_by_reason
from energon_pack.samples.skip import Reason
from support.figures import FIGURES, figures
from support.html_page import check_page
from support.packed import lengths, packed
from support.samples import chat, picture, write_tar

Make = Callable[..., PackConfig]
_MOST = 1_000_000  # bytes


def seen(path: Path) -> str:
    page = path.read_text()
    assert len(page.encode()) < _MOST
    return check_page(page)


def test_the_demo(config: Make) -> None:
    run = config()
    figures = pack(run)
    said = seen(Path(run.output.dir) / "packed" / "report.html")
    for text in ("320", f"{figures['tokens']:,}", "91.32%", "max_token_len 8,192", "trained on", "get_train_dataset"):
        assert text in said
    for title in (
        "What to look at",
        "In and out",
        "Token lengths",
        "Which length",
        "Packs",
        "A few packs",
        "Time",
        "batches of one pack have",
    ):
        assert title in said


@pytest.mark.parametrize("stage", [Stage.plan, Stage.lengths])
def test_a_plan_has_a_page_beside(config: Make, stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    run = config(stage=stage)
    pack(run)
    path = Path(run.output.dir) / f"packed.{stage.value}.html"
    assert "Which length" in seen(path)
    assert f"see it: {path}" in capsys.readouterr().out


def test_a_run_that_loses_too_much_leaves_a_page(config: Make, tmp_path: Path) -> None:
    """That is when it is needed most; it goes when the next run is published."""
    good, bad = {"a.json": chat("a", "b")}, {"b.json": chat("<image>", "b", name=["b.jpg"])}
    run = config(write_tar(tmp_path / "s" / "x.tar", good | bad))
    with pytest.raises(SamplesLost, match=r"packed\.skipped\.jsonl names each .*packed\.report\.html shows") as error:
        pack(run)
    page = Path(run.output.dir) / "packed.report.html"
    assert str(page) in str(error.value)
    said = seen(page)
    assert "Nothing is published" in said
    assert "missing_media" in said
    assert "x.tar/b" in said
    assert "packed.skipped.jsonl" in said
    pack(replace(run, source=replace(run.source, limit=1)))
    assert not page.exists()


def one_image() -> dict[str, Any]:
    return {"a.json": chat("<image>a", "b", name=["0.jpg"]), "a.0.jpg": picture(64, 48)}


@pytest.mark.parametrize(
    "members",
    [{"a.json": chat("a", "b")}, {"a.json": b"{", "b.json": b"["}, {}, one_image()],
    ids=["one text", "nothing readable", "no sample", "one image"],
)
@pytest.mark.parametrize("stage", [Stage.lengths, Stage.plan, Stage.all])
def test_a_run_of_nearly_nothing(config: Make, tmp_path: Path, members: dict[str, Any], stage: Stage) -> None:
    """A page must never end a run in another way than it would have."""
    run = config(write_tar(tmp_path / "s" / "x.tar", members), stage=stage, max_skipped=1.0)
    try:
        pack(run)
    except SamplesLost:
        assert not all(key.startswith("a.") for key in members) or not members
    for path in Path(run.output.dir).rglob("*.html"):
        seen(path)


def test_a_path_may_be_no_utf_8(config: Make, tmp_path: Path) -> None:
    run = config(write_tar(tmp_path / os.fsdecode(b"caf\xe9") / "x.tar", {"a.json": chat("a", "b")}))
    pack(run)
    assert "caf\ufffd" in seen(Path(run.output.dir) / "packed" / "report.html")


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x00\x1b[31m"


def worst() -> tuple[Any, PageFacts]:
    """Many reasons, folders, packs and settings, with long names that mean harm."""
    rng = np.random.default_rng(0)
    kinds = ("text", "image", "video", "mix")
    many = {kind: np.sort(rng.integers(1, 200_000, 3000)) for kind in kinds}
    text = HOSTILE * 100
    flops = {"weights": 1e20, "attention": 1e19, "vision": 0.0, "source": text}
    entry = {"sample_id": text, "detail": text}
    config = PackConfig(seed=7)
    config.model.name = config.model.template = text
    config.source.path = [text] * 500
    config.output.name = text
    reasons = {reason.value: 10 for reason in Reason}
    of = figures(
        {"token_len": log_histogram(many)},
        {
            "skipped_by_reason": reasons,
            "packs": 9000,
            "flops": flops,
        },
        batch_shapes=(9000, 16),
        origins=[FolderOutcome(text, 1000, 800, 100, 5)] * 500,
        examples={reason: [{**entry, "reason": reason}] * 3 for reason in reasons},
    )
    names = ("processor", "lengths", "plan", "write", "verify", "check")
    facts = RunFacts(
        format=1, config={}, media_rules={}, cwd="/", source_root=None, fingerprint="abc",
        seconds=dict.fromkeys(names, 12.5),
        throughput={name: {"samples": 10**9, "cached": 5, "bytes": 10**12} for name in names}, identity="1f",
        peak_rss_bytes=10**9,
        peak_rss_bytes_by_stage=dict.fromkeys(names, 10**9), bytes_read=10**9, bytes_written=10**9,
        cache={"shards_reused": 3, "shards_measured": 4}, samples_verified=100, samples_not_verified=3,
        files_decoded=[],
    )  # fmt: skip
    return of, PageFacts(plain(config), text, text, facts, "/x", "skipped.jsonl", text)


def test_names_that_mean_harm_are_text() -> None:
    """Otherwise the author of the data could run any script in the reader's browser."""
    of, about = worst()
    page = build_run_page(of, about, collect_remarks(of))
    said = check_page(page)
    assert "<script" not in page
    assert "<img" not in page
    assert "alert(1)" in said
    assert "\x1b" not in page
    assert "\x00" not in page


def test_the_largest_page_is_small() -> None:
    """It is sent by mail and opened on telephones. Packs to look at take 200 kB at most."""
    of, about = worst()
    assert len(build_run_page(of, about, collect_remarks(of), [Html("x" * 200_000)]).encode()) < _MOST


def test_what_is_not_there_is_not_shown() -> None:
    """A run without a plan, and one without measured samples."""
    bare = figures({"token_len": None, "measured": 0}, report=None, batch_shapes=None, overlong_facts=None)
    about = PageFacts(plain(PackConfig(model=ModelConfig(name="x", template="x"))), "a", "b")
    assert "No sample was measured." in check_page(build_run_page(bare, about))
    assert "batches of one pack" not in check_page(build_run_page(FIGURES, about))


KINDS = ["Longest", "Shortest", "Of a remark", "By chance", "Left out"]


def sheet_of(run: PackConfig) -> tuple[str, dict[str, str]]:
    """Return the page of a run, and the kinds of its sheet with what they show."""
    page = (packed(run) / "report.html").read_text()
    check_page(page)
    shown = page.partition('class="sheet">')[2].partition("</section>")[0]
    kinds = re.split(r"<h3>([^<]*)</h3>", shown)[1:]
    return page, dict(zip(kinds[::2], kinds[1::2], strict=True))


def test_a_demo_shows_five_kinds(config: Make) -> None:
    """Figures alone never showed what the longest samples are, nor which ones a remark is about."""
    run = config(packing__max_token_len=1024)
    page, kinds = sheet_of(run)
    lens = sorted(token_len for token_len, *_ in lengths(Path(run.output.dir) / "packed").values())
    told = {
        kind: [int(each.replace(",", "")) for each in re.findall(r"<b>([\d,]+) tokens", kinds[kind])] for kind in kinds
    }
    assert [*kinds] == KINDS
    assert told["Longest"] == lens[:-5:-1], "of those that are packed"
    assert told["Shortest"] == lens[:4]
    assert min(told["Left out"]) > 1024
    assert "are longer than 1,024" in kinds["Of a remark"]
    assert "<blockquote>" in kinds["Longest"], "of texts their first words"
    numbers = re.findall('href="#pack-(\\d+)"', kinds["By chance"])
    assert len(numbers) == 6, "each opens its pack"
    assert all('class="strip"' in page.partition(f'id="pack-{number}"')[2][:4000] for number in numbers)


def test_what_is_left_out_is_seen(config: Make, tmp_path: Path) -> None:
    """`overlong` named lines of a file; that these were scans of a page was seen by nobody. Damage says what it is."""
    members = {"t.json": chat("a", "b"), "bad.json": chat("<image>a", "b", name=["no.png"])}
    for name, width in (("small", 56), ("wide", 560), ("wider", 840)):
        members |= {f"{name}.json": chat("<image>a", "b", name=["0.png"]), f"{name}.0.png": picture(width, 560, "PNG")}
    source = write_tar(tmp_path / "s" / "x.tar", members)
    _, kinds = sheet_of(config(source, packing__max_token_len=256, max_skipped=0.5))
    lost = kinds["Left out"]
    assert re.findall('x.tar/(\\w+)"', lost) == ["wider", "wide", "bad"], "the longest first"
    shown = [base64.b64decode(data) for data in re.findall('data:image/webp;base64,([^"]*)', lost)]
    assert [Image.open(io.BytesIO(data)).size for data in shown] == [(160, 107), (160, 160)]
    assert "no.png" in lost
    assert "missing_media" in lost


@pytest.mark.parametrize("name", ["image_demo", "image_mathv"])
def test_a_page_of_real_pictures_is_small(real: Path, config: Make, name: str) -> None:
    """It is sent by mail: photographs of 12 megapixels may not be in it as they are."""
    run = config(real / "wds" / name, packing__max_token_len=4096)
    run.model = ModelConfig("qwen2_5_vl", "qwen_vl", "", str(real / "processors" / "qwen2_5_vl"), factor=28)
    page, kinds = sheet_of(run)
    assert len(page.encode()) <= 1_000_000
    assert [*kinds] == KINDS
    assert page.count("data:image/webp") > 15


def items(lens: list[int], media: list[int]) -> Items:
    zeros = np.zeros(len(lens), np.int32)
    counts = {"token_len": np.array(lens, np.int32), "num_images": zeros, "num_visual_tokens": zeros}
    return Items(counts, np.array(media, np.int8), zeros, zeros, zeros.astype(np.int8), zeros)


def test_each_medium_and_the_edges() -> None:
    """Packs: text 10; text 5 + 4 + 3; image 20; text 2."""
    of = items([10, 5, 4, 3, 20, 2], [0, 0, 0, 0, 1, 0])
    plan = PackPlan(np.array([0, 1, 4, 5, 6]), np.arange(6), np.zeros(6, np.int8), 4)
    assert choose_example_packs(of, plan) == {
        0: "the first text pack",
        2: "the first image pack, the fullest",
        3: "the emptiest",
        1: "the most members",
    }


def test_no_pack() -> None:
    nothing = PackPlan(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int8), 0)
    assert choose_example_packs(items([], []), nothing) == {}


def test_a_page_takes_what_it_has_room_for() -> None:
    """A pack of large pictures must not keep out the next."""
    sections = {number: Html("a" * size) for number, size in enumerate((5000, 100_000, 4000))}
    assert [*choose_sections_that_fit(sections, 12_000)] == [0, 2]


def test_some_examples_of_each_reason_are_enough() -> None:
    """A ledger may have millions of lines."""
    seen = []

    def ledger() -> Iterator[dict[str, str]]:
        for number, reason in enumerate("aabaaab" + "a" * 100):
            seen.append(number)
            yield {"reason": reason, "sample_id": str(number)}

    found = first_entries_by_reason(ledger(), {"a": 105, "b": 2})
    assert {reason: [entry["sample_id"] for entry in entries] for reason, entries in found.items()} == {
        "a": ["0", "1", "3"],
        "b": ["2", "6"],
    }
    assert len(seen) == 7
