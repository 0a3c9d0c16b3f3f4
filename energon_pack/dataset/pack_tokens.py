"""Tokenize the members of a pack that is written, and compare them with their measured lengths."""

from collections.abc import Sequence
from dataclasses import replace

from energon_pack.dataset.sources import Pack, Sources
from energon_pack.lengths.measure import LengthsWrong
from energon_pack.samples.pack_tokens import pack_tokens
from energon_pack.samples.skip import Skip
from energon_pack.samples.tokens import MemberTokens
from energon_pack.sources.sample import ReadSample
from energon_pack.templates.processor import load_saved
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template


def tokens_of(rows: Pack, samples: Sequence[ReadSample], sources: Sources, template_folder: str, engine: str) -> bytes:
    """Return the tokens of a pack: its part `tokens`.

    Args:
        rows: its members.
        template_folder, engine: see `Method`.

    Raises:
        LengthsWrong: a sample has not so many tokens as were measured.
        PackError: because its source changed.
    """
    template = load_saved(template_folder)
    as_seen = [Sample(sample.timed, sample.media, sample.tools, sample.options) for sample in samples]
    try:
        made = template.member_tokens(as_seen)
    except Skip:  # each alone, to name the one
        made = []
    for number, (member, checksum) in enumerate(rows):
        found = _counted(made[number]) if made else _alone(template, as_seen[number])
        if found != f"{member.token_len} tokens, {member.num_supervised} of them trained":
            sample = samples[number]
            sources.refuse_changed(member, sample, (sources.ends(member, part) for part in sample.parts), checksum)
            raise LengthsWrong(
                f"{member.sample_id} has {found} when it is written, and {member.token_len} and {member.num_supervised}"
                f" as measured with measure.engine={engine}, or by other versions: nothing is published; the same"
                " command measures anew, by the tokenizer alone"
            )
    members = zip(made, rows, strict=True)
    return pack_tokens([replace(its, shared_len=member.shared_len) for its, (member, _) in members]).to_bytes()


def _alone(template: Template, sample: Sample) -> str:
    try:
        return _counted(template.member_tokens([sample])[0])
    except Skip as skip:
        return f"no tokens ({skip})"


def _counted(tokens: MemberTokens) -> str:
    return f"{len(tokens)} tokens, {tokens.num_supervised} of them trained"
