"""The flavour packed_captioning: LLaVA-OneVision-2's layout, from tars and from JSONL, read back by one path."""

import json
import sys
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import read_packs
import yaml

from energon_pack.config import Flavor, Format, Overlong, PackConfig
from energon_pack.dataset.packed_with import load_template
from energon_pack.flavors import PackedCaptioningSample
from energon_pack.loading import cookers
from energon_pack.loading.task_encoder import inputs_of
from energon_pack.pack import pack
from energon_pack.samples.flavors import PACKED
from energon_pack.samples.flavors.fit import do_not_fit
from energon_pack.samples.media.medium import Media
from energon_pack.templates.sample import Sample
from energon_pack.verify import Options, verify
from support.marks import slow
from support.packed import demo_config, json_lines, train
from support.samples import chat, picture, read, write_tar

Make = Callable[..., PackConfig]


def packed(make: Make, source: Path | str | None = None, **settings: Any) -> tuple[dict[str, Any], Path]:
    run = make(source and str(source), output__flavor=Flavor.packed_captioning, **settings)
    figures = pack(run)
    return figures, Path(run.output.dir) / str(run.output.name)


USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("messages", "tools", "kinds", "why"),
    [
        ([USER, ANSWER], None, [], None),
        ([USER, ANSWER, USER, ANSWER], None, ["image", "image"], None),
        ([{"role": "system", "content": "s"}, USER, ANSWER], None, [], "a system turn"),
        ([USER, ANSWER, {"role": "tool", "content": "t"}, ANSWER], None, [], "a tool turn"),
        ([USER, ANSWER], [{"f": 1}], [], "tools"),
        ([USER, ANSWER], None, ["image", "video"], "a video"),
        ([USER, USER, ANSWER], None, [], "turns of user and assistant do not alternate"),
        ([USER, ANSWER, USER], None, [], "turns of user and assistant do not alternate"),
        ([ANSWER, USER], None, [], "turns of user and assistant do not alternate"),
        ([USER, {**ANSWER, "loss": False}], None, [], "message 1 has loss"),
        ([USER, {**ANSWER, "loss": None}], None, [], None),
        ([{**USER, "content": [{"type": "text", "text": "<image>"}]}, ANSWER], None, [], "message 0 spells"),
    ],
)
def test_what_has_no_place_in_it(messages: list[Any], tools: Any, kinds: list[str], why: str | None) -> None:
    parts = [(kind, "mp4" if kind == "video" else "png") for kind in kinds]
    found = PACKED["packed_captioning"].unfit(do_not_fit(read(messages, tools, parts)))
    assert found == why or (why and found and found.startswith(why))


