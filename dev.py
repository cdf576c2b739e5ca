#!/usr/bin/env python3
"""Set up the project and run a task: `python3 dev.py demo`, `test`, `simulate`, `lint`, `docs`, `bench`, `lock`.

The script needs only Python 3.11 or newer. The first run creates a virtual environment (`.venv`) from the lock file of
the interpreter's version. Later runs install nothing until the lock file or pyproject.toml changes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
SPARK_VERSIONS = ("3.5", "4.0", "4.1")
"""Older versions of Spark, which the thorough run tests. The lock files have the newest one."""
QUICK = "not slow and not long and not spark and not s3 and not browser"
ORDINARY = "not slow"
LONG_SECONDS = 0.5
"""The quick run lists its slowest tests from here on: candidates for the mark `long`."""

# `.pre-commit-config.yaml` has the same checks. The import cache stores how a name was resolved and misses modules that
# were added later, so it would report wrong imports.
CHECKS = {
    "ruff check": ("ruff", "check", "."),
    "ruff format": ("ruff", "format", "--check", "."),
    "mypy": ("mypy",),
    "lint-imports": ("lint-imports", "--no-logo", "--no-cache"),
}


class SetupError(Exception):
    """The user has to do something first. The message says what."""


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter for a virtual environment."""

    version: str
    path: str


@dataclass(frozen=True)
class Environment:
    """A virtual environment of the project and its interpreter."""

    folder: Path
    interpreter: Interpreter
    spark: str | None = None
    """Another version of Spark than that of the lock file."""

    @property
    def scripts(self) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    @property
    def python(self) -> Path:
        return self.scripts / ("python.exe" if os.name == "nt" else "python")

    @property
    def lock(self) -> Path:
        return lock_file(self.interpreter.version)

    def requirements(self) -> str:
        """The lines of the lock file, with another version of Spark if there is one."""
        lines = self.lock.read_text().splitlines()
        if self.spark is not None:
            lines = [line for line in lines if line.partition("==")[0] not in ("pyspark", "py4j")]
            lines.append(f"pyspark=={self.spark}.*")
            if self.spark == "3.5" and self.interpreter.version != "3.11":
                lines.append("setuptools<81")  # it has the module distutils, which Spark 3.5 imports
        return "\n".join(lines) + "\n"

    @property
    def stamp(self) -> Path:
        return self.folder / "installed-from"

    def fingerprint(self) -> str:
        """A digest of everything that decides what is installed."""
        digest = hashlib.sha256()
        for part in (self.requirements().encode(), (ROOT / "pyproject.toml").read_bytes(), str(self.folder).encode()):
            digest.update(hashlib.sha256(part).digest())
        return digest.hexdigest()

    def is_current(self) -> bool:
        return self.python.exists() and self.stamp.exists() and self.stamp.read_text() == self.fingerprint()


def lock_file(version: str) -> Path:
    return ROOT / "requirements" / f"lock-{version}.txt"


def say(text: str) -> None:
    print(f"── {text}", flush=True)


def find_interpreter(version: str | None) -> Interpreter:
    """Return the requested interpreter, or the one that runs this script."""
    if version is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        if version in VERSIONS:
            return Interpreter(version, sys.executable)
        raise SetupError(
            f"this is Python {version}; the project is locked for {', '.join(VERSIONS)}. "
            f"Run it with one of those, e.g. python{VERSIONS[0]} dev.py ..., or name one: --python {VERSIONS[0]}"
        )
    if version not in VERSIONS:
        raise SetupError(f"--python {version}: the project is locked for {', '.join(VERSIONS)}")
    if path := find_python(version):
        return Interpreter(version, path)
    raise SetupError(f"no Python {version} found: neither python{version} on the PATH nor one installed by pyenv")


def find_python(version: str) -> str | None:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)]
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        candidates.insert(0, sys.executable)
    if on_path := shutil.which(f"python{version}"):
        candidates.insert(0, on_path)
    # A launcher on the PATH may refuse to run: those of pyenv do for versions that are not selected.
    for candidate in candidates:
        if subprocess.run([candidate, "-c", ""], capture_output=True, stdin=subprocess.DEVNULL).returncode == 0:
            return candidate
    return None


