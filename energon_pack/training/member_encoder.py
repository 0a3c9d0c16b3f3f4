"""Encode samples one by one, as the model would see each alone: tokens, labels, positions and media."""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from energon_pack.samples.input_rules import BLANK_IMAGE, MODEL_PROBE, InputRules
from energon_pack.samples.media.kinds import AUDIO, IMAGE, VIDEO
from energon_pack.samples.media.prepared import PreparedMedia, apply_medium_steps, prepare_media_for_processor
from energon_pack.samples.member import (
    NOTHING_SHARED,
    JoinedTokens,
    MediumInput,
    MemberInput,
    MemberTokens,
    Shared,
    media_in_order,
)
from energon_pack.samples.pack_reader import PackMembers
from energon_pack.training.encoded import IGNORE, EncodedMembers, Member, Members, restarting_counts
from energon_pack.training.encoded import Encoded as Encoded
from energon_pack.training.joining import join
from energon_pack.training.media_inputs import MediaProcessor
from energon_pack.training.processor_calls import TokenFunction, random_media
from energon_pack.training.rope import OwnRope, RopeRowsError, RopeRule, rope_positions

_log = logging.getLogger(__name__)
#: media inputs on which rows of M-RoPE depend
_GRIDS = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")


@dataclass(frozen=True)
class UnreadableMember:
    """Takes the place of a member that could not be read; holds the error."""

    sample_id: str
    error: Exception
    #: see `MemberInput`
    shared: Shared = NOTHING_SHARED


