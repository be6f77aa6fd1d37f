"""`python -m parity doctor` and `generate`: what works on this machine, by trying; one answer for a quick look."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import gen_engine
from gen_engine import GenEngineError, GenerationOptions, OptionError, load
from parity.cli.refusals import REFUSALS
from parity.goldens.safe_text import say
from parity.goldens.store import environment
from parity.record.inventory import run_list

PROBES = {  # library -> (backends that need it, what prints its version and its device)
    "torch": ("hf vllm", "import torch as m; print(m.__version__, '|', 'cuda' if m.cuda.is_available() else 'cpu')"),
    "transformers": ("hf vllm", "import transformers as m; m.AutoModelForCausalLM; print(m.__version__, '|')"),
    "PIL": ("", "import PIL as m, PIL.Image; print(m.__version__, '|')"),
    "vllm": (
        "vllm",
        "import vllm as m; from vllm.platforms import current_platform as p; m.LLM; "
        "from parity.environment.kernels import DTYPE, biases; d = p.device_type; "
        "print(m.__version__, '|', ', '.join([d, *(b.brief for b in biases('vllm', DTYPE))])); "
        "assert d, 'no device that vllm was built for'",
    ),
}
BACKENDS = ("hf", "vllm")
DEVICE_OF = {"hf": "torch", "vllm": "vllm"}  # the library that says what a backend runs on


# == doctor ==


STEP = "parity doctor: "  # begins the line that names what is tried next
ANSWER = "an answer"


@dataclass(frozen=True)
class Tried:
    """What became of a backend.   libraries: name -> its version and device, of those that import, in their order."""

    libraries: dict[str, str]
    failed: str = ""  # the library that does not import, or ANSWER
    error: str = ""  # the last line that was said

    @property
    def works(self) -> bool:
        return not self.error


def try_backend(backend: str, model: str | None) -> Tried:
    """Import what a backend needs and, given a checkpoint, let it answer: in a process of its own, where a broken
    library can do no harm."""
    steps = {name: code for name, (needed, code) in PROBES.items() if not needed or backend in needed.split()}
    if model is not None:
        asked = ["generate", "--model", model, "--backend", backend, "--max-new-tokens", "4", "Hello"]
        steps[ANSWER] = f"from parity.__main__ import main\nraise SystemExit(main({asked}))"
    script = "\n".join(f"print({STEP + name!r}, flush=True)\n{code}" for name, code in steps.items())
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    reached = [part.strip().splitlines() for part in done.stdout.split(STEP)[1:]]  # the name of a step, what it said
    versions = {lines[0]: lines[-1] for lines in reached if lines[0] in PROBES}
    if done.returncode == 0:
        return Tried(versions)
    error = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    last = reached[-1][0] if reached else ""
    return Tried({name: said for name, said in versions.items() if name != last}, last, error)


def backend_line(backend: str, tried: Tried, model: str | None) -> tuple[str, str, str]:
    if not tried.works:
        where = f"{tried.failed}: " if tried.failed in PROBES else ""
        return f"backend {backend}", "does not work", f"{where}{tried.error}"
    if model is not None:
        return f"backend {backend}", "works", f"generated with {model}"
    device = tried.libraries[DEVICE_OF[backend]].rpartition("|")[2].strip()
    return f"backend {backend}", "works", f"on {device}: its libraries import; --model M tries a checkpoint"


def library_lines(tried: Iterable[Tried]) -> list[tuple[str, str, str]]:
    """Each library once: its version and device, or why it does not import."""
    found: dict[str, tuple[str, str]] = {}
    for one in tried:
        for name, said in one.libraries.items():
            version, _, device = said.partition("|")
            found[name] = version.strip(), device.strip()
        if one.failed in PROBES:
            found.setdefault(one.failed, ("-", one.error))
    return [(name, *found[name]) for name in PROBES if name in found]


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns as wide as their widest word; the last one as it is."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(row, widths)).rstrip() for row in rows)


def run_doctor(args: argparse.Namespace) -> int:
    """What this machine can do, what each backend refuses, which goldens there are."""
    backends = args.backend.split(",")
    for backend in backends:
        if backend not in BACKENDS:
            raise OptionError(f"no backend {backend!r}", fix="known: " + ", ".join(BACKENDS))
    # One after the other: two models may not fit, and vLLM refuses to begin where another takes memory.
    tried = {backend: try_backend(backend, args.model) for backend in backends}
    rows = [("gen_engine", gen_engine.__version__, str(Path(gen_engine.__file__ or "").resolve()))]
    rows.append(("python", sys.version.split()[0], f"{sys.platform}, {os.cpu_count()} cores"))
    print(table([*rows, *library_lines(tried.values())]))
    print(table([backend_line(backend, one, args.model) for backend, one in tried.items()]))
    print("what a backend, or a release of a library, refuses before anything runs:")
    print(table([(f"  {r.releases or r.backend}", r.what, r.fix) for r in REFUSALS]))
    for name in ("torch", "transformers"):
        with contextlib.suppress(ImportError):
            __import__(name)
    print(f"goldens under {args.goldens}, for an environment of " + " ".join(map(" ".join, environment().items())))
    goldens = run_list(args)
    return goldens if all(one.works for one in tried.values()) else 1


# == generate ==


def flag_fields() -> list[Any]:
    """The fields of GenerationOptions that are one plain value: each is a flag, with its default."""
    fields = [f for f in dataclasses.fields(GenerationOptions) if f.default is not dataclasses.MISSING]
    return [f for f in fields if f.name not in ("logits", "replay")]  # a tensor and lists are nothing for a shell


def run_generate(args: argparse.Namespace) -> int:
    """One answer from the shell: the text on stdout, the figures on stderr."""
    try:
        result, seconds = generated(args)
    except GenEngineError as error:
        say(f"parity: {type(error).__name__}: {error}", sys.stderr)
        return 2 if isinstance(error, OptionError) else 1
    if args.json:
        print(json.dumps({**dataclasses.asdict(result), "seconds": round(seconds, 3)}, ensure_ascii=False))
        return 0
    print(*[sample.text for sample in result.samples or [result]], sep="\n")
    why = result.finish_reason + (f" at {result.stop_reason!r}" if result.stop_reason is not None else "")
    counts = f"{result.prompt_tokens} prompt tokens, {result.completion_tokens} generated in {seconds:.2f} s"
    print(f"[{result.backend}: {counts}, ended by {why}]", file=sys.stderr)
    return 0


def generated(args: argparse.Namespace) -> tuple[gen_engine.GenerationResult, float]:
    """(answer, seconds)."""
    options = {f.name: getattr(args, f.name) for f in flag_fields()}
    content: list[dict[str, Any]] = [{"type": "image", "image": file} for file in args.image]
    content.append({"type": "text", "text": args.prompt})
    messages = [{"role": "user", "content": content if args.image else args.prompt}]
    request = {"messages": messages, "chat": {"enable_thinking": args.enable_thinking}}
    with load(args.model, backend=args.backend, dtype=args.dtype, max_model_len=args.max_model_len) as engine:
        began = time.perf_counter()
        verb = engine.generate_vlm_batch if args.image else engine.generate_text_batch
        [result] = verb([request], {**options, "stop": {"strings": args.stop}})
        return result, time.perf_counter() - began


# == Command line ==


def add_doctor(sub: Any) -> None:
    about = "What works on this machine, by trying; what each backend refuses; which goldens there are, and are broken."
    parser = sub.add_parser(
        "doctor",
        help="versions, backends by trying, goldens, what is broken",
        description=about,
        epilog="example: python -m parity doctor --model golden/models/tiny-qwen3. "
        "Exit code 1 if a backend asked for does not work, else that of `list`.",
    )
    parser.add_argument("--model", help="a checkpoint: also generate with it on each backend")
    parser.add_argument("--backend", default="hf,vllm", help="which must work (default hf,vllm)")
    parser.set_defaults(run=run_doctor, cases=False)


def add_generate(sub: Any) -> None:
    example = "example: python -m parity generate --model M --backend vllm --image cat.png 'What is this?'"
    parser = sub.add_parser("generate", help="one answer, for a quick look", epilog=example)
    add = parser.add_argument
    add("prompt", help="the user's message")
    add("--model", required=True, help="a checkpoint directory or a hub name")
    add("--backend", default=gen_engine.ModelLoadConfig("-").backend, choices=get_args(gen_engine.Backend))
    add("--dtype", choices=gen_engine.DTYPES)
    add("--max-model-len", type=int, metavar="int", help="the context window, in tokens")
    add("--image", action="append", default=[], metavar="FILE", help="a picture; may be repeated")
    add("--stop", action="append", default=[], metavar="STRING", help="ends the text; may be repeated")
    add("--enable-thinking", action="store_true", help="let the model think first")
    add("--json", action="store_true", help="the whole result as one JSON line")
    for f in flag_fields():
        name, kind = "--" + f.name.replace("_", "-"), float if str(f.type).startswith("float") else int
        if f.default is False:
            add(name, action="store_true")
        else:
            add(name, type=kind, default=f.default, metavar=kind.__name__, help=f"default {f.default}")
    parser.set_defaults(run=run_generate)
