"""Tells from the configuration of AAC, and where that is silent from the first packet, what the decoder gives."""

from collections.abc import Callable

FRAME = 1024  # samples that the decoder gives for a packet
_RATES = (96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8000, 7350)
_NO_SBR = b"\x56\xe5\x00"  # the end of a configuration that says that the rate is not doubled


def plain_rate(config: bytes, first_packet: Callable[[], bytes]) -> int:
    """Return the rate of AAC-LC with `FRAME` samples in a packet, whose rate is not doubled (SBR); 0: anything else.

    If the configuration is silent about SBR, the decoder doubles the rate only if the first packet says so.
    """
    if len(config) < 2 or config[0] >> 3 != 2 or config[1] & 7:
        return 0
    index = (config[0] & 7) << 1 | config[1] >> 7
    rate = _RATES[index] if index < len(_RATES) else 0
    is_plain = config[2:] == _NO_SBR or (not config[2:] and _frames(config, first_packet()) == [(FRAME, rate)])
    return rate if is_plain else 0


def _frames(config: bytes, packet: bytes) -> list[tuple[int, int]]:
    """Return number of samples and rate of the frames that a packet gives; empty: it can't be decoded."""
    try:
        import av

        decoder = av.CodecContext.create("aac", "r")
        decoder.extradata = config
        return [(frame.samples, frame.sample_rate) for frame in decoder.decode(av.Packet(packet))]
    except Exception:  # damaged bytes make FFmpeg raise anything; what decodes the whole sound says what is wrong
        return []
