"""`python -m tessera`: help, and command lines that make no sense."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tessera import __version__
from tessera.__main__ import _of_program, entry, load, main
from tessera.compiler import ASTSource
from tessera.compiler import compile as compile_for
from tessera.config import knobs
from tessera.runtime.cache.disk import disk_cache
from tessera.tools import doctor
from tessera.tools.commands import COMMANDS
from tessera.tools.compile_kernel import kernel_named, signature_of
from tessera.tools.targets import target_named

pytestmark = pytest.mark.usefixtures("without_triton")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_is_no_failure(word: str, capsys: pytest.CaptureFixture[str]):
    assert main([word]) == 0
    shown = capsys.readouterr()
    assert not shown.err
    assert all(f"tessera {command}" in shown.out for command in COMMANDS)


@pytest.mark.parametrize("args", [[], ["unknown"], ["run"], ["run", "-m"]])
def test_other_command_lines_say_what_there_is(args: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(args) == 2
    shown = capsys.readouterr()
    assert not shown.out and (args[1:] or shown.err.startswith("usage: tessera"))


def test_misspelt_commands(capsys: pytest.CaptureFixture[str]):
    assert main(["docto"]) == 2
    assert "did you mean 'doctor'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_and_has_help(name: str, capsys: pytest.CaptureFixture[str]):
    assert callable(load(name))
    try:
        status: object = main([name, "--help"])
    except SystemExit as done:  # of argparse
        status = done.code
    assert status == 0
    assert "usage:" in capsys.readouterr().out
    assert f"`tessera {name}" in (ROOT / "docs/commands.md").read_text("utf-8")


def test_errors_of_programs_are_shown_without_the_runner(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text("def f():\n    import missing_module\n\n\nf()\n")
    for command in ("run", "explain", "profile"):
        ran = subprocess.run(
            [sys.executable, "-m", "tessera", command, str(script)],
            capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
        assert ran.returncode == 1
        frames = [x.split(", ")[1:] for x in ran.stderr.splitlines() if x.startswith("  File")]
        assert frames == [["line 5", "in <module>"], ["line 2", "in f"]], ran.stderr


def shown_by_hook(program: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What `tessera run` shows of an error that is raised before the program begins."""
    try:
        main(["run", *program])
    except Exception as error:
        _of_program(type(error), error, error.__traceback__)
    return capsys.readouterr().err


def test_programs_that_there_are_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    none, no_python = tmp_path / "none.py", tmp_path / "no_python.py"
    no_python.write_text("def f(:\n")
    assert shown_by_hook([str(none)], capsys) == f"tessera: {none}: No such file or directory\n"
    assert shown_by_hook(["-m", "no_such"], capsys) == "tessera: No module named no_such\n"
    assert shown_by_hook([str(no_python)], capsys).startswith(f'  File "{no_python}", line 1\n')
    assert main(["bisect", str(none)]) == 1
    assert capsys.readouterr().err == f"tessera: {none}: No such file or directory\n"


@pytest.mark.parametrize("name", ["explain", "profile", "tune"])
def test_programs_are_modules_too(name: str):
    ran: list[list[str]] = []
    load(name)(["-m", "mod", "--help", "-m"], lambda program: ran.append(program) or 0)
    load(name)(["script.py", "-m", "x"], lambda program: ran.append(program) or 0)
    assert ran == [["-m", "mod", "--help", "-m"], ["script.py", "-m", "x"]]


