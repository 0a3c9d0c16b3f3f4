"""Read the source of the shards that a job writes: samples and parts by the plan's rows, checked to be as measured."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from zlib import crc32

from energon_pack.dataset.files import PlanRow
from energon_pack.dataset.tar_writer import TarWriter
from energon_pack.lengths.kept_tokens import KeptSample
from energon_pack.lengths.measure import LengthsWrong
from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.member import MemberInput, MemberTokens
from energon_pack.samples.sample import AnyPart, Part, Reference
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.sources.media_files import END_BYTES, EndBytes, end_ranges, ends_of
from energon_pack.sources.reader import SourceChanged, SourceReader, whole_medium_range
from energon_pack.sources.referenced_media import find_tar_member_at
from energon_pack.sources.sample import read_without_opening_media, with_headers
from energon_pack.sources.shard import Shard
from energon_pack.sources.storage import File
from energon_pack.sources.tar import is_tar_header_of
from energon_pack.templates.processor import load_saved_template
from energon_pack.templates.sample import Sample

#: The rows of one or more packs, each with the checksum of its sample as measured.
RowsWithChecksums = list[tuple[PlanRow, int]]


class SampleReader:
    """Reads samples of a job's source shards; raises SourceChanged if one is not as it was measured."""

    def __init__(self, shards: dict[str, Shard]):
        self._shards = shards
        self._reader = SourceReader()

    def read_ahead(self, packs: Iterable[RowsWithChecksums], are_copied: bool) -> Iterator[RowsWithChecksums]:
        """Yield the same packs, but first request their media: whole if they `are_copied`, else only their ends."""

        def samples(pack: RowsWithChecksums) -> Iterator[tuple[Shard, PlanRow]]:
            return ((self._shards[row.shard], row) for row, _ in pack)

        return self._reader.iterate_with_read_ahead(packs, samples, whole_medium_range if are_copied else end_ranges)

    def read_without_media(self, row: PlanRow, settings: ReadSettings, kept: KeptSample | None = None) -> ReadSample:
        """Read a sample without its media; its conversation is that in `kept`, or is parsed if `kept` has none."""
        shard, lead = self._shards[row.shard], self._header_size(row)
        raw = self._reader.raw(shard, row, lead)
        self._check_header(raw[:lead], row, Part(row.record_part, row.record_offset, row.record_size))
        if kept and kept.conversation:
            messages, tools, fields = kept.conversation
            return ReadSample(raw[lead:], messages, messages, tools, fields, row.parts, [], [], False, [])
        try:
            return read_without_opening_media(self._reader, shard, row, settings, raw[lead:])
        except Skip as skip:  # it could be read when it was measured
            raise self.changed_source_error(row) from skip

    def with_headers(self, row: PlanRow, sample: ReadSample) -> ReadSample:
        """Return a sample that `read_without_media` returned, with the headers of its media, which tokenizing needs."""
        try:
            return with_headers(self._reader, self._shards[row.shard], sample)
        except Skip as skip:  # it could be read when it was measured
            raise self.changed_source_error(row) from skip

    def read_member(self, row: PlanRow, *, settings: ReadSettings, checksum: int) -> MemberInput:
        """Read a sample with its media, in the form that training encodes."""
        sample = self.read_without_media(row, settings)
        media = [self.open_file_with_part_checked(row, part).read(part.offset, part.size) for part in sample.parts]
        self.refuse_changed_sample(row, sample, (data[:END_BYTES] + data[-END_BYTES:] for data in media), checksum)
        return sample.member(row.sample_id, media, row.token_len)

    def copy_part(self, tar: TarWriter, name: str, row: PlanRow, part: AnyPart) -> bytes:
        """Copy a part of a sample into a tar under this name; return its first and last `END_BYTES` bytes."""
        header, ends = tar.copy(name, self._file(row, part), part.offset, part.size, self._header_size(row), END_BYTES)
        self._check_header(header, row, part)
        return ends

    def read_part_ends(self, row: PlanRow, part: AnyPart) -> bytes:
        """Return the first and last `END_BYTES` bytes of a part."""
        ends = ends_of(self._file(row, part), part.offset, part.size, self._header_size(row))
        self._check_header(ends.header, row, part)
        return ends.first + ends.last

    def reference_to(self, name: str, row: PlanRow, part: AnyPart, root: str) -> tuple[Reference, EndBytes]:
        """Return the `Reference` that leads a pack to a part below the folder `root`, and the part's `EndBytes`."""
        ends = ends_of(self._file(row, part), part.offset, part.size, self._header_size(row))
        self._check_header(ends.header, row, part)
        place = self._shards[row.shard].place(part, root)
        return Reference(name, place, part.size, ends.checksum, row.sample_id), ends

    def open_file_with_part_checked(self, row: PlanRow, part: AnyPart) -> File:
        """Return the file that holds a part; SourceChanged: the tar header before it is of another name or size."""
        file, lead = self._file(row, part), self._header_size(row)
        self._check_header(file.read(part.offset - lead, lead), row, part)
        return file

    def _file(self, row: PlanRow, part: AnyPart) -> File:
        return self._reader.part_file(self._shards[row.shard], part)

    def _header_size(self, row: PlanRow) -> int:
        """Return the bytes of the tar header before each part of a sample; 0: parts are files of their own."""
        return self._shards[row.shard].lead

    def _check_header(self, header: bytes, row: PlanRow, part: AnyPart) -> None:
        """Raise SourceChanged if the tar headers before a part are not of its name and size."""
        shard = self._shards[row.shard]
        if not shard.lead or is_tar_header_of(header, f"{row.key}.{part.name}", part.size):
            return
        name = f"{shard.key_in_tar(row.key)}.{part.name}"
        if is_tar_header_of(header, name, part.size):
            return
        # An extended header may say what the plain one does not.
        member = find_tar_member_at(self._reader.open_unchanged_shard(shard), part.offset)
        if member not in ((name, part.size), (f"{row.key}.{part.name}", part.size)):
            raise self.changed_source_error(row)

    def refuse_changed_sample(
        self, row: PlanRow, sample: ReadSample, media_ends: Iterable[bytes], measured_checksum: int
    ) -> None:
        """Raise SourceChanged if the checksum of a sample's record and of its media's ends is not the measured one."""
        sum_here = crc32(sample.raw)
        for end in media_ends:
            sum_here = crc32(end, sum_here)  # see `SourceReader.checksum`
        if sum_here != measured_checksum:
            raise self.changed_source_error(row)

    def changed_source_error(self, row: PlanRow) -> SourceChanged:
        return SourceChanged(self._shards[row.shard].path, row.sample_id)

    def __enter__(self) -> "SampleReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.__exit__()


