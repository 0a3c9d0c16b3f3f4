"""Make small pictures of media."""

import io

from energon_pack.samples.media.image import opened, to_rgb
from energon_pack.samples.media.kinds import VIDEO
from energon_pack.samples.media.streams import decode_frames

_EDGE = 160  # pixels
_QUALITY = 60


def thumbnail(data: bytes, kind: str) -> bytes:
    """Return an image, or the first frame of a video, as WebP of a few KB.

    Raises:
        ValueError: it can't be decoded, or PyAV is missing; the message says which.
    """
    try:
        if kind == VIDEO.kind:
            image = decode_frames(data, [0])[0]
        else:
            file = opened(io.BytesIO(data))
            file.draft("RGB", (2 * _EDGE, 2 * _EDGE))  # a large JPEG is not decoded in full
            image = to_rgb(file)
        image.thumbnail((_EDGE, _EDGE))
        written = io.BytesIO()
        image.save(written, "WEBP", quality=_QUALITY, method=0)  # 0: the quickest
    except ImportError:
        raise ValueError("no picture: that needs PyAV (pip install 'energon-pack[video]')") from None
    except Exception as error:  # damaged bytes make Pillow's plugins and FFmpeg raise anything
        raise ValueError(f"it does not decode: {str(error) or type(error).__name__}") from None
    return written.getvalue()
