"""The demo's packs through real Energon loaders into batches, from end to end."""

import copy
import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.energon import SkipSample, WorkerConfig, get_savable_loader, get_train_dataset
from megatron.energon.errors import FatalSampleError

from energon_pack import metadataset
from energon_pack.config import Rope
from energon_pack.dataset.manifest import packing_processor_folder, read_manifest
from energon_pack.dataset.packing_template import load_template
from energon_pack.errors import PackError
from energon_pack.flavors import MultiMixQASample, PackedCaptioningSample
from energon_pack.loading.task_encoder import PackedTaskEncoder
from energon_pack.samples.media.lazy_image import LazyImage
from energon_pack.training import member_encoder, pack_encoder
from energon_pack.training.batch import PackedBatch, touch_vision
from energon_pack.training.joining import JoinError
from energon_pack.training.layout import IGNORE
from energon_pack.training.processor_calls import MediaProcessorCaller
from support.alone import demo_model
from support.marks import slow
from support.packed import demo_config, prepare, train
from support.packed import packed as pack_of
from support.running import need_torchvision
from support.samples import picture, video


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    need_torchvision()


@pytest.fixture(scope="module")
def packed(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 of the demo's samples, aligned to 8."""
    settings: dict[str, Any] = {"output__name": "demo", "source__limit": 60, "model__rope": Rope.qwen2_5_vl}
    settings |= {"packing__max_token_len": 1600, "packing__pad_to_multiple_of": 8}
    return pack_of(demo_config(demo, cache, tmp_path_factory.mktemp("packed"), **settings))


@pytest.fixture(scope="module")
def encoder(packed: Path, demo: tuple[Path, Path]) -> PackedTaskEncoder:
    return PackedTaskEncoder(packed, str(demo[1]), tokens_per_second=2)


def test_the_processor_of_the_packing_is_taken_where_it_is_here(
    packed: Path, demo: tuple[Path, Path], tmp_path: Path
) -> None:
    """The model hub was asked for the published one, whose lengths are others, though report.json named the folder."""
    assert load_template(packed).fingerprints == load_template(packed, str(demo[1])).fingerprints
    blend, moved = tmp_path / "blend.yaml", tmp_path / "moved"
    metadataset.main([str(blend), f"{packed}=1"])
    assert packing_processor_folder(blend) == str(demo[1])
    shutil.copytree(packed, moved)
    report = moved / "report.json"
    report.write_text(report.read_text().replace(str(demo[1]), "/of/another/machine"))
    assert packing_processor_folder(moved) is None
    report.write_text("[]")
    assert packing_processor_folder(moved) is None


@pytest.fixture(scope="module")
def samples(packed: Path) -> list[Any]:
    return list(train(packed))


@pytest.fixture(scope="module")
def model(encoder: PackedTaskEncoder) -> Any:
    """A tiny random Qwen2.5-VL with the demo's tokens."""
    return demo_model(encoder.rules)


def test_the_longest_pack_is_as_long_as_the_hard_limit(packed: Path, encoder: PackedTaskEncoder) -> None:
    """With `own_pack` some packs are longer than `guard` was told, and it would refuse them."""
    assert encoder.encoder.max_token_len == 1600
    made = copy.deepcopy(read_manifest(packed))
    made["content"]["packing"] |= {"overlong": "own_pack", "hard_limit": 5000}
    longer = pack_encoder.PackEncoder(made, encoder.encoder.rules, pad_to="max_token_len", tokens_per_second=2)
    assert longer.max_token_len == 5000


def test_rows_of_members_take_any_width(packed: Path, encoder: PackedTaskEncoder) -> None:
    """Layout `rows` has neither widths nor aligned members: a width that is no multiple of 8 was refused."""
    made = read_manifest(packed)
    pack_encoder.PackEncoder(made, encoder.encoder.rules, layout="rows", pad_to=[1604], tokens_per_second=2)
    with pytest.raises(ValueError, match="1604 is no multiple of pad_to_multiple_of=8"):
        pack_encoder.PackEncoder(made, encoder.encoder.rules, layout="thd", pad_to=[1604], tokens_per_second=2)


def loader(source: Any, encoder: Any, num_workers: int = 0, batch_size: int = 1, **settings: Any) -> Any:
    settings = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False, **settings}
    worker = WorkerConfig(rank=0, world_size=1, num_workers=num_workers)
    dataset = get_train_dataset(source, worker_config=worker, batch_size=batch_size, task_encoder=encoder, **settings)
    return get_savable_loader(dataset)


