"""The pass manager and the text of pipelines."""

from __future__ import annotations

import pytest

from tessera.backends.cpu.backend import cpu_pipeline
from tessera.dtypes import float32
from tessera.errors import IRError
from tessera.ir import Module, Pass, PassManager, parse_module, pass_
from tessera.ir.passes import FORMER_NAMES, PASS_NAMES, PASSES, parse_pipeline
from tessera.ops import WhileOp
from tessera.passes import gpu_pipeline
from tessera.passes.neutral import wide_index
from tessera.passes.neutral.canonicalize import canonicalize
from tessera.passes.neutral.pipeline import neutral_pipeline
from tessera.tools import opt
from tests.unit.op_samples import kernel

RUNS: list[tuple[str, object]] = []


@pass_("test-note")
def note(module: Module, a: object = 0, b: object = "") -> None:
    """Writes down its options."""
    RUNS.append((str(a), b))


@pass_("test-break")
def break_types(module: Module) -> None:
    """Makes IR that no verifier takes."""
    module.functions[1].regions[0].args[0].type = float32


@pass_("test-fail")
def fail(module: Module) -> None:
    """Fails."""
    raise RuntimeError("on purpose")


def some() -> Module:
    return parse_module(kernel("%x: i32 = add %i, %i\nprint [%x]\n", "%i: i32"))


def test_passes_run_in_order_and_are_timed() -> None:
    seen: list[str] = []
    manager = PassManager(
        [note, *neutral_pipeline()], verify=True, after=lambda name, m: seen.append(name)
    )
    module = some()
    assert manager.run(module) is module
    names = ["canonicalize", "cse", "licm", "while-to-for", "known-comparisons", "narrow-division"]
    names += ["canonicalize", "cse"]
    assert seen == ["test-note", *names]
    assert [name for name, _ in manager.timings] == seen and all(t >= 0 for _, t in manager.timings)


def test_pipelines_of_the_cpu() -> None:
    """The clean-up at the end stays what it is when the list that all targets share grows."""
    neutral = [p.name for p in neutral_pipeline()]
    inner = ["narrow-tiles", "exchange-partners", "scan-positions"]
    inner += ["narrow-accumulators", "scalarise-inductions"]
    names = ["lower-descriptors", *neutral, *inner, "canonicalize", "cse"]
    assert [p.name for p in cpu_pipeline()] == names
    checked = ["lower-descriptor-rows", "checks", "canonicalize", "cse"]
    assert [p.name for p in cpu_pipeline(checked=True)] == checked


def test_verification_names_the_pass() -> None:
    with pytest.raises(IRError) as caught:
        PassManager([note, break_types, note], verify=True).run(some())
    assert caught.value.__notes__ == ["found after pass 'test-break'"]
    PassManager([break_types]).run(some())  # not asked to verify
    broken = some()
    break_types(broken)
    with pytest.raises(IRError) as caught:
        PassManager([note], verify=True).run(broken)
    assert caught.value.__notes__ == ["found before the first pass"]


def test_a_failing_pass_is_named() -> None:
    with pytest.raises(RuntimeError, match="on purpose") as caught:
        PassManager([fail]).run(some())
    assert caught.value.__notes__ == ["in pass 'test-fail'"]


@pytest.mark.parametrize(
    ("which", "shown"),
    [
        ("cse", ["cse"]),
        ("all", ["test-note", "cse"]),
        ("cse, test-note", ["test-note", "cse"]),
        ("licm", []),
        ("", []),
    ],
)
def test_printing_between(which: str, shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    PassManager([note, PASSES["cse"]], print_after=which).run(some())
    err = capsys.readouterr().err
    assert [line[9:] for line in err.splitlines() if line.startswith("// after")] == shown
    assert err.count("add %i, %i") == len(shown)


def test_options_are_bound() -> None:
    RUNS.clear()
    PassManager(parse_pipeline("test-note, test-note{a=1} ,test-note{a=(1, 2), b='x,y'},cse")).run(
        some()
    )
    assert RUNS == [("0", ""), ("1", ""), ("(1, 2)", "x,y")]
    bound = note.bind(b=5)
    assert isinstance(bound, Pass) and bound.name == "test-note"
    bound(some())
    assert RUNS[-1] == ("0", 5)


def test_no_pipeline() -> None:
    assert parse_pipeline("") == [] == parse_pipeline("  ")
    with pytest.raises(KeyError, match=r"no pass .verify.; there are: .*canonicalize, .*cse"):
        parse_pipeline("cse,verify")
    with pytest.raises(KeyError, match="no pass 'canonicalise'; did you mean `canonicalize`"):
        parse_pipeline("cse,canonicalise")
    for text in ("cse;licm", "cse,", "cse licm", "{a=1}", "cse{a=1", ",cse"):
        with pytest.raises(ValueError, match="not a pipeline at"):
            parse_pipeline(text)
    for text in ("cse{a}", "cse{1}", "cse{a=}", "cse{a=b}"):
        with pytest.raises(ValueError):
            parse_pipeline(text)


def test_former_names_work_and_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_pipeline  # registers its passes
    for former, now in {**FORMER_NAMES, "split_loops": "split-loops"}.items():
        assert former not in PASSES
        with pytest.warns(DeprecationWarning, match=f"the pass {former} is called {now} now"):
            assert [p.name for p in parse_pipeline(f"cse,{former}")] == ["cse", now]
    with pytest.warns(DeprecationWarning, match="count_loops is called while-to-for now"):
        PassManager([PASSES["while-to-for"]], print_after="count_loops").run(some())
    assert capsys.readouterr().err.startswith("// after while-to-for\n")


def test_a_misspelt_pass_to_print_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="PRINT_AFTER: no pass 'coalescing'; did you mean `coal"):
        PassManager([note, PASSES["cse"]], print_after="coalescing, cse").run(some())
    assert "// after cse\n" in capsys.readouterr().err


def test_the_names_of_all_passes() -> None:
    """Those of a target that the process does not use are known, too."""
    assert gpu_pipeline and opt and wide_index  # they register all passes
    own = [name for name, p in PASSES.items() if p.fn.__module__.startswith("tessera.")]
    assert sorted(own) == sorted(PASS_NAMES)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(TypeError, match="pass 'cse' is defined twice"):
        pass_("cse")(lambda module: None)


def test_a_while_whose_condition_takes_many_steps_is_looked_at_once_a_step() -> None:
    """Each step uses the one before twice: to follow both uses would take 2^64 steps."""
    doubled = "\n".join(f"%x{i + 1}: i32 = add %x{i}, %x{i}" for i in range(64))
    text = f"""module {{num_warps=1}} {{
      func {{name='kernel'}} (%n: i32) {{
        %one: i32 = const {{value=1}}
        %r: i32 = while [START] (%x0: i32) {{
          {doubled}
          %c: i1 = cmp %x64, %one {{predicate='eq'}}
          condition %c, [%x0]
        }} (%b: i32) {{
          %d: i32 = add %b, %n
          yield [%d]
        }}
        print [%r]
        return []
      }}
    }}"""
    loops: list[int] = []
    for start in ("%n", "%one"):
        module = parse_module(text.replace("START", start))
        canonicalize(module)
        loops.append(sum(isinstance(op, WhileOp) for op in module.walk()))
    assert loops == [1, 0]  # from 1 on it is 2^64, which is 0 in 32 bits
