"""44 preference pairs by model class: in packs they have the loss and the gradients that they have alone, in float64.

Qwen2.5-VL is compared with TRL's own trainer in tests/trainers/test_preference_recipes.py.
"""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_pack import (
    PackedDataset,
    StreamingPackedDataset,
    member_logps,
    num_pairs,
    preference_loss,
    use_tree_attention,
)
from energon_pack.config.compose import compose_config
from energon_pack.pack import pack
from energon_pack.samples.member import MemberInput
from energon_pack.training.encoded import IGNORE
from support.pairs import write_pairs
from support.running import ROOT, command, need_torchvision

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.usefixtures("one_thread")]
NUM_PAIRS, BETA = 44, 0.1
KINDS = ("sigmoid", "ipo", "hinge")
#: the processor, the family, and what else its packs are made with
CLASSES: dict[str, tuple[str, str, int, list[str]]] = {
    "qwen3_vl": ("qwen3_vl", "qwen3_vl", 4, []),
    "internvl": ("internvl3_hf", "internvl3", 0, ["+model.processor_kwargs.max_patches=1"]),
    "qwen2_5_text": ("qwen2_5_text", "text", 0, []),
}


def wide(inputs: dict[str, Any]) -> dict[str, Any]:
    floats = {name: value.double() for name, value in inputs.items() if getattr(value, "dtype", None) == torch.float32}
    return {**inputs, **floats}


class Model:
    """A model of a few hundred ids in float64, those that the pairs have, which stands for one of 150,000.

    Inputs and labels are renumbered for it alone; all else is the processor's.
    """

    def __init__(self, folder: Path, ids: torch.Tensor):
        import transformers as tf

        config = tf.AutoConfig.from_pretrained(folder)
        nodes = {id(node): node for node in (config, config.get_text_config())}.values()
        named = [(node, name) for node in nodes for name in vars(node) if name.endswith("_token_id")]
        named = [(node, name) for node, name in named if isinstance(getattr(node, name), int)]
        kept = torch.unique(torch.cat([ids, torch.tensor([getattr(node, name) for node, name in named])]))
        self.numbers = torch.full((int(kept.max()) + 1,), -1)
        self.numbers[kept] = torch.arange(len(kept))
        for node, name in named:
            setattr(node, name, int(self.numbers[getattr(node, name)]))
        config.get_text_config().vocab_size = len(kept)
        torch.manual_seed(0)
        has_media = hasattr(config, "vision_config")
        kind: Any = tf.AutoModelForImageTextToText if has_media else tf.AutoModelForCausalLM
        self.policy = kind.from_config(config, attn_implementation="sdpa").double().eval()
        self.reference = deepcopy(self.policy).requires_grad_(False)
        with torch.no_grad():
            for parameter in self.policy.parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape, dtype=torch.float64))

    def renumbered(self, values: torch.Tensor) -> torch.Tensor:
        """The same token ids, or labels, by the numbers of this model."""
        return torch.where(values == IGNORE, values, self.numbers[values.clamp(min=0)])


def logps_alone(both: Model, model: Any, member: Any) -> torch.Tensor:
    """The sum over the trained tokens of a sample alone, by transformers, in its own way."""
    tokens = member.tokens
    ids, labels = both.renumbered(tokens.ids), both.renumbered(tokens.labels)
    inputs = {"input_ids": ids[None], **member.media}
    if {"image_grid_thw", "video_grid_thw"} & member.media.keys():
        inputs["mm_token_type_ids"] = tokens.types[None]
    logits = model(**wide(inputs), attention_mask=torch.ones_like(ids[None]), use_cache=False).logits[0, :-1]
    return -torch.nn.functional.cross_entropy(logits, labels[1:], ignore_index=IGNORE, reduction="sum")


def gradients(model: Any) -> dict[str, torch.Tensor]:
    found = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad()
    return found


