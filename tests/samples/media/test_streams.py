"""The film that a player shows is what is measured and trained, upright; no file lets FFmpeg open another."""

import gc
import io
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from energon_pack.report.views.view import make_webp_thumbnail
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.read_media import probe
from energon_pack.samples.media.stream_probe import frame_times
from energon_pack.samples.media.streams import decode_frames, may_turn_pictures, opened_container
from energon_pack.samples.skip import Reason, Skip
from support.films import BLUE, COVER, Pictures, film, turned_by_codec, with_cover_first
from support.samples import sound, video_with_sound

av = pytest.importorskip("av", reason="videos need PyAV")

FILM = Pictures()
OTHER = Pictures(colour=BLUE)


def beside_others() -> Iterator[tuple[str, bytes]]:
    yield "a cover first", with_cover_first(film(FILM, COVER._replace(disposition="attached_pic")))
    for format in ("mp4", "matroska", "avi"):
        yield f"a still first, {format}", film(COVER, FILM, format=format)
        yield f"a preview first, {format}", film(Pictures("mjpeg", 64, 32, colour=BLUE), FILM, format=format)
    yield "a PNG first", film(COVER._replace(codec="png"), FILM)
    yield "one frame of another codec", film(OTHER._replace(num_frames=1, width=640, height=480), FILM)
    for format in ("mp4", "matroska"):
        yield f"another angle, {format}", film(OTHER._replace(disposition="none"), FILM._replace(disposition="default"))


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in beside_others()])
def test_the_film_is_seen_and_no_cover(data: bytes) -> None:
    """The first stream was taken: one picture of another size, packed in place of the film."""
    medium = probe(io.BytesIO(data))
    assert (medium.width, medium.height, medium.num_frames, medium.fps) == (128, 64, 12, 10)
    (frame,) = decode_frames(data, [11])
    red, _, blue = frame.getpixel((100, 50))  # type: ignore[misc]
    assert (frame.size, red > 150, blue < 60) == ((128, 64), True, True)
    assert len(frame_times(data)) == 12
    with Image.open(io.BytesIO(make_webp_thumbnail(data, "video"))) as small:
        assert small.size == (128, 64)


@pytest.mark.parametrize("format", ["avi", "matroska", "mp4"])
def test_a_film_of_pictures_alone_is_a_film(format: str) -> None:
    assert probe(io.BytesIO(film(Pictures("mjpeg"), format=format))).num_frames == 12


def test_a_cover_alone_is_no_film() -> None:
    data = with_cover_first(film(FILM, COVER._replace(disposition="attached_pic")), keep_film=False)
    with pytest.raises(Skip, match=r"unreadable_media: .*there is no film in it, only a cover"):
        probe(io.BytesIO(data))


# ---------------------------------------------------------------------------------------------------- turned films

#: the display matrix that changes nothing
PLAIN = bytes.fromhex("00010000" + "00" * 12 + "00010000" + "00" * 12 + "40000000")
#: of the four corners, from left to right and down: which is brighter
_CORNERS = {0: "left upper", 1: "right upper", 2: "left lower", 3: "right lower"}


def bright_corner(frame: Image.Image) -> str:
    pixels = np.asarray(frame)[..., 0].astype(int)
    return _CORNERS[int(np.argmax([pixels[y, x] for y in (5, -6) for x in (5, -6)]))]


@pytest.mark.parametrize("format", ["mp4", "matroska"])
@pytest.mark.parametrize(
    ("turn", "size", "corner"),
    [
        ((0, False, False), (128, 64), "left upper"),
        ((90, False, False), (64, 128), "left lower"),
        ((180, False, False), (128, 64), "right lower"),
        ((270, False, False), (64, 128), "right upper"),
        ((0, True, False), (128, 64), "right upper"),
        ((0, False, True), (128, 64), "left lower"),
        ((90, True, False), (64, 128), "right lower"),
        ((90, False, True), (64, 128), "left upper"),
    ],
)
def test_a_film_is_turned_as_a_player_turns_it(
    turn: tuple[int, bool, bool], size: tuple[int, int], corner: str, format: str
) -> None:
    """Each upright clip of a phone was measured and trained lying on its side."""
    data = film(format=format, turn=turn)
    assert probe(io.BytesIO(data)) == Media("video", *size, "mp4" if format == "mp4" else "mkv", 12, 10.0)
    (frame,) = decode_frames(data, [3])
    assert (frame.size, bright_corner(frame)) == (size, corner)


@pytest.mark.parametrize("format", ["mp4", "mov"])
def test_a_turned_film_with_chapters_is_measured_upright(format: str) -> None:
    """A track of chapters holds one matrix more, which made up for the film's: it was measured lying on its side."""
    data = film(format=format, turn=(90, False, False), has_chapter=True)
    assert data.count(PLAIN) == data.count(b"mvhd") + data.count(b"tkhd") == 3
    medium = probe(io.BytesIO(data))
    assert (medium.width, medium.height) == (64, 128) == decode_frames(data, [0])[0].size


