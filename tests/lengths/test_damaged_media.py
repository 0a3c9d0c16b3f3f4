"""An image that is cut costs its sample, whoever sees it; one that is damaged within costs no run.

Was a single one drawn by the audit, the run ended with "a difference", and nothing was published.
"""

import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from energon_pack.config import PackConfig
from energon_pack.pack import pack
from support.packed import json_lines
from support.running import need_torchvision
from support.samples import chat, noise, picture, write_tar


def short_of_pixels() -> bytes:
    """A PNG whose chunks are whole, and whose pixels end in the middle."""
    data = noise(1, 64)
    start = data.index(b"IDAT")
    body = b"IDAT" + data[start + 4 :][: (int.from_bytes(data[start - 4 : start], "big")) // 2]
    chunk = (len(body) - 4).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    return data[: start - 4] + chunk + b"\0\0\0\0IEND" + zlib.crc32(b"IEND").to_bytes(4, "big")


def test_what_can_not_be_decoded_ends_no_run(
    config: Callable[..., PackConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All samples are drawn."""
    need_torchvision()
    whole = {format: picture(300, 200, format) for format in ("JPEG", "PNG", "WEBP")}
    lossless = picture(300, 200, "WEBP", lossless=True)
    members: dict[str, bytes] = {}
    for number, data in enumerate((*whole.values(), lossless)):
        for name, image in ((f"good{number}", data), (f"cut{number}", data[: len(data) * 3 // 4])):
            members |= {f"{name}.json": chat("<image>What?", "That."), f"{name}.0.jpg": image}
    members |= {"within.json": chat("<image>What?", "That."), "within.0.png": short_of_pixels()}
    write_tar(tmp_path / "source" / "a.tar", members)
    pack(config(tmp_path / "source", max_skipped=0.5, measure__verify=1.0))
    ledger = json_lines(tmp_path / "out" / "packed" / "skipped.jsonl")
    assert {(line["sample_id"], line["reason"]) for line in ledger} == {
        (f"a.tar/cut{number}", "unreadable_media") for number in range(4)
    }
    out = capsys.readouterr().out
    assert "verified: 4 samples in the full processor, none differs" in out
    (line,) = (line for line in out.splitlines() if "damaged within" in line)
    assert line.startswith("not verified: 1 sample with a medium that is damaged within, as a.tar/within (OSError:")
    assert "on_bad_member=drop" in line
