"""Pictures of what the plan leaves out: the longest first, and none ends a run."""

import base64
import io
import re
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from energon_pack.config import PackConfig
from energon_pack.pack import pack
from support.html_page import check_page
from support.samples import chat, picture, write_tar


def test_pictures_that_are_left_out_are_seen(config: Callable[..., PackConfig], tmp_path: Path) -> None:
    """`overlong` named lines of a file; that these were scans of a page was seen by nobody."""
    members = {"t.json": chat("a", "b")}
    for name, width in (("small", 56), ("wide", 560), ("wider", 840)):
        members |= {f"{name}.json": chat("<image>a", "b", name=["0.png"]), f"{name}.0.png": picture(width, 560, "PNG")}
    run = config(write_tar(tmp_path / "s" / "x.tar", members))
    run.packing.max_token_len = 256
    pack(run)
    page = (Path(run.output.dir) / "packed" / "report.html").read_text()
    check_page(page)
    lost = page.partition("that the settings leave out")[2].partition("</section>")[0]
    assert re.findall("x.tar/(\\w+)", lost) == ["wider", "wide"], "the longest first"
    shown = [base64.b64decode(data) for data in re.findall('data:image/webp;base64,([^"]*)', lost)]
    assert [Image.open(io.BytesIO(data)).size for data in shown] == [(160, 107), (160, 160)]
