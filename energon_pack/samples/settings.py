"""Settings for reading samples: the part of the config's node `source` that every length depends on."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from energon_pack.run.json_nodes import plain


class SampleType(str, Enum):
    """The kind of a sample's JSON: which keys hold its conversation."""

    auto = "auto"
    chat = "chat"
    captioning = "captioning"
    vqa = "vqa"
    document = "document"


class ToolsAs(str, Enum):
    """The form in which tools and calls reach the chat template."""

    auto = "auto"
    text = "text"


class Take(str, Enum):
    """The side of preference data that is packed."""

    chosen = "chosen"


class ControlTokens(str, Enum):
    """The treatment of a sample whose text spells a special token."""

    keep = "keep"
    skip = "skip"


class Frames(str, Enum):
    """The treatment of a list of frames in place of a video."""

    video = "video"
    images = "images"


@dataclass
class ReadSettings:
    """Settings that turn the JSON of a sample into messages."""

    #: the one field that holds the messages; None: `messages`, `conversations`, `texts`, prompts and captions …
    messages_key: str | None = None
    #: what samples are; auto: each is looked at
    sample_type: SampleType = SampleType.auto
    #: of preference data (`chosen` and `rejected`, a `label`) the good conversations; None: each is left out
    take: Take | None = None
    #: auto: the chat template writes tools and calls; text: calls are their JSON in the answer, tools are left out
    tools: ToolsAs = ToolsAs.auto
    #: the user's text before a caption; by default none
    caption_prompt: str = ""
    #: special tokens that are spelled out in the data: keep them, as the processor would, or skip the sample
    control_tokens: ControlTokens = ControlTokens.keep
    #: a video that is listed as the files of its frames: one video of them, or so many images
    frames: Frames = Frames.video
    #: module:function of your own that changes each record, or leaves it out, before it is read; None: as it is
    map: str | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """Return as JSON the settings that lengths depend on.

        The map is left out if there is none, so that lengths that were measured before maps existed stay valid.
        """
        return {name: value for name, value in plain(self).items() if name != "map" or value is not None}


#: for conversations that packs store: an answer alone was not read as a document there
STORED = ReadSettings(sample_type=SampleType.chat)
