"""Packs are trained with the pixels they were packed for: alone, joined, with another processor or transformers."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from megatron.energon import WorkerConfig, get_train_dataset, get_val_dataset

from energon_pack import PackedTaskEncoder, metadataset, order, train_arguments
from energon_pack.dataset import agreement, encoder
from energon_pack.dataset.encoder import pack_encoder
from energon_pack.dataset.manifest import hash_of, read_kept_rules
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.templates import full_processor as loading
from energon_pack.templates import pixels
from energon_pack.templates.full_processor import load_full_processor
from energon_pack.training.pack_encoder import PackEncoder
from support.packed import demo_config
from support.processors import change
from support.running import need_torchvision
from support.samples import chat, picture, video, write_tar

IMAGES, VIDEOS = "preprocessor_config.json", "video_preprocessor_config.json"


@pytest.fixture(scope="module")
def dataset(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed picture and a packed clip."""
    need_torchvision()
    folder = tmp_path_factory.mktemp("seen")
    members = {"a.json": chat("<image> What?", "Teal."), "a.jpg": picture(), "b.json": chat("<video> What?", "Grey.")}
    source = write_tar(folder / "source" / "x.tar", {**members, "b.mp4": video(8)})
    pack(demo_config(demo, cache, folder, source, packing__group_by=None, packing__max_token_len=512))
    return folder / "packed"


