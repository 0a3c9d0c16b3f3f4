"""Conversations that become several samples (`labels.expand`), packed and trained.

A fault would train an answer twice or never, show it what inference would not, or lose a conversation in silence.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack import LazyPackedDataset, StreamingPackedDataset
from energon_pack.config import Expand, Flavor, LabelsConfig, Overlong, PackConfig
from energon_pack.dataset.packing_template import load_template
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.samples.media.medium import Media
from energon_pack.templates.sample import Sample
from energon_pack.verify import Options, verify
from support.packed import files, json_lines, train
from support.samples import chat, picture, write_tar

Make = Callable[..., PackConfig]


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    """`talk`: three answers, the second with an image before it; `quiz`: three questions about two images;
    `one` and `pic` have one each."""
    talk = chat("a", "one", "<image>b", "two and two", "c", "three")
    quiz = chat("Look. <image>\n<image>\nd", "four", "e", "five", "<image>f", "six")
    images = {f"quiz.{i}.png": picture(56 + 28 * i, 56, "PNG") for i in range(3)}
    members = {"talk.json": talk, "talk.0.png": picture(84, 56, "PNG"), "quiz.json": quiz, **images}
    members |= {
        "one.json": chat("g", "seven"),
        "pic.json": chat("<image>h", "eight"),
        "pic.0.png": picture(56, 84, "PNG"),
    }
    return write_tar(tmp_path / "source" / "0.tar", members).parent


def written(first: str) -> str:
    """A chat template in ChatML that writes something first in each turn."""
    parts = (
        "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}{% if part.type == 'image' %}"
        "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    )
    turn = "<|im_start|>{{ m.role }}\n" + first + parts + "<|im_end|>\n"
    prompt = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    return "{% for m in messages %}" + turn + "{% endfor %}" + prompt


def members(path: Path) -> dict[str, tuple[list[dict[str, Any]], int, list[tuple[int, int]]]]:
    """Return messages, length and image sizes of each member that training gets through Energon."""
    found = {}
    for sample in train(path):
        for i, sample_id in enumerate(sample.sample_ids):
            sizes = [image.size for image in sample.images[i]]
            found[sample_id.removeprefix("0.tar/")] = (sample.messages[i], sample.token_lens[i], sizes)
    return found


def texts(messages: list[dict[str, Any]]) -> str:
    """The contents of turns, `(two)` where a turn says that it is not trained."""
    return " ".join(f"({m['content']})" if m.get("loss_weight") == 0 else m["content"] for m in messages)


def trained(path: Path, processor: Path) -> dict[str, list[str]]:
    """The trained texts of each member, by the template that the dataset's loader has."""
    template, found = load_template(path, str(processor)), dict[str, list[str]]()
    for sample in train(path):
        for i, sample_id in enumerate(sample.sample_ids):
            media = [Media("image", *image.size) for image in sample.images[i]]
            tokens = template.encode(Sample(sample.messages[i], media))
            assert len(tokens.ids) == sample.token_lens[i]
            assert tokens.num_supervised == sample.num_supervised[i]
            said = [template.tokenizer.decode(tokens.ids[a:b], skip_special_tokens=True) for a, b in tokens.supervised]
            found[sample_id.removeprefix("0.tar/")] = said
    return found


