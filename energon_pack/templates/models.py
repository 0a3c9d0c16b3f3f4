"""Read the YAML of a model in `conf/model` without Hydra, which training does not have."""

from pathlib import Path
from typing import Any

from energon_pack.run.untrusted_input import UnparsableDataError, parse_yaml


def conf_dir() -> Path:
    """Return the folder of config.yaml: in a wheel inside the package, in a checkout or editable install beside it."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise FileNotFoundError(f"no conf/config.yaml in {package} or beside it: the installation is broken")


def packaged_models() -> list[str]:
    """Return the names of the models that come with the package."""
    return sorted(file.stem for file in (conf_dir() / "model").glob("*.yaml"))


def model_name_of(processor_class: str) -> str:
    """Return the name of the packaged model for a processor class (Qwen2_5_VLProcessor: `qwen2_5_vl`); else `auto`."""
    names = {name.replace("_", ""): name for name in packaged_models()}
    return names.get(processor_class.removesuffix("Processor").replace("_", "").lower(), "auto")


def read_model_config(name_or_path: str) -> dict[str, Any]:
    """Return the `model` node of a packaged model (by name) or a YAML file (by path); raises ValueError for others."""
    folder = conf_dir() / "model"
    path = Path(name_or_path).expanduser() if name_or_path.endswith(".yaml") else folder / f"{name_or_path}.yaml"
    if not path.is_file():
        raise ValueError(f"model={name_or_path}: there are {', '.join(packaged_models())}; or name a YAML file")
    try:
        node = parse_yaml(path.read_bytes())
    except UnparsableDataError as error:
        raise ValueError(f"model={name_or_path}: {path} is no YAML: {error}") from None
    if not isinstance(node, dict) or not {"name", "template"} <= node.keys():
        raise ValueError(f"model={name_or_path}: {path} is no model's YAML: it has no name and template of its own")
    return {"hub_id": None, "mask": "positions", "rope": "none", **node}
