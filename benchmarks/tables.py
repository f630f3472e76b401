"""Writes the tables and the picture of docs/performance.md, docs/performance/ and README.md from benchmarks/results/.

    python benchmarks/tables.py [--check]

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; `--check` exits with 1 if a text is not what would be
written. A new measurement is a new file (`--json benchmarks/results/gpu.json`), a run of this program, and
one of `python -m tools.site.figures`, which draws the pictures of the tutorials.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

import breadth_tables
import chart
import model_tables
import record
import untuned_tables
from record import Results, Row

BELOW = 0.97  # rows under this ratio are listed as slower
TEXTS = ("README.md", "docs/performance.md", "docs/performance/*.md", "docs/language/accuracy.md")
RIVALS = {"triton": "Triton", "torch": "torch", "compiled": "torch.compile", "numba": "numba"}
SUMMED = ("triton", "torch", "compiled")  # rivals with a column of the summary
MEMORY_BOUND = ("vector add", "dropout", "softmax", "layer norm", "RMS norm", "cross entropy")
SMALL_SHAPES = ("1024^3", "512^3", "16x8192x8192")


@cache
def results(name: str) -> Results:
    return record.read(record.RESULTS / f"{name}.json")


def subject(row: Row) -> str:
    """Which table a row of gpu.json is in."""
    if row.name.startswith(MEMORY_BOUND):
        return "memory-bound"
    if "attention" in row.name and not row.name.startswith("decode"):
        return "attention"
    if row.name.startswith(("matmul", "persistent")) and row.shape.split()[0] not in SMALL_SHAPES:
        return "matmul" if row.dtype == "fp16" else "operands"
    return "small"


def of_gpu(kind: str, where: Callable[[Row], bool] = lambda row: True) -> list[Row]:
    return [row for row in results("gpu").rows if subject(row) == kind and where(row)]


def ratio(row: Row, rival: str) -> str:
    """In two digits, bold where tessera is slower; nothing where it was not measured."""
    if rival not in row.ratios:
        return ""
    text = f"{row.ratios[rival]:.2f}"
    return f"**{text}**" if float(text) < 1 else text


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [list(columns), ["---"] * len(columns), *rows]
    return [f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in line)}|" for line in lines]


def origin(*names: str) -> str:
    """Machine, versions, date, commit and command of some files, as a sentence."""
    found = results(names[0])
    commits = {f"commit {results(name).commit} ({results(name).date})": None for name in names}
    machine = found.machine.get("device") or found.machine.get("processor", "")
    shown = [f"{name} {v}" for name, v in found.versions.items() if name in RIVALS]
    parts = [machine, ", ".join(shown), ", ".join(commits), f"`{found.command}`"]
    return f"{'; '.join(filter(None, parts))}."


def gpu_table(rows: list[Row]) -> list[str]:
    unit = "/".join(dict.fromkeys(row.unit for row in rows)).replace("GB/s/TFLOP", "GB/s or TFLOP")
    columns = ["kernel", "shape", "dtype", "ms", f"tessera, {unit}", "Triton", "torch"]
    lines = [
        [row.name, row.shape, row.dtype, f"{row.times['tessera']:.4f}"]
        + [f"{row.rates[who]:.0f}" if who in row.rates else "" for who in ("tessera", "triton", "torch")]
        + [ratio(row, "triton"), ratio(row, "torch")]
        for row in rows
    ]  # fmt: skip
    return [origin("gpu"), "", *table([*columns, "vs Triton", "vs torch"], lines)]


def accuracy_table() -> list[str]:
    """A line for each function, with the largest error in ulp of each dtype on each device."""
    by_name: dict[str, dict[str, Row]] = {}
    for row in results("accuracy").rows:
        by_name.setdefault(row.name, {})[row.dtype] = row
    lines = [
        [name, *(f"{r[t].deviations[d]:.2f}" for t in ("fp32", "fp64") for d in ("cpu", "simt"))]
        for name, r in by_name.items()
    ]
    columns = ["function", "fp32 CPU", "fp32 GPU", "fp64 CPU", "fp64 GPU"]
    return [origin("accuracy"), "", *table(columns, lines)]


def launch_table() -> list[str]:
    """Times in µs."""
    columns = ["launch", "tessera, µs", "own share", "Triton", "vs Triton"]
    lines = [
        [row.name, *(f"{row.times[who]:.2f}" for who in ("tessera", "own share", "triton")), ratio(row, "triton")]
        for row in results("launch").rows
    ]  # fmt: skip
    return [origin("launch"), "", *table(columns, lines)]


def compile_table() -> list[str]:
    """Times in ms, and the mean of the kernels, without start and import."""
    lines = [
        [row.name, *(f"{row.times[who]:.0f}" for who in ("tessera", "triton")), ratio(row, "triton")]
        for row in results("compile_time").rows
    ]  # fmt: skip
    mean = f"{geomean(row.ratios['triton'] for row in compiled_kernels()):.2f}"
    lines.append(["geometric mean of the kernels", "", "", mean])
    columns = ["kernel", "tessera, ms", "Triton", "vs Triton"]
    return [origin("compile_time"), "", *table(columns, lines)]


def compiled_kernels() -> list[Row]:
    whole = ("first compilation", "import", "warm start")
    return [row for row in results("compile_time").rows if row.name not in whole]


def cpu_table(part: str) -> list[str]:
    """One and two threads side by side; the latter also beside threads of torch that spin between calls."""
    names = [f"cpu-{part}-{which}" for which in ("1-passive", "2-passive", "2-spinning")]
    found = [{row.key: row for row in results(name).rows} for name in names]
    compared = [rival for rival in RIVALS if any(rival in row.ratios for row in found[0].values())]
    columns = ["kernel", "shape", "dtype"]
    for threads in ("1 thread", "2 threads"):
        columns += [threads, *(f"vs {RIVALS[rival]}" for rival in compared)]
    lines: list[list[str]] = []
    for key, one in found[0].items():
        line = list(key)
        for row in (one, found[1][key]):
            line += [f"{row.rates['tessera']:.4g} {row.unit}", *(ratio(row, r) for r in compared)]
        spinning = found[2].get(key)
        lines.append([*line, ratio(spinning, "torch") if spinning is not None else ""])
    return [origin(*names), "", *table([*columns, "vs torch, spinning"], lines)]


def fused_table() -> list[str]:
    """Times in µs."""
    columns = ["function", "shape", "tessera, µs", "torch.compile", "torch"]
    lines = [
        [
            row.name, row.shape, *(f"{row.times[who]:.1f}" for who in ("tessera", "compiled", "torch")),
            ratio(row, "compiled"), ratio(row, "torch"),
        ]
        for row in results("graph_fused").rows
    ]  # fmt: skip
    columns += ["vs torch.compile", "vs torch"]
    return [origin("graph_fused"), "", *table(columns, lines)]


def products_table() -> list[str]:
    """Products with what follows them: the geometric mean and the range over sizes."""
    rows = results("graph_products").rows
    lines = [
        [
            name,
            str(len(found)),
            *(spread(found, rival) for rival in ("extern", "compiled", "torch")),
        ]
        for name in dict.fromkeys(row.name for row in rows)
        if (found := [row for row in rows if row.name == name])
    ]
    columns = ["function", "sizes", "vs eager's product", "vs torch.compile", "vs torch"]
    return [origin("graph_products"), "", *table(columns, lines)]


def breadth_table() -> list[str]:
    found = results("breadth")
    return [
        origin("breadth"),
        "",
        *table(breadth_tables.SPREAD, breadth_tables.breadth_lines(found)),
    ]


def libraries_table() -> list[str]:
    lines = breadth_tables.library_lines(results("libraries"))
    return [origin("libraries"), "", *table(breadth_tables.SPREAD, lines)]


def libraries_slow_table() -> list[str]:
    columns = ["function", "least ratio", "Triton there, µs", "rows below 0.97"]
    return table(columns, breadth_tables.slow_lines(results("libraries"), "triton"))


def special_table() -> list[str]:
    found = breadth_tables.special_lines(results("special_math"))
    return [origin("special_math"), "", *table(breadth_tables.SPECIAL, found)]


def breadth_slow_table() -> list[str]:
    columns = ["operation", "least ratio", "Triton there, µs", "rows below 0.97"]
    return table(columns, breadth_tables.slow_lines(results("breadth"), "triton"))


def untuned_summary() -> list[str]:
    lines = untuned_tables.summary_lines(results("untuned").rows)
    return [origin("untuned"), "", *table(untuned_tables.SUMMARY, lines)]


def untuned_table() -> list[str]:
    return table(untuned_tables.ALL, untuned_tables.all_lines(results("untuned").rows))


def plain_table() -> list[str]:
    names = [f"cpu-plain-{threads}" for threads in (1, 4, 16)]
    columns = ["kernel", "rows", "1 thread", "4 threads", "16 threads"]
    lines = breadth_tables.plain_lines([results(name) for name in names])
    return [origin(*names), "", *table(columns, lines)]


def plain_levels_table() -> list[str]:
    names = ["cpu-plain-zen4", "cpu-plain-zen4-avx2"]
    lines = breadth_tables.plain_lines([results(name) for name in names])
    return [origin(*names), "", *table(["kernel", "rows", "AVX-512", "AVX2"], lines)]


def plain_zen3_table() -> list[str]:
    lines = breadth_tables.plain_lines([results("cpu-plain-zen3")])
    return [origin("cpu-plain-zen3"), "", *table(["kernel", "rows", "AVX2, 1 thread"], lines)]


def product_levels_table() -> list[str]:
    names = ["cpu-products-zen4", "cpu-products-zen4-avx2"]
    lines = breadth_tables.product_lines([results(name) for name in names])
    return [origin(*names), "", *table(["product", "dtype", "rows", "AVX-512", "AVX2"], lines)]


def zen3_table(name: str, what: str) -> list[str]:
    lines = breadth_tables.product_lines([results(name)])
    return [origin(name), "", *table([what, "dtype", "rows", "AVX2, 1 thread"], lines)]


def attention_on_cpu_table() -> list[str]:
    return zen3_table("cpu-attention-zen3", "attention")


def products_zen3_table() -> list[str]:
    return zen3_table("cpu-products-zen3", "product")


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))


def spread(rows: list[Row], rival: str) -> str:
    """Geometric mean and range of the ratios to a rival."""
    found = [row.ratios[rival] for row in rows if rival in row.ratios]
    if not found:
        return ""
    return f"{geomean(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def groups() -> list[tuple[str, list[Row], str]]:
    """Title, rows and page of each line of the summary."""

    def of_attention(backward: bool, descriptors: bool) -> list[Row]:
        return of_gpu(
            "attention",
            lambda row: ("backward" in row.name, "descriptors" in row.name)
            == (backward, descriptors) and "FA2" not in row.name,
        )  # fmt: skip

    found = [
        ("memory-bound kernels", of_gpu("memory-bound"), "memory-bound"),
        ("matmul, fp16", of_gpu("matmul"), "matmul"),
        ("matmul, tf32, fp8, int8, any operand order", of_gpu("operands"), "matmul-operands"),
        ("small and skinny problems", of_gpu("small"), "split-k"),
        ("attention forward, descriptors", of_attention(False, True), "attention"),
        ("attention forward, pointers", of_attention(False, False), "attention"),
        ("attention backward, descriptors (torch: cuDNN)", of_attention(True, True), "attention"),
        ("attention backward, pointers", of_attention(True, False), "attention"),
        ("host time of a launch", results("launch").rows, "launch-and-compile"),
        ("cold compile of a kernel, sm_90a", compiled_kernels(), "launch-and-compile"),
    ]
    for part, title in (("rows", "CPU, rows and attention"), ("matmul", "CPU, matmul")):
        for threads, text in (("1", "1 thread"), ("2", "2 threads")):
            rows = results(f"cpu-{part}-{threads}-passive").rows
            found.append((f"{title}, {text}", rows, "cpu"))
    found.append(("fused functions under torch.compile", results("graph_fused").rows, "graph"))
    return found


def summary() -> list[str]:
    lines = [
        [f"[{title}](performance/{page}.md)", str(len(rows)), *(spread(rows, r) for r in SUMMED)]
        for title, rows, page in groups()
    ]  # fmt: skip
    return table(["what", "rows", "vs Triton", "vs torch", "vs torch.compile"], lines)


def slower() -> list[str]:
    """Every row below BELOW beside any rival, the slowest first."""
    found = [
        (value, title, row, rival)
        for title, rows, _ in groups()
        for row in rows
        for rival, value in row.ratios.items()
        if value < BELOW
    ]
    lines = [
        [title, row.name, f"{row.shape} {row.dtype}", RIVALS[rival], f"{value:.2f}"]
        for value, title, row, rival in sorted(found, key=lambda entry: entry[0])
    ]
    return table(["what", "kernel", "shape", "rival", "ratio"], lines)


def headline() -> list[str]:
    """The table of README.md: some rows of the others, several shapes of a kernel in one line."""

    def line(title: str, keys: str, library: str, *names: str) -> list[str]:
        """`keys`: "SHAPE DTYPE" of one name, separated by commas, or one for several names."""
        wanted = [(name, *key.rsplit(" ", 1)) for name in names for key in keys.split(", ")]
        rows = [_row_of(*key) for key in wanted]
        both = [" / ".join(f"{row.ratios[r]:.2f}" for row in rows) for r in ("triton", "torch")]
        return [title, both[0], f"{both[1]} {library}"]

    lines = [
        line("fp16 matmul through pointers, 8192³ / 4096³ / 2048³",
             "8192^3 rr fp16, 4096^3 rr fp16, 2048^3 rr fp16", "cuBLAS", "matmul, pointers"),
        line("the same, B column-major", "8192^3 rc fp16, 4096^3 rc fp16, 2048^3 rc fp16", "cuBLAS",
             "matmul, pointers"),
        line("persistent fp16 matmul, descriptors, 8192³ / 4096³", "8192^3 fp16, 4096^3 fp16", "cuBLAS",
             "persistent matmul"),
        line("tf32 matmul 4096³, both operands row-major", "4096^3 rr tf32", "cuBLAS", "matmul, pointers"),
    ]  # fmt: skip
    forward = ("attention by descriptors", "causal attention by descriptors")
    for dim in (64, 128):
        title = f"attention forward, descriptors, dimension {dim}, full / causal"
        lines.append(line(title, f"128x4096x{dim} fp16", "cuDNN", *forward))
    backward = [f"{name}, backward, torch: cuDNN" for name in forward]
    for dim in (64, 128):
        title = f"attention backward, descriptors, dimension {dim}, full / causal"
        lines.append(line(title, f"128x4096x{dim} fp16", "cuDNN", *backward))
    memory = of_gpu("memory-bound")
    for title, rows in (
        (
            f"softmax, norms, cross entropy, dropout, add ({len(memory)} rows), geometric mean",
            memory,
        ),
        ("host time of a launch, geometric mean", results("launch").rows),
        ("cold compile, six kernels, Triton 3.9, geometric mean", compiled_kernels()),
    ):
        library = f"{geomean(r.ratios['torch'] for r in rows):.2f} torch" if rows is memory else ""
        lines.append([title, f"{geomean(r.ratios['triton'] for r in rows):.2f}", library])
    found = results("gpu")
    about = (
        f"{found.machine['device']}, {found.date}, commit {found.commit}; launches and compile time"
    )
    about += f" {results('launch').date}. Above 1: tessera is faster."
    return [
        about,
        "",
        *table(["kernel, as its author writes it", "vs Triton", "vs library"], lines),
    ]


def _row_of(name: str, shape: str, dtype: str) -> Row:
    return next(row for row in results("gpu").rows if row.key == (name, shape, dtype))


TABLES: dict[str, Callable[[], list[str]]] = {
    "summary": summary,
    "slower": slower,
    "headline": headline,
    "accuracy": accuracy_table,
    "launch": launch_table,
    "compile": compile_table,
    "graph-fused": fused_table,
    "graph-products": products_table,
    "graph-models": lambda: model_tables.summary(table),
    "graph-models-cpu": lambda: model_tables.on_cpu(table),
    **{
        f"graph-models-{mode}": lambda mode=mode: model_tables.models(mode, table)
        for mode in filter(model_tables.there, model_tables.MODES)
    },
    "special": special_table,
    "special-slow": lambda: table(
        breadth_tables.SLOW_SPECIAL, breadth_tables.slow_special_lines(results("special_math"))
    ),
    "untuned-summary": untuned_summary,
    "untuned": untuned_table,
    "breadth": breadth_table,
    "breadth-slow": breadth_slow_table,
    "libraries": libraries_table,
    "libraries-slow": libraries_slow_table,
    "cpu-plain": plain_table,
    "cpu-plain-levels": plain_levels_table,
    "cpu-plain-zen3": plain_zen3_table,
    "cpu-attention": attention_on_cpu_table,
    "cpu-product-levels": product_levels_table,
    "cpu-products-zen3": products_zen3_table,
    "cpu-rows": lambda: cpu_table("rows"),
    "cpu-matmul": lambda: cpu_table("matmul"),
    **{
        kind: lambda kind=kind: gpu_table(of_gpu(kind))
        for kind in ("memory-bound", "matmul", "operands", "attention", "small")
    },
}
MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rewritten(text: str) -> str:
    """`text` with its tables as they should be."""
    return MARKED.sub(lambda m: f"{m[1]}{chr(10).join(TABLES[m[2]]())}\n{m[3]}", text)


def written() -> dict[Path, str]:
    """All texts with tables, and the picture, as they should be."""
    found = [path for pattern in TEXTS for path in sorted(record.ROOT.glob(pattern))]
    ratios = (
        (title, [(who, r.ratios[who]) for r in rows for who in chart.COLOURS if who in r.ratios])
        for title, rows, _ in groups()
    )
    picture = record.ROOT / "docs" / "performance" / "ratios.svg"
    return {path: rewritten(path.read_text("utf-8")) for path in found} | {
        picture: chart.drawn(ratios)
    }


def main(args: list[str]) -> int:
    stale = {p: t for p, t in written().items() if not p.exists() or p.read_text("utf-8") != t}
    for path, text in stale.items():
        if "--check" in args:
            print(f"{path} is not what python benchmarks/tables.py writes")
        else:
            path.write_text(text, encoding="utf-8")
    return int("--check" in args and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
