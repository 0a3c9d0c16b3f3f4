"""Each model with each real processor: refused before any sample is read, or right."""

from pathlib import Path

import pytest

from energon_pack.errors import PackError
from energon_pack.samples.media.medium import Media
from energon_pack.samples.skip import Skip
from energon_pack.templates.build import build
from energon_pack.templates.choose import choose
from energon_pack.templates.families import AUTO
from energon_pack.templates.folder import class_of
from energon_pack.templates.models import packaged_models, read_model
from energon_pack.templates.processor import choice_of, load_saved, load_template, prepare_template
from energon_pack.templates.sample import Sample
from energon_pack.templates.settings import MediaConfig
from support.models import of_model
from support.processors import glm4v
from support.running import need_torchvision

#: Real processors, and the models they may be used with. `text` takes any, and `auto` any with media.
GOOD = {
    "gemma3": set(),
    "granite_docling_idefics3": set(),
    "internvl3_hf": {"internvl3", "internvl3_5"},
    "kimi_k25": {"kimi_k2_5", "kimi_vl"},
    "llama3_text": set(),
    "llava_onevision_qwen2_hf": {"llava_onevision"},
    "qwen2_5_text": set(),
    "qwen2_5_vl": {"llava_onevision1_5", "llava_onevision2", "qwen2_5_vl", "qwen2_vl"},
    "qwen2_vl": {"llava_onevision1_5", "llava_onevision2", "qwen2_5_vl", "qwen2_vl"},  # the same rules
    "qwen3_vl": {"qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe"},
}


#: Their tokenizers take seconds to build, for each family again; or another processor has the same rules.
LATER = ("gemma3", "kimi_k25", "llama3_text", "llava_onevision_qwen2_hf", "qwen2_5_text", "qwen2_vl")


@pytest.mark.parametrize("processor", [pytest.param(p, marks=[pytest.mark.slow] * (p in LATER)) for p in GOOD])
def test_another_familys_processor_is_refused_at_once(real: Path, processor: str) -> None:
    """All images were measured first, and each was in the ledger for a token that the processor does not know."""
    same: dict[tuple[object, ...], bool] = {}  # models that differ in their names alone
    taken = set()
    for model in set(packaged_models()) - {"text"}:
        node = read_model(model)
        if node["template"] == AUTO:
            continue
        how = node["template"], node.get("factor"), node.get("add_special_tokens")
        if how not in same:
            same[how] = _is_taken(str(real / "processors" / processor), *how)
        if same[how]:
            taken.add(model)
    assert taken == GOOD[processor]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processor", "family", "kinds"),
    [
        ("internvl3_hf", "internvl", {"image", "video", "mixed"}),
        ("kimi_k25", "kimi", {"image"}),
        ("llava_onevision_qwen2_hf", "llava_onevision", {"image", "video", "mixed"}),
        ("qwen2_5_vl", "qwen_vl", {"image", "video", "mixed", "uneven"}),
        ("qwen2_vl", "qwen_vl", {"image", "video", "mixed", "uneven"}),
        ("qwen3_vl", "qwen3_vl", {"image", "video", "mixed", "uneven"}),
    ],
)
def test_a_real_processor_keeps_its_rules(
    real: Path, tmp_path: Path, processor: str, family: str, kinds: set[str]
) -> None:
    """Rules that make tokens where the processor refuses would be put aside: slower, or without videos at all."""
    settings = of_model(family, real / "processors" / processor, trust_remote_code=True)
    choice = choice_of(prepare_template(settings, tmp_path))
    assert choice.template == family
    assert choice.num_compared.keys() == kinds
    assert choice.left_out.keys() <= {"uneven"}


@pytest.mark.slow
def test_videos_that_are_no_one_tensor_cost_their_sample(real: Path, tmp_path: Path) -> None:
    """The processor stacks all videos of a sample: with other numbers of frames, training would end at that sample."""
    settings = of_model("internvl", real / "processors" / "internvl3_hf")
    template = load_saved(prepare_template(settings, tmp_path))
    messages = [{"role": "user", "content": "<video><video>"}, {"role": "assistant", "content": "Two."}]
    even, uneven = ([Media("video", 320, 240, "mp4", number, 10.0) for number in counts] for counts in ((8, 8), (8, 9)))
    assert template.encode(Sample(messages, even)).num_supervised
    with pytest.raises(Skip, match="several lengths"):
        template.encode(Sample(messages, uneven))


def _is_taken(processor: str, template: str, factor: int | None, add_special_tokens: bool | None) -> bool:
    settings = of_model(
        template, processor, factor=factor, add_special_tokens=add_special_tokens, trust_remote_code=True
    )
    try:
        load_template(settings)
    except PackError:
        return False
    return True


@pytest.mark.parametrize("edge", ["shortest", "longest"])
def test_one_edge_of_a_videos_size_leaves_it_its_other(tmp_path: Path, edge: str) -> None:
    """The processor's call was given a size with one edge alone, refused it, and all videos were left out."""
    need_torchvision()
    media = MediaConfig(video_min_pixels=10_000) if edge == "shortest" else MediaConfig(video_max_pixels=100_000)
    folder = glm4v(tmp_path)
    own, changed = (build(of_model("shapes", folder, given), folder) for given in (None, media))
    size = changed.spec.processor.changed["video"]["size"]
    assert size == {**own.spec.processor.video["size"], f"{edge}_edge": 10_000 if edge == "shortest" else 100_000}
    clip = [Media("video", 320, 240, "mp4", 16, 2.0)]
    turns = [{"role": "user", "content": "<video>"}, {"role": "assistant", "content": "A cat."}]
    lengths = [len(template.encode(Sample(turns, clip)).ids) for template in (own, changed)]
    assert (lengths[1] > lengths[0]) == (edge == "longest")


def test_a_spelled_token_of_a_mediums_text_is_not_trained(real: Path) -> None:
    """The tokens that a processor writes around and between features: a model would learn to begin an image."""
    need_torchvision()
    folder = real / "processors" / "granite_docling_idefics3"
    template = build(of_model("shapes", folder), folder)
    question = {"role": "user", "content": "What?"}
    lengths = {
        said: (len(tokens.ids), tokens.num_supervised)
        for said in ("here.", "<row_1_col_1> here.", "<fake_token_around_image> here.")
        for tokens in [template.encode(Sample([question, {"role": "assistant", "content": said}], []))]
    }
    (length, trained), *spelled = lengths.values()
    assert spelled == [(length + 1, trained)] * 2


def test_a_family_that_is_asked_takes_no_other_familys_processor(real: Path) -> None:
    """`+model=phi4_multimodal` packed with any processor, whose media it counted right, for a model of another name."""
    need_torchvision()
    for name in packaged_models():
        node = read_model(name)
        if node["template"] != AUTO or name == AUTO:
            continue
        for processor in sorted((real / "processors").iterdir()):
            if node["processor_class"] != class_of(processor):
                settings = of_model(node["template"], processor, processor_class=node["processor_class"])
                with pytest.raises(PackError, match=r"\+model=\w+ packs"):
                    choose(settings, processor)
