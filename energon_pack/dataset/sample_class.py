"""Flavours for the sample classes of other stacks, and the one that such a class accepts.

The packs are those of the flavour; only what another stack reads as it is meant is in them.

If a class has other fields than its loader passes, every pack is lost, and Energon's handler only warns. So the class
is asked for its fields, or, where it can't be imported, the user gives them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib import import_module
from typing import Any

from energon_pack.errors import PackError, one_line
from energon_pack.samples.flavors import PACKED_FLAVORS, find_packed_flavor
from energon_pack.samples.flavors.base import PackedFlavor
from energon_pack.samples.flavors.captioning import PackedCaptioning
from energon_pack.samples.flavors.multi_mix_qa import PackedMultiMixQA


class LoongForgeChatsFlavor(PackedMultiMixQA):
    """Packs for LoongForge's PackedChatMixSample: conversations, with system turns and tools."""

    rules = ("stacks", "formats")
    gives = ("packed_messages", "packed_images", "packed_videos")


class LoongForgeTurnsFlavor(PackedMultiMixQA):
    """Packs for LoongForge's PackedMultiMixQASample: the questions and the answers of each member."""

    rules = ("turns", "stacks", "formats")
    gives = ("images", "videos", "contexts", "answers")
    loader = "sample_loader_of_turns"


class LlavaCaptionsFlavor(PackedCaptioning):
    """Packs for LLaVA-OneVision-2's PackedCaptioningSample: prompts and captions of each member."""

    rules = (*PackedCaptioning.rules, "stacks")
    gives = ("images", "prompts", "captions", "patch_positions", "fps", "timestamp_decimal")


#: The first whose fields a class takes is for it.
STACK_FLAVORS: tuple[PackedFlavor, ...] = (LoongForgeChatsFlavor(), LoongForgeTurnsFlavor(), LlavaCaptionsFlavor())

ClassFields = dict[str, bool]  # field → whether the class requires it


def flavor_for_class(name: str, sample_type: str | None, sample_fields: Sequence[str] | None = None) -> PackedFlavor:
    """Return the flavour with this name whose fields a sample class accepts; raises PackError if there is none.

    Args:
        sample_type: `module:Class` of another stack; None: the sample class of this package.
        sample_fields: the fields of that class; None: the class is imported to find them.
    """
    forms = [stack for stack in STACK_FLAVORS if stack.name == name]
    if sample_type is None or not forms:
        flavor = find_packed_flavor(name)
        if flavor is None:
            raise PackError(
                f"output.flavor={name}: there are {', '.join(PACKED_FLAVORS)}, and what installed packages add"
            )
        if sample_type is not None:
            raise PackError(f"output.sample_type={sample_type}: no sample_loader.py reads output.flavor={name}")
        return flavor
    taken = _fields_of(sample_type, forms) if sample_fields is None else dict.fromkeys(sample_fields, False)
    if fitting := _first_fitting(taken, forms):
        return fitting
    fields_given = ", or ".join(", ".join(form.gives) for form in forms)
    if other := _first_fitting(taken, STACK_FLAVORS):
        fields_given += f"; output.flavor={other.name} gives what it takes"
    elif "messages" in taken:
        fields_given += "; a class with one list of messages is one conversation, in which members would see each other"
    whose = "output.sample_fields" if sample_fields is not None else f"output.sample_type={sample_type}"
    listed = ", ".join(f"{field} (needed)" if is_needed else field for field, is_needed in taken.items())
    raise PackError(f"{whose}: it takes {listed or 'no field'}; packs of output.flavor={name} give {fields_given}")


def _first_fitting(taken: ClassFields, forms: Iterable[PackedFlavor]) -> PackedFlavor | None:
    """Return the first flavour that gives each field a class requires, and no field it lacks; None if there is none."""
    needed = {field for field, is_needed in taken.items() if is_needed}
    return next((form for form in forms if needed <= {*form.gives} <= taken.keys()), None)


def _fields_of(sample_type: str, forms: Iterable[PackedFlavor]) -> ClassFields:
    """Import a class and return its fields, without those that every Energon sample has (`__key__` …)."""
    module, _, name = sample_type.partition(":")
    try:
        sample_class: Any = getattr(import_module(module), name)
    except Exception as error:  # importing a foreign stack may fail in any way
        choices = " or ".join(f"[{','.join(form.gives)}]" for form in forms)
        raise PackError(
            f"output.sample_type={sample_type} can't be asked for its fields here ({one_line(error)}): have it"
            f" importable, or say which it takes: output.sample_fields={choices}"
        ) from None
    if not is_dataclass(sample_class):
        raise PackError(f"output.sample_type={sample_type} is no dataclass, as every sample of Energon is")
    return {field.name: _is_needed(field) for field in fields(sample_class) if not field.name.startswith("__")}


def _is_needed(field: "Field[Any]") -> bool:
    return field.init and field.default is MISSING and field.default_factory is MISSING
