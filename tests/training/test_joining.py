"""How media inputs of members are joined is found by asking a processor; here small ones, whose answer is known."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from energon_pack.training.joining import FoundJoins, JoinError, JoinRule, find_joins, join

#: by member, the tiles of each image, or the frames of each clip
SIZES = ([2], [5], [1, 3])
TWINS = ([2], [2])
Made = dict[str, Tensor]


def seeded(size: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(size))


def proven(call: Callable[[list[int]], Made]) -> dict[str, JoinRule]:
    """The rules of a processor whose call takes all media of a text."""
    found = find_joins(lambda members, _: call([size for member in members for size in member]), SIZES, TWINS)
    assert found.can_call_once
    return dict(found.joins)


def below(sizes: list[int]) -> Made:
    return {"pixels": torch.cat([seeded(n, n, 3) for n in sizes]), "grid": torch.tensor([[n, 1] for n in sizes])}


def test_media_below_each_other_need_no_more_than_that() -> None:
    assert proven(below) == {"pixels": JoinRule(0), "grid": JoinRule(0)}


def test_media_side_by_side_are_told_from_those_below_each_other() -> None:
    """MiniCPM-V has one strip of patches for a text, Idefics3 one row of tiles: joined below, the model takes two."""
    strip = proven(lambda sizes: {"pixels": torch.cat([seeded(n, 1, 3, 4, 2 * n) for n in sizes], 3)})
    assert strip == {"pixels": JoinRule(3)}
    row = proven(lambda sizes: {"pixels": torch.cat([seeded(n, 1, n, 3, 4) for n in sizes], 1)})
    assert row == {"pixels": JoinRule(1)}


@pytest.mark.parametrize("fill", [0.0, -1.0, 1.0])
def test_what_smaller_media_are_filled_up_with_is_found(fill: float) -> None:
    """LLaVA-NeXT fills up with zeros, Phi-4's mask with ones: filled with the other, a model looks at what is none."""

    def framed(sizes: list[int]) -> Made:
        pixels = torch.full((len(sizes), max(sizes), 4), fill)
        for i, n in enumerate(sizes):
            pixels[i, :n] = seeded(n, n, 4) + 2
        return {"pixels": pixels}

    rules = proven(framed)
    assert rules == {"pixels": JoinRule(0, fill)}
    joined = join([framed([3]), framed([1, 2])], rules)["pixels"]
    assert torch.equal(joined, framed([3, 1, 2])["pixels"])


def pooled(sizes: list[int]) -> Made:
    """Of Molmo2: which patches make a token, counted over all crops of a text; -1 is none."""
    firsts = [sum(sizes[:i]) * 4 for i in range(len(sizes))]
    places = [torch.tensor([[0, 1], [4 * n - 1, -1]]) for n in sizes]
    shifted = [torch.where(p >= 0, p + first, p) for p, first in zip(places, firsts, strict=True)]
    return {"pixels": torch.cat([seeded(n, n, 4, 6) for n in sizes]), "pooling": torch.cat(shifted)}


def test_places_counted_over_all_media_go_on_from_member_to_member() -> None:
    rules = proven(pooled)
    assert rules["pooling"] == JoinRule(0, None, ("pixels", 2))
    parts = [pooled([2]), {}, pooled([1, 4]), pooled([3])]
    assert torch.equal(join(parts, rules)["pooling"], pooled([2, 1, 4, 3])["pooling"])


def test_a_processor_that_takes_one_text_s_media_alone_is_called_for_each() -> None:
    """InternVL makes nothing of clips of several lengths in one text: packs with two of them ended the training."""

    def call(members: Sequence[list[int]], as_rows: bool) -> Made:
        sizes = [size for member in members for size in member]
        if len(set(sizes)) > 1:
            raise RuntimeError("stack expects each tensor to be equal size")
        return {"pixels": torch.cat([seeded(n, n, 3) for n in sizes])}

    found = find_joins(call, [[2], [5]], TWINS)
    assert not found.can_call_once
    assert not found.limit
    assert join([{"pixels": torch.ones(n, 3)} for n in (2, 5)], found.joins)["pixels"].shape == (7, 3)


def test_media_that_only_join_in_one_size_are_told() -> None:
    """LLaVA-OneVision stacks clips: those of other lengths can't be joined, and that is said before one comes."""

    def call(members: Sequence[list[int]], as_rows: bool) -> Made:
        return {"clips": torch.stack([seeded(size, size, 3) for member in members for size in member])}

    found = find_joins(call, [[2], [5]], TWINS)
    assert found.joins == {"clips": JoinRule(0)}
    assert "clips of these members can't be joined" in found.limit


def test_one_video_a_text_is_joined_as_texts_in_rows_are() -> None:
    def call(members: Sequence[list[int]], as_rows: bool) -> Made:
        if len(members) > 1 and not as_rows:
            raise ValueError("At most one video is supported per sample.")
        return pooled([size for member in members for size in member])

    found = find_joins(call, [[2], [5]], TWINS)
    assert not found.can_call_once
    assert found.joins["pooling"].indexed_input == ("pixels", 2)


