"""The tokens that packing writes are those of the template; a sample with other tokens than measured ends the run."""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from megatron.energon.errors import FatalSampleError

from energon_pack.config import Format, Mask, MediaIn, ModelConfig, OutputConfig, Overlong, PackConfig, Stage
from energon_pack.dataset.packing_template import load_template
from energon_pack.errors import PackError
from energon_pack.inspect.dataset import open_dataset
from energon_pack.inspect.vocabulary import load_token_decoder
from energon_pack.lengths.kept_tokens import KeptTokenReader, TokenWriter, remove_oldest_token_files
from energon_pack.lengths.measure import LengthsWrong
from energon_pack.lengths.table_cache import RowRun, write_cache_file
from energon_pack.loading.task_encoder import PackedTaskEncoder, inputs_of
from energon_pack.pack import pack
from energon_pack.plan.settings import SharedBeginnings
from energon_pack.report.views.view import token_decoder_of
from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.member import MediumInput, MemberTokens, PixelStep
from energon_pack.samples.pack_tokens import CHECKSUM_FIELD, PackTokens, members_of
from energon_pack.samples.written_tokens import join_member_tokens
from energon_pack.templates.model_inputs import tokenize_foreign_member
from energon_pack.templates.template import Template
from energon_pack.unpack import unpack
from support import processors
from support.batches import same
from support.damage import found, lines, read_shard, write_shard
from support.marks import slow
from support.packed import Make, demo_config, packed, train
from support.running import need_torchvision
from support.samples import chat, picture, sound, video, video_with_sound, write_tar
from support.weighted import turns

FRAMES = [f"f{i}.jpg" for i in range(5)]


