"""Check that lengths measured elsewhere still hold here, with other package versions or another processor."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from energon_pack.errors import PackError
from energon_pack.templates.replay import Compared, Replay, versions
from energon_pack.templates.template import Template

_log = logging.getLogger(__name__)


class Drift:
    """How a dataset was measured, and the differences between that and this machine."""

    def __init__(self, dataset: str, fingerprints: Mapping[str, str], replays: Sequence[Replay | None]):
        """Compare versions.

        Args:
            fingerprints: the fingerprints of the template that the dataset was packed with.
            replays: the kept samples of the dataset, or of each dataset of a blend; None for a dataset that was packed
                before replays existed.
        """
        self._dataset, self._fingerprints = dataset, fingerprints
        self._kept = [replay for replay in replays if replay is not None]
        self._is_old = len(self._kept) < len(replays)
        here, there = versions(), [replay.versions.items() for replay in self._kept]
        self._versions = {name: value for items in there for name, value in items if here.get(name) != value}
        self._others = [f"{name} {value} (here {here.get(name)})" for name, value in self._versions.items()]

    @contextmanager
    def naming_versions(self) -> Iterator[None]:
        """Name the other versions in the error if the template can't be built here.

        Raises:
            PackError: replaces the error of building.
        """
        try:
            yield
        except PackError as error:
            if not self._others:
                raise
            raise PackError(f"{error} ({self._dataset} was packed with {' and '.join(self._others)})") from None

    def refuse_other_lengths(self, template: Template, processor: str, has_own_code: bool) -> None:
        """Refuse a dataset whose lengths do not hold here.

        If packages or the processor differ from the packing's, samples of the dataset are measured again. The log gives
        the result in one line.

        Args:
            template: built here.
            has_own_code: the processor runs code from its folder, so no version of a package says whether that changed.

        Raises:
            ValueError: a sample has another length, or another tokenizer gives it other tokens; or the processor
                differs and no sample was kept that could be measured.
        """
        theirs, ours = self._fingerprints, template.fingerprints
        differ = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
        if not (differ or self._others or has_own_code):
            return
        others = [*self._others]
        if differ:
            others.append(f"another {' and another '.join(differ)} than that of {processor}")
        compared = sum((replay.compare(template, len(self._kept)) for replay in self._kept), Compared())
        wrong = compared.difference
        if not wrong and compared.other_ids and "tokenizer" in differ:
            wrong = f"{compared.other_ids} has as many tokens here, but others"
        if not wrong and differ and (self._is_old or not compared.num_measured):
            wrong = "no samples are kept in .nv-meta/replay.json that would show whether lengths differ"
        if wrong:
            mend = [f"{name}=={value}" for name, value in self._versions.items()]
            if differ or not mend:
                mend.append("the processor it was packed with")
            raise ValueError(
                f"{self._dataset} was packed with {' and '.join(others) or 'other code of its processor'}: {wrong}."
                f" Train with {' and '.join(mend)}, or pack again"
            )
        if others:
            tokens = f"; other tokens first in {compared.other_ids}" if compared.other_ids else ""
            number = f"{compared.num_measured} of {compared.num_kept} samples that are kept"
            came = f"{number} measured again, none has another length{tokens}"
            _log.warning("%s was packed with %s: %s", self._dataset, " and ".join(others), came)
