"""Settings for reading samples: the part of the config's node `source` that every length depends on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from energon_pack.run.untrusted_input import plain


class SampleType(str, Enum):
    """How a sample's JSON holds its conversation: as turns, a caption, a question with answers, or raw text."""

    auto = "auto"
    chat = "chat"
    captioning = "captioning"
    vqa = "vqa"
    document = "document"


class ToolForm(str, Enum):
    """How tools and tool calls reach the chat template: as such (auto), or calls as JSON in the text."""

    auto = "auto"
    text = "text"


class PreferenceTake(str, Enum):
    """Which of the two conversations of preference data is packed: the chosen one, or both, as a pair."""

    chosen = "chosen"
    both = "both"


class ControlTokens(str, Enum):
    """The treatment of a sample whose text spells a special token."""

    keep = "keep"
    skip = "skip"


class Frames(str, Enum):
    """How a video that is listed as files of its frames is read: as one video, or as images."""

    video = "video"
    images = "images"


class UnreadMediaPolicy(str, Enum):
    """What to do with media under a key that is not read: ignore them."""

    ignore = "ignore"


class MissingMediaPolicy(str, Enum):
    """What to do with a document between whose texts pictures stand, if one of them is missing."""

    skip = "skip"
    remove = "remove"


class NullPolicy(str, Enum):
    """What to do with null values in the tools and tool calls of a record."""

    drop = "drop"
    keep = "keep"


@dataclass
class Columns:
    """The names of a record's fields and of a turn's keys in the user's data; None: the same name as here."""

    #: the field that holds the turns
    messages: str | None = None
    #: the key of a turn's role
    role: str | None = None
    #: the key of a turn's text
    content: str | None = None
    #: the field that holds the question
    prompt: str | None = None
    #: the field that holds the answer
    response: str | None = None
    #: the field that holds the system prompt
    system: str | None = None
    #: the field that holds the tools
    tools: str | None = None
    #: the field that lists images
    images: str | None = None
    #: the field that lists videos
    videos: str | None = None
    #: the field that lists sounds
    audios: str | None = None
    #: the field that names the record
    id: str | None = None


@dataclass
class Roles:
    """The names of the roles in the user's data; None: the same name as here."""

    #: the role of the user
    user: str | None = None
    #: the role of the assistant
    assistant: str | None = None
    #: the role of the system
    system: str | None = None
    #: what a tool returns
    tool: str | None = None


@dataclass
class ReadSettings:
    """Settings `source.*` by which the JSON of a sample is read as messages."""

    #: the one field that holds the messages; None: `messages`, `conversations`, `texts`, prompts and captions …
    messages_key: str | None = None
    #: what samples are; auto: each is looked at
    sample_type: SampleType = SampleType.auto
    #: of preference data (`chosen` and `rejected`, a `label`) the good conversations, or both sides of each pair; None:
    #: each is left out
    take: PreferenceTake | None = None
    #: auto: the chat template writes tools and calls; text: calls are their JSON in the answer, tools are left out
    tools: ToolForm = ToolForm.auto
    #: the user's text before a caption; by default none
    caption_prompt: str = ""
    #: special tokens that are spelled out in the data: keep them, as the processor would, or skip the sample
    control_tokens: ControlTokens = ControlTokens.keep
    #: how to read a video that is listed as the files of its frames: as one video, or as images
    frames: Frames = Frames.video
    #: ignore: samples whose media nothing reads are packed as text; None: each is left out
    media: UnreadMediaPolicy | None = None
    #: module:function of the user that changes each record before it is read, or leaves it out; None: no change
    map: str | None = None
    #: whether the sound of videos is heard, too, where a sample does not say; None: it is not
    use_audio_in_video: bool | None = None
    #: a document of texts and pictures, one of which is missing: skip it, or remove the place of this picture
    missing_media: MissingMediaPolicy = MissingMediaPolicy.skip
    #: nulls in calls and tools of JSON: drop or keep them; None: those go that a table put in (`samples.raw_record`)
    nulls: NullPolicy | None = None
    columns: Columns = field(default_factory=Columns)
    roles: Roles = field(default_factory=Roles)

    def __post_init__(self) -> None:
        """Set `has_renames`: whether any column or role has another name."""
        self.has_renames = (self.columns, self.roles) != (Columns(), Roles())
        #: whether the rejected side of a pair is read in the chosen one's place
        self.takes_rejected = False

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that lengths depend on, as JSON.

        Settings of later versions are left out where they are not set, so that lengths in a cache stay valid.
        """
        return without_unset_newer_settings(plain(self))


def without_unset_newer_settings(source_settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config's node `source` without settings of later versions that are not set."""
    return {
        name: value for name, value in source_settings.items() if name not in _LATER_SETTINGS or not _is_unset(value)
    }


_LATER_SETTINGS = ("map", "media", "missing_media", "nulls", "use_audio_in_video", "columns", "roles")


def _is_unset(value: Any) -> bool:
    return all(item is None for item in value.values()) if isinstance(value, Mapping) else value in (None, "skip")


#: for conversations that packs store: an answer alone was not read as a document there
STORED_SETTINGS = ReadSettings(sample_type=SampleType.chat, nulls=NullPolicy.keep)
