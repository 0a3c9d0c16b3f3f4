"""One member of a pack, or an unpacked sample, between its reader and its encoder."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from energon_pack.samples.media.kinds import ADDED_KINDS, AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.samples.tokens import MediumInput, MemberTokens


@dataclass(frozen=True)
class SampleOptions:
    """Settings that one sample has for itself, for rendering and training."""

    #: the factor of its loss
    weight: float = 1.0
    #: variables of the chat template; they override the run's variables
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    #: for each medium, in the order of their placeholders, the settings in its content part; empty: none
    media: tuple[Mapping[str, Any] | None, ...] = ()
    #: settings of all media: ms-swift's `chat_template_kwargs: {"max_pixels": …}`
    all_media: Mapping[str, Any] = field(default_factory=dict)
    #: settings of `labels` that override the run's
    labels: Mapping[str, Any] = field(default_factory=dict)
    #: whether the sound of its videos is heard, too
    use_audio_in_video: bool = False
    #: of its tokens, the first that is part of it, and the first that no longer is; None: all are
    token_range: tuple[int, int] | None = None


NO_OPTIONS = SampleOptions()


class Shared(NamedTuple):
    """The beginning that a member of a pack shares with the member before it: numbers of tokens, images and videos."""

    #: number of its first tokens that are also the first of the member before it; 0: it begins a new tree
    num_tokens: int = 0
    #: number of images and videos in these tokens
    num_images: int = 0
    num_videos: int = 0


NOTHING_SHARED = Shared()


@dataclass(frozen=True)
class MemberInput:
    """One member of a pack, or an unpacked sample, as training gets it before encoding.

    A member that is read from a pack has an id, a length, media and tokens; its messages and options are empty.
    """

    sample_id: str
    messages: list[dict[str, Any]]
    images: Sequence[Any] = ()
    videos: Sequence[bytes] = ()
    tools: list[Any] | None = None
    video_frames: Any = None
    #: its measured length in tokens; None: not measured
    token_len: int | None = None
    options: SampleOptions = NO_OPTIONS
    audios: Sequence[bytes] = ()
    #: its beginning that the member before it has, too; `images` and `videos` also hold the shared media
    shared: Shared = NOTHING_SHARED
    #: media of kinds that packages add, by kind
    others: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    #: what the model is fed of it; None: nobody has tokenized it yet
    tokens: MemberTokens | None = None
    #: number of pictures that are missing, and whose places were removed
    num_removed: int = 0

    @property
    def media(self) -> dict[str, Sequence[Any]]:
        """The member's media by kind: `image`, `video`, `audio` and added kinds."""
        return {IMAGE.kind: self.images, VIDEO.kind: self.videos, AUDIO.kind: self.audios, **self.others}

    def refuse_missing(self) -> None:
        """Raise OSError if the file of a medium is missing; a missing image raises it when it is decoded."""
        files = {kind: data for kind, data in self.media.items() if kind != IMAGE.kind}
        if missing := next((f"{kind} {data.index(b'')}" for kind, data in files.items() if b"" in data), None):
            raise OSError(f"its {missing} is missing from the pack")


def media_in_order(member: MemberInput, media: Sequence[MediumInput]) -> list[Any]:
    """Return a member's media in the order of its tokens: images, and the bytes of other files."""
    member.refuse_missing()
    kinds = [kind for medium in media for kind in medium.part_kinds]
    counts = {kind: len(parts) for kind, parts in member.media.items() if parts}
    if counts != Counter(kinds):
        raise ValueError(f"its tokens are of {dict(Counter(kinds))}, and it has {counts}")
    waiting = {kind: iter(parts) for kind, parts in member.media.items()}
    return [next(waiting[kind]) for kind in kinds]


def media_fields(by_kind: Mapping[str, Any], plural: bool = True) -> dict[str, Any]:
    """Turn media by kind into keyword arguments for `MemberInput`, or for a sample class of Energon.

    Sounds and media of added kinds are left out where there are none: classes of other stacks have no such fields.

    Args:
        by_kind: the media of each kind, such as `image`; for a pack, a list for each member.
        plural: whether the arguments are named `images` …, or `image` … as in sample classes.
    """
    name = {kind: medium.plural if plural else kind for kind, medium in KINDS.items()}
    fields = {name[kind]: by_kind[kind] for kind in (IMAGE.kind, VIDEO.kind)}
    fields |= {name[kind]: by_kind[kind] for kind in (AUDIO.kind,) if _has_media(by_kind[kind])}
    added = {kind: by_kind[kind] for kind, _ in ADDED_KINDS if _has_media(by_kind[kind])}
    return {**fields, **({"others": added} if added else {})}


def _has_media(media: Any) -> bool:
    """Tell whether there are media of a kind: in a list, or in a list for each member."""
    return any(not isinstance(of_member, list) or of_member for of_member in media or ())
