"""What qwen-vl-utils, decord and soundfile make of files: run inside an environment that has them.

`python run_witnesses.py ASKED.json FOLDER OUT.json`: each of ASKED is `{"names", "settings"}`; several names are the
frames of one video.
OUT.json: for each `[shape, what]`: of an image and of a list of frames the hash of qwen-vl-utils' pixels; of a video
the colours of the corners of decord's 4th frame; of a sound only soundfile's length.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import decord
import numpy as np
import soundfile
from qwen_vl_utils.vision_process import fetch_image, fetch_video


def seen(names: list[str], settings: dict[str, Any]) -> list[Any]:
    if len(names) > 1:
        frames, _ = fetch_video({"video": names, **settings}, return_video_metadata=True)
        return hashed(frames.permute(0, 2, 3, 1).numpy().astype(np.uint8))
    if names[0].endswith((".wav", ".flac", ".aiff")):
        return [len(soundfile.read(names[0])[0]), None]
    if names[0].endswith(".film"):
        reader = decord.VideoReader(names[0])
        frame = reader[3].asnumpy().astype(int)
        return [[len(reader), *frame.shape[:2]], [frame[y, x].tolist() for y in (5, -6) for x in (5, -6)]]
    return hashed(np.asarray(fetch_image({"image": names[0], **settings})))


def hashed(pixels: np.ndarray) -> list[Any]:
    return [list(pixels.shape), hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest()]


def main(asked: Path, folder: Path, out: Path) -> None:
    rows = json.loads(asked.read_text())
    out.write_text(json.dumps([seen([str(folder / name) for name in row["names"]], row["settings"]) for row in rows]))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