def test_its_layout(config: Make, tmp_path: Path) -> None:
    """PNG bytes under .jpg, as LLaVA-OneVision-2's loader asks; the JSON first, as in all packs here."""
    members = {
        "a.0.png": picture(format="PNG"),
        "a.1.jpg": picture(),
        "a.json": chat("<image>a<image>", "1", "b", "2", id=7),
        "b.json": chat("c", "3", system="Be brief."),
        "c.json": chat("d", "4"),
    }
    settings = {"packing__group_by": "none", "max_skipped": 0.0}
    figures, folder = packed(config, write_tar(tmp_path / "s" / "x.tar", members), **settings)
    assert figures["skipped_by_reason"] == {"not_in_flavor": 1}
    (entry,) = json_lines(folder / "skipped.jsonl")
    assert (entry["sample_id"], entry["reason"]) == ("x.tar/b", "not_in_flavor")
    assert "a system turn" in entry["detail"]
    with tarfile.open(folder / "packed-000000.tar") as tar:
        data = {m.name.partition(".")[2]: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    value, _ = json.loads(data.pop("json")), data.pop("tokens")
    order = [sample_id.rpartition("/")[2] for sample_id in value["_meta"]["sample_ids"]]
    a, c = order.index("a"), order.index("c")
    assert data == {f"img{a}_0.jpg": picture(format="PNG"), f"img{a}_1.jpg": picture()}
    assert {name for names in PACKED["packed_captioning"].parts(value) for name in names} == set(data)
    assert value["images"][a] == [f"img{a:03d}_sub000.jpg", f"img{a:03d}_sub001.jpg"]
    assert (value["prompts"][a], value["captions"][a]) == (["<image>a<image>", "b"], ["1", "2"])
    assert (value["images"][c], value["prompts"][c], value["captions"][c]) == ([], ["d"], ["4"])
    assert value["patch_positions"][a] == ["", ""]
    assert value["source_fields"][a] == {"id": 7}
    assert value["sample_count"] == 2
    assert "fps" not in value


@pytest.fixture(scope="module")
def captions(
    demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """The demo, and the figures of packing it."""
    return packed(partial(demo_config, demo, cache, tmp_path_factory.mktemp("captions")))


@pytest.mark.parametrize("dataset_config", ["dataset.yaml", "crude.yaml"])
def test_it_is_read_by_the_path_of_all_packs(
    captions: tuple[dict[str, Any], Path], demo: tuple[Path, Path], dataset_config: str
) -> None:
    """And training comes to the measured lengths."""
    from megatron.energon import DefaultTaskEncoder

    class Cooked(DefaultTaskEncoder[Any, Any, Any, Any]):
        decoder = None

    Cooked.cookers = cookers()
    figures, folder = captions
    assert figures["samples_packed"] > 250
    meta = yaml.safe_load((folder / ".nv-meta" / "crude.yaml").read_text())
    assert meta["subflavors"] == {"sample_type": "packed_captioning"}
    template = load_template(folder, str(demo[1]))
    num_members = 0
    for sample in train(
        folder, encoder=Cooked() if dataset_config == "crude.yaml" else None, dataset_config=dataset_config
    ):
        assert isinstance(sample, PackedCaptioningSample)
        for member in inputs_of(sample):
            tokens = template.encode(Sample(member.messages, [Media("image", *image.size) for image in member.images]))
            assert len(tokens.ids) == member.token_len
            num_members += 1
    assert num_members == figures["samples_packed"]


def test_parts_of_a_long_conversation_fit_too(config: Make, tmp_path: Path) -> None:
    turns = [text for i in range(6) for text in (f"q{i} " * 20, f"a{i} " * 20)]
    members = {"x.json": chat(*turns), "y.json": chat(*turns, system="s")}
    settings = {"packing__max_token_len": 256, "packing__overlong": Overlong.split_turns}
    figures, _ = packed(config, write_tar(tmp_path / "s" / "x.tar", members), **settings)
    assert (figures["samples_cut"], figures["skipped_by_reason"]) == (1, {"not_in_flavor": 1})


def test_the_recipe_reads_it(
    captions: tuple[dict[str, Any], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures, folder = captions
    monkeypatch.setattr(sys, "argv", ["read_packs.py", str(folder)])
    read_packs.main()
    assert f"{figures['packs']} packs, {figures['samples_packed']} members" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "num_skipped"),
    [
        slow("image_demo", 1),
        ("image_mathv", 0),
        ("text_toolcall", 312),
        slow("text_alpaca", 144),
    ],
)
def test_real_sets(real: Path, config: Make, name: str, num_skipped: int) -> None:
    """From JSONL and from tars: the same samples of the same lengths, those of transformers' full processor."""
    expected = {row["key"]: row["token_len"] for row in json_lines(real / "truth" / f"{name}.qwen2_5_vl.jsonl")}
    ids = [row["id"] for row in json_lines(real / "jsonl" / f"{name}.jsonl")]
    found = {}
    for format in (Format.wds, Format.jsonl):
        settings: dict[str, Any] = {"source__format": format, "output__name": format.value, "model__factor": 28}
        settings["model__processor"] = str(real / "processors" / "qwen2_5_vl")
        if (real / "data" / name).exists() and format is Format.jsonl:
            settings["source__media_root"] = str(real / "data" / name)
        path = real / format.value / (f"{name}.jsonl" if format is Format.jsonl else name)
        figures, folder = packed(config, path, **settings)
        assert figures["skipped_by_reason"].get("not_in_flavor", 0) == num_skipped
        defects = verify(folder, Options(source=[], num_workers=1)).first(9)
        assert defects == []
        rows = pq.read_table(folder / "pack_plan.parquet", columns=["key", "token_len"]).to_pylist()
        keys = {row["key"]: row["token_len"] for row in rows}
        if format is Format.jsonl:
            keys = {ids[int(key) - 1]: token_len for key, token_len in keys.items()}
        found[format] = {key.rpartition("/")[2]: token_len for key, token_len in keys.items()}
    assert {key: expected[key] for key in found[Format.jsonl]} == found[Format.jsonl]
    assert {key: token_len for key, token_len in found[Format.wds].items() if key in ids} == found[Format.jsonl]
