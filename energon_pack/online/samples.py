"""The interface of samples that are packed while they load: samples by number, wherever they are.

number ──look──► the conversation and its media by their headers: enough to count tokens
       ──member──► the same with its images and videos: what training encodes
"""

from typing import Protocol

from energon_pack.samples.member import MemberInput
from energon_pack.templates.sample import Sample


class Samples(Protocol):
    """Samples that can be read in any order."""

    def __len__(self) -> int: ...

    def sample_id(self, number: int) -> str:
        """Return a sample's id, for packs, errors and the ledger."""

    def look(self, number: int) -> Sample:
        """Return a sample with only the headers of its media read.

        Raises:
            Skip: it can't be packed.
        """

    def member(self, number: int) -> MemberInput:
        """Return a sample with its media, which are decoded when they are used.

        Raises:
            Skip: it can't be packed.
            PackError: its file changed.
        """
