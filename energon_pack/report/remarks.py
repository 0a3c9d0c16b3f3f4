"""Rules over the figures of a run. Each remark gives the number, why it matters, and the setting to turn."""

import math
from collections.abc import Callable, Iterator

from energon_pack.errors import amount
from energon_pack.plan.epoch_draws import MANY_EPOCHS
from energon_pack.plan.report import RunFacts
from energon_pack.report import data_rules
from energon_pack.report.advice import MOST_DROPPED, recommend_length
from energon_pack.report.figures import Figures
from energon_pack.report.pages.bars import short_number
from energon_pack.report.pages.html import Grade, Remark, percent, share_of_samples
from energon_pack.samples.media.kinds import IMAGE, VIDEO
from energon_pack.samples.skip import Reason

_MANY_DROPPED = 0.25  # share of the tokens
_LITTLE_FILL = 0.9
_ABOVE_BOUND = 1.02  # times the fewest packs
_LONG_WAIT = 1.05  # time of an epoch; without waiting it is 1
_TIMES_TOO_LONG = 8  # times the longest sample: packs beyond it are called too long


#: what makes media shorter, where no figures are known
_WAYS_TO_SHRINK = {
    IMAGE.kind: ["smaller images (media=resize_max_pixels media.max_pixels=N)"],
    VIDEO.kind: ["fewer frames (media=fps media.fps=1)", "smaller frames (media.video_max_pixels)"],
}
#: what is said of samples that are left out by choice: what, why it matters, the setting
_LEFT_OUT_WORDS = {
    Reason.NOTHING_TRAINED: (
        "are in no pack, for none of their tokens is trained",
        "they would cost time and teach nothing",
        "labels.train_on, the roles and weights of the turns; labels.untrained=keep packs them with others",
    ),
    Reason.OVER_CAP: (
        "break a limit of packing.max_…",
        "alone they are more than a pack may hold",
        "the limits of packing",
    ),
    Reason.NOT_IN_FLAVOR: (
        "have no place in packs of this flavour",
        "its JSON can't hold them",
        "output.flavor=packed_multi_mix_qa",
    ),
    Reason.EMPTY_ANSWER: (
        "are in no pack, for their answers are empty",
        "a model that is trained on them learns to end its answer before a word",
        "the field of the answers in the source; labels.empty=train trains them",
    ),
}
#: reasons that say of most samples that the source was read wrongly
_WRONG_OF_MOST = (Reason.EMPTY_ANSWER,)


def few_large_media(figures: Figures) -> Iterator[Remark]:
    """Yield a remark if a few large media make packs long, whether anything is dropped or not."""
    if first := figures.shrink_advice:
        why = "a longer pack costs memory and attention in every step, for these alone"
        yield Remark(Grade.look, str(first), why, first.knob, sample="most_visual")


def overlong_samples(figures: Figures) -> Iterator[Remark]:
    """Yield a remark on samples that are longer than a pack; if the user chose to drop them, it is not an error."""
    loss, tokens, (num, dropped) = figures.overlong_facts, figures.source.tokens, figures.overlong_samples_and_tokens
    if not (loss and num and dropped > MOST_DROPPED * tokens):
        return
    best = recommend_length(figures.length_trials.choices)
    knobs = [figures.shrink_advice.knob] if figures.shrink_advice else [*_WAYS_TO_SHRINK.get(loss.medium, [])]
    if best and best.choice.max_token_len > figures.max_token_len:
        still = best.choice.dropped_tokens_share
        still_dropped = f" ({percent(still, 1)} of the tokens are still dropped)" if still else ""
        knobs.append(f"packing.max_token_len={best.choice.max_token_len}{still_dropped}")
    if not (figures.report and figures.report.expanded):
        knobs.append(loss.keeps_more)
    most = dropped > _MANY_DROPPED * tokens or num > figures.source.samples / 2 or loss.is_too_much
    yield Remark(
        Grade.wrong if most and not loss.is_intended else Grade.look,
        f"{short_number(dropped)} tokens ({percent(dropped, tokens)}) are dropped: {amount(num, 'sample')}"
        f" {'is' if num == 1 else 'are'} longer than {figures.max_token_len:,}",
        f"training never sees what is longer than a pack; by tokens it is mostly of {loss.medium} samples",
        ", or ".join(knobs) or "packing.max_token_len",
        sample=Reason.OVERLONG.value,
    )


def cut_off_tokens(figures: Figures) -> Iterator[Remark]:
    """Yield a remark on the tokens of cut samples that are in none of their parts."""
    report, loss = figures.report, figures.overlong_facts
    if report and loss and report.samples_cut_off:
        tokens = report.tokens_left_out_by_reason[Reason.CUT_OFF.value]
        yield Remark(
            Grade.wrong if loss.is_too_much else Grade.look,
            f"{short_number(tokens)} tokens ({percent(tokens, report.tokens + report.tokens_left_out)}) are cut off:"
            f" {amount(report.samples_cut_off, 'sample')} {'is' if report.samples_cut_off == 1 else 'are'} packed"
            " without them",
            "training never sees them; the ledger says of each sample how many, and why",
            f"packing.max_token_len, or {loss.keeps_more}",
        )


