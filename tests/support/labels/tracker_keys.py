"""Keys of records that seven trackers know, each with where it is read, and values good and bad.

S = ms-swift 4.6.0 `swift/`, F = LLaMA-Factory 0.9.5 `llamafactory/`, T = TRL 1.16.0 `trl/`, A = axolotl 067b021,
U = torchtune bd2a0fc, Q = qwen_vl_utils `vision_process.py`, O = OpenAI's fine-tuning form.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: where a key stands
SAMPLE, TURN, PART = "sample", "turn", "part"


@dataclass(frozen=True)
class Key:
    """A key that means something somewhere."""

    place: str
    name: str
    read_in: str  # file:line
    good: tuple[Any, ...]
    bad: tuple[Any, ...] = ()
    #: whether it changes what is trained: it has to be honoured, or to cost the sample
    matters: bool = True


_TOOL = {"type": "function", "function": {"name": "ping", "description": "Pings.", "parameters": {"type": "object"}}}
_CALL = {"id": "c0", "type": "function", "function": {"name": "ping", "arguments": {"host": "a"}}}
_TURNS = [{"role": "user", "content": "Other?"}, {"role": "assistant", "content": "Other."}]
_NO_NUMBERS = ("much", -1, [1], {"a": 1})
_SWITCHES, _NO_SWITCHES = (True, False, 1, 0), ("maybe", 2, -1, 0.5, [True])

KEYS = (
    # what a turn counts
    Key(TURN, "loss", "S loss_scale/base.py:93", (True, False), _NO_SWITCHES),
    Key(TURN, "loss_scale", "S loss_scale/base.py:94", (0.0, 0.5, 1, 2.5), _NO_NUMBERS),
    Key(TURN, "loss_weight", "F v1/core/utils/rendering.py:56", (0.0, 0.25, 1.0, 3), _NO_NUMBERS),
    Key(TURN, "weight", "O weight of an assistant turn", (0, 1, 0.5), _NO_NUMBERS),
    Key(TURN, "train", "A chat_template.py:503", _SWITCHES, _NO_SWITCHES),
    Key(TURN, "training", "A chat_template.py:891", _SWITCHES, _NO_SWITCHES),
    Key(TURN, "masked", "U data/_messages.py:108", _SWITCHES, _NO_SWITCHES),
    Key(TURN, "mask", "U, short", _SWITCHES, _NO_SWITCHES),
    Key(TURN, "loss_mask", "a habit", _SWITCHES, _NO_SWITCHES),
    Key(TURN, "trainable", "a habit", _SWITCHES, _NO_SWITCHES),
    Key(TURN, "train_detail", "A chat_template.py:788", ([{"begin_offset": 0, "end_offset": 3, "train": False}],)),
    Key(TURN, "training_detail", "A chat_template.py:788", ([{"begin_offset": 0, "end_offset": 1, "train": True}],)),
    Key(TURN, "eot", "U data/_messages.py:108", (False,)),
    Key(TURN, "ipython", "U data/_messages.py:108", (True,)),
    # what a turn says beside its text
    Key(TURN, "reasoning_content", "transformers utils/chat_template_utils.py:679", ("Because.",), (5, ["x"])),
    Key(TURN, "reasoning", "transformers utils/chat_template_utils.py:679", ("Because.",), (5,)),
    Key(TURN, "thinking", "transformers utils/chat_template_utils.py:679", ("Because.",), (5,)),
    Key(TURN, "tool_calls", "S template/template_inputs.py:21", ([_CALL], [_CALL, _CALL]), ("ping", 7, [3])),
    Key(TURN, "function_call", "O of old", ({"name": "ping", "arguments": "{}"},), ("ping", {"arguments": {}}, 3)),
    Key(TURN, "refusal", "O", ("I can't.",)),
    Key(TURN, "audio", "O", ({"id": "a1"},)),
    Key(TURN, "images", "T data_utils.py:32, of a turn in other data", (["a.png"],)),
    Key(TURN, "name", "O", ("tide_at", "bob"), matters=False),
    Key(TURN, "tool_call_id", "O", ("c0",), matters=False),
    Key(TURN, "prefix", "Mistral, DeepSeek", (True,), matters=False),
    Key(TURN, "recipient", "OpenAI harmony", ("all",), matters=False),
    Key(TURN, "channel", "OpenAI harmony", ("final",), matters=False),
    Key(TURN, "end_turn", "OpenAI", (True,), matters=False),
    Key(TURN, "id", "any", ("t1", 4), matters=False),
    Key(TURN, "timestamp", "any", (17.5, "2026-01-01"), matters=False),
    Key(TURN, "mood", "nobody", ("calm", 3, [1]), matters=False),
    # of a sample
    Key(SAMPLE, "weight", "ours", (0.5, 2, 1, 0), _NO_NUMBERS),
    Key(SAMPLE, "system", "S dataset/preprocessor/core.py:511", ("Be brief.",), ()),
    Key(SAMPLE, "system_prompt", "S dataset/preprocessor/core.py:413", ("Be brief.",)),
    Key(SAMPLE, "tools", "T trainer/sft_trainer.py:1316", ([_TOOL], [_TOOL["function"]]), ("ping", 3)),
    Key(SAMPLE, "functions", "O of old", ([_TOOL["function"]],), ("ping", 3)),
    Key(SAMPLE, "chat_template_kwargs", "T trainer/sft_trainer.py:1320", ({"mood": "calm"}, {}), ("calm", [1])),
    Key(SAMPLE, "chosen", "T trainer/dpo", (_TURNS, "Good."), matters=False),
    Key(SAMPLE, "rejected_response", "S template/template_inputs.py:224", ("Bad.", [_TURNS[1]])),
    Key(SAMPLE, "rejected_messages", "S template/template_inputs.py:224", (_TURNS,)),
    Key(SAMPLE, "rejected_images", "S dataset/preprocessor/core.py:29", (["a.png"],)),
    Key(SAMPLE, "label", "S template/template_inputs.py:63, T kto, F data/parser.py kto_tag", (True, False)),
    Key(SAMPLE, "label", "S template/template_inputs.py:63, of classes", (0, 1, "cat"), matters=False),
    Key(SAMPLE, "kto_tag", "F data/parser.py:46", (True, False)),
    Key(SAMPLE, "margin", "S template/template_inputs.py:73", (0.5,)),
    Key(SAMPLE, "positive_messages", "S dataset/preprocessor/core.py:29", ([_TURNS],)),
    Key(SAMPLE, "negative_messages", "S dataset/preprocessor/core.py:29", ([_TURNS],)),
    Key(SAMPLE, "mm_processor_kwargs", "S template/template_inputs.py:77", ({"max_pixels": 50176},)),
    Key(SAMPLE, "input_ids", "T trainer/sft_trainer.py:566", ([1, 2, 3],)),
    Key(SAMPLE, "assistant_masks", "T trainer/sft_trainer.py:569", ([0, 1, 1],)),
    Key(SAMPLE, "completion_mask", "T trainer/sft_trainer.py:569", ([0, 1, 1],)),
    Key(SAMPLE, "labels", "T trainer/sft_trainer.py:567", ([-100, 1],), matters=False),
    Key(SAMPLE, "audios", "S template/template_inputs.py:68", (["a.wav"],)),
    Key(SAMPLE, "audio", "S dataset/preprocessor/core.py:69", ("a.wav",)),
    Key(SAMPLE, "objects", "S template/base.py:309", ({"ref": ["boat"], "bbox": [[1, 2, 3, 4]]},), matters=False),
    Key(SAMPLE, "teacher_prompt", "S dataset/preprocessor/core.py:36", ("Teach.",), matters=False),
    Key(SAMPLE, "solution", "S dataset/preprocessor/core.py:278", ("42",), matters=False),
    Key(SAMPLE, "channel", "S template/template_inputs.py:64", ("math",), matters=False),
    Key(SAMPLE, "extra_info", "F v1/utils/types.py:104", ("x", {"a": 1}), matters=False),
    Key(SAMPLE, "_dataset_name", "F v1/utils/types.py:106", ("alpaca",), matters=False),
    Key(SAMPLE, "prompt", "T data_utils.py:224", ("Prompt?",), matters=False),
    Key(SAMPLE, "completion", "T data_utils.py:249", ("Done.",), matters=False),
    Key(SAMPLE, "history", "S dataset/preprocessor/core.py:436", ([["a", "b"]],), matters=False),
    Key(SAMPLE, "query", "S dataset/preprocessor/core.py:414", ("q",), matters=False),
    Key(SAMPLE, "response", "S dataset/preprocessor/core.py:415", ("r",), matters=False),
    Key(SAMPLE, "instruction", "F data/parser.py:48", ("Do.",), matters=False),
    Key(SAMPLE, "reasoning_effort", "O", ("high",), matters=False),
    Key(SAMPLE, "parallel_tool_calls", "O", (False,), matters=False),
    Key(SAMPLE, "tool_choice", "O", ("auto",), matters=False),
    Key(SAMPLE, "response_format", "O", ({"type": "text"},), matters=False),
    Key(SAMPLE, "temperature", "O", (0.7,), matters=False),
    Key(SAMPLE, "id", "any", ("s1", 9), matters=False),
    Key(SAMPLE, "metadata", "O", ({"a": "b"},), matters=False),
    Key(SAMPLE, "segments", "A completion, input_output", ([{"label": True, "text": "x"}],)),
    Key(SAMPLE, "mood", "nobody", ("calm", 3, [1], {"a": 1}), matters=False),
    # of a content part
    Key(PART, "min_pixels", "Q:131", (12544,), ("many", -5)),
    Key(PART, "max_pixels", "Q:132", (3136, 12544), ("few", 0)),
    Key(PART, "resized_height", "Q:123", (56,), ("tall",)),
    Key(PART, "resized_width", "Q:123", (84,), ("wide",)),
    Key(PART, "total_pixels", "Q:450", (50176,), ("all",)),
    Key(PART, "fps", "Q:171", (0.5, 4), ("fast", 0)),
    Key(PART, "nframes", "Q:168", (4,), ("some",)),
    Key(PART, "min_frames", "Q:172", (6,), ("some",)),
    Key(PART, "max_frames", "Q:173", (4,), ("some",)),
    Key(PART, "video_start", "Q:260", (0.5,), ("soon",)),
    Key(PART, "video_end", "Q:261", (1.5,), ("late",)),
    Key(PART, "sample_fps", "Q:434", (2.0,), ("fast",)),
    Key(PART, "train", "A chat_template.py:788-829", (False,)),
    Key(PART, "weight", "A chat_template.py:788-829", (0,)),
    Key(PART, "loss_scale", "S loss_scale/base.py:119", ([0.0, 1.0],)),
    Key(PART, "token_ids", "S loss_scale/base.py:122", ([1, 2],)),
    Key(PART, "detail", "O", ("low", "high"), matters=False),
    Key(PART, "cache_control", "Anthropic", ({"type": "ephemeral"},), matters=False),
    Key(PART, "mood", "nobody", ("calm",), matters=False),
)


def values_of(key: Key) -> Iterator[tuple[Any, bool]]:
    """Each value of a key, and whether it is a good one; None says nothing, and is good."""
    yield from ((value, True) for value in key.good)
    yield from ((value, False) for value in key.bad)
    yield None, True
