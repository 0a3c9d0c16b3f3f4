"""An LMDB is read page by page: as its library reads it, and a damaged page is named in place of ending the process."""

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import Format, MediaIn, OnDamaged, PackConfig
from energon_pack.errors import PackError
from energon_pack.samples.skip import Skip
from energon_pack.sources.lmdb_pages import DamagedFile, open_lmdb
from support.packed import json_lines, packed, train
from support.samples import picture

lmdb: Any = pytest.importorskip("lmdb")


def write_lmdb(path: Path, values: dict[bytes, bytes]) -> dict[bytes, bytes]:
    with lmdb.open(str(path), subdir=False, map_size=1 << 25) as database, database.begin(write=True) as transaction:
        for key, value in values.items():
            transaction.put(key, value)
    return values


def changed(path: Path, page: int, byte: int, to: int) -> None:
    data = bytearray(path.read_bytes())
    data[page * 4096 + byte] = to
    path.write_bytes(data)


def test_each_value_is_the_one_of_the_library(tmp_path: Path) -> None:
    """Keys of all lengths in several levels, values inside and outside of their page, after some were removed."""
    rng, path = random.Random(0), tmp_path / "x.lmdb"
    sizes = [0, 1, 900, 1900, 2100, 4080, 4081, 9000]
    values = {rng.randbytes(rng.randint(1, 511)): rng.randbytes(rng.choice(sizes)) for _ in range(700)}
    write_lmdb(path, values)
    removed = rng.sample(sorted(values), 100)
    with lmdb.open(str(path), subdir=False, map_size=1 << 25) as database, database.begin(write=True) as transaction:
        for key in removed:
            transaction.delete(key)
            del values[key]
    opened = open_lmdb(str(path), str(path))
    assert all(opened.get(key) == value for key, value in values.items())
    for key in (*removed, b"\0", b"\xff" * 511):
        with pytest.raises(KeyError):
            opened.get(key)
    opened.close()


@pytest.mark.parametrize("flag", [2, 8])
def test_another_order_of_keys_is_named(tmp_path: Path, flag: int) -> None:
    path = tmp_path / "x.lmdb"
    write_lmdb(path, {b"k": b"1"})
    for page in (0, 1):
        changed(path, page, byte=16 + 76, to=flag)
    with pytest.raises(Skip, match="keys that are reversed, or integers"):
        open_lmdb(str(path), str(path))


def test_no_changed_byte_of_a_page_gives_another_value(tmp_path: Path) -> None:
    """Each of the first bytes of each page: the value, or an error that names the file; nothing else, and at once."""
    path = tmp_path / "x.lmdb"
    values = write_lmdb(path, {b"img%03d" % number: bytes([number]) * (number % 3 * 1900) for number in range(120)})
    whole, damaged = path.read_bytes(), 0
    rng = random.Random(0)
    for page in range(len(whole) // 4096):
        for byte in range(0, 24, 3):
            if (place := page * 4096 + byte) >= len(whole) or not any(whole[page * 4096 :][:4096]):
                continue
            path.write_bytes(whole[:place] + bytes([whole[place] ^ rng.randint(1, 255)]) + whole[place + 1 :])
            try:
                opened = open_lmdb(str(path), str(path))
                for key in rng.sample(sorted(values), 3):
                    assert opened.get(key) == values[key] or byte >= 16  # bytes of a value are not known
            except DamagedFile as error:
                damaged += "x.lmdb" in str(error)
            else:
                opened.close()
    assert damaged > 20


# ------------------------------------------------------------------------------------------------ a run and training


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Forty samples, each with an image of an LMDB whose tree has two levels."""
    folder = tmp_path / "source"
    folder.mkdir()
    write_lmdb(folder / "i.lmdb", {b"img%03d" % number: picture(30 + number, 40) for number in range(40)})
    turns = [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "yes"}]
    lines = [json.dumps({"messages": turns, "images": [f"i.lmdb::img{number:03d}"]}) for number in range(40)]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def page_of(path: Path, key: bytes) -> int:
    """The number of the last page that has this key: a leaf."""
    data = path.read_bytes()
    return max(at // 4096 for at in range(len(data)) if data.startswith(key, at))


def test_a_damaged_lmdb_ends_a_run_with_its_name(config: Callable[..., PackConfig], source: Path) -> None:
    """The command ended without a word (SIGBUS), or "most likely for memory"."""
    make = partial(config, source, source__format=Format.jsonl)
    changed(source / "i.lmdb", page_of(source / "i.lmdb", b"img039"), byte=3, to=1)
    with pytest.raises(
        PackError, match=r"a\.jsonl:\d+: .*i\.lmdb is damaged in its page \d+; .*source\.on_damaged=keep"
    ):
        packed(make())
    folder = packed(make(source__on_damaged=OnDamaged.keep, max_skipped=0.9))
    ledger = json_lines(folder / "skipped.jsonl")
    assert 0 < len(ledger) < 40
    assert all(
        line["reason"] == "unreadable_media" and "'i.lmdb' is damaged in its page" in line["detail"] for line in ledger
    )
    with pytest.raises(PackError, match="is damaged in its page"):  # though the cache knows what was left out
        packed(make(output__name="again"))


def test_training_names_the_file_and_the_key_of_a_damaged_lmdb(config: Callable[..., PackConfig], source: Path) -> None:
    folder = packed(config(source, source__format=Format.jsonl, output__media=MediaIn.reference))
    changed(source / "i.lmdb", page_of(source / "i.lmdb", b"img039"), byte=3, to=1)
    with pytest.raises(
        Exception, match=r"i\.lmdb::img0\d\d, where .* lies, can't be read .*'i\.lmdb' is damaged in its page"
    ):
        list(train(folder))
