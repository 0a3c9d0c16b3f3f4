"""The round trip of JSONL and of `packed_captioning`: single samples again, in tars, as long as they were."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import Flavor, Format, Overlong, PackConfig
from energon_pack.unpack import unpack
from energon_pack.verify import Options, verify
from support.marks import first_of
from support.packed import lengths, packed, samples
from support.samples import chat, npy, picture, write_source, write_tar

Make = Callable[..., PackConfig]


def run_of(make: Make, source: Path, flavor: Flavor, name: str, **settings: Any) -> PackConfig:
    format = Format.jsonl if source.suffix == ".json" else Format.wds
    run = make(source, source__format=format, output__flavor=flavor, output__name=name, max_skipped=0.5, **settings)
    run.packing.max_token_len, run.packing.overlong = 512, Overlong.split_turns
    return run


@pytest.mark.parametrize("flavor", first_of(Flavor))
def test_lines_packed_unpacked_packed(config: Make, tmp_path: Path, flavor: Flavor) -> None:
    """Paths are no names in a tar, times are put in once, samples drawn twice are two; nothing has another length."""
    source = write_source(tmp_path / "source")
    first = packed(run_of(config, source, flavor, "first"))
    unpack(first, tmp_path / "unpacked")
    found = samples(tmp_path / "unpacked")
    assert list(found["media.tar/1"]) == ["json", *(f"{i}.jpg" for i in range(6))] + [
        f"{i}.npy" for i in range(6) if flavor is Flavor.packed_captioning
    ]
    record = json.loads(found["media.tar/1"]["json"])
    if flavor is Flavor.packed_captioning:
        assert record == {
            "messages": [
                {"role": "user", "content": "<image>" * 6 + "what?"},
                {"role": "assistant", "content": "this"},
            ],
            "media": "image",
            "id": 7,
            "fps": 30,
            "patch_positions": [f"{i}.npy" for i in range(6)],
        }
        assert found["media.tar/1"]["3.npy"] == npy(45)
        record = json.loads(found["media.tar/2"]["json"])
        assert (record["fps"], record["timestamp_decimal"]) == ([2], 2)
        assert record["patch_positions"] == [*(f"{i}.npy" for i in range(5)), ""]
    else:
        assert record["messages"][0]["content"].startswith("<0.0 seconds><image>\n<0.5 seconds><image>")
        assert record["source_times"] == {"fps": 30, "patch_positions": [f"f{i}.npy" for i in range(6)]}
        assert "fps" not in record
    assert list(found["media.tar/3"])[:3] == ["json", "0.jpg", "1.png"]
    assert found["media.tar/12"] == {"json": found["media.tar/12"]["json"], "0.jpg": picture(33, 44)}
    assert sum("@2" in name for name in found) == 10
    again = packed(run_of(config, tmp_path / "unpacked", flavor, "again"))
    assert sorted(row[:2] for row in lengths(again).values()) == sorted(row[:2] for row in lengths(first).values())
    assert verify(again, Options(source=[], num_workers=1)).first(99) == []


def test_captioning_from_tars(config: Make, tmp_path: Path) -> None:
    """Parts keep their names and fields theirs, whatever they are called; arrays are numbered as their images."""
    turns = json.loads(chat("<image><image>a", "b"))["messages"]
    members = {
        "x.json": chat("<image><image>a", "b", id=1, source_fields={"m": 1}, patch_positions=["", "p.q.npy"], fps=2),
        "x.b.png": picture(format="PNG"),
        "x.a.jpg": picture(50, 50),
        "x.p.q.npy": npy(3),
        "y.json": json.dumps({"conversations": turns, "messages": [], "name": ["b.png", "a.jpg"]}).encode(),
        "y.a.jpg": picture(),
        "y.b.png": picture(60, 60, "PNG"),
    }
    source = write_tar(tmp_path / "s" / "x.tar", members).parent
    first = packed(run_of(config, source, Flavor.packed_captioning, "first"))
    unpack(first, tmp_path / "unpacked")
    found = samples(tmp_path / "unpacked")
    x, y = (json.loads(found[f"x.tar/{key}"].pop("json")) for key in "xy")
    wanted = {"messages": turns, "id": 1, "source_fields": {"m": 1}, "patch_positions": ["", "1.npy"], "fps": 2}
    assert x == {**wanted, "media": "image"}
    assert found["x.tar/x"] == {"b.png": picture(format="PNG"), "a.jpg": picture(50, 50), "1.npy": npy(3)}
    assert y == {"conversations": turns, "messages": [], "media": "image"}
    assert list(found["x.tar/y"]) == ["b.png", "a.jpg"]
    again = packed(run_of(config, tmp_path / "unpacked", Flavor.packed_captioning, "again"))
    assert lengths(again) == lengths(first)