def of_alone(both: Model, sides: Sequence[Any]) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """The losses of all pairs alone, and the gradients of the first kind's."""
    losses = dict.fromkeys(KINDS, 0.0)
    for pair in zip(sides[::2], sides[1::2], strict=True):
        logps, before = (
            torch.stack([logps_alone(both, model, one) for one in pair]) for model in (both.policy, both.reference)
        )
        ratios, counts = logps - before, torch.tensor([int((one.tokens.labels != IGNORE).sum()) for one in pair])
        margin, by_token = ratios[0] - ratios[1], (ratios / counts)[0] - (ratios / counts)[1]
        each = {
            "sigmoid": -torch.log(torch.sigmoid(BETA * margin)) / NUM_PAIRS,
            "ipo": (by_token - 1 / (2 * BETA)) ** 2 / NUM_PAIRS,
            "hinge": torch.clamp(1 - BETA * margin, min=0) / NUM_PAIRS,
        }
        each[KINDS[0]].backward()
        losses = {kind: losses[kind] + float(each[kind].detach()) for kind in KINDS}
    return losses, gradients(both.policy)


def of_packs(packs: Any, both: Model) -> tuple[dict[str, float], dict[str, torch.Tensor], int]:
    """The same of packs, one a batch; and their tokens."""
    losses, seen, tokens = dict.fromkeys(KINDS, 0.0), 0, 0
    total = torch.tensor(float(NUM_PAIRS), dtype=torch.float64)
    for encoded in packs:
        batch = packs.collate([encoded])
        seen, tokens = seen + int(num_pairs(batch)), tokens + batch["num_tokens"]
        batch |= {name: both.renumbered(batch[name]) for name in ("input_ids", "labels")}
        before, logps = (
            member_logps(model(**wide(batch.model_inputs(model))).logits, batch)
            for model in (both.reference, both.policy)
        )
        parts = {kind: preference_loss(logps, before, batch, BETA, kind, total) for kind in KINDS}
        parts[KINDS[0]].backward()
        losses = {kind: losses[kind] + float(parts[kind].detach()) for kind in KINDS}
    assert seen == NUM_PAIRS
    return losses, gradients(both.policy), tokens


@pytest.mark.parametrize("name", CLASSES)
def test_packs_of_a_class_have_the_loss_and_gradients_of_pairs_alone(name: str, real: Path, tmp_path: Path) -> None:
    """On disk with and without shared prompts, and in a stream."""
    need_torchvision()
    processor, family, num_videos, more = CLASSES[name]
    model = tmp_path / "model"
    done = command(ROOT / "recipes" / "tiny_folder.py", real / "processors" / processor, model, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "source").mkdir()
    source = write_pairs(tmp_path / "source", NUM_PAIRS, 15, with_media=family != "text", num_videos=num_videos)
    words = [f"+model={family}", f"model.processor={model}", f"source.path={source}", "source.take=both", *more]
    words += [f"output.dir={tmp_path}", "packing.max_token_len=1200", "packing.group_by=none", "executor.num_workers=1"]
    shared = ["packing.share=prefix", "packing.share_min_tokens=1"]
    for word, own in {"whole": list[str](), "shared": shared}.items():
        pack(compose_config([*words, *own, f"output.name={word}"]))
    whole = PackedDataset(tmp_path / "whole", attention_mask="positions")
    inputs = [member for number in range(len(whole)) for member in whole.members(0, number)]
    sides = [whole.encoder.members.encode(one) for one in inputs if isinstance(one, MemberInput)]
    both = Model(model, torch.cat([side.tokens.ids for side in sides]))
    losses, wanted = of_alone(both, sides)
    largest = max(float(one.abs().max()) for one in wanted.values())
    use_tree_attention(both.policy)
    use_tree_attention(both.reference)
    ways = {"whole": whole, "shared": PackedDataset(tmp_path / "shared", attention_mask="positions")}
    streamed = StreamingPackedDataset([*words, *shared], replacement=False, buffer_size=16, attention_mask="positions")
    for way, packs in {**ways, "stream": streamed}.items():
        found, grads, tokens = of_packs(packs, both)
        far = {kind: abs(found[kind] - losses[kind]) / abs(losses[kind]) for kind in KINDS}
        assert grads.keys() == wanted.keys()
        gradients_far = max(float((grads[key] - wanted[key]).abs().max()) for key in wanted) / largest
        print(f"| {name} | {way} | {tokens} | {losses[KINDS[0]]:.6f} | {max(far.values()):.1e} | {gradients_far:.1e} |")
        assert max(*far.values(), gradients_far) <= 1e-6, (way, far)
