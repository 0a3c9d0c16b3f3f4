"""A contact sheet shows samples of five kinds, a click away from their packs, and none of them ends a run."""

import base64
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from energon_pack.config import ModelConfig, PackConfig
from energon_pack.plan.items import Items
from energon_pack.plan.packs import PackPlan
from energon_pack.report.look import packs_to_look_at
from energon_pack.report.pages.html import Html
from energon_pack.report.run_report import fitting, some_of_each
from support.html_page import check_page
from support.packed import lengths, packed
from support.samples import chat, picture, write_tar

Make = Callable[..., PackConfig]
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
    assert packs_to_look_at(of, plan) == {
        0: "the first text pack",
        2: "the first image pack, the fullest",
        3: "the emptiest",
        1: "the most members",
    }


def test_no_pack() -> None:
    nothing = PackPlan(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int8), 0)
    assert packs_to_look_at(items([], []), nothing) == {}


def test_a_page_takes_what_it_has_room_for() -> None:
    """A pack of large pictures must not keep out the next."""
    sections = {number: Html("a" * size) for number, size in enumerate((5000, 100_000, 4000))}
    assert [*fitting(sections, 12_000)] == [0, 2]


def test_some_examples_of_each_reason_are_enough() -> None:
    """A ledger may have millions of lines."""
    seen = []

    def ledger() -> Iterator[dict[str, str]]:
        for number, reason in enumerate("aabaaab" + "a" * 100):
            seen.append(number)
            yield {"reason": reason, "sample_id": str(number)}

    found = some_of_each(ledger(), {"a": 105, "b": 2})
    assert {reason: [entry["sample_id"] for entry in entries] for reason, entries in found.items()} == {
        "a": ["0", "1", "3"],
        "b": ["2", "6"],
    }
    assert len(seen) == 7
