"""Offer the groups of `conf/` to other Hydra applications, under the prefix `energon_pack/`: `energon_pack/model` …

A training app then writes `- energon_pack/packing@data.packing: thd` in its defaults, or
`+energon_pack/model@data.model=qwen2_5_vl` on its command line. Its own groups are unchanged, because nothing is added
to its search path.
"""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf


class EnergonPackSearchPath(SearchPathPlugin):
    """The plugin that offers these groups. Hydra loads it in every application, so it imports nothing heavy."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        from energon_pack.templates.models import conf_dir

        conf = conf_dir()
        places = [str(item.path).removeprefix("file://") for item in search_path.get_path() if item.provider == "main"]
        if str(conf) in places:
            return  # this is energon-pack itself, whose search path has the groups
        for path in sorted(conf.glob("*/*.yaml")):
            ConfigStore.instance().store(
                group=f"energon_pack/{path.parent.name}",
                name=path.stem,
                node=OmegaConf.load(path),
                provider="energon_pack",
            )
