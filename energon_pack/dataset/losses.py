"""Whether too many samples were lost for a dataset, and what is left beside where it would have been."""

import shutil
from pathlib import Path
from typing import NoReturn

from energon_pack.dataset.files import LEDGER, PAGE
from energon_pack.errors import SamplesLost, amount
from energon_pack.plan.compare_lens import Choices
from energon_pack.plan.report import Report, num_lost_to_bad_data
from energon_pack.plan.settings import Overlong, PackingConfig
from energon_pack.samples.skip import Reason


def bad_data(figures: Report | Choices, max_skipped: float) -> str | None:
    """Says that bad data cost too much; None: it did not."""
    num_lost, num_samples = num_lost_to_bad_data(figures.skipped_by_reason), figures.samples_in
    if num_lost <= max_skipped * num_samples:
        return None
    return f"bad data cost {num_lost:,} of {amount(num_samples, 'sample')}, max_skipped={max_skipped:g} allows fewer"


def losses(report: Report, max_skipped: float) -> str | None:
    """Why a dataset of these figures is not published; None: it is."""
    if not report.samples_in:
        left_out = report.samples_excluded
        others = (
            f"the settings leave out {amount(left_out, 'sample')}, which is every one"
            if left_out
            else "no file of source.path holds one"
        )
        return f"the source has no samples: {others}"
    if why := bad_data(report, max_skipped):
        return why
    if report.lost_modalities:
        return f"every {' and every '.join(report.lost_modalities)} sample was skipped"
    return None if report.samples_packed else "no sample is left to pack"


def dropped(report: Report, packing: PackingConfig) -> str | None:
    """Says that `packing.overlong=drop` has to be asked for by name; None: it is, or little is dropped."""
    share = report.dropped_share(Reason.OVERLONG.value)
    if packing.overlong is not Overlong.auto or share <= packing.max_dropped_tokens:
        return None
    number, most = report.skipped_by_reason[Reason.OVERLONG.value], packing.max_dropped_tokens
    return (
        f"{amount(number, 'overlong sample')} {'has' if number == 1 else 'have'} {share:.0%} of all tokens,"
        f" packing.max_dropped_tokens={most:g} allows less (packing.overlong=drop leaves them out;"
        " a larger packing.max_token_len, fewer pixels and frames, or packing.overlong=split_turns where samples have"
        " several questions keep more)"
    )


def foresee(why: str | None, page: Path) -> None:
    """End a run that writes no dataset as one that does would end.

    Args:
        page: that shows what there is.

    Raises:
        SamplesLost: there is a reason, of `losses` or `bad_data`.
    """
    if why is not None:
        raise SamplesLost(f"{why}: stage=all would publish nothing", str(page))


def refuse_losses(why: str, skipped: Path, final: Path) -> NoReturn:
    """Publish nothing where too much was lost; the ledger is kept beside where the dataset would have been.

    Args:
        why: of `losses`.

    Raises:
        SamplesLost: always; the line names both files.
    """
    kept, page = kept_ledger(final), page_beside(final, PAGE)
    shutil.move(skipped, kept)
    text = f"{why}: nothing is published; {kept} names each with its reason, {page} shows what there is"
    raise SamplesLost(text, str(page))


def kept_ledger(final: Path) -> Path:
    """Where the ledger of a run is that published nothing."""
    return final.with_name(f"{final.name}.{LEDGER}")


def page_beside(final: Path, name: str) -> Path:
    """Where the page of a run is that publishes no dataset: of a stage, or of one that lost too much."""
    return final.with_name(f"{final.name}.{name}")
