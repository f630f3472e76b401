"""Debuggers of Python follow a kernel's lines on the interpreter: pdb by its commands, debugpy by its protocol."""

# pyright: basic
from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tessera.interp.stepping import waiting_code

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """\
import numpy as np, tessera, tessera.language as tl
@tessera.jit
def helper(v):
    w = v + 1
    return w * 2
@tessera.jit
def kernel(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    breakpoint()
    v = tl.load(x + at, at < n)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(2):
        total += v * (i + 1)
    u = helper(v)
    tl.store(x + at, u + total, at < n)
x = np.arange(4).astype(np.float32)
kernel[(1,)](x, 4, BLOCK=4)
print(x)
"""
PLAIN = PROGRAM.replace("    breakpoint()\n", "    N: tl.constexpr = BLOCK * 2\n")


def environment() -> dict[str, str]:
    env = {**os.environ, "TESSERA_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    env.pop("PYTHONBREAKPOINT", None)
    return env


def stepped(
    tmp_path: Path, *commands: str, program: str = PROGRAM, pdb: bool = False, **more: str
) -> tuple[list[int], str]:
    """The lines at which the debugger stopped (but for the end of the script), and all that was printed."""
    script = tmp_path / "prog.py"
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, *(["-m", "pdb"] if pdb else []), str(script)], input="\n".join(commands) + "\n",
        capture_output=True, text=True, env=environment() | more, timeout=120, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    lines = [int(n) for n in re.findall(r"> .*prog\.py\((\d+)\)(?!<module>)", done.stdout)]
    # Python 3.13 stops at `breakpoint()` itself, older ones behind it
    return (lines[1:] if lines[:1] == [9] and program is PROGRAM else lines), said


def commands_of(*commands: str) -> list[str]:
    """Commands behind a `breakpoint()`, from the line that follows it."""
    return [*(["n"] if sys.version_info >= (3, 13) else []), *commands]


def test_next_passes_by_functions_and_stops_in_each_iteration(tmp_path: Path):
    lines, said = stepped(tmp_path, *commands_of(*["n"] * 8, "p u", "c"))
    assert lines == [10, 11, 12, 13, 12, 13, 12, 14, 15]
    assert "array([2., 4., 6., 8.], dtype=float32)" in said
    assert "[ 2.  7. 12. 17.]" in said


def test_step_goes_into_functions_and_return_out(tmp_path: Path):
    lines, said = stepped(
        tmp_path, *commands_of("unt 14", "s", "s", "s", "p v, w", "r", "n", "p u", "c")
    )
    # the call of the function, its lines, and its return
    assert lines == [10, 14, 3, 4, 5, 5, 15]
    assert "--Call--" in said and "--Return--" in said
    assert "array([1., 2., 3., 4.], dtype=float32)" in said
    assert "array([2., 4., 6., 8.], dtype=float32)" in said


def test_breakpoints_at_lines_and_quit(tmp_path: Path):
    lines, said = stepped(
        tmp_path, *commands_of("b 13", "c", "p total", "c", "p total", "p BLOCK, i", "q")
    )
    assert lines == [10, 13, 13]
    assert "array([0., 0., 0., 0.]" in said
    assert "array([0., 1., 2., 3.]" in said
    assert "(4, array(1" in said
    assert "BdbQuit" in said


@pytest.mark.parametrize("pdb", [False, True], ids=["alone", "within pdb"])
def test_next_passes_by_breakpoints_that_it_meets(pdb: bool, tmp_path: Path):
    program = PROGRAM.replace("        total +=", "        breakpoint()\n        total +=")
    commands = [*(["c"] if pdb else []), *["n"] * 14, "q"]
    lines, said = stepped(tmp_path, *commands, program=program, pdb=pdb)
    assert "bdb.py(" not in said
    # Python 3.13 stops at `breakpoint()` itself: at the first one, and once more at those that `n` reaches.
    places = [line for line, _ in groupby(lines) if line != 9]
    assert places == [10, 11, 12, 13, 14, 12, 13, 14, 12, 15, 16]


@pytest.mark.parametrize("command", ["c", "cont"])
def test_continue_ends_the_kernel(tmp_path: Path, command: str):
    lines, said = stepped(tmp_path, *commands_of(command))
    assert lines == [10]
    assert "[ 2.  7. 12. 17.]" in said


