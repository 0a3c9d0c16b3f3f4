"""Look up or make the tokens of the members of packs, and compare them with their measured lengths."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from energon_pack.dataset.sources import Members, Sources
from energon_pack.lengths.measure import LengthsWrong
from energon_pack.samples.skip import Skip
from energon_pack.samples.tokens import MemberTokens
from energon_pack.sources.sample import ReadSample
from energon_pack.templates.processor import load_saved
from energon_pack.templates.sample import Sample


def tokens_of(
    members: Members,
    samples: Sequence[ReadSample],
    kept: Sequence[MemberTokens | None],
    sources: Sources,
    template_folder: str,
    engine: str,
) -> list[MemberTokens]:
    """Return the tokens of members of packs.

    Args:
        kept: the tokens that measuring made; None: they were not kept, and are made.
        template_folder, engine: see `Method`.

    Raises:
        LengthsWrong: a sample has not so many tokens as were measured.
        PackError: because its source changed.
    """
    made, missing = [*kept], [number for number, tokens in enumerate(kept) if tokens is None]
    read = {number: sources.with_headers(members[number][0], samples[number]) for number in missing}
    seen = {number: Sample(its.timed, its.media, its.tools, its.options) for number, its in read.items()}
    with suppress(Skip):  # each alone, to name the one
        for number, tokens in zip(missing, _made(template_folder, [*seen.values()], engine), strict=True):
            made[number] = tokens
    for number, (member, checksum) in enumerate(members):
        its = made[number]
        if its is not None and (len(its), its.num_supervised) == (member.token_len, member.num_supervised):
            continue
        found = _counted(its) if its is not None else _alone(template_folder, seen[number], engine)
        if found != f"{member.token_len} tokens, {member.num_supervised} of them trained":
            sample = samples[number]
            sources.refuse_changed(member, sample, (sources.ends(member, part) for part in sample.parts), checksum)
            raise LengthsWrong(
                f"{member.sample_id} has {found} when it is written, and {member.token_len} and {member.num_supervised}"
                f" as measured with measure.engine={engine}, or by other versions: nothing is published; the same"
                " command measures anew, by the tokenizer alone"
            )
    each = zip(made, members, strict=True)
    return [replace(its, shared_len=row.shared_len) if row.shared_len else its for its, (row, _) in each if its]


def _made(template_folder: str, samples: Sequence[Sample], engine: str) -> list[MemberTokens]:
    return load_saved(template_folder).member_tokens(samples, engine) if samples else []


def _alone(template_folder: str, sample: Sample, engine: str) -> str:
    try:
        return _counted(_made(template_folder, [sample], engine)[0])
    except Skip as skip:
        return f"no tokens ({skip})"


def _counted(tokens: MemberTokens) -> str:
    return f"{len(tokens)} tokens, {tokens.num_supervised} of them trained"
