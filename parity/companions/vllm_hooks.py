# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""What vLLM calls with each row's logits: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="vllm_hooks"`, and write

    engine = load("Qwen/Qwen3-8B", backend="vllm", logits_hooks=True)
    engine.generate_text_batch(requests, {"logits": True}, plugins=[MyLogitsPlugin()])

gen_engine finds this file beside itself. On vLLM logits plugins, full logits, forced decoding and
no_repeat_ngram_size need it; transformers does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["logits_hook", "row_hooks_class"]

HOOK = "gen_engine"  # among a request's extra arguments


def row_hooks_class() -> Any:
    """A class of vLLM's logits processors that calls the hook of each request."""
    members = {
        "is_argmax_invariant": lambda self: False,
        "new_req_logits_processor": lambda self, params: (params.extra_args or {}).get(HOOK),
    }
    base = ge.lazy_import("vllm.v1.sample.logits_processor").AdapterLogitsProcessor
    return type("RowHooks", (base,), members)


def logits_hook(plan: ge.Plan, watch: ge.RowWatch) -> dict[str, Callable[..., Any]] | None:
    """A request's extra arguments, with a function for vLLM to call with the row's logits: it keeps
    them where they are requested, then runs what changes them. None where it has nothing to do.

    A function and no object: vLLM copies parameters deeply, and functions not at all."""
    if not plan.changes_rows and not plan.options.logits:
        return None

    def act(prompt_ids: Sequence[int], token_ids: Sequence[int], logits: Any) -> Any:
        if plan.options.logits:
            # vLLM calls it for each part of a long prompt: the last call counts.
            watch.logits[len(token_ids) :] = [logits.float().cpu().clone()]
        return ge.own_logits(watch, prompt_ids, token_ids, logits)

    return {HOOK: act}
