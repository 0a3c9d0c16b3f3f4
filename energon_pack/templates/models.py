"""What a model is, by its YAML in `conf/model`: read without Hydra, which training does not have."""

from pathlib import Path
from typing import Any

import yaml


def conf_dir() -> Path:
    """The folder of config.yaml: inside the package in a wheel, beside it in a checkout or an editable install."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise FileNotFoundError(f"no conf/config.yaml in {package} or beside it: the installation is broken")


def packaged_models() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(file.stem for file in (conf_dir() / "model").glob("*.yaml"))


def model_of(processor_class: str) -> str:
    """The model whose name a processor's class has: `qwen2_5_vl` of Qwen2_5_VLProcessor; `auto` where none has."""
    names = {name.replace("_", ""): name for name in packaged_models()}
    return names.get(processor_class.removesuffix("Processor").replace("_", "").lower(), "auto")


def read_model(name: str) -> dict[str, Any]:
    """The `model` node of packing with `+model=NAME`; what its YAML does not set is left out.

    Args:
        name: as in `+model=NAME`, or the path of a YAML file.

    Raises:
        ValueError: there is none of that name, then it says which there are; or its file is no model's YAML.
    """
    folder = conf_dir() / "model"
    path = Path(name).expanduser() if name.endswith(".yaml") else folder / f"{name}.yaml"
    if not path.is_file():
        raise ValueError(f"model={name}: there are {', '.join(packaged_models())}; or name a YAML file")
    try:
        node = yaml.safe_load(path.read_bytes())
    except yaml.YAMLError as error:
        raise ValueError(f"model={name}: {path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(node, dict) or not {"name", "template"} <= node.keys():
        raise ValueError(f"model={name}: {path} is no model's YAML: it has no name and template of its own")
    return {"hub_id": None, "mask": "positions", "rope": "none", **node}
