"""Conversations longer than a pack: cut only between turns, each part with its own media, nothing lost of the whole.

A wrong cut would train an answer on another's image, or lose turns with exit code 0.
"""

import json
import tarfile
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.config import Overlong, PackConfig
from energon_pack.dataset.packing_template import load_template
from energon_pack.errors import SamplesLost
from energon_pack.online.lazy import LazyPackedDataset
from energon_pack.pack import pack
from energon_pack.samples.cut import exchange_bounds
from energon_pack.samples.media.medium import Media
from energon_pack.templates.sample import Sample
from energon_pack.templates.settings import TrainOn
from energon_pack.training.layout import IGNORE
from energon_pack.verify import Options, verify
from support.packed import files, json_lines, lengths, train
from support.running import run_here
from support.samples import chat, picture, write_tar

Make = Callable[..., PackConfig]
LETTERS = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


def turns(roles: str) -> list[dict[str, Any]]:
    return [{"role": LETTERS[letter], "content": f"{letter}{i}"} for i, letter in enumerate(roles)]


@pytest.mark.parametrize(
    ("roles", "edges"),
    [
        ("ua", [0, 2]),
        ("uaua", [0, 2, 4]),
        ("suaua", [1, 3, 5]),
        ("uuaua", [0, 3, 5]),  # two questions, one answer
        ("uataua", [0, 4, 6]),  # a tool's answer stays with its call
        ("uauau", [0, 2, 5]),  # a question without an answer goes with the exchange before
        ("auaua", [0, 1, 3, 5]),
        ("su", [1, 2]),
    ],
)
def test_cuts_are_before_a_users_turn(roles: str, edges: list[int]) -> None:
    assert exchange_bounds(turns(roles)) == edges


@given(st.text("uat", min_size=1, max_size=30).filter(lambda roles: "a" in roles), st.booleans())
def test_exchanges_are_all_turns_and_each_has_an_answer(roles: str, has_system: bool) -> None:
    messages = turns("s" * has_system + roles)
    edges = exchange_bounds(messages)
    assert (edges[0], edges[-1]) == (int(has_system), len(messages))
    for first, end in pairwise(edges):
        assert any(message["role"] == "assistant" for message in messages[first:end])


# ------------------------------------------------------------------------------------------------------ end to end


def members(run: PackConfig) -> dict[str, dict[str, Any]]:
    """Every member by its id: its conversation, length, and media by their bytes."""
    found = {}
    for path in sorted((Path(run.output.dir) / str(run.output.name)).glob("*.tar")):
        with tarfile.open(path) as tar:
            data = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
        for name in data:
            if name.endswith(".json"):
                pack_json, key = json.loads(data[name]), name.removesuffix(".json")
                meta = pack_json["_meta"]
                for i, sample_id in enumerate(meta["sample_ids"]):
                    media = [data[f"{key}.{medium}"] for medium in pack_json["media_files"][i]]
                    found[sample_id] = {
                        **pack_json["messages"][i],
                        "len": meta["token_lens"][i],
                        "media": media,
                        "pack": key,
                    }
    return found


@pytest.fixture
def long_ones(tmp_path: Path) -> Path:
    """`talk`: 12 exchanges with images; `word`: a long answer; `ask`: a long question; `short` and `pic` fit."""
    words = "one two three four five six seven eight nine ten " * 8
    talk = [text for i in range(12) for text in (f"<image>question {i}", f"{i} {words}")]
    images = {f"talk.{i:02d}.png": picture(28 * (i + 2), 56, "PNG") for i in range(12)}
    long_text = {"word.json": chat("say", words * 20), "short.json": chat("a", "b"), "ask.json": chat(words * 20, "b")}
    fitting = {"pic.png": picture(56, 56, "PNG"), "pic.json": chat("<image>a", "b")}
    system = json.dumps({**json.loads(chat(*talk)), "system": "be brief", "id": "x"}).encode()
    return write_tar(tmp_path / "source" / "0.tar", {"talk.json": system, **images, **long_text, **fitting}).parent


