"""Which of vLLM's own arguments a caller may pass, which the engine owns, and which are refused: every
argument of the installed release is in one of three tables, so that a new one is looked at."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
from typing import Any

import pytest

import gen_engine
from gen_engine import NOT_PASSED, Asked, GenerationOptions, ModelLoadConfig, OptionError, refusal_of

from ..conftest import ROOT, TEXT, VL, Load, open_engine

# They choose speed, memory, hardware, numerics or logging. What a result means stays.
PASSED = set(
    """
    enable_return_routed_experts return_sampling_mask served_model_name enable_prompt_embeds
    tokenizer_mode allowed_local_media_path allowed_media_domains
    safetensors_load_strategy safetensors_prefetch_num_threads
    safetensors_prefetch_block_size load_format config_format kv_cache_dtype seed
    cudagraph_capture_sizes max_cudagraph_capture_size ir_op_priority
    distributed_executor_backend pipeline_parallel_size master_addr master_port nnodes
    node_rank distributed_timeout_seconds cpu_distributed_timeout_seconds numa_bind
    numa_bind_nodes numa_bind_cpus device_ids tensor_parallel_size
    prefill_context_parallel_size decode_context_parallel_size dcp_comm_backend
    dcp_q_replicate dcp_kv_cache_interleave_size cp_kv_cache_interleave_size
    data_parallel_size data_parallel_rank data_parallel_start_rank data_parallel_size_local
    data_parallel_address data_parallel_rpc_port data_parallel_hybrid_lb
    data_parallel_external_lb data_parallel_multi_port_external_lb data_parallel_backend
    enable_hc_sp enable_expert_parallel enable_batch_sharded_sampling
    enable_ep_weight_filter moe_backend linear_backend sparse_indexer_topk_backend
    all2all_backend enable_elastic_ep elastic_ep_max_dp_size enable_dbo ubatch_size
    dbo_decode_token_threshold dp_sync_interval dbo_prefill_token_threshold
    disable_nccl_for_dp_synchronization eplb_config enable_eplb expert_placement_strategy
    _api_process_count _api_process_rank max_parallel_loading_workers block_size
    enable_prefix_caching prefix_caching_hash_algo prefix_cache_retention_interval
    disable_sliding_window disable_cascade_attn offload_backend cpu_offload_gb
    cpu_offload_params offload_group_size offload_num_in_group offload_prefetch_step
    offload_params gpu_memory_utilization kv_cache_memory_bytes max_num_batched_tokens
    max_num_scheduled_tokens long_prefill_token_threshold
    long_prefill_token_threshold_adaptive max_num_seqs max_num_active_seqs
    max_num_queued_reqs max_num_queued_tokens use_fp64_gumbel enable_trace_replay
    disable_log_stats aggregate_engine_logging hf_overrides
    model_class_overrides quantization quantization_config allow_deprecated_quantization
    enforce_eager disable_custom_all_reduce enable_shm_tensor_arena language_model_only
    limit_mm_per_prompt enable_mm_embeds interleave_mm_strings media_io_kwargs
    mm_processor_cache_gb mm_processor_cache_type mm_hasher_algorithm
    mm_shm_cache_max_object_size_mb mm_encoder_only mm_encoder_tp_mode
    mm_encoder_attn_backend mm_encoder_attn_dtype mm_encoder_fp8_scale_path
    mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin io_processor_plugin
    renderer_num_workers skip_mm_profiling video_pruning_rate video_pruning_method
    mm_tensor_ipc mm_processor_device mm_ipc_gpu_memory_gb mm_device_do_normalize
    fully_sharded_loras max_cpu_loras lora_dtype lora_target_modules
    enable_tower_connector_lora specialize_active_lora enable_mixed_moe_lora_format
    enable_moe_shared_loras max_lora_cls_labels ray_workers_use_nsight
    num_gpu_blocks_override model_loader_extra_config ignore_patterns enable_chunked_prefill
    disable_chunked_mm_input scheduler_reserve_full_isl prefill_schedule_interval watermark
    disable_hybrid_kv_cache_manager structured_outputs_config aux_output_config
    reasoning_parser_plugin diffusion_config show_hidden_metrics_for_version
    otlp_traces_endpoint collect_detailed_traces per_request_spec_decode_metrics
    kv_cache_metrics kv_cache_metrics_sample custom_histogram_buckets cudagraph_metrics
    enable_layerwise_nvtx_tracing enable_mfu_metrics enable_logging_iteration_details
    jit_monitor_mode jit_monitor_verbose enable_mm_processor_stats scheduling_policy
    scheduler_cls pooler_config compilation_config attention_config engram_config
    mamba_config kernel_config enable_flashinfer_autotune worker_cls worker_extension_cls
    profiler_config logging_config log_level log_config_file kv_transfer_config
    kv_events_config ec_transfer_config ec_manager_config reasoning_config enable_sleep_mode
    sleep_mode_offload_cudagraph sleep_preserve_parameter_names enable_cumem_allocator
    enable_nccl_comm_suspend model_impl attention_backend kv_cache_dtype_skip_layers
    mamba_cache_dtype mamba_ssm_cache_dtype mamba_block_size prefix_match_unit
    mamba_cache_mode enable_mamba_shared_prefix_checkpoint replayssm_buffer_len
    use_replayssm mamba_backend mamba_ssu_algorithm enable_mamba_cache_stochastic_rounding
    mamba_cache_philox_rounds additional_config use_tqdm_on_load pt_load_map_location
    logits_processors async_scheduling stream_interval kv_sharing_fast_prefill
    swa_bounded_replay optimization_level performance_mode fault_tolerance_config
    enable_fault_tolerance kv_offloading_size kv_offloading_backend tokens_only
    shutdown_timeout weight_transfer_config fail_on_environ_validation gdn_prefill_backend
    kda_prefill_backend kda_decode_backend
    """.split()  # noqa: SIM905 - a table
)

# What is refused and is no argument of the newest vLLM: from_pretrained's, and what older releases had.
OF_OTHERS = set(
    """
    attn_implementation torch_dtype config output_loading_info task
    token use_auth_token cache_dir local_files_only force_download proxies subfolder
    """.split()  # noqa: SIM905 - a table
)

# Of SamplingParams: what `sampling_params` sets for each row.
SET = set(
    """
    temperature top_p top_k min_p repetition_penalty seed stop_token_ids ignore_eos
    max_tokens min_tokens logprobs detokenize output_kind skip_clone structured_outputs
    extra_args
    """.split()  # noqa: SIM905 - a table
)

# What stays neutral: no option of ours sets it, and no checkpoint can.
NEUTRAL = set(
    """
    n presence_penalty frequency_penalty watermarking stop prompt_logprobs
    prompt_logprob_token_ids prompt_logprob_start logprob_token_ids flat_logprobs
    skip_special_tokens spaces_between_special_tokens include_stop_str_in_output
    stream_interval output_text_buffer_length logit_bias allowed_token_ids bad_words
    skip_reading_prefix_cache thinking_token_budget repetition_detection
    routed_experts_prompt_start trace_decode_token_ids
    """.split()  # noqa: SIM905 - a table
)


def test_every_argument_of_vllm_is_passed_owned_or_refused() -> None:
    arguments = importlib.import_module("vllm.engine.arg_utils").EngineArgs
    names = {field.name for field in dataclasses.fields(arguments)}
    assert names - PASSED - NOT_PASSED.keys() == set()
    assert PASSED & NOT_PASSED.keys() == set()
    assert NOT_PASSED.keys() - names - OF_OTHERS == set()


def test_every_sampling_parameter_of_vllm_is_set_or_neutral() -> None:
    params: Any = importlib.import_module("vllm").SamplingParams
    names = {name for name in params.__struct_fields__ if not name.startswith("_")}
    assert names - SET - NEUTRAL == set()
    assert set() == SET & NEUTRAL


@pytest.mark.parametrize("name", NOT_PASSED)
@pytest.mark.parametrize("field", ["hf_kwargs", "vllm_kwargs"])
def test_a_keyword_that_changes_what_a_result_means_is_refused(field: str, name: str) -> None:
    fix = NOT_PASSED[name]
    with pytest.raises(OptionError, match=f"{field} sets .{name}.. {fix[0].upper()}{re.escape(fix[1:])}"):
        ModelLoadConfig("m", **{field: {name: "x"}})  # type: ignore[arg-type]


def arguments_of(**settings: Any) -> dict[str, Any]:
    config = ModelLoadConfig(str(TEXT), backend="vllm", **settings)
    return gen_engine.vllm_arguments(config, gen_engine.read_checkpoint(config))


def test_vllm_loads_what_the_settings_name() -> None:
    found = arguments_of(revision="r1", trust_remote_code=True, max_model_len=9, dtype="bfloat16")
    named = ("revision", "trust_remote_code", "max_model_len", "dtype", "generation_config")
    assert [found[name] for name in named] == ["r1", True, 9, "bfloat16", "vllm"]
    assert arguments_of()["dtype"] == "float32", "the checkpoint's own: vLLM's auto would make bfloat16 of it"


def test_vllm_kwargs_win_over_defaults_and_stand_behind_the_hook() -> None:
    own = object()
    found = arguments_of(vllm_kwargs={"enforce_eager": "mine", "logits_processors": [own]}, logits_hooks=True)
    assert found["enforce_eager"] == "mine"
    assert len(found["logits_processors"]) == 2 and found["logits_processors"][1] is own


def test_a_cpu_computes_prompts_whole_unless_the_caller_says_otherwise() -> None:
    """For a prompt in parts vLLM turns the generator of a sampled row back, which fails on a CPU."""
    assert arguments_of()["enable_chunked_prefill"] is False
    assert arguments_of(max_model_len=64, vllm_kwargs={"max_num_batched_tokens": 64})["enable_chunked_prefill"] is False
    for kwargs in (
        {"max_num_batched_tokens": 48},
        {"enable_chunked_prefill": True},
        {"long_prefill_token_threshold": 32},
    ):
        assert arguments_of(max_model_len=64, vllm_kwargs=kwargs).get("enable_chunked_prefill") in (None, True)
        config = ModelLoadConfig(str(TEXT), backend="vllm", max_model_len=64, vllm_kwargs=kwargs)
        refused = refusal_of(Asked(config, GenerationOptions(temperature=1.0)))
        assert refused is not None and "vllm cannot do samples on a CPU" in str(refused)
        assert refusal_of(Asked(config, GenerationOptions())) is None


def test_the_environment_in_which_vllm_is_made_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    multiprocessing, second = "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_USE_V2_MODEL_RUNNER"
    monkeypatch.delenv(multiprocessing, raising=False)
    monkeypatch.setenv(second, "1")
    with gen_engine.in_process(first_runner=True):
        assert (os.environ[multiprocessing], os.environ[second]) == ("0", "1"), "the caller's own stays"
    assert multiprocessing not in os.environ and os.environ[second] == "1"


def test_loading_answering_and_closing_leave_the_environment_as_it_was(
    shared: Load, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VLLM_COMPUTE_NANS_IN_LOGITS stayed, for every other use of vLLM in the process."""
    monkeypatch.delenv("VLLM_COMPUTE_NANS_IN_LOGITS", raising=False)
    shared(TEXT, backend)  # libraries set variables of their own with the first engine of a process

    def variables() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name != "VLLM_DIST_IDENT"}  # an engine's, by vLLM

    before = variables()
    with open_engine(TEXT, backend) as engine:
        assert variables() == before
        engine.generate_text_batch([{"prompt": "a"}], {"max_new_tokens": 2})
        assert variables() == before
    assert variables() == before


