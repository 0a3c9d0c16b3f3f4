"""Every table of ../shared/real/truth: the ids of each model's full processor, for text, images and videos.

A family's rule that is off by one token for one shape of image would overflow packs in training.
"""

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.read_media import probe_part
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.sample import read_sample
from energon_pack.sources.shard import Shard
from energon_pack.sources.source_file import IndexRow, rows_of
from energon_pack.templates.families.rules import MediaRules
from energon_pack.templates.processor import build_uncached_template
from energon_pack.templates.sample import Sample
from energon_pack.templates.settings import MediaConfig
from energon_pack.templates.template import Template
from support.finding import find_shards
from support.marks import slow
from support.models import of_model
from support.packed import json_lines
from support.running import REAL, ROOT, need_torchvision

#: processor of the tables → model of conf/model
MODELS = {
    "gemma3": "gemma3",
    "granite_docling_idefics3": "smolvlm",
    "internvl3_hf": "internvl3",
    "kimi_k25": "kimi_k2_5",
    "llama3_text": "text",
    "llava_onevision_qwen2_hf": "llava_onevision",
    "qwen2_5_text": "text",
    "qwen2_5_vl": "qwen2_5_vl",
    "qwen2_vl": "qwen2_vl",
    "qwen3_vl": "qwen3_vl",
}
#: the route of a table → the `media` node
MEDIA: dict[str, dict[str, Any]] = {
    "": {},
    "fps1": {"video": "fps", "fps": 1},
    "fps2": {"video": "fps", "fps": 2},
    "fps2_768": {"video": "fps", "fps": 2, "video_min_pixels": 128 * 28 * 28, "video_max_pixels": 768 * 28 * 28},
    "fps2_cap": {"video": "fps", "fps": 2, "video_cap": True},
    "nf8": {"video": "uniform", "num_frames": 8},
    "qwen_vl_utils": {"image": "qwen_vl_utils", "video": "qwen_vl_utils"},
}
#: those of a processor together: it is read once for them
TABLES = sorted(
    (path.name.removesuffix(".jsonl") for path in REAL.glob("truth/*.jsonl")), key=lambda table: table.split(".")[1:]
)
#: sets of hundreds of samples, of which the ordinary run compares a few
_LARGE = ("text_", "image_mathv")
_FEW = 30


@lru_cache(maxsize=1)
def template_of(processor: str, route: str, family: str | None = None) -> Template:
    model: Any = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "model" / f"{MODELS[processor]}.yaml"))
    settings = of_model(
        template=family or model["template"],
        processor=REAL / "processors" / processor,
        # Of Gemma 3 the tables have what its processor makes of a text: a second <bos>, before the template's.
        add_special_tokens=True if processor == "gemma3" else model.get("add_special_tokens"),
        factor=None if family else model.get("factor"),
        media=MediaConfig(**MEDIA[route]),
    )
    return build_uncached_template(settings)


def samples(real: Path, name: str) -> Iterator[tuple[SourceReader, Shard, IndexRow]]:
    """Every sample of a set."""
    path = real / "bad" / f"{name[4:]}.tar" if name.startswith("bad_") else real / "wds" / name
    with SourceReader() as reader:
        for shard in find_shards(str(path)).shards:
            for row in rows_of(shard.index(), IndexRow):
                yield reader, shard, row


def as_sample(reader: SourceReader, shard: Shard, row: IndexRow) -> Sample:
    sample = read_sample(reader, shard, row, ReadSettings())
    return Sample(sample.messages, sample.media)  # the tables were made without tools


def differences(real: Path, table: str, most: int | None, family: str | None = None) -> tuple[int, dict[str, str]]:
    """Return the number of compared samples, and the samples that differ; by rules of the model's YAML unless named."""
    name, processor, *route = table.split(".")
    template = template_of(processor, route[0] if route else "", family)
    rows = {(row["shard"], row["key"]): row for row in json_lines(real / "truth" / f"{table}.jsonl")}
    num_compared, differ = 0, {}
    for reader, shard, sample in samples(real, name):
        key = sample.key
        row = rows.get((shard.name, key))
        if row is None or num_compared == most:
            continue
        error = row.get("error", "")
        if "not computed" in error or "torchvision.io" in error:
            continue  # the table's own machine could not
        try:
            ids = template.encode(as_sample(reader, shard, sample)).ids
        except Skip as skip:
            if not error and skip.reason != "no_assistant_turn":
                differ[key] = str(skip)
            continue
        num_compared += 1
        if error or row["token_len"] != len(ids):
            differ[key] = f"{len(ids)} tokens, not {error or row['token_len']}"
        elif "ids_sha1" in row and row["ids_sha1"] != hashlib.sha1(",".join(map(str, ids)).encode()).hexdigest():
            differ[key] = "other ids"
    return num_compared, differ


def in_the_ordinary_run(table: str) -> bool:
    """Three tokenizers, three ways to cut images and each way to sample a video; other processors are siblings."""
    data, processor = table.split(".")[:2]
    if data == "text_toolcall":
        return processor in ("qwen2_5_vl", "kimi_k25", "llama3_text")
    if data == "image_mathv":
        return processor in ("qwen3_vl", "internvl3_hf", "llava_onevision_qwen2_hf")
    return table in (
        "bad_04_odd_but_decodable.qwen2_5_vl",
        "image_probe.qwen3_vl.qwen_vl_utils",
        "video_demo.internvl3_hf.nf8",
        "video_demo.qwen2_5_vl.fps2_cap",
        "video_demo.qwen2_5_vl.qwen_vl_utils",
        "video_demo.qwen3_vl",
    )


