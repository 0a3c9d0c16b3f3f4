"""Jobs and results as bytes: what crosses is what arrives, and nothing crosses that is not this package's own."""

import errno
import json
import math
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack import __version__
from energon_pack.config import Layout, PackConfig
from energon_pack.errors import PackError, SamplesLost, check_buffer_size
from energon_pack.lengths.table_cache import Piece, Record
from energon_pack.pack import pack
from energon_pack.run.executors import Job, Result
from energon_pack.run.executors.local import WorkerKilled
from energon_pack.run.executors.shared.wire import WireError, decode, encode
from energon_pack.samples.flavors import PACKED
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.reader import SourceChanged
from energon_pack.sources.shard import TarShard
from energon_pack.sources.storage import counted
from support.elsewhere import Elsewhere
from support.packed import files

_plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
_keys = st.text() | st.integers() | st.tuples(st.text(), st.integers())
_values = st.recursive(
    _plain | st.builds(Path, st.text("abc/.", min_size=1)),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(_keys, inner)
        | st.frozensets(_keys, max_size=1)
        | st.sets(_keys, max_size=1)
        | st.builds(Piece, inner, inner, inner)
    ),
    max_leaves=20,
)


def _crossed(value: Any) -> Any:
    return decode(encode(value))


@given(_values)
def test_values_arrive_as_they_were(value: Any) -> None:
    arrived = _crossed(value)
    assert arrived == value
    assert repr(arrived) == repr(value)  # 1 is not True, and a tuple is no list


def test_what_stands_twice_behind_an_error_of_others_arrives() -> None:
    twice = ("a", 1)
    assert _crossed([json.JSONDecodeError("no", "text", 0), twice, twice])[1:] == [twice, twice]


def test_numbers_that_json_does_not_know_arrive() -> None:
    assert math.isnan(_crossed(math.nan))
    assert _crossed([math.inf, -math.inf, 2**200, -0.0, "\ud800"]) == [math.inf, -math.inf, 2**200, -0.0, "\ud800"]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.uint32).reshape(2, 3)[:, ::2],
        np.zeros((0, 4), "<f8"),
        np.array(3.5),
        np.array(["a", "béta"]),
        np.zeros(2, [("number", "<i4"), ("name", "S3")]),
    ],
)
def test_arrays_arrive_with_their_types(array: Any) -> None:
    arrived = _crossed({"array": array})["array"]
    assert (arrived.dtype, arrived.shape) == (array.dtype, array.shape)
    assert (arrived == array).all()
    assert arrived.flags.writeable or arrived.ndim == 0


@pytest.mark.parametrize("number", [np.float32(0.1), np.int64(-7), np.bool_(True), np.datetime64("2024-02-29")])
def test_a_number_of_numpy_stays_one(number: Any) -> None:
    assert _crossed(number) == number
    assert type(_crossed(number)) is type(number)


def test_tables_arrive_and_a_slice_costs_no_more_than_it_holds() -> None:
    """A job holds 2,000 rows of an index that may have millions."""
    names = pa.array([{"name": f"{i}.jpg", "size": None if i % 3 else i} for i in range(50_000)])
    table = pa.table({"parts": names, "key": pa.array(["a", None] * 25_000).dictionary_encode()})
    part = table.slice(40_000, 20)
    assert _crossed(part).equals(part)
    assert _crossed(table).equals(table)
    assert _crossed(table.slice(0, 0)).schema == table.schema
    assert len(encode(part)) < 5_000 < len(encode(table))


@dataclass(frozen=True)
class _Stranger:
    number: int


def test_what_this_package_defines_arrives(tmp_path: Path) -> None:
    for value in (Layout.thd, Reason.OVERLONG, Record("a", 1, 2)):
        assert _crossed(value) == value
        assert type(_crossed(value)) is type(value)
    shard = TarShard("a/b.tar", str(tmp_path), 7, "v")
    assert shard.real_path  # kept in the object, and no part of its value
    assert _crossed(shard) == shard
    for flavor in PACKED.values():
        assert type(_crossed(flavor)) is type(flavor)
        assert vars(_crossed(flavor)) == vars(flavor)
    function = _crossed(partial(check_buffer_size, "size", value=7))
    assert (function.func, function.args, function.keywords) == (check_buffer_size, ("size",), {"value": 7})


def test_what_is_there_twice_is_sent_once() -> None:
    """A job names the shard of each of its 2,000 samples."""
    shard = TarShard("a/b.tar", "/x" * 100, 7, "v")
    arrived = _crossed([shard] * 2000)
    assert len(encode([shard] * 2000)) < 40_000
    assert arrived == [shard] * 2000
    assert len(set(map(id, arrived))) == 1
    # objects that are gone when others take their places in memory
    many = [{"number": i, "pair": (i, [i])} for i in range(200)]
    assert _crossed(many) == many