def test_split_turns_keeps_every_turn_and_its_image(config: Make, long_ones: Path) -> None:
    run = config(long_ones, packing__max_token_len=512, max_skipped=1.0)
    run.packing.overlong = Overlong.split_turns
    figures = pack(run)
    found = members(run)
    parts = {name: member for name, member in found.items() if "talk" in name}
    number = len(parts)
    assert number > 2
    assert sorted(parts) == sorted(f"0.tar/talk#{i + 1}of{number}" for i in range(number))
    joined, media = [], []
    for i in range(number):
        member = parts[f"0.tar/talk#{i + 1}of{number}"]
        assert member["messages"][0] == {"role": "system", "content": "be brief"}
        assert member["len"] <= 512
        joined += member["messages"][1:]
        media += member["media"]
    with tarfile.open(long_ones / "0.tar") as tar:
        data = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    assert joined == json.loads(data["talk.json"])["messages"]
    assert media == [data[f"talk.{i:02d}.png"] for i in range(12)]
    assert (figures["samples_in"], figures["samples_packed"], figures["samples_cut"]) == (5, 3, 1)
    assert figures["parts"] == number + 2
    assert figures["skipped_by_reason"] == {"overlong": 2}
    ledger = json_lines(Path(run.output.dir) / "packed" / "skipped.jsonl")
    assert [entry["sample_id"] for entry in ledger] == ["0.tar/word", "0.tar/ask"]


@pytest.mark.parametrize("policy", [Overlong.split_turns, Overlong.truncate_text])
def test_lengths_of_parts_are_those_of_training(
    config: Make, long_ones: Path, demo: tuple[Path, Path], policy: Overlong
) -> None:
    run = config(long_ones, packing__max_token_len=512, max_skipped=1.0)
    run.packing.overlong = policy
    pack(run)
    path = Path(run.output.dir) / "packed"
    template = load_template(path, str(demo[1]))
    num_parts = 0
    for sample in train(path):
        rows = zip(sample.messages, sample.images, sample.token_lens, sample.sample_ids, strict=True)
        for messages, images, token_len, sample_id in rows:
            media = [Media("image", *image.size) for image in images]
            assert len(template.encode(Sample(messages, media)).ids) == token_len <= 512
            num_parts += "#" in sample_id
    assert num_parts > 0


def test_truncate_text_keeps_the_beginning(config: Make, long_ones: Path) -> None:
    """Up to a token of the first answer; never an image sample, never less than an answer."""
    run = config(long_ones, packing__max_token_len=512, max_skipped=1.0)
    run.packing.overlong = Overlong.truncate_text
    figures = pack(run)
    found = members(run)
    assert set(found) == {"0.tar/word#1of1", "0.tar/short", "0.tar/pic"}
    question, answer = found["0.tar/word#1of1"]["messages"]
    with tarfile.open(long_ones / "0.tar") as tar:
        whole = json.loads(tar.extractfile("word.json").read())["messages"]  # type: ignore[union-attr]
    assert question == whole[0]
    assert whole[1]["content"].startswith(answer["content"])
    assert found["0.tar/word#1of1"]["len"] == 512
    assert figures["skipped_by_reason"] == {"overlong": 2}


def test_what_is_cut_off_is_counted_named_and_bounded(config: Make, long_ones: Path) -> None:
    """94 % of a document were nowhere, with exit code 0 and `tokens_left_out 0`."""
    run = config(long_ones, packing__max_token_len=512, max_skipped=1.0, packing__overlong=Overlong.truncate_text)
    figures = pack(run)
    folder = Path(run.output.dir) / "packed"
    (entry,) = (entry for entry in json_lines(folder / "skipped.jsonl") if entry["sample_id"] == "0.tar/word")
    lost = entry["token_len"] - 512
    assert entry["reason"] == "cut_off"
    assert entry["detail"].startswith(f"{lost:,} of its {entry['token_len']:,} tokens: ")
    assert figures["samples_cut_off"] == 1
    assert figures["tokens_left_out_by_reason"]["cut_off"] == lost
    assert figures["tokens_left_out"] == sum(figures["tokens_left_out_by_reason"].values())
    assert figures["samples_in"] == figures["samples_packed"] + figures["samples_skipped"] == 5
    assert not verify(folder, Options(source=[], num_workers=1)).num_defects
    (folder / "skipped.jsonl").write_text(json.dumps({**entry, "sample_id": "0.tar/lost"}) + "\n")
    assert "0.tar/lost is in no pack" in str(verify(folder, Options(num_workers=1)))

    share = sum(figures["tokens_left_out_by_reason"].values()) / (figures["tokens"] + figures["tokens_left_out"])
    run.packing.max_dropped_tokens, run.output.name = share - 0.01, "bounded"
    with pytest.raises(SamplesLost, match=rf"3 overlong samples lose {share:.0%} of all tokens"):
        pack(run)
    assert len(json_lines(folder.with_name("bounded.skipped.jsonl"))) == 3


