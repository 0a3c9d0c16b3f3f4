"""The config's nodes are dataclasses of the packages that use them: each field is described, and the YAML has its
default.
"""

import inspect
import re
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import pytest
from hydra import compose, initialize_config_dir

from energon_pack.config import MediaConfig, ModelConfig, PackConfig, Rope, conf_dir, plain
from energon_pack.config.validate import to_config
from energon_pack.errors import PackError
from energon_pack.run.untrusted_input import dataclass_from_dict


def nodes(kind: type[Any] = PackConfig) -> list[type[Any]]:
    """The classes of the config, and those they are made from."""
    inner = [hint for hint in get_type_hints(kind).values() if is_dataclass(hint) and isinstance(hint, type)]
    bases = [base for base in kind.__mro__ if is_dataclass(base)]
    return [*bases, *(node for hint in inner for node in nodes(hint))]


def composed(*overrides: str) -> PackConfig:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return to_config(compose("config", ["+model=qwen2_5_vl", *overrides]))


@pytest.mark.parametrize("kind", dict.fromkeys(nodes()), ids=lambda kind: kind.__name__)
def test_each_field_says_what_it_is(kind: type[Any]) -> None:
    lines, first = inspect.getsourcelines(kind)
    types = get_type_hints(kind)
    for number, line in enumerate(lines):
        name = re.match(r"    (\w+): ", line)
        if name and not is_dataclass(types[name[1]]):
            assert lines[number - 1].startswith("    #: "), f"{name[1]}, line {first + number}"


def test_the_yaml_has_the_defaults_of_the_classes() -> None:
    """`pack` called from Python makes the same dataset as the command line."""
    config = plain(composed())
    model = config.pop("model")
    defaults = plain(PackConfig())
    del defaults["model"]
    assert config == defaults
    named = ModelConfig("qwen2_5_vl", "qwen_vl", "Qwen/Qwen2.5-VL-7B-Instruct", factor=28, rope=Rope.qwen2_5_vl)
    assert model == plain(named)


def test_a_node_comes_back_from_its_json() -> None:
    """An enum comes back as one: with `source.media=ignore`, verify said of captions that their source changed."""
    config = composed(
        *("source.control_tokens=skip", "source.media=ignore", "packing.overlong=truncate_text", "labels.train_on=last")
    )
    for node in (getattr(config, field.name) for field in fields(config)):
        if is_dataclass(node) and not hasattr(node, "splits"):
            assert repr(dataclass_from_dict(type(node), plain(node))) == repr(node)
    assert dataclass_from_dict(MediaConfig, {"fps": 2.0, "of_another_version": 1}) == MediaConfig(fps=2.0)


@pytest.mark.parametrize(
    "key", ["packing.max_images", "packing.window", "media.num_frames", "model.factor", "source.limit"]
)
def test_a_count_is_at_least_one(key: str) -> None:
    with pytest.raises(PackError, match=f"{key}=0: must be at least 1"):
        composed(f"{key}=0")


def test_fewer_than_one_frame_a_second_is_no_count() -> None:
    assert composed("media=fps", "media.fps=0.5").media.fps == 0.5
    with pytest.raises(PackError, match=r"media\.fps=0\.0: must be more than 0"):
        composed("media.fps=0")


def test_a_processor_alone_is_model_auto() -> None:
    """Without `+model` a run was refused, and listed 53 names to choose from."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        words = ["model.processor=/p", "model.max_pixels=784"]
        alone, named = (to_config(compose("config", [*first, *words])).model for first in ([], ["+model=auto"]))
    assert alone == named
    assert (alone.template, alone.max_pixels) == ("auto", 784)
