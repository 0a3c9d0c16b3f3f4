"""Ways in which a packed dataset may be wrong, each with the checks that have to find it, and no others."""

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from energon_pack.samples.pack_tokens import CHECKSUM_FIELD, COLUMN_TYPES, PackTokens
from support.damage import (
    Corruption,
    Members,
    change,
    change_file,
    change_files,
    change_plan,
    grown,
    read_shard,
    set_at,
    write_shard,
)


def flip(members: Members, index: int) -> None:
    """A bit in the pixels of the first PNG."""
    at = next(i for i, (name, _) in enumerate(members) if i > index and name.endswith(".png"))
    data = bytearray(members[at][1])
    data[data.index(b"IDAT") + 8] ^= 4
    members[at] = (members[at][0], bytes(data))


def swap(members: Members, index: int) -> None:
    """The bytes of two images change places; their sizes differ."""
    (name, data), (other, other_data) = members[index + 2], members[index + 3]
    members[index + 2 : index + 4] = [(name, other_data), (other, data)]


def cut_tokens(members: Members, index: int) -> None:
    name, data = members[index + 1]
    members[index + 1] = (name, data[:-1])


def change_tokens(change_columns: Callable[[dict[str, Any]], None]) -> Callable[[Members, int], None]:
    """Something else in the columns of the tokens of one pack, with the checksum that belongs to them."""

    def damage(members: Members, index: int) -> None:
        name, data = members[index + 1]
        columns = {name: own.copy() for name, own in PackTokens.from_bytes(data).columns.items()}
        change_columns(columns)
        members[index + 1] = (name, PackTokens(columns).to_bytes())
        value = json.loads(members[index][1])
        value["_meta"][CHECKSUM_FIELD] = crc32(members[index + 1][1])
        members[index] = (members[index][0], json.dumps(value).encode())

    return damage


def flip_an_id(members: Members, index: int) -> None:
    """A bit in the tokens, as a disk does it."""
    name, data = members[index + 1]
    place = 4 + 4 * len(COLUMN_TYPES) + 200
    members[index + 1] = (name, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])


def move_a_token(columns: dict[str, Any]) -> None:
    """The last token of the first member becomes the first of the second; a span of the first one ends there."""
    columns["length"][0] -= 1
    columns["length"][1] += 1
    columns["end"][columns["end"] == columns["length"][0] + 1] -= 1


def train_less(columns: dict[str, Any]) -> None:
    columns["end"][-1] -= 1


def move_a_medium(columns: dict[str, Any]) -> None:
    """The first member gets a medium of the second one."""
    columns["num_media"][0] += 1
    columns["num_media"][1] -= 1


def change_an_id(columns: dict[str, Any]) -> None:
    columns["low"][2] ^= 1


def spell_no_id(columns: dict[str, Any]) -> None:
    """An id that no tokenizer of so few tokens has."""
    columns["low"][2] = 60_000


def move_a_media_token(columns: dict[str, Any]) -> None:
    """The first image comes a token later in its text."""
    place = columns["repeated"][0]
    columns["low"][[place, place + 1]] = columns["low"][[place + 1, place]]
    columns["repeated"][0] += 1


def train_another_token(columns: dict[str, Any]) -> None:
    """The first answer is trained from a token earlier on, and ends a token earlier."""
    columns["start"][0] -= 1
    columns["end"][0] -= 1


def other_features(columns: dict[str, Any]) -> None:
    columns["width"][1], columns["height"][1] = columns["height"][1], columns["width"][1]


