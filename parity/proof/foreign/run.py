"""Record libraries' old code, lay out their moves and each mistake as sites, and check them.

A library is recorded by one process; all sites of a backend and dtype are checked by one
`parity check`, so that an engine loads once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parity.goldens.store import Store
from parity.proof.foreign.drive import module_of, recorded_name
from parity.proof.foreign.material import Case, Mistake

__all__ = [
    "FAITHFUL",
    "ROOT",
    "Answer",
    "Job",
    "RunError",
    "check",
    "lay_out",
    "record",
]

ROOT = Path(__file__).parents[3]
WORK = ROOT / "build/foreign"
FAITHFUL = "faithful"
EDITED = "foreign_edited"  # the package of edited sources, under WORK
GOLDENS_WRITTEN = 4  # the exit code of a `record` that wrote goldens
LOAD: dict[str, Any] = {
    "vllm": {
        "max_model_len": 1024,
        "vllm_kwargs": {
            "num_gpu_blocks_override": 96,
            "max_num_seqs": 16,
            "gpu_memory_utilization": 0.1,
        },
    }
}
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


class RunError(RuntimeError):
    """Old code that could not be recorded, or a check that gave no report."""


@dataclass(frozen=True, slots=True)
class Job:
    """One library with one dtype on one backend."""

    library: str
    backend: str
    dtype: str

    @property
    def goldens(self) -> Path:
        return WORK / "golden" / self.library

    @property
    def store(self) -> Path:
        """Where sites of this backend and dtype are laid out for `check`."""
        return WORK / "check" / f"{self.dtype}-{self.backend}"

    def site(self, name: str) -> str:
        """The site of the faithful move, or of a mistake."""
        return f"{self.library}.{name}"

    @property
    def module(self) -> Any:
        return module_of(self.library)

    @property
    def cases(self) -> list[Case]:
        return [each for each in self.module.cases(self.dtype) if self.backend in each.backends]

    @property
    def is_recorded(self) -> bool:
        store = Store(self.goldens)
        names = [recorded_name(each.name, self.dtype) for each in self.cases]
        return all(store.exists(FAITHFUL, name) for name in names)

    @property
    def mistakes(self) -> list[Mistake]:
        return [
            each
            for each in self.module.MISTAKES
            if self.backend in each.backends and self.dtype in each.dtypes
        ]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the harness said of one case of one site."""

    site: str
    case: str
    verdict: str
    cause: str
    certainty: str
    sentence: str

    @property
    def short(self) -> str:
        """Verdict, cause and certainty in one line: "DRIFT stop.strings; confirmed"."""
        return f"{self.verdict} {self.cause}; {self.certainty}" if self.cause else self.verdict


def run_in(python: Path, arguments: Sequence[str], log: Path) -> int:
    """Run a module of this project with an environment's Python; its output goes into `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(ROOT), str(WORK)])
    with log.open("w", encoding="utf-8") as output:
        return subprocess.run(
            [str(python), "-m", *arguments],
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode


def record(python: Path, jobs: Sequence[Job]) -> None:
    """Record the old code of one library for all its jobs. Raises RunError."""
    job = jobs[0]
    shutil.rmtree(job.goldens, ignore_errors=True)
    functions = {case.function for each in jobs for case in each.cases}
    old = [f"{job.module.__name__}:old_{function}" for function in sorted(functions)]
    script = ["-m", "parity.proof.foreign.drive", job.library]
    script += [f"--dtype={dtype}" for dtype in sorted({each.dtype for each in jobs})]
    script += [f"--backend={backend}" for backend in sorted({each.backend for each in jobs})]
    log = WORK / "logs" / f"record-{job.library}.log"
    sites = [f"--site={FAITHFUL}={function}" for function in old]
    command = ["parity", "record", "--goldens", str(job.goldens), *sites, "--", str(python)]
    code = run_in(python, [*command, *script], log)
    if code != GOLDENS_WRITTEN:
        raise RunError(
            f"{job.library}: recording its old code ended with {code}, expected "
            f"{GOLDENS_WRITTEN}. Read {log.relative_to(ROOT)}."
        )


def lay_out(jobs: Sequence[Job]) -> None:
    """Write the store of one backend and dtype: for each library a site for its faithful move, and
    one for each mistake."""
    shutil.rmtree(jobs[0].store, ignore_errors=True)
    jobs[0].store.mkdir(parents=True)
    sites = {}
    for job in jobs:
        for shared in ("environments", "blobs"):
            if (job.goldens / shared).is_dir():
                shutil.copytree(job.goldens / shared, job.store / shared, dirs_exist_ok=True)
        source = Path(job.module.__file__).read_text(encoding="utf-8")
        cases = [each.name for each in job.cases]
        sites[job.site(FAITHFUL)] = site(job, FAITHFUL, job.module.__name__, cases)
        for mistake in job.mistakes:
            module = edited_module(job.library, mistake.name, mistake.apply(source))
            sites[job.site(mistake.name)] = site(job, mistake.name, module, mistake.cases.split())
    (jobs[0].store / "sites.json").write_text(json.dumps(sites, indent=2), encoding="utf-8")


def site(job: Job, name: str, module: str, cases: Iterable[str]) -> dict[str, Any]:
    """Copy a site's goldens under its name. Returns its entry of sites.json."""
    goldens, laid_out = Store(job.goldens), Store(job.store)
    for case in cases:
        recorded = goldens.read(FAITHFUL, recorded_name(case, job.dtype))
        laid_out.write(replace(recorded, site=job.site(name), case=case))
    entry = json.loads((job.goldens / "sites.json").read_text(encoding="utf-8"))[FAITHFUL]
    moved = {old: f"{module}:{old.partition(':old_')[2]}" for old in entry["functions"]}
    return {**entry, "moved": moved, "backends": [job.backend], "load": LOAD}


def edited_module(library: str, name: str, source: str) -> str:
    """Write an edited source where the checker can import it. Returns the module's name."""
    stem = f"{library}_{name.replace('-', '_')}"
    package = WORK / EDITED
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / f"{stem}.py").write_text(source, encoding="utf-8")
    return f"{EDITED}.{stem}"


def check(python: Path, job: Job) -> list[Answer]:
    """What the harness says of each case in the store of a job. Raises RunError."""
    report = job.store / "report.json"
    log = WORK / "logs" / f"check-{job.dtype}-{job.backend}.log"
    command = ["parity", "check", "--goldens", str(job.store), "--backend", job.backend]
    code = run_in(python, [*command, "--json", str(report)], log)
    if not report.is_file():
        raise RunError(
            f"{job.dtype} on {job.backend}: the check ended with {code} and wrote no report. "
            f"Read {log.relative_to(ROOT)}."
        )
    return answers_of(json.loads(report.read_text(encoding="utf-8")))


def answers_of(report: dict[str, Any]) -> list[Answer]:
    """The outcomes of a JSON report of `check`, in its order."""
    answers = []
    for outcome in report["outcomes"]:
        cause = outcome.get("cause") or {}
        answers.append(
            Answer(
                site=outcome["site"],
                case=outcome["case"],
                verdict=outcome["verdict"],
                cause=cause.get("name", ""),
                certainty=cause.get("certainty", ""),
                sentence=outcome.get("sentence") or "",
            )
        )
    return answers