def test_turns_train_each_answer_once_as_inference_sees_it(
    config: Make, talks: Path, demo: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = config(talks, output__name="whole")
    figures = pack(whole)
    run = config(talks, labels__expand=Expand.turns)
    expanded = pack(run)
    path = folder_of(run)
    found = members(path)
    assert {name: texts(messages) for name, (messages, _, _) in found.items()} == {
        "talk#1of3": "a one",
        "talk#2of3": "a (one) <image>b two and two",
        "talk#3of3": "a (one) <image>b (two and two) c three",
        "quiz#1of3": "Look. <image>\n<image>\nd four",
        "quiz#2of3": "Look. <image>\n<image>\nd (four) e five",
        "quiz#3of3": "Look. <image>\n<image>\nd (four) e (five) <image>f six",
        "one": "g seven",
        "pic": "<image>h eight",
    }
    assert [sizes for _, _, sizes in found.values() if len(sizes) == 3] == [[(56, 56), (84, 56), (112, 56)]]
    assert trained(path, demo[1]) == {
        **{f"talk#{i + 1}of3": [text] for i, text in enumerate(("one", "two and two", "three"))},
        **{f"quiz#{i + 1}of3": [text] for i, text in enumerate(("four", "five", "six"))},
        "one": ["seven"],
        "pic": ["eight"],
    }
    assert expanded["num_supervised"] == figures["num_supervised"]
    assert (expanded["samples_in"], expanded["samples_packed"], expanded["parts"]) == (4, 4, 8)
    tokens = {"whole_tokens": figures["tokens"], "tokens": expanded["tokens"]}
    assert expanded["expanded"] == {"how": "turns", "conversations": 2, "samples": 6, **tokens}
    assert found["one"] == members(folder_of(whole))["one"]
    assert "labels.expand=turns: 2 conversations became 6 samples, " in capsys.readouterr().out
    assert not verify(path, Options(source=[], num_workers=1)).num_defects


def test_pairs_see_no_other_question(config: Make, talks: Path, demo: tuple[Path, Path]) -> None:
    run = config(talks, labels__expand=Expand.pairs)
    figures, path = pack(run), folder_of(run)
    found = members(path)
    assert {name: texts(messages) for name, (messages, _, _) in found.items()} == {
        "talk": "a one <image>b two and two c three",
        "quiz#1of3": "Look. <image>\n<image>\nd four",
        "quiz#2of3": "<image>\n<image>\ne five",
        "quiz#3of3": "<image>\n<image>\n<image>f six",
        "one": "g seven",
        "pic": "<image>h eight",
    }
    assert [found[f"quiz#{i}of3"][2] for i in (1, 2, 3)] == [sizes := [(56, 56), (84, 56)], sizes, [*sizes, (112, 56)]]
    assert [trained(path, demo[1])[f"quiz#{i}of3"] for i in (1, 2, 3)] == [["four"], ["five"], ["six"]]
    assert figures["expanded"]["conversations"] == 1
    assert not verify(path, Options(source=[], num_workers=1)).num_defects


def test_older_images_are_a_text_of_the_users_choice(config: Make, talks: Path) -> None:
    run = config(talks, labels__expand=Expand.turns, labels__window_images=2, labels__window_text="(gone)")
    pack(run)
    found = members(folder_of(run))
    assert texts(found["quiz#2of3"][0]) == "Look. <image>\n<image>\nd (four) e five"
    assert texts(found["quiz#3of3"][0]) == "Look. (gone)\n<image>\nd (four) e (five) <image>f six"
    assert found["quiz#3of3"][2] == [(84, 56), (112, 56)]
    assert not verify(folder_of(run), Options(source=[], num_workers=1)).num_defects


def test_thoughts_are_those_that_inference_would_see(config: Make, tmp_path: Path) -> None:
    """A template that writes the last thought alone: each answer is trained with its own."""
    turns = [("user", "a"), ("assistant", "one"), ("user", "b"), ("assistant", "two")]
    messages = [
        {"role": role, "content": text, **({"reasoning_content": f"hm {text}"} if role == "assistant" else {})}
        for role, text in turns
    ]
    source = write_tar(tmp_path / "source" / "0.tar", {"x.json": json.dumps({"messages": messages}).encode()}).parent
    thought = "{% if loop.last and m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    run = config(source, labels__expand=Expand.turns, model__chat_template=written(thought))
    pack(run)
    loaded = load_template(folder_of(run), run.model.processor)
    texts_of = [loaded.render(Sample(messages, [])).text for messages, _, _ in members(folder_of(run)).values()]
    assert sorted("hm one" in text for text in texts_of) == [False, True]
    assert sorted("hm two" in text for text in texts_of) == [False, True]


def test_what_cannot_be_expanded_is_left_out_by_name(config: Make, talks: Path) -> None:
    refusing = written("{% if m.loss_weight is defined %}{{ raise_exception('no weights') }}{% endif %}")
    run = config(talks, labels__expand=Expand.turns, max_skipped=1.0, model__chat_template=refusing)
    figures = pack(run)
    assert (figures["samples_packed"], figures["skipped_by_reason"]) == (2, {"processor_error": 2})
    ledger = json_lines(folder_of(run) / "skipped.jsonl")
    assert [entry["sample_id"] for entry in ledger] == ["0.tar/talk", "0.tar/quiz"]
    assert all(entry["detail"].startswith("labels.expand=turns, 2of3: ") for entry in ledger)
    assert not verify(folder_of(run), Options(source=[], num_workers=1)).num_defects


def test_a_conversation_of_which_a_sample_is_too_long_is_left_out_whole(config: Make, tmp_path: Path) -> None:
    """Its parts are packed all, or none of them; split_turns cuts what was not expanded."""
    words = "one two three four five " * 20
    members = {"long.json": chat("a", "one", "b", words, "c", words), "short.json": chat("a", "one", "b", "two")}
    source = write_tar(tmp_path / "source" / "0.tar", members).parent
    run = config(source, labels__expand=Expand.turns, packing__max_token_len=512)
    for overlong in (Overlong.drop, Overlong.split_turns):
        run.packing.overlong, run.output.name = overlong, overlong.value
        figures = pack(run)
        assert (figures["samples_packed"], figures["parts"]) == (1, 2)
        assert figures["skipped_by_reason"] == {"overlong": 1}
        (entry,) = json_lines(folder_of(run) / "skipped.jsonl")
        assert entry["sample_id"] == "0.tar/long"
        assert entry["detail"].startswith("of what it becomes, the most: ")
        assert entry["detail"].endswith(" tokens, packing.max_token_len=512")
        assert not verify(folder_of(run), Options(source=[], num_workers=1)).num_defects
    run.packing.overlong, run.output.name = Overlong.error, "error"
    with pytest.raises(PackError, match=r"1 sample is longer .* first 0\.tar/long with "):
        pack(run)


def test_a_flavour_without_weights_of_turns_has_pairs_alone(config: Make, talks: Path) -> None:
    run = config(talks, output__flavor=Flavor.packed_captioning, labels__expand=Expand.turns, max_skipped=1.0)
    assert pack(run)["skipped_by_reason"] == {"not_in_flavor": 2}
    ledger = json_lines(folder_of(run) / "skipped.jsonl")
    assert all(
        "packed_captioning has no place for it: message 1 has loss_weight" in entry["detail"] for entry in ledger
    )
    run.labels.expand, run.output.name = Expand.pairs, "pairs"
    assert pack(run)["skipped_by_reason"] == {}


def test_samples_of_a_conversation_share_its_split_and_its_epochs(config: Make, tmp_path: Path) -> None:
    talks = {f"{i:02d}.json": chat("a", f"one {i}", "b", f"two {i}") for i in range(20)}
    source = write_tar(tmp_path / "source" / "0.tar", talks).parent
    run = config(source, labels__expand=Expand.turns, packing__epochs=2)
    run.output.splits.val = 0.3
    figures, path = pack(run), folder_of(run)
    wholes = {}
    for split in ("train", "val"):
        ids = {sample_id for sample in train(path, split_part=split) for sample_id in sample.sample_ids}
        wholes[split] = {sample_id.partition("#")[0] for sample_id in ids}
        assert ids == {f"{whole}#{part}of2" for whole in wholes[split] for part in (1, 2)}
    assert not wholes["train"] & wholes["val"]
    assert (figures["samples_cut"], figures["parts"]) == (figures["samples_in"], 2 * figures["samples_in"])
    assert figures["expanded"]["conversations"] == 20
    assert not verify(path, Options(source=[], num_workers=1)).num_defects


def test_nothing_of_it_is_in_a_template_or_in_what_stays_whole(config: Make, talks: Path, tmp_path: Path) -> None:
    """Lengths are measured once, packs of `none` say nothing of it, and a loader can't expand again."""
    cache = str(tmp_path / "cache")
    whole = config(talks, output__name="whole", cache_dir=cache)
    run = config(talks, labels__expand=Expand.turns, cache_dir=cache)
    manifests = []
    for each in (whole, run):
        pack(each)
        manifests.append(json.loads(files(folder_of(each))[".nv-meta/energon_pack.json"]))
    assert [manifest["content"]["labels"].pop("expand", None) for manifest in manifests] == [None, "turns"]
    assert manifests[0]["content"]["labels"] == manifests[1]["content"]["labels"]
    assert manifests[0]["fingerprint"] == manifests[1]["fingerprint"]
    assert [len([*Path(cache, name).iterdir()]) for name in ("templates", "lengths", "cuts")] == [1, 1, 1]


def test_packs_that_are_made_in_training_are_expanded_or_refuse(config: Make, talks: Path) -> None:
    run = config(talks, labels__expand=Expand.turns)
    packs = LazyPackedDataset(run)
    ids = {member.sample_id for number in range(len(packs)) for member in packs.members(0, number)}
    assert {"0.tar/talk#2of3", "0.tar/quiz#3of3", "0.tar/one"} < ids
    assert len(ids) == 8
    with pytest.raises(PackError, match=r"expand=turns: only samples in files are expanded"):
        LazyPackedDataset(config(None, labels__expand=Expand.turns, source__path=None), [{"messages": []}])
    with pytest.raises(PackError, match=r"expand=turns: a stream takes samples as they come"):
        StreamingPackedDataset(run)


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        (LabelsConfig(expand=Expand.turns, prompt_weight=0.1), "a question would count once for each answer after it"),
        (LabelsConfig(window_images=4), "only labels.expand=turns has a window"),
        (LabelsConfig(expand=Expand.turns, window_images=4, window_text="<image>"), "would stand for a medium again"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(labels: LabelsConfig, why: str) -> None:
    with pytest.raises(PackError, match=re.escape(why)):
        labels.check()


def folder_of(run: PackConfig) -> Path:
    return Path(run.output.dir) / str(run.output.name)
