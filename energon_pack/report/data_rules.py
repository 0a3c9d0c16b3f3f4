"""Rules over the samples that came in: damage, tokens that are trained on, and sizes of images."""

from collections.abc import Iterator

from energon_pack.errors import amount
from energon_pack.plan.report import LOST_BITS, num_lost_to_bad_data
from energon_pack.report.figures import Figures
from energon_pack.report.pages.html import Grade, Remark, clip_text, named_keys, percent, share_of_samples
from energon_pack.samples.skip import Reason

_FEW_TRAINED, _MANY_TRAINED = 0.02, 0.95  # shares of all tokens
_UNTRAINED_SHARE = 0.001  # share of the samples
_MANY_AT_BOUND = 0.8  # share of the samples whose images have the least, or the most, tokens the model allows
_MUCH_OF_FOLDER = 0.5  # share of a folder's samples
_MUCH_OF_MEDIUM = 0.1  # share of the samples of a medium
_WRONG_NOTE_SHARES = {"assistant_first": 0.5, "empty_answers": 0.5}  # shares of the samples
_FEW_IMAGE_TOKENS = 64  # an image of so few tokens shows no small print
_MAX_FOLDERS, _MAX_NAME_CHARS = 5, 120  # folders that are named, characters of a name
_DUPLICATE_SHARE = 0.01  # share of the samples
_NEVER_SEEN = "a model that is trained on these packs never sees one"
#: what helps against samples that are lost, by reason
_REMEDIES = {
    Reason.MISSING_MEDIA: "source.media_root, source.media_map, source.remote_media, or the names in the JSON",
    Reason.UNREADABLE_MEDIA: "convert or remove these files",
    Reason.MEDIA_UNREAD: "the key that names the media (source.columns.images), or source.media=ignore",
    Reason.UNSUPPORTED_MEDIA: "what the details name: another model, a package, or files to download or convert",
    Reason.PLACEHOLDER_MISMATCH: "as many placeholders (<image>, <video>, <audio>) in the text as there are media",
    Reason.PREFERENCE_DATA: "source.take=chosen",
    Reason.NO_MESSAGES: "source.messages_key or source.columns.messages: the field that holds the turns",
    Reason.DUPLICATE_KEY: "a name of its own for each sample",
    Reason.CONTROL_TOKEN: "source.control_tokens",
    Reason.PROCESSOR_ERROR: "the details name what the processor refuses",
    Reason.TRUNCATED_TAR: "copy the tar again",
}


