"""Make the tiny checkpoints of this folder: tokenizer, chat template, configs, training, evaluation.

    python golden/models/make.py all            # everything that is trained, about 45 minutes of one core
    python golden/models/make.py random         # what is not: seconds
    python golden/models/make.py text --steps 300 --out /tmp/try

tiny-qwen3        Qwen3ForCausalLM: knows every text kind of parity/tasks.py.
tiny-qwen3-vl     Qwen3VLForConditionalGeneration: drawn shapes, and some of the text kinds.
tiny-qwen3-video  Qwen3VLForConditionalGeneration: clips of a square that changes its colour, and when they end.
tiny-qwen3-draft  Qwen3ForCausalLM, one small layer, same vocabulary: a draft model that is right often, not always.
random-llama      LlamaForCausalLM, untrained: tokenizer and template both write a BOS, which is also the pad.
random-llama-twin its weights behind other settings: a shorter rope, another norm, and a text that is tidied when asked.
random-mistral    MistralForCausalLM, untrained: a sliding window; config.json alone names the ends, and no dtype.
random-adapters   LoRA for tiny-qwen3, untrained.
random-gpt2       GPT2LMHeadModel, untrained: absolute positions; one id is BOS, EOS and pad; no chat template.

Why they exist: tests and goldens need real architectures whose answers are known in advance, so that "the right text"
can be asserted and a one-token drift shows, in the seconds and without the network that a test has. They are trained
until each greedy step wins by a wide margin, so that no kernel, batch shape or library version flips an answer.

What they hold, and why so:
- Tokenizer: byte-level BPE with Qwen's pre-tokenizer and Qwen's special tokens by name. Words count by the logarithm of
  their frequency, so that most stay several tokens: stop strings cut in the middle of tokens and across them.
- Config vocabulary is larger than the tokenizer (as in published Qwen3), eos is a list, generation_config.json asks for
  sampling: three things that careless code trips over.
- Files are in the form of transformers 4.57, which 5.x reads too: rope_theta, torch_dtype, Qwen2Tokenizer, names of
  fast processors. Weights are plain float32 safetensors.

What the printed figures mean: the exact rate and the smallest margin are over text_tasks(200), vision_tasks(60) and
video_tasks(60). People, number pairs and drawings in them were never trained on; capitals, lists, emoji, counting and
one-digit sums are closed facts and necessarily overlap. The margin is the gap of the two best logits in nats, smallest
over every step of every answer, the end token included. Two corners are trained but not asked, because their margins
are the smallest: counting after a thought, and pictures with a side of 80 pixels. Expect one drawing in a few hundred
to be misread.

The run is seeded and repeats on the same machine and versions; other versions of torch may give other weights of the
same worth.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tqdm import tqdm
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # run as a script, the repository root is not on the path

from parity.models.tasks import (  # noqa: E402
    Task,
    chance_tasks,
    text_tasks,
    training_tasks,
    video_tasks,
    video_training_tasks,
    vision_tasks,
)

# == Recipes ==


@dataclass(frozen=True)
class Recipe:
    """One checkpoint: its size and how long it learns."""

    folder: str
    hidden: int
    layers: int
    intermediate: int
    steps: int
    polish: int  # steps of the second round, on what the first leaves with small margins
    batch_tokens: int  # with padding
    rate: float

    @property
    def vision(self) -> bool:
        """Whether it is a vision-language checkpoint; the folder's name says so."""
        return self.folder.endswith(("-vl", "-video"))

    @property
    def video(self) -> bool:
        """Whether it sees clips, and knows nothing else."""
        return self.folder.endswith("-video")

    def held_out_tasks(self) -> list[Task]:
        """Return the tasks that the printed figures are about."""
        if self.video:
            return video_tasks(60)
        return vision_tasks(60) if self.vision else text_tasks(200)

    def training_tasks(self, count: int, *, seed: int, polish: bool) -> list[Task]:
        """Return tasks that are not held out."""
        if self.video:
            return video_training_tasks(count, seed=seed)
        tasks = training_tasks(count, seed=seed, vision=self.vision, polish=polish)
        if not self.vision:
            tasks += chance_tasks(count // 50, seed=seed)
        return tasks


RECIPES = {
    "text": Recipe(
        "tiny-qwen3", hidden=64, layers=3, intermediate=192, steps=4000, polish=2000, batch_tokens=2400, rate=3e-3
    ),
    "vl": Recipe(
        "tiny-qwen3-vl", hidden=64, layers=2, intermediate=160, steps=5500, polish=2500, batch_tokens=1300, rate=1.5e-3
    ),
    "video": Recipe(
        "tiny-qwen3-video", hidden=64, layers=2, intermediate=128, steps=2600, polish=0, batch_tokens=3000, rate=1.5e-3
    ),
    "draft": Recipe(
        "tiny-qwen3-draft", hidden=64, layers=1, intermediate=128, steps=1200, polish=0, batch_tokens=2400, rate=3e-3
    ),
}

SEED = 20
CONTEXT = 2048
VOCABULARY = 576  # config vocabulary: more rows than the tokenizer has tokens, as in published Qwen3 checkpoints
BPE_TOKENS = 550  # 256 bytes and 294 merges: few enough that most words stay several tokens
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
PATCH, MERGE = 16, 2
MROPE_SECTION = [6, 5, 5]  # sums to HEAD_DIM / 2
VISION_HIDDEN = 64
POSITION_GRID = 8  # learned positions of the vision tower: 8 x 8, interpolated to any grid
PIXELS = {"shortest_edge": 64 * 64, "longest_edge": 128 * 128}  # 4 to 16 tokens per picture: both limits can be felt
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>",
    "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip
# Single tokens, but not special: a decoder that drops special tokens keeps these.
ADDED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
# Qwen's; 5.x rebuilds the tokenizer with exactly this, so another one would differ between versions.
PRETOKENIZE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# == Chat template ==

CHAT_TEMPLATE = r"""
{#- ChatML with tools, pictures and a switch for thinking; the same file for text and vision checkpoints. -#}
{%- macro say(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- elif content -%}
        {%- for part in content -%}
            {%- if part is string -%}
                {{- part -}}
            {%- elif part.type in ('image', 'image_url') or 'image' in part or 'image_url' in part -%}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
            {%- elif part.type == 'video' or 'video' in part -%}
                {{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
            {%- else -%}
                {{- part.text -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- macro call_of(call) -%}
    {{- '<tool_call>\n{"name": "' ~ call.name ~ '", "arguments": ' -}}
    {{- call.arguments if call.arguments is string else call.arguments | tojson -}}
    {{- '}\n</tool_call>' -}}
{%- endmacro -%}
{%- set has_system = messages[0].role == 'system' -%}
{%- if has_system or tools -%}
    {{- '<|im_start|>system\n' -}}
    {%- if has_system -%}
        {{- say(messages[0].content) -}}
    {%- endif -%}
    {%- if tools -%}
        {{- ('\n\n' if has_system else '') ~ '<tools>\n' -}}
        {%- for tool in tools -%}
            {{- (tool.function or tool) | tojson ~ '\n' -}}
        {%- endfor -%}
        {{- '</tools>\nTo call a tool:\n<tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>' -}}
    {%- endif -%}
    {{- '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
        {%- if loop.first or loop.previtem.role != 'tool' -%}
            {{- '<|im_start|>user' -}}
        {%- endif -%}
        {{- '\n<tool_response>\n' ~ say(message.content) ~ '\n</tool_response>' -}}
        {%- if loop.last or loop.nextitem.role != 'tool' -%}
            {{- '<|im_end|>\n' -}}
        {%- endif -%}
    {%- elif message.role == 'assistant' -%}
        {%- set said = say(message.content) -%}
        {%- if not loop.last and '</think>' in said -%}
            {%- set said = said.split('</think>')[-1].lstrip('\n') -%}
        {%- endif -%}
        {{- '<|im_start|>assistant\n' ~ said -}}
        {%- for call in message.tool_calls or [] -%}
            {{- ('\n' if said or not loop.first else '') ~ call_of(call.function or call) -}}
        {%- endfor -%}
        {{- '<|im_end|>\n' -}}
    {%- elif not (has_system and loop.first) -%}
        {{- '<|im_start|>' ~ message.role ~ '\n' ~ say(message.content) ~ '<|im_end|>\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\n' -}}
    {%- if enable_thinking is defined and enable_thinking is false -%}
        {{- '<think>\n\n</think>\n\n' -}}
    {%- endif -%}
{%- endif -%}
""".lstrip()

# == Tokenizer ==


def _texts(task: Task) -> Iterator[str]:
    """Every piece of text in a task that the tokenizer will meet."""
    yield task.answer
    for message in task.messages:
        parts = message["content"] if isinstance(message["content"], list) else [{"text": message["content"]}]
        yield from (part["text"] for part in parts if "text" in part)
    yield from (json.dumps(tool["function"]) for tool in task.tools or [])


def make_tokenizer() -> Tokenizer:
    """Train the byte-level BPE on the words of the world, each as often as its count has bits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PRETOKENIZE), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tasks = training_tasks(4000, seed=SEED) + training_tasks(500, seed=SEED, vision=True)
    words = Counter(word for task in tasks for text in _texts(task) for word, _ in split.pre_tokenize_str(text))
    sample = [word for word in sorted(words) for _ in range(words[word].bit_length())]
    trainer = trainers.BpeTrainer(
        vocab_size=BPE_TOKENS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(sample, trainer)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens(ADDED)
    return tokenizer


def id_of(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token that must exist."""
    found: int | None = tokenizer.token_to_id(token)
    if found is None:
        raise KeyError(f"{token} is not in the tokenizer; SPECIAL and ADDED name what is added to it")
    return found


def tokenizer_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return tokenizer_config.json in the form that published Qwen3 checkpoints have."""
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = {
        str(id_of(tokenizer, token)): {"content": token, **flags, "special": token in SPECIAL}
        for token in SPECIAL + ADDED
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": SPECIAL[1:],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": CONTEXT,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


# == Configs: old-style keys, which every version since 4.57 reads ==


def _text_config(recipe: Recipe, eos: int, pad: int) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": recipe.hidden,
        "initializer_range": 0.02,
        "intermediate_size": recipe.intermediate,
        "max_position_embeddings": CONTEXT,
        "num_attention_heads": HEADS,
        "num_hidden_layers": recipe.layers,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }


def _vision_config(recipe: Recipe) -> dict[str, Any]:
    return {
        "model_type": "qwen3_vl",
        "deepstack_visual_indexes": [0],
        "depth": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": VISION_HIDDEN,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 2 * VISION_HIDDEN,
        "num_heads": 4,
        "num_position_embeddings": POSITION_GRID**2,
        "out_hidden_size": recipe.hidden,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
    }


def model_config(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return config.json."""
    eos, pad = id_of(tokenizer, "<|im_end|>"), id_of(tokenizer, "<|endoftext|>")
    text = _text_config(recipe, eos, pad)
    if not recipe.vision:
        return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **text, "rope_scaling": None}
    rope = {"mrope_interleaved": True, "mrope_section": MROPE_SECTION, "rope_type": "default"}
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "eos_token_id": eos,
        "pad_token_id": pad,
        "image_token_id": id_of(tokenizer, "<|image_pad|>"),
        "video_token_id": id_of(tokenizer, "<|video_pad|>"),
        "vision_start_token_id": id_of(tokenizer, "<|vision_start|>"),
        "vision_end_token_id": id_of(tokenizer, "<|vision_end|>"),
        "text_config": {"model_type": "qwen3_vl_text", **text, "rope_scaling": rope},
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vision_config": _vision_config(recipe),
    }


