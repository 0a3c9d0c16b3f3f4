"""Remakes the pictures of README.md and docs/ from a real run: `python benchmarks/pictures.py` (or `make pictures`)

    the demo, packed ──► report.html, sweep.html ──Chromium──► docs/pictures/*.webp, ≤ 150 kB each
    the same command, as it prints ──► docs/pictures/terminal.svg, animated

Needs Chromium: the program of $CHROMIUM, or `chromium` or `google-chrome` on the path.
"""

import argparse
import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageChops

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
MOST_BYTES = 150_000
#: picture: page, the anchors of the sections in it (none: what is above them), width, colours
SHOTS = {
    "report": ("report.html", ("in-and-out", "what-to-look-at"), 1200, "light"),
    "sheet": ("report.html", ("contact-sheet",), 1200, "light"),
    "pack": ("report.html", ("a-few-packs",), 1200, "dark"),
    "sweep": ("sweep.html", ("jobs",), 1200, "light"),
}
_TALL, _MOST_SHOWN, _MARGIN = 6000, 1000, 16  # pixels
_DEMO = ("+model=qwen2_5_vl", "packing.max_token_len=1024")
_SWEEP = ("-m", "+model=qwen2_5_vl", "packing.max_token_len=512,1024,2048", "packing.overlong=drop,truncate_text")
_COLUMNS = 100  # of the terminal
_MOST_WAITED = 1.0  # seconds


def main() -> None:
    made = argparse.ArgumentParser(description="Remake docs/pictures.")
    made.add_argument("--only", nargs="+", choices=[*SHOTS, "terminal"], default=[*SHOTS, "terminal"])
    made.add_argument("--into", type=Path, default=PICTURES, help="another folder")
    given = made.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = run(folder, *_DEMO)
        if "terminal" in given.only:
            (given.into / "terminal.svg").write_text(recording(f"energon-pack {' '.join(_DEMO)}", lines))
        pages = {"report.html": next(folder.glob("packed/*/report.html"))}
        if "sweep" in given.only:
            run(folder, *_SWEEP, "stage=plan")
            pages["sweep.html"] = next(folder.glob("packed/.runs/*/sweep.html"))
        for name in set(SHOTS) & set(given.only):
            page, anchors, width, colours = SHOTS[name]
            save(shot(pages[page], anchors, width, colours, folder), given.into / f"{name}.webp")
    for path in sorted(given.into.iterdir()):
        print(f"{path.stat().st_size / 1000:8.1f} kB  {path}")


# ----------------------------------------------------------------------------------------------------- a page


def shot(page: Path, anchors: tuple[str, ...], width: int, colours: str, folder: Path) -> Image.Image:
    """Some sections of a page, as a browser draws them.

    Args:
        anchors: of the sections; the first section of a page has what is above it, too.
        colours: light or dark.
    """
    kept = ", ".join(f":has(> #{anchor})" for anchor in anchors)
    above = "" if anchors[0] in ("in-and-out", "jobs") else "main > :not(section) { display: none !important }"
    style = f"<style>{above} section:not({kept}) {{ display: none }} h2 {{ border: 0; margin-top: 0 }}</style></head>"
    changed, png = folder / "page.html", folder / "page.png"
    changed.write_text(page.read_text().replace("</head>", style))
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    scheme = f"--blink-settings=preferredColorScheme={('dark', 'light').index(colours)}"
    command = [_browser(), *options, scheme, f"--user-data-dir={folder / 'browser'}", f"--window-size={width},{_TALL}",
               f"--screenshot={png}", changed.as_uri()]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return trimmed(Image.open(png).convert("RGB"))


def trimmed(image: Image.Image) -> Image.Image:
    """Without the empty ground around it, and no higher than one looks at."""
    ground = Image.new("RGB", image.size, image.getpixel((image.width - 1, image.height - 1)))
    box = ImageChops.difference(image, ground).getbbox() or (0, 0, *image.size)
    left, top = max(0, box[0] - _MARGIN), max(0, box[1] - _MARGIN)
    right, bottom = min(image.width, box[2] + _MARGIN), min(image.height, box[3] + _MARGIN, top + _MOST_SHOWN)
    return image.crop((left, top, right, bottom))


def save(image: Image.Image, path: Path) -> None:
    """As WebP, as good as fits."""
    for quality in (90, 80, 70, 50):
        image.save(path, "WEBP", quality=quality, method=6)
        if path.stat().st_size <= MOST_BYTES:
            return
    raise SystemExit(f"{path}: more than {MOST_BYTES} bytes at quality {quality}")


def _browser() -> str:
    named = (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, (shutil.which(name) for name in named if name)), None)
    if found is None:
        raise SystemExit("no Chromium here: set CHROMIUM to its program")
    return found


# ------------------------------------------------------------------------------------------------- a terminal


def run(folder: Path, *overrides: str) -> list[tuple[float, str]]:
    """What the command prints, and after how many seconds each line came."""
    places = {"PYTHONPATH": str(ROOT), "COLUMNS": str(_COLUMNS), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "energon_pack", *overrides]
    lines, start = [], time.monotonic()
    with subprocess.Popen(command, cwd=folder, env={**os.environ, **places}, stdout=subprocess.PIPE, text=True) as done:
        assert done.stdout is not None
        for line in done.stdout:
            lines.append((time.monotonic() - start, line.rstrip()))
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return lines


def recording(command: str, lines: list[tuple[float, str]]) -> str:
    """What was printed, line by line as it came; all of it at once for whoever wants no motion."""
    rows = [(0.0, f"$ {command}"), *_hurried(lines)]
    height, texts = 18 * len(rows) + 24, []
    for number, (at, line) in enumerate(rows):
        kind = "typed" if not number else "good" if re.match(r"packed into|verified|see it", line) else "plain"
        place = f'x="16" y="{18 * number + 26}" style="animation-delay:{at:.1f}s"'
        texts.append(f'<text class="{kind}" {place} xml:space="preserve">{html.escape(line, quote=False)}</text>')
    style = (
        ".paper{fill:#14171b}text{font:13px ui-monospace,'DejaVu Sans Mono',monospace;fill:#e4e8ee;opacity:0;"
        "animation:seen .01s linear forwards}.typed{fill:#7ab7f5}.good{fill:#5fce8f}@keyframes seen{to{opacity:1}}"
        "@media(prefers-reduced-motion:reduce){text{animation:none;opacity:1}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {8 * _COLUMNS + 32} {height}" role="img">'
        f"<title>What {html.escape(command, quote=False)} prints, line by line</title><style>{style}</style>"
        f'<rect class="paper" width="100%" height="100%" rx="8"/>{"".join(texts)}</svg>\n'
    )


def _hurried(lines: list[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """Lines that fit, none later than so many seconds after the one before."""
    before, waited = 0.0, 0.0
    for at, line in lines:
        waited += min(at - before, _MOST_WAITED)
        before = at
        for part in textwrap.wrap(line, _COLUMNS, subsequent_indent="  ", drop_whitespace=False) or [""]:
            yield waited, part


if __name__ == "__main__":
    main()