#: what stands out in samples, by the name of its note: what, why it matters, the setting
NOTE_REMARKS = {
    "placeholders_put_in": (
        "had media and no place for them: placeholders were put in front of the first user turn, or videos took the"
        " place of <image>",
        "the model reads media there, wherever the text meant them",
        "<image> and <video> in the source's text",
    ),
    "placeholders_as_text": (
        "have a placeholder (<image>, <video>, <audio>) in a question and no such medium: it stays text",
        "media may have been lost on the way",
        "the field that names the media (source.columns.images …); source.media=ignore, where letters are meant",
    ),
    "assistant_first": (
        "begin with a turn of the assistant",
        "where roles have changed places, questions are trained on, and answers are not",
        "the roles in the source (inspect --source shows what is trained on)",
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
    "reasoning_left_out": (
        "have thoughts of earlier answers, which the chat template does not write",
        "these thoughts are not trained",
        "labels.expand=turns, which makes a sample of each answer",
    ),
    "words_left_out": (
        "have words that the chat template does not write",
        "they are packed without these words",
        "labels.template_drops=skip, model.chat_template",
    ),
    "nulls_dropped": (
        "are rows of a table, whose null values in calls and tools are dropped",
        "a row has the keys of all rows, and calls would be trained on with arguments of other tools",
        "source.nulls=keep",
    ),
    "empty_answers": (
        "have empty answers beside others: the empty ones are not trained",
        "a model that is trained on them learns to end its answer before a word",
        "the answers of these samples; labels.empty=train trains them",
    ),
}


def nothing_to_pack(figures: Figures) -> Iterator[Remark]:
    """Yield a remark if the source has no samples, or no pack was made."""
    if not figures.source.samples:
        why = "there is nothing to pack: another folder, or settings that leave out every sample"
        yield Remark(Grade.wrong, "the source has no samples", why, "source.path, source.split, source.limit")
    elif (
        figures.report
        and not figures.report.packs
        and num_lost_to_bad_data(figures.skipped_by_reason) < figures.source.samples  # else `bad_data` says it
    ):
        yield Remark(Grade.wrong, "there is no pack", "every sample was skipped", "see skipped samples")


def bad_data(figures: Figures, max_skipped: float) -> Iterator[Remark]:
    """Yield a remark on samples that are lost because their data are damaged.

    `max_skipped`: the share of samples (0 to 1) above which nothing is published.
    """
    reasons = {name: n for name, n in figures.skipped_by_reason.items() if not Reason(name).is_policy}
    num, samples = num_lost_to_bad_data(reasons), figures.source.samples
    if not num:
        return
    by_number = sorted(reasons, key=lambda name: -reasons[name])
    most = Reason(by_number[0])
    named = ", ".join(f"{reasons[name]:,} {name}" for name in by_number)
    too_many, media = num > max_skipped * samples, _media_lost_to_bad_data(figures)
    every = f": every {' and every '.join(media)} sample" if media else ""
    why = _NEVER_SEEN if media else "they are in no pack; see skipped"
    yield Remark(
        Grade.wrong if too_many or media else Grade.look,
        f"{share_of_samples(num, samples)} are lost to bad data: {named}{every}",
        f"nothing is published above max_skipped={max_skipped:g}" if too_many else why,
        _REMEDIES.get(most, "the details under skipped samples say what is wrong with each"),
        sample=most.value,
    )


def _media_lost_to_bad_data(figures: Figures) -> list[str]:
    """Return the media types of which all samples are lost, if these are all that bad data cost."""
    media = figures.report.lost_modalities if figures.report else []
    num = sum(figures.source.by_medium[name].samples for name in media)
    return media if media and num == num_lost_to_bad_data(figures.skipped_by_reason) else []


def lost_modalities(figures: Figures) -> Iterator[Remark]:
    """Yield a remark for each media type of the source of which all samples, or many, are in no pack."""
    told = _media_lost_to_bad_data(figures)  # `bad_data` names them
    for name in figures.report.lost_modalities if figures.report and not told else ():
        num = figures.source.by_medium[name].samples
        yield Remark(
            Grade.wrong,
            f"every {name} sample is skipped, {num:,} in all",
            _NEVER_SEEN,
            "see the reasons under skipped samples",
        )

    for name, row in figures.report.by_media.items() if figures.report else ():
        skipped, all_skipped = row.samples_in - row.samples, figures.report.samples_skipped if figures.report else 0
        if row.samples and skipped > _MUCH_OF_MEDIUM * row.samples_in and skipped < all_skipped:
            why = "the mixture that is trained on is not the one of the source"
            yield Remark(
                Grade.look,
                f"{share_of_samples(skipped, row.samples_in, name)} are skipped",
                why,
                "see the reasons under skipped samples",
            )


def no_media(figures: Figures) -> Iterator[Remark]:
    """Yield a remark if the model sees media, and the source has none."""
    source = figures.source
    if source.sees_media and source.measured and set(source.by_medium) <= {"text", "unknown"}:
        why = "the model sees media: a field or a name of theirs may not have been understood"
        yield Remark(Grade.note, "all samples are text alone", why, "the names of media in the source; or +model=text")


def lossy_folders(figures: Figures) -> Iterator[Remark]:
    """Yield a remark for each folder, or file, of the source that loses most of its samples."""
    folders = [folder for folder in figures.origins if folder.lost + folder.left_out > _MUCH_OF_FOLDER * folder.samples]
    for folder in folders[:_MAX_FOLDERS] if len(figures.origins) > 1 else ():
        num = folder.lost + folder.left_out
        why = f"{folder.lost:,} to bad data and {folder.left_out:,} by the settings: the mixture is not what was meant"
        knob = "source.path: what is wrong with this one" if folder.lost > folder.left_out else "packing.max_token_len"
        yield Remark(
            Grade.look,
            f"{share_of_samples(num, folder.samples)} of {clip_text(folder.name, _MAX_NAME_CHARS)} are in no pack",
            why,
            knob,
        )


def trained_share(figures: Figures) -> Iterator[Remark]:
    """Yield a remark if the share of tokens that are trained on is unusually small or large, or samples have none."""
    source = figures.source
    if not source.measured:
        return
    trained, tokens = source.num_supervised, source.tokens - source.visual_tokens
    share = trained / max(1, tokens)
    fact = f"{percent(trained, tokens)} of the tokens of texts are trained on"
    knob = "model.mask, labels.train_on, the roles of the turns"
    if not trained:
        yield Remark(Grade.wrong, "no token is trained on", "the loss would be of nothing", knob)
    elif share < _FEW_TRAINED:
        yield Remark(Grade.look, fact, "most of each step is context: answers may have been taken for prompts", knob)
    elif share > _MANY_TRAINED:
        yield Remark(Grade.look, fact, "prompts may have been taken for answers", knob)
    if trained and source.untrained > _UNTRAINED_SHARE * source.measured:
        fact = f"{share_of_samples(source.untrained, source.measured)} have no token that is trained on"
        knob = "labels.train_on, the roles of the turns"
        yield Remark(Grade.look, fact, "they cost time and teach nothing", knob, sample="untrained")


def weighted_samples(figures: Figures) -> Iterator[Remark]:
    """Yield a remark on how many samples have weights in the loss, and how many of their trained tokens."""
    source = figures.source
    if num := source.noted.samples["weights"]:
        share = percent(source.noted.num_weighted, source.num_supervised)
        fact = f"{share_of_samples(num, source.samples)} have weights: {share} of the trained tokens count other than 1"
        why = "the loss of such packs is weighted_loss, for a model's own knows of no weights"
        yield Remark(Grade.note, fact, why, "the weights of turns and samples in the source", sample="weights")


def noted_samples(figures: Figures) -> Iterator[Remark]:
    """Yield a remark for each note of `NOTE_REMARKS` that samples have: texts that were changed, or partly left out."""
    for name, (fact, why, knob) in NOTE_REMARKS.items():
        if num := figures.source.noted.samples[name]:
            is_wrong = num > _WRONG_NOTE_SHARES.get(name, 1.0) * figures.source.samples
            is_wrong |= name == "placeholders_as_text" and _stand_mostly_for_nothing(figures)
            grade = Grade.wrong if is_wrong else Grade.look
            yield Remark(grade, f"{share_of_samples(num, figures.source.samples)} {fact}", why, knob, sample=name)


def _stand_mostly_for_nothing(figures: Figures) -> bool:
    """Tell whether more samples ask for a kind of media in vain than have some; those with a mix may have any kind."""
    by_medium = figures.source.by_medium
    with_any = {name: medium.samples for name, medium in by_medium.items()}
    as_text = figures.source.noted.most_frequent_names("placeholders_as_text")
    return any(noted["samples"] > with_any.get(kind, 0) + with_any.get("mix", 0) for kind, noted in as_text.items())


def unknown_keys(figures: Figures) -> Iterator[Remark]:
    """Yield a remark if records have keys that energon_pack does not know."""
    keys = figures.source.noted.most_frequent_names("unknown_keys")
    if not keys:
        return
    fact = f"{amount(len(keys), 'key')} of records {'is' if len(keys) == 1 else 'are'} not known: {named_keys(keys)}"
    why = "nothing reads them: what they say of media, of what is trained, or of how much, is lost"
    yield Remark(
        Grade.look,
        fact,
        why,
        "nothing where they are remarks; else a key that is read: messages, system, tools, images, videos",
        sample="unknown_keys",
    )


def images_losing_bits(figures: Figures) -> Iterator[Remark]:
    """Yield a remark if images have more than 8 bits a channel, which are lost when they become RGB."""
    modes = figures.source.noted.most_frequent_names("image_modes")
    if modes:
        named = ", ".join(f"{mode} ({noted['samples']:,}, as {noted['example']})" for mode, noted in modes.items())
        fact = f"samples have images of more than 8 bits a channel, by mode: {named}"
        yield Remark(Grade.look, fact, LOST_BITS, "the images: convert them to 8 bits", sample="image_modes")


def image_sizes(figures: Figures) -> Iterator[Remark]:
    """Yield remarks if media have no visual token, or most images have the fewest, or most, tokens the model allows."""
    if num := figures.source.num_without_visual:
        why = "the model is shown nothing of their media"
        knob = "model.processor, media=…"
        fact = f"{amount(num, 'sample')} with media {'has' if num == 1 else 'have'} no visual token"
        yield Remark(Grade.wrong, fact, why, knob, changes_lengths=True, sample="without_features")
    images = figures.source.images
    if images is None or images.most <= 1.5 * images.least:
        return
    if images.num_at_most > _MANY_AT_BOUND * images.samples:
        yield Remark(
            Grade.wrong if images.most <= _FEW_IMAGE_TOKENS else Grade.look,
            f"{percent(images.num_at_most, images.samples)} of the image samples are shrunk to the most tokens that an"
            f" image may have, {images.most:,}",
            "details are lost for the model"
            + (": of so few tokens no text can be read" if images.most <= _FEW_IMAGE_TOKENS else ""),
            "a larger model.max_pixels or number of tiles (model.processor_kwargs), or none; media.image",
            changes_lengths=True,
            sample="most_visual",
        )
    if images.num_at_least > _MANY_AT_BOUND * images.samples:
        yield Remark(
            Grade.look,
            f"{percent(images.num_at_least, images.samples)} of the image samples have the least tokens that an image"
            f" may have, {images.least:,}",
            "the images are tiny, or were shrunk on the way",
            "model.min_pixels, media.image, the source's images",
            changes_lengths=True,
        )


def duplicates(figures: Figures) -> Iterator[Remark]:
    """Yield a remark if many samples are the same as another one, byte for byte."""
    source = figures.source
    if source.num_duplicates > _DUPLICATE_SHARE * source.measured:
        fact = f"{share_of_samples(source.num_duplicates, source.measured)} are the same as another one, byte for byte"
        yield Remark(Grade.look, fact, "they are trained on more often than the others", "the source")


def built_in_demo(figures: Figures) -> Iterator[Remark]:
    """Yield a remark if the samples and the processor are those of the built-in demo."""
    if figures.demo:
        why = "its samples, and the lengths by its small processor, are no model's"
        yield Remark(Grade.note, "this is the built-in demo", why, "source.path, model.processor")
