"""Offer the groups of `conf/` to other Hydra applications, under the prefix `energon_pack/`: `energon_pack/model` …

A training app then writes `- energon_pack/packing@data.packing: thd` in its defaults, or
`+energon_pack/model@data.model=qwen2_5_vl` on its command line. Each file but a model's comes with the defaults of its
node, so the app may override any of its keys. Its own groups are unchanged: nothing is added to its search path.
"""

from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf


class EnergonPackSearchPath(SearchPathPlugin):
    """The plugin that offers these groups. Hydra loads it in every application, so it imports no torch."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        from energon_pack.config.schema import PACK_SCHEMA
        from energon_pack.templates.models import conf_dir

        conf = conf_dir()
        places = [str(item.path).removeprefix("file://") for item in search_path.get_path() if item.provider == "main"]
        if str(conf) in places:
            return  # this is energon-pack itself, whose search path has the groups
        defaults: dict[str, Any] = OmegaConf.to_container(PACK_SCHEMA, enum_to_str=True)  # type: ignore[assignment]
        for path in sorted(conf.glob("*/*.yaml")):
            group, node = path.parent.name, OmegaConf.load(path)
            if group != "model":  # those name all that there is to choose
                node = OmegaConf.merge(defaults[group], node)
            ConfigStore.instance().store(
                group=f"energon_pack/{group}", name=path.stem, node=node, provider="energon_pack"
            )
