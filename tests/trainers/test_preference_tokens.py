"""TRL's own tokens of preference pairs beside those of packs, by real processors: each difference has a name."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.pairs import CLASSES, pack_pairs_of
from support.trainers.stacks import STACKS, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
NUM_PAIRS, SHORT = 44, 64
#: the tokens of one image, by how a text of them is spelled
IMAGES = re.compile(r"<\|vision_start\|>(?:<\|image_pad\|>)+<\|vision_end\|>|<img>(?:<IMG_CONTEXT>)+</img>\n?")
VIDEO = re.compile(r"<\|vision_start\|>.*<\|video_pad\|><\|vision_end\|>(?:<\|vision_end\|>)?")
FIRST_TURN = "<|im_start|>user\n"

#: what TRL 1.16 does otherwise
NEWLINE = "trains the newline behind the end of the turn"
PLACE = "leaves <image> as text, with the image at the front of the turn"
TURN = "leaves <image> as text, with the image in the first turn"
VIDEO_LOST = "leaves <video> as text, without a video"
CUT = "cuts the end of the answer"
ALL_CUT = "cuts the whole answer, and keeps the pair"
Table = dict[str, dict[str, int]]
#: by form: as the file has them, with the places of images as parts of a turn, and these with max_length 64
TABLE: dict[str, Table] = {  # in how many of 88 sides it does so
    "qwen2_5_vl": {
        "file": {NEWLINE: 88, PLACE: 40, TURN: 14, VIDEO_LOST: 8},
        "parts": {NEWLINE: 88, VIDEO_LOST: 8},
        "short": {NEWLINE: 55, VIDEO_LOST: 6, CUT: 23, ALL_CUT: 10},
    },
    "qwen3_vl": {
        "file": {NEWLINE: 88, PLACE: 40, TURN: 14, VIDEO_LOST: 8},
        "parts": {NEWLINE: 88, VIDEO_LOST: 8},
        "short": {NEWLINE: 34, VIDEO_LOST: 8, ALL_CUT: 54},
    },
    "internvl": {
        "file": {NEWLINE: 88, PLACE: 42, TURN: 16},
        "parts": {NEWLINE: 88},
        "short": {NEWLINE: 30, ALL_CUT: 58},
    },
    "qwen2_5_text": {
        "file": {NEWLINE: 88},
        "parts": {NEWLINE: 88},
        "short": {NEWLINE: 62, CUT: 26},
    },
}


def differences(theirs: dict[str, Any], here: dict[str, Any], uncut: dict[str, Any], tokenizer: Any) -> set[str]:
    """Name all that TRL does otherwise in one side of a pair; fail where a difference has no name.

    Args:
        theirs: its ids, and which are trained.
        here: ours.
        uncut: its own without `max_length`.
    """
    if theirs != uncut:
        assert theirs["ids"] == uncut["ids"][:SHORT]
        assert theirs["trained"] == uncut["trained"][:SHORT]
        return {CUT if any(theirs["trained"]) else ALL_CUT}
    text, ours = (tokenizer.decode(side["ids"], skip_special_tokens=False) for side in (theirs, here))
    names = set()
    if VIDEO.search(ours) and text == VIDEO.sub("<video>", ours):
        names.add(VIDEO_LOST)
    elif text != ours:
        places, images = IMAGES.sub("<image>", ours), IMAGES.findall(ours)
        before, turn, after = places.partition(FIRST_TURN)
        assert images
        assert text == before + turn + "".join(images) + after
        names.add(PLACE if after.startswith("<image>") else TURN)
    else:
        assert theirs["ids"] == here["ids"]
    trained, of_ours = (
        tokenizer.decode([one for one, is_trained in zip(*side.values(), strict=True) if is_trained])
        for side in (theirs, here)
    )
    assert trained == of_ours + "\n"
    return {*names, NEWLINE}


@pytest.mark.parametrize("name", CLASSES)
def test_what_trl_does_otherwise_has_a_name(name: str, real: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    made = pack_pairs_of(name, NUM_PAIRS, real, tmp_path)
    kwargs = {"max_patches": 1} if name == "internvl" else {}
    words = [made.datasets["whole"], made.model, made.source, json.dumps(kwargs), SHORT]
    try:
        found = run(STACKS["trl"], "dpo_tokens.py", words, tmp_path)
    except OSError as error:
        pytest.skip(str(error))
    tokenizer = AutoTokenizer.from_pretrained(made.model)
    table: Table = {}
    for form, members in found.items():
        assert len(members) == 2 * NUM_PAIRS
        counts = Counter[str]()
        for member, side in members.items():
            uncut = found["parts" if form == "short" else form][member]["TRL"]
            counts.update(differences(side["TRL"], side["here"], uncut, tokenizer))
        table[form] = dict(counts)
    print(json.dumps({name: table}, indent=1))
    assert table == TABLE[name]
