"""M-RoPE positions equal those that the models compute, on the meta device without weights."""

import inspect
import io
import itertools
import json
import pickle
import random
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_pack.samples.media.lazy_image import LazyImage
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.prepared import processor_arguments
from energon_pack.samples.media.read_media import probe
from energon_pack.samples.member import MemberInput
from energon_pack.templates.full_processor import load_full_processor, model_classes_of
from energon_pack.templates.processor import build_uncached_template
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template
from energon_pack.training.asked_rope import make_small_config
from energon_pack.training.guards import guard
from energon_pack.training.layout import Member, RowForm, lay_out_neat_rows
from energon_pack.training.megatron_layouts import thd
from energon_pack.training.member_encoder import MemberEncoder
from energon_pack.training.rope import OwnRope, RopeRowsError, RopeRule, rope_positions
from energon_pack.training.rope_rule import rope_rule_of
from energon_pack.training.shrunk_config import shrink_config
from support.models import of_model
from support.running import ROOT, need_torchvision
from support.samples import picture, video
from support.tiny import FAMILIES, MadeEncoder, tf

CLASSES = {"qwen2_vl": "Qwen2VLModel", "qwen2_5_vl": "Qwen2_5_VLModel", "qwen3_vl": "Qwen3VLModel"}


@pytest.mark.parametrize("name", CLASSES)
def test_positions_are_the_models_own(name: str) -> None:
    rng = random.Random(0)
    with torch.device("meta"):
        model: Any = getattr(tf, CLASSES[name])(FAMILIES[name].config())
    for _ in range(30):
        types: list[int] = []
        grids: dict[int, list[list[int]]] = {1: [], 2: []}
        for kind in rng.choices((1, 2), k=rng.randint(0, 4)):
            time = 1 if kind == 1 else rng.randint(1, 5)
            height, width = 2 * rng.randint(1, 5), 2 * rng.randint(1, 5)
            grids[kind].append([time, height, width])
            frames = time if kind == 2 and name == "qwen3_vl" else 1
            for _ in range(frames):
                types += [0] * rng.randint(1, 6) + [kind] * (time // frames * height * width // 4)
        types += [0] * rng.randint(1, 6)
        row = torch.tensor(types)
        given: dict[str, Any] = {
            "image_grid_thw": torch.tensor(grids[1]) if grids[1] else None,
            "video_grid_thw": torch.tensor(grids[2]) if grids[2] else None,
        }
        if name == "qwen2_5_vl" and grids[2]:
            given["second_per_grid_ts"] = torch.tensor([rng.choice((0.5, 1.0, 1.5, 2.3)) for _ in grids[2]])
        theirs, _ = model.get_rope_index(row[None], row[None], **given)
        rope = FAMILIES[name].rope
        assert rope is not None
        assert torch.equal(rope_positions(rope, row, **given), theirs[:, 0])


def test_grids_that_are_not_those_of_the_tokens_are_refused() -> None:
    types = torch.tensor([0, 1, 1, 0])
    for grids, said in (([[1, 4, 4]], "2 visual tokens at 0 for a grid of 1×2×2"), ([[1, 2, 4]] * 2, "more grids")):
        with pytest.raises(ValueError, match=said):
            rope_positions(RopeRule("qwen2_vl"), types, torch.tensor(grids))
    with pytest.raises(ValueError, match="have no grid"):
        rope_positions(RopeRule("qwen2_vl"), types)


def test_a_video_is_not_placed_by_a_guess() -> None:
    """The published models have 2, transformers' class has 4: positions of the other are wrong, and no error."""
    image = {"image_grid_thw": torch.tensor([[1, 2, 2]])}
    clip = {"video_grid_thw": torch.tensor([[2, 2, 2]]), "second_per_grid_ts": torch.tensor([1.0])}
    assert rope_positions(RopeRule("qwen2_5_vl"), torch.tensor([0, 1]), **image).tolist() == [[0, 1]] * 3
    with pytest.raises(ValueError, match=r"depend on tokens_per_second of the model's vision_config"):
        rope_positions(RopeRule("qwen2_5_vl"), torch.tensor([0, 2, 2]), **clip)
    for number in (2, 4):
        rows = rope_positions(RopeRule("qwen2_5_vl", tokens_per_second=number), torch.tensor([0, 2, 2]), **clip)
        assert rows[0].tolist() == [0, 1, 1 + number]


def test_text_counts_on() -> None:
    for kind, length in itertools.product(CLASSES, (1, 5)):
        rows = rope_positions(RopeRule(kind), torch.zeros(length, dtype=torch.long))
        assert rows.tolist() == [list(range(length))] * 3


# Rows of M-RoPE that a class makes by a rule of its own, and what else it takes of each token: as the model alone.

#: of classes that make arrays of tensors
pytestmark = pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")
#: class → what published chat templates write around a medium
AROUND = {
    "Ernie4_5_VLMoe": "<|{kind}_start|>{token}<|{kind}_end|>",
    "Glm4v": "<|begin_of_{kind}|>{token}<|end_of_{kind}|>",
    "HunYuanVL": "{token}",  # its chat template has them already
    "MiniCPMV4_7": "{token}",
    "Qwen2_5Omni": "<|vision_bos|>{token}<|vision_eos|>",
}
QUICK = "Qwen2_5Omni"
TURNS = [
    {"role": "user", "content": "<image> then <video> and <image>, what?"},
    {"role": "assistant", "content": "That."},
]


Folders = Callable[[str], Path]


@pytest.fixture(scope="module")
def dummies(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """The folder of a small processor of a class, made when it is first asked for."""
    need_torchvision()
    made = tmp_path_factory.mktemp("dummies")

    def folder_of(name: str) -> Path:
        folder = made / f"{name}Processor"
        if folder.exists():
            return folder
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(ROOT / "benchmarks")
            import_module("processor_classes").save_dummy(folder.name, folder)
        path = folder / "chat_template.jinja"
        text = path.read_text()
        for kind in ("image", "video"):
            token = f"<|{kind}|>"
            text = text.replace(token, AROUND[name].format(kind=kind, token=token))
        path.write_text(text)
        if name == "Qwen2_5Omni":  # the model hears 128 bands, and the extractor makes 80 by default
            settings = folder / "processor_config.json"
            values = json.loads(settings.read_text())
            values["feature_extractor"]["feature_size"] = 128
            settings.write_text(json.dumps(values))
        return folder

    return folder_of


def template_of(dummies: Folders, name: str) -> Template:
    return build_uncached_template(of_model("shapes", dummies(name)))


MEMBER = MemberInput("k", TURNS, [LazyImage(picture(96, 64), "a"), LazyImage(picture(300, 200), "b")], [video(8)])


def rope_rows(member: Member) -> torch.Tensor:
    assert member.rope is not None
    return member.rope


def fail(member: object, error: Exception) -> None:
    raise error


def plain_inputs(template: Template, encoder: MemberEncoder) -> dict[str, Any]:
    """What a user of transformers gives a model of this member: all of it is the processor's."""
    draft, processor = encoder._draft(MEMBER), load_full_processor(template.spec.processor)
    media = [Media("image", *image.size) for image in draft.added_media.of_kind("image")] + [
        probe(io.BytesIO(MEMBER.videos[0]))
    ]
    text = processor.apply_chat_template(template.messages(Sample(TURNS, media)), tokenize=False)
    given = processor_arguments(template.input_rules, draft.added_media)
    return dict(processor(text=[text], return_tensors="pt", return_mm_token_type_ids=True, **given))


@pytest.mark.parametrize(
    "name",
    [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in AROUND if name != "HunYuanVL"],
)
def test_rows_and_types_are_what_the_model_alone_makes(dummies: Folders, name: str) -> None:
    """With positions of another rule a model trains, learns less, and nothing says so."""
    template = template_of(dummies, name)
    rope = rope_rule_of("auto", template.input_rules)
    encoder = MemberEncoder(template.input_rules, rope)
    encoder.check_processor()
    member = encoder.encode_alone(MEMBER)
    plain = plain_inputs(template, encoder)
    assert torch.equal(member.tokens.ids, plain["input_ids"][0])
    assert torch.equal(member.tokens.types, plain["mm_token_type_ids"][0])
    assert {*member.tokens.types.tolist()} == {0, 1, 2}
    (make, *_) = model_classes_of(Path(template.spec.processor.folder))
    assert rope == RopeRule("qwen3_vl", 2) if name == "Glm4v" else isinstance(rope, OwnRope)
    with torch.device("meta"):
        model = make._from_config(make_small_config(make, template.input_rules))
    ask = next(part for part in model.modules() if hasattr(part, "get_rope_index")).get_rope_index
    takes = inspect.signature(ask).parameters
    plain["second_per_grids"] = plain.get("video_second_per_grid")
    rows = ask(**{key: value for key, value in plain.items() if key in takes})[0][:, 0]
    assert torch.equal(rope_rows(member.tokens), rows)
    assert not torch.equal(rows[1], rows[2])  # an image has a height and a width
    for key, value in member.media.items():
        torch.testing.assert_close(value, plain[key])


def test_each_member_of_a_pack_has_the_rows_that_it_has_alone(dummies: Folders) -> None:
    """Rows of a class's own rule are asked for member by member, of its own media."""
    template = template_of(dummies, "Ernie4_5_VLMoe")
    encoder = MemberEncoder(template.input_rules, rope_rule_of("auto", template.input_rules))
    alone = encoder.encode_alone(MEMBER).tokens
    text = MemberInput("t", [{"role": "user", "content": "?"}, {"role": "assistant", "content": "That."}], [], [])
    members, media = encoder.encode_together([MEMBER, text, MEMBER], fail)
    rows = [rope_rows(member.tokens) for member in members]
    assert torch.equal(rows[0], rope_rows(alone))
    assert torch.equal(rows[2], rope_rows(alone))
    assert torch.equal(rows[1], torch.arange(len(members[1].tokens)).expand(3, -1))
    assert len(media["image_grid_thw"]) == 4


def test_another_process_has_the_rule_too(dummies: Folders) -> None:
    """Workers that are spawned get the encoder by pickle, and a model on the meta device can't go along."""
    template = template_of(dummies, "Ernie4_5_VLMoe")
    rope = rope_rule_of("auto", template.input_rules)
    member = MemberEncoder(template.input_rules, rope).encode_alone(MEMBER)
    copied = pickle.loads(pickle.dumps(rope))
    assert torch.equal(copied(member.tokens.ids, member.tokens.types, member.media), rope_rows(member.tokens))


def test_what_a_model_takes_of_each_token_lies_beside_the_tokens(dummies: Folders) -> None:
    """ERNIE's experts for images are chosen by a row of its own: without it those of texts are trained on images."""
    template = template_of(dummies, "Ernie4_5_VLMoe")
    encoder = MemberEncoder(template.input_rules, rope_rule_of("auto", template.input_rules))
    member, plain = encoder.encode_alone(MEMBER).tokens, plain_inputs(template, encoder)
    row = member.rows["moe_mm_token_type_ids"]
    assert torch.equal(row, plain["moe_mm_token_type_ids"][0])
    assert int(row.count_nonzero()) > int(member.types.count_nonzero())  # begins and ends, too
    batch = lay_out_neat_rows([[member, member]], RowForm(width=2 * len(member) + 1))
    assert batch["moe_mm_token_type_ids"].tolist() == [[*row.tolist(), *row.tolist(), 0]]
    gapped = thd([member, member], RowForm(multiple=64))["moe_mm_token_type_ids"][0]
    assert gapped[: len(row)].tolist() == row.tolist()
    assert int(gapped.count_nonzero()) == 2 * int(row.count_nonzero())


def test_tokens_that_a_class_does_not_look_for_are_an_error_at_start(dummies: Folders, tmp_path: Path) -> None:
    """A text without the marks that a class looks for has rows as if there was no image, and trains."""
    folder = shutil.copytree(dummies("Qwen2_5Omni"), tmp_path / "other")
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text().replace("<|vision_bos|>", ""))
    template = build_uncached_template(of_model("shapes", folder))
    with pytest.raises(ValueError, match="Qwen2_5OmniThinkerForConditionalGeneration finds no media in the tokens"):
        MemberEncoder(template.input_rules, rope_rule_of("auto", template.input_rules)).check_processor()


def test_the_model_s_config_is_taken_where_the_processor_has_it(dummies: Folders, tmp_path: Path) -> None:
    """Of a model that speaks, the thinker's part; with the published one's tokens, as the demo's are not."""
    folder = shutil.copytree(dummies("Qwen2_5Omni"), tmp_path / "whole")
    template = build_uncached_template(of_model("shapes", folder))
    config = tf.Qwen2_5OmniConfig()
    config.save_pretrained(folder)
    with pytest.raises(RopeRowsError, match="makes no positions of its processor's tokens: AttributeError"):
        MemberEncoder(template.input_rules, rope_rule_of("auto", template.input_rules)).check_processor()
    for name in ("image_token", "video_token", "audio_token", "vision_bos_token", "audio_bos_token"):
        token_id = template.token_id(template.spec.processor.tokens[name])
        setattr(config.thinker_config, f"{name.replace('bos', 'start')}_id", token_id)
    config.thinker_config.position_id_per_seconds = 7
    config.save_pretrained(folder)
    encoder = MemberEncoder(template.input_rules, rope_rule_of("auto", template.input_rules))
    encoder.check_processor()
    rows = rope_rows(encoder.encode_alone(MEMBER).tokens)
    (step,) = set(rows[0][encoder.encode_alone(MEMBER).tokens.types == 2].unique().diff().tolist())
    assert step == 7  # a row of the video's grid is a second


def test_rows_for_which_there_is_no_room_are_an_error_at_start() -> None:
    """HunYuan-VL has four."""
    rotary = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16] * 4}
    config = tf.HunYuanVLConfig(text_config={"rope_parameters": rotary, "head_dim": 128})
    rope = OwnRope(tf.HunYuanVLForConditionalGeneration, shrink_config(config))
    types = torch.tensor([0, 1, 1, 1, 1, 1, 1, 0])  # a row ends with a token of its own
    with pytest.raises(ValueError, match="HunYuanVLForConditionalGeneration has 4 rows of positions"):
        rope(types, types, {"image_grid_thw": torch.tensor([[1, 4, 4]])})