def test_pipes_that_nobody_reads():
    """As `| head` leaves them: no traceback, also of text that leaves the buffer only at the end."""
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(
        [sys.executable, "-m", "tessera", "--version"],
        stdout=writer, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (1, "")


def test_as_a_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    ran = subprocess.run(
        [sys.executable, "-m", "tessera", "--help"], capture_output=True, check=False
    )
    assert ran.returncode == 0 and b"usage:" in ran.stdout
    monkeypatch.setattr(sys, "argv", ["tessera", "--version"])
    assert entry() == 0 and capsys.readouterr().out == f"tessera {__version__}\n"
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    assert scripts == {"tessera": "tessera.__main__:entry"}


# --- doctor ---------------------------------------------------------------------------------------------------
def test_doctor_runs_kernels(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "a kernel on interpreter  runs" in shown and "a kernel on cpu          runs" in shown
    assert shown.endswith("kernels run here\n")


def test_doctor_tells_what_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(doctor, "NEEDED", ("numpy", "no-such-package"))
    monkeypatch.setattr(doctor, "_on_host", lambda name: name != "cpu")
    (tmp_path / "file").touch()  # a folder below cannot be made
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path / "file/cache")
        assert main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "broken: no-such-package, cache, a kernel on cpu"
    states = {x["subject"]: x for x in told["findings"]}
    assert states["no-such-package"]["remedy"] == "pip install no-such-package"
    assert states["a kernel on cpu"]["found"] == "gives wrong results"
    assert states["cache"]["found"].endswith(": not writable")
    assert states["numpy"]["state"] == "ok" and states["a kernel on interpreter"]["state"] == "ok"


# --- compile ----------------------------------------------------------------------------------------------------
KERNEL = """
import tessera
import tessera.language as tl

@tessera.jit
def scale(x, n, factor, BLOCK: tl.constexpr, ADD: tl.constexpr = 0):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) * factor + ADD, mask=i < n)

if __name__ == "__main__":
    raise SystemExit("the program must not run")
"""
SIGNATURE = "--signature=x=*fp32,n=i32,factor=fp32,BLOCK=64"


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "scale.py").write_text(KERNEL)
    return f"{tmp_path}/scale.py"


def test_compile_to_each_stage(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["compile", f"{script}:scale", SIGNATURE, "--target=cpu", "--stage=tir"]) == 0
    assert "func {name='scale'" in capsys.readouterr().out
    written = tmp_path / "scale.ptx"
    args = ["--target=sm_90", "--stage=ptx", "--option=num_warps=2", "-o", str(written)]
    assert main(["compile", f"{script}:scale", SIGNATURE, *args]) == 0
    assert not capsys.readouterr().out and ".maxntid 64" in written.read_text()


def test_compile_for_aligned_arguments(script: str, capsys: pytest.CaptureFixture[str]):
    """Addresses and lengths divisible by 16 make wide accesses, as at a launch."""
    even = SIGNATURE.replace("fp32,n=i32", "fp32:16,n=i32:16").replace("64", "1024")
    for signature, wide in ((even, True), (even.replace(":16", ""), False)):
        assert main(["compile", f"{script}:scale", signature, "--target=sm_90", "--stage=ptx"]) == 0
        assert ("ld.global.v4" in capsys.readouterr().out) == wide


@pytest.mark.parametrize(
    ("kernel", "args", "told"),
    [
        ("scael", [SIGNATURE], "did you mean `scale`?"),
        ("scale", ["--signature=x=*fp32,n=i32,BLOCK=64"], "says nothing of factor"),
        ("scale", ["--signature=x=*fp32,m=i32"], "has no parameter 'm'"),
        ("scale", [SIGNATURE, "--target=sm90x"], "there is no target 'sm90x'"),
        ("scale", [SIGNATURE, "--target=cpu", "--stage=ptx"], "cpu has no stage 'ptx'"),
        ("scale", [SIGNATURE, "--target=cpu", "--option=num_wraps=2"], "did you mean `num_warps`?"),
        ("scale", ["--signature=x"], "'x' is no NAME=VALUE"),
        ("scale", [SIGNATURE.replace("i32", "i32:12")], "n cannot be a multiple of '12'"),
        ("scale", [SIGNATURE.replace("i32", "i32:")], "n cannot be a multiple of ''"),
    ],
)
def test_compile_reports_mistakes(
    script: str, kernel: str, args: list[str], told: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["compile", f"{script}:{kernel}", *args]) == 1
    shown = capsys.readouterr()
    assert not shown.out and told in shown.err


