"""What to look at in a run: rules over its figures, each with the number, why it matters, and the setting to turn."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from energon_pack.pages.svg import short
from energon_pack.plan.report import RunFacts, num_lost_to_bad_data
from energon_pack.report.figures import Figures
from energon_pack.report.lens import MOST_DROPPED, recommended
from energon_pack.samples.skip import Reason

_FEW_TRAINED, _MANY_TRAINED = 0.02, 0.95  # shares of all tokens
_UNTRAINED = 0.001  # share of the samples
_AT_BOUND = 0.8  # share of the samples whose images are as small, or as large, as any
_LITTLE_FILL, _FEW_PACKS = 0.9, 3  # the last packs of few are never full
_ABOVE_BOUND = 1.02  # times the fewest packs
_OF_FOLDER = 0.5  # share of a folder's samples
_ALIKE = 0.01  # share of the samples
_WAITS = 1.05  # time of an epoch, 1 without waiting
_SHORT = 8  # times the longest sample


class Grade(str, Enum):
    """How much it asks for."""

    wrong = "wrong"
    look = "look"
    note = "note"


@dataclass(frozen=True)
class Remark:
    """Something that stands out."""

    grade: Grade
    what: str  # with its number
    why: str
    knob: str


#: what helps against samples that are lost for a reason
_HELP = {
    Reason.MISSING_MEDIA: "source.media_root, or the names in the JSON",
    Reason.UNREADABLE_MEDIA: "convert or remove these files",
    Reason.UNSUPPORTED_MEDIA: "another model, or convert the files",
    Reason.PLACEHOLDER_MISMATCH: "as many <image> and <video> in the text as there are media",
    Reason.NO_MESSAGES: "which field holds the turns: source.…",
    Reason.DUPLICATE_KEY: "a name of its own for each sample",
    Reason.CONTROL_TOKEN: "source.control_tokens",
    Reason.PROCESSOR_ERROR: "the details name what the processor refuses",
    Reason.TRUNCATED_TAR: "copy the tar again",
}


def remarks(figures: Figures, facts: RunFacts | None = None, max_skipped: float = 1.0) -> list[Remark]:
    """What stands out, what is wrong first.

    Args:
        facts: of the run, where it is done.
        max_skipped: share of the samples that bad data may cost.
    """
    found = [remark for rule in RULES.values() for remark in rule(figures)]
    found += [*_bad_data(figures, max_skipped), *(_unverified(facts) if facts else ())]
    grades = list(Grade)
    return sorted(found, key=lambda remark: grades.index(remark.grade))


def _bad_data(figures: Figures, max_skipped: float) -> Iterator[Remark]:
    reasons = {name: n for name, n in figures.skipped_by_reason.items() if not Reason(name).is_policy}
    num, samples = num_lost_to_bad_data(reasons), figures.source.samples
    if not num:
        return
    by_number = sorted(reasons, key=lambda name: -reasons[name])
    most = Reason(by_number[0])
    named = ", ".join(f"{reasons[name]:,} {name}" for name in by_number)
    too_many = num > max_skipped * samples
    yield Remark(
        Grade.wrong if too_many else Grade.look,
        f"{_part(num, samples)} are lost to bad data: {named}",
        f"nothing is published above max_skipped={max_skipped:g}" if too_many else "they are in no pack; see skipped",
        _HELP.get(most, "the details under skipped samples say what is wrong with each"),
    )


def _empty(figures: Figures) -> Iterator[Remark]:
    if not figures.source.samples:
        why = "there is nothing to pack: another folder, or settings that leave out every sample"
        yield Remark(Grade.wrong, "the source has no samples", why, "source.path, source.split, source.limit")
    elif figures.report and not figures.report.packs:
        yield Remark(Grade.wrong, "there is no pack", "every sample was skipped", "see skipped samples")


def _modalities(figures: Figures) -> Iterator[Remark]:
    for name in figures.report.lost_modalities if figures.report else ():
        num = figures.source.by_medium[name].samples
        why = "a model that is trained on these packs never sees one"
        yield Remark(
            Grade.wrong, f"all {num:,} {name} samples are skipped", why, "see the reasons under skipped samples"
        )


def _no_media(figures: Figures) -> Iterator[Remark]:
    source = figures.source
    if source.sees_media and source.measured and set(source.by_medium) <= {"text", "unknown"}:
        why = "the model sees media: a field or a name of theirs may not have been understood"
        yield Remark(Grade.note, "all samples are text alone", why, "the names of media in the source; or +model=text")


def _folders(figures: Figures) -> Iterator[Remark]:
    folders = [folder for folder in figures.folders if folder.lost + folder.left_out > _OF_FOLDER * folder.samples]
    for folder in folders if len(figures.folders) > 1 else ():
        num = folder.lost + folder.left_out
        why = f"{folder.lost:,} to bad data and {folder.left_out:,} by the settings: the mixture is not what was meant"
        knob = "source.path: what is wrong with this one" if folder.lost > folder.left_out else "packing.max_token_len"
        yield Remark(Grade.look, f"{_part(num, folder.samples)} of {folder.name} are in no pack", why, knob)


def _overlong(figures: Figures) -> Iterator[Remark]:
    loss, tokens = figures.loss, figures.source.tokens
    if loss and loss.overlong and loss.overlong_tokens > MOST_DROPPED * tokens:
        what = f"{short(loss.overlong_tokens)} tokens ({_percent(loss.overlong_tokens, tokens)}) are dropped"
        better = recommended(figures.tries.choices)
        knob = f"packing.max_token_len={better.max_token_len}" if better else "packing.max_token_len"
        if better and better.max_token_len <= figures.max_token_len:
            knob = "a longer packing.max_token_len than report.lens has"
        yield Remark(
            Grade.look,
            f"{what}: {loss.overlong:,} samples are longer than {figures.max_token_len:,}",
            "the longest samples are the richest ones, of media above all",
            f"{knob}, or packing.overlong=split_turns",
        )


def _over_cap(figures: Figures) -> Iterator[Remark]:
    if figures.loss and figures.loss.over_cap:
        num = _part(figures.loss.over_cap, figures.source.samples)
        why = "alone they are more than a pack may hold"
        yield Remark(Grade.look, f"{num} break a limit of packing.max_…", why, "the limits of packing")


def _not_in_flavor(figures: Figures) -> Iterator[Remark]:
    if num := figures.skipped_by_reason.get(Reason.NOT_IN_FLAVOR.value):
        what = f"{_part(num, figures.source.samples)} have no place in packs of this flavour"
        yield Remark(Grade.look, what, "its JSON can't hold them", "output.flavor=packed_multi_mix_qa")


def _trained(figures: Figures) -> Iterator[Remark]:
    source = figures.source
    if not source.measured:
        return
    share = source.num_supervised / max(1, source.tokens)
    what = f"{_percent(source.num_supervised, source.tokens)} of the tokens are trained on"
    knob = "model.mask, labels.train_on, the roles of the turns"
    if not source.num_supervised:
        yield Remark(Grade.wrong, "no token is trained on", "the loss would be of nothing", knob)
    elif share < _FEW_TRAINED:
        yield Remark(Grade.look, what, "most of each step is context: answers may have been taken for prompts", knob)
    elif share > _MANY_TRAINED:
        yield Remark(Grade.look, what, "prompts may have been taken for answers", knob)
    if source.num_supervised and source.untrained > _UNTRAINED * source.measured:
        what = f"{_part(source.untrained, source.measured)} have no token that is trained on"
        yield Remark(Grade.look, what, "they cost time and teach nothing", "labels.train_on, the roles of the turns")


def _notes(figures: Figures) -> Iterator[Remark]:
    """What was done to texts, or left out of them."""
    said = {
        "placeholders_put_in": (
            "had media and no place for them: placeholders were put in front of the first user turn",
            "the model reads media there, wherever the text meant them",
            "<image> and <video> in the source's text",
        ),
        "placeholders_as_text": (
            "have <image> or <video> in their text and no media: it stays text",
            "media may have been lost on the way",
            "the media of these samples",
        ),
        "control_tokens": (
            "spell out control tokens of the model in their text",
            "such text can end a turn or pretend to be another role",
            "source.control_tokens",
        ),
        "tools_left_out": (
            "have tools that the chat template writes nothing of",
            "calls are trained on without what they call",
            "model.chat_template",
        ),
    }
    for name, (what, why, knob) in said.items():
        if num := figures.source.notes.get(name):
            yield Remark(Grade.look, f"{_part(num, figures.source.samples)} {what}", why, knob)


def _images(figures: Figures) -> Iterator[Remark]:
    if num := figures.source.without_visual:
        why = "the model is shown nothing of their media"
        yield Remark(Grade.wrong, f"{num:,} samples with media have no visual token", why, "model.processor, media=…")
    images = figures.source.images
    if images is None or images.most <= 1.5 * images.least:
        return
    bounds = f"the least is {images.least:,} visual tokens an image, the most {images.most:,}"
    if images.at_most > _AT_BOUND * images.samples:
        yield Remark(
            Grade.look,
            f"{_percent(images.at_most, images.samples)} of the image samples are at the most an image may have",
            f"{bounds}: images are shrunk to that, and small print is lost where it is low",
            "model.max_pixels, or media.…",
        )
    if images.at_least > _AT_BOUND * images.samples:
        yield Remark(
            Grade.look,
            f"{_percent(images.at_least, images.samples)} of the image samples are at the least an image may have",
            f"{bounds}: the images are tiny, or were shrunk on the way",
            "model.min_pixels, media.…, the source's images",
        )


def _fill(figures: Figures) -> Iterator[Remark]:
    report = figures.report
    if not report or not report.packs:
        return
    if report.packs > _ABOVE_BOUND * report.packs_lower_bound + 1:
        what = f"{report.packs:,} packs where {report.packs_lower_bound:,} could do"
        knob = "packing.algorithm=optimal, packing.group_by=none, no packing.window"
        yield Remark(Grade.look, what, "each pack is a step's work, whatever it holds", knob)
    for name, medium in report.by_media.items():
        lens = figures.source.by_medium.get(name)
        if medium.packs >= _FEW_PACKS and medium.fill < _LITTLE_FILL:
            half = lens and lens.token_len and lens.token_len["p50"] > figures.max_token_len / 2
            why = "most of its samples are longer than half a pack" if half else "its packs end before they are full"
            knob = "packing.group_by=none lets shorter samples fill them" if len(report.by_media) > 1 else ""
            what = f"packs of {name} are {medium.fill:.0%} full"
            yield Remark(Grade.look, what, why, knob or "packing.max_token_len")


def _length(figures: Figures) -> Iterator[Remark]:
    most = figures.source.lens.get("max", 0)
    if most and most * _SHORT < figures.max_token_len:
        what = f"the longest sample has {most:,} tokens, a pack {figures.max_token_len:,}"
        why = "a shorter pack would lose nothing, take less memory, and come more often"
        yield Remark(Grade.note, what, why, "packing.max_token_len")


def _alike(figures: Figures) -> Iterator[Remark]:
    source = figures.source
    if source.alike > _ALIKE * source.measured:
        what = f"{_part(source.alike, source.measured)} are the same as another one, byte for byte"
        yield Remark(Grade.look, what, "they are trained on more often than the others", "the source")


def _steps(figures: Figures) -> Iterator[Remark]:
    steps = figures.report.steps if figures.report else None
    if steps and steps["in_order"]["steps"] and steps["in_order"]["both"]["epoch"] > _WAITS:
        what = f"an epoch takes {steps['in_order']['both']['epoch']:.3f} times what it would without waiting"
        why = "ranks wait for the slowest of each step, and packs are too uneven to be laid out better"
        yield Remark(Grade.look, what, why, "packing.max_attention_cost, packing.group_by=none")


def _demo(figures: Figures) -> Iterator[Remark]:
    if figures.demo:
        why = "its samples, and the lengths by its small processor, are no model's"
        yield Remark(Grade.note, "this is the built-in demo", why, "source.path, model.processor")


def _unverified(facts: RunFacts) -> Iterator[Remark]:
    if num := facts.samples_not_verified:
        why = "their media can't be read by the full processor here, so lengths were not compared with it"
        yield Remark(Grade.note, f"{num:,} samples of the draw are not verified", why, "pip install torchvision")


#: what is looked at, as it is told where nothing stands out
RULES: dict[str, Callable[[Figures], Iterator[Remark]]] = {
    "samples": _empty,
    "lost modalities": _modalities,
    "media": _no_media,
    "sources": _folders,
    "overlong samples": _overlong,
    "limits": _over_cap,
    "flavour": _not_in_flavor,
    "trained tokens": _trained,
    "placeholders, control tokens, tools": _notes,
    "sizes of images": _images,
    "fill": _fill,
    "length of packs": _length,
    "duplicates": _alike,
    "waiting": _steps,
    "demo": _demo,
}
CHECKED = ("bad data", *RULES, "verified samples")


def _part(number: int, of: int) -> str:
    return f"{number:,} of {of:,} samples ({_percent(number, of)})"


def _percent(number: float, of: float) -> str:
    share = number / of if of else 0.0
    return f"{share:.0%}" if share >= 0.1 or not share else "under 0.01%" if share < 1e-4 else f"{share:.2%}"
