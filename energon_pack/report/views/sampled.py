"""Build the view of a sample: of a source, or of a plan whose packs are not written."""

from dataclasses import replace

from energon_pack.report.views.spans import encoded, vocabulary_of
from energon_pack.report.views.thumbnails import thumbnail
from energon_pack.report.views.view import Medium, MemberView, turns_of
from energon_pack.samples.media.kinds import KINDS
from energon_pack.samples.sample import MediaPart, media_type
from energon_pack.samples.skip import Skip
from energon_pack.sources.reader import Reader
from energon_pack.sources.sample import ReadSample
from energon_pack.sources.shard import Shard
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template


def sample_view(
    sample: ReadSample,
    sample_id: str,
    reader: Reader,
    shard: Shard,
    template: Template | None = None,
    max_thumbnails: int = 0,
) -> MemberView:
    """Build the view of a sample with its tokens; where the template has none, say why it would be in no pack.

    Args:
        sample: as `read_sample` or `read_again` returned it.
        shard: that the sample is in.
        max_thumbnails: how many media get a picture.
    """
    view = MemberView(
        sample_id,
        media_type(sample.kinds),
        None,
        None,
        None,
        turns_of(sample.messages),
        [
            Medium(part.kind, part.name, KINDS[medium.kind].size(medium), medium.num_frames, part.size)
            for part, medium in zip(sample.parts, sample.media, strict=True)
        ],
        weight=sample.options.weight,
    )
    with_pictures = [
        _pictured(medium, reader, shard, part) if number < max_thumbnails and KINDS[medium.kind].has_picture else medium
        for number, (medium, part) in enumerate(zip(view.media, sample.parts, strict=True))
    ]
    view = replace(view, media=with_pictures)
    if template is None:
        return view
    try:
        (tokens,) = template.member_tokens([Sample(sample.timed, sample.media, sample.tools, sample.options)])
        return encoded(view, tokens, vocabulary_of(template))
    except Skip as skip:
        return replace(view, refused=str(skip))


def _pictured(medium: Medium, reader: Reader, shard: Shard, part: MediaPart) -> Medium:
    try:
        return replace(medium, data=thumbnail(reader.read(shard, part), medium.kind))
    except ValueError as error:
        return replace(medium, problem=str(error))
