"""LoongForge's and LLaVA-OneVision-2's own loaders and encoders over our packs, under Energon 5.0.0.

PEERS is a folder with their checkouts, LoongForge and LLaVA-OneVision-2, and Megatron-LM's branch core_r0.15.0, of
which LoongForge has a fork. Stand-ins by their fields passed twice where the real class read nothing.
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import Flavor, GroupBy, ModelConfig, PackConfig
from support.labels.environments import python_of
from support.packed import packed, samples
from support.running import ROOT
from support.samples import chat, picture, write_tar

Make = Callable[..., PackConfig]
LOONGFORGE, LLAVA = "loongforge.data.multimodal", "aiak_training_llm.data.multimodal"
#: class → its stack, the flavour, its fields, and the members of `image_demo` and of `MADE` that it has a place for
CLASSES = {
    f"{LOONGFORGE}:PackedMultiMixQASample": (
        "loongforge", Flavor.packed_multi_mix_qa, "images videos contexts answers", 20,
    ),
    f"{LOONGFORGE}:PackedChatMixSample": (
        "loongforge", Flavor.packed_multi_mix_qa, "packed_messages packed_images packed_videos system", 21,
    ),
    f"{LLAVA}:PackedCaptioningSample": (
        "llava", Flavor.packed_captioning, "images prompts captions patch_positions fps timestamp_decimal", 20,
    ),
}  # fmt: skip
_SYSTEM = {"messages": [{"role": role, "content": role} for role in ("system", "user", "assistant")]}
MADE = {
    "a.json": chat("<image>What?", "That.", "And?", "This."),
    "a.0.png": picture(56, 56, "PNG"),
    "b.json": chat("Who?", "You."),
    "c.json": chat("1?", "1.", "2?", "2."),
    "d.json": json.dumps(_SYSTEM).encode(),
    "spelled.json": chat("What is <image>?", "A placeholder."),
    "weighted.json": chat("Who?", "You.", weight=0.5),
}


@pytest.fixture
def read(real: Path, tmp_path: Path) -> Callable[[str, Path], Any]:
    """Reads packs by a stack's own code."""
    if not (peers := os.environ.get("PEERS")):
        pytest.skip("PEERS is no folder with checkouts of LoongForge, LLaVA-OneVision-2 and Megatron-LM")
    paths = {
        "loongforge": [Path(peers) / "LoongForge", Path(peers) / "Megatron-LM"],
        "llava": [Path(peers) / "LLaVA-OneVision-2", Path(peers) / "LLaVA-OneVision-2" / "aiak_megatron"],
    }

    def run(stack: str, folder: Path) -> Any:
        script, out = ROOT / "tests" / "support" / "read_as_stack.py", tmp_path / f"{stack}.json"
        code = os.pathsep.join(map(str, paths[stack]))
        variables = {**os.environ, "PYTHONPATH": code, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        where: list[str | Path] = [real / "processors/qwen2_5_vl", "qwen2-vl", out, folder]
        arguments = [python_of("loongforge"), script, stack, *where]
        done = subprocess.run(arguments, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(out.read_text())[str(folder)]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("group_by", [GroupBy.media, GroupBy.none])
@pytest.mark.parametrize("name", CLASSES)
def test_another_stack_reads_every_member(
    read: Callable[[str, Path], Any], real: Path, config: Make, tmp_path: Path, name: str, group_by: GroupBy
) -> None:
    """Each is as long as planned, but for the line break after its last turn, and trains as many tokens."""
    stack, flavor, fields, num_members = CLASSES[name]
    made = write_tar(tmp_path / "made" / "x.tar", MADE)
    run = config(
        [real / "wds/image_demo", made],
        model=ModelConfig("qwen2_5_vl", "qwen_vl", "", str(real / "processors" / "qwen2_5_vl"), factor=28),
        packing__max_token_len=4096,
        packing__group_by=group_by,
        packing__max_dropped_tokens=1.0,
        output__flavor=flavor.value,
        output__sample_loader_py=True,
        output__sample_type=name,
        output__sample_fields=fields.split(),
    )
    folder = packed(run)
    found = read(stack, folder)
    planned = [json.loads(parts["json"])["_meta"] for parts in samples(folder).values()]
    assert found["lost"] == {}
    assert found["read"] == {
        pack["pack_id"]: [
            [length - 1, num] for length, num in zip(pack["token_lens"], pack["num_supervised"], strict=True)
        ]
        for pack in planned
    }
    assert sum(map(len, found["read"].values())) == num_members