def ids(batches: Iterator[Any]) -> list[str]:
    return [sample_id for batch in batches for row in batch["sample_ids"] for sample_id in row]


def one(encoder: PackedTaskEncoder, *samples: Any) -> PackedBatch:
    batch: PackedBatch = encoder.batch([encoder.encode_sample(sample) for sample in samples])
    return batch


@pytest.mark.parametrize(
    ("num_workers", "dataset_config"),
    [(0, "dataset.yaml"), slow(2, "dataset.yaml"), slow(0, "crude.yaml"), (2, "crude.yaml")],
)
def test_every_member_comes_once_with_all_its_tokens(
    packed: Path, encoder: PackedTaskEncoder, samples: list[Any], num_workers: int, dataset_config: str
) -> None:
    batches = list(loader(packed, encoder, num_workers, dataset_config=dataset_config))
    assert all(isinstance(batch, PackedBatch) for batch in batches)
    expected = {s: n for sample in samples for s, n in zip(sample.sample_ids, sample.token_lens, strict=True)}
    assert sorted(ids(iter(batches))) == sorted(expected)
    trained = {s: n for sample in samples for s, n in zip(sample.sample_ids, sample.num_supervised, strict=True)}
    for batch in batches:
        bounds = batch["cu_seq_lens_q"].tolist()
        for sample_id, start, end in zip(batch["sample_ids"][0], bounds[:-1], bounds[1:], strict=False):
            assert end - start == expected[sample_id]
            labels = batch["labels"][0, start:end]
            assert int((labels != IGNORE).sum()) == trained[sample_id]
            assert batch["position_ids"][0, 0, start:end].tolist() == list(range(end - start))
        grids = batch.get("image_grid_thw", torch.zeros(0, 3, dtype=torch.long))
        assert int(batch["n_images_per_sample"].sum()) == len(grids)
        assert int(grids.prod(1).sum()) // 4 == int((batch["mm_token_type_ids"] == 1).sum())