def test_pdb_from_outside(tmp_path: Path):
    """`python -m pdb`: breakpoints in a kernel without a call of breakpoint(), also at lines that compute nothing; the
    stack has the user's frames alone; behind the kernel the script goes on."""
    commands = ["b 9", "c", "n", "p N", "w", "unt 15", "n", "n", "c", "q"]
    lines, said = stepped(tmp_path, *commands, program=PLAIN, pdb=True)
    assert lines == [9, 10, 10, 15, 15]  # `w` shows the line again
    assert "\n(Pdb) 8\n" in said
    assert "stepping.py" not in said and "jit.py" not in said
    assert "> " + str(tmp_path / "prog.py") + "(18)<module>()" in said


def test_conditions_and_variables_of_a_program(tmp_path: Path):
    program = PLAIN.replace("[(1,)]", "[(5,)]")
    lines, said = stepped(
        tmp_path, "b 15, program_id[0] == 3", "c", "p program_id, num_programs", "p np.max(total)",
        "cl 1", "c", "q", program=program, pdb=True,
    )  # fmt: skip
    assert lines == [15]
    assert "((3, 0, 0), (5, 1, 1))" in said


def test_an_error_is_raised_at_its_line(tmp_path: Path):
    program = PLAIN.replace("at < n)\n    total", "at < n)\n    tl.device_assert(v < 2)\n    total")
    program = program.replace("BLOCK=4)", "BLOCK=4, debug=True)")
    _, said = stepped(tmp_path, "b 11", "c", "n", "p v", "q", program=program, pdb=True)
    assert "device-assert" in said
    assert re.search(r"prog\.py\(11\)kernel\(\)\n-> tl\.device_assert", said)


def test_functions_that_are_not_inlined_have_frames(tmp_path: Path):
    program = PLAIN.replace("@tessera.jit\ndef helper", "@tessera.jit(noinline=True)\ndef helper")
    program = program.replace("u = helper(v)", "u = helper(n)")
    lines, said = stepped(
        tmp_path, "b 5", "c", "p w", "w", "r", "n", "p u", "q", program=program, pdb=True
    )
    assert lines[0] == 5
    assert "array(5, dtype=int32)" in said
    assert re.search(r"prog\.py\(14\)kernel\(\)\n-> u = helper", said)
    assert "array(10, dtype=int32)" in said


def test_a_copy_of_a_program_shows_its_own_file(tmp_path: Path):
    """Though its kernels are in the cache, made from a file of the same text."""
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        lines, said = stepped(folder, "b 12", "c", "q", program=PLAIN, pdb=True)
        assert lines == [12]
        assert f"> {folder}/prog.py(12)kernel()" in said


def test_other_hooks_are_called_from_the_kernel(tmp_path: Path):
    (tmp_path / "hooks.py").write_text(
        "import sys\n"
        "def stop():\n"
        "    frame = sys._getframe().f_back\n"
        "    print(frame.f_code.co_name, frame.f_lineno, frame.f_locals['at'])\n"
    )
    _, said = stepped(
        tmp_path, PYTHONBREAKPOINT="hooks.stop", PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}"
    )
    assert "kernel 9 [0 1 2 3]\n" in said
    assert "[ 2.  7. 12. 17.]" in said


class SimpleHub:
    """In place of a Hub: takes any attribute."""