def test_a_directory_of_a_matroska_may_name_its_clusters() -> None:
    """The header was cut at the name, before the tracks: no track asked to be turned."""
    tracks, cues, cluster = (b"\x53\xab\x84" + bytes.fromhex(name) for name in ("1654ae6b", "1c53bb6b", "1f43b675"))
    data = film(format="matroska", turn=(90, False, False))
    assert data.index(tracks) < data.index(cues)
    data = data.replace(cues, cluster, 1)
    medium = probe(io.BytesIO(data))
    assert (medium.width, medium.height) == (64, 128) == decode_frames(data, [0])[0].size


@pytest.mark.parametrize("turn", [(), (180, False, False)])
def test_only_the_container_turns_a_film(turn: tuple[object, ...]) -> None:
    """FFmpeg turned the frame that holds an SEI, and no other: a film of frames of two sizes, measured by none."""
    try:
        data = film(Pictures("libx264"), turn=turn)
    except av.codec.codec.UnknownCodecError:
        pytest.skip("this PyAV has no libx264")
    for format, asking in turned_by_codec(data):
        medium = probe(io.BytesIO(asking))
        sizes = {frame.size for frame in decode_frames(asking, range(12))}
        assert (sizes, format) == ({(medium.width, medium.height)}, format) == ({(128, 64)}, format)


@pytest.mark.parametrize("format", ["mp4", "mov", "matroska", "webm", "mpegts", "avi"])
def test_no_frame_of_an_upright_film_is_decoded(format: str) -> None:
    """To decode the first frame would double the time of a probe."""
    data = film(Pictures("libvpx" if format == "webm" else "mpeg4"), format=format, has_chapter=format != "avi")
    with opened_container(io.BytesIO(data)) as container:
        assert not may_turn_pictures(io.BytesIO(data), container.format.name)


def test_no_frame_waits_for_the_collector() -> None:
    """If a forked worker frees a frame of its parent, it waits for ever for the threads that converted its pixels."""
    data = film(turn=(90, False, False))
    gc.collect()
    gc.disable()
    try:
        assert len(decode_frames(data, range(12))) == 12
        left = [type(thing).__name__ for thing in gc.get_objects() if type(thing).__module__.startswith("av.")]
    finally:
        gc.enable()
    assert "VideoFrame" not in left


ONE = 1 << 16


@pytest.mark.parametrize(
    ("matrix", "size"),
    [
        ([2 * ONE, 0, 0, 0, 3 * ONE, 0, 0, 0, 1 << 30], (128, 64)),  # stretched: pixels keep their shape
        ([0, 2 * ONE, 0, -ONE, 0, 0, 0, 0, 1 << 30], (64, 128)),
        ([-ONE, 0, 0, 0, -ONE, 0, 128 * ONE, 64 * ONE, 1 << 30], (128, 64)),  # moved into view, as phones write it
        ([0] * 9, (128, 64)),
    ],
)
def test_other_matrices(matrix: list[int], size: tuple[int, int]) -> None:
    data = film(matrix=matrix)
    medium = probe(io.BytesIO(data))
    assert (medium.width, medium.height) == size == decode_frames(data, [0])[0].size


@pytest.mark.parametrize("matrix", [[46341, -46341, 0, 46341, 46341], [ONE, 0, 0, ONE // 2, ONE]])
def test_other_angles_are_named(matrix: list[int]) -> None:
    with pytest.raises(Skip, match="a film that players do not turn by a right angle: its display matrix is") as skip:
        probe(io.BytesIO(film(matrix=[*matrix, 0, 0, 0, 1 << 30])))
    assert skip.value.reason is Reason.UNSUPPORTED_MEDIA


# ------------------------------------------------------------------------------------------------- files in files

HOSTILE = {
    "concat": b"ffconcat version 1.0\nfile '/etc/passwd'\n",
    "hls": b"#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n",
    "sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
    "dash": b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><BaseURL>http://127.0.0.1:9</BaseURL></MPD>',
}


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in HOSTILE.items()])
def test_no_list_of_files_is_opened(data: bytes) -> None:
    """FFmpeg takes a file for what its text says: SDP opened a port, and a list opens files and addresses."""
    with pytest.raises(av.FFmpegError), opened_container(io.BytesIO(data)):
        pytest.fail("it was opened")
    tagged = b"ID3\x03\0\0\0\0\0\x0a" + bytes(10) + data + b"\n" * 4000  # behind a tag FFmpeg looks again
    for named_as_a_clip in (data, tagged):
        with pytest.raises(Skip, match="unreadable_media"):
            probe(io.BytesIO(named_as_a_clip))


def test_what_is_opened_is_what_is_known() -> None:
    """A format that joins `formats.FORMATS` has to join the list of FFmpeg's readers, too."""
    for data in (film(), film(format="matroska"), film(format="avi"), sound(800), video_with_sound()):
        with opened_container(io.BytesIO(data)) as container:
            assert container.streams