def test_copies_of_a_sample_that_is_cut_lose_as_much_each(config: Make, long_ones: Path) -> None:
    """A mixture and epochs draw a sample several times: what the first copy lost was all that was counted."""
    run = config(long_ones, packing__max_token_len=512, max_skipped=1.0, packing__overlong=Overlong.truncate_text)
    run.output.name = "once"
    once = pack(run)
    run.packing.epochs, run.output.name = 2, "twice"
    twice = pack(run)
    assert twice["samples_cut_off"] == 2 * once["samples_cut_off"] == 2
    assert twice["tokens_left_out_by_reason"]["cut_off"] == 2 * once["tokens_left_out_by_reason"]["cut_off"]


@pytest.mark.parametrize("cut_end", [True, False])
def test_the_end_of_a_cut_answer_is_trained_or_not(config: Make, tmp_path: Path, cut_end: bool) -> None:
    """With labels.cut_end=false: a model that is trained to stop in the middle of a sentence stops there.

    The token that ends a chat's answer stays; a document, which nothing has to end, has none.
    """
    words = "one two three four five six seven eight nine ten " * 60
    texts = {"long.json": chat("say", words), "text.json": json.dumps({"text": words}).encode()}
    source = write_tar(tmp_path / "source" / "0.tar", {**texts, "short.json": chat("a", "b")}).parent
    run = config(source, packing__max_token_len=128, packing__overlong=Overlong.truncate_text, labels__cut_end=cut_end)
    lazy = LazyPackedDataset(run)
    found = {one.sample_id: one.tokens for number in range(len(lazy)) for one in lazy[number].members}
    special = {number: token for token, number in lazy.encoder.rules.token_ids.items()}
    ends = {}
    for name, tokens in found.items():
        numbers = tokens.ids.tolist()
        last = max((i for i, number in enumerate(numbers) if number in special), default=len(numbers) - 1)
        text = special.get(int(tokens.ids[last]), "")
        ends[name] = text, int(tokens.labels[last]) != IGNORE
        assert len(tokens) <= 128
    assert ends["0.tar/short"] == ("<|im_end|>", True)
    assert ends["0.tar/long#1of1"] == ("<|im_end|>", cut_end)
    assert (ends["0.tar/text#1of1"][0] == "<|endoftext|>") is cut_end
    assert ends["0.tar/text#1of1"][1]


def test_a_beginning_without_the_last_answer_trains_no_other(config: Make, tmp_path: Path) -> None:
    """With labels.train_on=last, the last answer that was left became the trained one."""
    words = "one two three four five six seven eight nine ten " * 60
    members = {"talk.json": chat("a", "b", "say", words), "ask.json": chat("say", words), "short.json": chat("a", "b")}
    source = write_tar(tmp_path / "source" / "0.tar", members).parent
    run = config(source, packing__max_token_len=128, packing__overlong=Overlong.truncate_text)
    run.labels.train_on = TrainOn.last
    figures = pack(run)
    assert (figures["skipped_by_reason"], figures["samples_cut_off"]) == ({"nothing_trained": 1}, 1)
    ledger = json_lines(Path(run.output.dir) / "packed" / "skipped.jsonl")
    assert {(e["sample_id"], e["reason"]) for e in ledger} == {
        ("0.tar/ask", "cut_off"),
        ("0.tar/talk", "nothing_trained"),
    }