@pytest.fixture
def twins(dataset: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two copies of a dataset."""
    first, second = tmp_path / "first", tmp_path / "second"
    for copy in (first, second):
        shutil.copytree(dataset, copy)
    return first, second


def rewrite(folder: Path, name: str, edit: Callable[[Any], Any]) -> None:
    """Change a JSON file of a dataset, with the hashes that hold it."""
    meta = folder / ".nv-meta"
    values = json.loads((meta / name).read_bytes())
    edit(values)
    (meta / name).write_text(json.dumps(values))
    if name != "energon_pack.json":
        digest = hash_of((meta / name).read_bytes())
        rewrite(folder, "energon_pack.json", lambda manifest: manifest["hashes"].update({name: digest}))


def with_setting(folder: Path, file: str, is_old: bool = True, **settings: Any) -> None:
    """Make a dataset one that was packed with another setting of its processor; `is_old`: and kept no hash of it."""
    path = folder / ".nv-meta" / "processor" / file
    if not path.exists():
        path.write_text((path.parent / IMAGES).read_text())
    change(path, **settings)

    def edit(values: Any) -> None:
        values["files"][file] = hash_of(path.read_bytes())
        values.update({"pixels": "", "made": {}} if is_old else {"pixels": "another"})

    rewrite(folder, "inputs.json", edit)


def by_order(first: Path, second: Path) -> None:
    order.main([str(first.parent / "both"), str(first), str(second)])


def by_metadataset(first: Path, second: Path) -> None:
    metadataset.main([str(first.parent / "both.yaml"), str(first), str(second)])


def by_hand(first: Path, second: Path) -> None:
    """A Metadataset that nobody checked when it was written."""
    parts = [{"path": str(folder), "weight": 1} for folder in (first, second)]
    out = first.parent / "hand.yaml"
    out.write_text(yaml.safe_dump({"splits": {"train": {"blend": parts}}}))
    pack_encoder(out)


DOORS = [by_order, by_metadataset, by_hand]
#: the file, the setting and its other value; and how it is named
SETTINGS: list[tuple[str, dict[str, Any], str]] = [
    (
        IMAGES,
        {"image_mean": [0.5, 0.5, 0.5]},
        r"image_mean is \[0.48145466, .* in the first, and \[0.5, 0",
    ),
    (IMAGES, {"image_std": [0.5, 0.5, 0.5]}, r"image_std is \[0.26862954, .* in the first, and \[0.5, 0.5, 0.5\]"),
    (IMAGES, {"resample": 2}, "resample is 3 in the first, and 2"),
    (IMAGES, {"rescale_factor": 0.5}, "rescale_factor is 0.00392156862745098 in the first, and 0.5"),
    (IMAGES, {"do_normalize": False}, "do_normalize is True in the first, and False"),
    (IMAGES, {"do_rescale": False}, "do_rescale is True in the first, and False"),
    (IMAGES, {"do_resize": False}, "do_resize is True in the first, and False"),
    (
        IMAGES,
        {"processor_class": "Qwen2VLProcessor"},
        "class is Qwen2_5_VLProcessor in the first, and Qwen2VL",
    ),
    (VIDEOS, {"image_mean": [0.5, 0.5, 0.5], "video_processor_type": "Qwen2VLVideoProcessor"}, "video.image_mean is"),
    (
        VIDEOS,
        {"resample": 2, "video_processor_type": "Qwen2VLVideoProcessor"},
        "video.resample is 3 in the",
    ),
]


@pytest.mark.parametrize("join", DOORS)
@pytest.mark.parametrize(
    ("file", "setting", "said"), SETTINGS, ids=[f"{one[0][:5]}-{next(iter(one[1]))}" for one in SETTINGS]
)
def test_datasets_of_other_pixels_are_not_joined(
    twins: tuple[Path, Path], join: Callable[[Path, Path], None], file: str, setting: dict[str, Any], said: str
) -> None:
    """All packs were trained with the processor of one of them."""
    with_setting(twins[1], file, **setting)
    with pytest.raises(PackError, match=rf"first and \S+second make other pixels of media: .*{said}"):
        join(*twins)


@pytest.mark.parametrize("join", DOORS)
@pytest.mark.parametrize("is_old", [True, False])
def test_datasets_that_only_say_the_same_in_other_words_are_joined(
    twins: tuple[Path, Path], join: Callable[[Path, Path], None], is_old: bool
) -> None:
    with_setting(twins[1], VIDEOS, is_old, video_processor_type="Qwen2VLVideoProcessor")
    with_setting(twins[1], IMAGES, is_old, of_another_version=1, image_processor_type="Qwen2VLImageProcessorFast")
    join(*twins)


@pytest.mark.parametrize("join", DOORS)
@pytest.mark.parametrize("field", [("layout", "thd"), ("mask", "hybrid"), ("pad_to_multiple_of", 8)])
def test_datasets_that_are_read_in_another_way_are_not_joined(
    twins: tuple[Path, Path], join: Callable[[Path, Path], None], field: tuple[str, Any]
) -> None:
    """Packs that were padded for 8 ranks of context parallelism were aligned for none."""
    rewrite(twins[1], "energon_pack.json", lambda manifest: manifest.update([field]))
    name, value = field
    with pytest.raises(PackError, match=rf"first and \S+second were packed with .* and the {name} {value}: packs of"):
        join(*twins)


@pytest.mark.parametrize("join", DOORS)
@pytest.mark.parametrize("number", [1, 2])
def test_a_dataset_of_an_old_format_is_not_joined(
    twins: tuple[Path, Path], join: Callable[[Path, Path], None], number: int
) -> None:
    rewrite(twins[1], "energon_pack.json", lambda manifest: manifest.update(format=number))
    with pytest.raises(ValueError, match=f"second: it has the format {number}, without the tokens of its packs"):
        join(*twins)


def test_datasets_that_kept_other_inputs_are_not_joined(twins: tuple[Path, Path]) -> None:
    """One processor and two versions of transformers: no setting shows it."""

    def edit(values: Any) -> None:
        values["made"]["video"]["second_per_grid_ts"]["millionths"] = [1_000_000]
        values["transformers"] = "5.0.0"

    rewrite(twins[1], "inputs.json", edit)
    with pytest.raises(PackError, match=r"second_per_grid_ts of videos is made by transformers .* 5\.0\.0"):
        by_metadataset(*twins)


def test_a_dataset_of_texts_is_joined_whatever_its_pixels_would_be(
    twins: tuple[Path, Path], demo: tuple[Path, Path], cache: Path
) -> None:
    """Its packs have none; and the processor of the other prepares all, wherever it stands in the list."""
    folder = twins[0].parent / "texts"
    source = write_tar(folder / "source" / "x.tar", {"a.json": chat("Why?", "So.")})
    run = demo_config(demo, cache, folder, source, packing__group_by=None, packing__max_token_len=512)
    pack(run)
    texts = folder / "packed"
    with_setting(texts, IMAGES, image_mean=[0.5, 0.5, 0.5], is_old=False)
    for join in DOORS:
        join(texts, twins[0])
    rules = pack_encoder(texts.parent / "hand.yaml").rules
    assert load_full_processor(rules).image_processor.image_mean[0] == 0.48145466


# ---------------------------------------------------------------------------------- an encoder made for another dataset


def read_train(folder: Path, task_encoder: PackedTaskEncoder) -> None:
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    get_train_dataset(folder, **train_arguments(folder, task_encoder, worker))


def read_val(folder: Path, task_encoder: PackedTaskEncoder) -> None:
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    get_val_dataset(folder, split_part="train", worker_config=worker, batch_size=1, task_encoder=task_encoder)


@pytest.mark.parametrize("read", [read_train, read_val])
def test_an_encoder_reads_no_packs_of_other_pixels_or_of_pairs(
    twins: tuple[Path, Path], read: Callable[[Path, PackedTaskEncoder], None]
) -> None:
    """`--val OTHER` was prepared by the processor of the training's packs; pairs were a batch for SFT."""
    first, second = twins
    made = PackedTaskEncoder(first)
    read(second, made)  # a copy is the same
    with_setting(second, IMAGES, is_old=False, image_mean=[0.5, 0.5, 0.5])
    with pytest.raises(PackError, match=r"first and \S+second make other pixels of media: image.image_mean is \[0.48"):
        read(second, made)
    rewrite(second, "energon_pack.json", lambda manifest: manifest.update(pairs=True))
    with pytest.raises(PackError, match=r"first and \S+second were packed with .*: the pairs None, and the pairs True"):
        read(second, made)
    read(first, made)


def test_validation_packs_may_lie_otherwise_in_a_batch(twins: tuple[Path, Path]) -> None:
    """How they are padded matters to nothing but the speed of a training."""
    first, second = twins
    made = PackedTaskEncoder(first)
    rewrite(second, "energon_pack.json", lambda manifest: manifest.update(layout="thd", pad_to_multiple_of=8))
    read_val(second, made)
    with pytest.raises(PackError, match=r"the layout thd, and the layout neat: packs of one training"):
        read_train(first, PackedTaskEncoder(second))


def test_an_encoder_whose_layout_is_given_trains_packs_of_another(twins: tuple[Path, Path]) -> None:
    """Rows of `neat` hold any packs; whoever gives a layout has chosen. Both trained, and were refused."""
    first, second = twins
    rewrite(second, "energon_pack.json", lambda manifest: manifest.update(layout="thd", pad_to_multiple_of=8))
    read_train(second, PackedTaskEncoder(first))
    read_train(first, PackedTaskEncoder(second, layout="neat"))
    read_train(first, PackedTaskEncoder(second, layout="thd"))


@pytest.mark.parametrize("file", ["inputs.json", "packs.npy"])
def test_packs_without_what_is_compared_are_read(twins: tuple[Path, Path], file: str) -> None:
    """The encoder needs neither file of them; the training ended with a word about getting the dataset again."""
    first, second = twins
    rewrite(second, "energon_pack.json", lambda manifest: manifest.update(max_token_len=600))
    (second / ".nv-meta" / file).unlink()
    read_val(second, PackedTaskEncoder(first))


def test_an_encoder_of_a_blend_reads_its_datasets(twins: tuple[Path, Path]) -> None:
    """Each of them, and the blend itself, whose packs differ in nothing that is read."""
    first, second = twins
    rewrite(second, "energon_pack.json", lambda manifest: manifest.update(max_token_len=600))
    by_metadataset(first, second)
    blend = first.parent / "both.yaml"
    made = PackedTaskEncoder(blend)
    for folder in (blend, first, second):
        read_train(folder, made)


def test_an_encoder_of_texts_reads_no_pictures_of_another_processor(
    twins: tuple[Path, Path], demo: tuple[Path, Path], cache: Path
) -> None:
    """It would prepare them itself; of a blend, the pictures' own processor does. The reverse is right."""
    folder = twins[0].parent / "texts"
    source = write_tar(folder / "source" / "x.tar", {"a.json": chat("Why?", "So.")})
    pack(demo_config(demo, cache, folder, source, packing__group_by=None, packing__max_token_len=512))
    with_setting(folder / "packed", IMAGES, image_mean=[0.5, 0.5, 0.5], is_old=False)
    with pytest.raises(PackError, match=r"texts/packed and \S+first make other pixels of media: image.image_mean is"):
        read_val(twins[0], PackedTaskEncoder(folder / "packed"))
    read_val(folder / "packed", PackedTaskEncoder(twins[0]))


# -------------------------------------------------------------------------------------------------- another processor


def saved_anew(demo: tuple[Path, Path], folder: Path) -> Path:
    """The demo's processor as transformers 5 saves it: all settings in one file of another form."""
    load_full_processor(kept_like(demo[1])).save_pretrained(folder)
    assert not (folder / IMAGES).exists()
    return folder


def kept_like(folder: Path) -> Any:
    from energon_pack.templates.families.rules import ProcessorSettings

    return ProcessorSettings(folder=str(folder))


def test_a_processor_that_was_saved_in_another_form_is_the_same(
    dataset: Path, demo: tuple[Path, Path], tmp_path: Path
) -> None:
    assert pack_encoder(dataset, str(saved_anew(demo, tmp_path / "saved"))).rules.folder.endswith("saved")


def test_a_setting_in_another_form_of_file_is_compared(dataset: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """No file of that name was in the dataset, so nothing was compared."""
    folder = saved_anew(demo, tmp_path / "saved")
    values = json.loads((folder / "processor_config.json").read_bytes())
    values["image_processor"]["image_mean"] = [0.5, 0.5, 0.5]
    change(folder / "processor_config.json", **values)
    with pytest.raises(PackError, match=r"saved: image.image_mean is \[0.5, 0.5, 0.5\], and where .* packed \[0.4814"):
        pack_encoder(dataset, str(folder))


def test_a_setting_that_a_file_lacks_is_compared(dataset: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """It has the default of its class then."""
    folder = shutil.copytree(demo[1], tmp_path / "lacks")
    change(folder / IMAGES, max_pixels=...)
    with pytest.raises(PackError, match=r"lacks: video.size.longest_edge is \d+, and where \S+ was packed 1003520: "):
        pack_encoder(dataset, str(folder))


def test_a_processor_of_another_class_is_refused(dataset: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Qwen2-VL's has no second_per_grid_ts: most videos had other M-RoPE rows."""
    folder = shutil.copytree(demo[1], tmp_path / "other")
    for file in folder.glob("*config.json"):
        change(file, processor_class="Qwen2VLProcessor")
    said = "other: processor.class is Qwen2VLProcessor, and where .* was packed Qwen2_5_VLProcessor: leave the"
    with pytest.raises(PackError, match=said):
        pack_encoder(dataset, str(folder))


# ----------------------------------------------------------------------------------------------- another transformers


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another transformers, which makes the same inputs."""
    for module in (agreement, encoder, loading):
        monkeypatch.setattr(module, "version_of", lambda package: "5.99.0")
    monkeypatch.setattr(agreement, "_compared", set())


def edited(folder: Path, edit: Callable[[Any], Any]) -> Path:
    rewrite(folder, "inputs.json", lambda values: edit(values["made"]))
    return folder


def test_another_transformers_that_makes_the_same_is_taken(twins: tuple[Path, Path], elsewhere: None) -> None:
    assert isinstance(pack_encoder(twins[0]), PackEncoder)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda made: made["image"]["image_grid_thw"].update(numbers=[1, 2, 2]), "image_grid_thw of images has the n"),
        (lambda made: made["image"]["pixel_values"].update(shape=[16, 1176]), r"images has the shape \[\d+, 1176\]"),
        (lambda made: made["image"]["pixel_values"]["means"].__setitem__(0, 9), "pixel_values of images has -0."),
        (lambda made: made["video"].pop("second_per_grid_ts"), "it makes second_per_grid_ts of videos"),
        (lambda made: made["image"].update(aspect={"shape": [1], "numbers": [1]}), "it makes no aspect of images"),
        (lambda made: made["video"]["second_per_grid_ts"].update(millionths=[400_002]), "has 0.4, and had 0.400002"),
    ],
    ids=["number", "shape", "pixels", "more", "less", "seconds"],
)  # fmt: skip
def test_another_transformers_that_makes_other_inputs_is_refused_with_the_first(
    twins: tuple[Path, Path], elsewhere: None, edit: Callable[[Any], Any], said: str
) -> None:
    with pytest.raises(PackError, match=f"makes other inputs with transformers 5.99.0, and .* packed with .*{said}"):
        pack_encoder(edited(twins[0], edit))


def test_another_class_of_images_is_refused(twins: tuple[Path, Path], elsewhere: None) -> None:
    """Transformers 5.6.0 prepares images of Idefics 3 with PIL: 1 % of the values differed, by up to 2/255."""
    name = "Qwen2VLImageProcessor"
    rewrite(twins[0], "inputs.json", lambda values: values["classes"].update(image=f"{name}Pil"))
    with pytest.raises(PackError, match=f"images are prepared by {name}, and were by {name}Pil: train with transform"):
        pack_encoder(twins[0])


def test_a_dataset_that_kept_nothing_is_read_as_it_was(twins: tuple[Path, Path], elsewhere: None) -> None:
    """Those of earlier versions have no such keys."""
    rewrite(twins[0], "inputs.json", lambda values: [values.pop(name) for name in ("pixels", "made", "classes")])
    assert isinstance(pack_encoder(twins[0]), PackEncoder)


def test_an_old_transformers_is_one_line(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (agreement, encoder, loading):
        monkeypatch.setattr(module, "version_of", lambda package: "4.57.6")
    with pytest.raises(PackError, match=r"^transformers 4\.57\.6 is installed, and media need 5\.0 or newer: pip"):
        pack_encoder(dataset)


def test_the_same_transformers_compares_nothing(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would load a processor in a process that may never need one."""
    monkeypatch.setattr(agreement, "load_full_processor", lambda rules: pytest.fail("loaded"))
    assert isinstance(pack_encoder(dataset), PackEncoder)


# ------------------------------------------------------------------------------------------------------------ the bytes


def test_what_is_kept_stands_in_one_file(dataset: Path) -> None:
    """Packs, fingerprints and lengths do not depend on pixels."""
    kept = read_kept_rules(dataset).rules
    holding = [path.name for path in dataset.rglob("*") if path.is_file() and kept.pixels.encode() in path.read_bytes()]
    assert holding == ["inputs.json"]
    made = kept.made["video"]["second_per_grid_ts"]
    assert made == {"shape": [1], "millionths": [400_000]}  # two frames at five a second
    assert not [value for value in json.dumps(kept.made).split() if "." in value]  # no float of this machine


@pytest.mark.parametrize("change_by", [-1e-4, 1e-4])
def test_kept_figures_bear_what_two_kinds_of_cpus_differ_by(dataset: Path, change_by: float) -> None:
    """Single pixels of float resizes differ by 1.5e-4 of their range in 81 of 100 values."""
    rules = read_kept_rules(dataset).rules_with_own_processor
    processor = load_full_processor(rules)

    class Noisy:
        def __getattr__(self, name: str) -> Any:
            return getattr(processor, name)

        def __call__(self, **arguments: Any) -> Any:
            output = processor(**arguments)
            for name in output:
                if name.startswith("pixel_values"):
                    noise = torch.rand(output[name].shape, generator=torch.Generator().manual_seed(1)) - 0.5
                    output[name] = output[name] + 2 * change_by * noise
            return output

    assert pixels.describe_inputs_changed_since_packing(Noisy(), rules) == ""
    assert pixels.measure_trial_inputs(Noisy(), rules) == rules.made
    other = replace(rules, call_settings={**rules.call_settings, "image": {"resample": 0}})
    assert pixels.describe_inputs_changed_since_packing(processor, other).startswith("pixel_values of images has")


def test_pixels_of_a_short_type_are_kept(dataset: Path) -> None:
    """Llama 4's processor makes them in bfloat16, which numpy has not: its packs ended in a TypeError."""
    rules = read_kept_rules(dataset).rules_with_own_processor
    processor = load_full_processor(rules)

    class Short:
        def __call__(self, **arguments: Any) -> Any:
            made = processor(**arguments)
            return {name: one.bfloat16() if one.is_floating_point() else one for name, one in made.items()}

    assert {name: one["shape"] for name, one in pixels.measure_trial_inputs(Short(), rules)["image"].items()} == {
        name: one["shape"] for name, one in rules.made["image"].items()
    }
