"""Settings of model, media and labels: the config's nodes `model`, `media` and `labels`."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from energon_pack.errors import PackError
from energon_pack.run.untrusted_input import dataclass_from_dict, plain
from energon_pack.samples.placeholders import spells_placeholder
from energon_pack.samples.weights import MAX_WEIGHT

#: the date that chat templates write as today's: the fallback of Llama 3's templates
DEFAULT_DATE = "2024-07-26"
#: values of `labels.final_end` that are no token
FINAL_END_AUTO, FINAL_END_NONE = "auto", "none"
_MISSING = "???"  # OmegaConf's value for a setting that must be set; training has no OmegaConf


class Mask(str, Enum):
    """The attention mask that keeps the members of a pack apart in a model; auto: it is found before training."""

    auto = "auto"
    positions = "positions"
    dict4d = "dict4d"
    prefix4d = "prefix4d"
    hybrid = "hybrid"


class Rope(str, Enum):
    """The rule of M-RoPE that makes position ids [3, B, S]; none: plain ids [B, S]; auto: found before training."""

    auto = "auto"
    none = "none"
    qwen2_vl = "qwen2_vl"
    qwen2_5_vl = "qwen2_5_vl"
    qwen3_vl = "qwen3_vl"


class TrainOn(str, Enum):
    """Which of the assistant's turns are trained."""

    all = "all"
    last = "last"


class Think(str, Enum):
    """What happens to thoughts: reasoning that a template writes, or `<think>…</think>` in a text."""

    train = "train"
    mask = "mask"
    mask_empty = "mask_empty"
    drop_history = "drop_history"


class ToolCalls(str, Enum):
    """Whether tool calls are trained."""

    train = "train"
    mask = "mask"


class TemplateDrops(str, Enum):
    """What happens to a sample if the chat template leaves out words of it."""

    skip = "skip"
    #: it is packed without them, and counted
    keep = "keep"


class Expand(str, Enum):
    """Which samples are made of one conversation."""

    none = "none"  # it, as a whole
    turns = "turns"  # one for each answer, with all that stands before it
    pairs = "pairs"  # one for each question and its answer, with the media of the first turn


class UntrainedSamplePolicy(str, Enum):
    """What happens to a sample without any trained token."""

    drop = "drop"
    #: it shares a pack with samples that are trained
    keep = "keep"


class TransparentPixelColour(str, Enum):
    """The colour that transparent pixels get.

    auto: as in transformers, the colours that are stored there; with `qwen_vl_utils`, white behind RGBA.
    """

    auto = "auto"
    white = "white"
    black = "black"


@dataclass
class ModelConfig:
    """A model: its family of rules and its processor. Each model has a YAML in `conf/model`."""

    #: the model's name, set by `+model=NAME`
    name: str = _MISSING
    #: the rules that count media tokens; auto: the first that agrees with the processor
    template: str = _MISSING
    #: the hub id of the published processor
    hub_id: str | None = None
    #: folder or hub id of the processor; None: `hub_id`
    processor: str | None = None
    #: revision of the hub id; None: the newest
    revision: str | None = None
    #: whether the processor's own Python code is run
    trust_remote_code: bool = False
    #: arguments of the processor's `from_pretrained`
    processor_kwargs: dict[str, Any] = field(default_factory=dict)
    #: fewest pixels of an image after the processor's resizing; None: the processor's own limit
    min_pixels: int | None = None
    #: most pixels of an image after the processor's resizing; None: the processor's own limit
    max_pixels: int | None = None
    #: pixels of a token's side that the processor must have (patch_size × merge_size), else it is refused; None: any
    factor: int | None = None
    #: Jinja text, a file with it, or the name of one of the processor's own, for all samples; None: as transformers
    #: chooses among the processor's own
    chat_template: str | None = None
    #: variables of the chat template
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    #: whether the tokenizer adds its special tokens around a text, besides the chat template's; None: as transformers'
    #: `apply_chat_template(tokenize=True)` does: a processor's if the template's text does not begin with one
    add_special_tokens: bool | None = None
    #: the token behind a text without turns (pretraining), such as `<|endoftext|>`; None: the tokenizer's end token,
    #: unless the chat template ends turns by it; "": no token
    document_end: str | None = None
    #: the day that a chat template writes as today (`strftime_now`), so that lengths are the same tomorrow
    date: str = DEFAULT_DATE
    #: how a batch keeps samples of a pack apart; the model's YAML sets it
    mask: Mask = Mask.positions
    #: the kind of position ids in a batch; the model's YAML sets it
    rope: Rope = Rope.none
    #: the class of the published processor; transformers' other classes are refused; None: any
    processor_class: str | None = None

    @property
    def processor_kwargs_with_pixels(self) -> dict[str, Any]:
        """Return `processor_kwargs` with `min_pixels` and `max_pixels` where they are set."""
        pixels = {"min_pixels": self.min_pixels, "max_pixels": self.max_pixels}
        return {**self.processor_kwargs, **{key: value for key, value in pixels.items() if value is not None}}

    def path_or_hub_id(self) -> str:
        """Return the processor's folder or hub id: `processor`, else `hub_id`; raises PackError if neither is set."""
        processor = self.processor or self.hub_id
        if processor is None:
            raise PackError(f"+model={self.name} needs model.processor, a folder or a hub id")
        return processor

    def check(self) -> None:
        """Raise PackError if `min_pixels` is more than `max_pixels`, or the date is invalid."""
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise PackError(f"model.min_pixels={self.min_pixels} is more than model.max_pixels={self.max_pixels}")
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError:
            raise PackError(f"model.date={self.date}: no date; YEAR-MONTH-DAY is one, as in {DEFAULT_DATE}") from None


