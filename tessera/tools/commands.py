"""Lists the commands of `tessera`: where each is implemented, its usage, and what it does."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """`module:function` takes the arguments, and the function that runs a program if `runs`; `form`: its usage."""

    where: str
    form: str
    what: str
    runs: bool = False


COMMANDS = {
    "doctor": Command(
        "tessera.tools.doctor:doctor", "[--json]", "what is installed here, and whether kernels run"
    ),
    "run": Command(
        "tessera.compat.run:run", "SCRIPT | -m MODULE [ARGS...]",
        "run a program in which `import triton` means tessera",
    ),
    "compile": Command(
        "tessera.tools.compile_kernel:compile_kernel",
        "SCRIPT:KERNEL --signature 'x=*fp32,n=i32,B=8' [--target sm_90] [--stage ptx] [--option num_warps=8] [-o F]",
        "compile a kernel without running it, to any stage",
    ),
    "explain": Command(
        "tessera.tools.explain:command", "[--target sm_90] [--json FILE] [--html FILE] SCRIPT[:KERNEL] [ARGS...]",
        "tell for each line of a kernel what it moves, computes and costs, and what bounds it", True,
    ),
    "profile": Command(
        "tessera.tools.profile:command",
        "[--trace FILE] [--counts] [--timeline FILE [--kernel NAME]] SCRIPT [ARGS...]",
        "show the time of each kernel and scope of a program, or what warps do inside of a kernel", True,
    ),
    "widths": Command(
        "tessera.tools.widths:command", "[--target sm_90] SCRIPT [ARGS...]",
        "tell how wide each load and store of a program's kernels is, and why it is no wider", True,
    ),
    "tune": Command(
        "tessera.tools.tuning:command",
        "[--plot FILE] [--again] SCRIPT [ARGS...] | --show | --export FILE | --import FILE",
        "tune the kernels of a program; results on disk: the best configs, a lockfile to share", True,
    ),
    "cache": Command(
        "tessera.tools.cli:cache",
        "info | list | prune MB | clear [--older DAYS] | export FILE | import FILE",
        "compiled kernels on disk: size, removal, transfer to other machines",
    ),
    "bisect": Command(
        "tessera.tools.bisect:bisect", "[--repeat N] [--timeout S] SCRIPT [ARGS...]",
        "find the application of an optimisation that makes a program wrong", True,
    ),
    "replay": Command(
        "tessera.tools.replay.__main__:main", "compare COMMIT | ...",
        "show which kernels' code a change of tessera alters",
    ),
    "opt": Command(
        "tessera.tools.opt:opt", "[--passes NAMES] [--target sm_90] [--disable NAMES] FILE",
        "run passes on IR (.tir, .gir) and print the result",
    ),
    "completions": Command(
        "tessera.tools.completions:completions", "bash | zsh | fish",
        "print a script that completes commands in a shell",
    ),
}  # fmt: skip
