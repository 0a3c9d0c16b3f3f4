"""Layouts that only other tools write. This package loads each as the flavour that its class derives from."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from energon_pack.errors import short
from energon_pack.samples.flavors.base import Fields
from energon_pack.samples.flavors.captioning import COLUMNS, PackedCaptioning, alternating
from energon_pack.samples.flavors.multi_mix_qa import PackedMultiMixQA
from energon_pack.samples.flavors.schema import COUNT, MEDIA, META, Schema, is_count, is_list_of
from energon_pack.samples.media.formats import kind_by_name
from energon_pack.samples.parts import Parts
from energon_pack.samples.placeholders import place_media
from energon_pack.samples.record import parse_record
from energon_pack.samples.sample import Message
from energon_pack.samples.settings import STORED


def _is_turns(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(turns, str) or is_list_of(str)(turns) for turns in value)


def _is_texts(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    sides = value.get("prompts"), value.get("captions")
    return all(map(is_list_of(str), sides)) and len(sides[0] or ()) == len(sides[1] or ())


_TURNS = ("a list of texts, or of lists of them", _is_turns)


class LlavaCaptioning(PackedCaptioning):
    """LLaVA-OneVision-2's `packed_captioning`: it has no `_meta`, and its texts may lack placeholders."""

    whose = "LLaVA-OneVision-2's packed_captioning"
    told_by = ("images", "captions")
    schema: ClassVar[Schema] = {
        **{name: what for name, what in COLUMNS.items() if name != "source_fields"},
        "prompts": _TURNS,
        "captions": _TURNS,
        "sample_count": COUNT,
    }
    optional = ("patch_positions", "fps", "timestamp_decimal", "sample_count")
    meta: ClassVar[Schema] = {}

    def parts(self, value: Fields) -> list[list[str]]:
        return super().parts({"patch_positions": None, **value})


class LoongForgeChatMix(PackedMultiMixQA):
    """LoongForge's `packed_chat_mix`: media are named `s000_jpg`, with or without dots."""

    whose = "LoongForge's packed_chat_mix"
    told_by = ("messages", "media_files", "_meta")
    meta: ClassVar[Schema] = {name: META[name] for name in ("pack_id", "sample_ids", "token_lens", "total_token_len")}
    stated = ()  # its lengths were measured with another processor
    names_content = False

    def kind(self, part: str) -> str | None:
        return kind_by_name(f".{re.split('[._]', part)[-1]}")

    def load(self, parts: Parts, value: Fields) -> dict[str, Any]:
        planned = value["_meta"].get("total_token_len")
        return {**super().load(parts, value), "planned_token_len": planned if is_count(planned) else None}

    def conversations(self, value: Fields, kinds: Sequence[list[str]]) -> list[dict[str, Any]]:
        """Return the members with roles and placeholders as packing writes them."""
        members = []
        for member, media_kinds in zip(self.members(value), kinds, strict=True):
            record = parse_record(member, STORED)
            members.append({"messages": place_media(record.messages, media_kinds)[0], "tools": record.tools})
        return members

    def unread(self, fields: Fields) -> Iterator[str]:
        """Yield why their loader fails: Energon decodes a part by its last extension, their cooker hands it over."""
        if fields.get("media_type") == "mix":
            yield "media_type is mix, and LoongForge's cooker takes text, image and video"
        if "media_files" in fields:
            undecoded = [name for names in self.parts(fields) for name in names if kind_by_name(name) is None]
            if undecoded:
                yield (
                    f"LoongForge's encoder gets {short(undecoded[0])} as bytes (media of this pack: {len(undecoded)}):"
                    " Energon decodes no part without an extension; energon_pack's loader reads it"
                )


class LoongForgeMixQA(LoongForgeChatMix):
    """LoongForge's `packed_multi_mix_qa`: each member is a prompt and a caption."""

    subflavor = "packed_multi_mix_qa"
    whose = "LoongForge's packed_multi_mix_qa"
    told_by = ("texts", "media_files", "_meta")
    schema: ClassVar[Schema] = {"texts": ("prompts and as many captions", _is_texts), **MEDIA}

    def members(self, value: Fields) -> list[dict[str, Any]]:
        pairs = zip(value["texts"]["prompts"], value["texts"]["captions"], strict=True)
        return [{"prompts": prompt, "captions": caption} for prompt, caption in pairs]

    def messages(self, member: Fields, positions: Sequence[Any] = ()) -> list[Message]:
        return alternating([member["prompts"]], [member["captions"]])