@dataclass
class MediaConfig:
    """How media are changed before the processor's own rule. None: the value of that rule."""

    #: what is done to images: set by the group `media=NAME`, or `module:Class` of your own; default: no change
    image: str = "default"
    #: pixels, for resize_longest_side
    longest_side: int | None = None
    #: pixels of an image, for resize_max_pixels
    max_pixels: int | None = None
    #: pixels, for center_crop
    crop_width: int | None = None
    #: pixels, for center_crop
    crop_height: int | None = None
    #: the colour behind transparent pixels
    alpha: TransparentPixelColour = TransparentPixelColour.auto
    #: what is done to videos: set by the group `media=NAME`, or `module:Class` of your own; default: no change
    video: str = "default"
    #: frames per second
    fps: float | None = None
    #: frames of a video, for uniform
    num_frames: int | None = None
    #: least frames of a video
    min_frames: int | None = None
    #: most frames of a video
    max_frames: int | None = None
    #: least pixels of a video's frames, as its processor counts them
    video_min_pixels: int | None = None
    #: most pixels of a video's frames, as its processor counts them
    video_max_pixels: int | None = None
    #: whether a video's limit of pixels is shared among its frames: transformers' `cap_pixels_per_frame`
    video_cap: bool | None = None

    def check(self) -> None:
        """Raise PackError if `fps` is not above 0."""
        if self.fps is not None and not self.fps > 0:
            raise PackError(f"media.fps={self.fps}: must be more than 0")


class EmptyAnswerPolicy(str, Enum):
    """What happens to an answer that says nothing: no text, thought, tool call or medium."""

    #: it is not trained, and a conversation of such answers alone is left out
    drop = "drop"
    train = "train"


@dataclass
class LabelSettings:
    """Which tokens of a rendered conversation are trained, and with what weight."""

    #: all of the assistant's turns, or only the last
    train_on: TrainOn = TrainOn.all
    #: thoughts: train them, or not, or not the empty ones; drop_history: those before the last question are left out
    think: Think = Think.train
    #: tool calls: train them, or not
    tool_calls: ToolCalls = ToolCalls.train
    #: whether the token that ends a turn is trained
    end_of_turn: bool = True
    #: whether the text that the template writes after that token is trained: a newline, or the end of the whole text
    after_turn: bool = False
    #: loss weight of everything that is no answer (0: not trained); an answer has 1
    prompt_weight: float = 0.0
    #: a sample of which the chat template leaves out words goes into the ledger (skip), or is packed without them; the
    #: thoughts of earlier answers, which many templates leave out, are counted
    template_drops: TemplateDrops = TemplateDrops.skip
    #: answers that say nothing: not trained, and left out where a conversation has no other (drop); or trained
    empty: EmptyAnswerPolicy = EmptyAnswerPolicy.drop
    #: the token that is added and trained behind a conversation's last answer. auto: where the template writes no
    #: special token there, the one that the next turn would begin with; none: no token; TOKEN: this one
    final_end: str = FINAL_END_AUTO

    @property
    def final_token(self) -> str:
        """The token that `final_end` names; empty: it names none."""
        return "" if self.final_end in (FINAL_END_AUTO, FINAL_END_NONE) else self.final_end

    @property
    def trains_whole_turns(self) -> bool:
        """Whether trained turns are trained from the end of their header to their end token, and nothing else is."""
        parts = self.think, self.tool_calls, self.end_of_turn, self.after_turn, self.prompt_weight
        return parts == _WHOLE_TURNS

    def check(self) -> None:
        """Raise PackError for a weight that no turn can have, or an empty token."""
        if not 0 <= self.prompt_weight <= MAX_WEIGHT:
            raise PackError(f"labels.prompt_weight={self.prompt_weight:g}: must be at least 0, at most {MAX_WEIGHT:,}")
        if not self.final_end:
            raise PackError("labels.final_end is empty: it is auto, none or a token")


