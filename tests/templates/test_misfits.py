"""A processor that can't be packed for ends before any sample: one line that names the file or class, and what to do.

Each would otherwise be a ledger full of images that are nothing's fault, or a traceback of some library.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack.errors import PackError
from energon_pack.samples.media.medium import Media
from energon_pack.templates.build import build
from energon_pack.templates.choose_rules import MediaRulesChoice, build_with_best_rules
from energon_pack.templates.families.qwen_vl import QwenVL
from energon_pack.templates.families.rules import positive_int
from energon_pack.templates.full_processor import quiet_transformers
from energon_pack.templates.identity import MIXED_MEDIA, UNEVEN_VIDEOS
from energon_pack.templates.processor import build_uncached_template, prepare_template, read_media_rules_choice
from energon_pack.templates.trial import ProcessorTrial
from support.marks import first_of
from support.models import of_model
from support.processors import change, glm4v, llava_next, ovis2, paddleocr_vl, pixtral, template_of, write_tokenizer
from support.remote import CODE, write_remote
from support.running import need_torchvision, run_alone, run_here

Break = Callable[[Path], object]


def without(*names: str) -> Break:
    def remove(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return remove


def damaged(name: str, text: str = '{"a": ') -> Break:
    return lambda folder: (folder / name).write_text(text)


def image(**values: Any) -> Break:
    return lambda folder: change(folder / "preprocessor_config.json", **values)


def processor(**values: Any) -> Break:
    return lambda folder: change(folder / "processor_config.json", **values)


def of_class(name: str, **files: dict[str, Any]) -> Break:
    """Another class of processor, with settings of its parts by file."""

    def write(folder: Path) -> None:
        for file, values in {"preprocessor_config": {}, **files}.items():
            path = folder / f"{file}.json"
            path.write_text(json.dumps({**values, "processor_class": name}))
        (folder / "processor_config.json").write_text(json.dumps({"processor_class": name}))
        change(folder / "tokenizer_config.json", processor_class=name)

    return write


def tokens(*special: str) -> Break:
    return lambda folder: write_tokenizer(folder, "LlavaNextProcessor", special, {})


def remote(code: str) -> Break:
    return lambda folder: write_remote(folder, code=code)


def slow(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps({"a": 0, "<unk>": 1}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    change(folder / "tokenizer_config.json", tokenizer_class="CTRLTokenizer")


FILES: dict[str, tuple[Break, list[str]]] = {
    "empty folder": (
        without("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "processor_config.json"),
        ["no folder of a processor"],
    ),
    "no tokenizer": (without("tokenizer.json"), ["LlavaNextProcessor", "tokenizer"]),
    "damaged tokenizer": (damaged("tokenizer.json"), ["tokenizer.json", "damaged"]),
    "slow tokenizer": (slow, ["CTRLTokenizer", "fast"]),
    "no settings of images": (without("preprocessor_config.json"), ["LlavaNextProcessor", "image processor"]),
    "damaged settings of images": (damaged("preprocessor_config.json"), ["preprocessor_config.json", "damaged"]),
    "no settings at all": (without("processor_config.json", "preprocessor_config.json"), ["+model=text"]),
    "damaged config of the model": (damaged("config.json"), ["config.json", "damaged"]),
    "no chat template": (without("chat_template.jinja"), ["chat template", "model.chat_template"]),
    "chat template that is none": (damaged("chat_template.jinja", "{% if %}"), ["chat template", "line 1"]),
    "chat template without images": (
        damaged("chat_template.jinja", template_of("")),
        ["chat template", "image", "model.chat_template"],
    ),
    "chat template with another token": (
        damaged("chat_template.jinja", template_of("<img>")),
        ["chat template", "<image>", "model.chat_template"],
    ),
}

CLASSES: dict[str, tuple[Break, list[str]]] = {
    "unknown class": (of_class("NoSuchProcessor"), ["NoSuchProcessor"]),
    "class for audio": (
        of_class("WhisperProcessor", preprocessor_config={"feature_extractor_type": "WhisperFeatureExtractor"}),
        ["WhisperProcessor"],
    ),
    "cross-attention": (
        of_class("MllamaProcessor", preprocessor_config={"image_processor_type": "MllamaImageProcessor"}),
        ["MllamaForConditionalGeneration", "cross-attention", "+model=text"],
    ),
    "an encoder for the whole sample": (
        of_class("Florence2Processor", preprocessor_config={"image_processor_type": "CLIPImageProcessor"}),
        ["Florence2ForConditionalGeneration", "encoder", "+model=text"],
    ),
    "an image processor of another class": (
        image(image_processor_type="NoSuch"),
        ["LlavaNextProcessor", "image processor"],
    ),
    "code of its own": (lambda folder: write_remote(folder), ["trust_remote_code"]),
}
TOKENS: dict[str, tuple[Break, list[str]]] = {
    "no token of images": (tokens(), ["<image>"]),
    "another token of images": (processor(image_token="<img>"), ["<img>"]),
}
SETTINGS: dict[str, tuple[Break, list[str]]] = {
    "no patches": (processor(patch_size=0), ["LlavaNextProcessor", "processor_kwargs"]),
    "patches not said": (processor(patch_size=...), ["LlavaNextProcessor"]),
    "size in words": (image(size="large"), ["size"]),
    "size below nothing": (image(size={"shortest_edge": -28}), ["LlavaNextProcessor"]),
    "crop of nothing": (image(crop_size={"height": 0, "width": 0}), ["LlavaNextProcessor"]),
    "no shapes of tiles": (image(image_grid_pinpoints=[]), ["LlavaNextProcessor"]),
}
GIVEN: dict[str, tuple[dict[str, Any], list[str]]] = {
    "patches in words": ({"processor_kwargs": {"patch_size": "much"}}, ["LlavaNextProcessor"]),
    "a token that there is not": ({"processor_kwargs": {"image_token": "<img>"}}, ["<img>"]),
    "a chat template that is none": ({"chat_template": "{% if %}"}, ["chat template", "line 1"]),
    "a chat template without images": ({"chat_template": "{{ messages }}"}, ["chat template", "model.chat_template"]),
    "Qwen-VL's family": ({"template": "qwen_vl"}, ["LlavaNextProcessor", "another family"]),
    "InternVL's family": ({"template": "internvl"}, ["LlavaNextProcessor", "another family"]),
    "Kimi's family": ({"template": "kimi"}, ["LlavaNextProcessor", "another family"]),
    "LLaVA-OneVision's family": ({"template": "llava_onevision"}, ["LlavaNextProcessor", "another family"]),
}
_CALL = "    def __call__(self, images=None, text=None, return_tensors=None, text_kwargs=None, **settings):\n"
assert _CALL in CODE
REMOTE: dict[str, tuple[str, list[str]]] = {
    "it raises when it is imported": ("raise OSError('no luck')\n", ["OSError", "no luck"]),
    "it is no Python": ("class {{\n", ["SyntaxError"]),
    "it has no such class": ("import torch\n", ["TinyProcessor"]),
    "it raises when it is called": (
        CODE.replace(_CALL, _CALL + "        raise RuntimeError('no luck')\n"),
        ["TinyProcessor"],
    ),
    "it puts in tokens by chance": (CODE.replace("16 * len", "np.random.randint(99) + len"), ["TinyProcessor"]),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return llava_next(tmp_path / "tiny")


def refused(folder: Path, template: str = "auto", **model: Any) -> str:
    """The one line that a model and a processor end with."""
    with pytest.raises(PackError) as error:
        build_uncached_template(of_model(template, folder, **model))
    line = " ".join(str(error.value).splitlines())  # as the command line prints it
    assert "Traceback" not in line, line
    assert len(line) < 600, line
    assert error.value.exit_code == 1
    return line


@pytest.mark.parametrize("name", [*FILES, *CLASSES, *TOKENS, *SETTINGS])
def test_a_broken_folder_is_refused(folder: Path, name: str) -> None:
    damage, words = (FILES | CLASSES | TOKENS | SETTINGS)[name]
    damage(folder)
    line = refused(folder)
    assert all(word in line for word in words), line


@pytest.mark.parametrize("name", GIVEN)
def test_settings_that_break_it_are_refused(folder: Path, name: str) -> None:
    model, words = GIVEN[name]
    line = refused(folder, **model)
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    "write",
    [glm4v, llava_next, *(pytest.param(write, marks=pytest.mark.slow) for write in (ovis2, paddleocr_vl, pixtral))],
)
@pytest.mark.parametrize("name", ["max_pixels", "min_pixels"])
def test_a_pixel_limit_that_counts_for_nothing_is_refused(
    tmp_path: Path, write: Callable[[Path], Path], name: str
) -> None:
    """`from_pretrained` drops it: `model.max_pixels` was taken, and each image kept its tokens."""
    need_torchvision()
    folder, limit = write(tmp_path / "processor"), 28 * 28 * 8
    sizes = [Media("image", side, side) for side in (28, 1120)]
    given: list[dict[str, Any]] = [{}, {name: limit}]
    with quiet_transformers():  # a class warns that its next version has another name for it
        rules = [build(of_model("shapes", folder, **one), folder).rules for one in given]
        seen = [[each.expand(size, []) for size in sizes] for each in rules]
    if seen[0] == seen[1]:
        assert f"model.{name}={limit}: " in refused(folder, **given[1])
        assert f"model.processor_kwargs.{name}: " in refused(folder, processor_kwargs={name: limit})
    else:
        build_uncached_template(of_model("auto", folder, **given[1]))


def test_an_argument_that_nothing_reads_is_named(tmp_path: Path) -> None:
    """A misspelled one left the processor as it was, and the run as if it had been heard."""
    need_torchvision()
    folder = ovis2(tmp_path / "processor")
    given = {"max_patches": 2, "max_pachtes": 2, "padding_side": "left", "use_fast": True, "image_seq_length": 4}
    settings = of_model("auto", folder, processor_kwargs=given)
    _, choice = build_with_best_rules(settings, folder)
    assert [line for line in choice.lines("auto") if "processor_kwargs" in line] == [
        "model.processor_kwargs.max_pachtes: Ovis2Processor has no such setting"
    ]
    assert read_media_rules_choice(prepare_template(settings, tmp_path / "cache")).unread == ["max_pachtes"]


@pytest.mark.parametrize("name", REMOTE)
def test_code_of_its_own_that_fails_is_refused(tmp_path: Path, name: str) -> None:
    code, words = REMOTE[name]
    line = refused(write_remote(tmp_path / "remote", code=code), trust_remote_code=True)
    assert all(word in line for word in words), line


def test_code_of_its_own_is_run_by_its_setting_alone(tmp_path: Path) -> None:
    """A dataset that is loaded has kwargs of a processor, too: those could turn it on."""
    ran = tmp_path / "ran"
    remote = write_remote(tmp_path / "remote", code=f"open({str(ran)!r}, 'w')\nraise ValueError('it ran')")
    line = refused(remote, processor_kwargs={"trust_remote_code": True})
    assert "model.trust_remote_code=true" in line
    assert not ran.exists()


def test_a_size_that_no_file_states_names_the_file() -> None:
    """`patch_size … is None … another family's processor`: a preprocessor_config.json that was not copied."""
    with pytest.raises(PackError, match=r"have no patch_size: its folder lacks preprocessor_config\.json"):
        positive_int({}, "patch_size")
    with pytest.raises(PackError, match=r"patch_size of model\.processor's settings is 0, not a whole number"):
        positive_int({"patch_size": 0}, "patch_size")


def test_the_folder_is_right_where_nothing_is_broken(folder: Path) -> None:
    """All of the above would pass for a folder that nothing takes."""
    assert build_uncached_template(of_model("auto", folder)).rules.media_tokens == {"image": "<image>"}


#: of each kind of misfit one: a damaged file, a model that no pack serves, settings, a template, code of its own
TYPED: dict[str, Break] = {
    "preprocessor_config.json is no JSON": FILES["damaged settings of images"][0],
    "cross-attention": CLASSES["cross-attention"][0],
    "LlavaNextProcessor can't be asked": SETTINGS["crop of nothing"][0],
    "the chat template leaves out 1 media": FILES["chat template without images"][0],
    "model.trust_remote_code=true": CLASSES["code of its own"][0],
}


@pytest.mark.parametrize("words", first_of(TYPED))
def test_nothing_is_measured_for_a_misfit(folder: Path, tmp_path: Path, words: str) -> None:
    """One line, exit code 1, and no lengths in the cache: were samples read first, their images would be blamed."""
    TYPED[words](folder)
    code, _, errors = run_here("+model=auto", f"model.processor={folder}", cwd=tmp_path)
    assert code == 1
    assert words in errors, errors
    assert errors.startswith("energon-pack: error: ")
    assert len(errors.splitlines()) == 1, errors
    assert not list(tmp_path.rglob("lengths"))
    assert not list(tmp_path.rglob("skipped.jsonl"))


@pytest.mark.slow
def test_a_process_says_no_more(folder: Path, tmp_path: Path) -> None:
    """Nothing that transformers prints while it is imported or loads a broken processor adds a line."""
    SETTINGS["crop of nothing"][0](folder)
    code, _, errors = run_alone("+model=auto", f"model.processor={folder}", cwd=tmp_path)
    assert code == 1
    assert len(errors.splitlines()) == 1, errors


@pytest.mark.parametrize("kind", [UNEVEN_VIDEOS, MIXED_MEDIA])
def test_kinds_that_few_samples_have_are_tried_with_enough_frames(kind: str) -> None:
    """Clips of 11 frames are refused by processors that choose 32, or 2 a second: users' longer ones were, too.

    So Gemma 4 took no sample with an image and a video: all clips that its trial drew beside an image were short.
    """
    clips = [
        medium
        for one in ProcessorTrial().samples
        if one.kind == kind
        for medium in one.sample.media
        if medium.num_frames
    ]
    assert len({clip.num_frames for clip in clips}) > 1
    assert all(clip.num_frames >= 32 and clip.num_frames / clip.fps >= 1 for clip in clips)


def test_what_is_left_out_is_said_once_in_words() -> None:
    """Samples of videos with images go with the videos: three lines for one reason were said."""
    why = "no such token"
    alone = MediaRulesChoice(
        "kimi", "KimiProcessor", {"image": 50}, {"mixed": "it knows none", "uneven": "none", "video": why}
    )
    assert alone.lines("auto") == [
        "videos of KimiProcessor can't be measured: no such token",
        "model.template=kimi counts media as KimiProcessor does: tried with 50 images",
    ]
    several = MediaRulesChoice("internvl", "P", {"image": 50, "video": 5}, {"uneven": "stack expects equal sizes"})
    assert several.lines("auto") == [
        "videos of several lengths in one sample of P can't be measured: stack expects equal sizes",
        "model.template=internvl counts media as P does: tried with 50 images, 5 videos",
    ]


@pytest.mark.parametrize(
    ("write", "medium", "features"),
    [
        (pixtral, Media("image", 56, 84), 6),  # of two rows, two end in [IMG_BREAK], one in [IMG_END]
        (ovis2, Media("image", 56, 84), 20),  # four tiles and the whole, four <IMG_ATOM> each: it counted none
        (glm4v, Media("video", 56, 84, "mp4", 4, 2.0), 4),  # <|image|> stands for frames: it counted none
    ],
)
def test_a_feature_is_a_token_that_waits_for_one(
    tmp_path: Path, write: Callable[[Path], Path], medium: Media, features: int
) -> None:
    """A class lists tokens for rows and ends among those of its images, and `max_visual_tokens` counted them."""
    need_torchvision()
    folder = write(tmp_path / "processor")
    rules = build(of_model("shapes", folder), folder).rules
    ((text, number),) = rules.expand_all([medium], [range(medium.num_frames)])
    assert number == text.count(rules.feature_tokens[medium.kind]) == features


def test_rules_that_count_other_features_are_no_longer_exact(
    demo: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only texts were compared: `internvl` and `shapes` packed 3 and 0 of 19 samples of one set."""
    need_torchvision()
    template = build_uncached_template(of_model("qwen_vl", demo[1]))
    trial = ProcessorTrial(lists=[(), ("image",)])
    assert trial.outcomes(template)["image"].is_exact
    own = QwenVL.expand
    monkeypatch.setattr(QwenVL, "expand", lambda *given: (own(*given)[0], own(*given)[1] + 2))
    template = build_uncached_template(of_model("qwen_vl", demo[1]))
    assert "features of media, and" in trial.outcomes(template)["image"].difference


@pytest.mark.parametrize("kept", [{"template": "of a later version", "tried": []}, {"template": "text"}, []])
def test_a_choice_that_means_nothing_here_is_made_again(
    tmp_path: Path, real: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kept: object
) -> None:
    """A later version had written the name of a family that is not here: no start came through any more."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = of_model("text", real / "processors" / "qwen2_5_text")
    prepare_template(settings, tmp_path / "first")
    (file,) = (tmp_path / "energon_pack" / "choices").iterdir()
    file.write_text(json.dumps(kept))
    assert read_media_rules_choice(prepare_template(settings, tmp_path / "second")).template == "text"
    assert "is made again" in caplog.text
