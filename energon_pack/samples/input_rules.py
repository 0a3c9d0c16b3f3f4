"""How tokens and media of packs become a model's inputs: all that training needs of what packing knew. Plain data.

A dataset keeps it beside its packs: `.nv-meta/inputs.json`, with `.nv-meta/trial.tokens`, media to try a processor and
a model with. So training renders and tokenizes nothing.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from energon_pack.run.files import write_atomically
from energon_pack.run.seeded_random import Ints
from energon_pack.samples.media.image import RgbConversion
from energon_pack.samples.media.kinds import KINDS
from energon_pack.samples.member import MemberInput, MemberTokens
from energon_pack.samples.pack_tokens import PackTokens, members_of

#: names of files with the rules, and with the members of the trial
INPUTS_FILE, TRIAL_FILE = "inputs.json", "trial.tokens"
#: what the media of a trial are for: members for a model; media of several sizes, and of one, for a processor; the
#: same with sounds of videos; an image for ranks without any
MODEL_PROBE, SEVERAL_SIZES, SAME_SIZE, VIDEOS_WITH_SOUND, BLANK_IMAGE = "probe", "sizes", "twins", "heard", "blank"


@dataclass(frozen=True)
class TrialMember:
    """A made-up member with random media, with which training tries a processor or a model."""

    purpose: str  # of the five above
    kind: str  # of its media; empty: it has none
    tokens: MemberTokens


@dataclass(frozen=True)
class InputRules:
    """All that turns token ids and media of packs into a model's inputs: settings and ids of one model's processor."""

    folder: str  # of the processor's files
    transformers: str | None = None  # the version with which they were used
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # to load it with
    tokens: Mapping[str, str] = field(default_factory=dict)  # image_token, bos_token … of its tokenizer
    token_ids: Mapping[str, int] = field(default_factory=dict)  # of its special tokens, and of those of media
    num_ids: int = 0  # tokens of its tokenizer: a model's vocabulary has at least as many
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by kind: of its processor of media
    media_tokens: Mapping[str, str] = field(default_factory=dict)  # by kind of the media that were measured
    types: Sequence[tuple[int, int | None]] = ()  # number in `mm_token_type_ids`, and id, of tokens that hold features
    placeholders: Mapping[str, str] = field(default_factory=dict)  # by kind: the text of its call for a medium
    call_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by kind: of its call
    nests_images: bool = False  # its call takes several images as a nested list
    hears_videos: bool = False  # its call takes the sound of a video
    rate: int = 0  # samples of a sound in a second; 0: it takes none
    is_asked: bool = False  # nobody has compared its output yet, so that it is tried first
    looks: Mapping[str, RgbConversion] = field(default_factory=dict)  # by kind
    media: Mapping[str, Any] = field(default_factory=dict)  # the run's `media`, for a preprocessor of another package
    trial: Sequence[TrialMember] = ()
    texts: Sequence[tuple[str, Sequence[int]]] = ()  # texts with their ids, by which tokenizers are compared
    pixels: str = ""  # hash of the settings by which its processor makes inputs of media; empty: nobody knows
    made: Mapping[str, Any] = field(default_factory=dict)  # figures of the inputs that it made of the trial's media
    classes: Mapping[str, str] = field(default_factory=dict)  # by kind: of its part that prepares media
    #: tokenizes members that are in no pack; None: nothing here can
    tokenize: Callable[[MemberInput], MemberTokens] | None = None
    #: what the process that started this one found out about its processor; None: nothing
    findings: object = None

    def token_id(self, token: str) -> int | None:
        """Return the id of a special token, or of a token of media; None: there is none."""
        return self.token_ids.get(token)

    def feature_token_id(self, kind: str) -> int | None:
        """Return the id of the token that a model replaces by features of a kind of media; None: it has none."""
        return dict(self.types).get(KINDS[kind].token_type)

    def media_types_of_tokens(self, token_ids: Ints) -> Ints:
        """Return for each token 0 (text), or the number of the kind of media whose features it holds."""
        types = np.zeros(len(token_ids), np.int64)
        for number, feature in self.types:
            if feature is not None and (is_feature := token_ids == feature).any():
                types[is_feature & (types == 0)] = number
        return types

    def to_json(self) -> dict[str, Any]:
        """Return the rules as JSON values, without the processor's folder and the trial's tokens."""
        left_out = ("folder", "trial", "tokenize", "findings")
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in left_out}
        looks = {kind: look._asdict() for kind, look in self.looks.items()}
        return {**values, "looks": looks, "trial": [[one.purpose, one.kind] for one in self.trial]}

    def save(self, folder: Path) -> None:
        """Write inputs.json and trial.tokens into a folder, for `load`."""
        from energon_pack.samples.written_tokens import join_member_tokens

        write_atomically(folder / TRIAL_FILE, join_member_tokens([one.tokens for one in self.trial]).to_bytes())
        write_atomically(folder / INPUTS_FILE, json.dumps({"folder": self.folder, **self.to_json()}, indent=1).encode())

    @staticmethod
    def load(folder: Path) -> "InputRules":
        """Read the rules from a folder into which `save` wrote them."""
        values = json.loads((folder / INPUTS_FILE).read_bytes())
        return InputRules.read(values, (folder / TRIAL_FILE).read_bytes(), values["folder"])

    @staticmethod
    def read(values: Mapping[str, Any], trial_tokens: bytes, processor_folder: str) -> "InputRules":
        """Make rules from the values of inputs.json, the bytes of trial.tokens, and the folder of a processor."""
        pairs = zip(values["trial"], members_of(PackTokens.from_bytes(trial_tokens)), strict=True)
        members = [TrialMember(purpose, kind, tokens) for (purpose, kind), tokens in pairs]
        looks = {kind: RgbConversion(**look) for kind, look in values["looks"].items()}
        types = [(number, feature) for number, feature in values["types"]]
        return InputRules(**{**values, "folder": processor_folder, "trial": members, "looks": looks, "types": types})


def max_pack_len(manifest: Mapping[str, Any]) -> int:
    """Return the most tokens of a pack by its dataset's energon_pack.json: `own_pack` has longer than max_token_len."""
    limit = manifest["content"].get("packing", {}).get("hard_limit") or manifest["max_token_len"]
    multiple = int(manifest.get("pad_to_multiple_of", 1))  # of each member's length, which limits count
    return int(manifest.get("max_pack_len") or limit) // multiple * multiple
