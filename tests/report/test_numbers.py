"""Figures of a page, counted again by other means: from the plan, the ledger and report.json."""

import html
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from energon_pack.config import PackConfig, Stage
from energon_pack.pack import pack
from energon_pack.plan.settings import Layout
from support.samples import chat, picture, write_tar

Make = Callable[..., PackConfig]
_BAR = re.compile(r'title="([\d,.]+) to ([\d,.]+) ([^"]+), (\w+): ([\d,]+) \w+"')


class Shown:
    """Return a page's content by the anchors of its sections."""

    def __init__(self, page: str):
        self._parts = dict(re.findall(r'<section><h2 id="([^"]*)">[^<]*</h2>(.*?)</section>', page, re.DOTALL))

    def tables(self, title: str) -> Iterator[list[list[str]]]:
        """Rows of each table, without its header; numbers without commas."""
        for table in re.findall(r"<tbody>(.*?)</tbody>", self._parts[title], re.DOTALL):
            rows = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in table.split("</tr>")[:-1]]
            cells = [[html.unescape(re.sub("<[^>]*>", "", cell)) for cell in row] for row in rows]
            yield [[cell if re.search(r"[a-zA-Z]", cell) else cell.replace(",", "") for cell in row] for row in cells]

    def lines(self, title: str) -> list[str]:
        """The lines of a list."""
        return re.findall("<li>(.*?)</li>", self._parts[title])

    def bars(self, title: str, x: str) -> list[tuple[float, float, str, int]]:
        """From, to, kind and count of each bar of a histogram, by its tooltips."""
        found = _BAR.findall(self._parts[title])
        low_high = [(float(low.replace(",", "")), float(high.replace(",", "")), *rest) for low, high, *rest in found]
        return [(low, high, kind, int(number.replace(",", ""))) for low, high, of, kind, number in low_high if of == x]


def random_source(folder: Path) -> list[str]:
    """Two folders: texts of any length, images, samples that are damaged, that are too long, that are twice there."""
    chance = random.Random(7)
    for name in ("left", "right"):
        members = {}
        for number in range(60):
            words = "word " * int(chance.expovariate(1 / 60))
            members[f"{number:03}.json"] = chat(f"a{words}", f"b {words}") if number % 9 else b"{"
            if number % 3 == 0 and number % 9:
                members[f"{number:03}.json"] = chat(f"<image>{words}", "c", name=["0.png"])
                members[f"{number:03}.0.png"] = picture(chance.randrange(28, 300), chance.randrange(28, 300), "PNG")
        write_tar(folder / name / "x.tar", members)
    return [str(folder / "left"), str(folder / "right")]


@pytest.mark.parametrize("how", ["the demo", "neat", "thd"])
def test_every_figure(config: Make, tmp_path: Path, how: str) -> None:
    run = config() if how == "the demo" else config(random_source(tmp_path / "s"), max_skipped=1.0)
    if how != "the demo":
        run.packing.max_token_len = 512
    if how == "thd":
        run.packing.layout, run.packing.pad_to_multiple_of = Layout.thd, 16
        run.output.splits.val = 0.25
    pack(run)
    folder = Path(run.output.dir) / "packed"
    shown = Shown((folder / "report.html").read_text())
    plan = pq.read_table(folder / "pack_plan.parquet").to_pylist()
    lost = [json.loads(line) for line in (folder / "skipped.jsonl").read_text().splitlines()]
    report = json.loads((folder / "report.json").read_text())
    most = run.packing.max_token_len
    packs: dict[str, list[dict[str, Any]]] = {}
    for row in plan:
        packs.setdefault(row["pack"], []).append(row)
    check_media(shown, plan, lost, packs, most)
    check_lens(shown, plan, lost)
    check_packs(shown, packs)
    check_skipped(shown, lost, len(plan) + len(lost))
    assert (report["samples_packed"], report["samples_skipped"]) == (len(plan), len(lost))
    check_choices(shown, pack(replace(run, stage=Stage.lengths))["lens"])


