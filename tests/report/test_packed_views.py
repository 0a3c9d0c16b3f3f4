"""A written pack is shown unchanged; one that is damaged is refused in a line."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from energon_pack.dataset.files import PlanFile
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.pack_json import PackLookup, parse_pack
from energon_pack.dataset.pack_parts import group_files_by_pack
from energon_pack.errors import PackError
from energon_pack.report.views.packed import read_pack_view
from energon_pack.report.views.screens import members_rows, pack_section
from energon_pack.report.views.text import Tokens, find_common_limit
from energon_pack.report.views.view import PackPlace, PackView, Span, make_webp_thumbnail, token_decoder_of
from energon_pack.samples.flavors import DEFAULT_FLAVOR
from energon_pack.samples.media.medium import Media
from energon_pack.samples.member import MemberTokens
from energon_pack.samples.written_tokens import join_member_tokens
from energon_pack.sources.storage import InMemoryFile, open_file
from energon_pack.sources.tar import TarScan
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template
from support.packed import demo_config, packed
from support.samples import picture, video, write_tar


@pytest.fixture(scope="module")
def dataset(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo in shards of three packs."""
    out = tmp_path_factory.mktemp("out")
    return packed(demo_config(demo, cache, out, output__max_shard_packs=3, packing__max_token_len=4096))


