"""Write and read skipped.jsonl, the ledger: a line for each sample that is in no pack, or that lost some tokens."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.errors import amount
from energon_pack.plan import caps
from energon_pack.plan.items import Lengths
from energon_pack.plan.packs import LEFT_OUT, PackPlan
from energon_pack.plan.settings import Overlong, PackingConfig
from energon_pack.samples.skip import NOTHING_TRAINED_DETAIL, Reason


def ledger_entries(lengths: Lengths, plan: PackPlan, packing: PackingConfig) -> Iterator[dict[str, Any]]:
    """Yield the entries of skipped.jsonl in source order: samples in no pack, and samples that lost some tokens."""
    columns = ["key", *lengths.reason_columns, "detail", "media_type", *caps.COLUMNS]
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
        most = lengths.largest_counts(items) if lengths.is_cut[items].any() else {}
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


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
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
        return reason.value, ", ".join(caps.exceeded_limits(row, packing))
    token_len = row["token_len"]
    padded = caps.padded_len(token_len, packing.pad_to_multiple_of)
    rounded = f" (padded to {padded})" if padded > token_len else ""
    name, limit = packing.sample_token_limit
    return reason.value, f"{token_len} tokens{rounded}, packing.{name}={limit}"