def line(asked: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": "4 circles"}], **fields}


def part(kind: str, media: Any, **said: Any) -> dict[str, Any]:
    return {"type": kind, kind: media, **said}


SEEN = [
    line("Only words?", weight=0.25),
    {"messages": turns(0.5, 1.0, 0.0)},
    line("<image>?<image>", images=["p.png", "f0.jpg"]),
    line([part("image", "p.png", max_pixels=12_544), {"type": "text", "text": "How many?"}], weight=2),
    line([part("video", "v.mp4", nframes=4, video_start=1, video_end=2, resized_height=56, resized_width=56)]),
    line("<video> then <image>", videos=[FRAMES], images=["p.png"], fps=1),
    line([part("video", FRAMES[:4], sample_fps=4.0), part("image", "p.png", max_pixels=6_272), part("video", "v.mp4")]),
    {"messages": [turn for i in range(9) for turn in line(f"Ask {i} " + "one two " * 60)["messages"]]},
]  # fmt: skip
HEARD = [
    line("<audio>What?", audios=["a.wav"]),
    line("<audio><video><image>And here?", audios=["b.wav"], videos=["s.mp4"], images=["p.png"]),
    line("<video>What is heard?", videos=["s.mp4"], use_audio_in_video=True),
]


def write_lines(folder: Path, lines: Sequence[dict[str, Any]]) -> Path:
    files = {"p.png": picture(224, 168, "PNG"), "v.mp4": video(), **{name: picture(84, 56) for name in FRAMES}}
    if lines is HEARD:
        files |= {"a.wav": sound(9000), "b.wav": sound(7001, 22_050), "s.mp4": video_with_sound(8, 4, 50_000, 22_050)}
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "s.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return folder / "s.jsonl"


def plain(tokens: MemberTokens) -> MemberTokens:
    """As bytes hold it: weights of 32 bits, none where all are 1."""
    weights = [float(pa.scalar(weight, pa.float32()).as_py()) for weight in tokens.weights]
    media = [replace(medium, steps=(*medium.steps,), frames=(*medium.frames,)) for medium in tokens.media]
    spans = [(int(start), int(end)) for start, end in tokens.supervised]
    return replace(tokens, supervised=spans, weights=weights if {*weights} - {1.0} else [], media=media)


def check_written(folder: Path, processor: Path) -> list[MemberTokens]:
    """Compare the tokens in the packs with what the template makes of their members; return them."""
    template = load_template(folder, str(processor))
    members = [member for sample in train(folder) for member in inputs_of(sample)]
    for member in members:
        assert member.tokens is not None
        made = plain(replace(tokenize_foreign_member(template, member), shared_len=member.shared.num_tokens))
        assert made.ids.tolist() == member.tokens.ids.tolist()
        assert replace(made, ids=member.tokens.ids) == member.tokens
    return [member.tokens for member in members if member.tokens is not None]


@pytest.mark.parametrize(
    "media",
    [
        {},
        {"image": "center_crop", "crop_width": 112, "crop_height": 84},
        {"image": "qwen_vl_utils", "video": "qwen_vl_utils"},
    ],
)
def test_what_is_written_is_what_the_template_makes(
    demo: tuple[Path, Path], cache: Path, tmp_path: Path, media: dict[str, Any]
) -> None:
    """Texts, weights, images, clips and lists of frames, with what records say of them, and parts of a sample."""
    need_torchvision()
    settings: dict[str, Any] = {f"media__{name}": value for name, value in media.items()}
    settings |= {"packing__max_token_len": 800, "packing__overlong": Overlong.split_turns}
    settings |= {"source__format": Format.jsonl}
    folder = packed(demo_config(demo, cache, tmp_path, write_lines(tmp_path / "source", SEEN), **settings))
    written = check_written(folder, demo[1])
    assert len(written) > len(SEEN)
    assert {tokens.factor for tokens in written} == {0.25, 1.0, 2.0}
    assert [0.5, 1.0] in [tokens.weights for tokens in written]  # an answer of weight 0 is not trained
    seen = [medium for tokens in written for medium in tokens.media]
    assert {medium.kind for medium in seen} == {"image", "video"}
    assert {medium.num_images for medium in seen} == {0, 4, 5}
    assert all(medium.num_features for medium in seen)
    assert {step.operation for medium in seen for step in medium.steps} >= {"resize", "resize_frame"}
    assert ("crop" in {step.operation for medium in seen for step in medium.steps}) == ("crop_width" in media)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of tensors, in transformers
def test_what_is_heard_is_written(cache: Path, tmp_path: Path) -> None:
    need_torchvision()
    folder = processors.qwen2_5_omni(tmp_path / "processor")
    run = PackConfig(ModelConfig("auto", "auto", processor=str(folder)), cache_dir=str(cache))
    run.model.mask, run.model.add_special_tokens = Mask.positions, None
    run.source.path, run.source.format = str(write_lines(tmp_path / "source", HEARD)), Format.jsonl
    run.output.dir, run.output.name, run.packing.max_token_len = str(tmp_path), "packed", 2048
    run.executor.num_workers, run.measure.verify = 1, 1.0
    written = check_written(packed(run), folder)
    seen = {(medium.kind, medium.num_samples > 0) for tokens in written for medium in tokens.media}
    assert seen == {("audio", True), ("video", True), ("video", False), ("image", False)}
    run.output.name, run.output.messages = "bare", False
    both = [batches_of(each, folder, "neat") for each in (tmp_path / "packed", packed(run))]
    assert all(map(same, *both)), "nothing of it needs the conversations"


def test_trees_say_what_they_share(config: Make, demo: tuple[Path, Path], tmp_path: Path) -> None:
    members: dict[str, bytes] = {}
    for i in range(4):
        members |= {f"q{i}.json": chat("<image>What is it?", f"It is {i}."), f"q{i}.jpg": picture(280, 280)}
    source = write_tar(tmp_path / "source/a.tar", members).parent
    written = check_written(packed(config(source, packing__share=SharedBeginnings.prefix)), demo[1])
    assert [tokens.shared_len > 9 for tokens in written] == [False, True, True, True]


# ------------------------------------------------------------------------------------- other tokens than were measured


def _measured_wrong(cache: Path) -> None:
    """One sample of the cache gets a token more than it has."""
    (path,) = cache.glob("lengths/*/*.parquet")
    about, table = pq.read_metadata(path).metadata, pq.read_table(path)
    lens = table["token_len"].to_pylist()
    column = table.schema.get_field_index("token_len")
    table = table.set_column(column, table.schema.field(column), pa.array([lens[0] + 1, *lens[1:]], pa.int32()))
    path.unlink()
    write_cache_file(path.parent, 0, table, [RowRun(*each) for each in json.loads(about[b"records"])])


@pytest.mark.parametrize("stages", [slow([Stage.all]), [Stage.plan, Stage.write]])
def test_other_tokens_than_were_measured_end_the_run(config: Make, tmp_path: Path, stages: list[Stage]) -> None:
    """A pack would be over its capacity, or the same command would fail for ever."""
    source = write_tar(tmp_path / "source/a.tar", {f"{i}.json": chat(f"Is it {i}?", "Yes.") for i in range(3)}).parent
    make: Callable[..., PackConfig] = partial(config, source, cache_dir=str(tmp_path / "cache"))
    pack(make(stage=Stage.lengths))
    _measured_wrong(tmp_path / "cache")
    *before, last = stages
    for stage in before:
        pack(make(stage=stage))
    said = r"a\.tar/0 has 28 tokens, 4 of them trained when it is written, and 29 and 4 as measured with measure"
    with pytest.raises(LengthsWrong, match=said):
        pack(make(stage=last))
    assert not (tmp_path / "out/packed").exists()
    for stage in stages[:-1]:
        pack(make(stage=stage))
    pack(make(stage=last))


def test_an_engine_that_counts_wrong_is_not_asked_again(
    config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command would measure the same wrong lengths, and end in the same way, for ever."""
    source = write_tar(tmp_path / "source/a.tar", {f"{i}.json": chat(f"Is it {i}?", "Yes.") for i in range(3)}).parent
    made = Template.tokens_of

    def miscount(template: Template, samples: Any, rendered: Any, engine: str) -> list[MemberTokens]:
        members = made(template, samples, rendered, engine)
        return [replace(its, ids=np.append(its.ids, [0] * (engine != "tokenizers"))) for its in members]

    def rendered(template: Template, samples: Any, engine: str = "tokenizers") -> list[MemberTokens]:
        return made(template, samples, [template.render(sample) for sample in samples], engine)

    monkeypatch.setattr(Template, "tokens_of", miscount)
    monkeypatch.setattr(Template, "member_tokens", rendered)
    monkeypatch.setattr(KeptTokenReader, "find", lambda *_: None)
    make: Callable[..., PackConfig] = partial(config, source, cache_dir=str(tmp_path / "cache"))
    with pytest.raises(LengthsWrong, match=r"28 tokens, .*, and 29 and 4 as measured with measure.engine=auto"):
        pack(make())
    assert not [*tmp_path.glob("cache/lengths/*/*.tokens")], "tokens of lengths that were forgotten"
    assert pack(make())["tokens"] == 3 * 28


# ---------------------------------------------------------------------------------------------------------- kept tokens


def test_tokens_that_measuring_made_are_written(
    demo: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each text was parsed, rendered and tokenized once more to write it. Without what was kept, the same bytes are
    written.
    """
    make: Callable[..., PackConfig] = partial(demo_config, demo, tmp_path / "cache", tmp_path)
    run = make(output__overwrite=True, packing__max_token_len=1024)
    there = {path.name: path.read_bytes() for path in packed(run).glob("*.tar")}
    with monkeypatch.context() as patch:
        patch.setattr(Template, "member_tokens", lambda *_: pytest.fail("a sample is tokenized again"))
        patch.setattr(
            "energon_pack.dataset.sources.read_without_opening_media", lambda *_: pytest.fail("it is parsed again")
        )
        again = packed(run)
    assert {path.name: path.read_bytes() for path in again.glob("*.tar")} == there
    for path in (tmp_path / "cache").glob("lengths/*/*.tokens"):
        path.write_bytes(path.read_bytes()[:5000])
    assert {path.name: path.read_bytes() for path in packed(run).glob("*.tar")} == there


MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "a\u00e9\ud83d\ude42"},
    {"role": "assistant", "content": [{"type": "image"}]},
]


