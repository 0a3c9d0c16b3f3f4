"""What is packed while it is loaded: samples by number, wherever they are.

number ──look──► the conversation and its media by their headers: enough to count tokens
       ──member──► the same with its images and videos: what training encodes
"""

from typing import Protocol

from energon_pack.samples.flavors.base import MemberInput
from energon_pack.templates.sample import Sample


class Samples(Protocol):
    """Samples that can be read in any order."""

    def __len__(self) -> int: ...

    def sample_id(self, number: int) -> str:
        """What a sample is called where it is named."""

    def look(self, number: int) -> Sample:
        """A sample by the headers of its media.

        Raises:
            Skip: it can't be packed.
        """

    def member(self, number: int) -> MemberInput:
        """A sample with its media, which are decoded where they are needed.

        Raises:
            Skip: it can't be packed.
            PackError: its file changed.
        """
