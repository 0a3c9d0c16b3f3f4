"""The round trip: a source, packed, unpacked, packed again. What was in the source is there again, and as long.

Without it, packs would be a one-way street: a field renamed or an order of media lost would show only in training.
"""

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from energon_pack.config import Flavor, Format, Overlong, PackConfig
from energon_pack.errors import PackError
from energon_pack.samples.media_parts import find_media_parts
from energon_pack.samples.record import parse_record
from energon_pack.samples.sample import Part
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.single_samples import sample_json_of_member
from energon_pack.unpack import unpack
from energon_pack.verify import Options, verify
from support.marks import first_of
from support.packed import files, lengths, packed, samples
from support.running import ROOT, command_here
from support.samples import chat, npy, picture, write_source, write_tar

Make = Callable[..., PackConfig]
WORDS = "one two three four five six seven eight nine ten " * 8
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """One of each kind of sample, in two shards, one in a folder; `talk` and `talk#1of9` are to collide."""
    talk = [text for i in range(9) for text in (f"<image>question {i}", f"{i} {WORDS}")]
    odd = {
        "from.json": json.dumps(
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "messages": [], "id": 1}
        ).encode(),
        "tools.json": chat("add", "sum", tools=TOOLS, source_fields={"mine": 1}, name="no file", system="be brief"),
        "twice.json": chat("<image> and <image>", "the same", name=["0.jpg", "0.jpg"]),
        "twice.0.jpg": picture(),
        "raw.json": chat("<image>", "without extension", name=["bytes"]),
        "raw.bytes": picture(50, 20, "PNG"),
        "cap.jpg": picture(30, 30),
        "cap.txt": b"a caption\n",
        "put.json": chat("what?", "placeholders are put in", media_files="no list"),
        "put.2.png": picture(28, 28, "PNG"),
        "put.1.jpg": picture(56, 28),
        "wrong.json": chat("<image>", "PNG bytes under .jpg"),
        "wrong.x.jpg": picture(40, 40, "PNG"),
    }
    ordered = {
        "order.json": chat("first <image>, then <image>", "yes", name=["b.png", "a.png"]),
        "order.a.png": picture(28, 28, "PNG"),
        "order.b.png": picture(84, 28, "PNG"),
    }
    long = {"talk.json": chat(*talk, id="t"), **{f"talk.{i}.png": picture(28 * (i + 2), 56, "PNG") for i in range(9)}}
    write_tar(tmp_path / "source" / "z.tar", {"bad.json": b"{", **odd})
    write_tar(tmp_path / "source" / "a" / "b.tar", {**long, "talk#1of9.json": chat("its name", "is taken"), **ordered})
    return tmp_path / "source"


def cutting(run: PackConfig) -> PackConfig:
    run.packing.max_token_len, run.packing.overlong, run.max_skipped = 512, Overlong.split_turns, 0.5
    return run


# ----------------------------------------------------------------------------------------------------- the round trip