def left_out_by_settings(figures: Figures) -> Iterator[Remark]:
    """Yield a remark for each reason by which settings other than the pack length leave samples out."""
    for reason, (fact, why, knob) in _LEFT_OUT_WORDS.items():
        if num := figures.skipped_by_reason.get(reason.value):
            sentence = f"{share_of_samples(num, figures.source.samples)} {fact}"
            most = reason in _WRONG_OF_MOST and num > figures.source.samples / 2
            yield Remark(Grade.wrong if most else Grade.look, sentence, why, knob, sample=reason.value)


def often_repeated_entries(figures: Figures) -> Iterator[Remark]:
    """Yield a remark for each entry of a mixture whose samples come more than `MANY_EPOCHS` times."""
    for entry in (figures.report.mixture if figures.report else None) or ():
        if entry["epochs"] > MANY_EPOCHS:
            yield Remark(
                Grade.look,
                f"each sample of {entry['name']} comes {entry['epochs']:.1f} times",
                "what comes often is learned by heart: its loss falls in training, and not in validation",
                f"a smaller weight of {entry['name']}, or more data of its kind",
            )


def badly_filled_packs(figures: Figures) -> Iterator[Remark]:
    """Yield remarks if there are more packs than needed, or the packs of a medium are not full."""
    report = figures.report
    if not report or not report.packs:
        return
    if report.packs > _ABOVE_BOUND * report.packs_lower_bound + 1:
        fact = f"{amount(report.packs, 'pack')} where {report.packs_lower_bound:,} could do"
        knob = "packing.algorithm=optimal, packing.group_by=none, no packing.window"
        yield Remark(Grade.look, fact, "each pack is a step's work, whatever it holds", knob)
    knob = (
        "packing.group_by=none lets shorter samples fill them" if len(report.by_media) > 1 else "packing.max_token_len"
    )
    for name, medium in report.by_media.items():
        could_do = math.ceil(medium.fill * medium.packs)  # full packs, and a last one
        if medium.fill < _LITTLE_FILL and medium.packs > _ABOVE_BOUND * could_do:
            lens = figures.source.by_medium.get(name)
            why = "no sample is left that fits into what is free in them"
            if lens and lens.token_len and lens.token_len["p50"] > figures.max_token_len / 2:
                why = "most of its samples are longer than half a pack"
            yield Remark(Grade.look, f"packs of {name} are {medium.fill:.0%} full", why, knob)


def packs_too_long(figures: Figures) -> Iterator[Remark]:
    """Yield a remark if packs are much longer than the longest sample."""
    most = figures.source.lens.get("max", 0)
    if most and most * _TIMES_TOO_LONG < figures.max_token_len:
        fact = f"the longest sample has {most:,} tokens, a pack {figures.max_token_len:,}"
        why = "a shorter pack would lose nothing, take less memory, and come more often"
        yield Remark(Grade.note, fact, why, "packing.max_token_len")


def uneven_steps(figures: Figures) -> Iterator[Remark]:
    """Yield a remark if training ranks wait long for each other, because steps are uneven."""
    steps = figures.report.steps if figures.report else None
    if steps and steps["in_order"]["steps"] and steps["in_order"]["both"]["epoch"] > _LONG_WAIT:
        fact = f"an epoch takes {steps['in_order']['both']['epoch']:.3f} times what it would without waiting"
        why = "ranks wait for the slowest of each step, and packs are too uneven to be laid out better"
        yield Remark(Grade.look, fact, why, "packing.max_attention_cost, packing.group_by=none")


def unverified_lengths(facts: RunFacts) -> Iterator[Remark]:
    """Yield a remark if the lengths of some samples could not be compared with the model's full processor."""
    if num := facts.samples_not_verified:
        why = "their media can't be read by the full processor here, so lengths were not compared with it"
        fact = f"{amount(num, 'sample')} of the draw {'is' if num == 1 else 'are'} not verified"
        yield Remark(Grade.note, fact, why, "pip install torchvision")


#: the rules by the words in which a page lists them where nothing stands out
RULES: dict[str, Callable[[Figures], Iterator[Remark]]] = {
    "samples": data_rules.nothing_to_pack,
    "lost modalities": data_rules.lost_modalities,
    "media": data_rules.no_media,
    "sources": data_rules.lossy_folders,
    "overlong samples": overlong_samples,
    "samples that are cut": cut_off_tokens,
    "samples without training, limits, flavour": left_out_by_settings,
    "trained tokens": data_rules.trained_share,
    "weights": data_rules.weighted_samples,
    "placeholders, control tokens, tools": data_rules.noted_samples,
    "keys of records": data_rules.unknown_keys,
    "modes of images": data_rules.images_losing_bits,
    "sizes of images": data_rules.image_sizes,
    "mixture": often_repeated_entries,
    "fill": badly_filled_packs,
    "length of packs": packs_too_long,
    "few large media": few_large_media,
    "duplicates": data_rules.duplicates,
    "waiting": uneven_steps,
    "demo": data_rules.built_in_demo,
}
CHECKED_RULES = ("bad data", *RULES, "verified samples")


def collect_remarks(figures: Figures, facts: RunFacts | None = None, max_skipped_share: float = 1.0) -> list[Remark]:
    """Return all remarks on a run; errors come first.

    Args:
        facts: of a finished run; None: it is not finished.
        max_skipped_share: the share of samples (0 to 1) that may be lost to bad data.
    """
    all_remarks = [remark for rule in RULES.values() for remark in rule(figures)]
    all_remarks += [*data_rules.bad_data(figures, max_skipped_share), *(unverified_lengths(facts) if facts else ())]
    grades = list(Grade)
    return sorted(all_remarks, key=lambda remark: grades.index(remark.grade))
