"""Does a model keep the members of this dataset's packs apart? A small one of its class is probed with some of them."""

import importlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_loader, get_val_dataset

from energon_pack.dataset.manifest import read_manifest
from energon_pack.errors import PackError
from energon_pack.loading import cookers
from energon_pack.samples.flavors.base import MemberInput
from energon_pack.task_encoder import PackedTaskEncoder, inputs_of
from energon_pack.templates.template import Template
from energon_pack.templates.torchvision_shim import prepare_torchvision
from energon_pack.training.guards import MixingError
from energon_pack.training.members import Encoded
from energon_pack.training.probe import Finding, probe, shrink

_NUM_PACKS = 16  # looked at for short members
_MAX_LEN = 2048  # of a member, where there are shorter ones
_NUM_LOGITS = 256  # of each token: all 150,000 would take gigabytes, and say the same


@dataclass(frozen=True)
class Checked:
    """What the probe saw, and what is wrong with it."""

    model: str
    num_members: int
    num_tokens: int
    findings: list[Finding]
    defects: list[str]

    def __str__(self) -> str:
        others, own, alone = (
            max((getattr(finding, name) for finding in self.findings), default=0.0)
            for name in ("others", "own", "alone")
        )
        return (
            f"{self.model}, made small: {self.num_members} members of {self.num_tokens:,} tokens in one pack; one"
            f" changed, its own logits move by {own:.2g}, those of others by {others:.2g}; packed and alone differ by"
            f" {alone:.2g}"
        )


def check_model(folder: Path, model: str, processor: str | None, trust_remote_code: bool) -> Checked:
    """Probe a class of models with members of a dataset, on the CPU.

    Args:
        model: a class of transformers, `module:Class`, or a folder or hub id with a config.json.
        processor: folder or hub id; None: the one it was packed with.

    Raises:
        PackError: there is no such model, or its processor is not there.
    """
    warnings.filterwarnings("ignore")  # of models and media
    make, config = _named(model, trust_remote_code)
    try:
        encoder = PackedTaskEncoder(
            folder,
            processor,
            layout="neat",
            tokens_per_second=getattr(getattr(config, "vision_config", None), "tokens_per_second", None),
            trust_remote_code=trust_remote_code,
        )
    except MixingError as error:
        return Checked(model, 0, 0, [], [str(error)])
    except (OSError, ValueError) as error:
        raise PackError(f"--model: {error}") from None
    members = _members(folder, encoder)
    findings: list[Finding] = []
    defects: list[str] = []
    try:
        small = _small(make, config, encoder.template, trust_remote_code)
        findings = [probe(small, members, encoder.mask, changed) for changed in range(len(members))]
    except MixingError as error:
        defects.append(str(error))
    except Exception as error:  # foreign code, with inputs it may not be made for
        defects.append(f"it can't be run on members of this dataset: {type(error).__name__}: {error}")
    for member, finding in zip(members, findings, strict=False):
        if finding.mixes:
            defects.append(
                f"a change in {member.sample_id} moves other members' logits by {finding.others:.2g}, its own by"
                f" {finding.own:.2g}; packed and alone differ by {finding.alone:.2g}: model.mask={encoder.mask}"
                " does not keep them apart in this model (dict4d gives it masks of its own)"
            )
    return Checked(model, len(members), sum(len(member.tokens) for member in members), findings, defects)


def _named(model: str, trust_remote_code: bool) -> tuple[Any, Any]:
    """A class of models, and its config."""
    prepare_torchvision()
    import transformers

    module, colon, name = model.rpartition(":")
    try:
        if colon:
            make = getattr(importlib.import_module(module), name)
            return make, make.config_class()
        if not Path(model, "config.json").is_file() and "/" not in model:
            make = getattr(transformers, model)
            return make, make.config_class()
        config = transformers.AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    except (ImportError, AttributeError, OSError, ValueError) as error:
        raise PackError(
            f"--model {model}: a class of transformers, module:Class, or a folder or hub id with a config.json"
            f" ({' '.join(str(error).split())[:200]})"
        ) from None
    name = next(iter(config.architectures or ()), "")
    return getattr(transformers, name, None), config


def _small(make: Any, config: Any, template: Template, trust_remote_code: bool) -> Any:
    """A random small model that knows the template's tokens."""
    import transformers

    text = config.get_text_config()
    text.vocab_size = max(text.vocab_size, template.vocabulary_size)
    rules = template.rules
    for kind, token in {**rules.media_tokens, **rules.feature_tokens}.items():
        for name in (f"{kind}_token_id", f"{kind}_token_index"):
            if hasattr(config, name):
                setattr(config, name, template.token_id(token))
    torch.manual_seed(0)
    config = shrink(config)
    if make is None:  # code of its own
        make = transformers.AutoModelForImageTextToText if rules.media_tokens else transformers.AutoModelForCausalLM
        model = make.from_config(config, trust_remote_code=trust_remote_code)
    else:
        model = make._from_config(config) if hasattr(make, "_from_config") else make(config)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if isinstance(head, torch.nn.Linear):
        head.weight = torch.nn.Parameter(head.weight[:_NUM_LOGITS])
        head.bias = None if head.bias is None else torch.nn.Parameter(head.bias[:_NUM_LOGITS])
    return model.float().eval()  # in the bfloat16 of most configs, packed and alone differ by rounding


def _members(folder: Path, encoder: PackedTaskEncoder) -> list[Encoded]:
    """Two short members with media and one without, or what there is; at least two."""

    class Cooked(DefaultTaskEncoder[Any, Any, Any, Any]):
        decoder = None

    Cooked.cookers = cookers()
    split = next(iter(read_manifest(folder)["splits"]))
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    packs = get_val_dataset(
        folder, split_part=split, worker_config=worker, batch_size=None, limit=_NUM_PACKS, task_encoder=Cooked()
    )
    members = [member for pack in get_loader(packs) for member in inputs_of(pack)]
    members.sort(key=lambda member: member.token_len or 0)
    short = [member for member in members if (member.token_len or 0) <= _MAX_LEN] or members[:2]
    with_media = [member for member in short if member.images or member.videos][:2]
    others: list[MemberInput] = [member for member in short if member not in with_media][: 3 - len(with_media)]
    chosen = [*with_media, *others]
    return [encoder.members.encode(member) for member in (chosen if len(chosen) > 1 else chosen * 2)]