#: `think`, `tool_calls`, `end_of_turn`, `after_turn` and `prompt_weight` where whole turns are trained
_WHOLE_TURNS = (Think.train, ToolCalls.train, True, False, 0.0)


@dataclass
class LabelsConfig(LabelSettings):
    """Which samples are made of a conversation, and what is trained in them: the config's node `labels`."""

    #: turns: a sample for each trained answer, with everything before it; pairs: for each question and its answer, with
    #: the media of the first question; none: conversations stay whole
    expand: Expand = Expand.none
    #: for turns: how many images such a sample keeps, the last ones (the last screenshots of an agent); None: all
    window_images: int | None = None
    #: for turns: the text in place of each older image that `window_images` leaves out
    window_text: str = "[image]"
    #: a sample of which nothing is trained goes into the ledger (drop), or into a pack with others
    untrained: UntrainedSamplePolicy = UntrainedSamplePolicy.drop
    #: whether the token that ends an answer is trained after a text that `packing.overlong=truncate_text` cut
    cut_end: bool = True

    @property
    def as_labels(self) -> LabelSettings:
        """Return the settings without those that only decide which samples are made (`expand`, `untrained` …)."""
        return LabelSettings(**{each.name: getattr(self, each.name) for each in fields(LabelSettings)})

    def check(self) -> None:
        """Raise PackError for a weight below 0, and for settings that contradict `expand`."""
        super().check()
        if self.expand is Expand.turns and self.prompt_weight:
            raise PackError(
                f"labels.prompt_weight={self.prompt_weight:g} and labels.expand=turns: a question would count once for"
                " each answer after it"
            )
        if self.window_images is not None and self.expand is not Expand.turns:
            raise PackError(
                f"labels.window_images={self.window_images} and labels.expand={self.expand.value}:"
                " only labels.expand=turns has a window"
            )
        if spells_placeholder(self.window_text):
            raise PackError(f"labels.window_text={self.window_text!r} would stand for a medium again")


#: kinds of values of `labels.*`, with what an error says that they are
_KINDS_OF_LABELS: tuple[tuple[Any, str], ...] = (
    (bool, "true or false"),
    (str, "a text"),
    (int | float, "a number"),
)


def override_label_settings(run_labels: LabelSettings, sample_settings: Mapping[str, Any]) -> LabelSettings:
    """Return the run's label settings, overridden by a sample's own; raises PackError for an unknown name or value."""
    for name, value in sample_settings.items():
        default = getattr(LabelSettings(), name, None)
        if default is None:
            raise PackError(f"labels.{name}: there are {', '.join(field.name for field in fields(LabelSettings))}")
        choices = [choice.value for choice in type(default)] if isinstance(default, Enum) else None
        if choices and value not in choices:
            raise PackError(f"labels.{name}={value}: there are {', '.join(choices)}")
        kind, noun = next(pair for pair in _KINDS_OF_LABELS if isinstance(default, pair[0]))
        if not isinstance(value, kind) or isinstance(value, bool) is not isinstance(default, bool):
            raise PackError(f"labels.{name}={value}: {noun}")
    labels = dataclass_from_dict(LabelSettings, {**plain(run_labels), **sample_settings})
    labels.check()
    return labels


@dataclass
class TemplateSettings:
    """The config's nodes `model`, `media` and `labels`, from which a template is built."""

    model: ModelConfig
    media: MediaConfig = field(default_factory=MediaConfig)
    labels: LabelSettings = field(default_factory=LabelSettings)
