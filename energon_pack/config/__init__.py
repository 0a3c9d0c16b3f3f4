"""The config: `PackConfig`, its nodes and their enums."""

from energon_pack.config.schema import (
    DatasetYaml,
    Engine,
    Flavor,
    MeasureConfig,
    MediaIn,
    OutputConfig,
    PackConfig,
    ReportConfig,
    SplitsConfig,
    Stage,
)
from energon_pack.plan.settings import Algorithm, GroupBy, Layout, Overlong, PackingConfig
from energon_pack.run.executors.settings import ExecutorConfig, ExecutorKind
from energon_pack.run.untrusted_input import plain
from energon_pack.samples.settings import ControlTokens, Frames, SampleType
from energon_pack.sources.settings import Format, OnDamaged, SourceConfig
from energon_pack.templates.models import conf_dir
from energon_pack.templates.settings import Expand, LabelsConfig, Mask, MediaConfig, ModelConfig, Rope, TrainOn

__all__ = [
    "Algorithm",
    "ControlTokens",
    "DatasetYaml",
    "Engine",
    "ExecutorConfig",
    "ExecutorKind",
    "Expand",
    "Flavor",
    "Format",
    "Frames",
    "GroupBy",
    "LabelsConfig",
    "Layout",
    "Mask",
    "MeasureConfig",
    "MediaConfig",
    "MediaIn",
    "ModelConfig",
    "OnDamaged",
    "OutputConfig",
    "Overlong",
    "PackConfig",
    "PackingConfig",
    "ReportConfig",
    "Rope",
    "SampleType",
    "SourceConfig",
    "SplitsConfig",
    "Stage",
    "TrainOn",
    "conf_dir",
    "plain",
]
