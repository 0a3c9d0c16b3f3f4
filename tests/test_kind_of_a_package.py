"""A fourth kind of media is one file: point clouds, from a package of their own, which `recipes/plugins` holds."""

import ast
import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomllib

from energon_pack.errors import PackError
from energon_pack.samples.media.kinds import Sound, _with_added
from energon_pack.samples.media.medium import Media, MediaFormat
from support.clouds import ply, write_clouds
from support.packed import json_lines, samples
from support.running import ROOT, command, installed, need_torchvision
from support.samples import picture

Line = dict[str, Any]
TESTS, PACKAGE = ROOT / "tests", ROOT / "energon_pack"
NAMES = {"image", "images", "video", "videos", "audio", "audios"}
#: the kinds themselves; forms of data, flavours and families of models that have only some kinds; and the demos
OF_THEIR_OWN = (
    "samples/media/", "samples/dialects/", "samples/flavors/", "samples/settings.py", "sources/", "templates/families/",
    "dataset/sample_class.py", "templates/preprocess.py", "templates/trial.py", "dataset/sample_loaders/",
)  # fmt: skip
#: number of points of each cloud: a piece of 64 is a token
POINTS = (10, 64, 65, 1000, 3000, 5, 700, 129)
ASKS = """
import io, json, sys
from energon_pack.samples.conversation import match_placeholders_with_media
from energon_pack.samples.flavors.multi_mix_qa import PackedMultiMixQA
from energon_pack.samples.media.kinds import KINDS, MEDIA_TYPES, describe
from energon_pack.samples.media.read_media import probe
from energon_pack.samples.record import parse_record
from energon_pack.samples.sample import media_type
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from support.clouds import ply

def asked(data):
    try:
        return describe(probe(io.BytesIO(data)))
    except Skip as skip:
        return str(skip)

turns = [{"role": "user", "content": "<cloud>What?"}, {"role": "assistant", "content": "A chair."}]
record = parse_record({"messages": turns, "clouds": ["a.ply"]}, ReadSettings())
print(json.dumps({
    "kinds": [*KINDS], "types": MEDIA_TYPES, "whole": asked(ply(70)), "cut": asked(ply(70)[:-1]),
    "order": list(match_placeholders_with_media(record, ["cloud"]).order),
    "parts": PackedMultiMixQA().part_names(3, [("cloud", "ply"), ("image", "png"), ("cloud", "ply")]),
    "type": [media_type(["cloud"]), media_type(["cloud", "image"])],
}))
"""


def test_a_kind_is_known_everywhere_once_it_is_installed(tmp_path: Path) -> None:
    """Records, placeholders, headers and names of parts ask the tables: a room with a list of its own would miss it."""
    folder = ROOT / "recipes" / "plugins" / "cloud_kind"
    (tmp_path / "cloud_kind-0.dist-info").mkdir()
    (tmp_path / "cloud_kind-0.dist-info/METADATA").write_text("Name: cloud-kind\nVersion: 0\n")
    points = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
    written = "".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in own.items()) for group, own in points.items())
    (tmp_path / "cloud_kind-0.dist-info/entry_points.txt").write_text(written)
    result = command("-c", ASKS, cwd=tmp_path, PYTHONPATH=f"{tmp_path}:{folder}:{ROOT}:{TESTS}")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {
        "kinds": ["image", "video", "audio", "cloud"],
        "types": ["text", "image", "video", "mix", "audio", "cloud"],
        "whole": "a point cloud of 70 points",
        "cut": "unreadable_media: a point cloud that has not the 70 points of its header",
        "order": [0],
        "parts": ["s003.c00.ply", "s003.i00.png", "s003.c01.ply"],
        "type": ["cloud", "mix"],
    }


def ours(**attributes: Any) -> Any:
    """A class of a kind that is right but for these attributes."""
    own = {"kind": "cloud", "noun": "a cloud", "token_type": 4, "argument": "clouds", "parts": ("cloud_processor",)}
    own |= {"formats": (MediaFormat("cloud", "ply", re.compile(b"ply")),), "fields": ("num_samples",)}
    return type("Cloud", (Sound,), {**own, "example": Media("cloud"), **attributes})()


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"kind": "image"}, "kind = 'image' is an image's"),
        ({"kind": "imu"}, "letter = 'i' is an image's"),
        ({"kind": "mix"}, "kind = 'mix': lower-case letters and digits, not text or mix"),
        ({"noun": "cloud"}, "noun is a noun with its article"),
        ({"token_type": 2}, "token_type = 2: a number above 3"),
        ({"argument": "images"}, "argument = 'images' is an image's"),
        ({"formats": (MediaFormat("cloud", "jpg", re.compile(b"x")),)}, "the extension jpg is another kind's"),
        ({"fields": ()}, "noun is a noun with its article, and formats, fields and parts are not empty"),
    ],
)
def test_a_kind_that_can_not_join_is_refused(attributes: dict[str, Any], said: str) -> None:
    """Two kinds with one letter packed images that training then took for others."""
    point: Any = SimpleNamespace(name="cloud", value="package:Cloud", load=lambda: partial(ours, **attributes))
    with pytest.raises(PackError, match=re.escape(f"(cloud = package:Cloud): {said}")):
        _with_added([point])
    right: Any = SimpleNamespace(name="cloud", value="package:Cloud", load=lambda: ours)
    assert [*_with_added([right])] == ["image", "video", "audio", "cloud"]


