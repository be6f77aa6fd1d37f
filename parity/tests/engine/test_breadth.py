"""Other architectures, at random weights from their configs: the same greedy ids on both backends."""

from __future__ import annotations

import importlib
import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gen_engine import GenerationEngine, UnsupportedError
from parity.companions.joining import Joining
from parity.models.tasks import drawing

from ..conftest import TEXT, VL, open_engine

SIZE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512,
        "tie_word_embeddings": False}  # fmt: skip
# architecture -> (config class, what differs from SIZE)
TEXT_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "gemma2": ("Gemma2Config", {"sliding_window": 256, "query_pre_attn_scalar": 32, "tie_word_embeddings": True}),
    "gemma3": (
        "Gemma3TextConfig",
        {"sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": True},
    ),
    "phi3": ("Phi3Config", {"hidden_size": 128, "head_dim": 32, "num_key_value_heads": 4}),
    "qwen2": ("Qwen2Config", {"num_attention_heads": 2, "head_dim": 32}),
    "qwen3_moe": ("Qwen3MoeConfig", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}),
    "olmo2": ("Olmo2Config", {"num_attention_heads": 2, "head_dim": 32}),
    "granite": ("GraniteConfig", {"num_attention_heads": 2, "head_dim": 32}),
    "gpt2": ("GPT2Config", {"n_positions": 512, "num_attention_heads": 2}),
    "opt": ("OPTConfig", {"ffn_dim": 96, "word_embed_proj_dim": 64, "num_attention_heads": 2}),
    "gpt_neox": ("GPTNeoXConfig", {"num_attention_heads": 2}),
}
PROMPTS = [{"prompt": text} for text in ("The capital", "Count to 5.", '{"name": "Anna", "age": 31}', "a " * 40)]
OPTIONS = {"max_new_tokens": 24, "stop": {"ignore_eos": True}, "logprobs": 0}


