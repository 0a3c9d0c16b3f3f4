"""Planning, cutting, the ledger and verify ask one table: what one of them lets into a pack, no other refuses."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from energon_pack.config import PackConfig, Stage
from energon_pack.lengths.schema import LENGTHS_SCHEMA
from energon_pack.pack import pack
from energon_pack.plan.overlong import settings_of_cutting
from energon_pack.plan.settings import (
    CAPPED_COLUMNS,
    CAPS,
    GroupBy,
    Layout,
    Overlong,
    PackingConfig,
    costs_and_limits,
    exceeded_limits,
)
from energon_pack.run.untrusted_input import plain
from energon_pack.verify.pack_checks import check_packing_limits
from support.samples import chat, write_tar

Members = list[tuple[int, int, int, int, int]]  # token_len, num_images, num_visual_tokens, num_audios, num_audio_tokens


def verified(members: Members, packing: PackingConfig) -> list[str]:
    """Return verify's result for a pack of these members."""
    lens, images, visual, sounds, heard_tokens = zip(*members, strict=True)
    kinds = [["image"] * number + ["audio"] * heard for number, heard in zip(images, sounds, strict=True)]
    none = [0] * len(lens)
    pack = SimpleNamespace(meta={"token_lens": list(lens)}, media_kinds=kinds, shared_lens=none, num_shared_media=none)
    rows = [
        SimpleNamespace(num_visual_tokens=seen, num_shared_visual_tokens=0, num_audio_tokens=heard)
        for seen, heard in zip(visual, heard_tokens, strict=True)
    ]
    return list(check_packing_limits(cast(Any, pack), plain(packing), cast(Any, rows)))


def test_a_pack_to_check_by_head() -> None:
    """Members of 5 and 9 tokens take 8 + 16, cost 25 + 81, have 3 images with 7 visual tokens, 2 sounds with 5."""
    members = [(5, 1, 3, 0, 0), (9, 2, 4, 2, 5)]
    packing = PackingConfig(
        max_token_len=23, pad_to_multiple_of=8, max_images=2, max_visual_tokens=6, max_audios=1, max_members=1,
        max_audio_tokens=4, max_attention_cost=105,
    )  # fmt: skip
    broken = ["24 > packing.max_token_len=23", "3 > packing.max_images=2", "7 > packing.max_visual_tokens=6"]
    broken += ["2 > packing.max_audios=1", "5 > packing.max_audio_tokens=4", "2 > packing.max_members=1"]
    broken += ["106 > packing.max_attention_cost=105"]
    assert verified(members, packing) == broken
    wider: dict[str, Any] = {
        "max_token_len": 24,
        "max_images": 3,
        "max_visual_tokens": 7,
        "max_audios": 2,
        "max_audio_tokens": 5,
        "max_members": 2,
    }
    assert verified(members, replace(packing, **wider, max_attention_cost=106)) == []


def test_each_cap_is_a_setting_about_a_column_of_the_lengths() -> None:
    names = {field.name for field in fields(PackingConfig) if field.name[:4] == "max_"} - {"max_dropped_tokens"}
    assert {cap.name for cap in CAPS} == names
    assert set(CAPPED_COLUMNS) <= set(LENGTHS_SCHEMA.names)
    assert CAPS[0].name == "max_token_len"


@hypothesis.given(
    st.lists(st.tuples(st.integers(1, 40), *[st.integers(0, most) for most in (4, 9, 3, 9)]), min_size=1, max_size=5),
    st.tuples(*[st.none() | st.integers(1, 60)] * 6),
    st.integers(1, 4),
)
def test_all_who_ask_are_told_the_same(members: Members, caps: tuple[int | None, ...], multiple: int) -> None:
    names = [cap.name for cap in CAPS[1:]]
    given: dict[str, Any] = dict(zip(names, caps, strict=True))
    packing = PackingConfig(max_token_len=30, pad_to_multiple_of=multiple, **given)
    columns = ("token_len", "num_images", "num_visual_tokens", "num_audios", "num_audio_tokens")
    counts = {name: np.array(values) for name, values in zip(columns, zip(*members, strict=True), strict=True)}
    values, limits = costs_and_limits(counts, packing)
    for member, of_member in zip(members, values.T, strict=True):
        alone = exceeded_limits(dict(zip(columns, member, strict=True)), packing)
        assert alone == verified([member], packing)
        assert len(alone) == (of_member > limits).sum()
    assert len(verified(members, packing)) == (values.sum(axis=1) > limits).sum()


@pytest.mark.parametrize("field", fields(PackingConfig), ids=lambda field: field.name)
def test_which_settings_have_samples_cut_anew(field: Any) -> None:
    """Parts that were kept for other limits might not fit; cut anew at each change, a sweep would be slow."""
    others: dict[str, Any] = {"layout": Layout.thd, "overlong": Overlong.truncate_text, "group_by": GroupBy.none}
    base = PackingConfig(overlong=Overlong.split_turns)
    changed = replace(base, **{field.name: others.get(field.name, 7)})
    limits = {cap.name for cap in CAPS}
    assert (settings_of_cutting(changed) != settings_of_cutting(base)) == (
        field.name in (*limits, "pad_to_multiple_of", "overlong")
    )


def test_what_is_said_comes_true(config: Callable[..., PackConfig], capsys: pytest.CaptureFixture[str]) -> None:
    run = config(stage=Stage.lengths)
    run.report.lens = [128, 512, 1024, 8192]
    figures = pack(run)
    assert not (Path(run.output.dir) / "packed").exists()
    assert figures["samples_measured"] == 320
    assert list(figures["token_len"]) == ["min", "p50", "p90", "p99", "max"]
    said = capsys.readouterr().out
    assert "packing.max_token_len" in said
    for row in figures["lens"]:
        name = f"at{row['max_token_len']}"
        plan = pack(config(stage=Stage.plan, output__name=name, packing__max_token_len=row["max_token_len"]))
        assert (plan["packs"], plan["fill"]) == (row["packs"], row["fill"])
        assert plan["skipped_by_reason"].get("overlong", 0) == row["dropped"]
        assert f"{row['dropped_share']:.2%}" in said
    dropped = [row["dropped"] for row in figures["lens"]]
    assert dropped == sorted(dropped, reverse=True)
    assert (dropped[0] > 0, dropped[-1]) == (True, 0)


def test_lengths_are_taken_down_to_what_is_padded_to(config: Callable[..., PackConfig], tmp_path: Path) -> None:
    run = config(write_tar(tmp_path / "s" / "x.tar", {"a.json": chat("a", "b")}), stage=Stage.lengths)
    run.packing.pad_to_multiple_of = 64
    run.packing.max_token_len = 8192
    run.report.lens = [1000]
    assert [row["max_token_len"] for row in pack(run)["lens"]] == [960]
