"""Tokenize the members of packs that are written, and compare them with their measured lengths."""

from collections.abc import Sequence
from dataclasses import replace

from energon_pack.dataset.sources import Members, Sources
from energon_pack.lengths.measure import LengthsWrong
from energon_pack.samples.skip import Skip
from energon_pack.samples.tokens import MemberTokens
from energon_pack.sources.sample import ReadSample
from energon_pack.templates.processor import load_saved
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template


def tokens_of(
    members: Members, samples: Sequence[ReadSample], sources: Sources, template_folder: str, engine: str
) -> list[MemberTokens]:
    """Return the tokens of members of packs."""
    template = load_saved(template_folder)
    as_seen = [Sample(sample.timed, sample.media, sample.tools, sample.options) for sample in samples]
    try:
        tokens = template.member_tokens(as_seen, engine)
    except Skip:  # each alone, to name the one
        tokens = []
    for number, (member, checksum) in enumerate(members):
        if tokens and (len(tokens[number]), tokens[number].num_supervised) == (member.token_len, member.num_supervised):
            continue
        ids = _counted(tokens[number]) if tokens else _alone(template, as_seen[number], engine)
        if ids != f"{member.token_len} tokens, {member.num_supervised} of them trained":
            sample = samples[number]
            sources.refuse_changed(member, sample, (sources.ends(member, part) for part in sample.parts), checksum)
            raise LengthsWrong(
                f"{member.sample_id} has {ids} when it is written, and {member.token_len} and {member.num_supervised}"
                f" as measured with measure.engine={engine}, or by other versions: nothing is published; the same"
                " command measures anew, by the tokenizer alone"
            )
    each = zip(tokens, members, strict=True)
    return [replace(its, shared_len=row.shared_len) if row.shared_len else its for its, (row, _) in each]


def _alone(template: Template, sample: Sample, engine: str) -> str:
    try:
        return _counted(template.member_tokens([sample], engine)[0])
    except Skip as skip:
        return f"no tokens ({skip})"


def _counted(tokens: MemberTokens) -> str:
    return f"{len(tokens)} tokens, {tokens.num_supervised} of them trained"
