"""The part of a full processor that takes one kind of media."""

from typing import Any

from energon_pack.samples.media.kinds import KINDS


def parts_by_kind(processor: Any) -> dict[str, Any]:
    """Return by kind of media the parts that a processor has."""
    return {kind: part for kind in KINDS if (part := processor_part(processor, kind)) is not None}


def processor_part(processor: Any, kind: str) -> Any:
    """Return the part of a processor for a kind of media, such as the image processor; None: it has no such part."""
    medium = KINDS[kind]
    held = (getattr(processor, name, None) for name in medium.parts)
    return next((part for part in held if part is not None and medium.is_part(part)), None)