def save(folder: Path, config: Any, tokenizer_from: Path) -> Path:
    """Random weights, wide enough apart that greedy decoding does not hang on rounding."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    auto = (
        transformers.AutoModelForImageTextToText
        if hasattr(config, "vision_config")
        else transformers.AutoModelForCausalLM
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = auto.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for name, weights in model.named_parameters():
                if weights.ndim >= 2:
                    weights.normal_(std=0.35 if "embed" in name or "wte" in name else weights.shape[-1] ** -0.5 * 1.5)
    model.generation_config = transformers.GenerationConfig()
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer_from / name, folder / name)
    return folder


def vocabulary(model: Path) -> int:
    return int(json.loads((model / "config.json").read_text()).get("vocab_size", 0)) or len(
        json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    )


def both_backends(model: Path, run: Callable[[GenerationEngine], Any], **settings: Any) -> list[Any]:
    results = []
    for backend in ("hf", "vllm"):
        with open_engine(model, backend, max_model_len=512, **settings) as engine:
            results.append(run(engine))
    return results


def text_checkpoint(name: str, folder: Path) -> Path:
    kind, differences = TEXT_MODELS[name]
    config = getattr(importlib.import_module("transformers"), kind)(
        **{**SIZE, "vocab_size": vocabulary(TEXT), "bos_token_id": None, "pad_token_id": None, **differences}
    )
    return save(folder / name, config, TEXT)


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_text_architectures_give_the_same_ids_on_both(name: str, tmp_path: Path) -> None:
    model = text_checkpoint(name, tmp_path)
    hf, vllm = both_backends(model, lambda engine: engine.generate_text_batch(PROMPTS, OPTIONS))
    assert [r.token_ids for r in hf] == [r.token_ids for r in vllm]
    assert all(r.completion_tokens == 24 for r in hf)
    for a, b in zip(hf, vllm):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-3)


MAMBA_2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_expand": 2,
           "mamba_chunk_size": 16}  # fmt: skip
# architecture that keeps a state beside or in place of attention -> (config class, what differs from SIZE)
RECURRENT: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("MambaConfig", {"state_size": 8}),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "block_multiple_of": 8}),
    "bamba": ("BambaConfig", {"attn_layer_indices": [1], **MAMBA_2}),
    "falcon_h1": ("FalconH1Config", {"mamba_d_ssm": 128, **MAMBA_2}),
    "jamba": (
        "JambaConfig",
        {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "num_experts_per_tok": 1,
         "mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "use_mamba_kernels": False},
    ),
    "qwen3_next": (
        "Qwen3NextConfig",
        {"layer_types": ["linear_attention", "full_attention"], "linear_key_head_dim": 16, "linear_value_head_dim": 16,
         "linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
    ),
}  # fmt: skip


@pytest.mark.parametrize("decoder", [None, Joining()], ids=str)
@pytest.mark.parametrize("name", RECURRENT)
def test_ragged_rows_of_a_recurrent_model_are_what_each_is_alone(name: str, decoder: Any, tmp_path: Path) -> None:
    """A state cannot be continued from without positions: such a batch runs to its end."""
    kind, differences = RECURRENT[name]
    sizes = {**SIZE, "vocab_size": vocabulary(TEXT), "bos_token_id": None, "pad_token_id": None, **differences}
    config = getattr(importlib.import_module("transformers"), kind)(**sizes)
    requests = [{"prompt": f"Count to {n}." * (1 + n % 3), "seed": n} for n in range(8)]
    model = save(tmp_path / name, config, TEXT)
    with open_engine(model, "hf", max_model_len=512, dtype="float32", decoder=decoder) as engine:
        options = {"max_new_tokens": 24, "temperature": 1.0, "logprobs": 0, "stop": {"token_ids": [*range(0, 500, 20)]}}
        alone = [engine.generate_text_batch([request], options)[0] for request in requests]
        together = engine.generate_text_batch(requests, options)
    assert len({result.completion_tokens for result in alone}) > 2
    assert [result.token_ids for result in together] == [result.token_ids for result in alone]
    for result, expected in zip(together, alone):
        assert result.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_hf_answers_beside_a_vllm_that_runs_the_model_by_transformers_code_and_after_it(tmp_path: Path) -> None:
    """vLLM rewrites the class that it runs so; 0.32 does that with this one."""
    model = text_checkpoint("olmo2", tmp_path)
    transformers = importlib.import_module("transformers")

    def signature() -> Any:
        return inspect.signature(transformers.Olmo2Model)

    def ask(engine: GenerationEngine) -> list[tuple[int, ...]]:
        return [result.token_ids for result in engine.generate_text_batch(PROMPTS, OPTIONS)]

    arguments = signature()
    with open_engine(model, "hf", max_model_len=512) as before:
        expected = ask(before)
        for _ in range(2):
            with open_engine(model, "vllm", max_model_len=512) as vllm:
                assert ask(vllm) == ask(before) == expected
            with open_engine(model, "hf", max_model_len=512) as after:
                assert ask(after) == expected
    assert signature() == arguments
    assert not hasattr(transformers.PreTrainedModel, "do_not_compile")


IMAGE = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
         "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}  # fmt: skip


def qwen2_5_vl(transformers: Any, tokens: dict[str, int], text: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    rope = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}
    named = "rope_scaling" if transformers.__version__.startswith("4.") else "rope_parameters"
    text = {**text, "num_attention_heads": 2, "num_key_value_heads": 1, named: rope}
    vision = {"depth": 2, "hidden_size": 64, "num_heads": 2, "intermediate_size": 96, "out_hidden_size": 64,
              "fullatt_block_indexes": [0, 1], "window_size": 112}  # fmt: skip
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **tokens)
    image = {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 14, "merge_size": 2,
             "temporal_patch_size": 2, "size": {"shortest_edge": 3136, "longest_edge": 28 * 28 * 64}}  # fmt: skip
    return config, {**image, "processor_class": "Qwen2_5_VLProcessor"}


def llava(transformers: Any, tokens: dict[str, int], text: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    vision = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4,
              "image_size": 56, "patch_size": 14, "projection_dim": 64}  # fmt: skip
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**text),
        vision_config=transformers.CLIPVisionConfig(**vision),
        image_token_index=tokens["image_token_id"],
        image_seq_length=16,
    )
    image = {"image_processor_type": "CLIPImageProcessorFast", "size": {"shortest_edge": 56},
             "crop_size": {"height": 56, "width": 56}}  # fmt: skip
    return config, {**image, "processor_class": "LlavaProcessor"}


def llava_next(transformers: Any, tokens: dict[str, int], text: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Of each image as many patches as its form asks for."""
    config, image = llava(transformers, tokens, text)
    grids = [[56, 112], [112, 56], [112, 112]]
    config = transformers.LlavaNextConfig(
        text_config=config.text_config,
        vision_config=config.vision_config,
        image_token_index=tokens["image_token_id"],
        image_grid_pinpoints=grids,
    )
    kind = {"image_processor_type": "LlavaNextImageProcessorFast", "image_grid_pinpoints": grids}
    return config, {**image, **kind, "processor_class": "LlavaNextProcessor"}


