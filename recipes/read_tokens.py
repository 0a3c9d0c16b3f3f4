"""Read the tokens of packs with numpy alone, by the columns of docs/formats.md; energon_pack is not needed.

python recipes/read_tokens.py packed/demo-qwen2_5_vl-neat-8192/packed-000000.tar
"""

import sys
import tarfile
from itertools import pairwise
from typing import Any

import numpy as np

#: each column of a part `<pack>.tokens`, in its order, and the kind of its entries
COLUMNS = {
    "length": "u4",
    "shared_len": "u4",
    "factor": "f8",
    "num_media": "u2",
    "low": "u2",
    "high": "u1",
    "repeated": "u4",
    "num_more": "u4",
    "start": "u4",
    "end": "u4",
    "weight": "f4",
    "kind": "u1",
    "num_images": "u2",
    "num_features": "u4",
    "width": "u4",
    "height": "u4",
    "num_steps": "u1",
    "num_samples": "u4",
    "operation": "u1",
    "new_width": "u4",
    "new_height": "u4",
    "num_frames": "u4",
    "num_in_source": "f8",
    "fps": "f8",
    "frame": "u4",
}
Media = list[tuple[str, int]]


def read_tokens(data: bytes) -> tuple[Any, Any, Any, list[slice], list[Media]]:
    """Return ids, labels and weights [tokens], where each member lies, and the kind and features of its media."""
    assert data[:4] == b"EPK3"
    columns: dict[str, Any] = {}
    place = 4 + 4 * len(COLUMNS)
    for (name, kind), count in zip(COLUMNS.items(), np.frombuffer(data, "<u4", len(COLUMNS), 4).tolist(), strict=True):
        columns[name] = np.frombuffer(data, f"<{kind}", count, place)
        place += columns[name].nbytes
    ids = columns["low"].astype(np.int64)
    for bit, plane in enumerate(columns["high"].reshape(-1, -(-len(ids) // 8)), 16):
        ids += np.unpackbits(plane, count=len(ids)).astype(np.int64) << bit
    times = np.ones(len(ids), np.int64)
    times[columns["repeated"]] += columns["num_more"]
    ids = np.repeat(ids, times)
    labels, weights = np.full(len(ids), -100), np.zeros(len(ids), np.float32)
    spans = columns["weight"] if len(columns["weight"]) else np.ones(len(columns["start"]))
    for start, end, weight in zip(columns["start"], columns["end"], spans, strict=True):
        labels[start:end], weights[start:end] = ids[start:end], weight
    ends = np.cumsum(columns["length"], dtype=np.int64)
    members = [slice(int(end - length), int(end)) for length, end in zip(columns["length"], ends, strict=True)]
    for member, factor in zip(members, columns["factor"], strict=False):  # no entries: 1 for each
        weights[member] *= factor
    media = [(chr(kind), int(number)) for kind, number in zip(columns["kind"], columns["num_features"], strict=False)]
    first = np.cumsum([0, *columns["num_media"]]) if len(columns["num_media"]) else [0] * (len(members) + 1)
    return ids, labels, weights, members, [media[start:end] for start, end in pairwise(first)]


if __name__ == "__main__":
    with tarfile.open(sys.argv[1]) as tar:
        parts = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    packs = {name: read_tokens(data) for name, data in parts.items() if name.endswith(".tokens")}
    for ids, labels, _, members, _ in packs.values():
        print(len(members), "members,", len(ids), "tokens,", int((labels != -100).sum()), "of them trained")