def test_no_room_has_a_list_of_kinds() -> None:
    """A name of a kind in a room's code is a place that the next kind has to be added to."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        texts = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
        if not name.startswith(OF_THEIR_OWN) and {text for text in texts if isinstance(text, str)} & NAMES:
            found.add(name)
    assert found == set()


def line(asked: str, answer: str = "A chair.", **fields: Any) -> Line:
    turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    return {"messages": turns, **fields}


def source(folder: Path) -> list[Line]:
    """Clouds alone, several, beside an image, as a content part; a cut one; an image alone, and a text."""
    folder.mkdir()
    for number, num_points in enumerate(POINTS):
        (folder / f"{number}.ply").write_bytes(ply(num_points, number))
    (folder / "cut.ply").write_bytes(ply(300)[:-5])
    (folder / "a.png").write_bytes(picture(40, 30, "PNG"))
    lines = [line("<cloud>What is it?", "A chair." * (i + 1), clouds=[f"{i}.ply"]) for i in range(len(POINTS))]
    lines += [line("<cloud>Cut?", clouds=["cut.ply"]), line("<image>And?", images=["a.png"]), line("Only words?")]
    lines += [line("<cloud><image><cloud>And?", clouds=["1.ply", "2.ply"], images=["a.png"])]
    parts = [{"type": "cloud", "cloud": "3.ply"}, {"type": "text", "text": "What?"}]
    lines += [line("", clouds=[])]
    lines[-1]["messages"][0]["content"] = parts
    del lines[-1]["clouds"]
    (folder / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return lines


@pytest.mark.slow
def test_clouds_are_packed_verified_and_trained(tmp_path: Path) -> None:
    """From one file of 70 lines: exact lengths, packs, references, unpacking, the guard and a loss that falls."""
    need_torchvision()
    path = f"{installed('cloud_kind', tmp_path)}:{TESTS}"
    lines = source(tmp_path / "in")
    write_clouds(tmp_path / "processor")
    own = [
        "+model=auto",
        "model.processor=processor",
        "model.trust_remote_code=true",
        "source=jsonl",
        "max_skipped=0.5",
    ]
    own += ["source.path=in/a.jsonl", "packing.max_token_len=256", "packing.group_by=none", "executor.num_workers=1"]
    own += ["output.dir=out", "packing.max_visual_tokens=60", "measure.verify=1.0"]
    for name in ("copy", "reference"):
        out = f"output.name={name}", f"output.media={name}"
        run = command("-m", "energon_pack", *own, *out, cwd=tmp_path, PYTHONPATH=path)
        assert run.returncode == 0, run.stderr
        (left_out,) = json_lines(tmp_path / "out" / name / "skipped.jsonl")
        assert (left_out["sample_id"], left_out["reason"], left_out["media_type"]) == (
            "a.jsonl:9",
            "unreadable_media",
            "cloud",
        )
        also = ["--source", "--decode", "--processor", "processor", "--trust-remote-code"]
        verified = command("-m", "energon_pack.verify", f"out/{name}", *also, cwd=tmp_path, PYTHONPATH=path)
        assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "18 point clouds" in run.stdout
    packs = samples(tmp_path / "out/copy")
    assert sum(name.endswith(".ply") for pack in packs.values() for name in pack) == len(POINTS) + 3
    single = command("-m", "energon_pack.unpack", "out/copy", "single", cwd=tmp_path, PYTHONPATH=path)
    assert single.returncode == 0, single.stderr
    unpacked = samples(tmp_path / "single")
    assert {json.dumps(json.loads(one["json"])["messages"]) for one in unpacked.values()} >= {
        json.dumps(lines[0]["messages"])
    }
    trained = [
        command(TESTS / "support" / "cloud_model.py", f"out/{name}", "processor", cwd=tmp_path, PYTHONPATH=path)
        for name in ("copy", "reference")
    ]
    assert all(one.returncode == 0 for one in trained), trained[0].stderr
    found, again = (json.loads(one.stdout.splitlines()[-1]) for one in trained)
    assert found["losses"] == again["losses"]
    assert found["losses"][-1] < 0.5 * found["losses"][0]
    assert "CloudModel is not shown to keep members of packs apart" in found["caught"]