def read_of(**fields: Any) -> ReadSample:
    return ReadSample(b"", MESSAGES, MESSAGES, None, fields, [], [], [], False, [])


def test_kept_tokens_are_those_of_their_sample_or_none(tmp_path: Path) -> None:
    """Of another sample, of a damaged file, or of one that is gone: nothing is found, and nothing wrong is written."""
    frames = MediumInput("video", 2, 9, 84, 56, (PixelStep("resize", 56, 28),), (0, 7), 12.0, 2.5)
    members = [
        MemberTokens(np.array([5, 70_000, 5, 6]), [(1, 3)], [], [], 0.25),
        MemberTokens(np.array([1, 2, *[9] * 40, 3]), [(1, 2), (42, 43)], [0.5, 1.0], [frames, MediumInput("image")]),
        MemberTokens(np.zeros(0, np.int64), []),
    ]
    keeping = TokenWriter()
    timed = read_of(fps=2.0)
    places = [keeping.add(its, timed if i else read_of(id=7), i) for i, its in enumerate(members)]
    file = keeping.write(tmp_path)
    (path,) = tmp_path.iterdir()
    with KeptTokenReader(tmp_path) as kept:
        for checksum, (place, member) in enumerate(zip(places, members, strict=True)):
            found = kept.find(file + place, checksum)
            assert found is not None
            assert found.tokens.ids.tolist() == member.ids.tolist()
            assert plain(replace(found.tokens, ids=member.ids)) == plain(member)
            assert found.conversation == (None if checksum else [MESSAGES, None, {"id": 7}])
        assert kept.find(0, 0) is None
        assert kept.find(1 << 32 | 4, 0) is None, "there is no such file"
        assert kept.find(file + places[0], 1) is None, "it is another sample's"
        assert not path.exists()


