"""energon_pack: multimodal fine-tuning samples, packed into full sequences for Megatron-Energon.

    from energon_pack import PackedTaskEncoder, train_arguments

This is the one door: every name that other code may import is listed here. Each is imported when it is first asked
for, because every Hydra application of an environment imports this package for its plugin, and a training job loads
only what it needs.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from energon_pack.version import VERSION

__version__ = VERSION

#: by module: the public names that it defines
_HOMES = {
    "automodel": "PackRows check_automodel",
    "config.compose": "compose_config",
    "config.schema": "PackConfig",
    "dataset.manifest": "read_manifest",
    "errors": "PackError SamplesLost",
    "flavors": "MultiMixQASample PackedCaptioningSample PackedMultiMixQASample",
    "lazy": "LazyPackedDataset",
    "dataset_encoder": "pack_encoder",
    "loading": "cookers make_part_filter make_sample_loader train_arguments",
    "on_disk": "PackedDataset",
    "pack": "pack",
    "packed_with": "load_template",
    "reading": "PackStream PacksInOrder positions_of",
    "samplers": "LengthGroupedSampler PackSampler",
    "samples.flavors.multi_mix_qa": "PackedMultiMixQA",
    "samples.media.medium": "Media MediaFormat Medium",
    "samples.member": "MemberInput",
    "samples.options": "options_of",
    "sources.shard": "JsonlShard",
    "steps.journal": "Consumed Journal",
    "steps.topology": "ranks_here",
    "streaming": "StreamingPackedDataset",
    "task_encoder": "EncodedPack PackedTaskEncoder inputs_of",
    "templates.member_tokens": "sample_of",
    "templates.sample": "Sample",
    "templates.template": "Template",
    "templates.torchvision_shim": "prepare_torchvision",
    "trainers.check": "check_trainer",
    "trainers.loss": "weighted",
    "training.batch": "PackedBatch source_losses total_weight touch_vision weighted_loss",
    "training.guards": "Guard guard",
    "training.inputs": "MixingError check_inputs",
    "training.pack_encoder": "PackEncoder",
    "training.shapes": "packed_seq_params",
    "training.tree_attention": "use_tree_attention",
    "training.trees": "magi_ranges",
    "webdataset": "Packs packs shard_urls",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME_OF)

if TYPE_CHECKING:  # the same names, for type checkers and editors; a test compares them
    from energon_pack.automodel import PackRows as PackRows
    from energon_pack.automodel import check_automodel as check_automodel
    from energon_pack.config.compose import compose_config as compose_config
    from energon_pack.config.schema import PackConfig as PackConfig
    from energon_pack.dataset.manifest import read_manifest as read_manifest
    from energon_pack.dataset_encoder import pack_encoder as pack_encoder
    from energon_pack.errors import PackError as PackError
    from energon_pack.errors import SamplesLost as SamplesLost
    from energon_pack.flavors import MultiMixQASample as MultiMixQASample
    from energon_pack.flavors import PackedCaptioningSample as PackedCaptioningSample
    from energon_pack.flavors import PackedMultiMixQASample as PackedMultiMixQASample
    from energon_pack.lazy import LazyPackedDataset as LazyPackedDataset
    from energon_pack.loading import cookers as cookers
    from energon_pack.loading import make_part_filter as make_part_filter
    from energon_pack.loading import make_sample_loader as make_sample_loader
    from energon_pack.loading import train_arguments as train_arguments
    from energon_pack.on_disk import PackedDataset as PackedDataset
    from energon_pack.pack import pack as pack
    from energon_pack.packed_with import load_template as load_template
    from energon_pack.reading import PacksInOrder as PacksInOrder
    from energon_pack.reading import PackStream as PackStream
    from energon_pack.reading import positions_of as positions_of
    from energon_pack.samplers import LengthGroupedSampler as LengthGroupedSampler
    from energon_pack.samplers import PackSampler as PackSampler
    from energon_pack.samples.flavors.multi_mix_qa import PackedMultiMixQA as PackedMultiMixQA
    from energon_pack.samples.media.medium import Media as Media
    from energon_pack.samples.media.medium import MediaFormat as MediaFormat
    from energon_pack.samples.media.medium import Medium as Medium
    from energon_pack.samples.member import MemberInput as MemberInput
    from energon_pack.samples.options import options_of as options_of
    from energon_pack.sources.shard import JsonlShard as JsonlShard
    from energon_pack.steps.journal import Consumed as Consumed
    from energon_pack.steps.journal import Journal as Journal
    from energon_pack.steps.topology import ranks_here as ranks_here
    from energon_pack.streaming import StreamingPackedDataset as StreamingPackedDataset
    from energon_pack.task_encoder import EncodedPack as EncodedPack
    from energon_pack.task_encoder import PackedTaskEncoder as PackedTaskEncoder
    from energon_pack.task_encoder import inputs_of as inputs_of
    from energon_pack.templates.member_tokens import sample_of as sample_of
    from energon_pack.templates.sample import Sample as Sample
    from energon_pack.templates.template import Template as Template
    from energon_pack.templates.torchvision_shim import prepare_torchvision as prepare_torchvision
    from energon_pack.trainers.check import check_trainer as check_trainer
    from energon_pack.trainers.loss import weighted as weighted
    from energon_pack.training.batch import PackedBatch as PackedBatch
    from energon_pack.training.batch import source_losses as source_losses
    from energon_pack.training.batch import total_weight as total_weight
    from energon_pack.training.batch import touch_vision as touch_vision
    from energon_pack.training.batch import weighted_loss as weighted_loss
    from energon_pack.training.guards import Guard as Guard
    from energon_pack.training.guards import guard as guard
    from energon_pack.training.inputs import MixingError as MixingError
    from energon_pack.training.inputs import check_inputs as check_inputs
    from energon_pack.training.pack_encoder import PackEncoder as PackEncoder
    from energon_pack.training.shapes import packed_seq_params as packed_seq_params
    from energon_pack.training.tree_attention import use_tree_attention as use_tree_attention
    from energon_pack.training.trees import magi_ranges as magi_ranges
    from energon_pack.webdataset import Packs as Packs
    from energon_pack.webdataset import packs as packs
    from energon_pack.webdataset import shard_urls as shard_urls


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'energon_pack' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"energon_pack.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Door(ModuleType):
    """The package, in which a public name wins over the file of that name: `pack` is the function, not pack.py."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _HOME_OF or not isinstance(value, ModuleType):  # the import of pack.py would set the module
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Door