@pytest.mark.slow
def test_a_placeholder_stands_between_the_tokens_that_its_class_looks_for(dummies: Folders) -> None:
    """HunYuan-VL refuses one that stands alone: media are made all the same, and its rows are what has no room."""
    template = template_of(dummies, "HunYuanVL")
    encoder = MemberEncoder(template.input_rules)
    encoder.check_processor()
    assert encoder.blank_image_inputs().keys() == {"pixel_values", "image_grid_thw"}
    with pytest.raises(ValueError, match=r"can't be asked for them|has 4 rows of positions"):
        MemberEncoder(template.input_rules, rope_rule_of("auto", template.input_rules)).check_processor()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Ernie4_5_VLMoe", "Glm4v", "Qwen2_5Omni"])
def test_a_pack_has_the_logits_of_its_members_alone(
    dummies: Folders, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Processor, positions and model together, by the guard itself; GLM-4V's model takes images or videos, not both."""
    template = template_of(dummies, name)
    encoder = MemberEncoder(template.input_rules, rope_rule_of("auto", template.input_rules))
    (make, *_) = model_classes_of(Path(template.spec.processor.folder))
    members = encoder.probe_members()
    kinds = [member.sample_id.partition(" ")[0] for member in members]
    assert [kind for kind in kinds if kind != "heard"] == ["text", "image", "video", "text"]
    config = make_small_config(make, template.input_rules)
    if name == "Glm4v":  # as published, and not by default
        config.text_config.rope_parameters["partial_rotary_factor"] = 0.5
    with torch.device("meta"):
        model = make._from_config(config)
    assert guard(model, MadeEncoder(members)).proofs[-1].is_exact
    assert ("is shown without videos" in caplog.text) == (name == "Glm4v")
    if name == "Glm4v":
        assert guard(model, MadeEncoder([members[0], *members[2:]])).proofs[-1].is_exact