def pack_of(*members: dict[str, Any], media: Sequence[str] = (), ids: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON of a pack with a medium for each member, or none."""
    num, files = len(members), [[name] for name in media] or [[] for _ in members]
    meta: dict[str, Any] = {name: [9] * num for name in ("token_lens", "num_supervised")} | {
        "total_token_len": 9 * num,
        "format": 3,
    }
    meta |= {"pack_id": "k", "fingerprint": "0" * 16, "source_parts": files, "tokens_crc32": 0}
    meta["sample_ids"] = [*ids] or [f"s{i}" for i in range(num)]
    return {"messages": [*members], "media_files": files, "media_type": "image" if media else "text", "_meta": meta}


def test_every_pack_is_found_by_number_and_by_key(dataset: Path) -> None:
    """Numbers are those of the plan: over the borders of shards, with and without what says where packs begin."""
    keys = list(dict.fromkeys(key for (keys,) in PlanFile(DatasetFolder(dataset)).columns("pack") for key in keys))
    with PackLookup(DatasetFolder(dataset), DEFAULT_FLAVOR) as packs:
        assert [packs[i].pack.files.key for i in range(len(packs))] == keys
        assert [packs.number_of(key) for key in keys] == list(range(len(keys)))
        assert packs.number_of("nothing") is None
        assert packs.number_of(f"{'0' * 8}{keys[1][8:]}") is None, "the key of another dataset is none of this one"
        with pytest.raises(PackError, match=f"pack {len(keys)} of .* there are {len(keys)}, from 0 on"):
            packs[len(keys)]


@pytest.mark.parametrize("index", [b"", b"\1" * 8 * 4, b"garbage", None])
def test_a_pack_is_found_without_its_index(dataset: Path, tmp_path: Path, index: bytes | None) -> None:
    """An index of a copy that was cut would show another pack than was asked for."""
    path = sorted(dataset.glob("*.tar"))[1]
    (tmp_path / path.name).write_bytes(path.read_bytes())
    if index is not None:
        (tmp_path / f"{path.name}.idx").write_bytes(index)
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / ".nv-meta" / ".info.json").write_text(json.dumps({"shard_counts": {path.name: 3}}))
    with (
        PackLookup(DatasetFolder(dataset), DEFAULT_FLAVOR) as packs,
        PackLookup(DatasetFolder(tmp_path), DEFAULT_FLAVOR) as copied,
    ):
        assert [copied[i].pack.files.key for i in range(3)] == [packs[i].pack.files.key for i in range(3, 6)]


@pytest.mark.parametrize("stated", [10**30, -1, None, True, "3"])
def test_a_count_that_is_none_is_counted(dataset: Path, tmp_path: Path, stated: object) -> None:
    """Of a damaged `.info.json`; a number beyond `len` ended in a traceback."""
    path = min(dataset.glob("*.tar"))
    (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / ".nv-meta" / ".info.json").write_text(json.dumps({"shard_counts": {path.name: stated}}))
    with PackLookup(DatasetFolder(tmp_path), DEFAULT_FLAVOR) as packs:
        assert len(packs) == 3


def test_a_view_has_what_the_plan_and_the_tokenizer_say(dataset: Path, template: Template) -> None:
    rows = PlanFile(DatasetFolder(dataset))
    with PackLookup(DatasetFolder(dataset), DEFAULT_FLAVOR) as packs:
        for found in packs.all():
            its_rows = rows.rows_of_packs({found.pack.files.key})[found.pack.files.key]
            place = PackPlace(found.number, len(packs), found.shard)
            stated = read_pack_view(found.file, found.pack, place, its_rows)
            made = read_pack_view(found.file, found.pack, place, None, token_decoder_of(template), max_thumbnails=3)
            for ours, theirs, row in zip(made.members, stated.members, its_rows, strict=True):
                assert ours.spans is not None
                counts = ours.token_len, ours.num_supervised, ours.num_visual_tokens
                assert counts == (theirs.token_len, theirs.num_supervised, theirs.num_visual_tokens)
                assert counts == (row.token_len, row.num_supervised, row.num_visual_tokens)
                assert ours.turns == theirs.turns
                assert sum(medium.num_tokens or 0 for medium in ours.media) == row.num_visual_tokens
            assert sum(m.data is not None for member in made.members for m in member.media) <= 3


def shown(tmp_path: Path, value: Any, template: Template | None = None, **media: bytes) -> PackView:
    tokens = {}
    if template is not None:
        tokens = {"k.tokens": tokens_of(value, template)}
        value["_meta"]["tokens_crc32"] = crc32(tokens["k.tokens"])
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    media_parts = {f"k.{n.replace('_', '.')}": d for n, d in media.items()}
    path = write_tar(tmp_path / "x.tar", {"k.json": raw, **tokens, **media_parts})
    with open_file(path) as file:
        data = InMemoryFile(file.read(0, file.size), "")
    (files,) = group_files_by_pack(TarScan(data))
    pack, defects = parse_pack(files, raw, DEFAULT_FLAVOR)
    vocabulary = None if template is None else token_decoder_of(template)
    return read_pack_view(data, pack, PackPlace(0, 1, "x.tar", 512), None, vocabulary, 8, defects)


def test_members_that_are_not_shown_are_not_read(dataset: Path) -> None:
    """A page shows eight members of a pack; the headers of all its images, and all its text, were read for it."""
    with PackLookup(DatasetFolder(dataset), DEFAULT_FLAVOR) as packs:
        found = packs[0]
        place = PackPlace(0, len(packs), found.shard)
        first, *others = read_pack_view(found.file, found.pack, place, max_members_read=1).members
        whole = read_pack_view(found.file, found.pack, place)
    assert (first, bool(first.turns), len(others) > 1) == (whole.members[0], True, True)
    assert [(member.turns, [medium.size for medium in member.media if medium.size]) for member in others] == [
        ([], [])
    ] * len(others)
    assert [(member.token_len, member.media_type) for member in others] == [
        (member.token_len, member.media_type) for member in whole.members[1:]
    ]


def tokens_of(value: Any, template: Template) -> bytes:
    """What packing writes of conversations with images of 56×56."""
    made: list[MemberTokens] = []
    for own, names in zip(value["messages"], value["media_files"], strict=True):
        made += template.member_tokens([Sample(own["messages"], [Media("image", 56, 56) for _ in names])])
    return join_member_tokens(made).to_bytes()


def member(*texts: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]}


def test_damaged_media_cost_only_themselves(tmp_path: Path, template: Template) -> None:
    value = pack_of(member("<image>x", "y"), member("<image>", "gone"), media=["s000.i00.png", "s001.i00.png"])
    view = shown(tmp_path, value, template, s000_i00_png=picture(56, 56, "PNG")[:90])
    first, second = view.members
    assert first.spans is not None, "its tokens are whole"
    assert first.media[0].problem is not None
    assert second.media[0].problem == "it is not there"
    assert [turn.text for turn in second.turns] == ["<image>", "gone"]
    assert "it is not there" in pack_section(view)


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"messages": {}, "media_files": 3}', pack_of({"messages": 7})])
def test_a_damaged_pack_is_refused_in_a_line(tmp_path: Path, raw: Any) -> None:
    with pytest.raises(PackError, match=r"x.tar: pack 0: .*energon_pack.verify says more"):
        shown(tmp_path, raw)


def test_hostile_text_is_text(tmp_path: Path, template: Template) -> None:
    """Samples of others are shown in a page that a browser runs."""
    evil = '<script>alert("1")</script><img src=x onerror=alert(1)>'
    value = pack_of(member(evil, evil), ids=[evil])
    for how in (None, template):
        made = pack_section(shown(tmp_path, value, how))
        assert "<script" not in made
        assert "<img" not in made
        assert "&lt;script&gt;" in made


def test_long_texts_and_many_members_are_cut(tmp_path: Path, template: Template) -> None:
    """A page of a pack of thousands of members would be as large as the pack."""
    value = pack_of(*[member("q" * 5_000, "a" * 5_000)] * 600)
    made = pack_section(shown(tmp_path, value), max_chars=10_000, max_members=20)
    assert len(made) < 150_000
    assert "and 580 more members" in made
    assert "characters …" in made


@pytest.mark.parametrize(("media", "shown_of_media"), [([], []), (["s000.i00.png"], ["media", "visual"])])
def test_members_have_columns_of_what_they_have(tmp_path: Path, media: list[str], shown_of_media: list[str]) -> None:
    """A table of texts would have empty columns of media, or one of images none."""
    members = shown(tmp_path, pack_of(member("q", "a"), media=media)).members
    table = members_rows(members)
    always = ["member", "medium", "turns", "tokens", "trained"]
    assert [name for name in table.header if name not in always] == shown_of_media
    assert set(always) < {*table.header, "shared"}
    assert [len(row) for row in table.rows] == [len(table.header)]


def test_a_thumbnail_is_small_and_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # on its side
    with Image.open(io.BytesIO(make_webp_thumbnail(picture(4000, 1000, exif=exif), "image"))) as small:
        assert small.size == (40, 160)
        assert small.format == "WEBP"
    assert len(make_webp_thumbnail(picture(4000, 4000), "image")) < 8_000
    for data, kind in ((b"", "image"), (picture()[:-20], "image"), (b"no video", "video")):
        with pytest.raises(ValueError, match="does not decode"):
            make_webp_thumbnail(data, kind)


def test_a_video_is_shown_by_its_first_frame() -> None:
    pytest.importorskip("av")
    with Image.open(io.BytesIO(make_webp_thumbnail(video(3, 320, 240), "video"))) as small:
        assert small.size == (160, 120)


def spans(*texts: str) -> list[Span]:
    """Text, what is trained on in capitals, and special tokens in angles: a character a token."""
    kinds = ("special" if text[0] == "<" else "text" for text in texts)
    return [Span(text, kind, len(text), float(text.isupper())) for text, kind in zip(texts, kinds, strict=True)]


def test_the_end_of_a_member_is_always_seen() -> None:
    """`… and 2 more tokens` hid the `<|im_end|>`, the token that people look for."""
    made = Tokens(spans("<s>", "q" * 5000, "</s>", "<a>", "A" * 900 + "Z", "<END>"), 400).to_html()
    assert made.endswith('Z<span class="special">&lt;END&gt;</span></mark></div>')
    many = Tokens(spans(*["<s>", "q", "A"] * 2000, "<END>"), 400).to_html()
    assert many.endswith('A<span class="special">&lt;END&gt;</span></mark></div>')
    assert len(many) < 4000
    assert " tokens … " in many


def test_a_long_system_turn_takes_no_room_of_what_is_trained_on() -> None:
    """Of 400 characters the question took all; the answer, of 250, is whole."""
    made = Tokens(spans("<s>", "q" * 5000, "<a>", "A" * 250, "<END>"), 400).to_html()
    assert "A" * 250 in made
    assert made.count("q") == 150


@given(st.lists(st.integers(0, 60), max_size=8), st.integers(0, 200))
def test_room_is_shared_evenly(sizes: list[int], room: int) -> None:
    """None is cut that needs not be, and no character is given away but for what does not divide."""
    most = find_common_limit(sizes, room)
    used = sum(min(size, most) for size in sizes)
    assert used <= room
    assert used == sum(sizes) or used + len(sizes) > room


@pytest.mark.parametrize("mode", ["RGB", "P", "1", "I;16"])
def test_a_picture_on_several_tiles_is_decoded_once_and_made_small_first(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Three samples with one picture of 108 megapixels took 82 s and 2 GB: each tile decoded and copied all of it."""
    file, sizes = io.BytesIO(), list[tuple[int, int]]()
    Image.new("RGB", (2000, 1500), (0, 90, 90)).convert("L" if mode == "I;16" else mode).convert(mode).save(file, "PNG")
    convert = Image.Image.convert

    def convert_seen(image: Image.Image, *mode: Any) -> Image.Image:
        sizes.append(image.size)
        return convert(image, *mode)

    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "convert", convert_seen)
        first, second = (make_webp_thumbnail(file.getvalue(), "image") for _ in range(2))
    assert first is second
    assert sizes.count((2000, 1500)) == (mode == "I;16")
    with Image.open(io.BytesIO(first)) as small:
        assert small.size == (160, 120)