def test_an_input_that_no_rule_joins_is_named() -> None:
    """Mllama's cross attention mask has a place for each token and image: of members alone it can't be made."""

    def call(members: Sequence[list[int]], as_rows: bool) -> Made:
        totals = [sum(member) for member in members]
        # In rows it looks as if it joined.
        shape = (len(members), max(totals), 1) if as_rows else (1, sum(totals), len(members))
        return {**below([size for member in members for size in member]), "cross": torch.ones(shape)}

    with pytest.raises(JoinError, match="no rule joins cross of several members"):
        find_joins(call, [[2], [5]], TWINS)


def test_values_that_depend_on_the_other_media_are_no_join() -> None:
    with pytest.raises(JoinError, match="no rule joins pixels"):
        proven(lambda sizes: {"pixels": torch.cat([seeded(n, n, 3) / len(sizes) for n in sizes])})


def test_an_input_that_comes_with_several_members_alone_is_named() -> None:
    with pytest.raises(JoinError, match="order: in the media of one member alone, or of several alone"):
        proven(lambda sizes: {**below(sizes), **({"order": torch.arange(len(sizes))} if len(sizes) > 2 else {})})


def test_a_member_that_the_processor_refuses_alone_proves_nothing() -> None:
    def call(members: Sequence[list[int]], as_rows: bool) -> Made:
        if any(len(member) > 1 for member in members):
            raise RuntimeError("one image only")
        return below([size for member in members for size in member])

    assert find_joins(call, SIZES, TWINS).can_call_once
    with pytest.raises(RuntimeError, match="one image only"):
        find_joins(call, [[2], [1, 2], [3, 4]], TWINS)


def test_sizes_that_do_not_join_are_an_error() -> None:
    with pytest.raises(ValueError, match="pixel_values of these members can't be joined"):
        join([{"pixel_values": torch.ones(1, 3, 4, 4)}, {"pixel_values": torch.ones(1, 3, 6, 6)}])


def test_without_rules_media_follow_each_other() -> None:
    joined = join([{"pixel_values": torch.ones(4, 6), "image_grid_thw": torch.tensor([[1, 2, 2]])}] * 2 + [{}])
    assert joined["pixel_values"].shape == (8, 6)
    assert joined["image_grid_thw"].tolist() == [[1, 2, 2]] * 2


def test_sounds_are_padded_where_their_mask_hides_it() -> None:
    """Qwen3-Omni pads features to the longest sound of a call, and the last of a shorter one see the padding."""

    def call(lengths: Sequence[int], as_rows: bool) -> dict[str, Tensor]:
        longest = max(lengths)
        features = torch.zeros(len(lengths), 2, longest)
        mask = torch.zeros(len(lengths), longest, dtype=torch.int64)
        for row, length in enumerate(lengths):
            features[row, :, :length] = torch.arange(1, length + 1)
            features[row, :, length:] = -7
            if length < longest:
                features[row, :, length - 1] = -8
            mask[row, :length] = 1
        return {"input_features": features, "feature_attention_mask": mask}

    shown = find_joins(call, [30, 12, 21], [12, 12])
    names = ("feature_attention_mask", "input_features")
    assert shown == FoundJoins(dict.fromkeys(names, JoinRule(0, pad_value=0.0)), can_call_once=False)
    joined = join([call([length], False) for length in (30, 12)], shown.joins)
    assert joined["input_features"].shape == (2, 2, 30)
    assert joined["input_features"][1, 0, 10:14].tolist() == [11, 12, 0, 0]


def test_sounds_are_padded_behind_their_lengths() -> None:
    """Dots' processor gives no mask, but how long each row is; what stands behind depends on the row."""

    def call(lengths: Sequence[int], as_rows: bool) -> dict[str, Tensor]:
        features = torch.stack([torch.arange(1.0, max(lengths) + 1)] * len(lengths))
        for row, length in enumerate(lengths):
            features[row, length:] = -length
        return {"input_features": features[:, None], "lengths": torch.tensor(lengths)}

    shown = find_joins(call, [30, 12, 21], [12, 12])
    assert shown == FoundJoins(
        {"input_features": JoinRule(0, pad_value=0.0), "lengths": JoinRule()}, can_call_once=False
    )
    joined = join([call([length], False) for length in (3, 1)], shown.joins)
    assert joined["input_features"].tolist() == [[[1, 2, 3]], [[1, 0, 0]]]
    without = find_joins(
        lambda given, as_rows: {"input_features": call(given, as_rows)["input_features"]}, [30, 12], [12, 12]
    )
    assert "can't be joined" in without.limit


def test_a_mask_that_comes_with_the_second_sound() -> None:
    """Phi-4 gives none for a sound alone: sounds of one length are joined without it, others are not."""

    def call(lengths: Sequence[int], as_rows: bool) -> dict[str, Tensor]:
        features = torch.zeros(len(lengths), max(lengths), 2)
        for row, length in enumerate(lengths):
            features[row, :length] = length
            features[row, length:] = -1.5 * length
        made = {"input_features": features}
        if len(lengths) > 1:
            made["mask"] = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        return made

    shown = find_joins(
        lambda given, as_rows: call([one for each in given for one in each], as_rows), [[5], [3], [4, 2]], TWINS
    )
    assert shown.limit.startswith("no rule joins")
    assert {*shown.joins} == {"input_features", "mask"}
    assert join([call([3], False)] * 2, shown.joins)["input_features"].shape == (2, 3, 2)
    for others in ([4], [3, 3]):
        with pytest.raises(ValueError, match="can't be joined"):
            join([call([3], False), call(others, False)], shown.joins)