def check_media(shown: Shown, plan: list[Any], lost: list[Any], packs: dict[str, Any], most: int) -> None:
    """The page has rows for each medium, for all, for each split and for each folder."""
    media, *others = shown.tables("in-and-out")
    for name, *numbers in media:
        mine = [row for row in plan if name in (row["media_type"], "total")]
        gone = [entry for entry in lost if name in (entry["media_type"] or "unknown", "total")]
        num_packs = sum(name in ("total", *(row["media_type"] for row in rows)) for rows in packs.values())
        tokens = sum(row["token_len"] for row in mine)
        fill = f"{tokens / max(1, num_packs) / most:.2%}"
        del numbers[4]  # the fewest packs that any plan has
        assert numbers == [*map(str, (len(mine) + len(gone), len(mine), len(gone), num_packs)), fill, str(tokens)]
    trained = sum(row["num_supervised"] for row in plan) / sum(row["token_len"] for row in plan)
    first, *lines = shown.lines("in-and-out")
    assert first == f"{trained:.1%} of the packed tokens are trained on"
    splits = [re.fullmatch(r"split: \w+ [\d,]+ samples? in ([\d,]+) packs?, .*", line) for line in lines]
    assert sum(int(found[1].replace(",", "")) for found in splits if found) in (0, len(packs))
    for table in others:
        assert sum(int(row[1]) for row in table) in (len(plan), len(plan) + len(lost))
        assert sum(int(row[-1]) for row in table) == sum(row["token_len"] for row in plan)
        for name, samples, *_, tokens in table:
            if (inside := [row for row in plan if row["shard"].startswith(f"{name}/")]) and name in ("left", "right"):
                assert int(tokens) == sum(row["token_len"] for row in inside)
                assert int(samples) == 60


def check_lens(shown: Shown, plan: list[Any], lost: list[Any]) -> None:
    """The table, and each bar of the chart; lengths are those of samples, without padding of their members."""
    (table,) = shown.tables("token-lengths")
    bars = shown.bars("token-lengths", "tokens of a sample")
    for name, samples, least, *_, longest, tokens, trained in table:
        if name not in {entry["media_type"] for entry in lost}:  # the ledger says nothing of labels
            packed = [row for row in plan if row["media_type"] == name]
            assert trained == f"{sum(row['num_supervised'] for row in packed) / int(tokens):.1%}"
        lens = [row["token_len"] for row in [*plan, *lost] if row["token_len"] and row["media_type"] == name]
        assert list(map(int, (samples, least, longest, tokens))) == [len(lens), min(lens), max(lens), sum(lens)]
        mine = [(low, high, number) for low, high, kind, number in bars if kind == name]
        assert [number for *_, number in mine] == [sum(low <= n < high for n in lens) for low, high, _ in mine]
        assert sum(number for *_, number in mine) == len(lens)


def check_packs(shown: Shown, packs: dict[str, list[Any]]) -> None:
    by_name = {
        "members": [len(rows) for rows in packs.values()],
        "visual tokens": [sum(row["num_visual_tokens"] for row in rows) for rows in packs.values()],
    }
    (table,) = shown.tables("packs")
    assert {name: (least, most) for name, least, *_, most in table} == {
        name: (str(min(values)), str(max(values))) for name, values in by_name.items()
    }
    shapes = {(sum(row["token_len"] for row in rows), len(rows)) for rows in packs.values()}
    assert any(line.startswith(f"batches of one pack have {len(shapes)} shape") for line in shown.lines("packs"))


def check_skipped(shown: Shown, lost: list[Any], samples: int) -> None:
    tables = list(shown.tables("skipped-samples"))
    reasons = Counter(entry["reason"] for entry in lost)
    rows = {name: [number, share] for name, _, number, share in (tables[0] if tables else ())}
    assert rows == {name: [str(number), f"{number / samples:.2%}"] for name, number in reasons.items()}
    entries = {(entry["sample_id"], entry["detail"] or "") for entry in lost}
    assert {(name, detail) for table in tables[1:] for name, detail in table} <= entries


def check_choices(shown: Shown, choices: list[dict[str, Any]]) -> None:
    """`stage=lengths` says the same of each length that both try."""
    (table,) = shown.tables("which-length")
    rows = {int(name): numbers for name, _, *numbers in table}
    for choice in choices:
        *shares, fill = (f"{choice[name]:.2%}" for name in ("dropped_share", "dropped_tokens_share", "fill"))
        expected = [str(choice["dropped"]), *shares, str(choice["packs"]), fill]
        assert rows[choice["max_token_len"]] == expected
