"""LoongForge's and LLaVA-OneVision-2's own loaders and encoders over our packs, under Energon 5.0.0.

PEERS is a folder with their checkouts, LoongForge and LLaVA-OneVision-2, and Megatron-LM's branch core_r0.15.0, of
which LoongForge has a fork. Stand-ins by their fields passed twice where the real class read nothing.
"""

import ast
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import megatron.energon
import pytest
import torch

from energon_pack.config import Flavor, GroupBy, ModelConfig, PackConfig
from support.environments import TORCHVISION_ON_CPU, python_of
from support.packed import packed, samples
from support.read_source import read as read_source
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
        code = os.pathsep.join(map(str, [TORCHVISION_ON_CPU, *paths[stack]]))
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


#: form → sets of real samples that it has a place for
FORMS = {
    "packed_chat_mix": ("image_demo", "image_mathv", "text_toolcall", "video_demo", "text_sharegpt_zh"),
    "packed_multi_mix_qa": ("image_mathv",),  # one question of each, and its answer
    "packed_captioning": ("image_demo", "image_mathv"),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_packs_of_their_own_writers_are_a_source(real: Path, tmp_path: Path, form: str) -> None:
    """Every member is a sample, none is lost: texts of its turns and bytes of its media are those that they packed."""
    if not (peers := os.environ.get("PEERS")):
        pytest.skip("PEERS is no folder with checkouts of LoongForge, LLaVA-OneVision-2 and Megatron-LM")
    code = ("LoongForge/tools/data_preprocess/vlm/offline_packing", "LLaVA-OneVision-2/offline_packing")
    folders = [str(TORCHVISION_ON_CPU), *(f"{peers}/{name}" for name in code)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    for name in FORMS[form]:
        for tar in sorted((real / "wds" / name).glob("*.tar")):
            out = tmp_path / tar.stem
            script = ROOT / "tests" / "support" / "pack_as_peers.py"
            command: list[str | Path] = [python_of("loongforge"), "-W", "ignore", script, form, tar, out, "4"]
            done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=900)
            assert done.returncode == 0, done.stderr[-2000:]
            before, after = (list(read_source(path).values()) for path in (tar, out))
            if form == "packed_captioning":  # its writer takes what users ask and assistants say, in columns
                ends_with_a_question = [sample for sample in before if len(sample[0]) % 2]
                assert len(ends_with_a_question) == sum(str(sample).startswith("bad_message: 3 p") for sample in after)
                before = [sample for sample in before if sample not in ends_with_a_question]
                after = [sample for sample in after if not isinstance(sample, str)]
            print(f"{form} {tar.stem}: {len(after)} members of {len(before)} samples")
            assert sorted(map(repr, after)) == sorted(map(repr, before))


#: files that ask for more of Energon than the names that `megatron.energon` itself gives
INSIDE = {"loading/in_order.py", "dataset/energon.py"}


def trees(package: Path) -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(package.rglob("*.py")):
        yield str(path.relative_to(package)), ast.parse(path.read_text())


def owned(package: Path) -> set[str]:
    """Private names that the classes and modules of a package give."""
    names = set()
    for _, tree in trees(package):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def test_energons_inside_is_asked_in_two_files() -> None:
    """By its modules, or by its private names: another Energon then breaks two files."""
    package, energon = ROOT / "energon_pack", Path(next(iter(megatron.energon.__path__)))
    private = owned(energon) - owned(package) - {*vars(torch.nn.Module())}
    assert "_reading_buffer" in private
    found = set()
    for name, tree in trees(package):
        for node in ast.walk(tree):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(module.startswith("megatron.energon.") for module in modules):
                found.add(name)
            if isinstance(node, ast.Attribute) and node.attr in private:
                found.add(name)
    assert found == INSIDE
