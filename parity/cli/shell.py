"""`python -m parity doctor` and `generate`: what works on this machine, by trying; one answer for a quick look."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
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
TIME_LIMIT = 600.0  # seconds for one backend: vLLM compiles for minutes on its first start
WIDTHS = (14, 14)  # columns of the first words of a line; lines are printed before the last one is known


@dataclass(frozen=True)
class Tried:
    """What became of a backend.   libraries: name -> its version and device, of those that import, in their order."""

    libraries: dict[str, str]
    failed: str = ""  # the library that does not import, or ANSWER
    error: str = ""  # the last line that was said

    @property
    def works(self) -> bool:
        return not self.error


def try_backend(backend: str, model: str | None, limit: float = TIME_LIMIT) -> Tried:
    """Import what a backend needs and, given a checkpoint, let it answer: in a process of its own, where a broken
    library can do no harm, and which is ended after `limit` seconds. Each step is named as it begins."""
    steps = {name: code for name, (needed, code) in PROBES.items() if not needed or backend in needed.split()}
    if model is not None:
        asked = ["generate", "--model", model, "--backend", backend, "--max-new-tokens", "4", "Hello"]
        steps[ANSWER] = f"from parity.__main__ import main\nraise SystemExit(main({asked}))"
    script = "\n".join(f"print({STEP + name!r}, flush=True)\n{code}" for name, code in steps.items())
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [sys.executable, "-c", script]
    versions: dict[str, str] = {}
    last = ""
    with tempfile.TemporaryFile("w+", errors="replace") as complaints:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=complaints, text=True, env=environment, start_new_session=True
        )
        with ended_after(process, limit) as is_over:
            for line in process.stdout or ():
                if line.startswith(STEP):
                    last = line.removeprefix(STEP).strip()
                    print(f"backend {backend}: {last} ...", file=sys.stderr, flush=True)
                elif last in PROBES:
                    versions[last] = line.strip()
            code = process.wait()
        if code == 0:
            return Tried(versions)
        complaints.seek(0)
        said = complaints.read().strip().splitlines()
    error = said[-1] if said else f"exit code {code}"
    if is_over.is_set():
        error = f"not done after {limit:g} s; --time-limit gives it more"
    return Tried({name: said for name, said in versions.items() if name != last}, last, error)


@contextlib.contextmanager
def ended_after(process: subprocess.Popen[str], limit: float) -> Iterator[threading.Event]:
    """End a process with its children after `limit` seconds, which the event says, and when the block is left."""
    is_over = threading.Event()

    def end(say: bool) -> None:
        if say:
            is_over.set()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(limit, end, [True])
    timer.daemon = True
    timer.start()
    try:
        yield is_over
    finally:
        timer.cancel()
        end(False)
        process.wait()


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


def say_row(row: tuple[str, str, str]) -> None:
    """A line as soon as it is known."""
    name, word, rest = row
    say(f"{name:<{WIDTHS[0]}}  {word:<{WIDTHS[1]}}  {rest}".rstrip())
    sys.stdout.flush()


def run_doctor(args: argparse.Namespace) -> int:
    """What this machine can do, what each backend refuses, which goldens there are."""
    backends = args.backend.split(",")
    for backend in backends:
        if backend not in BACKENDS:
            raise OptionError(f"no backend {backend!r}", fix="known: " + ", ".join(BACKENDS))
    say_row(("gen_engine", gen_engine.__version__, str(Path(gen_engine.__file__ or "").resolve())))
    say_row(("python", sys.version.split()[0], f"{sys.platform}, {os.cpu_count()} cores"))
    tried: list[Tried] = []
    shown: set[str] = set()
    # One after the other: two models may not fit, and vLLM refuses to begin where another takes memory.
    for backend in dict.fromkeys(backends):
        tried.append(try_backend(backend, args.model, args.time_limit))
        for row in library_lines(tried):
            if row[0] not in shown:
                say_row(row)
                shown.add(row[0])
        say_row(backend_line(backend, tried[-1], args.model))
    print("what a backend, or a release of a library, refuses before anything runs:")
    print(table([(f"  {r.releases or r.backend}", r.what, r.fix) for r in REFUSALS]))
    for name in ("torch", "transformers"):
        with contextlib.suppress(ImportError):
            __import__(name)
    print(f"goldens under {args.goldens}, for an environment of " + " ".join(map(" ".join, environment().items())))
    goldens = run_list(args)
    return goldens if all(one.works for one in tried) else 1


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
    content: list[dict[str, Any]] = [{"type": "image", "image": Path(file)} for file in args.image]
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
    about_limit = f"seconds for each backend, then its process is ended (default {TIME_LIMIT:g})"
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT, metavar="SECONDS", help=about_limit)
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
