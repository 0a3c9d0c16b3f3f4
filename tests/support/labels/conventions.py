"""Rows that we mean to train otherwise than others, each with its reason; `docs/tables/label_rows.csv` counts them."""

from dataclasses import dataclass

from support.labels.frameworks import Judged
from support.labels.truth import Verdict


@dataclass(frozen=True)
class Convention:
    """Why rows may differ, and which; what is empty fits all."""

    reason: str
    statuses: tuple[str, ...]
    #: of conversations
    ids: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    #: words of the skip
    words: str = ""


_TEXT_ALONE = (  # templates that print a list of parts, or write nothing of one
    *("llama3_text", "trl_cohere2", "trl_gemma", "trl_lfm2", "trl_lfm2_v2", "trl_llama3", "trl_llama3_2", "trl_qwen3"),
    *("trl_nemotron_3_5_lightning", "trl_nemotron_3_nano", "trl_nemotron_3_super", "trl_nemotron_3_ultra"),
    *("trl_qwen3_instruct_2507",),
)
_TRAINS_HEADERS = ("trl_gptoss", "trl_deepseekv3", "trl_deepseek_r1_distill", "trl_muse_glimmer")
_NO_HEADER = ("trl_diffusion_gemma",)
_NEVER_BY_SWIFT = (  # in all other templates ms-swift's row shows an empty answer that is not trained
    *("trl_cohere", "trl_cohere2", "trl_lfm2", "trl_lfm2_2_5", "trl_lfm2_2_5_vl", "trl_lfm2_v2", "trl_qwen2_5_vl"),
)
_IMAGE_ANSWERED = ("image_answered", "image_answered_text", "image_answered_early", "image_empty_answer", "image_both")
CONVENTIONS = (
    Convention("the template writes no tool calls: a named skip", ("skipped",), words="leaves out the call"),
    Convention("the template drops the last thought: a named skip", ("skipped",), words="leaves out the thought"),
    Convention("the template writes no tools: a named skip", ("skipped",), words="leaves out tools"),
    Convention("the template drops a text or a turn: a named skip", ("skipped",), words="leaves out the text"),
    Convention("a model without images: a named skip", ("skipped",), words="sees no image"),
    Convention("texts are joined where a template prints a list", ("text",), ids=("c21",), templates=_TEXT_ALONE),
    Convention("a role's header is never a label; TRL trains it", ("labels",), templates=_TRAINS_HEADERS),
    Convention("the prompt after a tool's result lacks the header, which is no label", ("labels",), (), _NO_HEADER),
    Convention("generation stops at the token that begins the next turn", ("labels",), templates=("trl_glm4moe",)),
    Convention("media of an answer, and what frames them, are never labels", ("labels",), ids=_IMAGE_ANSWERED),
    Convention("an empty answer is not trained, as in ms-swift", ("labels",), ids=("c11",), templates=_NEVER_BY_SWIFT),
    Convention(
        "of an answer, the template writes the first part alone: a named skip",
        ("skipped",),
        ids=("image_answered_text", "image_both"),
        templates=("trl_llava_next",),
        words="leaves out 1 media",
    ),
    Convention(
        "media of an answer that the template drops are written as in a question",
        ("text",),
        ids=_IMAGE_ANSWERED,
        templates=("qwen3_vl", "trl_qwen3_vl", "gemma3"),
    ),
)


def convention_of(status: str, template: str, conversation: str, detail: str) -> str | None:
    """The reason why a row may differ; None: it may not."""
    for item in CONVENTIONS:
        fits = status in item.statuses and item.words in detail
        if fits and (not item.ids or conversation in item.ids) and (not item.templates or template in item.templates):
            return item.reason
    return None


def reason_to_differ(row: Verdict | Judged) -> str | None:
    """As `convention_of`, of a judged row."""
    template, _, conversation = row.name.partition("/")
    return convention_of(row.status, template, conversation, row.detail)
