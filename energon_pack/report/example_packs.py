"""Show a few packs of a written dataset, each for a reason."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from energon_pack.dataset.files import PlanFile
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.pack_lookup import PackLookup
from energon_pack.errors import PackError
from energon_pack.plan.items import Items
from energon_pack.plan.packs import PackPlan, features_of_packs, media_of_packs
from energon_pack.report.pages.html import Html, details, tag
from energon_pack.report.views.packed import pack_view
from energon_pack.report.views.screens import pack_section
from energon_pack.report.views.spans import vocabulary_of
from energon_pack.report.views.view import PackPlace
from energon_pack.samples.flavors import packed_flavor_or_default
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.templates.processor import load_saved_template

_MAX_PACKS, _MAX_MEMBERS, _MAX_CHARS, _MAX_THUMBNAILS = 6, 8, 4_000, 4


@dataclass(frozen=True)
class ExamplePacksJob:
    """A worker's job: which packs of a written dataset to show on a page, and what is needed to read them."""

    folder: Path
    flavor: str
    packs: dict[int, str]  # its number in the order of the plan → why it is shown
    template_folder: str
    max_token_len: int
    shards_address: str | None = None  # the address of its shards, where they are not in the folder


def packs_to_look_at(items: Items, plan: PackPlan) -> dict[int, str]:
    """Choose packs that a page shows, with a reason for each: the first of each medium, the fullest, the emptiest, the
    one with most members. Returns number of the pack → reason.
    """
    if not plan.num_packs:
        return {}
    kind, tokens = media_of_packs(items, plan), plan.per_pack(items.lens)
    members = features_of_packs(items, plan)["members"]
    found = {int(np.argmax(kind == code)): f"the first {MEDIA_TYPES[code]} pack" for code in np.unique(kind).tolist()}
    if plan.num_packs == 1:
        return {0: "the only one"}
    edges = {"the fullest": tokens.argmax(), "the emptiest": tokens.argmin(), "the most members": members.argmax()}
    for why, number in edges.items():
        found[int(number)] = f"{found[int(number)]}, {why}" if int(number) in found else why
    return dict(list(found.items())[:_MAX_PACKS])


def draw_packs(job: ExamplePacksJob) -> dict[int, Html]:
    """Draw each pack of a job as a section of a page; return number of the pack → section. May run in a worker.

    The first packs are shown with their members, the others as a bar.
    """
    return dict(_sections(job))


def _sections(job: ExamplePacksJob) -> Iterator[tuple[int, Html]]:
    folder = DatasetFolder(job.folder)
    vocabulary, plan = vocabulary_of(load_saved_template(job.template_folder)), PlanFile(folder)
    first = next(iter(job.packs), None)
    shards = None if job.shards_address is None else DatasetFolder(job.shards_address)
    with PackLookup(folder, packed_flavor_or_default(job.flavor), shards) as packs:
        chosen = {number: packs[number] for number in job.packs}
        rows = plan.rows_of_packs({found.pack.files.key for found in chosen.values()})
        for order, (number, found) in enumerate(chosen.items()):
            place = PackPlace(number, len(packs), found.shard, job.max_token_len)
            members, most = rows.get(found.pack.files.key), _MAX_MEMBERS if order < _MAX_PACKS else 0
            try:
                view = pack_view(
                    found.file, found.pack, place, members, vocabulary, _MAX_THUMBNAILS, found.defects, most
                )
                shown = pack_section(view, _MAX_CHARS, most)
            except PackError as error:  # a page ends no run
                shown = tag("p", str(error), class_="bad")
            yield number, details(f"Pack {number:,}: {job.packs[number]}", shown, is_open=number == first)
