"""Media on object stores: only those are asked for that the settings name, whatever stands in the data."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import Format, PackConfig
from energon_pack.errors import PackError
from energon_pack.pack import pack
from support.finding import find_lines
from support.packed import json_lines
from support.samples import chat, picture
from support.stores import Bucket

Make = Callable[..., PackConfig]


def lines(folder: Path, *images: str) -> Path:
    """A JSONL with an image a line, and one line of text."""
    told = [json.dumps({"image": image, **json.loads(chat("<image>?", "a"))}) for image in images]
    path = folder / "x.jsonl"
    path.write_text("\n".join([*told, chat("?", "b").decode()]) + "\n")
    return path


def test_a_line_that_names_a_bucket_costs_its_sample_and_asks_nobody(
    config: Make, tmp_path: Path, bucket: Bucket
) -> None:
    """One hostile line signed a request with the user's keys, to a place of its choosing, and ended the run."""
    bucket.put("a.png", picture(format="PNG"))
    (tmp_path / "b.png").write_bytes(picture(format="PNG"))
    named = [
        f"{bucket.address}/a.png",
        "msc://anyone/a.png",
        "s3://me:word@b/a.png",
        "S3://b/a.png",
        "http://me:word@h/a.png",
    ]
    source = lines(tmp_path, "b.png", *named)
    bucket.proxy.fault = lambda _: 500
    bucket.seen()
    run = config(source, source__format=Format.jsonl, max_skipped=1.0)
    assert pack(run)["samples_packed"] == 2
    assert bucket.seen().requests == []
    ledger = json_lines(tmp_path / "out" / "packed" / "skipped.jsonl")
    assert [row["reason"] for row in ledger] == ["missing_media"] * 4 + ["unsupported_media"]
    assert "source.remote_media=true reads it" in ledger[0]["detail"]
    assert "word" not in json.dumps(ledger)


@pytest.mark.parametrize("named", ["source.remote_media", "source.media_root"])
def test_media_of_a_bucket_are_read_where_the_settings_name_it(
    config: Make, tmp_path: Path, bucket: Bucket, named: str
) -> None:
    """A scheme in capitals is the same one; it was a path, and its media `unsupported_media`."""
    bucket.put("deep/a.png", picture(format="PNG"))
    more: dict[str, Any] = {"source__remote_media": True}
    if named == "source.media_root":
        more = {"source__media_root": f"{bucket.address}/other"}  # the same bucket
    addresses = f"{bucket.address}/deep/a.png", f"{bucket.address}/deep/a.png".replace("s3", "S3", 1)
    run = config(lines(tmp_path, *addresses), source__format=Format.jsonl, **more)
    assert pack(run)["samples_packed"] == 3


def test_a_line_on_a_store_names_no_other_bucket(config: Make, tmp_path: Path, bucket: Bucket) -> None:
    bucket.put("media/a.png", picture(format="PNG"))
    bucket.put("in/x.jsonl", lines(tmp_path, f"{bucket.address}/media/a.png", "s3://elsewhere/a.png").read_bytes())
    bucket.seen()
    assert pack(config(f"{bucket.address}/in", source__format=Format.jsonl, max_skipped=1.0))["samples_packed"] == 2
    assert [request for request in bucket.seen().requests if "elsewhere" in request.path] == []


@pytest.mark.parametrize("key", ["file_name", "media_dir"])
def test_a_meta_file_names_no_bucket_of_its_own_choosing(tmp_path: Path, bucket: Bucket, key: str) -> None:
    """It comes with the data, as lines do."""
    lines(tmp_path)
    bucket.put("x.jsonl", chat("?", "b"))
    entry = {"file_name": "x.jsonl", key: f"{bucket.address}/x.jsonl"}
    (tmp_path / "meta.json").write_text(json.dumps({"one": entry}))
    bucket.seen()
    with pytest.raises(PackError, match=rf"{bucket.address}/x\.jsonl is on an object store that source\.path does not"):
        find_lines(str(tmp_path / "meta.json"))
    assert bucket.seen().requests == []
    assert len(find_lines(str(tmp_path / "meta.json"), remote_media=True).shards) == 1
