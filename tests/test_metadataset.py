"""A blend of packed datasets is one command, and Energon draws from it by its weights."""

import json
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from megatron.energon import (
    DefaultTaskEncoder,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from megatron.energon.eyaml import load_yaml

from energon_pack.config import Flavor, PackConfig, SplitsConfig
from energon_pack.dataset.manifest import read_manifest
from energon_pack.errors import PackError
from energon_pack.loading import cookers
from energon_pack.metadataset import energon_yaml, main, parse_subflavor
from energon_pack.pack import pack
from support.packed import demo_config
from support.samples import chat, write_tar

ODD_NAME = "a: #1 é {x}"


@pytest.fixture(scope="module")
def packed(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three datasets in `out`: 3 samples in a pack, 8 samples in two, and these with a part val under an odd name."""
    folder = tmp_path_factory.mktemp("packed")
    for name, num in (("few", 3), ("many", 8)):
        members = {f"{i}.json": chat("a " * 10, f"{name} {i} " * 20) for i in range(num)}
        source = write_tar(folder / name / "x.tar", members)
        pack(demo_config(demo, cache, folder / "out", source, output__name=name, packing__max_token_len=512))
    splits = {"output__splits": SplitsConfig(val=0.3), "seed": 1}
    pack(demo_config(demo, cache, folder / "out", folder / "many", output__name="parts", **splits))
    (folder / "out" / "parts").rename(folder / "out" / ODD_NAME)  # `output.name` takes no such name, a disk does
    return folder


@pytest.fixture
def folders(packed: Path, tmp_path: Path) -> list[str]:
    """Copies of the datasets; the first two."""
    shutil.copytree(packed, tmp_path, dirs_exist_ok=True)
    return [str(tmp_path / "out" / name) for name in ("few", "many")]


class Cooking(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = None
    cookers = cookers()


def loaded(metadataset: Path, part: str) -> list[Any]:
    """All packs of a part, as Energon gives them."""
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    return list(
        get_loader(
            get_val_dataset(metadataset, split_part=part, worker_config=worker, batch_size=None, task_encoder=Cooking())
        )
    )


def blend(out: Path) -> list[dict[str, object]]:
    value = yaml.safe_load(out.read_text())
    assert list(value["splits"]) == ["train"]
    references: list[dict[str, object]] = value["splits"]["train"]["blend"]
    return references


def test_a_blend_by_samples(folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "blend.yaml"
    assert main([str(out), *folders]) == 0
    assert [(r["path"], r["weight"], r["split_part"]) for r in blend(out)] == [
        (folders[0], 3, "train"),
        (folders[1], 8, "train"),
    ]
    said = capsys.readouterr().out
    assert "27.27%" in said
    dataset = get_train_dataset(
        out,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    drawn = ["few" in sample.messages[0][1]["content"] for sample in islice(get_savable_loader(dataset), 300)]
    assert 50 < sum(drawn) < 115  # of 300 packs, 3 of 11 are of the first


def test_a_blend_says_itself_how_it_was_packed(folders: list[str], tmp_path: Path) -> None:
    """Also by way of another Metadataset, beside folders that were never packed; the longest packs give the width."""
    inner, outer = tmp_path / "inner.yaml", tmp_path / "outer.yaml"
    main([str(inner), *folders])
    parts = [{"path": "inner.yaml", "weight": 1}, {"path": "few", "weight": 1}]
    outer.write_text(yaml.safe_dump({"splits": {"train": {"blend": parts}}}))
    manifest = Path(folders[0], ".nv-meta", "energon_pack.json")
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "max_token_len": 9999}))
    assert read_manifest(outer)["max_token_len"] == 9999
    manifest.write_text(json.dumps({**content, "fingerprint": "another"}))
    with pytest.raises(ValueError, match="were packed with different settings"):
        read_manifest(outer)
    outer.write_text(yaml.safe_dump({"splits": {"train": {"path": "few"}}}))
    with pytest.raises(ValueError, match=r"outer\.yaml names no dataset that energon_pack packed"):
        read_manifest(outer)
    with pytest.raises(FileNotFoundError, match="few is no dataset that energon_pack packed"):
        read_manifest(tmp_path / "few")


def test_its_folder_is_made(folders: list[str], tmp_path: Path) -> None:
    out = tmp_path / "a" / "b" / "blend.yaml"
    assert main([str(out), folders[0], "--relative"]) == 0
    assert blend(out)[0]["path"] == "../../out/few"


def test_weights_configs_and_relative_paths(folders: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out" / "blend.yaml"
    arguments = [*folders, "--weight", "packs", "--relative", "--config", "crude.yaml"]
    assert main([str(out), *arguments, "--subflavors", "stage=sft"]) == 0
    first, second = blend(out)
    assert first == {
        "weight": 1,
        "path": "few",
        "split_part": "train",
        "dataset_config": "crude.yaml",
        "subflavors": {"stage": "sft"},
    }
    assert (second["weight"], second["path"]) == (2, "many")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{0}=much"], "'much' is no number"),
        (["{0}=0"], "not more than 0"),
        (["/nowhere"], "/nowhere is not a dataset"),
        (["{0}", "--config", "mine.yaml"], "--config mine.yaml"),
        (["{0}", "--subflavors", "x"], "KEY=VALUE"),
        (["{0}", "--subflavors", "=x"], "KEY=VALUE"),
        (["{0}", "{1}=0.3"], "few: no weight, beside others that have one"),
    ],
)
def test_mistakes(folders: list[str], tmp_path: Path, arguments: list[str], message: str) -> None:
    out = tmp_path / "blend.yaml"
    with pytest.raises(PackError, match=message):
        main([str(out), *(text.format(*folders) for text in arguments)])
    assert not out.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--weight", "packs", "--relative"],
        ["--config", "crude.yaml", "--subflavors", "augmentation=false"],
        ["--subflavors", "augmentation=false", "stage=2", "name=1e5", "yes='no'", 'quoted="true"'],
    ],
)
def test_energon_loads_what_is_written(folders: list[str], tmp_path: Path, arguments: list[str]) -> None:
    """Each part, by itself and by way of another Metadataset. Energon's reader knows no aliases (`&id001`): one made
    by subflavors that several datasets share made the whole file useless.
    """
    odd = tmp_path / "out" / ODD_NAME
    packs = {part: counts["packs"] for part, counts in read_manifest(odd)["splits"].items()}
    out, outer = tmp_path / "blend.yaml", tmp_path / "outer.yaml"
    assert main([str(out), *folders, str(odd), *arguments]) == 0
    splits = {part: {"path": "blend.yaml"} for part in ("train", "val")}
    outer.write_text(yaml.safe_dump({"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits}))
    given_ones = arguments[arguments.index("--subflavors") + 1 :] if "--subflavors" in arguments else []
    wanted = {"sample_type": "packed_chat_mix", **dict(map(parse_subflavor, given_ones))}
    for metadataset in (out, outer):
        assert len(loaded(metadataset, "val")) == packs["val"]
        train = loaded(metadataset, "train")
        assert len(train) == 3 + packs["train"]
        assert all(sample.__subflavors__ == wanted for sample in train)


def test_a_subflavor_is_what_it_says() -> None:
    texts = {"true": True, "False": False, "null": None, "3": 3, "0.5": 0.5, "-1e3": -1000.0, '"3"': "3"}
    texts |= {text: text for text in ("", "a=b", "010", "yes", "NaN", "Infinity", "[1]", "2024-01-01", "é")}
    assert {text: parse_subflavor(f"k={text}")[1] for text in texts} == texts
    assert type(parse_subflavor("k=false")[1]) is bool


@given(st.dictionaries(st.text("ab_1é:#", min_size=1), st.text() | st.booleans() | st.integers(), min_size=1))
def test_energon_reads_texts_as_they_were_meant(value: dict[str, Any]) -> None:
    """Its reader makes 1e5 a number and yEs true, where they are plain; PyYAML, which writes, does not."""
    assert load_yaml(energon_yaml({"a": value, "b": value})) == {"a": value, "b": value}


def test_a_file_that_energon_would_not_know(folders: list[str], tmp_path: Path) -> None:
    """It goes by the name; and a blend of blends would count nothing that is there."""
    with pytest.raises(PackError, match=r"blend\.yml: .* has to end in \.yaml"):
        main([str(tmp_path / "blend.yml"), *folders])
    inner, outer = tmp_path / "inner.yaml", tmp_path / "outer.yaml"
    main([str(inner), *folders])
    with pytest.raises(PackError, match=r"inner\.yaml is a file: name the packed datasets themselves"):
        main([str(outer), str(inner)])
    assert not outer.exists()


def test_packs_that_no_job_takes_together(
    config: Callable[..., PackConfig], folders: list[str], tmp_path: Path
) -> None:
    run = config(tmp_path / "few", output__name="captions", output__flavor=Flavor.packed_captioning)
    pack(run)
    with pytest.raises(PackError, match="the flavor packed_captioning"):
        main([str(tmp_path / "blend.yaml"), folders[0], str(Path(run.output.dir) / "captions")])


def test_steps_and_epochs(folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1 pack at 1/4 of the draws, 2 packs at 3/4: in batches of 2, once around after 2 and after 4/3 steps."""
    arguments = [f"{folders[0]}=1", f"{folders[1]}=3", "--batch-size", "2", "--steps", "8"]
    assert main([str(tmp_path / "blend.yaml"), *arguments]) == 0
    few, many = (line.split() for line in capsys.readouterr().out.splitlines()[1:3])
    assert few[-3:] == ["25.00%", "2.0", "4.00"]
    assert many[-3:] == ["75.00%", "1.3", "6.00"]


def test_every_split_is_blended(folders: list[str], tmp_path: Path) -> None:
    """A dataset with validation samples beside one without."""
    odd = tmp_path / "out" / ODD_NAME
    figures = read_manifest(odd)["splits"]
    assert main([str(tmp_path / "blend.yaml"), folders[0], str(odd)]) == 0
    splits = yaml.safe_load((tmp_path / "blend.yaml").read_text())["splits"]
    assert [(r["weight"], r["split_part"]) for r in splits["train"]["blend"]] == [
        (3, "train"),
        (figures["train"]["samples"], "train"),
    ]
    assert [r["weight"] for r in splits["val"]["blend"]] == [figures["val"]["samples"]]