# --- cache and completions ------------------------------------------------------------------------------------
def test_cache_lists_and_prunes(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path / "cache")
        for target in ("cpu:avx2", "cpu:generic"):
            compile_for(source_of(script), target_named(target), store=disk_cache())
        assert main(["cache", "list"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 2 and all(line.endswith("  scale") for line in lines)
        assert main(["cache", "prune", "100"]) == 0
        assert capsys.readouterr().out.startswith("0 kernels removed")
        assert main(["cache", "prune", "0"]) == 0
        assert capsys.readouterr().out == "2 kernels removed, 0.0 MB left\n"


def source_of(script: str) -> ASTSource:
    kernel = kernel_named(f"{script}:scale")
    return ASTSource(kernel, *signature_of(kernel, SIGNATURE.partition("=")[2]))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions(shell: str, capsys: pytest.CaptureFixture[str]):
    assert main(["completions", shell]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)
    if shell == "bash":
        words = 'COMP_WORDS=(tessera cache pr); COMP_CWORD=2; _tessera; echo "${COMPREPLY[*]}"'
        ran = subprocess.run(
            ["bash", "-c", f"{text}\n{words}"], capture_output=True, text=True, check=True
        )
        assert ran.stdout.split()[0] == "prune"
        words = (
            'COMP_WORDS=(tessera completions ""); COMP_CWORD=2; _tessera; echo "${COMPREPLY[*]}"'
        )
        ran = subprocess.run(
            ["bash", "-c", f"{text}\n{words}"], capture_output=True, text=True, check=True
        )
        assert ran.stdout.split() == ["bash", "zsh", "fish", "--help"]  # and no files


def printed(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A file with the completions for a shell that is installed."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert main(["completions", shell]) == 0
    path = tmp_path / "completions"
    path.write_text(capsys.readouterr().out)
    return path


def test_completions_in_fish(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = printed("fish", tmp_path, capsys)
    (tmp_path / "add.py").touch()

    def completed(line: str) -> list[str]:
        ran = subprocess.run(
            ["fish", "--no-config", "-c", f"source {path}; complete -C '{line}'"],
            capture_output=True, text=True, check=True, cwd=tmp_path, env=os.environ | {"HOME": str(tmp_path)},
        )  # fmt: skip
        return [row.partition("\t")[0] for row in ran.stdout.splitlines()]

    assert completed("tessera cac") == ["cache"]
    assert completed("tessera cache pr") == ["prune"]
    assert completed("tessera tune --pl") == ["--plot"]
    assert completed("tessera run ad") == ["add.py"]
    assert sorted(completed("tessera completions ")) == ["bash", "fish", "zsh"]  # and no files


@pytest.mark.slow
@pytest.mark.parametrize("start", ["", "autoload -Uz compinit; compinit -u; "])
def test_completions_in_zsh(start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = printed("zsh", tmp_path, capsys)
    (tmp_path / "add.py").touch()
    done = tmp_path / "done"
    setup = f"{start}source {path}; tessera() {{ print -r -- $* >> {done}; }}; print rea''dy"
    keys = ["tessera cac\t pru\t\r", "tessera tune --pl\t\r", "tessera run ad\t\r"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execvpe("zsh", ["zsh", "-f", "-i"], os.environ | {"HOME": str(tmp_path), "TERM": "dumb"})
    shown = b""

    def send(typed: str, finished: Callable[[], bool]) -> None:
        nonlocal shown
        os.write(terminal, typed.encode())
        until = time.monotonic() + 60
        while not finished():
            assert time.monotonic() < until, shown
            if select.select([terminal], [], [], 0.05)[0]:
                shown += os.read(terminal, 1 << 16)

    try:
        send(f"{setup}\r", lambda: b"ready" in shown)
        for count, typed in enumerate(keys, 1):
            send(typed, lambda n=count: done.exists() and done.read_text().count("\n") >= n)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    assert done.read_text().splitlines() == ["cache prune", "tune --plot", "run add.py"]


TIR = """
module {} {
  func {name='f'} (%x: i32) {
    %y: i32 = neg %x
    print [%x]
    return []
  }
}
"""


def test_opt_prints_each_module_after_the_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "two.tir"
    file.write_text(f"{TIR}// -----\n{TIR}")
    assert main(["opt", "--passes=canonicalize", str(file)]) == 0
    first, second = capsys.readouterr().out.split("// -----\n")
    assert first.strip() == second.strip() == TIR.replace("    %y: i32 = neg %x\n", "").strip()
    assert main(["opt", "--passes=canonicalize", "--disable=canonicalize", str(file)]) == 0
    assert "neg" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--passes=nonsense"], "no pass 'nonsense'"),
        (["--passes=cse}"], "not a pipeline"),
        (["--passes=coalesce"], "pass 'coalesce' needs a GPU: --target=sm_90, not ''"),
        (["--disable=csee"], "csee"),
    ],
)
def test_opt_reports_mistakes(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "one.tir"
    file.write_text(TIR)
    assert main(["opt", *options, str(file)]) == 1
    shown = capsys.readouterr()
    assert not shown.out and told in shown.err
    assert main(["opt", str(tmp_path / "absent.tir")]) == 1