@pytest.mark.parametrize(
    "table",
    [pytest.param(table, marks=[pytest.mark.slow] * (not in_the_ordinary_run(table))) for table in TABLES]
    or [pytest.param("", marks=pytest.mark.skip("../shared/real is not here"))],
)
@pytest.mark.long("a real tokenizer is read, and real images")
def test_ids_are_those_of_the_full_processor(real: Path, table: str) -> None:
    num_compared, differ = differences(real, table, _FEW if table.startswith(_LARGE) else None)
    assert differ == {}
    assert num_compared > 2


@pytest.mark.slow
@pytest.mark.parametrize("table", [table for table in TABLES if table.startswith(_LARGE)])
def test_ids_of_every_sample_of_a_large_set(real: Path, table: str) -> None:
    num_compared, differ = differences(real, table, None)
    assert differ == {}
    assert num_compared > 280


#: media through each processor's own call; media=qwen_vl_utils wants the rules of its family
_ASKED = [t for t in TABLES if not t.startswith("text_") and "qwen_vl_utils" not in t]
_ASKED_SOON = ("image_probe.qwen3_vl",)


@pytest.mark.parametrize("table", [pytest.param(t, marks=[pytest.mark.slow] * (t not in _ASKED_SOON)) for t in _ASKED])
def test_shapes_make_the_ids_of_the_full_processor(real: Path, table: str) -> None:
    """Any model without a family here is measured so: by what its processor's call does to shapes."""
    need_torchvision()
    num_compared, differ = differences(real, table, None, "shapes")
    assert differ == {}
    assert num_compared > 2


def test_a_tar_of_videos_is_told_apart(real: Path) -> None:
    """20_video_bad: cut videos, music and pictures under a video's name."""
    found = {}
    for reader, shard, sample in samples(real, "bad_20_video_bad"):
        try:
            found[sample.key] = ",".join(
                probe_part(reader.open_unchanged_shard(shard), part).kind for part in sample.parts
            )
        except Skip as skip:
            found[sample.key] = skip.reason.value
    assert found == {
        "good_video": "video",
        "px_2x2": "video",
        "avi": "video",
        "good_9999": "image",
        "jpg_as_mp4": "image",  # content decides: the placeholder will not match
        "gif_as_video": "image",
        **dict.fromkeys(("trunc_half", "trunc_head_20k", "moov_at_end_cut", "zero"), "unreadable_media"),
        "audio_only_mp3_as_mp4": "audio",  # as the first two: a placeholder of a video stands for no sound
    }


@pytest.mark.parametrize(
    ("model", "processor", "settings"),
    [
        pytest.param("qwen_vl", "qwen2_5_vl", {"max_pixels": 200_704}, marks=pytest.mark.slow),
        pytest.param("qwen_vl", "qwen2_5_vl", {"min_pixels": 401_408}, marks=pytest.mark.slow),
        ("internvl", "internvl3_hf", {"crop_to_patches": False}),
        pytest.param("internvl", "internvl3_hf", {"max_patches": 6}, marks=pytest.mark.slow),
        pytest.param("shapes", "gemma3", {"image_seq_length": 64}, marks=pytest.mark.slow),
        pytest.param("shapes", "gemma3", {"do_pan_and_scan": True}, marks=pytest.mark.slow),
        pytest.param("shapes", "granite_docling_idefics3", {"image_seq_len": 100}, marks=pytest.mark.slow),
        pytest.param("shapes", "granite_docling_idefics3", {"do_image_splitting": False}, marks=pytest.mark.slow),
        slow("shapes", "granite_docling_idefics3", {"do_resize": False}),
        pytest.param(
            "shapes", "granite_docling_idefics3", {"size": {"height": 700, "width": 900}}, marks=pytest.mark.slow
        ),
        slow("llava_onevision", "llava_onevision_qwen2_hf", {"vision_aspect_ratio": "anyres_max_4"}),
        pytest.param(
            "llava_onevision",
            "llava_onevision_qwen2_hf",
            {"vision_feature_select_strategy": "default"},
            marks=pytest.mark.slow,
        ),
        pytest.param("kimi", "kimi_k25", {"max_patches": 1024}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:Passing `min_pixels`:FutureWarning")  # transformers' own call of itself
def test_other_settings_are_followed(real: Path, model: str, processor: str, settings: dict[str, Any]) -> None:
    """An image's placeholder tokens equal the processor's, also with settings that are not the published ones."""
    need_torchvision()

    def rules(family: str) -> MediaRules:
        chosen = of_model(family, real / "processors" / processor, processor_kwargs=settings)
        return build_uncached_template(chosen).rules

    ours, theirs = rules(model), rules("pixels")
    for width, height in ((30, 40), (384, 384), (1273, 851), (300, 1500), (2000, 500)):
        try:
            expected = theirs.expand(Media("image", width, height), [])[0]
        except Skip:
            expected = ""
        assert ours.expand(Media("image", width, height), [])[0] == expected, (width, height)
