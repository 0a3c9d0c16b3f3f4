"""A dataset is trained with another transformers: its pixels are those of the packing, or one line refuses them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from energon_pack.pack import pack
from energon_pack.trainers.on_disk import PackedDataset
from support.packed import demo_config
from support.running import ROOT, command, need_torchvision, run
from support.samples import chat, noise, video, write_tar

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

QUESTION = chat("<image> What?", "Noise.")
#: the real processors, and the families of their rules; Idefics 3 takes no videos
IDEFICS = ("granite_docling_idefics3", "shapes")
PROCESSORS = [("qwen2_5_vl", "qwen_vl"), ("llava_onevision_qwen2_hf", "llava_onevision"), IDEFICS]
#: each version with the packages that it needs in other versions than are here
PACKAGES = {
    "4.57.6": ("huggingface_hub<1.0", "tokenizers<=0.23.0"),
    "5.6.0": ("huggingface_hub<2.0", "tokenizers<=0.23.0", "httpx", "httpcore", "h11", "anyio", "sniffio"),
    "5.16.0": ("huggingface_hub<2.0", "httpx", "httpcore", "h11", "anyio", "sniffio"),
}
SCRIPT = """
import json, sys
import numpy as np
from energon_pack import PackedDataset
from energon_pack.errors import PackError
try:
    packs = PackedDataset(sys.argv[1])
    media = [pack.media for pack in packs]
    arrays = {f"{n} {name}": value.numpy() for n, one in enumerate(media) for name, value in one.items()}
    np.savez(sys.argv[2], **arrays)
    print(json.dumps(""))
except PackError as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture(scope="module", params=PACKAGES)
def libraries(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A version of transformers, and the folder with it and what it needs."""
    version, folder = str(request.param), tmp_path_factory.mktemp("transformers")
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder)
    try:
        run(*pip, f"transformers=={version}", *PACKAGES[version], cwd=folder.parent)
    except AssertionError as error:
        pytest.skip(f"pip can't install it: {str(error)[-200:]}")
    return version, folder


@pytest.fixture(scope="module")
def packed(
    real: Path, demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Pictures and a clip, packed for several processors."""
    need_torchvision()
    folder = tmp_path_factory.mktemp("real")
    members = {"0.json": QUESTION, "0.png": noise(0, 90), "1.json": QUESTION, "1.png": noise(1, 160)}
    clip = {"c.json": chat("<video> What?", "Grey."), "c.mp4": video(12)}
    datasets = {}
    for name, family in PROCESSORS:
        source = write_tar(folder / name / "x.tar", members | (clip if (name, family) != IDEFICS else {}))
        settings = {"output__name": name, "packing__max_token_len": 16384, "model__template": family}
        settings |= {"model__name": name, "model__processor": str(real / "processors" / name)}
        pack(demo_config(demo, cache, folder / "out", source, **settings))
        datasets[name] = folder / "out" / name
    return datasets


def test_pixels_are_those_of_the_packing_or_refused(
    libraries: tuple[str, Path], packed: dict[str, Path], tmp_path: Path
) -> None:
    """4.57 has one `second_per_grid_ts` for all clips, and other types of some processors."""
    version, folder = libraries
    for name, dataset in packed.items():
        done = command("-c", SCRIPT, dataset, tmp_path / "made.npz", cwd=tmp_path, PYTHONPATH=f"{folder}:{ROOT}")
        assert done.returncode == 0, done.stderr[-2000:]
        refused = json.loads(done.stdout.splitlines()[-1])
        print(version, name, refused or "equal")
        if version.startswith("4"):
            assert (
                refused
                == f"transformers {version} is installed, and media need 5.0 or newer: pip install -U transformers"
            )
        elif refused:
            assert f"with transformers {version}, and {dataset} was packed with" in refused
        else:
            with np.load(tmp_path / "made.npz") as made:
                _assert_same(made, dataset)


def _assert_same(made: "np.lib.npyio.NpzFile", dataset: Path) -> None:
    packs = PackedDataset(dataset)
    here = {
        f"{number} {name}": value.numpy() for number in range(len(packs)) for name, value in packs[number].media.items()
    }
    assert here.keys() == {*made}
    for name, value in here.items():
        most = np.ptp(value) / 255 if "pixel_values" in name else 1e-6
        assert np.abs(made[name].astype(float) - value).max() <= most, name