@pytest.mark.parametrize(
    "error",
    [
        PackError("source.path=x: no such file"),
        WorkerKilled(),
        SourceChanged("/data/a.tar", "a/7"),
        SamplesLost("bad data cost 7 of 9 samples", "/out/packed.report.html"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/out/x"),
        FileNotFoundError(errno.ENOENT, "No such file", "/a/b"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        KeyError("name"),
        AssertionError(),
        Skip(Reason.INVALID_JSON, "line 3"),
    ],
)
def test_errors_arrive_with_their_types_and_what_they_say(error: Exception) -> None:
    """The command line says which file, and which knob; a full disk is told from others by its number."""
    what, arrived = _crossed(("error", error))
    assert (what, type(arrived), str(arrived)) == ("error", type(error), str(error))
    for name in ("page", "path", "errno", "reason"):
        assert getattr(arrived, name, None) == getattr(error, name, None)


def test_a_file_that_an_error_names_by_a_path_arrives() -> None:
    error = _crossed(OSError(errno.EDQUOT, "quota", Path("/a/b")))
    assert (error.errno, error.filename) == (errno.EDQUOT, "/a/b")


def test_errors_of_others_arrive_as_what_they_say() -> None:
    arrived = _crossed(pa.ArrowInvalid("not a Parquet file"))
    assert type(arrived) is RuntimeError
    assert str(arrived) == "ArrowInvalid: not a Parquet file"
    assert str(_crossed(ValueError([1], {2: 3}))) == "ValueError: ([1], {2: 3})"


@pytest.mark.parametrize("value", [_Stranger(1), os.system, lambda: 0, open, json.JSONEncoder, object(), [iter(())]])
def test_what_another_machine_would_not_find_is_not_sent(value: Any) -> None:
    with pytest.raises(TypeError, match="can't be named in a file"):
        encode(value)


def _with(tree: Any, version: str | None = None) -> bytes:
    """Bytes of a tree that `encode` would not write."""
    text = json.dumps([version or __version__, tree, []]).encode()
    body = struct.pack("<I", len(text)) + text
    return b"energon_pack job\n" + struct.pack("<I", crc32(body)) + body


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "builtins:eval",
        "builtins:open",
        "energon_pack.run.files:os.replace",
        "energon_pack.run.files:os",
        "energon_pack_stranger:x",
        "energon_pack.run.files:write_whole.__globals__",
        "energon_pack.errors:PackError.__init__.__globals__",
        "energon_pack.errors:none",
        "subprocess:Popen",
        "",
        ":",
    ],
)
@pytest.mark.parametrize("kind", ["named", "error", "member", "row", "object"])
def test_nothing_outside_this_package_is_named(kind: str, name: str) -> None:
    """Whoever may write into a shared folder would else have anything run."""
    with pytest.raises(WireError):
        decode(_with([kind, name, ["tuple", "true"], ["dict"]]))


@pytest.mark.parametrize(
    "tree",
    [
        ["error", "energon_pack.errors:short", ["tuple", "x"], ["dict"]],
        ["row", "energon_pack.errors:PackError", "x"],
        ["member", "energon_pack.errors:PackError", "x"],
        ["object", "energon_pack.errors:short"],
        ["member", "energon_pack.samples.skip:Reason", "NONE"],
        ["strange", "x"],
        ["same", 7],
        ["bytes", 7],
        ["row", "energon_pack.lengths.table_cache:Piece", "x"],
        [],
    ],
)
def test_a_tree_that_nobody_wrote_is_refused(tree: Any) -> None:
    with pytest.raises(WireError):
        decode(_with(tree))


def test_another_version_is_refused() -> None:
    with pytest.raises(WireError, match=r"energon_pack 0\.0\.1 made it, and this is .*: all machines need the same"):
        decode(_with(None, "0.0.1"))


def test_bytes_that_are_cut_or_changed_are_refused() -> None:
    """A file that a server lost half of, after a power cut."""
    data = encode({"numbers": np.arange(10), "text": "x" * 50})
    for end in range(len(data)):
        with pytest.raises(WireError):
            decode(data[:end])
    for place in range(len(data)):
        with pytest.raises(WireError):
            decode(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])


class _Wired(Elsewhere):
    """Each job as a file of a shared folder would bring it to another machine."""

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job], are_short: bool = False) -> Iterator[Result]:
        for job in jobs:
            run, sent = decode(encode((function, job)))
            of = run.args[0] if isinstance(run, partial) and run.func is counted else run
            self.names.add(getattr(of, "__name__", "partial"))
            yield decode(encode(("done", run(sent))))[1]


@pytest.mark.parametrize("is_cut", [False, True])
def test_every_job_of_a_run_goes_through(
    config: Callable[..., PackConfig], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cut: bool
) -> None:
    """A type that can't cross would fail on a cluster alone."""
    settings: dict[str, Any] = {"packing__max_token_len": 512, "output__max_shard_packs": 8}
    if is_cut:
        settings |= {"packing__overlong": "split_turns", "source__slice": "0/2"}
    local = config(**settings)
    pack(local)
    shutil.copytree(cache / "templates", tmp_path / "other" / "templates")
    wired = _Wired()
    monkeypatch.setattr("energon_pack.run.executors.choose.executor_of", lambda *_: wired)
    remote = config(**settings, cache_dir=str(tmp_path / "other"), output__dir=str(tmp_path / "other" / "out"))
    pack(remote)
    assert files(Path(remote.output.dir) / "packed") == files(Path(local.output.dir) / "packed")
    assert wired.names >= {"_index_some", "measure", "write_shard"}
    assert ("cut" in wired.names) == is_cut
