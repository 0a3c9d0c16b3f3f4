"""Build the page of a pack: its content, and the batch that training gets."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from energon_pack.dataset.pack_json import LocatedPack
from energon_pack.errors import PackError, one_line
from energon_pack.inspect.dataset import OpenDataset, description_lines
from energon_pack.report.pages.html import Html, clip_text, page, section, table, tag
from energon_pack.report.views.screens import pack_section
from energon_pack.report.views.view import PackView
from energon_pack.samples.flavors import load_pack_members

_MAX_CHARS, _MAX_MEMBERS, _MAX_VALUES = 60_000, 64, 24
#: a processor that is missing or takes no such media; a manifest or a pack that is damaged
_BATCH_ERRORS = (PackError, ValueError, ImportError, OSError, NotImplementedError, KeyError, TypeError, AttributeError)
_BATCH_NOTE = "The batch of this pack alone, made by the encoder that training uses, in either layout."


def pack_page(
    opened: OpenDataset, located: LocatedPack, view: PackView, processor: str | None, how: Mapping[str, Any]
) -> str:
    """Return the HTML page of a pack. `processor`: folder or hub id; None: the dataset's; `how`: for `pack_encoder`."""
    # members that share their beginnings lie in a row of `neat` alone
    layouts = ["neat", *["thd"] * (not any(located.pack.shared_lens))]
    return page(
        f"Pack {view.place.number:,} of {opened.folder.name}",
        tag("h1", f"Pack {view.place.number:,} of {opened.folder.name}"),
        *(tag("p", line, class_="faint") for line in description_lines(opened)),
        *(tag("p", note, class_="bad") for note in opened.notes),
        pack_section(view, _MAX_CHARS, _MAX_MEMBERS),
        *(
            section(
                f"What training gets: {layout}", _batch_table(opened, located, layout, processor, how), says=_BATCH_NOTE
            )
            for layout in layouts
        ),
    )


def _batch_table(
    opened: OpenDataset, located: LocatedPack, layout: str, processor: str | None, how: Mapping[str, Any]
) -> Html:
    """Return a table of one pack's batch: shape, type and first values of each key; or the error that prevents it."""
    from energon_pack.dataset.encoder import pack_encoder  # imports torch, which only a page needs
    from energon_pack.templates.full_processor import quiet_transformers

    name, file = located.pack.files.key, located.file
    parts = {part.name: file.read(part.offset, part.size) for part in located.pack.files.parts if part.size >= 0}
    try:
        with quiet_transformers():
            encoder = pack_encoder(opened.folder.path, processor, **how, layout=layout, rope_rows=True)
            members = load_pack_members({"__key__": name, **parts}, located.pack.flavor, opened.packs.read_media)
            pack = encoder.encode(name, members)
            assert pack is not None, "on_bad_member=raise"
            rows = [*_batch_rows(encoder.batch([pack]))]
    except _BATCH_ERRORS as error:
        return tag("p", f"No batch: {one_line(error, 400)}", class_="bad")
    return table(("key", "shape", "type", "first values"), rows, num_words=4, class_="keys")


def _batch_rows(batch: Mapping[str, Any]) -> Iterator[tuple[Html, str, str, Html]]:
    from torch import Tensor

    inner = {name: vars(value) for name, value in batch.items() if isinstance(value, SimpleNamespace)}
    flat = {f"{name}.{key}": item for name, items in inner.items() for key, item in items.items() if item is not None}
    for name, value in ({key: batch[key] for key in batch if key not in inner} | flat).items():
        shape, kind, shown = "", type(value).__name__, str(value)
        if isinstance(value, Tensor):
            shape, kind = " × ".join(map(str, value.shape)) or "scalar", str(value.dtype).removeprefix("torch.")
            first = value.flatten()[:_MAX_VALUES].tolist()
            shown = ", ".join(f"{item:.3g}" if isinstance(item, float) else str(item) for item in first)
            shown += ", …" * (value.numel() > _MAX_VALUES)
        yield tag("code", name), shape, kind, tag("code", clip_text(shown, 160))
