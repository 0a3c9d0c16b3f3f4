"""Build the page of a pack: its content, and the batch that training gets."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from energon_pack.dataset.lookup import LocatedPack
from energon_pack.errors import PackError, one_line
from energon_pack.inspect.dataset import Opened, about
from energon_pack.report.pages.html import Html, page, section, tag
from energon_pack.report.views.screens import members_rows, pack_section
from energon_pack.report.views.view import PackView
from energon_pack.samples.flavors import inputs_of_pack
from energon_pack.samples.member import MemberInput

if TYPE_CHECKING:  # imports torch, which only a page with batches needs
    from energon_pack.training.batch import PackedBatch

_LAYOUTS = ("neat", "thd")
_MAX_CHARS, _MAX_MEMBERS, _MOST_ROWS = 60_000, 64, 400
_TITLE = "What training gets"
_SAYS = "The batch of this pack alone, made by the encoder that training uses, in either layout."


def pack_page(
    opened: Opened, located: LocatedPack, view: PackView, processor: str | None, how: Mapping[str, Any]
) -> str:
    """Build the page of a pack."""
    return page(
        f"Pack {view.number:,} of {opened.folder.name}",
        tag("h1", f"Pack {view.number:,} of {opened.folder.name}"),
        *(tag("p", line, class_="faint") for line in about(opened)),
        *(tag("p", note, class_="bad") for note in opened.notes),
        pack_section(view, _MAX_CHARS, _MAX_MEMBERS),
        section("Members", members_rows(view.members[:_MOST_ROWS]).to_html()),
        *training_sections(opened, located, processor, how),
    )


def training_sections(
    opened: Opened, located: LocatedPack, processor: str | None, how: Mapping[str, Any]
) -> Iterator[Html]:
    """Yield a section for each layout; where no batch can be made, it says why."""
    from energon_pack.inspect.batches import batch_section

    for layout in _layouts_of(located):
        title = f"{_TITLE}: {layout}"
        try:
            yield section(title, batch_section(batch_of(opened, located, layout, processor, how)), says=_SAYS)
        except (PackError, ValueError, ImportError, OSError, NotImplementedError) as error:
            yield section(title, tag("p", f"No batch: {' '.join(str(error).split())[:400]}", class_="bad"))
        except (KeyError, TypeError, AttributeError) as error:  # the manifest or the pack is damaged
            yield section(title, tag("p", f"No batch: {one_line(error)}", class_="bad"))


def _layouts_of(located: LocatedPack) -> Sequence[str]:
    """Return the layouts that a pack has: members that share their beginnings lie in a row of `neat` alone."""
    return _LAYOUTS[:1] if any(located.pack.shared_lens) else _LAYOUTS


def batch_of(
    opened: Opened, located: LocatedPack, layout: str, processor: str | None, how: Mapping[str, Any]
) -> "PackedBatch":
    """Make the batch of one pack; raises as `dataset_encoder.pack_encoder` and `PackEncoder`."""
    from energon_pack.dataset_encoder import pack_encoder
    from energon_pack.templates.full import errors_only

    with errors_only():
        encoder = pack_encoder(opened.folder.path, processor, **how, layout=layout, rope_rows=True)
        pack = encoder.encode(located.pack.files.key, inputs_of(opened, located))
        assert pack is not None, "on_bad_member=raise"
        return encoder.batch([pack])


def inputs_of(opened: Opened, located: LocatedPack) -> Iterator[MemberInput]:
    """Yield the members of a pack as training gets them."""
    parts: dict[str, Any] = {
        part.name: located.file.read(part.offset, part.size) for part in located.pack.files.parts if part.size >= 0
    }
    return inputs_of_pack({"__key__": located.pack.files.key, **parts}, located.pack.flavor, opened.packs.media.read)
