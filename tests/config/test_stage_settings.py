"""The settings of stages, picked from a run's config."""

import pytest

from energon_pack.config import ModelConfig, OutputConfig, PackConfig, Stage
from energon_pack.config.schema import MediaIn
from energon_pack.config.stage_settings import StageSettings
from energon_pack.errors import PackError
from energon_pack.sources.find import Source
from energon_pack.sources.shard import TarShard


@pytest.mark.parametrize("stage", Stage)
def test_only_stages_that_write_shards_need_one_folder_for_references(stage: Stage) -> None:
    """Lengths, a plan and packs that are made while loading refer to no media: a source may lie on several stores."""
    source = Source([TarShard("a.tar", "/data/a.tar", 1, ""), TarShard("b.tar", "s3://b/b.tar", 1, "")], frozenset())
    config = PackConfig(ModelConfig("qwen2_5_vl", "qwen_vl"), output=OutputConfig(media=MediaIn.reference), stage=stage)
    if stage in (Stage.lengths, Stage.plan):
        assert StageSettings.of(config, source, "processor").shards.media_root is None
    else:
        with pytest.raises(PackError, match=r"media=reference: the source lies in /data and s3://b: no folder holds"):
            StageSettings.of(config, source, "processor")
