"""No token that stands for a medium or frames one is a label, in all sets of ../shared/real, wherever media stand.

Without it, a think-with-images set trains the model to write `<|image_pad|>`: 1,408 of 1,486 labels of one sample.
"""

from pathlib import Path

import pytest

from energon_pack.samples.skip import Skip
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template
from support.labels.folders import REAL_FOLDERS, build_template
from support.labels.media import answered_with_media, media_ids, samples_of, wrong_labels
from support.running import REAL

pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="../shared/real is not here")

SETS = sorted([*(REAL / "wds").glob("*"), *(REAL / "jsonl").glob("*.jsonl")])
#: tokens of each kind: two fences, tiles in fences, rows of tiles; the others are slow
FEW = ("qwen2_5_vl", "internvl3_hf", "granite_docling_idefics3")


def counted(template: Template, path: Path, most: int | None = None) -> tuple[int, int, dict[str, int]]:
    """Samples seen, those with media in answers, and the wrong labels of each that has some."""
    seen = answered = 0
    wrong: dict[str, int] = {}
    for number, sample in enumerate(samples_of(path)):
        if seen == most:
            break
        asked = sample.timed_messages
        for messages in (asked, answered_with_media(asked)) if sample.media else (asked,):
            try:
                labels = wrong_labels(template, Sample(messages, sample.media, sample.tools))
            except Skip:  # the template's own reasons: roles that do not alternate, media it does not write there
                continue
            seen += messages is asked
            answered += messages is not asked
            if labels:
                wrong[f"{path.name} {number} {'asked' if messages is asked else 'answered'}"] = labels
    return seen, answered, wrong


@pytest.mark.parametrize("name", FEW)
def test_no_media_token_is_a_label_of_a_few(name: str) -> None:
    template = build_template(name, REAL / "processors" / name)
    assert len(media_ids(template)) > 1
    seen, answered, wrong = counted(template, REAL / "wds" / "image_probe", most=8)
    assert wrong == {}
    assert (seen, answered > 0) == (8, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL_FOLDERS)
@pytest.mark.parametrize("path", SETS, ids=lambda path: path.name)
def test_no_media_token_is_a_label_of_any(name: str, path: Path) -> None:
    assert counted(build_template(name, REAL / "processors" / name), path)[2] == {}