def test_the_oldest_tokens_go_where_a_cache_has_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing bounded them: each model and each changed source left its tokens on the disk for ever."""
    monkeypatch.setattr("energon_pack.lengths.kept_tokens._MAX_CACHE_BYTES", 400)
    for day, folder in enumerate(("a", "b", "a")):
        keeping = TokenWriter()
        keeping.add(MemberTokens(np.array([day] * 3), []), read_of(), day)
        number = keeping.write(tmp_path / folder) >> 32
        os.utime(tmp_path / folder / f"{number:08x}.tokens", (day, day))
        remove_oldest_token_files(tmp_path)
    sizes = [(path.parent.name, path.stat().st_mtime) for path in tmp_path.glob("*/*.tokens")]
    assert sorted(sizes) == [("a", 2.0), ("b", 1.0)]


def test_a_run_keeps_the_bound(demo: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever measures looks at the cache's size once, and tokens that went are made again."""
    monkeypatch.setattr("energon_pack.lengths.kept_tokens._MAX_CACHE_BYTES", 0)
    assert [*packed(demo_config(demo, tmp_path / "cache", tmp_path, source__limit=3)).glob("*.tar")]
    assert [*(tmp_path / "cache").glob("lengths/*")]
    assert not [*(tmp_path / "cache").glob("lengths/*/*.tokens")]


# ------------------------------------------------------------------------------------------------------- another medium


