"""Write and read the ledger, skipped.jsonl; say whether a run lost too many samples to publish its dataset."""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.dataset.files import LEDGER, PAGE
from energon_pack.errors import SamplesLost, amount
from energon_pack.plan.items import Lengths
from energon_pack.plan.pack_lengths import LengthFigures
from energon_pack.plan.packs import LEFT_OUT, PackPlan
from energon_pack.plan.report import Report, num_lost_to_bad_data
from energon_pack.plan.settings import (
    CAPPED_COLUMNS,
    CUTTING_POLICIES,
    Overlong,
    PackingConfig,
    exceeded_limits,
    padded_len,
)
from energon_pack.samples.media.kinds import IMAGE, KINDS, MEDIA_TYPES
from energon_pack.samples.placeholders import PLACEHOLDERS
from energon_pack.samples.skip import NOTHING_TRAINED_DETAIL, Reason


def ledger_entries(lengths: Lengths, plan: PackPlan, packing: PackingConfig) -> Iterator[dict[str, Any]]:
    """Yield the entries of skipped.jsonl in source order: samples in no pack, and samples that lost some tokens."""
    columns = ["key", *lengths.reason_columns, "detail", "media_type", *CAPPED_COLUMNS]
    refused = {row["sample"]: (row["reason"], row["detail"]) for row in lengths.refused.to_pylist()}
    for start, numbers, table in lengths.tables(columns, with_parts=False):
        end = start + table.num_rows
        left_out = plan.left_out[start:end]
        table = table.set_column(1, "reason", lengths.reason(table))
        is_refused = np.zeros(table.num_rows, np.bool_)
        is_refused[[number - start for number in refused if start <= number < end]] = True
        lost = lengths.num_tokens_cut_off(slice(start, end), left_out)
        is_out = (left_out > 0) | pc.is_valid(table["reason"]).to_numpy() | is_refused | (lost > 0)
        rows = table.filter(pa.array(is_out))
        ids = lengths.sample_ids(numbers[is_out], rows)
        items = start + np.flatnonzero(is_out)
        most = lengths.find_largest_part_counts(items) if lengths.is_cut[items].any() else {}
        for place, (sample_id, row, code) in enumerate(zip(ids, rows.to_pylist(), left_out[is_out], strict=True)):
            item = int(items[place])
            reason, detail = refused.get(item, (row["reason"], row["detail"]))
            if num_lost := int(lost[item - start]):
                reason, detail = Reason.CUT_OFF.value, _cut_off_detail(num_lost, row["token_len"], packing)
            elif reason == Reason.NOTHING_TRAINED:
                detail = detail or NOTHING_TRAINED_DETAIL
            elif reason == Reason.NOT_IN_FLAVOR:
                flavor = lengths.flavor
                misfit = detail if item in refused else flavor.unfit(row["does_not_fit"])
                detail = f"{flavor.holder} has no place for it: {misfit}"
            elif reason is None:
                is_cut = lengths.is_cut[item]
                counts = {name: int(values[place]) for name, values in most.items()} if is_cut else row
                reason, detail = _reason_and_detail_of_left_out(counts, LEFT_OUT[code], packing)
                most_of = "both sides together" if lengths.has_pairs else "of what it becomes, the most"
                detail = f"{most_of}: {detail}" if is_cut else detail
            yield {
                "sample_id": sample_id,
                "reason": reason,
                "detail": detail,
                "media_type": row["media_type"],
                "token_len": row["token_len"] or None,
            }


