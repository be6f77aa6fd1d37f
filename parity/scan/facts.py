"""What a block sets, what it leaves to others, and who they are."""

from __future__ import annotations

import re

from parity.scan.blocks import Block, function_text
from parity.scan.load_facts import is_encoder_decoder
from parity.scan.origins import Fact
from parity.scan.prompt_facts import PromptFacts
from parity.scan.result_facts import ResultFacts
from parity.scan.sampling_facts import SamplingFacts

NAMES = (
    "dtype", "attn", "device", "trust_remote_code", "quantization", "adapters", "padding_side",
    "pad_token",
    "truncation", "template", "add_generation_prompt", "enable_thinking", "do_sample",
    "temperature", "top_p", "top_k",
    "max_new_tokens", "num_beams", "n", "seed", "repetition_penalty", "stop",
    "skip_special_tokens", "prompt_slice",
    "strip", "cuts_by_hand", "batch", "logprobs", "prompt_logprobs",
)  # fmt: skip
VLM = re.compile(
    r"Vision|VL|Llava|LLaVA|ImageText|Idefics|Video|Multimodal|Image|Qwen2_5_VL|Mllama"
    r"|Gemma3ForCond|Fuyu|Blip|Kosmos"
)


class Facts(PromptFacts, SamplingFacts, ResultFacts):
    """Collects the facts of one block."""

    def collect(self) -> dict[str, Fact]:
        return {name: getattr(self, f"read_{name}")() for name in NAMES}


def kind_of(block: Block) -> str:
    """ "text", "vlm", "seq2seq" or "audio"."""
    names = " ".join([load.name for load in block.thing.loads] + [block.thing.task])
    if re.search(r"Whisper|Audio|Speech", names):
        return "audio"
    settings = set(block.settings.entries)
    is_vlm = VLM.search(names) or settings & {
        "pixel_values",
        "images",
        "image_sizes",
        "pixel_values_videos",
    }
    if is_vlm or "image" in block.thing.task:
        return "vlm"
    text = function_text(block.scope) if block.scope.qualname else ""
    if re.search(r"pixel_values|images=|process_vision_info|videos=|image_sizes", text):
        return "vlm"
    if re.search(r"Image\.open|<image>|<img>|\bimages?\b(?!=\[)|image_(path|url|file)", text):
        return "vlm"
    return "seq2seq" if is_encoder_decoder(block) else "text"
