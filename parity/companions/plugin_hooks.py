# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Plugins of a call, checked and called: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="plugin_hooks"`, and write

    from acme.llm.gen_engine import Plugin

    class AtFirstComma(Plugin):
        def should_stop(self, token_ids, text):
            return "," in text

    engine.generate_text_batch(requests, plugins=[AtFirstComma()])

gen_engine finds this file beside itself. A plugin is code of the caller: what it raises or returns
wrongly is an OptionError with its name, and costs the rows that it was called for.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["Hooks", "adopt_plugins"]

HOOKS = ("should_stop", "logits", "post_decode")
HF_HOOKS = ("hf_stopping_criteria", "hf_logits_processors")
LISTS = ("backends", "kinds", *HF_HOOKS)

REFUSALS = (
    ge.Refusal(
        "vllm",
        "logits plugins without its hook",
        lambda asked: not asked.config.logits_hooks and asked.plugins.named("logits"),
        ge.WITH_HOOK,
    ),
    ge.Refusal(
        "vllm",
        "plugins that hold transformers objects",
        lambda asked: any(map(asked.plugins.named, HF_HOOKS)),
        "write should_stop and logits, or use backend='hf'",
    ),
)

# == What a caller gave, checked ==


def call_hook(plugin: str, what: str, hook: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """What a plugin's hook returns. Raises OptionError, whatever it raises: it is user code."""
    try:
        return hook(*args, **named)
    except Exception as error:
        problem = f"plugin {plugin!r}: {what} raised {ge.short_repr(error)}"
        raise ge.OptionError(problem, fix="see the cause") from error


def check_hooks(plugin: ge.Plugin, kind: str) -> None:
    """Raise OptionError for a plugin without a hook, or with one that cannot be called."""
    hooks = {name: ge.as_sequence(getattr(plugin, name)) for name in (*HOOKS, *HF_HOOKS)}
    if not any(hooks.values()):
        problem = f"{kind} has no hook of a plugin"
        raise ge.OptionError(problem, fix="give it " + ", ".join(HOOKS))
    for name, functions in hooks.items():
        if not all(map(callable, functions)):
            problem = f"plugin {plugin.name!r}: {name} cannot be called"
            raise ge.OptionError(problem, fix="make it a method or None")


def adopt_plugin(source: Any) -> ge.Plugin:
    """Any object with a plugin's names as a Plugin. Raises OptionError for an invalid one."""
    if isinstance(source, type):
        problem = f"plugin {source.__name__} is a class"
        raise ge.OptionError(problem, fix=f"make one: {source.__name__}()")
    plugin = ge.Plugin()
    for name in ("name", *HOOKS, *LISTS):
        value = call_hook(plugin.name, name, getattr, source, name, getattr(ge.Plugin, name))
        if name in LISTS and not isinstance(value, (list, tuple)):
            problem = f"plugin {plugin.name!r}: {name} is no list"
            raise ge.OptionError(problem, fix="make it a list or a tuple")
        setattr(plugin, name, value)
    check_hooks(plugin, type(source).__name__)
    hook = plugin.logits
    if hook is not None:
        signature = call_hook(plugin.name, "logits", inspect.signature, hook)
        if "prompt_token_ids" not in signature.parameters:
            plugin.logits = lambda token_ids, logits, **_: hook(token_ids, logits)
    return plugin


def adopt_plugins(plugins: Sequence[Any]) -> Hooks:
    """The plugins of a call. Raises OptionError for an invalid one."""
    return Hooks(adopt_plugin(plugin) for plugin in plugins)


# == Their hooks, called ==


@contextlib.contextmanager
def fail_rows_on(watches: Iterable[ge.RowWatch]) -> Iterator[None]:
    """Make an OptionError raised inside, by a plugin, the error of those rows that still run."""
    try:
        yield
    except ge.OptionError as error:
        for watch in watches:
            if not watch.over:
                watch.fail(error)


def logits_of(
    plugin: str, what: str, hook: Callable[..., Any], like: Any, *args: Any, **named: Any
) -> Any:
    """What a plugin makes of logits. Raises OptionError for what is no such tensor.

    like: [.., vocabulary], the logits before."""
    torch = ge.lazy_import("torch")
    logits = call_hook(plugin, what, hook, *args, **named)
    is_valid = torch.is_tensor(logits) and logits.is_floating_point()
    for name in ("shape", "device", "layout"):
        is_valid = is_valid and getattr(logits, name) == getattr(like, name)
    if is_valid:
        logits = logits.to(like.dtype)
        is_valid = bool(logits.amax(-1).isfinite().all())
    if not is_valid:
        problem = f"plugin {plugin!r}: {what} gave {ge.short_repr(logits)}"
        fix = "return a float tensor of the same shape and device, without NaN, not all of it -inf"
        raise ge.OptionError(problem, fix=fix)
    return logits


class Hooks(tuple[ge.Plugin, ...]):
    """The plugins of a call, with what a Plan calls of them."""

    def named(self, name: str) -> list[tuple[str, Any]]:
        """(plugin's name, hook) of all hooks of this kind, in order."""
        found = []
        for plugin in self:
            found += [(plugin.name, hook) for hook in ge.as_sequence(getattr(plugin, name))]
        return found

    def refusal(self, backend: str, kind: str) -> ge.UnsupportedError | None:
        """The error of the first plugin that is not for this backend or kind of request."""
        for plugin in self:
            for wanted, names in ((backend, plugin.backends), (kind, plugin.kinds)):
                if wanted not in names:
                    problem = f"plugin {plugin.name!r} is not for {wanted}"
                    return ge.UnsupportedError(problem, fix=f"it is for {ge.short_repr(names)}")
        return None

    def end_row(self, watch: ge.RowWatch) -> bool:
        """Whether a plugin ends the row at its newest token, or fails it."""
        hooks = self.named("should_stop")
        if not hooks or len(watch.ids) < watch.plan.options.min_new_tokens:
            return False
        ids = tuple(watch.ids)
        text = watch.plan.decode(watch.ids)
        with fail_rows_on([watch]):
            for name, hook in hooks:
                answer = call_hook(name, "should_stop", hook, ids, text)
                if call_hook(name, "should_stop", bool, answer):
                    why = str(answer) if isinstance(answer, str) else name
                    watch.plugin_end = ge.PluginEnd(len(ids), why)
                    return True
        return watch.over

    def change_logits(
        self, watch: ge.RowWatch, prompt_ids: Sequence[int], token_ids: Sequence[int], logits: Any
    ) -> Any:
        """One row's logits after the plugins, each of which gets a copy; one that fails, fails the
        row. logits: [vocabulary]."""
        for name, hook in self.named("logits"):
            shown = (tuple(token_ids), logits.clone())
            with fail_rows_on([watch]):
                logits = logits_of(
                    name, "logits", hook, logits, *shown, prompt_token_ids=tuple(prompt_ids)
                )
        return logits

    def post_decode(self, text: str) -> str:
        """A result's text after the plugins. Raises OptionError for one that gives no text."""
        for name, hook in self.named("post_decode"):
            text = call_hook(name, "post_decode", hook, text)
            if not isinstance(text, str):
                problem = f"plugin {name!r}: post_decode gave {type(text).__name__}"
                raise ge.OptionError(problem, fix="return the text")
        return text

    # transformers' own objects: they see the padded batch, and fail all of it

    def hf_processors(self, rows: Sequence[ge.Row]) -> list[Callable[[Any, Any], Any]]:
        """What calls the plugins' own logits processors, in order.   rows: those of the batch."""
        chain: list[Callable[[Any, Any], Any]] = []
        for name, hook in self.named("hf_logits_processors"):
            call = functools.partial(process_rows, name, hook, rows)
            chain.append(lambda ids, scores, call=call: call(ids, scores))  # type: ignore[misc]
        return chain

    def stop_rows(self, rows: Sequence[ge.Row], input_ids: Any) -> None:
        """End the rows that stopping criteria end. input_ids: [rows, all tokens so far]."""
        for name, criterion in self.named("hf_stopping_criteria"):
            with fail_rows_on(row.watch for row in rows):
                stop_by(name, criterion, rows, input_ids)


def process_rows(name: str, processor: Any, rows: Sequence[ge.Row], ids: Any, scores: Any) -> Any:
    """The scores of a batch after one logits processor, which sees the rows that run. scores:
    [rows, vocabulary]."""
    running = [index for index, row in enumerate(rows) if not row.watch.over]
    own = scores[running]
    with fail_rows_on(row.watch for row in rows):
        changed = logits_of(name, "hf_logits_processors", processor, own, ids[running], own.clone())
        scores = scores.clone()  # the original is kept, as the raw distribution
        scores[running] = changed
    return scores


def stop_by(name: str, criterion: Any, rows: Sequence[ge.Row], input_ids: Any) -> None:
    """End the rows that one stopping criterion ends."""
    flags = call_hook(name, "hf_stopping_criteria", criterion, input_ids, None)

    def flags_of_rows() -> list[tuple[ge.Row, bool]]:
        return list(zip(rows, map(bool, flags), strict=True))

    for row, stops in call_hook(name, "hf_stopping_criteria", flags_of_rows):
        if stops and not row.watch.over:
            row.watch.over = True
            row.watch.plugin_end = ge.PluginEnd(len(row.watch.ids), name)