def test_an_image_of_another_size_is_named(config: Make, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Its features would go to tokens that were counted for another picture."""
    need_torchvision()
    members = {"a.json": chat("<image>What?", "That."), "a.png": picture(84, 56, "PNG")}
    folder = packed(config(write_tar(tmp_path / "source/a.tar", members).parent))
    shard = folder / "packed-000000.tar"
    write_shard(shard, [(n, picture(56, 84, "PNG") if n.endswith("png") else data) for n, data in read_shard(shard)])
    encoder = PackedTaskEncoder(folder, str(demo[1]))
    (sample,) = train(folder)
    with pytest.raises(FatalSampleError, match=r"a\.tar/a in .*its picture is 56×84, and 84×56 by its header when it"):
        encoder.encode_sample(sample)


# ---------------------------------------------------------------------------------------------- without conversations


def batches_of(folder: Path, processor: Path, layout: str) -> list[Any]:
    encoder = PackedTaskEncoder(folder, str(processor), layout=layout, tokens_per_second=2)
    return [encoder.batch([encoder.encode_sample(sample)]) for sample in train(folder)]


def without_messages(folder: Path) -> None:
    """Each pack as it is with its conversations, without the field that holds them."""
    for path in sorted(folder.glob("*.tar")):
        for name, data in read_shard(path):
            assert not name.endswith("json") or "messages" not in json.loads(data)


@pytest.mark.parametrize("media", [slow(MediaIn.copy), MediaIn.reference])
def test_packs_without_conversations_are_trained_alike(
    demo: tuple[Path, Path], cache: Path, tmp_path: Path, media: MediaIn
) -> None:
    """Weights, images with settings, clips and lists of frames: all that a batch needs stands in the tokens."""
    need_torchvision()
    settings: dict[str, Any] = {"packing__max_token_len": 800, "packing__overlong": Overlong.split_turns}
    settings |= {"source__format": Format.jsonl, "output__media": media}
    settings |= {"source": write_lines(tmp_path / "source", SEEN)}
    whole = packed(demo_config(demo, cache, tmp_path / "whole", **settings))
    bare = packed(demo_config(demo, cache, tmp_path / "bare", output__messages=False, **settings))
    without_messages(bare)
    for layout in ("neat", "thd"):
        both = [batches_of(folder, demo[1], layout) for folder in (whole, bare)]
        assert len(both[0]) == len(both[1]) > 1
        assert all(map(same, *both))
    assert lines(found(whole, source=[])) == lines(found(bare, source=[], decode=True)) == ""


def test_what_packs_without_conversations_can_not_do_is_said(
    config: Make, demo: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody takes packs without text for packs that were damaged; and text that is in no pack is never looked for."""
    source = write_tar(tmp_path / "source/a.tar", {f"{i}.json": chat(f"Is it {i}?", "Yes.") for i in range(3)}).parent
    folder = packed(config(source, output__messages=False))
    why = r"packs hold no conversations \(output\.messages=false\)"
    with pytest.raises(PackError, match=why):
        unpack(folder, tmp_path / "out/single")
    checked = found(folder, source=[], processor=str(demo[1]))
    assert lines(checked) == ""
    assert re.search(rf"{why}: only their tokens are compared", "\n".join(checked.notes))
    assert checked.num_checked["source tokens"] == 3
    opened, number = open_dataset(folder), 0
    with opened.packs:
        vocabulary, _ = load_token_decoder(opened, str(demo[1]), False)
        assert vocabulary is not None
        seen, told = (opened.view(opened.packs[number], known) for known in (vocabulary, None))
    assert not seen.holds_text
    assert not told.holds_text
    assert [member.token_len for member in told.members] == [28] * 3
    assert "Is it 0?" in "".join(span.text for member in seen.members for span in member.spans or ())


def test_conversations_that_are_missing_are_a_defect(config: Make, tmp_path: Path) -> None:
    """Of a dataset that has them; and one that leaves them out holds none."""
    source = write_tar(tmp_path / "source/a.tar", {f"{i}.json": chat(f"Is it {i}?", "Yes.") for i in range(3)}).parent
    whole, bare = (
        packed(config(source, output__name="whole")),
        packed(config(source, output__name="bare", output__messages=False)),
    )
    jsons = [next(iter(read_shard(folder / "packed-000000.tar")))[1] for folder in (whole, bare)]
    for folder, other in ((whole, jsons[1]), (bare, jsons[0])):
        shard = folder / "packed-000000.tar"
        (name, _), *rest = read_shard(shard)
        write_shard(shard, [(name, other), *rest])
    assert "json: packed-000000.tar" in lines(found(whole))
    assert "no messages, and it was packed with output.messages=true" in lines(found(whole))
    assert "it has messages, and it was packed with output.messages=false" in lines(found(bare))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"flavor": "packed_captioning"}, "output.flavor=packed_captioning"),
        ({"sample_loader_py": True, "sample_type": "a:B"}, "output.sample_loader_py=true"),
    ],
)
def test_who_reads_conversations_gets_them(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(PackError, match=f"output.messages=false with {said}: "):
        OutputConfig(messages=False, **asked).check()


def test_what_is_shown_is_what_was_written(config: Make, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """A look that rendered the JSON again would show "Yes.", whatever is trained in its place."""
    source = write_tar(tmp_path / "source/a.tar", {"a.json": chat("Is it?", "Yes.")}).parent
    folder = packed(config(source))
    shard, vocabulary = folder / "packed-000000.tar", token_decoder_of(load_template(folder, str(demo[1])))
    (name, data), (of_tokens, written) = read_shard(shard)
    (tokens,) = members_of(PackTokens.from_bytes(written))
    ids = tokens.ids.copy()
    ids[tokens.supervised[0][0]] = ids[1]
    changed = join_member_tokens([replace(tokens, ids=ids)]).to_bytes()
    value = json.loads(data)
    value["_meta"][CHECKSUM_FIELD] = crc32(changed)
    write_shard(shard, [(name, json.dumps(value).encode()), (of_tokens, changed)])
    opened = open_dataset(folder)
    with opened.packs:
        (member,) = opened.view(opened.packs[0], vocabulary).members
    shown = "".join(span.text for span in member.spans or ())
    assert shown == vocabulary.tokenizer.decode(ids.tolist(), skip_special_tokens=False)
    assert "Yes." not in shown
    assert "Yes." in member.turns[1].text