def write_ledger(path: Path, lengths: Lengths, plan: PackPlan, packing: PackingConfig) -> None:
    """Write skipped.jsonl: each entry of `ledger_entries` as a line of JSON."""
    with open(path, "w", encoding="utf-8") as file:
        for entry in ledger_entries(lengths, plan, packing):
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def read_lost_sample_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a file that `write_ledger` wrote."""
    with open(path, encoding="utf-8") as file:
        yield from map(json.loads, file)


def _cut_off_detail(number: int, token_len: int, packing: PackingConfig) -> str:
    """Return the detail of a sample that lost `number` of its tokens because it was cut."""
    lost = f"{number:,} of its {amount(token_len, 'token')}"
    if packing.overlong == Overlong.truncate_text:
        return f"{lost}: packing.overlong=truncate_text keeps the beginning"
    return f"{lost}: nothing is trained in the parts that hold them"


def _reason_and_detail_of_left_out(
    row: dict[str, Any], reason: Reason | None, packing: PackingConfig
) -> tuple[str, str]:
    assert reason is not None
    if reason is Reason.NOTHING_TRAINED:
        return reason.value, f"{NOTHING_TRAINED_DETAIL}, nor of those it would share a pack with"
    if reason is not Reason.OVERLONG:
        return reason.value, ", ".join(exceeded_limits(row, packing))
    token_len = row["token_len"]
    padded = padded_len(token_len, packing.pad_to_multiple_of)
    rounded = f" (padded to {padded})" if padded > token_len else ""
    name, limit = packing.sample_token_limit
    return reason.value, f"{token_len} tokens{rounded}, packing.{name}={limit}"


def why_too_much_bad_data(figures: Report | LengthFigures, max_skipped: float) -> str | None:
    """Return a sentence if more samples were lost to bad data than `max_skipped`, a fraction, allows; else None."""
    num_lost, num_samples = num_lost_to_bad_data(figures.skipped_by_reason), figures.samples_in
    if num_lost <= max_skipped * num_samples:
        return None
    return f"bad data cost {num_lost:,} of {amount(num_samples, 'sample')}, max_skipped={max_skipped:g} allows fewer"


def why_unpublished(report: Report, max_skipped: float, packing: PackingConfig | None) -> str | None:
    """Return why a dataset with this report may not be published; None if it may.

    Args:
        packing: limits the tokens that overlong samples lose; None: the run does not publish, and any loss is allowed.
    """
    why = _why_samples_unpublishable(report, max_skipped)
    return why or (None if packing is None else why_overlong_lose_too_much(report, packing))


def _why_samples_unpublishable(report: Report, max_skipped: float) -> str | None:
    """Return why a dataset with this report may not be published: no samples, or too many lost; None if it may."""
    if not report.samples_in:
        left_out = report.samples_excluded
        why_none = (
            f"the settings leave out {amount(left_out, 'sample')}, which is every one"
            if left_out
            else "no file of source.path holds one"
        )
        return f"the source has no samples: {why_none}"
    if why := why_too_much_bad_data(report, max_skipped):
        return why
    if report.lost_modalities:
        return f"every {' and every '.join(report.lost_modalities)} sample was skipped"
    by_medium = {name: medium.samples_in for name, medium in report.by_media.items()}
    if why := why_placeholders_lack_media(report.placeholders_as_text or {}, by_medium, report.samples_in, max_skipped):
        return why
    if why := _why_every_picture_is_removed(report.removed, by_medium):
        return why
    return None if report.samples_packed else "no sample is left to pack"


def why_placeholders_lack_media(
    as_text: Mapping[str, Mapping[str, Any]], by_medium: Mapping[str, int], num_samples: int, max_skipped: float
) -> str | None:
    """Return a sentence if all placeholders of a kind stand for nothing, in more samples than `max_skipped`; else None.

    Args:
        as_text: kind → the `samples` with such a placeholder, and one as `example`.
        by_medium: media type → samples; those of type `mix` may have media of any kind.
    """
    for kind, noted in as_text.items():
        if noted["samples"] > max_skipped * num_samples and not (by_medium.get(kind) or by_medium.get("mix")):
            return (
                f"every {PLACEHOLDERS[kind]} in a question stands for nothing, in {noted['samples']:,} of"
                f" {amount(num_samples, 'sample')}, as {noted['example']}: no sample has {KINDS[kind].noun} (source.map"
                f" or source.columns can name the field of the media, source.media=ignore packs the letters)"
            )
    return None


def _why_every_picture_is_removed(removed: Mapping[str, int] | None, by_medium: Mapping[str, int]) -> str | None:
    """Return a sentence if pictures lost their places, and no sample has one; else None.

    `removed`: as in `Report`. `by_medium`: as in `why_placeholders_lack_media`.
    """
    if not removed or by_medium.get(IMAGE.kind) or by_medium.get("mix"):
        return None
    lost = f"{amount(removed['pictures'], 'picture')} of {amount(removed['documents'], 'document')}"
    return (
        f"every picture is missing: {lost}, and no sample has one (source.media_root or source.media_map says where"
        " they are; without source.missing_media=remove these documents are left out)"
    )


def why_measured_samples_lack_media(lengths: Lengths, max_skipped: float) -> str | None:
    """Return the same as `why_placeholders_lack_media`, or `_why_every_picture_is_removed`, of measured samples."""
    media = lengths.items.media[: lengths.num_samples]
    by_medium = {name: int((media == code).sum()) for code, name in enumerate(MEDIA_TYPES)}
    as_text = lengths.noted.most_frequent_names("placeholders_as_text")
    why = why_placeholders_lack_media(as_text, by_medium, lengths.num_samples, max_skipped)
    return why or _why_every_picture_is_removed(lengths.noted.num_removed_pictures, by_medium)


def why_overlong_lose_too_much(report: Report, packing: PackingConfig) -> str | None:
    """Return a sentence if overlong samples lose a larger share of tokens than `packing.max_dropped_tokens`; else None.

    With `packing.overlong=drop` it is always None, because the user asked for the loss.
    """
    is_cut_off, most = packing.overlong == Overlong.truncate_text, packing.max_dropped_tokens
    share = report.dropped_share(Reason.OVERLONG.value) + is_cut_off * report.dropped_share(Reason.CUT_OFF.value)
    if packing.overlong not in (Overlong.auto, *CUTTING_POLICIES) or share <= most:
        return None
    number = report.skipped_by_reason.get(Reason.OVERLONG.value, 0) + is_cut_off * report.samples_cut_off
    one, several, knob = "has", "have", "packing.overlong=drop leaves them out"
    if packing.overlong in CUTTING_POLICIES:
        one, several, knob = "loses", "lose", "packing.max_dropped_tokens=1 allows any"
    return (
        f"{amount(number, 'overlong sample')} {one if number == 1 else several} {share:.0%} of all tokens,"
        f" packing.max_dropped_tokens={most:g} allows less ({knob};"
        f" a larger packing.max_token_len, fewer pixels and frames, or {overlong_advice(packing.overlong)}"
        " keep more)"
    )


def overlong_advice(overlong: Overlong) -> str:
    """Return advice: values of `packing.overlong`, other than this one, that keep more tokens, and where each helps."""
    of_samples = {
        Overlong.split_turns: "where samples have several questions",
        Overlong.split_text: "where they are text without a chat",
    }
    return " or ".join(f"packing.overlong={one.value} {where}" for one, where in of_samples.items() if one != overlong)


def refuse_unpublishable_plan(why: str | None, page: Path, figures: Report | LengthFigures | None = None) -> None:
    """Raise SamplesLost, in a run that only plans, if `why` is not None: the reason why nothing would be published."""
    if why is not None:
        raise SamplesLost(f"{why}: stage=all would publish nothing", str(page), figures.to_json() if figures else None)


def refuse_to_publish(why: str, skipped: Path, final: Path, report: Report) -> NoReturn:
    """Move the ledger (`skipped`) beside the dataset's place (`final`), and raise SamplesLost with the reason `why`."""
    kept, page = ledger_path_of_unpublished(final), page_path_of_unpublished(final, PAGE)
    shutil.move(skipped, kept)
    text = f"{why}: nothing is published; {kept} names each with its reason, {page} shows what there is"
    raise SamplesLost(text, str(page), report.to_json())


def ledger_path_of_unpublished(dataset_folder: Path) -> Path:
    """Return where a run that publishes nothing leaves its ledger: `<final>.skipped.jsonl`."""
    return dataset_folder.with_name(f"{dataset_folder.name}.{LEDGER}")


def page_path_of_unpublished(dataset_folder: Path, page_name: str) -> Path:
    """Return where a run that publishes nothing leaves its page: beside the dataset's place, as `<final>.<name>`."""
    return dataset_folder.with_name(f"{dataset_folder.name}.{page_name}")