def prepare(version: str | None, spark: str | None = None) -> Environment:
    """Return the environment of this run. Create or update it if needed."""
    interpreter = find_interpreter(version)
    name = ".venv" + (f"-{version}" if version else "") + (f"-spark-{spark}" if spark else "")
    environment = Environment(ROOT / name, interpreter, spark)
    if environment.is_current():
        return environment
    started = time.monotonic()
    if not runs(environment.python):
        create(environment)
    environment.stamp.unlink(missing_ok=True)
    with_spark = f" with Spark {spark}" if spark else ""
    lock = environment.lock.relative_to(ROOT)
    say(f"installing {lock}{with_spark} into {environment.folder.name} (once; a few minutes)")
    chosen = environment.folder / "requirements.txt"
    chosen.write_text(environment.requirements())
    pip(environment, "-r", str(chosen))
    say("installing icefloe itself, editable")
    pip(environment, "--no-deps", "--no-build-isolation", "-e", str(ROOT))
    environment.stamp.write_text(environment.fingerprint())
    say(f"ready after {time.monotonic() - started:.0f} s")
    return environment


def runs(python: Path) -> bool:
    """Whether an environment works. Its interpreter may have been removed, or its creation interrupted."""
    command = [str(python), "-m", "pip", "--version"]
    return python.exists() and subprocess.run(command, capture_output=True).returncode == 0


def create(environment: Environment) -> None:
    say(f"creating {environment.folder.name} with {environment.interpreter.path}")
    probe = "import ensurepip, venv"
    found = subprocess.run([environment.interpreter.path, "-c", probe], capture_output=True, stdin=subprocess.DEVNULL)
    if found.returncode != 0:
        package = f"python{environment.interpreter.version}-venv"
        raise SetupError(
            f"{environment.interpreter.path} cannot create virtual environments (no ensurepip). On Debian or Ubuntu, "
            f"run apt-get install {package} (or python3-venv), then run this command again"
        )
    if environment.interpreter.path == sys.executable:
        venv.create(environment.folder, clear=True, with_pip=True)
    else:
        run([environment.interpreter.path, "-m", "venv", "--clear", str(environment.folder)])