def rename_weights(file: Path, old: str, new: str) -> None:
    """To the names of published checkpoints, which transformers 5 no longer writes and vLLM reads."""
    safetensors = importlib.import_module("safetensors.torch")
    weights = {name.replace(old, new, 1): tensor for name, tensor in safetensors.load_file(file).items()}
    safetensors.save_file(weights, file, {"format": "pt"})


def vlm_checkpoint(make: Callable[..., tuple[Any, dict[str, Any]]], folder: Path) -> Path:
    transformers = importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(VL)
    tokens = {name: tokenizer.convert_tokens_to_ids(token) for name, token in IMAGE.items()}
    text = {**SIZE, "vocab_size": vocabulary(TEXT), "bos_token_id": None, "pad_token_id": None}
    config, image = make(transformers, tokens, text)
    save(folder, config, VL)
    (folder / "preprocessor_config.json").write_text(json.dumps(image))
    processor = {"processor_class": image["processor_class"]}
    if make is not qwen2_5_vl:
        processor |= {"image_token": "<|image_pad|>", "patch_size": 14, "vision_feature_select_strategy": "default",
                      "num_additional_image_tokens": 1}  # fmt: skip
        rename_weights(folder / "model.safetensors", "vision_tower.", "vision_tower.vision_model.")
    else:
        shutil.copy(VL / "video_preprocessor_config.json", folder)
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return folder


@pytest.mark.parametrize("make", [qwen2_5_vl, llava], ids=lambda make: make.__name__)
def test_other_vlms_give_the_same_ids_and_image_tokens_on_both(make: Any, tmp_path: Path) -> None:
    model = vlm_checkpoint(make, tmp_path / make.__name__)
    requests: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": [
            *[{"type": "image", "image": drawing(colour, "circle", width=90, height=60)} for colour in colours],
            {"type": "text", "text": "What do you see?"}]}]}
        for colours in (["red"], ["blue", "green"])
    ]  # fmt: skip
    hf, vllm = both_backends(model, lambda engine: engine.generate_vlm_batch(requests, OPTIONS))
    assert [r.prompt_token_ids for r in hf] == [r.prompt_token_ids for r in vllm]
    if make is llava:  # Qwen2.5-VL's vision tower gives vLLM 0.32 other values on a CPU, with plain LLM.generate too
        assert [r.token_ids for r in hf] == [r.token_ids for r in vllm]
    with open_engine(model, "hf", max_model_len=512) as engine:
        chat = engine.generate_text_batch(PROMPTS, OPTIONS)
        assert all(r.completion_tokens == 24 for r in chat)
        processor: Any = engine.processor
        rendered = engine.render(requests[1]["messages"])
        pictures = [part["image"] for part in requests[1]["messages"][0]["content"][:2]]
        plain = processor(text=[rendered], images=[pictures], add_special_tokens=False)["input_ids"][0]
        assert hf[1].prompt_token_ids == tuple(plain)


def test_images_of_different_forms_are_in_a_batch_what_each_is_alone(tmp_path: Path) -> None:
    """LLaVA-NeXT's tensors have as many patches as an image needs: a batch of two forms failed whole."""
    model = vlm_checkpoint(llava_next, tmp_path / "llava_next")
    forms = [(60, 60), (120, 50), (50, 120), (110, 110)]
    drawings = [drawing("red", "circle", width=width, height=height) for width, height in forms]
    pairs = [[image] for image in drawings] + [drawings[:2], drawings[2:]]
    requests = [{"prompt": "<|image_pad|>" * len(images) + "What?", "images": images} for images in pairs]

    def run(engine: GenerationEngine) -> list[Any]:
        together = engine.generate_vlm_batch(requests, OPTIONS)
        alone = [engine.generate_vlm_batch([request], OPTIONS)[0] for request in requests]
        assert [result.token_ids for result in together] == [result.token_ids for result in alone]
        return together

    hf, vllm = both_backends(model, run)
    assert len({len(result.prompt_token_ids) for result in hf}) > 2
    assert [r.prompt_token_ids for r in hf] == [r.prompt_token_ids for r in vllm]
    assert [r.token_ids for r in hf] == [r.token_ids for r in vllm]


def test_a_pixel_budget_where_there_is_none_is_refused(tmp_path: Path) -> None:
    model = vlm_checkpoint(llava, tmp_path / "llava")
    request = {"prompt": "<|image_pad|>", "images": [drawing("red", "circle")], "vlm": {"max_pixels": 4096}}
    with (
        open_engine(model, "hf", max_model_len=512) as engine,
        pytest.raises(UnsupportedError, match="no pixel budget"),
    ):
        engine.generate_vlm_batch([request])
