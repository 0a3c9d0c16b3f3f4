"""Finds the media among a sample's parts: those that its JSON lists, or all that look like media."""

from collections.abc import Sequence

from energon_pack.samples.dialects.pictures import DOWNLOAD_ADVICE
from energon_pack.samples.media.kinds import kind_by_extension
from energon_pack.samples.placeholders import num_text_placeholders
from energon_pack.samples.record import Record
from energon_pack.samples.sample import Part
from energon_pack.samples.skip import Reason, Skip


def media_parts(record: Record, key: str, parts: Sequence[Part]) -> list[Part]:
    """Return a sample's media: the parts that its record lists, in that order; without a list all, in the tar's order.

    A listed name is a part (`0.jpg`), a whole member name (`00012.0.jpg`), or the extension of the only part that
    has it (`jpg`).
    """
    chosen = listed_parts(record.listed_media, key, parts) if record.listed_media is not None else None
    if chosen is None:
        chosen = [part for part in parts if kind_by_extension(part.name)]
        if not chosen and record.declared not in (None, "text"):
            raise Skip(Reason.MISSING_MEDIA, f"declared as {record.declared}, but there are no media")
        if not chosen and parts and num_text_placeholders(record.messages):
            names = ", ".join(part.name for part in parts)
            raise Skip(Reason.MISSING_MEDIA, f"placeholders, but no medium by its name: {names} (`name` lists media)")
    return _refuse_tar_links(chosen)


def listed_parts(listed_media: Sequence[str], key: str, parts: Sequence[Part]) -> list[Part]:
    """Return the part for each listed name: a part, a whole member name, or an extension; raises Skip if none fits."""
    by_name = {part.name: part for part in parts}
    chosen = []
    for listed in listed_media:
        part = by_name.get(listed)
        if part is None:
            whole = listed.removeprefix("./")
            prefix = next((p for p in (f"{key}.", f"{key.rpartition('/')[2]}.") if whole.startswith(p)), None)
            part = by_name.get(whole[len(prefix) :]) if prefix else None
        if part is None:
            same = [p for p in parts if p.name.rpartition(".")[2] == listed]
            part = same[0] if len(same) == 1 else None
        if part is None:
            if "://" in listed:
                raise Skip(Reason.UNSUPPORTED_MEDIA, f"{listed[:80]!r} is listed: {DOWNLOAD_ADVICE}")
            raise Skip(Reason.MISSING_MEDIA, f"{listed!r} is listed, the parts are {sorted(by_name)[:8]}")
        chosen.append(part)
    return _refuse_tar_links(chosen)


def _refuse_tar_links(parts: list[Part]) -> list[Part]:
    if link := next((part for part in parts if part.size < 0), None):
        raise Skip(Reason.MISSING_MEDIA, f"{link.name} is a link or the like, without bytes in the tar")
    return parts
