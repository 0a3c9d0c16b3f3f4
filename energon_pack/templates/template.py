"""Turn a sample into tokens: render the chat template, expand the media, tokenize.

    Sample ──render──► Rendered(text, supervised character spans) ──tokenize──► Tokens(ids, supervised token ranges)

One `Template` does this for measuring and for training, so the two lengths agree. Families of models differ only in
`MediaRules`: the text that one image or video becomes.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from energon_pack.errors import PackError
from energon_pack.run.files import write_atomically
from energon_pack.samples.documents import is_document
from energon_pack.samples.input_rules import InputRules
from energon_pack.samples.media.kinds import AUDIO, KINDS, VIDEO
from energon_pack.samples.media.medium import Media
from energon_pack.samples.member import MemberTokens
from energon_pack.samples.placeholders import split_content_at_placeholders
from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.turns import NO_EMPTY_ANSWERS, count_empty_answers
from energon_pack.templates.chat.dropped_words import check_for_left_out_tools
from energon_pack.templates.chat.template import ChatTemplate
from energon_pack.templates.chat.text_marks import texts_of
from energon_pack.templates.chat.turns import CLOSE, OPEN
from energon_pack.templates.families.rules import MediaRules
from energon_pack.templates.identity import (
    HEARD_VIDEOS,
    MIXED_MEDIA,
    UNEVEN_VIDEOS,
    TemplateIdentity,
    TemplateSpec,
    fingerprints_of,
    recorded_labels,
)
from energon_pack.templates.media_texts import DocumentTexts, MediaTexts
from energon_pack.templates.model_inputs import input_rules_of, tokenize_foreign_member
from energon_pack.templates.preparation import MediaPreparation
from energon_pack.templates.sample import Rendered, Sample, Tokens, with_frame_lists_as_videos
from energon_pack.templates.settings import EmptyAnswerPolicy, LabelSettings, Think, override_label_settings
from energon_pack.templates.tokens.pieces import AddedTokenFinder
from energon_pack.templates.tokens.tokenizing import Tokenizing


class Template(MediaPreparation, Tokenizing):
    """Renders and tokenizes samples for one model: its chat template, media rules and tokenizer."""

    def __init__(self, spec: TemplateSpec, rules: MediaRules, tokenizer: Tokenizer):
        in_runs = {*rules.media_tokens.values(), *rules.feature_tokens.values()}
        MediaPreparation.__init__(self, spec.family, spec.media, rules)
        Tokenizing.__init__(self, tokenizer, spec.add_special_tokens, in_runs)
        self.spec = spec
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
        self.special_tokens = special
        variables = {**spec.processor.tokens, **spec.chat_template_kwargs}
        self._chat = ChatTemplate(spec.chat_template, variables, special, spec.date)
        self._tool_chat = self._chat
        if spec.tool_template:
            self._tool_chat = ChatTemplate(spec.tool_template, variables, special, spec.date, needs_tools=True)
        self.media_tokens = {
            kind: token for kind, token in rules.media_tokens.items() if spec.kinds is None or kind in spec.kinds
        }
        self._kind_of_token = {token: kind for kind, token in rules.media_tokens.items()}
        self._marks_and_media_tokens = AddedTokenFinder({OPEN, CLOSE, *in_runs})
        beside = [*rules.feature_tokens.values(), *rules.mark_tokens]
        self._media_texts = {
            chat: MediaTexts(chat, self.media_tokens, beside, special) for chat in (self._chat, self._tool_chat)
        }
        self._document_texts = DocumentTexts(self._chat, self._media_texts[self._chat], tokenizer, spec)
        self._special_pattern = AddedTokenFinder(special).pattern

    def __reduce__(self) -> tuple[Any, ...]:
        return Template, (self.spec, self.rules, self._tokenizer)

    def render(self, sample: Sample) -> Rendered:
        """Return the text of a sample, with its media expanded to tokens and its trained characters.

        Raises:
            Skip: `processor_error`, `bad_message`, `control_token` (a message spells a media token), and those of the
                rules.
        """
        sample, labels = with_frame_lists_as_videos(sample), self._labels_of(sample)
        for media in sample.media:
            if media.kind not in self.media_tokens:
                advice = f": models that do are {', '.join(models)}" if (models := KINDS[media.kind].models) else ""
                raise Skip(Reason.UNSUPPORTED_MEDIA, f"model.template={self.spec.family} sees no {media.kind}{advice}")
        expansions, *around = self._expanded(sample.media)
        messages = self._template_messages(sample)
        chat, frames = self._chat_for(sample)
        has_no_tools, final_end = bool(sample.tools), ""
        if is_document(messages):
            marked, weights, dropped = self._document_texts.marked_text(messages[0])
        else:
            written = chat.render_marked(messages, sample.tools, labels)
            (marked, weights, dropped), final_end = chat.with_final_end(written, messages, labels)
            has_no_tools = check_for_left_out_tools(chat.renderer, messages, sample.tools, labels.template_drops)
        text, spans, places, num_features = self._with_media_put_in(marked, around, sample.media, expansions)
        placed = [place for place in places if place[1]]
        spans, weights = frames.find_trained_spans_without_media(chat, text, spans, weights, placed, labels)
        if not sample.options.weight:
            spans, weights = [], []
        return Rendered(
            text,
            spans,
            sum(number for kind, number in num_features.items() if KINDS[kind].is_visual),
            self._num_spelled_control_tokens(sample),
            has_no_tools,
            places,
            weights if weights.count(1.0) < len(weights) else (),
            bool(dropped.earlier_thoughts),
            num_features[AUDIO.kind],
            sample.options.token_range,
            [number for _, number in expansions],
            bool(dropped.others),
            count_empty_answers(messages) if labels.empty is EmptyAnswerPolicy.drop else NO_EMPTY_ANSWERS,
            final_end,
            self.clip_frames(sample.media),
        )

    def _with_media_put_in(
        self, marked: str, around: Sequence[str], media: Sequence[Media], expansions: Sequence[tuple[str, int]]
    ) -> tuple[str, list[tuple[int, int]], list[tuple[int, int]], dict[str, int]]:
        """Put expanded media, and the texts `around` all, into a marked text; return the text without its marks, the
        spans between them, the place of each medium, and the number of feature tokens by kind.
        """
        waiting: dict[str, list[tuple[int, str, int]]] = {kind: [] for kind in self.media_tokens}
        for number, (medium, expanded) in enumerate(zip(media, expansions, strict=True)):
            waiting[medium.kind].append((number, *expanded))
        before, after = around
        pieces = ["" if marked.startswith(before) else before]  # do not write a first token twice
        spans: list[tuple[int, int]] = []
        position, cursor, span_start = len(pieces[0]), 0, 0
        places, num_features = [(0, 0)] * len(expansions), dict.fromkeys(KINDS, 0)
        for start, mark in self._marks_and_media_tokens.find_all(marked):
            piece = marked[cursor:start]
            cursor = start + len(mark)
            pieces.append(piece)
            position += len(piece)
            if mark == OPEN:
                span_start = position
            elif mark == CLOSE:
                spans.append((span_start, position))
            else:
                of_kind = waiting.get(self._kind_of_token.get(mark, ""), [])
                if not of_kind:  # the model would look for missing features
                    raise Skip(Reason.CONTROL_TOKEN, f"the text spells the media token {mark}")
                number, text, num_tokens = of_kind.pop(0)
                pieces.append(text)
                places[number] = position, position + len(text)
                position += len(text)
                num_features[self._kind_of_token[mark]] += num_tokens
                if media[number].is_heard:
                    num_features[AUDIO.kind] += _num_sound_tokens(text, self.rules.feature_tokens[AUDIO.kind])
        if left_out := sum(map(len, waiting.values())):
            raise Skip(Reason.PROCESSOR_ERROR, f"the chat template leaves out {left_out} media")
        return "".join([*pieces, marked[cursor:], after]), spans, places, num_features

    def _labels_of(self, sample: Sample) -> LabelSettings:
        """Return the label settings of a sample: the run's and its own; raises Skip for invalid `label_settings`."""
        if not sample.options.labels:
            return self.spec.labels
        try:
            labels = override_label_settings(self.spec.labels, sample.options.labels)
            self.refuse_unknown_end(labels.final_token, "of the model")
        except PackError as error:
            raise Skip(Reason.BAD_MESSAGE, f"label_settings: {error}") from None
        return labels

    def raw_text(self, sample: Sample) -> str | None:
        """Return the text of a document, before its media become tokens; None: the sample is a chat."""
        messages = self.messages(sample)
        return self._document_texts.text(messages[0]) if is_document(messages) else None

    def _expanded(self, media: Sequence[Media]) -> tuple[list[tuple[str, int]], str, str]:
        """Return each medium's text with its number of feature tokens, and the texts before and after everything."""
        frames = [self.choose_frames(medium) if medium.kind == VIDEO.kind else [] for medium in media]
        kinds = self.spec.kinds
        self._refuse_unheard([medium for medium in media if medium.kind == VIDEO.kind])
        if kinds is not None and MIXED_MEDIA not in kinds and len({medium.kind for medium in media}) > 1:
            several = " and ".join(KINDS[kind].plural for kind in KINDS if kind in {medium.kind for medium in media})
            raise Skip(Reason.UNSUPPORTED_MEDIA, f"the full processor takes no {several} in one sample")
        if kinds is not None and UNEVEN_VIDEOS not in kinds and len({len(chosen) for chosen in frames if chosen}) > 1:
            raise Skip(Reason.UNSUPPORTED_MEDIA, "the full processor takes no videos of several lengths in one sample")
        prepared = [*map(self.prepared, media, map(len, frames))]
        return self.rules.expand_all(prepared, frames), *self.rules.surrounding_texts(prepared, frames)

    def num_features(self, media: Sequence[Media]) -> list[int]:
        """Return for each medium of a sample how many tokens hold its features; raises Skip as `render`."""
        return [number for _, number in self._expanded(media)[0]]

    def _refuse_unheard(self, videos: Sequence[Media]) -> None:
        """Raise Skip if the processor can't hear the sounds of these videos, or the model has no positions for them."""
        if not any(video.is_heard for video in videos):
            return
        if not self.rules.hears_videos or (self.spec.kinds is not None and HEARD_VIDEOS not in self.spec.kinds):
            problem = f"use_audio_in_video: model.template={self.spec.family} hears no sound of a video"
            raise Skip(Reason.UNSUPPORTED_MEDIA, problem + self.rules.why_no_sound)
        if not all(video.is_heard for video in videos):  # Qwen's classes number all videos of a sample alike
            problem = "use_audio_in_video: a video has no sound beside one that has, for which models have no positions"
            raise Skip(Reason.UNSUPPORTED_MEDIA, problem)

    @cached_property
    def feature_ids(self) -> dict[str, int]:
        """Return by kind of media the id of the token that holds its features."""
        ids = {kind: self.token_id(name) for kind, name in self.rules.feature_tokens_by_kind.items()}
        return {kind: number for kind, number in ids.items() if number is not None}

    def messages(self, sample: Sample) -> list[Message]:
        """Return a sample's messages in the form that the chat template takes."""
        return self._template_messages(with_frame_lists_as_videos(sample))

    def _template_messages(self, sample: Sample) -> list[Message]:
        messages = split_content_at_placeholders(sample.messages, [media.kind for media in sample.media])
        chat, frames = self._chat_for(sample)
        if self._labels_of(sample).think is Think.drop_history:
            messages = chat.without_earlier_thoughts(messages)
        if sample.media and not is_document(messages):
            messages = list(map(frames.with_dropped_media_as_text, messages))
        return chat.renderer.in_template_form(messages)

    def _chat_for(self, sample: Sample) -> tuple[ChatTemplate, MediaTexts]:
        """Return the chat template of a sample, with the sample's variables, and the texts that it writes for media."""
        chat = self._tool_chat if sample.tools else self._chat
        return chat.with_variables(sample.options.chat_template_kwargs), self._media_texts[chat]

    def encode(self, sample: Sample) -> Tokens:
        """Return the token ids of one sample; their number is its `token_len` in the packs."""
        return self.tokenize([self.render(sample)])[0]

    def member_tokens(self, samples: Sequence[Sample], engine: str = "tokenizers") -> list[MemberTokens]:
        """Return the ids, labels and media that a model is trained on, for each sample; raises Skip as `render`."""
        return self.tokens_of(samples, [self.render(sample) for sample in samples], engine)

    def tokens_of(
        self, samples: Sequence[Sample], rendered: Sequence[Rendered], engine: str = "tokenizers"
    ) -> list[MemberTokens]:
        """Return the ids, labels and media of rendered samples; `engine` makes the tokens (`measure.engine`)."""
        each = zip(samples, rendered, self.trained_tokens(rendered, engine), strict=True)
        return [
            MemberTokens(*trained, self.seen(sample.media, text.num_features), sample.options.weight)
            for sample, text, trained in each
        ]

    def rules_by(self, engine: str) -> InputRules:
        """Return `input_rules` that tokenize members from no pack with this engine (`measure.engine`)."""
        return replace(self.input_rules, tokenize=partial(tokenize_foreign_member, self, engine=engine))

    @cached_property
    def input_rules(self) -> InputRules:
        """The rules by which training makes a model's inputs from tokens and media."""
        return input_rules_of(self)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Return by name the hashes of all that lengths depend on."""
        tokenizer, settings = _tokenizer_json(self._tokenizer), self.rules.settings
        return fingerprints_of(self.spec, tokenizer, settings, self.media_tokens, self.final_ends)

    @property
    def identity(self) -> TemplateIdentity:
        labels = recorded_labels(self.spec.labels, self.final_ends)
        return TemplateIdentity(self.fingerprints, labels, self.spec.family, self.spec.kinds)

    @cached_property
    def final_ends(self) -> list[str]:
        """The tokens that `labels.final_end` adds behind last answers, by form of answer; empty list: it adds none."""
        return [end for chat in self._chats for end in chat.last_answer_ends.added_tokens(self.spec.labels.final_end)]

    @property
    def _chats(self) -> list[ChatTemplate]:
        return [*dict.fromkeys((self._chat, self._tool_chat))]

    @cached_property
    def fingerprint(self) -> str:
        """Return one hash over `fingerprints`: equal hashes mean equal lengths."""
        return self.identity.fingerprint

    @property
    def ends_answers(self) -> bool:
        """Whether each answer ends with a token, by the chat template or by `labels.final_end`."""
        final_end = self.spec.labels.final_end
        return all(chat.ends_answers and chat.last_answer_ends.have_ends(final_end) for chat in self._chats)

    def text(self, sample: Sample) -> str:
        """Return the text that the chat template writes for a sample, before its media are expanded."""
        return self._chat_for(sample)[0].render(self.messages(sample), sample.tools)

    def only(self, kinds: list[str]) -> "Template":
        """Return a copy of the template that refuses all but these kinds of samples (`image`, MIXED_MEDIA …)."""
        return Template(replace(self.spec, kinds=kinds), self.rules, self._tokenizer)

    def save(self, folder: Path) -> None:
        """Write spec.json, tokenizer.json, identity.json and the input rules, which `load_saved_template` reads."""
        folder.mkdir(parents=True, exist_ok=True)
        self.input_rules.save(folder)
        write_atomically(folder / "identity.json", json.dumps(asdict(self.identity)).encode())
        write_atomically(folder / "tokenizer.json", _tokenizer_json(self._tokenizer).encode())
        write_atomically(folder / "spec.json", json.dumps(asdict(self.spec), ensure_ascii=False).encode())

    def _num_spelled_control_tokens(self, sample: Sample) -> int:
        """Count special tokens in texts, reasoning and calls; a placeholder is none, if also a token (`<image>`)."""
        texts = texts_of(sample.messages)
        rest = [{key: m[key] for key in m if key not in ("role", "content")} for m in sample.messages if len(m) > 2]
        if rest or sample.tools:
            texts.append(json.dumps([rest, sample.tools], ensure_ascii=False))
        spelled = Counter(token for text in texts for token in self._special_pattern.findall(text))
        return (spelled - Counter(f"<{media.kind}>" for media in sample.media)).total()


@lru_cache(maxsize=1)
def _tokenizer_json(tokenizer: Tokenizer) -> str:
    """Return a tokenizer as JSON, cached because it takes a tenth of a second."""
    return tokenizer.to_str()


def _num_sound_tokens(text: str, token: str) -> int:
    """Count the sound tokens in the text of a video; raises Skip if there are none, because its sound is too short."""
    number = text.count(token)
    if not number:
        raise Skip(Reason.UNREADABLE_MEDIA, "use_audio_in_video: the sound of a video is too short for a token")
    return number
