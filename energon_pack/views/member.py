"""What a template makes of a member: its tokens, and how many of them each medium takes."""

from collections.abc import Sequence
from dataclasses import replace

from energon_pack.samples.media.probe import Media
from energon_pack.templates.template import Sample, Template
from energon_pack.views.spans import spans_of
from energon_pack.views.view import Medium, MemberView


def encoded(view: MemberView, template: Template, sample: Sample) -> MemberView:
    """A member with its tokens; raises Skip where it has none.

    Args:
        view: of the same media, in the order of the sample's.
    """
    media = list(map(_seen, view.media, seen_by(template, sample.media)))
    rendered = template.render(sample)
    spans = spans_of(template, sample, rendered)
    counts = iter([span.num_tokens for span in spans if span.kind in ("image", "video")])
    in_order = sorted(range(len(media)), key=lambda i: rendered.media[i])
    num_tokens = {i: next(counts, 0) for i in in_order}
    return replace(
        view,
        token_len=sum(span.num_tokens for span in spans),
        num_supervised=sum(span.num_tokens for span in spans if span.is_trained),
        num_visual_tokens=rendered.num_visual_tokens,
        media=[replace(medium, num_tokens=num_tokens[i]) for i, medium in enumerate(media)],
        spans=spans,
    )


def seen_by(template: Template, media: Sequence[Media]) -> list[str | None]:
    """What `media.*` makes of each medium before the processor gets it, and the frames of a video; None: nothing."""
    seen = []
    for medium in media:
        frames = template.choose_frames(medium) if medium.kind == "video" else []
        after = template.prepared(medium, len(frames))
        changes = [f"{after.width}×{after.height}"] * ((after.width, after.height) != (medium.width, medium.height))
        changes += [f"{len(frames):,} frames"] * (medium.kind == "video")
        seen.append(", ".join(changes) or None)
    return seen


def _seen(medium: Medium, seen: str | None) -> Medium:
    return replace(medium, seen=seen)
