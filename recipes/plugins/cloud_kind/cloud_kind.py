"""Point clouds as a kind of media: `<cloud>` in a text, `clouds` in a record, .ply files.

The header of a .ply file tells its number of points, so lengths need no points. The call of a processor takes `clouds`,
and `cloud_processor` is the processor's part for them. The points are little-endian floats x, y and z.
"""

import re
from typing import Any, BinaryIO

import numpy as np

from energon_pack import Media, MediaFormat, Medium

_HEADER = re.compile(
    rb"ply\nformat binary_little_endian 1.0\nelement vertex (\d+)\n"
    rb"property float x\nproperty float y\nproperty float z\nend_header\n"
)
_LONGEST_HEADER = 200
_POINT_BYTES = 12


class Cloud(Medium):
    """Points in space; `Media.num_samples` is their number."""

    kind, noun, token_type = "cloud", "a point cloud", 4
    argument, parts = "clouds", ("cloud_processor",)
    is_visual = True  # packing.max_visual_tokens limits its tokens, too
    formats = (MediaFormat("cloud", "ply", re.compile(rb"ply\n")),)
    fields = ("num_samples",)
    example = Media("cloud", num_samples=1000)

    def probe(self, file: BinaryIO, container: MediaFormat) -> Media:
        file.seek(0)
        match = _HEADER.match(file.read(_LONGEST_HEADER))
        if match is None:
            raise ValueError("a .ply file that is not binary, with x, y and z as floats")
        number = int(match[1])
        if not number or file.seek(0, 2) != match.end() + number * _POINT_BYTES:
            raise ValueError(f"a point cloud that has not the {number:,} points of its header")
        return Media(self.kind, extension="ply", num_samples=number)

    def decoded(self, data: bytes, medium: Media, rate: int) -> Any:
        """Return float32 [num_samples, 3]."""
        return np.frombuffer(data, "<f4", offset=len(data) - medium.num_samples * _POINT_BYTES).reshape(-1, 3)

    def defect(self, data: bytes, medium: Media) -> str:
        return "" if np.isfinite(self.decoded(data, medium, 0)).all() else "points that are no numbers"

    def said(self, medium: Media) -> str:
        return f"a point cloud of {self.size(medium)}"

    def size(self, medium: Media) -> str:
        return f"{medium.num_samples:,} points"

    def blank(self, medium: Media) -> Any:
        return np.zeros((medium.num_samples, 3), np.float32)

    def drawn(self, rng: np.random.Generator) -> Media:
        return Media(self.kind, num_samples=int(rng.integers(1, 5000)))

    def noise(self, medium: Media, rng: np.random.Generator) -> Any:
        return rng.uniform(-1, 1, (medium.num_samples, 3)).astype(np.float32)