def pip(environment: Environment, *arguments: str) -> None:
    command = [str(environment.python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    command += ["--no-warn-script-location", "--progress-bar", "off", *arguments]
    quiet = {"PIP_ROOT_USER_ACTION": "ignore", "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **quiet},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    seen: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        seen.append(line)
        if step := pip_step(line):
            print(f"   {step}", flush=True)
    if process.wait() != 0:
        raise SetupError(f"pip failed ({process.returncode}):\n{''.join(seen[-40:])}")


def pip_step(line: str) -> str | None:
    """Return the progress message of a line of pip's output, or None."""
    word, _, rest = line.strip().partition(" ")
    if word in ("Collecting", "Processing"):
        return rest.split()[0].rpartition("/")[2]
    if word in ("Building", "Installing"):
        return line.partition(":")[0].strip().lower()
    return None


def run(command: Sequence[str | Path], **variables: str) -> None:
    """Run a command in the root folder. If it fails, exit with its exit code."""
    code = attempt(command, **variables)
    if code != 0:
        raise SystemExit(code)


def attempt(command: Sequence[str | Path], **variables: str) -> int:
    return subprocess.run(
        [str(part) for part in command], cwd=ROOT, env={**os.environ, **variables}, stdin=subprocess.DEVNULL
    ).returncode


def activated(environment: Environment) -> dict[str, str]:
    """Return the variables that activating the environment sets. Child processes then use the same Python."""
    path = os.pathsep.join([str(environment.scripts), os.environ.get("PATH", "")])
    return {
        "VIRTUAL_ENV": str(environment.folder),
        "PATH": path,
        "PYSPARK_PYTHON": str(environment.python),
        "ICEFLOE_COMMAND": str(environment.scripts / "icefloe"),
    }


def lint(environment: Environment) -> list[str]:
    """Run every static check. Returns the names of the checks that failed."""
    failed = []
    for name, (tool, *arguments) in CHECKS.items():
        say(name)
        if attempt([environment.scripts / tool, *arguments], **activated(environment)) != 0:
            failed.append(name)
    return failed


def do_lint(arguments: argparse.Namespace, rest: list[str]) -> int:
    environment = prepare(arguments.python)
    if arguments.fix:
        attempt([environment.scripts / "ruff", "check", "--fix", "."])
        attempt([environment.scripts / "ruff", "format", "."])
    failed = lint(environment)
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def do_test(arguments: argparse.Namespace, rest: list[str]) -> int:
    if arguments.spark is not None:
        return test_spark(arguments, arguments.spark, rest)
    environment = prepare(arguments.python)
    failed = lint(environment)
    if not arguments.quick and (arguments.browser or os.environ.get("CI") == "true"):
        install_browser()
    command: list[str | Path] = [environment.python, "-m", "pytest", "-q", "-n", str(arguments.workers)]
    command += ["--dist", "loadgroup"]
    if arguments.seed is not None:
        command += [f"--hypothesis-seed={arguments.seed}"]
    if not arguments.thorough:
        command += ["-m", QUICK if arguments.quick else ORDINARY]
    if arguments.quick:
        command += ["--durations=10", f"--durations-min={LONG_SECONDS}"]
    say("pytest" + (" (quick)" if arguments.quick else " (thorough)" if arguments.thorough else ""))
    code = attempt([*command, *rest], **test_variables(arguments), **activated(environment))
    if arguments.thorough:
        codes = {spark: test_spark(arguments, spark, rest) for spark in SPARK_VERSIONS}
        say("with older versions of Spark: " + ", ".join(f"{k} {'failed' if v else 'ok'}" for k, v in codes.items()))
        code = code or max(codes.values())
    if failed:
        say(f"failed before the tests: {', '.join(failed)}")
    return code or (1 if failed else 0)


def test_spark(arguments: argparse.Namespace, spark: str, rest: list[str]) -> int:
    """Run the tests of Spark with another version of it."""
    if spark not in SPARK_VERSIONS:
        raise SetupError(
            f"--spark {spark}: the tests run with {', '.join(SPARK_VERSIONS)} and with the lock file's version"
        )
    environment = prepare(arguments.python, spark)
    say(f"pytest with Spark {spark}")
    command: list[str | Path] = [environment.python, "-m", "pytest", "-q", "-m", "spark and not slow", "tests/spark"]
    # These start clusters and kill them, which is the same for every version.
    command += ["--ignore", "tests/spark/test_spark_failures.py"]
    # A selection of tests may have none of Spark: pytest then ends with 5.
    code = attempt([*command, *rest], **test_variables(arguments), **activated(environment))
    return 0 if code == 5 else code


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def install_browser() -> None:
    """Install Chromium for the tests of the viewer, where this is possible. Without it, these tests are skipped."""
    if os.environ.get("ICEFLOE_BROWSER") or any(map(shutil.which, BROWSERS)):
        return
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not shutil.which("apt-get"):
        say("no Chromium, and it can only be installed here by root with apt-get: the tests in the browser are skipped")
        return
    say("installing Chromium for the tests in the browser")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]):
        if attempt(command, **quiet) != 0:
            say(f"`{' '.join(command)}` failed: the tests in the browser are skipped")
            return


def test_variables(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the variables that fix random choices, except in thorough runs without a seed."""
    profile = "thorough" if arguments.thorough else "dev" if arguments.quick else "ci"
    if arguments.seed is not None:
        seed = {"ICEFLOE_SEED": str(arguments.seed), "PYTHONHASHSEED": str(arguments.seed % 2**32)}
        return {"HYPOTHESIS_PROFILE": "thorough" if arguments.thorough else "seeded", **seed}
    variables = {"HYPOTHESIS_PROFILE": os.environ.get("HYPOTHESIS_PROFILE", profile)}
    if not arguments.thorough:
        variables["PYTHONHASHSEED"] = os.environ.get("PYTHONHASHSEED", "0")
    return variables


def do_demo(arguments: argparse.Namespace, rest: list[str]) -> int:
    environment = prepare(arguments.python)
    return attempt([environment.python, "-m", "icefloe.cli.app", "demo", *rest], **activated(environment))


def do_bench(arguments: argparse.Namespace, rest: list[str]) -> int:
    if not (ROOT / "benchmarks" / "__main__.py").exists():
        raise SetupError("there are no benchmarks yet: benchmarks/__main__.py is missing")
    environment = prepare(arguments.python)
    return attempt([environment.python, "-m", "benchmarks", *rest], **activated(environment))


def do_simulate(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Search for schedules that violate a guarantee, until stopped. See CONTRIBUTING.md."""
    environment = prepare(arguments.python)
    command = [environment.python, "-m", "icefloe.testing.simulator", *rest]
    return attempt(command, PYTHONHASHSEED="0", **activated(environment))


def do_docs(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Build the site into site/, or serve it and build it again whenever a page changes."""
    environment = prepare(arguments.python)
    folders = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    variables = {**activated(environment), "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": folders}
    if arguments.pictures:
        run([environment.python, "docs/pictures.py", *rest], **variables)
        return 0
    command = "serve" if arguments.serve else "build"
    code = attempt([environment.python, "-m", "mkdocs", command, "--strict", *rest], **variables)
    if code == 0 and not arguments.serve:
        say(f"the site is in {ROOT / 'site'}. Look at it with: python3 dev.py docs --serve")
    return code


def do_trace(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Count the files that one commit, read, collection, ingest and table scan enter."""
    environment = prepare(arguments.python)
    return attempt([environment.python, "-m", "benchmarks.trace", *rest], **activated(environment))


def do_run(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Run any command in the environment: `python3 dev.py run pytest tests/storage`."""
    environment = prepare(arguments.python)
    if not rest:
        raise SetupError("the command is missing. Example: python3 dev.py run pytest tests/storage")
    inside = environment.scripts / rest[0]
    return attempt([inside if inside.exists() else rest[0], *rest[1:]], **activated(environment))


def do_setup(arguments: argparse.Namespace, rest: list[str]) -> int:
    environment = prepare(arguments.python)
    say(f"{environment.folder.name} is ready")
    return 0


def do_lock(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Rewrite the lock files with the newest versions that pyproject.toml allows. `rest` is passed to uv."""
    with tempfile.TemporaryDirectory() as temporary:
        uv = shutil.which("uv") or install_uv(Path(temporary))
        for version in [arguments.python] if arguments.python else VERSIONS:
            say(f"locking for Python {version}")
            target = lock_file(version)
            target.parent.mkdir(exist_ok=True)
            command = [uv, "pip", "compile", "pyproject.toml", "--extra", "dev", "--quiet", "--upgrade"]
            command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
            command += ["--output-file", str(target)]
            python = find_python(version)
            command += ["--python", python] if python else ["--python-version", version]
            run([*command, *rest])
    return 0


def install_uv(folder: Path) -> str:
    say("installing uv temporarily")
    venv.create(folder / "uv", with_pip=True)
    environment = Environment(folder / "uv", find_interpreter(None))
    pip(environment, "uv")
    return str(environment.scripts / "uv")


JOBS = {
    "demo": (do_demo, "ingest a month of synthetic weather on local Spark, branch it, and draw a picture"),
    "test": (do_test, "run all checks and tests (--quick: the short ones, --thorough: the slow ones too)"),
    "lint": (do_lint, "run ruff, mypy and the import checks (--fix: let ruff change files first)"),
    "docs": (do_docs, "build the site into site/ (--serve: look at it while you write)"),
    "bench": (do_bench, "run the benchmarks beside the official package and write docs/performance.md"),
    "simulate": (do_simulate, "simulate many actors on one repository until stopped"),
    "trace": (do_trace, "count the source files that each operation enters (--files: list them)"),
    "run": (do_run, "run any command in the environment"),
    "setup": (do_setup, "create or update the environment only"),
    "lock": (do_lock, "resolve the newest allowed versions into requirements/"),
}


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="dev.py", description="Develop Icefloe. Every job first creates or updates the environment."
    )
    jobs = parser.add_subparsers(dest="job", required=True, metavar="JOB")
    for name, (_, help_text) in JOBS.items():
        job = jobs.add_parser(
            name, help=help_text, description=help_text, add_help=name not in ("run", "simulate", "trace")
        )
        job.add_argument("--python", metavar="X.Y", help="use this Python version, in a separate environment")
        if name == "test":
            job.add_argument(
                "--quick", action="store_true", help="also skip the tests marked long, spark, s3 and browser"
            )
            job.add_argument("--thorough", action="store_true", help="also run the tests marked slow")
            job.add_argument(
                "--browser", action="store_true", help="install Chromium if it is missing, as root on Debian"
            )
            job.add_argument("--seed", type=int, metavar="N", help="draw the random examples from another seed")
            job.add_argument(
                "--spark", metavar="X.Y", help=f"only the tests of Spark, with {', '.join(SPARK_VERSIONS)}"
            )
            job.add_argument("--workers", type=int, default=2, metavar="N", help="test processes (default 2)")
        if name == "lint":
            job.add_argument("--fix", action="store_true", help="let ruff change files first")
        if name == "docs":
            job.add_argument("--serve", action="store_true", help="serve the site on http://127.0.0.1:8000")
            job.add_argument("--pictures", action="store_true", help="draw the pictures in docs/images again")
        if name == "run":
            job.add_argument("rest", nargs=argparse.REMAINDER)
    arguments, rest = parser.parse_known_args(argv)
    return arguments, [*getattr(arguments, "rest", []), *rest]


def main(argv: Sequence[str]) -> int:
    arguments, rest = parse(argv)
    try:
        return JOBS[arguments.job][0](arguments, rest)
    except SetupError as error:
        print(f"dev.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
