"""What a trial asks of a guarded model and its batches: those of packs, or of another collator."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from energon_pack.training.probe import Probe
from energon_pack.training.trial import Pending
from energon_pack.training.trial_inputs import TrialInputs


class Subject(ABC):
    """A guarded model, and how its batches are read."""

    #: the model of transformers
    model: Any
    #: names of inputs that are media
    media: frozenset[str]
    #: what a batch is called
    name: str
    #: whether each batch is tried; else one of each kind
    tries_all = False
    #: how it is trained without a trial
    all_the_same = ""

    @abstractmethod
    def longest_of(self, inputs: Mapping[str, Any]) -> int:
        """Return the tokens of the longest member."""

    def is_open(self, _: Mapping[str, Any]) -> bool:
        """Say whether a mask of the batch itself lets members see each other; those of packs are made of members."""
        return False

    @abstractmethod
    def changed(self, inputs: Mapping[str, Any]) -> TrialInputs | None:
        """Return the inputs in which members are changed; None: there are no two members with words."""

    @abstractmethod
    def probe(self, pending: Pending) -> Probe:
        """Return samples in a batch like the pending one, to be compared with each of them alone."""

    @abstractmethod
    def way_out(self, inputs: Mapping[str, Any]) -> str:
        """Say what keeps members apart in place of these inputs, which do not."""
