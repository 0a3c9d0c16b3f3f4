"""Turn images, video frames and sounds into the tensors a model takes, by the model's own processor."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import nan

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from energon_pack.run.packages import version_of
from energon_pack.samples.input_rules import SAME_SIZE, SEVERAL_SIZES, VIDEOS_WITH_SOUND, InputRules
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.samples.media.prepared import PreparedMedia, join_media
from energon_pack.samples.member import MediumInput
from energon_pack.templates.full_processor import quiet_transformers
from energon_pack.training.byte_calls import BytePixelProcessor
from energon_pack.training.encoded import EncodedMembers
from energon_pack.training.joining import JoinError, JoinRule, find_joins, join
from energon_pack.training.processor_calls import MediaProcessorCaller, TokenFunction, trial_media, trial_members

_log = logging.getLogger(__name__)

#: what keeps media of several sizes apart, by their kind
_REMEDIES = {
    VIDEO.kind: "media.video=uniform: as many frames",
    AUDIO.kind: "packing.max_audios=1 and a pack a batch: one sound, so that there is nothing to join",
}


@dataclass(frozen=True)
class _TriedMedia:
    """How a processor handles one kind of media, as a trial showed."""

    joins: Mapping[str, JoinRule] = field(default_factory=dict)
    #: whether one call for all members gives the same as one call for each
    can_call_once: bool = False
    #: whether the image processor alone makes the same, without any text
    needs_no_text: bool = False
    #: whether a processor that moves bytes makes the same: of all media at once (False), of each alone (True); None: no
    in_bytes: bool | None = None
    #: why they can't be trained on; empty: they can
    refusal: str = ""
    #: why some can't be joined; empty: all can
    limit: str = ""
    #: for each input, the tokens that one of its rows has features for; inputs without such a number are left out
    tokens_of_row: Mapping[str, float] = field(default_factory=dict)
    #: for each input, how much of it one medium has; inputs without such a number are left out
    lens_of_medium: Mapping[str, float] = field(default_factory=dict)
    #: what the log says where they are used; empty: nothing
    warning: str = ""


@dataclass(frozen=True)
class _Findings:
    """What trials in one process showed of a processor, for another one."""

    tried: Mapping[str, _TriedMedia] = field(default_factory=dict)
    can_mix_kinds: bool | None = None
    token_outputs: Collection[str] = ()
    #: its image processor, pickled
    images: bytes = b""


class MediaProcessor:
    """Makes media inputs with a model's processor; each kind of media is tried with noise before its first use."""

    def __init__(self, rules: InputRules):
        self._rules = rules
        known = rules.findings if isinstance(rules.findings, _Findings) else _Findings()
        self._call = MediaProcessorCaller(rules, known.token_outputs, known.images)
        self._byte_calls = BytePixelProcessor(self._call, _empty)
        self._tried, self._warned = {**known.tried}, set[str]()
        if known.can_mix_kinds is not None:
            self._can_mix_kinds = known.can_mix_kinds

    def try_all(self) -> None:
        """Try every kind of media now, so that workers which are forked next need not."""
        for kind in self._call.kinds if self._rules.media_tokens else ():
            self._tried[kind] = self._tried.get(kind) or self._try_kind(kind)
        if any(one.refusal for one in self._tried.values()):  # a kind that nobody uses may keep another from use
            self._tried.clear()
        if len(self._tried) > 1:
            self._can_mix_kinds  # noqa: B018

    @property
    def rules_with_trial_results(self) -> InputRules:
        """The rules with what trials showed, for another process."""
        if not self._tried:
            return self._rules
        mixes = vars(self).get("_can_mix_kinds")
        findings = _Findings(self._tried, mixes, self._call.token_outputs, self._call.pickled_image_processor)
        return replace(self._rules, findings=findings)

    def __reduce__(self) -> tuple[type["MediaProcessor"], tuple[InputRules]]:
        return MediaProcessor, (self.rules_with_trial_results,)

    def __call__(self, members: Sequence[PreparedMedia]) -> dict[str, Tensor]:
        """Return the joined media inputs of some members, by name; JoinError: they can't be joined."""
        members = [member for member in members if member.order]
        if not members:
            return {}
        kinds = sorted({kind for member in members for kind in member.kinds})
        tried = [self._tried_media(kind) for kind in kinds]
        if refused := next((one.refusal for one in tried if one.refusal), ""):
            raise JoinError(refused)
        joins = {name: rule for one in tried for name, rule in one.joins.items()}
        is_once = all(one.can_call_once for one in tried) and (len(kinds) == 1 or self._can_mix_kinds)
        calls = [members] if is_once or len(members) == 1 else [[member] for member in members]
        tensors = join((self._called(of_call, joins, tried) for of_call in calls), joins)
        if unknown := tensors.keys() - joins.keys():
            raise JoinError(f"{self._call.name} gives {', '.join(sorted(unknown))}, and gave none when it was tried")
        return tensors

    def can_split_calls(self, kinds: Collection[str]) -> bool:
        """Say whether media of these kinds give the same inputs in several calls, joined, as in one call."""
        used = {*kinds}
        return all(self._tried_media(kind).can_call_once for kind in used) and (len(used) < 2 or self._can_mix_kinds)

    def check_split_calls(self, whole: PreparedMedia, last: PreparedMedia) -> None:
        """Check that a call for all media of a member (`whole`) equals two: for those before `last`, and for `last`.

        Raises:
            JoinError: the inputs differ.
        """
        first = whole.first_media(len(whole.order) - len(last.order))
        together = self([whole])
        apart = join([self([first]), self([last])], self._known_joins)
        if not _are_same(apart, together):
            raise JoinError(
                f"{self._call.name} makes other inputs of some media of a sample than of all: samples can't share the"
                " first ones (packing.share=none)"
            )

    def require_usable_kind(self) -> None:
        """Try every kind of media now; JoinError: none can be used."""
        tried = [self._tried_media(kind) for kind in self._call.kinds]
        self._call.per_token_functions()
        if tried and all(one.refusal for one in tried):
            raise JoinError("; ".join(dict.fromkeys(one.refusal for one in tried)))

    @property
    def per_token_functions(self) -> dict[str, TokenFunction]:
        """Functions that make a model's special inputs with one value per token, from token ids; by input name."""
        self.require_usable_kind()
        return self._call.per_token_functions()

    def token_types(self, ids: list[int]) -> list[int] | None:
        """Return for each token 0 (text) or the number of its kind of media; None: only `InputRules.types` tells it."""
        return self._call.token_types(ids)

    def joins(self, names: Collection[str]) -> dict[str, JoinRule]:
        """Return the rules that join media inputs, at least those of `names`."""
        if not self._known_joins.keys() >= set(names):
            self.require_usable_kind()
        return self._known_joins

    @property
    def _known_joins(self) -> dict[str, JoinRule]:
        return {name: rule for one in self._tried.values() for name, rule in one.joins.items()}

    def _tried_media(self, kind: str) -> _TriedMedia:
        if kind not in self._tried:
            self._tried[kind] = self._try_kind(kind) if kind in self._call.kinds else _TriedMedia()
        if kind not in self._warned:
            self._warned.add(kind)
            if why := self._tried[kind].warning:
                _log.warning("%s", why)
        return self._tried[kind]

    @quiet_transformers()  # warnings about noise say nothing about the data
    def _try_kind(self, kind: str) -> _TriedMedia:
        name = self._call.name
        members = list(trial_media(self._rules, SEVERAL_SIZES, kind))
        try:
            proven = find_joins(self._call, members, list(trial_media(self._rules, SAME_SIZE, kind)))
        except Exception as error:  # any class of any processor may be behind it
            why = " ".join(str(error).split())[:300] or type(error).__name__
            tried = _TriedMedia(refusal=f"{name}: {KINDS[kind].nouns} of several members can't be joined: {why}")
        else:
            known = self._known_joins
            other = [key for key, rule in proven.joins.items() if known.get(key, rule) != rule]
            limit = proven.limit or (f"{other[0]} of other media is joined by another rule" if other else "")
            if other or (limit and kind == IMAGE.kind):
                tried = _TriedMedia(refusal=f"{name}: {limit}")
            else:
                needs_no_text = kind == IMAGE.kind and self._needs_no_text([members[0], members[-1]])
                tried = _TriedMedia(proven.joins, proven.can_call_once, needs_no_text, limit=limit)
                rows, lens = self._ratios_by_input(kind, members, proven.joins)
                tried = replace(tried, tokens_of_row=rows, lens_of_medium=lens)
                of_calls = [members] if tried.can_call_once else [[member] for member in members]
                tried = replace(tried, in_bytes=self._try_bytes(of_calls, tried))
        why = tried.limit and f"{name}: {tried.limit} ({_REMEDIES.get(kind, 'a pack a batch')})"
        return replace(tried, warning=tried.refusal or why)

    def _ratios_by_input(
        self, kind: str, members: Sequence[PreparedMedia], joins: Mapping[str, JoinRule]
    ) -> list[dict[str, float]]:
        """Return `tokens_of_row` and `lens_of_medium`: ratios that are the same for members of several sizes."""
        ratios: tuple[dict[str, set[float]], ...] = ({}, {})
        for tokens, media in zip(trial_members(self._rules, SEVERAL_SIZES, kind), members, strict=True):
            num_features = sum(medium.num_features for medium in tokens.media)
            try:
                tensors = self._call([media])
            except Exception:  # any class of any processor may be behind it
                continue
            for name, value in tensors.items():
                ratios[0].setdefault(name, set()).add(num_features / max(1, len(value)))
                length = value.shape[joins[name].dim] if name in joins else 0
                ratios[1].setdefault(name, set()).add(length / max(1, len(media.order)))
        return [{name: min(of) for name, of in found.items() if len(of) == 1} for found in ratios]

    def media_lens(self, tensors: Mapping[str, Tensor], seen: Sequence[Sequence[MediumInput]]) -> dict[str, list[int]]:
        """Return how much of each input each member's media (`seen`) have; inputs of which nothing tells are left out.

        Lengths lie in the dimension along which the input is joined.
        """
        lens = {}
        for name, value in tensors.items():
            tried = {kind: findings for kind, findings in self._tried.items() if name in findings.joins}
            dim = next((findings.joins[name].dim for findings in tried.values()), 0)
            for ratio in (self._num_by_tokens, self._num_by_media):
                of_members = [
                    sum(ratio(tried[medium.kind], name, medium) for medium in media if medium.kind in tried)
                    for media in seen
                ]
                if sum(of_members) == value.shape[dim] and all(num == int(num) for num in of_members):
                    lens[name] = [int(num) for num in of_members]
                    break
        return lens

    @staticmethod
    def _num_by_tokens(tried: _TriedMedia, name: str, medium: MediumInput) -> float:
        number = tried.tokens_of_row.get(name, 0.0)
        return medium.num_features / number if number and tried.joins[name].dim == 0 else nan

    @staticmethod
    def _num_by_media(tried: _TriedMedia, name: str, medium: MediumInput) -> float:
        return tried.lens_of_medium.get(name, nan)

    def refuse_feature_mismatch(self, tensors: Mapping[str, Tensor], media: Iterable[MediumInput]) -> None:
        """Raise ValueError if inputs (`tensors`) have features for more or fewer tokens than the pack's media have."""
        waiting: Counter[str] = Counter()
        for medium in media:
            waiting[medium.kind] += medium.num_features
        for name, value in tensors.items():
            kinds = [kind for kind in waiting if name in self._tried_media(kind).joins]
            numbers = {self._tried_media(kind).tokens_of_row.get(name, 0.0) for kind in kinds}
            if len(numbers) != 1 or 0.0 in numbers:
                continue
            num_made, num_waiting = len(value) * numbers.pop(), sum(waiting[kind] for kind in kinds)
            if num_made != num_waiting:
                raise ValueError(
                    f"{self._call.name} makes {name} for {num_made:,g} tokens, and {num_waiting:,} wait for them in the"
                    f" pack: it is not as it was when it was packed, with transformers {self._rules.transformers} (here"
                    f" {version_of('transformers')}): train with that, or pack again"
                )

    @cached_property
    def _can_mix_kinds(self) -> bool:
        """Whether one call for media of several kinds gives the same as separate calls."""
        each = [list(trial_media(self._rules, SEVERAL_SIZES, kind)) for kind in self._call.kinds]
        heard = [*trial_media(self._rules, VIDEOS_WITH_SOUND, VIDEOS_WITH_SOUND)]
        members = [*(of_kind[0] for of_kind in each), join_media([of_kind[1] for of_kind in each]), *heard]
        try:
            together = self._call(members)
            apart = join([self._call([member]) for member in members], self._known_joins)
        except Exception:  # any class of any processor may be behind it
            return False
        return _are_same(apart, together)

    def _called(
        self, members: Sequence[PreparedMedia], joins: Mapping[str, JoinRule], tried: Sequence[_TriedMedia]
    ) -> dict[str, Tensor]:
        """Return what a call for all media of some members makes, by name."""
        needs_no_text = all(one.needs_no_text for one in tried)
        if all(one.in_bytes is not None for one in tried):
            each = any(one.in_bytes for one in tried)
            with suppress(Exception):  # any class of any processor may be behind it; its own call says what is wrong
                return self._byte_calls(members, joins, needs_no_text, each)
        return self._call.images(members, joins) if needs_no_text else self._call(members)

    def _try_bytes(self, of_calls: Sequence[Sequence[PreparedMedia]], tried: _TriedMedia) -> bool | None:
        """Return `_TriedMedia.in_bytes`, by some calls, each for all media of some members."""
        for each in (False, True):
            with suppress(Exception):  # any class of any processor may be behind it
                made = [(members, self._call(members)) for members in of_calls]
                in_bytes = (self._byte_calls(members, tried.joins, tried.needs_no_text, each) for members, _ in made)
                if all(_are_same(whole, own) for (_, whole), own in zip(made, in_bytes, strict=True)):
                    return each
        return None

    def _needs_no_text(self, members: Sequence[PreparedMedia]) -> bool:
        """Say whether the image processor alone makes the same inputs from images."""
        try:
            whole = self._call(members)
            return _are_same(whole, self._call.images(members, whole))
        except Exception:  # any class of any processor may be behind it
            return False


def _empty(shape: Sequence[int]) -> Tensor:
    """Return a float32 tensor without values; in a worker of a DataLoader, in memory that its batches use again."""
    if get_worker_info() is None:
        return torch.empty(*shape)
    from energon_pack.training.kept_memory import make_empty_in_kept_memory

    return make_empty_in_kept_memory(shape)


def _are_same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def media_lens_of_packs(input_names: Iterable[str], packs: Sequence[EncodedMembers]) -> dict[str, list[int]]:
    """Return how much of each media input of a batch is each member's, by that of its packs; trees tell nothing."""
    if any(pack.tokens.is_tree for pack in packs):
        return {}
    nothing = [[0] * len(pack) if not pack.media_lens else [] for pack in packs]
    each = {
        name: [n for pack, none in zip(packs, nothing, strict=True) for n in pack.media_lens.get(name, none)]
        for name in input_names
    }
    num = sum(map(len, packs))
    return {name: lens for name, lens in each.items() if len(lens) == num}
