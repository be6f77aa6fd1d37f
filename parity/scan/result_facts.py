"""What a block does with the result: decoding, slice of the prompt, strip and cuts."""

from __future__ import annotations

from parity.scan.context import Context
from parity.scan.origins import REMOTE, Fact, fact_of, literal, not_said
from parity.scan.values import (
    Call,
    options_of,
    plain,
)


class ResultFacts(Context):
    def decode_setting(self, name: str) -> Fact | None:
        for call, scope in self.outcome.decodes:
            settings = self.evaluator.keywords(call, self.evaluator.frame(scope))
            if name in settings.entries:
                return fact_of(settings.entries[name], not_said("the library (False)"))
            if settings.rest:
                return fact_of(settings.rest[0], not_said("the library (False)"))
        return None

    def read_skip_special_tokens(self) -> Fact:
        library = self.block.library
        if self.block.is_remote:
            return REMOTE
        if library == "vllm":
            return self.setting(not_said("vLLM (True)"), "skip_special_tokens")
        said = self.streamer_setting("skip_special_tokens")
        said = said or self.decode_setting("skip_special_tokens")
        if said is not None:
            return said
        if library == "pipeline":
            return self.setting(not_said("the pipeline (True)"), "skip_special_tokens")
        is_decoded = bool(self.outcome.decodes)
        return not_said("the library (False)" if is_decoded else "nobody: nothing is decoded here")

    def streamer_setting(self, name: str) -> Fact | None:
        value = self.block.settings.entries.get("streamer")
        for option in options_of(value) if value is not None else ():
            inner = plain(option)
            if isinstance(inner, Call):
                settings = self.evaluator.keywords(inner.node, inner.frame)
                default = not_said("the library (False)")
                if (
                    name == "skip_prompt"
                    and name not in settings.entries
                    and len(inner.node.args) > 1
                ):
                    return fact_of(self.evaluator.value(inner.node.args[1], inner.frame), default)
                return fact_of(settings.entries.get(name), default)
        return None

    def read_prompt_slice(self) -> Fact:
        block = self.block
        if block.is_remote:
            return REMOTE
        if block.library in ("vllm", "score"):
            return literal("none")
        if block.library == "pipeline":
            return self.pipeline_slice()
        skipped = self.streamer_setting("skip_prompt")
        if skipped is not None and skipped.value is True:
            return literal("by_len", "by the streamer")
        if "by_len" in self.outcome.slices:
            return literal("by_len")
        return literal("by_text" if self.outcome.slices else "none")

    def pipeline_slice(self) -> Fact:
        full = self.setting(not_said("the pipeline (True)"), "return_full_text")
        if full.is_literal and full.value is False:
            return literal("by_text", "by the pipeline")
        return literal("by_text" if self.outcome.slices else "none")

    def read_strip(self) -> Fact:
        if self.block.library == "score":
            return literal(False)
        if self.outcome.strips and not self.outcome.is_strip_certain:
            return Fact(None, "computed", "stripped in one branch")
        return literal(bool(self.outcome.strips))

    def read_cuts_by_hand(self) -> Fact:
        cuts = list(dict.fromkeys(self.outcome.cuts))
        if not cuts or self.block.library == "score":
            return literal(False)
        return literal(True, ", ".join(cuts[:3]))
