"""Rules over the figures of a run. Each remark gives the number, why it matters, and the setting to turn."""

from collections.abc import Callable, Iterator

from energon_pack.plan.report import RunFacts
from energon_pack.report import data_rules, plan_rules
from energon_pack.report.figures import Figures
from energon_pack.report.remark import Grade, Remark

#: the rules by the words in which a page lists them where nothing stands out
RULES: dict[str, Callable[[Figures], Iterator[Remark]]] = {
    "samples": data_rules.empty,
    "lost modalities": data_rules.modalities,
    "media": data_rules.no_media,
    "sources": data_rules.folders,
    "overlong samples": plan_rules.overlong,
    "samples that are cut": plan_rules.cut_off,
    "samples without training": plan_rules.untrained,
    "limits": plan_rules.over_cap,
    "flavour": plan_rules.not_in_flavor,
    "trained tokens": data_rules.trained,
    "weights": data_rules.weights,
    "placeholders, control tokens, tools": data_rules.notes,
    "keys of records": data_rules.unknown_keys,
    "modes of images": data_rules.image_modes,
    "sizes of images": data_rules.images,
    "mixture": plan_rules.mixture,
    "fill": plan_rules.fill,
    "length of packs": plan_rules.length,
    "few large media": plan_rules.media_first,
    "duplicates": data_rules.alike,
    "waiting": plan_rules.steps,
    "demo": data_rules.demo,
}
CHECKED = ("bad data", *RULES, "verified samples")


def remarks(figures: Figures, facts: RunFacts | None = None, max_skipped: float = 1.0) -> list[Remark]:
    """Return what stands out; errors come first.

    Args:
        facts: of a finished run; None: it is not finished.
        max_skipped: share of the samples that bad data may cost.
    """
    found = [remark for rule in RULES.values() for remark in rule(figures)]
    found += [*data_rules.bad_data(figures, max_skipped), *(plan_rules.unverified(facts) if facts else ())]
    grades = list(Grade)
    return sorted(found, key=lambda remark: grades.index(remark.grade))
