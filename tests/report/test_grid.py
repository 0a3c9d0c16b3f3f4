"""The grid of packs holds what the plan holds, of many packs some, and a script sorts and searches it."""

import base64
import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from energon_pack.config import PackConfig
from energon_pack.pack import pack
from energon_pack.report.grid import GridPack, PackGrid, grid_section
from energon_pack.report.pages.html import page, script
from energon_pack.samples.media.kinds import MEDIA_TYPES
from support.html_page import check_page, data_of

HARM = "</script><script>alert(1)</script><!--\u2028\x00"


def grid(num: int = 3, of: int = 3) -> PackGrid:
    """Pack n has n + 1 members of 10 tokens, 4 of them of an image, and n tokens that are trained on."""
    return PackGrid(
        [
            GridPack(n, "image", n, 1.0, [(10, 4, "image")] * (n + 1), [f"a.tar/{n}_{HARM}"] * (n + 1))
            for n in range(num)
        ],
        of,
        100,
    )


def whole(of: PackGrid, folder: str | None = "/packed/it's") -> str:
    return page("a", grid_section(of, folder), has_script=True)


def test_the_grid_is_the_plan(config: Callable[..., PackConfig]) -> None:
    """Each member with its tokens and its id, in the order of pack_plan.parquet."""
    run = config()
    pack(run)
    folder = Path(run.output.dir) / "packed"
    data: Any = data_of((folder / "report.html").read_text(), "packs-data")
    rows = pq.read_table(folder / "pack_plan.parquet").to_pylist()
    flat = [value for *_, values, _ in data["packs"] for value in values]
    told = [(r["token_len"], r["num_visual_tokens"], MEDIA_TYPES.index(r["media_type"])) for r in rows]
    assert flat == [value for row in told for value in row]
    assert "\n".join(ids for *_, ids in data["packs"]).split("\n") == [f"{r['shard']}/{r['key']}" for r in rows]
    trained = np.add.reduceat([r["num_supervised"] for r in rows], np.flatnonzero(np.diff([-1, *_packs(rows)])))
    assert [packed[2] for packed in data["packs"]] == trained.tolist()
    assert np.mean([packed[3] for packed in data["packs"]]) == pytest.approx(1, abs=0.001)


def _packs(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["pack"].rpartition("_")[2]) for row in rows]


def test_some_packs_stand_for_many_and_the_page_says_so() -> None:
    assert "Of 9 packs one in 3 is here: 3." in check_page(whole(grid(3, 9)))
    assert "is here" not in check_page(whole(grid(3, 3)))
    assert grid_section(grid(0, 0), None) is None


def test_ids_that_mean_harm_are_text() -> None:
    """A sample's id is anybody's: it must not end the block of data, and begin a script."""
    made = whole(grid())
    check_page(made)
    assert "<script>alert" not in made
    data: Any = data_of(made, "packs-data")
    assert data["packs"][0][-1] == f"a.tar/0_{HARM}"


def test_it_is_readable_without_a_script() -> None:
    said = check_page(whole(grid(40, 40)))
    assert "0 · 10.0% full · 0% trained on · cost 1.00 · 1 member " in said
    assert "and 24 more, which a script shows" in said
    assert 'id="packs-controls" hidden' in whole(grid())


#: As much of a browser as the script asks for.
BROWSER = """
const made = {};
class Element {
  constructor(name) { Object.assign(this, {name, children: [], value: "", checked: false, listeners: {}}); }
  append(...some) { this.children.push(...some); }
  replaceChildren(...some) { this.children = some; }
  setAttribute() {}
  addEventListener(name, does) { this.listeners[name] = does; }
  get childElementCount() { return this.children.length; }
  get text() { return (this.textContent || "") + this.children.map((child) => child.text).join("|"); }
}
const document = {
  getElementById: (name) => made[name], createElement: (name) => new Element(name),
  createElementNS: (_, name) => new Element(name),
};
for (const name of ["data", "by", "least", "most", "falling", "search", "list", "told", "controls"]) {
  made["packs-" + name] = new Element(name);
}
made["packs-by"].value = "number";
made["packs-data"].textContent = DATA;
SCRIPT
const heads = () => made["packs-list"].children.map((row) => row.text.split(" ")[0]);
const set = (name, key, value) => {
  made["packs-" + name][key] = value;
  made["packs-" + name].listeners.input();
  return [heads(), made["packs-told"].textContent];
};
const seen = [heads(), set("falling", "checked", true), set("by", "value", "fill"), set("least", "value", "15"),
  set("search", "value", "tar/2_"), set("search", "value", "nowhere")];
made["packs-search"].value = "";
made["packs-least"].value = "";
made["packs-by"].listeners.input();
const row = made["packs-list"].children[0];
row.listeners.toggle();
console.log(JSON.stringify([...seen, row.text]));
"""


def test_the_script_sorts_filters_and_searches(tmp_path: Path) -> None:
    """Run by node against a stand-in of a browser."""
    if not (node := shutil.which("node")):
        pytest.skip("there is no node")
    data = json.dumps(data_of(whole(grid()), "packs-data"))
    (tmp_path / "run.js").write_text(BROWSER.replace("SCRIPT", script()).replace("DATA", json.dumps(data)))
    done = subprocess.run([node, "run.js"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, falling, by_fill, least, search, nothing, opened = json.loads(done.stdout)
    assert first == ["0", "1", "2"]
    assert falling == by_fill == [["2", "1", "0"], "3 of 3 packs"]
    assert least == [["2", "1"], "2 of 3 packs"]
    assert search == [["2"], "1 of 3 packs"]
    assert nothing == [[], "0 of 3 packs"]
    assert "python -m energon_pack.inspect '/packed/it'\"'\"'s' 2" in opened
    assert "10 tokens, 4 visual" in opened


def test_a_browser_runs_the_script_of_the_page_and_no_other() -> None:
    """Its policy names the script by its hash: with another one the grid could not be sorted."""
    page_of = page("a", "b", has_script=True)
    script = page_of[page_of.index("<script>") + len("<script>") : page_of.index("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#x27;sha256-{digest}&#x27;" in page_of
    assert "script-src" not in page("a", "b")