def test_media_that_no_rule_joins_are_refused_when_the_encoder_is_built(
    packed: Path, demo: tuple[Path, Path], samples: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never in the first pack that has two of them, and never as a fault of a member that is dropped."""

    def refused(*_: Any) -> None:
        raise JoinError("SomeProcessor gives maps: no rule joins them")

    encoder = PackedTaskEncoder(packed, str(demo[1]), on_bad_member="drop")
    monkeypatch.setattr(MediaProcessorCaller, "__call__", refused)
    monkeypatch.setattr(MediaProcessorCaller, "images", refused)
    with pytest.raises(FatalSampleError, match="SomeProcessor gives maps"):
        encoder.encode_sample(next(sample for sample in samples if any(sample.images)))
    asked = replace(encoder.rules, is_asked=True)
    with pytest.raises(ValueError, match="SomeProcessor gives maps"):
        member_encoder.MemberEncoder(asked).check_processor()


@pytest.mark.parametrize(
    ("layout", "pad_to"), [("neat", 512), slow("neat", [700, 2000]), slow("thd", 512), ("thd", [704, 2000])]
)
def test_an_epoch_has_few_shapes_and_the_same_loss(
    packed: Path, demo: tuple[Path, Path], samples: list[Any], model: Any, layout: str, pad_to: Any
) -> None:
    """Each pack had a width and a number of boundaries of its own, and each shape costs tuning, or a graph."""
    plain, few = (
        PackedTaskEncoder(packed, str(demo[1]), layout=layout, **options)
        for options in ({}, {"pad_to": pad_to, "pad_segments": 32})
    )
    name, longest = ("cu_seq_lens_q", "max_length_q") if layout == "neat" else ("cu_seqlens_q", "max_seqlen_q")
    batches = [one(few, sample) for sample in samples]
    shapes = {(batch["input_ids"].shape[1], len(batch[name]), int(batch[longest])) for batch in batches}
    widths = {512, 1024, 1536, 2048} if pad_to == 512 else {*pad_to}
    assert shapes <= {(width, 33, width) for width in widths}
    ends = batches[0][name]
    assert len(ends.unique()) < 33
    assert ends.tolist() == sorted(ends.tolist())
    if layout == "neat":
        with torch.no_grad():
            losses = [model(**own.model_inputs()).loss for own in (one(plain, samples[0]), batches[0])]
        assert float((losses[0] - losses[1]).abs()) <= 1e-6
    with pytest.raises(FatalSampleError, match="more than pad_segments=2: pack with packing"):
        one(
            PackedTaskEncoder(packed, str(demo[1]), layout=layout, pad_segments=2),
            max(samples, key=lambda s: len(s.sample_ids)),
        )


@pytest.mark.parametrize("num_workers", [slow(0), 2])
def test_a_loader_goes_on_where_it_was_saved(packed: Path, encoder: PackedTaskEncoder, num_workers: int) -> None:
    settings = {"repeat": True, "shuffle_buffer_size": 3}
    first = loader(packed, encoder, num_workers, **settings)
    stream = iter(first)
    for _ in range(4):
        next(stream)
    state = first.save_state_rank()
    expected = [next(stream)["sample_ids"] for _ in range(6)]
    again = loader(packed, encoder, num_workers, **settings)
    again.restore_state_rank(state)
    stream = iter(again)
    assert [next(stream)["sample_ids"] for _ in range(6)] == expected


def test_a_batch_is_restored_by_its_key(packed: Path, encoder: PackedTaskEncoder) -> None:
    first = loader(packed, encoder)
    batch = next(iter(first))
    again = first.restore_sample(batch["__restore_key__"])
    assert again["sample_ids"] == batch["sample_ids"]
    assert torch.equal(again["input_ids"], batch["input_ids"])


def test_packed_and_unpacked_in_one_blend(
    packed: Path, demo: tuple[Path, Path], encoder: PackedTaskEncoder, tmp_path: Path
) -> None:
    shutil.copytree(demo[0], tmp_path / "source")
    crude = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    source = prepare(tmp_path / "source", {**crude, "subflavors": {"sample_type": "multi_mix_qa"}})
    parts = [{"weight": 1.0, "path": str(path)} for path in (packed, source)]
    blend = tmp_path / "blend.yaml"
    blend.write_text(
        json.dumps(
            {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {"blend": parts}}}
        )
    )
    stream = iter(loader(blend, encoder, batch_size=2, repeat=True))
    sizes = [len(row) for _ in range(8) for row in next(stream)["sample_ids"]]
    assert 1 in sizes
    assert max(sizes) > 1


def test_neat_and_thd_give_the_same_loss(
    packed: Path, demo: tuple[Path, Path], encoder: PackedTaskEncoder, samples: list[Any], model: Any
) -> None:
    """Shards packed for multiples of 8 serve both layouts; gaps in thd change nothing."""
    sample = next(s for s in samples if s.media_type == "image")
    thd_encoder = PackedTaskEncoder(packed, str(demo[1]), layout="thd", rope_rows=True, pad_to="max_token_len")
    batch = one(thd_encoder, sample)
    assert int(batch["total_tokens"]) == batch["input_ids"].shape[1] == 1600
    assert not (batch["cu_seqlens_q_padded"] % 8).any()
    assert batch["visual_inputs"].normalized_for_model().keys() == {
        "pixel_values", "image_grid_thw", "mm_token_type_ids"
    }  # fmt: skip
    padded = batch["cu_seqlens_q_padded"]
    text = torch.arange(1600) - torch.repeat_interleave(padded[:-1], padded.diff().long())
    media = {name: batch[name] for name in ("pixel_values", "image_grid_thw")}
    rows = torch.cat([text.long()[None, None], batch["position_ids"]])
    with torch.no_grad():
        neat = model(**one(encoder, sample).model_inputs()).loss
        thd = model(batch["input_ids"], position_ids=rows, use_cache=False, **media).logits[0]
        each = torch.nn.functional.cross_entropy(thd, batch["labels"][0], reduction="none")
        loss = (each * batch["loss_mask"][0]).sum() / batch["loss_mask"].sum()
    assert float((neat - loss).abs()) <= 1e-5


def test_every_layout_has_its_keys(packed: Path, demo: tuple[Path, Path], samples: list[Any]) -> None:
    text = next(s for s in samples if s.media_type == "text")
    image = next(s for s in samples if s.media_type == "image")
    rows = one(PackedTaskEncoder(packed, str(demo[1]), layout="rows"), image)
    assert rows["input_ids"].shape[0] == len(image.sample_ids)
    mlm = PackedTaskEncoder(packed, str(demo[1]), layout="mlm")
    assert one(mlm, text)["imgs"].shape == (1, 1)
    assert {"tokens", "labels", "imgs", "num_tiles", "cu_lengths", "max_lengths"} <= one(mlm, image).keys()
    with pytest.raises(FatalSampleError, match="holds one pack a batch, not 2"):
        one(mlm, text, image)
    indexed = one(PackedTaskEncoder(packed, str(demo[1]), attention_mask="indexed"), text)
    assert int(indexed["attention_mask"].max()) == len(text.sample_ids)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"layout": "thd", "pad_to_multiple_of": 16}, "pad_to_multiple_of=16 does not divide 8"),
        ({"layout": "flat"}, "layout=flat: one of neat, thd"),
        ({"loss_weight": "square"}, "loss_weight=square"),
        ({"on_bad_member": "ignore"}, "on_bad_member=ignore"),
        ({"layout": "thd", "attention_mask": "indexed"}, "attention_mask=indexed: layout=thd has none; for neat"),
        ({"layout": "mlm", "loss_weight": "sample"}, "loss_weight=sample: layout=mlm has none"),
        ({"layout": "mlm", "labels": "shifted"}, "labels=shifted: layout=mlm has none"),
        ({"layout": "rows", "rope_rows": True}, "rope_rows=True: layout=rows has none"),
        ({"layout": "rows", "pad_segments": 64}, "pad_segments=64: layout=rows has none; for neat, thd"),
        ({"pad_to": "shortest"}, "pad_to=shortest: longest, max_token_len, a number of tokens, or a list of widths"),
        ({"pad_to": [512, 1024]}, r"pad_to=\[512, 1024\]: packs have up to 1600 tokens"),
        ({"pad_to": True}, "pad_to=True"),
        ({"layout": "thd", "pad_to": 1004}, "pad_to=1004: 1004 is no multiple of pad_to_multiple_of=8, .*: 1008 is"),
        ({"layout": "mlm", "pad_to": [804, 1600]}, "804 is no multiple of pad_to_multiple_of=8, .*_multiple_of=4"),
        ({"pad_segments": 1}, "pad_segments=1: 2 or more"),
    ],
)
def test_what_does_not_fit_is_refused(
    packed: Path, demo: tuple[Path, Path], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        PackedTaskEncoder(packed, str(demo[1]), **settings)


def test_a_processor_of_other_pixels_is_refused_with_the_setting_and_both_values(
    packed: Path, demo: tuple[Path, Path], tmp_path: Path
) -> None:
    """The features did not fit their tokens, and nothing said why; with another mean, other pixels were trained."""
    other = shutil.copytree(demo[1], tmp_path / "other")
    file = other / "preprocessor_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "image_processor_type": "Fast", "of_another_version": 1}))
    PackedTaskEncoder(packed, str(other))
    file.write_text(json.dumps({**settings, "max_pixels": 50176}))
    with pytest.raises(PackError, match=r"_config\.json: max_pixels is 50176, and where .* packed 1003520: "):
        PackedTaskEncoder(packed, str(other))


def test_a_hybrid_model_is_refused_without_its_kernels(packed: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(packed, tmp_path / "hybrid")
    manifest = tmp_path / "hybrid" / ".nv-meta" / "energon_pack.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "mask": "hybrid"}))
    with pytest.raises(ValueError, match="flash-linear-attention causal-conv1d"):
        PackedTaskEncoder(tmp_path / "hybrid", str(demo[1]))


def test_a_hybrid_model_gets_the_document_of_each_token(
    packed: Path, demo: tuple[Path, Path], tmp_path: Path, samples: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(packed, tmp_path / "hybrid")
    manifest = tmp_path / "hybrid" / ".nv-meta" / "energon_pack.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "mask": "hybrid"}))
    monkeypatch.setattr(pack_encoder, "refuse_missing_hybrid_kernels", lambda: None)
    encoder = PackedTaskEncoder(tmp_path / "hybrid", str(demo[1]))
    batch = one(encoder, samples[0])
    assert batch.model_inputs()["seq_idx"].shape == batch["input_ids"].shape
    assert int(batch["seq_idx"].max()) == len(samples[0].sample_ids) - 1
    with pytest.raises(FatalSampleError, match="one row only, not in 2"):
        one(encoder, *samples[:2])


@pytest.mark.parametrize("num_workers", [slow(0), 2])
def test_the_masks_a_model_needs_are_remembered_on_the_way(
    packed: Path, demo: tuple[Path, Path], model: Any, num_workers: int
) -> None:
    encoder = PackedTaskEncoder(packed, str(demo[1]), attention_mask="dict4d")
    batch = next(iter(loader(packed, encoder, num_workers)))
    with pytest.raises(ValueError, match="made on its device"):
        batch.model_inputs()
    masks = batch.model_inputs(model)["attention_mask"]
    size = batch["input_ids"].shape[1]
    assert masks["full_attention"].shape == (1, 1, size, size)


def test_another_length_ends_the_training(encoder: PackedTaskEncoder, samples: list[Any]) -> None:
    """A model would be fed the tokens of other samples under these names and with these media."""
    one, other = samples[:2]
    wrong = replace(one, token_lens=[n + 1 for n in one.token_lens])
    said = f"{one.sample_ids[0]} has {one.token_lens[0]} tokens in its pack, and {wrong.token_lens[0]} by _meta"
    with pytest.raises(FatalSampleError, match=said):
        encoder.encode_sample(wrong)
    assert one.token_lens[0] != other.token_lens[0]
    with pytest.raises(FatalSampleError, match=f"{one.sample_ids[0]} has {other.token_lens[0]} tokens in its pack"):
        encoder.encode_sample(replace(one, tokens=other.tokens))
    with pytest.raises(FatalSampleError, match=f"{one.__key__}: TokensDamaged: tokens of .* bytes by their header"):
        encoder.encode_sample(replace(one, tokens=one.tokens[:-1]))


@pytest.mark.parametrize("num_workers", [0, slow(2)])
def test_a_damaged_member_ends_the_training_or_is_left_out_alone(
    packed: Path, demo: tuple[Path, Path], tmp_path: Path, num_workers: int
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(packed, damaged)
    tar = damaged / "packed-000000.tar"
    data = bytearray(tar.read_bytes())
    at = data.index(b"\x89PNG") + 60
    data[at : at + 40] = bytes(40)
    tar.write_bytes(bytes(data))
    with pytest.raises(Exception, match=r"demo-.*OSError: .*\.i0\d\.png.*on_bad_member=drop"):
        list(loader(damaged, PackedTaskEncoder(damaged, str(demo[1])), num_workers))
    batches = list(loader(damaged, PackedTaskEncoder(damaged, str(demo[1]), on_bad_member="drop"), num_workers))
    assert sum(batch["num_dropped"] for batch in batches) == 1
    assert len(ids(iter(batches))) == 59


@pytest.mark.parametrize("how", ["header", "missing"])
def test_a_member_whose_image_is_gone_is_named_or_left_out_alone(
    packed: Path, demo: tuple[Path, Path], tmp_path: Path, how: str
) -> None:
    """Bytes without a header, and a part that is not in the tar: no size to print, and none of the pack is lost."""
    damaged = tmp_path / "damaged"
    shutil.copytree(packed, damaged)
    tar = damaged / "packed-000000.tar"
    data = bytearray(tar.read_bytes())
    if how == "header":
        at = data.index(b"\x89PNG")
        data[at : at + 40] = bytes(40)
    else:
        with tarfile.open(tar) as file:
            info = next(info for info in file if info.name.endswith(".png"))
        other = tarfile.TarInfo(info.name.replace(".i", ".x"))
        other.size = info.size
        data[info.offset : info.offset + 512] = other.tobuf(tarfile.USTAR_FORMAT)[:512]
    tar.write_bytes(bytes(data))
    with pytest.raises(FatalSampleError, match=r"demo-.*OSError: .*\.i0\d\.png: .*on_bad_member=drop"):
        list(loader(damaged, PackedTaskEncoder(damaged, str(demo[1]))))
    batches = list(loader(damaged, PackedTaskEncoder(damaged, str(demo[1]), on_bad_member="drop")))
    assert sum(batch["num_dropped"] for batch in batches) == 1
    assert len(ids(iter(batches))) == 59


def test_a_missing_video_is_a_fault_of_its_member(encoder: PackedTaskEncoder) -> None:
    with pytest.raises(FatalSampleError, match="its video 1 is missing from the pack"):
        encoder.encode_sample(sample(ask="<video><video>What?", video=[video(), b""]))


def test_a_text_pack_takes_the_vision_tower_along(
    packed: Path, demo: tuple[Path, Path], samples: list[Any], model: Any
) -> None:
    encoder = PackedTaskEncoder(packed, str(demo[1]), dummy_image=True)
    text = one(encoder, next(s for s in samples if s.media_type == "text"))
    image = one(encoder, next(s for s in samples if s.media_type == "image"))
    assert {"dummy_pixel_values", "dummy_image_grid_thw"} <= text.keys()
    assert not {"dummy_pixel_values", "dummy_image_grid_thw"} & image.keys()
    plain = model(**text.model_inputs()).loss
    (plain + touch_vision(model, text)).backward()
    grads = [p.grad for p in model.model.visual.parameters()]
    assert all(grad is not None and not grad.any() for grad in grads)
    assert float(touch_vision(model, text).detach()) == 0.0
    model.zero_grad()


def sample(**fields: Any) -> MultiMixQASample:
    turns = [{"role": "user", "content": fields.pop("ask")}, {"role": "assistant", "content": "4 circles"}]
    return MultiMixQASample(__key__="k", __restore_key__=(), messages=turns, **fields)


@pytest.mark.parametrize("layout", ["neat", slow("thd")])
def test_an_unpacked_sample_longer_than_the_width(packed: Path, demo: tuple[Path, Path], layout: str) -> None:
    """Packing had left it out as overlong; in a blend it comes from the source again."""
    long = sample(ask="hi " * 1600)
    settings: dict[str, Any] = {"layout": layout, "pad_to": "max_token_len"}
    with pytest.raises(FatalSampleError, match=r"k in k: ValueError: \d+ tokens, more than .*on_bad_member=drop"):
        PackedTaskEncoder(packed, str(demo[1]), **settings).encode_sample(long)
    with pytest.raises(SkipSample):
        PackedTaskEncoder(packed, str(demo[1]), on_bad_member="drop", **settings).encode_sample(long)
    assert one(PackedTaskEncoder(packed, str(demo[1]), layout="neat"), long)["input_ids"].shape[1] > 1600


def test_seconds_of_a_video_are_never_guessed(packed: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """From the model's config.json, or given: else the first video ends the training, and is not left out either."""
    shown = sample(ask="<video>What?", video=[video()])
    with pytest.raises(FatalSampleError, match="tokens_per_second"):
        PackedTaskEncoder(packed, str(demo[1]), on_bad_member="drop").encode_sample(shown)
    shutil.copytree(demo[1], tmp_path / "processor")
    (tmp_path / "processor" / "config.json").write_text(json.dumps({"vision_config": {"tokens_per_second": 4}}))
    found = PackedTaskEncoder(packed, str(tmp_path / "processor")).encode_sample(shown)
    given = PackedTaskEncoder(packed, str(demo[1]), tokens_per_second=4).encode_sample(shown)
    other = PackedTaskEncoder(packed, str(demo[1]), tokens_per_second=2).encode_sample(shown)
    rows = [encoded.members[0].tokens.rope for encoded in (found, given, other)]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])


def test_a_video_with_its_own_frames(encoder: PackedTaskEncoder, model: Any) -> None:
    listed = one(encoder, sample(ask="<video>What?", video=[video()], video_frames=[[0, 3, 9, 20]]))
    assert listed["video_grid_thw"][:, 0].tolist() == [2]
    chosen = one(encoder, sample(ask="<video>What?", video=[video()]))
    assert chosen["video_grid_thw"][:, 0].tolist() != [2]
    assert float(listed["second_per_grid_ts"][0]) == pytest.approx(2 / (4 / 30 * 10))
    assert torch.isfinite(model(**listed.model_inputs()).loss)


def test_packs_of_prompts_and_captions(encoder: PackedTaskEncoder) -> None:
    image = LazyImage(picture(60, 60), "x")
    captions = PackedCaptioningSample(
        __key__="k", __restore_key__=(), images=[[image], []], prompts=[["<image>a"], ["b", "c"]],
        captions=[["1"], ["2", "3"]],
    )  # fmt: skip
    batch = one(encoder, captions)
    assert batch["sample_ids"] == [["k#0", "k#1"]]
    assert int(batch["n_images_per_sample"]) == 1