def generation_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return generation_config.json: it asks for sampling and has two end tokens, so that leaks of either show."""
    return {
        "do_sample": True,
        "eos_token_id": [id_of(tokenizer, "<|im_end|>"), id_of(tokenizer, "<|endoftext|>")],
        "pad_token_id": id_of(tokenizer, "<|endoftext|>"),
        "repetition_penalty": 1.05,
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.8,
    }


def processor_configs() -> dict[str, dict[str, Any]]:
    """Return the two files that AutoProcessor wants beside a vision checkpoint, pictures and videos."""
    shared = {
        "size": PIXELS,
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGE,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
    }
    return {
        "preprocessor_config.json": {**shared, "image_processor_type": "Qwen2VLImageProcessorFast"},
        "video_preprocessor_config.json": {**shared, "video_processor_type": "Qwen3VLVideoProcessor"},
    }


def write_files(recipe: Recipe, folder: Path) -> None:
    """Write everything but the weights."""
    tokenizer = make_tokenizer()
    files = {
        "config.json": model_config(recipe, tokenizer),
        "generation_config.json": generation_config(tokenizer),
        "tokenizer_config.json": tokenizer_config(tokenizer),
        **(processor_configs() if recipe.vision else {}),
    }
    if recipe.vision:
        files["tokenizer_config.json"]["processor_class"] = "Qwen3VLProcessor"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))


# == Data ==


VIDEO_KINDS = {task.kind for task in video_tasks(2)}


class Encoder:
    """Turns tasks into model inputs: the prompt as the template renders it, then the answer and the end token."""

    def __init__(self, folder: Path, vision: bool) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.processor: Any = AutoProcessor.from_pretrained(folder) if vision else None
        self.images = self.processor.image_processor if self.processor else None
        self.image_token = self.tokenizer.convert_tokens_to_ids("<|image_pad|>")
        self.video_token = self.tokenizer.convert_tokens_to_ids("<|video_pad|>")
        self.ids = cache(lambda text: tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"]))

    def prompt(self, task: Task) -> str:
        """Render the messages up to where the answer starts."""
        switches = {"tools": task.tools, "enable_thinking": task.enable_thinking}
        return str(
            self.tokenizer.apply_chat_template(task.messages, tokenize=False, add_generation_prompt=True, **switches)
        )

    def length(self, task: Task) -> int:
        """Return the number of text tokens, for batches of like length; of a clip also a guess at its frames'."""
        length = len(self.ids(self.prompt(task))) + len(self.ids(task.answer))
        if task.kind in VIDEO_KINDS:
            length += 10 * len(task.messages[-1]["content"][0]["video"])
        return length

    def pictures(self, tasks: list[Task]) -> dict[str, torch.Tensor]:
        """Return the patches of all pictures of a batch in order, with their grids; empty without pictures."""
        found = [
            part["image"]
            for task in tasks
            for message in task.messages
            if isinstance(message["content"], list)
            for part in message["content"]
            if part["type"] == "image"
        ]
        return dict(self.images(found, return_tensors="pt")) if self.images and found else {}

    def clips(self, tasks: list[Task]) -> tuple[list[str], dict[str, torch.Tensor]]:
        """Return the prompt of each task, where a clip's placeholder has become its frames, and the patches of all."""
        texts, tensors = [], defaultdict(list)
        for task in tasks:
            [part] = [part for part in task.messages[-1]["content"] if part["type"] == "video"]
            frames = len(part["video"])
            known = {"fps": part["fps"], "total_num_frames": frames, "frames_indices": list(range(frames))}
            how = {"video_metadata": [known], "do_sample_frames": False, "return_tensors": "pt"}
            made = self.processor.video_processor([part["video"]], return_metadata=True, **how)
            run = self.processor.replace_video_token(made, 0)
            texts.append(self.prompt(task).replace(self.processor.video_token, run))
            for name in ("pixel_values_videos", "video_grid_thw"):
                tensors[name].append(made[name])
        return texts, {name: torch.cat(parts) for name, parts in tensors.items()}

    def expand(self, ids: tuple[int, ...], grids: Iterator[torch.Tensor]) -> list[int]:
        """Repeat each picture's placeholder once per merged patch."""
        return [
            copy
            for token in ids
            for copy in ([token] * (int(next(grids).prod()) // MERGE**2) if token == self.image_token else [token])
        ]

    def batch(self, tasks: list[Task], *, answers: bool) -> dict[str, torch.Tensor]:
        """Return model inputs, [batch, longest]: right-padded with labels if `answers`, else left-padded prompts."""
        if tasks[0].kind in VIDEO_KINDS:
            texts, inputs = self.clips(tasks)
            prompts = [list(self.ids(text)) for text in texts]
        else:
            inputs = self.pictures(tasks)
            grids = iter(inputs.get("image_grid_thw", ()))
            prompts = [self.expand(self.ids(self.prompt(task)), grids) for task in tasks]
        end = self.tokenizer.eos_token_id
        said = [[*self.ids(task.answer), end] if answers else [] for task in tasks]
        longest = max(len(p) + len(s) for p, s in zip(prompts, said, strict=True))
        shape = (len(tasks), longest)
        inputs["input_ids"] = torch.full(shape, self.tokenizer.pad_token_id)
        inputs["attention_mask"] = torch.zeros(shape, dtype=torch.long)
        labels = torch.full(shape, -100)
        for row, (p, s) in enumerate(zip(prompts, said, strict=True)):
            start = 0 if answers else longest - len(p)
            inputs["input_ids"][row, start : start + len(p) + len(s)] = torch.tensor(p + s)
            inputs["attention_mask"][row, start : start + len(p) + len(s)] = 1
            labels[row, start + len(p) : start + len(p) + len(s)] = torch.tensor(s)
        if self.images is not None:
            seen = inputs["input_ids"]  # 1 stands for an image, 2 for a clip
            inputs["mm_token_type_ids"] = (seen == self.image_token) + 2 * (seen == self.video_token)
        return {**inputs, "labels": labels} if answers else inputs


ROUND = 512  # tasks that are sorted by length together: little padding, and still mixed kinds


def _cut(tasks: list[Task], lengths: list[int], budget: int) -> Iterator[list[Task]]:
    """Cut tasks, sorted by length, into batches of at most `budget` padded tokens."""
    start = 0
    for stop in range(1, len(tasks) + 1):
        if stop == len(tasks) or (stop + 1 - start) * lengths[stop] > budget:
            yield tasks[start:stop]
            start = stop


def batches(recipe: Recipe, encoder: Encoder, polish: bool) -> Iterator[dict[str, torch.Tensor]]:
    """Yield training batches without end, each round of tasks from a new seed."""
    for seed in itertools.count((SEED + polish) * 1_000_000):
        tasks = recipe.training_tasks(ROUND, seed=seed, polish=polish)
        tasks.sort(key=encoder.length)
        cuts = list(_cut(tasks, [encoder.length(task) for task in tasks], recipe.batch_tokens))
        random.Random(seed).shuffle(cuts)
        yield from (encoder.batch(cut, answers=True) for cut in cuts)


# == Training ==

WARM_UP = 100
CLIP = 1.0


def make_model(recipe: Recipe, folder: Path) -> torch.nn.Module:
    """Build the untrained model from the config that was just written, as a loader will read it."""
    torch.manual_seed(SEED)
    family = AutoModelForImageTextToText if recipe.vision else AutoModelForCausalLM
    return family.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)


def train(model: torch.nn.Module, recipe: Recipe, encoder: Encoder, steps: int, *, polish: bool = False) -> None:
    """Train on answers only: AdamW, warm-up, cosine down to zero; the second round at half the rate."""
    rate = recipe.rate / 2 if polish else recipe.rate
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * step / steps)) / 2
    )
    data = batches(recipe, encoder, polish)
    model.train()
    with tqdm(range(steps), desc=recipe.folder, mininterval=5) as bar:
        for _ in bar:
            loss = model(**next(data), use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            bar.set_postfix(loss=f"{loss.item():.4f}", refresh=False)


# == Evaluation ==


@dataclass(frozen=True)
class Outcome:
    """What the model said to one task, and its smallest gap between the best and second logit, in nats."""

    task: Task
    said: str
    margin: float


def answer(model: torch.nn.Module, encoder: Encoder, tasks: list[Task], budget: int = 256) -> list[Outcome]:
    """Answer one batch greedily, with nothing of the checkpoint's sampling defaults."""
    inputs = encoder.batch(tasks, answers=False)
    eos = encoder.tokenizer.eos_token_id
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=encoder.tokenizer.pad_token_id)
    out = model.generate(
        **inputs, max_new_tokens=budget, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    best = torch.stack(out.logits, dim=1).topk(2).values  # [batch, steps, 2]
    outcomes = []
    for task, ids, pair in zip(tasks, out.sequences[:, inputs["input_ids"].shape[1] :].tolist(), best, strict=True):
        length = ids.index(eos) if eos in ids else len(ids) - 1
        text = encoder.tokenizer.decode(ids[:length], skip_special_tokens=False)
        outcomes.append(Outcome(task, text, float((pair[:, 0] - pair[:, 1])[: length + 1].min())))
    return outcomes


def evaluate(model: torch.nn.Module, recipe: Recipe, encoder: Encoder) -> list[Outcome]:
    """Answer all held-out tasks of a recipe, in batches of like length."""
    model.eval()
    tasks = sorted(recipe.held_out_tasks(), key=encoder.length)
    return [outcome for i in range(0, len(tasks), 20) for outcome in answer(model, encoder, tasks[i : i + 20])]


def report(outcomes: list[Outcome]) -> None:
    """Print exact rate and smallest margin per kind and in all, and the first wrong answers."""
    kinds = defaultdict(list)
    for outcome in outcomes:
        kinds[outcome.task.kind].append(outcome)
    for kind, members in [*sorted(kinds.items()), ("all", outcomes)]:
        right = sum(o.said == o.task.answer for o in members)
        margin = min(o.margin for o in members)
        print(f"  {kind:12} {right:3} of {len(members):3} exact, smallest margin {margin:6.2f} nats")
    for outcome in [o for o in outcomes if o.said != o.task.answer][:5]:
        print(f"  wrong: {outcome.task.kind}: said {outcome.said!r}, not {outcome.task.answer!r}")


# == Saving, and the whole run ==


def save_weights(model: torch.nn.Module, folder: Path) -> None:
    """Write the weights once each: the tied output layer is the embedding and is not stored again."""
    weights = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def make(recipe: Recipe, out: Path, steps: int) -> None:
    """Make one checkpoint in a temporary folder, then put it in place."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as temporary:
        folder, start = Path(temporary) / recipe.folder, time.perf_counter()
        write_files(recipe, folder)
        encoder, model = Encoder(folder, recipe.vision), make_model(recipe, folder)
        train(model, recipe, encoder, steps)
        if polish := recipe.polish * steps // recipe.steps:
            train(model, recipe, encoder, polish, polish=True)
        save_weights(model, folder)
        seconds = time.perf_counter() - start
        outcomes = evaluate(model, recipe, encoder)
        size = sum(file.stat().st_size for file in folder.iterdir())
        shutil.rmtree(out / recipe.folder, ignore_errors=True)
        folder.rename(out / recipe.folder)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{recipe.folder}: {parameters:,} parameters, {size:,} bytes, {steps} steps in {seconds:.0f} s")
    report(outcomes)


# == Checkpoints that know nothing ==

# Unsure at every step: draws, penalties and log-probabilities have something to show, and special tokens come up.
LLAMA_TEMPLATE = (
    "{{- bos_token -}}{%- for m in messages -%}{{- '[' ~ m.role ~ '] ' ~ m.content ~ '\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '[assistant] ' -}}{%- endif -%}"
)
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
RANDOM: dict[str, tuple[str, dict[str, Any]]] = {
    "random-llama": ("LlamaConfig", {**SMALL, "tie_word_embeddings": True}),
    "random-gpt2": ("GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 512}),
    "random-mistral": ("MistralConfig", {**SMALL, "sliding_window": 8}),
}


def random_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """tiny-qwen3's, with the special tokens that such checkpoints have."""
    tokenizer = Tokenizer.from_file(str(HERE / "tiny-qwen3/tokenizer.json"))
    first = "<|endoftext|>"
    if name == "random-llama":
        pair = [(first, id_of(tokenizer, first))]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{first} $A", special_tokens=pair)
    ends = {"bos_token": first, "eos_token": "<|im_end|>" if name == "random-llama" else first, "pad_token": first}
    if name == "random-mistral":
        del ends["eos_token"]  # its config.json names them
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **ends)
    made.chat_template = None if name == "random-gpt2" else LLAMA_TEMPLATE
    return made