def test_an_engine_takes_away_no_variable_that_another_one_wants(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two threads to end took away what the steps of the other one read."""
    counting = "VLLM_COMPUTE_NANS_IN_LOGITS"
    monkeypatch.delenv(counting, raising=False)
    one, other = (shared(model, "vllm").bare(read_only=True) for model in (TEXT, VL))
    with one:
        other.__enter__()
    assert os.environ.get(counting) == "1"
    other.__exit__(None, None, None)
    assert counting not in os.environ


def test_what_can_fail_fails_before_vllms_engine_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing shut that engine down."""

    def fail(adapters: Any) -> Any:
        raise ValueError("an adapter")

    def made(**arguments: Any) -> Any:
        raise AssertionError("it was made")

    monkeypatch.setattr(gen_engine.companions.adapters, "vllm_requests", fail)
    monkeypatch.setattr(importlib.import_module("vllm"), "LLM", made)
    adapter = next((ROOT / "golden/models/random-adapters").iterdir())
    with pytest.raises(gen_engine.LoadError, match="an adapter"):
        open_engine(TEXT, "vllm", adapters={"one": adapter})


def test_weights_that_cannot_be_compared_without_accelerate_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = gen_engine.read_checkpoint(ModelLoadConfig(str(TEXT), backend="vllm"))
    monkeypatch.setattr(gen_engine, "find_spec", lambda name: None)
    gen_engine.check_weights(checkpoint)
    assert "weights that are missing cannot be found without accelerate; install it" in caplog.text