def last_byte(name: str) -> Callable[[Path], object]:
    """Another one in a file."""

    def damage(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    return damage


def stale_index(folder: Path) -> None:
    path = sorted(folder.glob("*.idx"))[0]
    entries = np.frombuffer(path.read_bytes(), "<u8").copy()
    entries[1] += 512
    path.write_bytes(entries.tobytes())


def cut_short(folder: Path) -> None:
    """In the JSON of the second pack."""
    path = sorted(folder.glob("*.tar"))[1]
    starts = np.frombuffer(path.with_suffix(".tar.idx").read_bytes(), "<u8")
    os.truncate(path, int(starts[1]) + 600)


def duplicate_pack(folder: Path) -> None:
    """A pack of one shard in another, too."""
    first, second = sorted(folder.glob("*.tar"))[:2]
    members = read_shard(first)
    end = next(i for i, (name, _) in enumerate(members) if i and name.endswith(".json"))
    write_shard(second, [*read_shard(second), *members[:end]])


def extra_shard(folder: Path) -> None:
    for end in ("tar", "tar.idx"):
        shutil.copy(folder / f"packed-000000.{end}", folder / f"packed-000099.{end}")


def lose_shard(folder: Path) -> None:
    (folder / "packed-000001.tar").unlink()
    (folder / "packed-000001.tar.idx").unlink()


def lose_ledger_line(folder: Path) -> None:
    path = folder / "skipped.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


def lose_part(folder: Path) -> None:
    """The pack of one part of the sample that was cut, from the shard and from all that counts it."""
    for path in sorted(folder.glob("*.tar")):
        members = read_shard(path)
        key = next((n.partition(".")[0] for n, d in members if n.endswith(".json") and b"#2of" in d), None)
        if key is not None:
            write_shard(path, [member for member in members if not member[0].startswith(f"{key}.")])
            change_plan(partial(without, key))(folder)
            return
    raise AssertionError


def lose_member(rows: list[dict[str, Any]]) -> None:
    """One of a pack that has several."""
    del rows[next(i for i, row in enumerate(rows) if i and row["pack"] == rows[i - 1]["pack"])]


def without(key: str, rows: list[dict[str, Any]]) -> None:
    rows[:] = [row for row in rows if row["pack"] != key]


def pack_of_two(value: dict[str, Any]) -> None:
    value["_meta"]["token_lens"][0] += 500
    value["_meta"]["total_token_len"] += 500


def other_text(value: dict[str, Any]) -> None:
    value["messages"][1]["messages"][1]["content"] += " indeed"


def other_order(value: dict[str, Any]) -> None:
    names = next(names for names in value["media_files"] if len(names) > 1)
    names.reverse()


def other_roles(value: dict[str, Any]) -> None:
    value["messages"][0]["messages"][0] = {"from": "human", "value": "<image>"}


def one_image_less_in_the_text(value: dict[str, Any]) -> None:
    index = next(i for i, names in enumerate(value["media_files"]) if names)
    message = value["messages"][index]["messages"][0]
    message["content"] = message["content"].replace("<image>", "", 1)


BYTES: dict[str, Any] = {"source": []}
MEDIA = {"media": "has other bytes than those that were packed"}
#: name → what is done, the options, and the checks that may say something: those with a word must, and say it
CORRUPTIONS: dict[str, Corruption] = {
    "a bit of an image": (
        change_files(flip),
        {},
        {"media": "s000.i01.png has other bytes than those that were packed"},
    ),
    "a bit of an image, by its source": (change_files(flip), BYTES, {"source media": "in the source at byte", **MEDIA}),
    "a bit of an image, by its pixels": (
        change_files(flip),
        {"decode": True},
        {"decode": "does not decode", **MEDIA},
    ),
    "two images swapped": (
        change_files(swap),
        {},
        {"kinds": "begins with", "plan": "bytes, in the plan", **MEDIA},
    ),
    "a missing part": (
        change_files(lambda members, i: members.pop(i + 2)),
        {},
        {"parts": "is there 0 times"},
    ),
    "no tokens": (change_files(lambda members, i: members.pop(i + 1)), {}, {"parts": "tokens is there 0 times"}),
    "tokens that are cut": (change_files(cut_tokens), {}, {"tokens": "bytes by their header, and"}),
    "tokens of a member under another": (
        change_files(change_tokens(move_a_token)),
        {},
        {"tokens": "_meta.token_lens says"},
    ),
    "a bit of the tokens": (change_files(flip_an_id), {}, {"tokens": "tokens with the checksum"}),
    "a token trained less": (change_files(change_tokens(train_less)), {}, {"tokens": "_meta.num_supervised says"}),
    "an id beyond the vocabulary": (
        change_files(change_tokens(spell_no_id)),
        {},
        {"tokens": "has the id 60000, the vocabulary of inputs.json ends at"},
    ),
    "another id": (change_files(change_tokens(change_an_id)), BYTES, {"source tokens": "token 2 is"}),
    "a token of a medium elsewhere": (
        change_files(change_tokens(move_a_media_token)),
        BYTES,
        {"source tokens": "made again"},
    ),
    "another token trained": (
        change_files(change_tokens(train_another_token)),
        BYTES,
        {"source tokens": "has the weight 1, made again 0"},
    ),
    "an image of another size": (
        change_files(change_tokens(other_features)),
        BYTES,
        {"source tokens": "medium 1 has width"},
    ),
    "another vocabulary": (
        last_byte(".nv-meta/processor/vocab.json"),
        {},
        {"metadata": "processor/vocab.json is not as it was packed"},
    ),
    "another special id": (
        change_file(".nv-meta/inputs.json", grown("token_ids", "<|image_pad|>")),
        {},
        {"metadata": "inputs.json is not as it was packed"},
    ),
    "another trial": (
        last_byte(".nv-meta/trial.tokens"),
        {},
        {"metadata": "trial.tokens is not as it was packed"},
    ),
    "other costs of packs": (last_byte(".nv-meta/packs.npy"), {}, {"metadata": "packs.npy is not as it was packed"}),
    "other checksums of media": (
        last_byte(".nv-meta/media.crc32"),
        {},
        {"metadata": "media.crc32 is not as it was packed"},
    ),
    "no checksums of media": (
        lambda folder: (folder / ".nv-meta/media.crc32").unlink(),
        {},
        {"metadata": "media.crc32 can't be read: No such file"},
    ),
    "tokens of another member's media": (
        change_files(change_tokens(move_a_medium)),
        {},
        {"tokens": "member 0 is of {'image': 3}, and has {'image': 2}"},
    ),
    "an extra part": (
        change_files(lambda members, i: members.insert(i + 1, (members[i][0].replace("json", "npy"), b"x"))),
        {},
        {"parts": "npy is there 1 times, and should be 0"},
    ),
    "the JSON last": (
        change_files(lambda members, i: members.insert(i, members.pop(i + 1))),
        {},
        {"parts": "after the JSON"},
    ),
    "another format under a name": (
        change_files(lambda members, i: members.__setitem__(i + 2, (members[i + 2][0], b"GIF89a" + b"x" * 99))),
        {},
        {"kinds": "gif", "plan": "bytes, in the plan", **MEDIA},
    ),
    "a stale index": (stale_index, {}, {"index": "entry 1 of its .tar.idx"}),
    "no index": (
        lambda folder: (folder / "packed-000000.tar.idx").unlink(),
        {},
        {"index": "can't be read: No such file"},
    ),
    "a truncated shard": (
        cut_short,
        {},
        {
            "tar": "cut",
            "index": "entries",
            "keys": "in no shard",
            "metadata": "",
            "totals": "",
            "samples": "",
        },
    ),
    "a missing shard": (
        lose_shard,
        {},
        {"metadata": "packed-000001.tar', which is not there", "keys": "in no shard", "totals": "", "samples": ""},
    ),
    "an extra shard": (
        extra_shard,
        {},
        {"metadata": "of 'packed-000099.tar'", "keys": "is there twice", "samples": "twice", "totals": ""},
    ),
    "a pack twice": (
        duplicate_pack,
        {},
        {"keys": "is there twice", "samples": "", "metadata": "packs of", "totals": ""},
    ),
    "a wrong total": (change(grown("_meta", "total_token_len")), {}, {"sums": "token_lens sum to"}),
    "a wrong token_len": (
        change(grown("_meta", "token_lens", 1)),
        {},
        {
            "sums": "total_token_len is",
            "plan": "token_lens: member 1 is",
            "totals": "tokens=",
            "tokens": "_meta.token_lens says",
        },
    ),
    "a wrong num_supervised": (
        change(grown("_meta", "num_supervised", 0)),
        {},
        {
            "plan": "num_supervised: member 0",
            "totals": "num_supervised=",
            "tokens": "trained tokens, _meta.num_supervised says",
        },
    ),
    "another text": (change(other_text, "text"), BYTES, {"source text": "indeed"}),
    "a lost field": (
        change(lambda value: value["messages"][0].pop("id"), "text"),
        BYTES,
        {"source text": "id is missing"},
    ),
    "another order of media": (
        change(other_order),
        {},
        {"parts": "out of order", "plan": "media_files: member"},
    ),
    "roles as a source spells them": (change(other_roles), {}, {"placeholders": "not in the form"}),
    "a placeholder less": (change(one_image_less_in_the_text), {}, {"placeholders": "placeholder_mismatch"}),
    "a wrong media_type": (
        change(set_at("media_type", to="mix")),
        {},
        {"json": "its media make it image", "totals": "packs of 'mix'"},
    ),
    "another shard count": (
        change_file(".nv-meta/.info.json", grown("shard_counts", "packed-000000.tar")),
        {},
        {"metadata": "counts"},
    ),
    "a dataset.yaml that no longer reads": (
        change_file(".nv-meta/dataset.yaml", set_at("sample_loader", "__module__", to="energon_unpack")),
        {},
        {"metadata": "dataset.yaml: sample_loader is not"},
    ),
    "a shard that is left out": (
        change_file(".nv-meta/split.yaml", lambda value: value["exclude"].append("packed-000000.tar")),
        {},
        {"metadata": "split.yaml has exclude=list of 1"},
    ),
    "a split under another name": (
        change_file(
            ".nv-meta/split.yaml", lambda value: value["split_parts"].update(valid=value["split_parts"].pop("val"))
        ),
        {},
        {"metadata": "split.yaml has None packs in 'val'"},
    ),
    "a split without a shard": (
        change_file(".nv-meta/split.yaml", lambda value: value["split_parts"]["train"].pop()),
        {},
        {"metadata": "in 0 parts"},
    ),
    "a split with a shard that is not there": (
        change_file(".nv-meta/split.yaml", lambda value: value["split_parts"]["val"].append("packed-000077.tar")),
        {},
        {"metadata": "'packed-000077.tar', which is not there"},
    ),
    "a lost line of the ledger": (
        lose_ledger_line,
        BYTES,
        {"totals": "samples_skipped=3, there is 2", "source samples": "is in no pack, and not in the ledger"},
    ),
    "a packed sample in the ledger": (
        lambda folder: (folder / "skipped.jsonl").write_text(
            (folder / "skipped.jsonl").read_text().replace("b.tar/word", "b.tar/i00")
        ),
        {},
        {"ledger": "sub/b.tar/i00 is in a pack, too"},
    ),
    "a pack over capacity": (
        change(pack_of_two, "text"),
        {},
        {"capacity": "> packing.max_token_len=512", "plan": "token_lens", "totals": "tokens", "tokens": ""},
    ),
    "broken JSON": (
        change_files(lambda members, i: members.__setitem__(i, (members[i][0], members[i][1][:-9]))),
        {},
        {"json": "can't be read", "samples": "", "totals": ""},
    ),
    "lists of unequal lengths": (
        change(lambda value: value["_meta"]["sample_ids"].pop(), "text"),
        {},
        {"json": "unequal lengths", "plan": "good rows in the plan", "samples": "", "totals": "parts="},
    ),
    "another fingerprint": (
        change(set_at("_meta", "fingerprint", to="0123")),
        {},
        {"fingerprint": "'0123', the manifest has"},
    ),
    "another manifest": (
        change_file(".nv-meta/energon_pack.json", set_at("fingerprint", to="0123")),
        {},
        {"fingerprint": "the manifest has '0123'", "totals": "fingerprint=", "metadata": "not as it was packed"},
    ),
    "another limit": (
        change_file(".nv-meta/energon_pack.json", set_at("content", "packing", "max_members", to=1)),
        {},
        {"capacity": "> packing.max_members=1", "metadata": "energon_pack.json is not as it was packed"},
    ),
    "a sample lost from the plan": (
        change_plan(lose_member),
        {},
        {"plan": "good rows in the plan"},
    ),
    "a pack lost from the plan": (
        change_plan(lambda rows: without(rows[0]["pack"], rows)),
        {},
        {"plan": "it is not in the plan"},
    ),
    "a part of a cut sample lost": (
        lose_part,
        {},
        {"samples": "a.tar/talk has the parts", "metadata": "packs of", "totals": ""},
    ),
    "a stray file": (
        lambda folder: (folder / "notes.txt").write_text("mine"),
        {},
        {"files": "notes.txt is none"},
    ),
    "another count in the report": (change_file("report.json", grown("samples_in")), {}, {"totals": "samples_in="}),
    "no report": (lambda folder: (folder / "report.json").unlink(), {}, {"files": "report.json is missing"}),
}
