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
    made: list[MemberTokens] = []
    for (member, checksum), sample in zip(rows, samples, strict=True):
        try:
            (its,) = template.member_tokens([Sample(sample.timed, sample.media, sample.tools, sample.options)])
            found = f"{len(its)} tokens, {its.num_supervised} of them trained"
        except Skip as skip:
            found = f"no tokens ({skip})"
        if found != f"{member.token_len} tokens, {member.num_supervised} of them trained":
            sources.refuse_changed(member, sample, checksum)
            raise LengthsWrong(
                f"{member.sample_id} has {found} when it is written, and {member.token_len} and {member.num_supervised}"
                f" as measured with measure.engine={engine}, or by other versions: nothing is published; the same"
                " command measures anew, with measure.engine=tokenizers by the tokenizer alone"
            )
        made.append(replace(its, shared_len=member.shared_len))
    return pack_tokens(made).to_bytes()
