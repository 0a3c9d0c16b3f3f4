"""Check that a model keeps members of packs apart: probe a small model of its class with some of this dataset."""

import copy
import importlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_loader, get_val_dataset

from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.manifest import read_manifest
from energon_pack.errors import PackError
from energon_pack.loading import cookers
from energon_pack.samples.input_rules import InputRules
from energon_pack.samples.media.kinds import KINDS
from energon_pack.samples.member import MemberInput
from energon_pack.task_encoder import PackedTaskEncoder, inputs_of
from energon_pack.templates.torchvision_shim import prepare_torchvision
from energon_pack.training.finding import Proof
from energon_pack.training.inputs import MixingError
from energon_pack.training.members import Encoded
from energon_pack.training.proof import prove, way_out
from energon_pack.training.shrink import shrink

_NUM_PACKS = 16  # packs that are searched for short members
_MAX_LEN = 2048  # tokens of a member, where there are shorter ones


@dataclass(frozen=True)
class Checked:
    """What was probed, and what is wrong."""

    model: str
    num_members: int
    num_tokens: int
    proofs: list[Proof]
    defects: list[str]

    def __str__(self) -> str:
        return (
            f"{self.model}, made small: {self.num_members} members of {self.num_tokens:,} tokens in one pack;"
            f" {'; '.join(map(str, self.proofs))}"
        )


def check_model(folder: DatasetFolder, model: str, processor: str | None, trust_remote_code: bool) -> Checked:
    """Probe a class of models on the CPU, with members of a dataset.

    A model that can't run here is no defect. Nothing is shown then, and `guard` refuses to train on it.

    Args:
        folder: of the dataset.
        model: a class of transformers, `module:Class`, or a folder or hub id with a config.json.
        processor: folder or hub id; None: the one it was packed with.
        trust_remote_code: whether code of the model and the processor may run.

    Raises:
        PackError: there is no such model, or its processor is missing.
    """
    warnings.filterwarnings("ignore")  # from models and media
    make, config = _named(model, trust_remote_code)
    try:
        encoder = PackedTaskEncoder(
            folder.path,
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
    config = _with_tokens(config, encoder.encoder.rules)
    make = make or _by_config(config, encoder.encoder.rules, trust_remote_code)
    proofs = prove(make, config, members, encoder.mask, longest=encoder.max_token_len)
    defects: list[str] = []
    if not proofs[-1].is_exact and any(proof.finding for proof in proofs):
        out = way_out(make, config, members, None, encoder.max_token_len, proofs)
        defects.append(f"{'; '.join(map(str, proofs))}: it does not keep members apart. {out}")
    return Checked(model, len(members), sum(len(member.tokens) for member in members), proofs, defects)


def _named(model: str, trust_remote_code: bool) -> tuple[Any, Any]:
    """Return a class of models, and its config."""
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
            f" ({shorten(str(error), 200, placeholder=' …')})"
        ) from None
    name = next(iter(config.architectures or ()), "")
    return getattr(transformers, name, None), config


def _with_tokens(config: Any, rules: InputRules) -> Any:
    """Return a config that knows the tokens of a processor."""
    text = config.get_text_config()
    text.vocab_size = max(text.vocab_size, rules.num_ids)
    for kind in KINDS:
        for name in (f"{kind}_token_id", f"{kind}_token_index"):
            if (number := rules.feature_id(kind)) is not None and hasattr(config, name):
                setattr(config, name, number)
    return config


def _by_config(config: Any, rules: InputRules, trust_remote_code: bool) -> Any:
    """Return the model class that a config's own code defines."""
    import transformers

    kind = "ImageTextToText" if rules.media_tokens else "CausalLM"
    auto = getattr(transformers, f"AutoModelFor{kind}")
    return type(auto.from_config(shrink(copy.deepcopy(config)), trust_remote_code=trust_remote_code))


def _members(folder: DatasetFolder, encoder: PackedTaskEncoder) -> list[Encoded]:
    """Return two short members with media and one without, as far as the dataset has them, and always at least two."""

    class Cooked(DefaultTaskEncoder[Any, Any, Any, Any]):
        decoder = None

    Cooked.cookers = cookers()
    split = next(iter(read_manifest(folder.path)["splits"]))
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    packs = get_val_dataset(
        folder.for_energon,
        split_part=split,
        worker_config=worker,
        batch_size=None,
        limit=_NUM_PACKS,
        task_encoder=Cooked(),
    )
    members = [member for pack in get_loader(packs, watchdog_timeout_seconds=None) for member in inputs_of(pack)]
    members.sort(key=lambda member: member.token_len or 0)
    short = [member for member in members if (member.token_len or 0) <= _MAX_LEN] or members[:2]
    with_media = [member for member in short if any(member.media.values())][:2]
    others: list[MemberInput] = [member for member in short if member not in with_media][: 3 - len(with_media)]
    chosen = [*with_media, *others]
    return [encoder.members.encode(member) for member in (chosen if len(chosen) > 1 else chosen * 2)]