def test_the_demo_comes_back(config: Make, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Every sample, byte for byte its media, JSON for JSON its record, in its shard and in its order."""
    dataset = packed(config(output__max_shard_packs=4))
    assert unpack(dataset, tmp_path / "unpacked") == 320
    ours, theirs = samples(tmp_path / "unpacked"), samples(demo[0])
    assert list(ours) == list(theirs)
    for name, parts in theirs.items():
        record, unpacked = json.loads(parts.pop("json")), json.loads(ours[name].pop("json"))
        record.pop("name", None)  # the order in the tar says it, too
        assert unpacked == record
        assert ours[name] == parts
        assert list(ours[name]) == list(parts)


def test_packed_again_it_is_as_long(config: Make, source: Path, tmp_path: Path) -> None:
    """Also parts of samples, which are now samples; and then there is nothing left that changes."""
    first = packed(cutting(config(source)))
    unpack(first, tmp_path / "unpacked")
    again = packed(cutting(config(tmp_path / "unpacked", output__name="again")))
    before, after = lengths(first), lengths(again)
    assert sum(part != "" for _, _, part in before) > 3
    assert sorted(after.values()) == sorted(before.values())
    assert {name: after[name] for name in before if not name[2]} == {n: before[n] for n in before if not n[2]}
    unpack(again, tmp_path / "unpacked again")
    assert files(tmp_path / "unpacked again") == files(tmp_path / "unpacked")


def test_odd_samples_are_what_they_were(config: Make, source: Path, tmp_path: Path) -> None:
    """Fields under their names, tools, listed parts, captions: each in the one form FORMATS §1 has for it."""
    unpack(packed(cutting(config(source))), tmp_path / "unpacked")
    found = samples(tmp_path / "unpacked")
    records = {name.partition("/")[2]: json.loads(parts.pop("json")) for name, parts in found.items()}
    assert records["from"] == {
        "conversations": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        "messages": [],
        "media": "text",
        "id": 1,
    }
    assert records["tools"]["tools"] == TOOLS
    assert records["tools"]["source_fields"] == {"mine": 1}
    assert records["tools"]["name"] == "no file"
    assert [m["role"] for m in records["tools"]["messages"]] == ["system", "user", "assistant"]
    assert records["twice"]["name"] == ["0.jpg", "0.jpg"]
    assert list(found["z.tar/twice"]) == ["0.jpg"]
    assert records["raw"]["name"] == ["bytes"]
    assert records["cap"]["messages"][1]["content"] == "a caption"
    assert records["put"]["messages"][0]["content"] == "<image><image>what?"
    assert records["put"]["media_files"] == "no list"
    assert list(found["z.tar/put"]) == ["2.png", "1.jpg"]
    assert list(found["z.tar/wrong"]) == ["x.jpg"]
    assert "name" not in records["b.tar/order"]
    assert list(found["a/b.tar/order"]) == ["b.png", "a.png"]
    assert records["b.tar/order"]["media"] == "image"
    theirs = samples(source)
    assert all(data == theirs[name][part] for name in found if "#" not in name for part, data in found[name].items())


def test_parts_of_samples_do_not_collide(config: Make, source: Path, tmp_path: Path) -> None:
    """A sample may be called as a part is; no key may come twice, or one of them would be lost."""
    unpack(packed(cutting(config(source))), tmp_path / "unpacked")
    names = [name.rpartition("/")[2] for name in samples(tmp_path / "unpacked") if "talk" in name]
    number = len(names) - 1
    marks = "##" if number == 9 else "#"
    assert names == [f"talk{marks if i == 1 else '#'}{i}of{number}" for i in range(1, number + 1)] + ["talk#1of9"]


def test_every_member_has_an_id_of_its_own(config: Make, source: Path) -> None:
    """`talk#1of9` is a sample here, and might be the first part of `talk` too."""
    dataset = packed(cutting(config(source)))
    ids = [i for parts in samples(dataset).values() for i in json.loads(parts["json"])["_meta"]["sample_ids"]]
    assert len(ids) == len(set(ids)) == len(lengths(dataset))
    assert "a/b.tar/talk#1of9#1of1" in ids
    assert verify(dataset, Options(source=[], num_workers=1)).first_defects(9) == []
    (dataset / "pack_plan.parquet").write_bytes(b"no")  # it tells wholes from parts; without it, ids do
    assert verify(dataset, Options(num_workers=1)).num_defects.keys() == {"plan", "totals"}


def test_a_messages_key_of_its_own(config: Make, tmp_path: Path) -> None:
    """The conversation goes back to where the same settings look for it, and nowhere else."""
    turns = json.loads(chat("a", "b"))["messages"]
    members = {
        "x.json": json.dumps({"mine": turns, "messages": ["of another tool"]}).encode(),
        "y.json": json.dumps({"mine": turns, "id": 7}).encode(),
    }
    run = config(write_tar(tmp_path / "s" / "x.tar", members), source__messages_key="mine")
    first = packed(run)
    unpack(first, tmp_path / "unpacked")
    records = {name: json.loads(parts["json"]) for name, parts in samples(tmp_path / "unpacked").items()}
    assert records["x.tar/x"] == {"mine": turns, "media": "text", "messages": ["of another tool"]}
    assert records["x.tar/y"] == {"mine": turns, "media": "text", "id": 7}
    run = config(tmp_path / "unpacked", source__messages_key="mine", output__name="again")
    assert lengths(packed(run)) == lengths(first)


@pytest.mark.parametrize(
    ("member", "media"),
    [
        ({"source_fields": {"messages": [], "source_fields": [1]}}, []),
        ({"source_fields": {"messages": "taken"}, "conversations": "taken"}, []),
        ({"texts": "x", "name": "x"}, [("0", "image")]),
        ({"source_fields": "no object"}, []),
    ],
)
def test_a_record_is_read_as_the_same_conversation(member: dict[str, Any], media: list[tuple[str, str]]) -> None:
    """Whatever its other fields are called: what comes first in reading must be the conversation."""
    turns = json.loads(chat("<image>" if media else "a", "b"))["messages"]
    record = parse_record(sample_json_of_member({"messages": turns, **member}, media), ReadSettings())
    assert record.messages == turns
    assert [part.name for part in find_media_parts(record, "k", [Part(name, 0, 1) for name, _ in media])] == [
        name for name, _ in media
    ]


def test_many_samples_are_several_tars(config: Make, tmp_path: Path) -> None:
    """Their names sort in order, and are no other shard's."""
    for name in ("x", "x.000000"):
        write_tar(tmp_path / "s" / f"{name}.tar", {f"{i:02d}.json": chat(f"{name} {i}", "b") for i in range(7)})
    unpack(packed(config(tmp_path / "s")), tmp_path / "unpacked", max_shard_samples=3)
    names = sorted(path.name for path in (tmp_path / "unpacked").iterdir())
    assert len(names) == 6
    keys = [name.rpartition("/")[2] for name in samples(tmp_path / "unpacked")]
    assert keys == [f"{i:02d}" for i in range(7)] * 2


def test_the_same_bytes_from_any_order_of_packs(config: Make, source: Path, tmp_path: Path) -> None:
    """Seeds and shard sizes deal members anew; unpacked they are where they came from."""
    for number, size in enumerate((1, 4096)):
        run = cutting(config(source, seed=number, output__name=str(number), output__max_shard_packs=size))
        unpack(packed(run), tmp_path / f"unpacked{number}")
    assert files(tmp_path / "unpacked0") == files(tmp_path / "unpacked1")


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.fixture
def small(config: Make, tmp_path: Path) -> Path:
    members = {f"{i}.json": chat(f"a {i}", "b") for i in range(20)} | {"p.png": picture(28, 28, "PNG")}
    source = write_tar(tmp_path / "s" / "x.tar", {**members, "p.json": chat("<image>", "b")})
    return packed(config(source))


def test_nothing_is_written_over(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(PackError, match="exists and is not empty"):
        unpack(small, out)
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]
    with pytest.raises(PackError, match="lies in the packed dataset"):
        unpack(small, small / "unpacked")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert unpack(small, empty) == 21
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def lose_rows(dataset: Path) -> None:
    table = pq.read_table(dataset / "pack_plan.parquet")
    pq.write_table(table.slice(1), dataset / "pack_plan.parquet")


def lead_out(dataset: Path) -> None:
    table = pq.read_table(dataset / "pack_plan.parquet")
    names = pa.array(["../../x.tar"] * table.num_rows)
    rows = table.set_column(table.schema.get_field_index("shard"), "shard", names)
    pq.write_table(rows, dataset / "pack_plan.parquet")
    path = next(dataset.glob("*.tar"))
    with tarfile.open(path) as tar:
        members = [(m.name, tar.extractfile(m).read()) for m in tar]  # type: ignore[union-attr]
    write_tar(path, [(name, data.replace(b'"x.tar/', b'"../../x.tar/')) for name, data in members])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda d: (d / "pack_plan.parquet").write_bytes(b"no"), "pack_plan.parquet"),
        (lambda d: (d / "pack_plan.parquet").unlink(), "pack_plan.parquet"),
        (lose_rows, "in the plan"),
        (lambda d: write_tar(next(d.glob("*.tar")), {}), "has 0 of the 21 members"),
        (lambda d: (d / ".nv-meta" / "energon_pack.json").write_text("["), "can't be read"),
        (lambda d: shutil.rmtree(d / ".nv-meta"), "no packed dataset"),
        (lead_out, "no path below a folder"),
    ],
    ids=["plan damaged", "plan gone", "rows lost", "packs lost", "manifest damaged", "no dataset", "a path out of it"],
)
def test_damage_is_one_line_and_writes_nothing(
    small: Path, tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(small)
    with pytest.raises(PackError, match=words) as error:
        unpack(small, tmp_path / "unpacked")
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "s"]


def test_the_command(small: Path, tmp_path: Path) -> None:
    arguments = ("energon_pack.unpack", small, tmp_path / "unpacked", "--max-shard-samples", "11")
    result = command_here(*arguments, cwd=ROOT)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"21 samples unpacked into {tmp_path / 'unpacked'}\n"
    assert len(list((tmp_path / "unpacked").iterdir())) == 2
    result = command_here(*arguments, cwd=ROOT)
    assert result.returncode == 1
    assert (
        result.stderr
        == f"energon_pack.unpack: {tmp_path / 'unpacked'} exists and is not empty: choose another folder\n"
    )


# The round trip of JSONL and of `packed_captioning`: single samples again, in tars, as long as they were.


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
    assert verify(again, Options(source=[], num_workers=1)).first_defects(99) == []


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
