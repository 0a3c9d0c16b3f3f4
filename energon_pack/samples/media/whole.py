"""Tell whether a file of a container is cut short, by its outermost sizes."""

import os
from typing import BinaryIO


def has_whole_boxes(file: BinaryIO) -> bool:
    """Tell whether the outermost boxes of an mp4 end with the file: FFmpeg opens a cut mp4 and promises all frames."""
    end = file.seek(0, os.SEEK_END)
    position = 0
    while position + 8 <= end:
        file.seek(position)
        head = file.read(16)
        size = int.from_bytes(head[:4], "big")
        if size == 1:
            size = int.from_bytes(head[8:16], "big")
        elif size == 0:  # the box goes to the end of the file
            return True
        if size < 8:
            return False
        position += size
    return position == end


def has_whole_riff(file: BinaryIO) -> bool:
    """Tell whether the RIFF chunk of an AVI ends within the file."""
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(8)
    return head[:4] != b"RIFF" or 8 + int.from_bytes(head[4:], "little") <= end
