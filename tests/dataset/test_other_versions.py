"""Packs go from one released version of transformers to another, both ways."""

import re
import sys
from functools import partial
from pathlib import Path

import pytest

from energon_pack.loading import load_template
from energon_pack.templates import replay as replays
from support.packed import demo_config, packed
from support.running import ROOT, need_torchvision, run


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where to find another transformers, and this package."""
    folder = tmp_path_factory.mktemp("another")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", folder, f"transformers=={_OTHER}", cwd=folder)
    return f"{folder}:{ROOT}"


_OTHER = "5.18.0"
_LOAD = "import sys; from energon_pack.loading import load_template; load_template(*sys.argv[1:])"
_ACCEPTED = "samples that are kept measured again, none has another length"


@pytest.mark.slow
@pytest.mark.parametrize("template", ["qwen_vl", "shapes", "pixels"])
def test_another_transformers(
    demo: tuple[Path, Path], cache: Path, tmp_path: Path, another: str, template: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Packed here and loaded there, and the other way round: lengths are the same, and a changed one is seen."""
    need_torchvision()
    here = demo_config(demo, cache, tmp_path, model__template=template, source__limit=60)
    model = ["+model=qwen2_5_vl", f"model.template={template}", f"model.processor={demo[1]}"]
    there = [f"source.path={demo[0]}", "source.limit=60", "output.dir=there", "output.name=packed", "measure.verify=0"]
    run(sys.executable, "-m", "energon_pack", *model, *there, cwd=tmp_path, PYTHONPATH=another)
    load = partial(run, sys.executable, "-c", _LOAD, cwd=tmp_path, PYTHONPATH=another)
    folder = packed(here)
    load(folder, demo[1])
    load_template(tmp_path / "there" / "packed", str(demo[1]))
    (line,) = caplog.messages
    assert f"packed with transformers {_OTHER} (here {replays.versions()['transformers']})" in line
    assert line.endswith(_ACCEPTED)
    kept = folder / ".nv-meta" / "replay.json"
    kept.write_text(re.sub(r'"token_len":(\d)', r'"token_len":1\1', kept.read_text(), count=1))
    with pytest.raises(AssertionError, match=rf"\(here {re.escape(_OTHER)}\).* when it was packed"):
        load(folder, demo[1])