def test_lines_far_apart_and_in_any_order():
    """The code of a frame visits the lines that it is told, and none else."""
    order = [5000, 7, 7, 70_000, 8, 5000]
    steps = iter([*order, 0])
    nothing = [lambda *_: None] * 5
    hub: Any = SimpleHub()
    hub.line, hub.get = 0, steps.__next__
    hub.go, hub.all, hub.map, hub.call, hub.iter = nothing
    code = waiting_code("file.py", "f", 3, set(order), hub)
    seen: list[int] = []

    def trace(frame: Any, event: str, _: object) -> Any:
        if frame.f_code is not code:
            return None
        if event == "line":
            seen.append(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        exec(code, {})
    finally:
        sys.settrace(before)
    assert seen == order
    assert (code.co_name, code.co_firstlineno, code.co_filename) == ("f", 3, "file.py")


# --- debugpy: VS Code, and with it pydevd, which PyCharm has ------------------------------------------------------
class Editor:
    """The editor's side of the Debug Adapter Protocol."""

    def __init__(self, script: Path):
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(60)
            command = ["-m", "debugpy", "--connect", f"127.0.0.1:{server.getsockname()[1]}"]
            self.process = subprocess.Popen(
                [sys.executable, *command, "--wait-for-client", str(script)], env=environment(),
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
            self.connection, _ = server.accept()
        self.connection.settimeout(60)
        self.stream = self.connection.makefile("rb")
        self.sent, self.waiting = 0, []
        self.thread, self.frame = 0, 0

    def read(self) -> dict[str, Any]:
        size = 0
        while line := self.stream.readline().strip():
            if line.lower().startswith(b"content-length:"):
                size = int(line.split(b":")[1])
        assert size, "the debugger has gone"
        return json.loads(self.stream.read(size))

    def wait(self, **wanted: object) -> dict[str, Any]:
        """The next message, of those that have come or will, with these values."""
        while True:
            for message in self.waiting:
                if all(message.get(k) == v for k, v in wanted.items()):
                    self.waiting.remove(message)
                    return message
            self.waiting.append(self.read())

    def send(self, command: str, **arguments: object) -> int:
        self.sent += 1
        request = {
            "seq": self.sent, "type": "request", "command": command, "arguments": arguments
        }  # fmt: skip
        body = json.dumps(request).encode()
        self.connection.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return self.sent

    def ask(self, command: str, **arguments: object) -> dict[str, Any]:
        answer = self.wait(request_seq=self.send(command, **arguments))
        assert answer["success"], answer
        return answer.get("body") or {}

    def start(self, script: Path, lines: list[int]) -> None:
        self.ask("initialize", adapterID="tests", pathFormat="path")
        # where tessera is installed, it is a library, into which the debugger does not go
        self.send("attach", rules=[{"path": f"{ROOT}/tessera/**", "include": False}])
        self.wait(event="initialized")
        points = [{"line": line} for line in lines]
        self.ask("setBreakpoints", source={"path": str(script)}, breakpoints=points)
        self.ask("configurationDone")

    def stop(self) -> list[tuple[str, int]]:
        """Wait until the program stops: functions and lines, innermost first."""
        self.thread = self.wait(event="stopped")["body"]["threadId"]
        frames = self.ask("stackTrace", threadId=self.thread)["stackFrames"]
        self.frame = frames[0]["id"]
        return [(f["name"], f["line"]) for f in frames]

    def go(self, command: str) -> list[tuple[str, int]]:
        self.ask(command, threadId=self.thread)
        return self.stop()

    def variables(self) -> dict[str, str]:
        scope = self.ask("scopes", frameId=self.frame)["scopes"][0]["variablesReference"]
        return {
            v["name"]: v["value"] for v in self.ask("variables", variablesReference=scope)["variables"]
        }  # fmt: skip

    def finish(self) -> str:
        self.ask("continue", threadId=self.thread)
        self.wait(event="terminated")
        self.connection.close()
        return self.process.communicate(timeout=60)[0]


@pytest.mark.skipif(find_spec("debugpy") is None, reason="debugpy is not installed")
def test_debugpy_steps_through_a_kernel(tmp_path: Path):
    script = tmp_path / "prog.py"
    script.write_text(PLAIN)
    editor = Editor(script)
    try:
        editor.start(script, [12])
        host = ("<module>", 17)
        assert editor.stop() == [("kernel", 12), host]
        assert editor.variables()["total"] == "array([0., 0., 0., 0.], dtype=float32)"
        assert editor.variables()["BLOCK"] == "4"
        assert editor.go("next") == [("kernel", 13), host]
        assert editor.go("next") == [("kernel", 12), host]
        assert editor.variables()["total"] == "array([0., 1., 2., 3.], dtype=float32)"
        assert editor.go("continue") == [("kernel", 12), host]
        assert editor.go("next") == [("kernel", 14), host]
        assert editor.go("stepIn") == [("helper", 4), ("kernel", 14), host]
        assert editor.go("next")[0] == ("helper", 5)
        assert editor.variables()["w"] == "array([1., 2., 3., 4.], dtype=float32)"
        value = editor.ask("evaluate", expression="np.sum(w) + v[0]", frameId=editor.frame)
        assert value["result"].startswith("np.float32(10.0)")
        assert editor.go("stepOut")[0] == ("kernel", 14)
        assert editor.go("next") == [("kernel", 15), host]
        assert editor.variables()["u"] == "array([2., 4., 6., 8.], dtype=float32)"
        assert "[ 2.  7. 12. 17.]" in editor.finish()
    finally:
        editor.process.kill()


# --- PyCharm: pydevd with a protocol of its own --------------------------------------------------------------------
RUN, INTO, OVER, OUT, FRAME, BREAK, STOPPED, GO = 101, 107, 108, 109, 114, 111, 105, 106


class PyCharm:
    """The side of PyCharm: lines of a command's number, a running number and fields between tabs."""

    def __init__(self, script: Path):
        pydevd = find_spec("pydevd_pycharm")
        assert pydevd is not None and pydevd.origin is not None
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(60)
            address = ["--client", "127.0.0.1", "--port", str(server.getsockname()[1])]
            command = [
                str(Path(pydevd.origin).with_name("pydevd.py")),
                *address,
                "--file",
                str(script),
            ]
            self.process = subprocess.Popen(
                [sys.executable, *command], env=environment(), stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            self.connection, _ = server.accept()
        self.connection.settimeout(60)
        self.stream = self.connection.makefile("r", encoding="utf-8")
        self.sent, self.thread, self.frame = 1, "", ""

    def send(self, command: int, *fields: object) -> None:
        self.sent += 2
        text = "\t".join(map(str, (command, self.sent, "\t".join(map(str, fields)))))
        self.connection.sendall(f"{text}\n".encode())

    def read(self, command: int) -> str:
        while line := self.stream.readline():
            number, _, text = line.rstrip("\n").split("\t", 2)
            if int(number) == command:
                return unquote(unquote(text))
        raise AssertionError("the debugger has gone")

    def go(self, command: int, *fields: object) -> tuple[str, int]:
        """Let the program go on, and wait until it stops: the function and the line."""
        self.send(command, *(fields or (self.thread,)))
        told = self.read(STOPPED)
        self.thread = re.findall(r'thread id="([^"]+)"', told)[0]
        pattern = r'<frame id="([^"]+)" name="([^"]+)" file="[^"]+" line="(\d+)"'
        self.frame, name, line = re.findall(pattern, told)[0]
        return name, int(line)

    def variables(self) -> dict[str, str]:
        self.send(FRAME, self.thread, self.frame, "FRAME", 0)
        return dict(re.findall(r'<var name="([^"]+)".*?value="([^"]*)"', self.read(FRAME)))


@pytest.mark.skipif(find_spec("pydevd_pycharm") is None, reason="pydevd-pycharm is not installed")
def test_pycharm_steps_through_a_kernel(tmp_path: Path):
    script = tmp_path.resolve() / "prog.py"
    script.write_text(PLAIN)
    editor = PyCharm(script)
    try:
        editor.send(501, "1.1", "UNIX")
        editor.send(BREAK, "python-line", script, 12, "kernel", "ALL", "None", "None")
        assert editor.go(RUN, "") == ("kernel", 12)
        assert editor.variables()["total"] == "[0. 0. 0. 0.]"
        assert [editor.go(OVER), editor.go(OVER)] == [("kernel", 13), ("kernel", 12)]
        assert editor.go(GO) == ("kernel", 12)
        assert [editor.go(OVER), editor.go(INTO)] == [("kernel", 14), ("helper", 4)]
        assert editor.go(OVER) == ("helper", 5)
        assert editor.variables()["w"] == "[1. 2. 3. 4.]"
        assert [editor.go(OUT), editor.go(OVER)] == [("kernel", 14), ("kernel", 15)]
        editor.send(GO, editor.thread)
        assert "[ 2.  7. 12. 17.]" in editor.process.communicate(timeout=60)[0]
    finally:
        editor.process.kill()
        editor.stream.close()
        editor.connection.close()