def tokens_of(
    members: RowsWithChecksums,
    samples: Sequence[ReadSample],
    kept_samples: Sequence[KeptSample | None],
    sources: SampleReader,
    template_folder: str,
    engine: str,
) -> list[MemberTokens]:
    """Return the tokens of each member: those that measuring kept, or new ones.

    Args:
        kept_samples: what measuring kept of each member; None: nothing, so that the member is tokenized here.

    Raises:
        SourceChanged: a sample is not as it was measured.
        LengthsWrong: a sample has another number of tokens, or of trained tokens, than was measured.
    """
    tokens = [its and its.tokens for its in kept_samples]
    missing = [number for number, its in enumerate(kept_samples) if its is None]
    read = {number: sources.with_headers(members[number][0], samples[number]) for number in missing}
    as_seen = {number: Sample(its.timed_messages, its.media, its.tools, its.options) for number, its in read.items()}
    with suppress(Skip):  # each alone, to name the one
        for number, its in zip(missing, _tokenize(template_folder, [*as_seen.values()], engine), strict=True):
            tokens[number] = its
    for number, (member, checksum) in enumerate(members):
        known = tokens[number]
        if known is not None and (len(known), known.num_supervised) == (member.token_len, member.num_supervised):
            continue
        ids = _counts_text(known) if known is not None else _counts_of_sample(template_folder, as_seen[number], engine)
        if ids != f"{member.token_len} tokens, {member.num_supervised} of them trained":
            sample = samples[number]
            sources.refuse_changed_sample(
                member, sample, (sources.read_part_ends(member, part) for part in sample.parts), checksum
            )
            raise LengthsWrong(
                f"{member.sample_id} has {ids} when it is written, and {member.token_len} and {member.num_supervised}"
                f" as measured with measure.engine={engine}, or by other versions: nothing is published; the same"
                " command measures anew, by the tokenizer alone"
            )
    each = zip(tokens, members, strict=True)
    return [
        replace(its, shared_len=row.shared_len) if row.shared_len else its for its, (row, _) in each if its is not None
    ]


def _tokenize(template_folder: str, samples: Sequence[Sample], engine: str) -> list[MemberTokens]:
    return load_saved_template(template_folder).member_tokens(samples, engine) if samples else []


def _counts_of_sample(template_folder: str, sample: Sample, engine: str) -> str:
    try:
        return _counts_text(_tokenize(template_folder, [sample], engine)[0])
    except Skip as skip:
        return f"no tokens ({skip})"


def _counts_text(tokens: MemberTokens) -> str:
    return f"{len(tokens)} tokens, {tokens.num_supervised} of them trained"
