"""Remote classes as people have them: of another call than transformers' own, in a file beside the settings."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.prepared import PreparedMedia, processor_arguments
from energon_pack.templates.full_processor import load_full_processor
from energon_pack.templates.processor import build_uncached_template
from energon_pack.templates.processor_inputs import full_processor_ids
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template
from support.models import of_model
from support.processors import template_of
from support.remote import CODE, write_remote
from support.running import need_torchvision

#: After a note of what MiniCPM-V 4.5's class does, not its code: a placeholder that is no attribute of it, an image's
#: number before it, one token of the tokenizer's for all features, and `tokenizer.encode` in place of a call.
_PATTERN = "(<image>./</image>)"
UNNAMED = CODE.replace('self.image_token = "<image>"', "pass").replace(
    'self.image_token_id = tokenizer.convert_tokens_to_ids("<image>")', "pass"
)
UNNAMED = (
    UNNAMED[: UNNAMED.index("            counts = iter")]
    + """\
            for i, one in enumerate(texts):
                first, *rest = one.split("(<image>./</image>)")
                for number, (image, more) in enumerate(zip(images, rest)):
                    tokens = "<pad>" * (16 * len(self.image_processor.tiles(image)))
                    first += f"<image_id>{{number}}</image_id><image>{{tokens}}</image>{{more}}"
                texts[i] = first
        ids = [self.tokenizer.encode(one, add_special_tokens=False) for one in texts]
        return BatchFeature({{"input_ids": ids, **made}}, tensor_type=return_tensors)
"""
)
#: takes several images of a text in a list of their own, as PaliGemma's does where it puts in the tokens itself
NESTED = CODE.replace(
    "        if images:\n",
    """        if images and isinstance(images[0], (list, tuple)):
            images = [image for one in images for image in one]
        elif images and len(images) != len(texts):
            raise ValueError(f"Received {{len(images)}} images for {{len(texts)}} prompts.")
        if images:
""",
)
#: pads inside its call, as PI0's does, and leaves its tokenizer so
PADDING = (
    CODE[: CODE.index("        return BatchFeature({{**self.tokenizer")]
    + """\
        padded = self.tokenizer(texts, padding="max_length", max_length=400, **(text_kwargs or {{}}))
        ids = [[token for token, is_one in zip(*row) if is_one] for row in zip(*padded.values())]
        return BatchFeature({{"input_ids": ids, **made}}, tensor_type=return_tensors)
"""
)


@pytest.fixture(autouse=True)
def full() -> None:
    need_torchvision()


def remote(folder: Path, code: str) -> Path:
    write_remote(folder, code=code)
    if code is UNNAMED:
        (folder / "chat_template.jinja").write_text(template_of(_PATTERN))
    return folder


def template_for(folder: Path) -> Template:
    return build_uncached_template(of_model("auto", folder, trust_remote_code=True, add_special_tokens=None))


def sample_of(*sizes: tuple[int, int]) -> Sample:
    text = "".join(f"<image>No. {number}: " for number, _ in enumerate(sizes))
    messages = [{"role": "user", "content": f"{text}what?"}, {"role": "assistant", "content": "A cat."}]
    return Sample(messages, [Media("image", *size) for size in sizes])


def ids_of_full(template: Template, sample: Sample) -> list[int]:
    images = [Image.fromarray(np.zeros((m.height, m.width, 3), np.uint8)) for m in sample.media]
    media = processor_arguments(template.input_rules, PreparedMedia(["image"] * len(images), images))
    return full_processor_ids(load_full_processor(template.spec.processor), template, sample, media)


@pytest.mark.parametrize("code", [UNNAMED, NESTED, PADDING], ids=["unnamed", "nested", "padding"])
def test_its_samples_are_as_its_own_call_makes_them(tmp_path: Path, code: str) -> None:
    template = template_for(remote(tmp_path / "remote", code))
    for sizes in ([(64, 48)], [(64, 48), (48, 64)], [(20, 90), (90, 20), (64, 64)]):
        assert template.encode(sample_of(*sizes)).ids == ids_of_full(template, sample_of(*sizes))


def test_a_placeholder_that_has_no_name_is_read_off_the_chat_template(tmp_path: Path) -> None:
    """Such a class was refused: "it has no token for one"."""
    template = template_for(remote(tmp_path / "remote", UNNAMED))
    assert template.media_tokens == {"image": "(<image>./</image>)"}
    rendered = template.render(sample_of((90, 20), (20, 90)))
    assert "<image_id>1</image_id><image>" + "<pad>" * 16 + "</image>No. 1:" in rendered.text
    assert rendered.num_visual_tokens == 32 + 16


def test_several_images_are_asked_and_trained_as_their_class_takes_them(tmp_path: Path) -> None:
    """Samples with several images were left out: "Received 2 images for 1 prompts"."""
    template = template_for(remote(tmp_path / "remote", NESTED))
    assert template.rules.nests_images
    images = [Image.new("RGB", (8, 8))] * 2
    assert processor_arguments(template.input_rules, PreparedMedia(["image"] * len(images), images))["images"] == [
        images
    ]
    assert processor_arguments(template.input_rules, PreparedMedia(["image"], images[:1]))["images"] == images[:1]
    assert not template_for(remote(tmp_path / "flat", CODE)).rules.nests_images


def test_no_call_of_the_full_processor_pads_the_templates_texts(tmp_path: Path) -> None:
    """Both shared a tokenizer: after a call that pads, training counted other lengths than planning's workers."""
    template = template_for(remote(tmp_path / "remote", PADDING))
    sample = sample_of((64, 48))
    ids_of_full(template, sample)
    assert template.tokenizer.padding is None
    [(counted, _)] = template.count([template.render(sample)])
    assert counted == len(template.encode(sample).ids) < 400
