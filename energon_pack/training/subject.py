"""What a trial asks of a guarded model and its batches: those of packs, or of another collator."""

from collections.abc import Mapping
from typing import Any, Protocol

from energon_pack.training.made_trial import MadeTrial
from energon_pack.training.trial import Pending
from energon_pack.training.trial_inputs import TrialInputs


class Subject(Protocol):
    """A guarded model, and how its batches are read."""

    @property
    def model(self) -> Any:
        """The model of transformers."""

    @property
    def media(self) -> frozenset[str]:
        """Names of inputs that are media."""

    @property
    def name(self) -> str:
        """What a batch is called."""

    @property
    def tries_all(self) -> bool:
        """Whether each batch is tried; else one of each kind."""

    @property
    def all_the_same(self) -> str:
        """How it is trained without a trial."""

    def longest_of(self, inputs: Mapping[str, Any]) -> int:
        """Return the tokens of the longest member."""

    def is_open(self, inputs: Mapping[str, Any]) -> bool:
        """Say whether a mask of the batch itself lets members see each other."""

    def changed(self, inputs: Mapping[str, Any]) -> TrialInputs | None:
        """Return the inputs in which members are changed; None: there are no two members with words."""

    def beside(self, pending: Pending) -> MadeTrial:
        """Compare samples in a batch like the pending one with each of them alone."""

    def way_out(self, inputs: Mapping[str, Any]) -> str:
        """Say what keeps members apart in place of these inputs, which do not."""