def make_random(name: str, out: Path) -> None:
    kind, fields = RANDOM[name]
    tokenizer = random_tokenizer(name)
    ends = {key: getattr(tokenizer, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = getattr(transformers, kind)(vocab_size=len(tokenizer), initializer_range=0.15, **fields, **ends)
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(config)
    shutil.rmtree(out / name, ignore_errors=True)
    model.save_pretrained(out / name)
    tokenizer.save_pretrained(out / name)
    if name == "random-mistral":
        say_little(model, tokenizer, out / name)
    said = out / name / "tokenizer_config.json"  # the name that both 4.57 and 5.x know
    said.write_text(
        json.dumps({**json.loads(said.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}, indent=2)
    )
    print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters, untrained")


def say_little(model: Any, tokenizer: Any, folder: Path) -> None:
    """Leave to config.json what others say elsewhere: two end ids, one of them 0, which the model does choose; and let
    it say nothing of its dtype."""
    given = (tokenizer(text, return_tensors="pt") for text in ("The", "a"))
    made = [int(model.generate(**one, do_sample=False, max_new_tokens=12, eos_token_id=None)[0, -6]) for one in given]
    rows = model.lm_head.weight.data
    rows[[0, made[0]]] = rows[[made[0], 0]]
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    said = json.loads((folder / "config.json").read_text())
    del said["dtype"]
    (folder / "config.json").write_text(json.dumps({**said, "eos_token_id": [0, made[1]]}, indent=2))


def make_twin(name: str, out: Path) -> None:
    """The same files, but for what config.json and tokenizer_config.json say."""
    twin = out / f"{name}-twin"
    shutil.rmtree(twin, ignore_errors=True)
    shutil.copytree(out / name, twin)
    rope = {"rope_type": "default", "rope_theta": 100.0}
    tidied = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    changes: dict[str, dict[str, Any]] = {
        "config": {"rms_norm_eps": 0.01, "rope_parameters": rope, "rope_theta": 100.0},  # of transformers 4, by itself
        "tokenizer_config": {tidied: True},
    }
    for file, change in changes.items():
        path = twin / f"{file}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}, indent=2))


def make_adapter(name: str, seed: int, out: Path) -> None:
    """A random LoRA adapter of tiny-qwen3, large enough to change what it says."""
    import peft

    torch.manual_seed(seed)
    config = peft.LoraConfig(r=2, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(HERE / "tiny-qwen3"), config)
    for key, weights in model.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(weights, std=0.2)
    model.save_pretrained(str(out / "random-adapters" / name))
    said = out / "random-adapters" / name / "adapter_config.json"  # a path of this machine tells nobody anything
    said.write_text(json.dumps({**json.loads(said.read_text()), "base_model_name_or_path": "tiny-qwen3"}, indent=2))
    (said.parent / "README.md").unlink(missing_ok=True)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Make the tiny checkpoints of this folder.",
        epilog="example: python golden/models/make.py text --steps 300 --out /tmp/try",
    )
    parser.add_argument("which", choices=[*RECIPES, "all", "random"], help="the checkpoint to make")
    parser.add_argument("--steps", type=int, help="training steps, instead of the recipe's")
    parser.add_argument("--out", type=Path, default=HERE, help="parent folder of the checkpoints (default: here)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads; more may change the last bits")
    return parser.parse_args()


def main() -> None:
    """Make what the command line asks for."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    transformers_logging.set_verbosity_error()
    for name, recipe in RECIPES.items():
        if arguments.which in (name, "all"):
            make(recipe, arguments.out, arguments.steps or recipe.steps)
    for name in RANDOM if arguments.which == "random" else ():
        make_random(name, arguments.out)
    if arguments.which == "random":
        make_twin("random-llama", arguments.out)
    for seed, name in enumerate(("one", "two") if arguments.which == "random" else ()):
        make_adapter(name, seed, arguments.out)


if __name__ == "__main__":
    main()