def test_a_part_of_which_nothing_is_trained_is_none(config: Make, tmp_path: Path) -> None:
    """Its tokens are counted and named, and the other parts are numbered without it."""
    words = "one two three four five six seven eight nine ten " * 8
    messages = [{**message, "content": f"{i} {words}"} for i, message in enumerate(turns("uauauaua"))]
    messages[3]["loss"] = False
    members = {"talk.json": json.dumps({"messages": messages}).encode(), "short.json": chat("a", "b")}
    source = write_tar(tmp_path / "source" / "0.tar", members).parent
    run = config(source, packing__max_token_len=640, packing__overlong=Overlong.split_turns)
    figures = pack(run)
    folder = Path(run.output.dir) / "packed"
    parts = [row for (_, _, part), row in lengths(folder).items() if part]
    assert len(parts) == 3
    assert all(num_supervised for _, num_supervised, _ in parts)
    (entry,) = json_lines(folder / "skipped.jsonl")
    assert (entry["sample_id"], entry["reason"]) == ("0.tar/talk", "cut_off")
    assert "nothing is trained in the parts that hold them" in entry["detail"]
    assert figures["tokens_left_out_by_reason"] == {"cut_off": int(entry["detail"].split()[0].replace(",", ""))}
    assert not verify(folder, Options(source=[], num_workers=1)).num_defects


def test_own_pack_up_to_a_hard_limit(config: Make, long_ones: Path) -> None:
    """Alone in its pack, so that only that pack is longer than the others; it counts as full, no pack as fuller."""
    run = config(long_ones, packing__max_token_len=512, packing__hard_limit=100_000)
    run.packing.overlong = Overlong.own_pack
    figures = pack(run)
    assert (figures["samples_skipped"], figures["packs"]) == (0, 5)
    lens = Counter[str]()
    for member in members(run).values():
        lens[member["pack"]] += member["len"]
    assert figures["fill"] == round(sum(lens.values()) / sum(max(512, num) for num in lens.values()), 6) <= 1
    assert max(member["len"] for member in members(run).values()) > 512
    run = config(long_ones, packing__max_token_len=512, packing__hard_limit=600, output__name="low", max_skipped=1.0)
    run.packing.overlong = Overlong.own_pack
    assert pack(run)["skipped_by_reason"] == {"overlong": 3}


def test_much_is_dropped_by_name_alone(tmp_path: Path, cache: Path) -> None:
    """Nine pictures were 32 % of the tokens, nineteen clips 99 %: `skipped: 9 overlong`, exit code 0."""
    short = ["+model=qwen2_5_vl", f"cache_dir={cache}", "packing.max_token_len=512"]
    code, out, errors = run_here(*short, cwd=tmp_path)
    assert code == 3
    assert len(errors.splitlines()) == 1
    assert "40 overlong samples have 36% of all tokens, packing.max_dropped_tokens=0.1 allows less" in errors
    assert "packing.overlong=drop" in errors
    assert "skipped: 40 overlong, 29,234 tokens, 35.52% of all" in out
    assert "wrong: 29.2k tokens (36%) are dropped: 40 samples are longer than 512" in out
    assert {path.name for path in (tmp_path / "packed").iterdir()} == {
        "demo-qwen2_5_vl-neat-512.report.html", "demo-qwen2_5_vl-neat-512.skipped.jsonl",
    }  # fmt: skip

    code, out, _ = run_here(*short, "stage=plan", cwd=tmp_path)  # which is there to see it
    assert (code, "wrong: 29.2k tokens (36%) are dropped" in out) == (0, True)

    code, out, _ = run_here(*short, "packing.overlong=drop", cwd=tmp_path)  # a decision: it is told once, as no fault
    assert (code, "wrong:" in out) == (0, False)
    assert out.count("29,234 tokens, 35.52% of all") == out.count("overlong") == 1
    code, _, _ = run_here(*short, "packing.max_dropped_tokens=0.36", "output.name=other", cwd=tmp_path)
    assert code == 0
    made = tmp_path / "packed"
    assert files(made / "other") == files(made / "demo-qwen2_5_vl-neat-512")  # and the name has no hash


def test_little_is_dropped_as_ever(tmp_path: Path, cache: Path) -> None:
    """5 samples of 320: 7 % of the tokens."""
    code, out, _ = run_here("+model=qwen2_5_vl", f"cache_dir={cache}", "packing.max_token_len=1024", cwd=tmp_path)
    assert code == 0
    assert "wrong:" not in out