class MemberEncoder:
    """Encodes members (the samples in packs) for one model."""

    def __init__(self, rules: InputRules, rope: RopeRule | OwnRope | None = None):
        self._rules, self._rope = rules, rope
        self.media_processor = MediaProcessor(rules)

    def encode_alone(self, member: MemberInput) -> Encoded:
        """Encode one member alone, with all of its media, even those that it shares with another."""

        def fail(_: object, error: Exception) -> None:
            raise error

        (encoded,), media = self.encode_together([replace(member, shared=NOTHING_SHARED)], fail)
        return replace(encoded, media=media)

    def encode_together(
        self,
        inputs: Iterable["MemberInput | UnreadableMember"],
        on_bad: Callable[["MemberInput | UnreadableMember", Exception], None],
    ) -> tuple[EncodedMembers, dict[str, Tensor]]:
        """Encode the members of a pack; return them without media, and the joined media inputs of all by name.

        A pack on disk that is all text goes from its columns to tensors. Else the processor is called once for all
        media if a test showed that this gives the same as a call for each member. Media that a member shares with the
        one before it are not processed again.

        Args:
            on_bad: called with each member that can't be encoded, and its error. If it returns, the member is left out;
                what others share with it then comes with the next one.
        """
        if isinstance(inputs, PackMembers) and (text := inputs.tokens_unless_media()) is not None:
            ids, columns = text
            return EncodedMembers(ids, self._members_from_columns(columns), [0] * len(ids), [0] * len(ids)), {}
        drafts = self._drafts(inputs, on_bad)
        try:
            media, shares = self._media_inputs(drafts)
        except Exception:  # try each member alone to learn which one fails
            drafts = self._drafts([draft.member for draft in drafts], on_bad, are_tried=True)
            media, shares = self._media_inputs(drafts)
        lens = self.media_processor.media_lens(media, [draft.added_sizes for draft in drafts])
        return replace(self._encoded(drafts, shares), media_lens=lens), media

    def _drafts(
        self,
        members: Iterable["MemberInput | UnreadableMember"],
        on_bad: Callable[["MemberInput | UnreadableMember", Exception], None],
        are_tried: bool = False,
    ) -> list["_Draft"]:
        """Decode the media of members; if `are_tried`, also call the processor for each member alone."""
        drafts: list[_Draft] = []
        lost: Shared | None = None
        for number, member in enumerate(members):
            if number == 0 and member.shared.num_tokens:
                raise ValueError(f"{member.sample_id} shares tokens with a member before it, and is the first")
            if lost is not None:  # what it shares with the member before the lost one
                member = replace(member, shared=Shared(*map(min, lost, member.shared)))
            try:
                if isinstance(member, UnreadableMember):
                    raise member.error
                drafts.append(self._draft(member))
                if are_tried:
                    self.media_processor([drafts[-1].added_media])
                lost = None
            except Exception as error:  # damaged media make decoders raise anything
                drafts = [draft for draft in drafts if draft.member is not member]
                on_bad(member, error)
                lost = member.shared
        return drafts

    def check_processor(self) -> None:
        """Try a processor without tested rules with random media; check that the model class makes M-RoPE rows."""
        if self._rules.is_asked:
            self.media_processor.require_usable_kind()
        if isinstance(self._rope, OwnRope):
            self._rope.refuse_unseen_media([member.tokens for member in self.probe_members()])

    def join_media_inputs(self, media: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Join the media inputs of several packs, by name."""
        parts = [part for part in media if part]
        if len(parts) < 2:
            return dict(*parts)
        return join(parts, self.media_processor.joins({name for part in parts for name in part}))

    def probe_members(self, several_sounds: bool = True) -> list[Encoded]:
        """Return short samples of text and of random media of each kind; without `several_sounds`, one of each kind."""
        members: list[Encoded] = []
        tried: list[str] = []
        for seed, trial in enumerate(one for one in self._rules.trial if one.purpose == MODEL_PROBE):
            kind, is_second = trial.kind, bool(trial.kind) and trial.kind in tried
            if is_second and not several_sounds:
                continue
            tried.append(kind)
            try:
                noise = random_media(self._rules, trial.tokens, seed)
                draft = _Draft(MemberInput(f"{kind or 'text'} {seed}", []), trial.tokens, noise)
                media, shares = self._media_inputs([draft])
                encoded = self._encoded([draft], shares)[0]
                if is_second:  # packs of some processors have one sound
                    self.join_media_inputs([*(member.media for member in members), media])
            except RopeRowsError:
                raise
            except (ImportError, ValueError, OSError) as error:  # training can't use such media here, either
                _log.info("a model is not tried with a %s: %s", kind, error)
                continue
            members.append(replace(encoded, media=media, joins=self.media_processor.joins(media) if media else {}))
        return members

    def concatenate(self, parts: Sequence[Encoded]) -> Encoded:
        """Concatenate members, tokens and media, into one sample."""
        ids, labels, types = (
            torch.cat([getattr(part.tokens, name) for part in parts]) for name in ("ids", "labels", "types")
        )
        joins = {name: rule for part in parts for name, rule in part.joins.items()}
        media = join([part.media for part in parts], joins)
        rows = {name: torch.as_tensor(make([ids.tolist()]))[0] for name, make in self.per_token_functions.items()}
        for_rows = {name: value for name, value in media.items() if isinstance(self._rope, OwnRope) or name in _GRIDS}
        member = Member(ids, labels, types, self._rows(ids, types, for_rows), rows)
        return Encoded(" + ".join(part.sample_id for part in parts), member, media, joins=joins)

    def stored_or_new_tokens(self, member: MemberInput) -> MemberTokens:
        """Return a sample's tokens: its pack's, or those that the template makes now; ValueError: it has none."""
        if member.tokens is not None:
            return member.tokens
        if self._rules.tokenize is None:
            raise ValueError(f"{member.sample_id} has no tokens: only packs can be trained on here")
        return self._rules.tokenize(member)

    def _encoded(self, drafts: Sequence["_Draft"], shares: Sequence[dict[str, Tensor]]) -> EncodedMembers:
        """Return the members without media, which the pack holds."""
        members = self._members_from_columns(JoinedTokens.of_members([draft.tokens for draft in drafts]), shares)
        shared = torch.tensor([draft.member.shared.num_tokens for draft in drafts])
        return EncodedMembers(
            [draft.member.sample_id for draft in drafts],
            replace(members, shared_lens=shared if shared.any() else None),
            [len(draft.added_media.of_kind(IMAGE.kind)) for draft in drafts],
            [len(draft.added_media.of_kind(VIDEO.kind)) for draft in drafts],
        )

    def _draft(self, member: MemberInput) -> "_Draft":
        """Decode a member's media; media that it shares are decoded only if its positions need them."""
        num, tokens = member.shared, self.stored_or_new_tokens(member)
        if not tokens.media and not any(num[1:]) and not any(member.media.values()):
            return _Draft(member, tokens, PreparedMedia())
        files = media_in_order(member, tokens.media)
        part_kinds = [kind for medium in tokens.media for kind in medium.part_kinds]
        first = num.num_images + num.num_videos
        before = part_kinds[:first]
        if (before.count(IMAGE.kind), before.count(VIDEO.kind)) != (num.num_images, num.num_videos):
            raise ValueError(f"it shares {num.num_images} images and {num.num_videos} videos, which are not its first")
        if num.num_tokens and not all(medium.is_seen for medium in tokens.media):
            raise ValueError("it shares tokens with the sample before it, and has a sound: packing.share=none")
        kinds = [medium.kind for medium in tokens.media]
        num_shared = bisect_left([*accumulate(len(medium.part_kinds) for medium in tokens.media)], first + 1)
        is_whole = first > 0 and (isinstance(self._rope, OwnRope) or not self.media_processor.can_split_calls(kinds))
        added = prepare_media_for_processor(self._rules, tokens.media[num_shared:], files[first:])
        if not first:
            return _Draft(member, tokens, added)
        whole = prepare_media_for_processor(self._rules, tokens.media, files) if is_whole else None
        seen = kinds[:num_shared]
        return _Draft(member, tokens, added, whole, (seen.count(IMAGE.kind), seen.count(VIDEO.kind)))

    def _media_inputs(self, drafts: Sequence["_Draft"]) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
        """Return the joined media that members add, and for each member the media inputs that its positions need."""
        for draft in drafts:
            if draft.all_media is not None and not self.media_processor.can_split_calls(draft.all_media.order):
                self.media_processor.check_split_calls(draft.all_media, draft.added_media)
        added = [medium for draft in drafts for medium in draft.added_sizes]
        if isinstance(self._rope, OwnRope):
            each = [self.media_processor([draft.added_media]) for draft in drafts]
            wholes = [None if draft.all_media is None else self.media_processor([draft.all_media]) for draft in drafts]
            media = self.join_media_inputs(each)
            self.media_processor.refuse_feature_mismatch(media, added)
            return media, [own if whole is None else whole for whole, own in zip(wholes, each, strict=True)]
        media = self.media_processor([draft.added_media for draft in drafts])
        self.media_processor.refuse_feature_mismatch(media, added)
        images = _split_by_member(media, _GRIDS[:1], [len(draft.added_media.of_kind(IMAGE.kind)) for draft in drafts])
        videos = _split_by_member(media, _GRIDS[1:], [len(draft.added_media.of_kind(VIDEO.kind)) for draft in drafts])
        images = _with_shared_rows(images, [draft.num_shared[0] for draft in drafts])
        videos = _with_shared_rows(videos, [draft.num_shared[1] for draft in drafts])
        return media, [image | video for image, video in zip(images, videos, strict=True)]

    def _members_from_columns(self, text: JoinedTokens, media: Sequence[dict[str, Tensor]] = ()) -> Members:
        """Turn tokens into tensors, with positions; `media`: for each member, the media inputs that these need."""
        ids, lens, trained, weights = text.ids, text.lens, text.trained_indices, text.token_weights
        labels, types = np.full(len(ids), IGNORE), self._rules.media_types_of_tokens(ids)
        labels[trained] = ids[trained]
        rows: dict[str, Tensor] = {}
        if self._rules.is_asked:
            each = [own.tolist() for own in np.split(ids, np.cumsum(lens)[:-1])]
            makers = self.per_token_functions.items()
            rows = {name: torch.cat([torch.as_tensor(make([own]))[0] for own in each]) for name, make in makers}
            if known_types := [one for own in each if (one := self.media_processor.token_types(own)) is not None]:
                # transformers knows only images, videos and sounds
                types = np.where(types > AUDIO.token_type, types, np.concatenate(known_types))
        counts = restarting_counts(lens)
        arrays = {"ids": ids, "labels": labels, "types": types, "lens": lens, "counts": counts, "weights": weights}
        columns = {name: torch.from_numpy(array) for name, array in arrays.items() if array is not None}
        of_member = {"factors": text.factors, "shared_lens": text.shared_lens}  # of a file: not writable
        columns |= {name: torch.tensor(array) for name, array in of_member.items() if array is not None}
        members = Members(**columns, rows=rows)
        return members if self._rope is None else replace(members, rope=self._rope_of(members, media))

    def _rope_of(self, members: Members, media: Sequence[dict[str, Tensor]]) -> Tensor:
        """Return the M-RoPE rows [3, T]: of text, in each row its counts."""
        rope, ends = members.counts.expand(3, -1), members.lens.cumsum(0)
        seen = {number for number, own in enumerate(media) if own}
        if bool(members.types.any()):
            seen.update(torch.searchsorted(ends, members.types.nonzero()[:, 0], right=True).tolist())
        rope = rope.clone() if seen else rope
        for number in sorted(seen):
            own = slice(int(ends[number] - members.lens[number]), int(ends[number]))
            rope[:, own] = self._rows(members.ids[own], members.types[own], media[number] if media else {})
        return rope

    @cached_property
    def per_token_functions(self) -> Mapping[str, TokenFunction]:
        """Functions that make a model's special inputs with one value per token, from token ids; by input name."""
        return self.media_processor.per_token_functions if self._rules.is_asked else {}

    def _rows(self, ids: Tensor, types: Tensor, media: dict[str, Tensor]) -> Any:
        """Return the M-RoPE rows [3, L] of one member; None: the model has none."""
        if isinstance(self._rope, OwnRope):
            return self._rope(ids, types, media)
        return None if self._rope is None else rope_positions(self._rope, types, **media)

    def blank_image_inputs(self) -> dict[str, Tensor]:
        """Return the media inputs of one small white image, for ranks whose pack has no image."""
        (medium,) = next(one.tokens.media for one in self._rules.trial if one.purpose == BLANK_IMAGE)
        white = Image.new("RGB", (medium.width, medium.height), "white")
        return self.media_processor([PreparedMedia([IMAGE.kind], apply_medium_steps(self._rules, medium, [white]))])


@dataclass(frozen=True)
class _Draft:
    """A member whose media are decoded, not yet processed."""

    member: MemberInput
    tokens: MemberTokens
    #: the media that it adds to its pack
    added_media: PreparedMedia
    #: all of its media; None: the media that it adds are enough
    all_media: PreparedMedia | None = None
    #: images and clips that it shares with the member before it
    num_shared: tuple[int, int] = (0, 0)

    @property
    def added_sizes(self) -> Sequence[MediumInput]:
        """Kinds and sizes, as measured, of the media that it adds."""
        return self.tokens.media[len(self.tokens.media) - len(self.added_media.order) :]


def _split_by_member(media: dict[str, Tensor], names: Sequence[str], counts: Sequence[int]) -> list[dict[str, Tensor]]:
    """Split the named inputs by member: member i has the next `counts[i]` rows."""
    shares: list[dict[str, Tensor]] = [{} for _ in counts]
    for name in names:
        if name in media and sum(counts) == len(media[name]):
            for share, rows in zip(shares, media[name].split(list(counts)), strict=True):
                if len(rows):
                    share[name] = rows
    return shares


def _with_shared_rows(each: Sequence[dict[str, Tensor]], counts: Sequence[int]) -> list[dict[str, Tensor]]:
    """Put the rows that a member shares, the first `counts[i]` of the member before it, before its own rows."""
    whole: list[dict[str, Tensor]] = []
    for rows, count in zip(each, counts, strict=True):
        if count:
            shared = {name: value[:count] for name, value in whole[-1].items()}
            rows = {
                name: torch.cat([part[name] for part in (shared, rows) if name in part]) for name in {**shared, **rows}
            }
        whole.append(rows)
    return whole
