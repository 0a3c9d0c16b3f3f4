"""Add a member's tokens to its view, and how many of them each medium takes."""

from collections.abc import Sequence
from dataclasses import replace

from energon_pack.samples.media.asked import has_lists, lists_of_frames
from energon_pack.samples.media.kinds import KINDS, VIDEO
from energon_pack.samples.media.medium import Media
from energon_pack.templates.sample import Sample, as_seen
from energon_pack.templates.template import Template
from energon_pack.views.spans import spans_of
from energon_pack.views.view import Medium, MemberView


def encoded(view: MemberView, template: Template, sample: Sample) -> MemberView:
    """Return the member's view with its tokens; raises Skip where the template has none for it.

    Args:
        view: has the same media as the sample; media of one kind are in the same order.
    """
    view = replace(view, media=_as_videos(view.media, sample.media))
    sample = as_seen(sample)
    rendered = template.render(sample)
    seen = seen_by(template, sample.media)
    spans = spans_of(template, sample, rendered)
    counts = [span.num_tokens for span in spans if span.kind in KINDS]
    in_text = sorted(range(len(sample.media)), key=rendered.media.__getitem__)
    num_tokens = dict(zip(in_text, counts, strict=True))
    of_kind = {kind: iter([i for i, m in enumerate(sample.media) if m.kind == kind]) for kind in KINDS}
    places = [next(of_kind[medium.kind]) for medium in view.media]
    return replace(
        view,
        token_len=sum(span.num_tokens for span in spans),
        num_supervised=sum(span.num_tokens for span in spans if span.is_trained),
        num_visual_tokens=rendered.num_visual_tokens,
        media=[replace(m, num_tokens=num_tokens[i], seen=seen[i]) for m, i in zip(view.media, places, strict=True)],
        spans=spans,
    )


def _as_videos(media: Sequence[Medium], looked_at: Sequence[Media]) -> list[Medium]:
    """Merge the frames of one video into one medium of a view; its picture is the first frame's.

    Args:
        looked_at: the same media as the sample has them, or the same number of each kind.
    """
    if not has_lists(looked_at):
        return list(media)
    return [
        media[places.start]
        if places.stop - places.start == 1
        else replace(
            media[places.start],
            kind=VIDEO.kind,
            num_frames=medium.num_frames,
            num_bytes=sum(frame.num_bytes or 0 for frame in media[places]),
        )
        for medium, places in lists_of_frames(looked_at)
    ]


def seen_by(template: Template, media: Sequence[Media]) -> list[str | None]:
    """Say how `media.*` changes each medium before the processor gets it, and a video's frames; None: unchanged."""
    seen = []
    for medium in media:
        frames = template.choose_frames(medium) if medium.kind == VIDEO.kind else []
        after = template.prepared(medium, len(frames))
        changes = [f"{after.width}×{after.height}"] * ((after.width, after.height) != (medium.width, medium.height))
        changes += [f"{len(frames):,} frames"] * (medium.kind == VIDEO.kind)
        seen.append(", ".join(changes) or None)
    return seen
