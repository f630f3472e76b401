# ruff: noqa: E501  rows of a table
"""Lists the optimisations: each transformation that correctness does not need has one row here.

Transformations without a row are needed for correctness. docs/optimizations.md is generated from the table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Optimization:
    """`unit`: what one application is. `assumes`: the preconditions of correctness; `proven_by`: what establishes
    them; `tests`: the files that test it, and what else fuzzes it."""

    name: str
    targets: str  # of "cpu" and "gpu", or both
    does: str
    assumes: str
    proven_by: str
    tests: str
    unit: str = "kernel"
    takes_room: bool = False  # registers or shared memory


def _row(*fields: str, unit: str = "kernel", takes_room: bool = False) -> Optimization:
    return Optimization(*fields, unit=unit, takes_room=takes_room)


PASSES = "tests/fuzz/test_passes_keep_meaning.py"
KERNELS = "tests/fuzz/test_kernels_agree.py"
DOTS = "tests/unit/test_gpu_passes_dots.py"

TILE_IR = (
    _row("canonicalize", "cpu gpu", "folds constants, uniform masks, branches and loops that are known; drops dead code", "each rule keeps the value for all inputs", "the rule's own condition", f"tests/filecheck/canonicalize, {PASSES}", unit="rewrite"),
    _row("cse", "cpu gpu", "makes one op of equal pure ops", "equal operands, attributes and types; no effect", "`Effect.NONE` of the op's class", f"tests/filecheck/cse.tir, {PASSES}", unit="op"),
    _row("licm", "cpu gpu", "moves invariant pure ops in front of loops", "operands are defined outside; the op cannot trap where the loop would not have run", "passes/neutral/licm.py `_may_trap`", f"tests/filecheck/licm.tir, {PASSES}", unit="op"),
    _row("while-to-for", "cpu gpu", "makes `for` loops of `while` loops that count", "one comparison with a fixed bound decides alone; a constant step", "passes/neutral/while_to_for.py `_count`", f"tests/filecheck/while-to-for.tir, {PASSES}", unit="loop"),
    _row(
        "known-comparisons", "cpu gpu", "drops masks and branches that intervals of indices decide: `i + arange < 128` in a loop to 128 by whole blocks", "an interval holds for every element of every program and iteration", "analysis/ranges.py; arithmetic that may wrap has none", f"tests/filecheck/known-comparisons.tir, tests/unit/test_ranges.py, {PASSES}", unit="op",
    ),
    _row("common-addends", "cpu gpu", "compares sums by what they do not share: `i * 64 + row >= i * 64 + column` is a triangle in registers", "the same scalar is added to all elements; intervals show that neither sum wraps", "passes/neutral/known_comparisons.py `_leave_common`", f"tests/filecheck/known-comparisons.tir, {PASSES}, {KERNELS}", unit="op"),
    _row("narrow-division", "cpu gpu", "divides in 32 bits what was widened to 64 and fits in 32: program ids as int64", "intervals hold both operands and the result; division by zero gives the same in each width", "analysis/ranges.py", f"tests/filecheck/narrow-division.tir, {PASSES}", unit="op"),
    _row("peel-first", "gpu", "takes the first iteration out of loops that branch on being in it: Welford's means", "constant bounds; at least two iterations", "passes/neutral/peel.py `_peelable`", "tests/filecheck/peel-first.tir, tests/unit/test_ranges.py", unit="loop"),
    _row("aligned-extents", "gpu", "gives work on descriptors a version for rows whose extents are multiples of 16 bytes, in which threads access vectors", "none: the kernel looks", "passes/neutral/aligned_extents.py", "tests/filecheck/aligned-extents.tir, tests/lang/test_descriptor_extents.py", unit="block"),
    _row("unroll", "gpu", "puts several iterations into one body where `loop_unroll_factor` asks for it", "a constant step; the widened step fits the index's type", "passes/neutral/unroll.py", "tests/unit/test_unroll.py", unit="loop"),
)  # fmt: skip

GRAPHS = (
    _row("graph-canonicalize", "cpu gpu", "folds views into the maps of loads, simplifies maps, resolves known masks, drops copies", "each rule keeps the value for all indices in range", "graph/index/ranges.py", "tests/unit/test_graph_passes.py", unit="rewrite"),
    _row("graph-cse", "cpu gpu", "makes one of equal loops", "equal operands, attributes and bodies; no effect", "graph/passes/equal.py", "tests/unit/test_graph_passes.py", unit="op"),
    _row(
        "graph-add-biases", "gpu", "adds the biases of convolutions in loops, which are parts of others, where the library takes a kernel for each", "the library rounds what it computes before it adds",
        "graph/passes/biases.py", "tests/unit/test_graph_biases.py", unit="op",
    ),
    _row(
        "graph-channels-last", "cpu gpu", "lets convolutions and the loops between them have channels last in memory", "elements stay at their coordinates; what leaves the graph, or goes to other library functions, keeps its strides",
        "graph/passes/layouts.py, docs/graph-layouts.md", "tests/unit/test_graph_layouts.py", unit="graph",
    ),
    _row(
        "graph-inline-loops", "cpu gpu", "computes a loop's result where it is read", "loads are in range where their mask holds",
        "the meaning of `graph.load`", "tests/unit/test_graph_passes.py", unit="loop",
    ),
    _row(
        "graph-fuse-rows", "cpu gpu", "lets a loop and one that reads its result share outer indices",
        "equal extents; loads' first coordinates are the outer indices; no way around", "graph/passes/fuse.py", "tests/unit/test_graph_passes.py", unit="loop",
    ),
    _row(
        "graph-permute-loops", "cpu gpu", "lets a loop share an index that is not its outermost one: batch norm's channels", "as graph-fuse-rows; results keep their places in memory", "graph/passes/reindex.py `permute`", "tests/unit/test_graph_reindex.py", unit="loop",
    ),
    _row(
        "graph-split-loops", "cpu gpu", "makes two of an index, so that loops share one more: group norm's channels",
        "the extent is a multiple; results keep their places in memory", "graph/passes/reindex.py `split`", "tests/unit/test_graph_reindex.py", unit="loop",
    ),
    _row(
        "graph-reduce-scatters", "cpu gpu", "makes reductions of small scatters into equal elements", "known sizes; an associative function; sums change their order", "graph/passes/small_scatters.py",
        "tests/unit/test_graph_small_scatters.py, tests/fuzz/test_graphs_keep_meaning.py", unit="op",
    ),
    _row("graph-recompute-expanded", "cpu gpu", "computes what expands smaller tensors where it is read, rather than to store it", "each element takes scalar operations alone on what the loop reads, or stores besides", "graph/passes/expanded.py", "tests/filecheck/graph-recompute-expanded.gph, tests/fuzz/test_graph_expanded.py", unit="op"),
    _row(
        "graph-narrow-results", "cpu gpu", "stores numbers that a loop widens as they were, and widens them where they are read", "nothing but loads uses the tensor", "graph/passes/narrow.py",
        "tests/filecheck/graph-narrow-results.gph, tests/fuzz/test_graph_halves.py", unit="rewrite",
    ),
    _row(
        "graph-drop-roundings", "cpu gpu", "hands fp32 numbers on between operations of a kernel on half types", "results that nothing compares, no conversion that the program asks for; not under numerics=\"eager\"", "graph/passes/roundings.py", "tests/unit/test_graph_roundings.py", unit="rewrite",
    ),
    _row(
        "graph-fuse-equal", "cpu gpu", "makes one of loops of equal extents that read the same tensor", "neither depends on the other",
        "graph/passes/fuse.py `Order.between`", "tests/unit/test_graph_passes.py", unit="loop",
    ),
    _row(
        "graph-split-index-sets", "cpu gpu", "splits loops where conditions on an index change: concatenations, padding, rotary embeddings", "the order of the bounds is proved; no more memory is held",
        "graph/passes/index_sets.py", "tests/unit/test_graph_concat.py, tests/fuzz/test_graphs_keep_meaning.py", unit="loop",
    ),
    _row(
        "graph-place-parts", "cpu gpu", "computes tensors where they lie in a concatenation", "kernels make them, and whoever reads them reads any strides; they begin at multiples of 16 bytes",
        "graph/ir/concat.py", "tests/unit/test_graph_concat.py, tests/fuzz/test_graphs_keep_meaning.py", unit="tensor",
    ),
    _row(
        "graph-split-reductions", "cpu gpu", "reduces parts first where few programs would reduce all", "known extents; no reduction reads another one's result; sums change their order",
        "graph/passes/split.py", "tests/unit/test_graph_split.py, tests/fuzz/test_graphs_keep_meaning.py", unit="loop",
    ),
    _row(
        "graph-own-products", "cpu gpu", "makes a kernel of a matrix product that eager's library would do", "sums are of the type that eager's are of, and are rounded once; their order changes",
        "graph/torch/lowering/matmul.py `profitable`, graph/emit/product_time.py", "tests/graph/test_torch_products.py", unit="product",
    ),
    _row("graph-split-addmm", "gpu", "lets the library compute fp32 products without their bias, which a loop adds", "no tf32; a sum is rounded to fp32 before the bias is added", "graph/torch/lowering/matmul.py", "tests/graph/test_torch_products.py", unit="product"),
    _row("graph-share-heads", "cpu", "lets attention read heads of keys and values that a program copies for several heads of queries where they are", "nobody else reads the copies; the heads of a group are proved equal", "graph/torch/lowering/shared_heads.py", "tests/graph/test_torch_attention.py", unit="attention"),
    _row("graph-order-extrema", "cpu gpu", "finds the place of an extremum by one comparison an element, where a window's elements come in order", "places are the window's indices; of equal elements the first wins, of NaNs the first or the last, as asked for", "graph/ir/combine.py `in_order`", "tests/unit/test_graph_extrema.py", unit="reduction"),
    _row("graph-point-convolutions", "cpu", "makes products of matrices of convolutions of images of one element", "windows of one element, no padding, one group; their order of sums changes", "graph/torch/lowering/convolution.py", "tests/graph/test_torch_products.py", unit="product"),
    _row("graph-select-largest", "cpu", "finds the few largest or smallest elements of rows by a walk through the row for each, instead of sorting it", "fp32 in rows of known length; integers of key and place are compared, so that the order is the stable sort's", "graph/torch/lowering/sort.py `selected`", "tests/graph/test_torch_largest.py", unit="topk"),
    _row("graph-fuse-products", "cpu gpu", "computes what makes a product's operands, and what reads it, in its kernel", "nobody else reads these operands; all readers read the product at their own place", "graph/planning/products.py", "tests/unit/test_graph_matmul.py, tests/fuzz/test_graphs_keep_meaning.py", unit="loop"),
    _row(
        "graph-walk-rows", "gpu", "reduces columns in the kernel that computes the rows: layer norm's backward", "columns read of the rows' results what they have at the same place; neither needs the other through a third op; sums change their order",
        "graph/passes/walk_rows.py", "tests/unit/test_graph_walk_rows.py, tests/fuzz/test_graphs_keep_meaning.py", unit="loop",
    ),
    _row("graph-align-rows", "gpu", "walks through long rows of odd length from a multiple of 16 bytes on, so that threads read and write vectors; a row's edges are a small tile of their own", "known lengths; each loop of a row may take its elements in any order; sums change their order", "graph/emit/aligned.py", "tests/unit/test_graph_align.py", unit="loop"),
    _row("graph-stream-scans", "cpu", "scans rows of any length in one loop, instead of in steps that carry what the last one came to", "known lengths; nothing but the scan, what it reads and what is computed from each of its elements is in the nest", "graph/emit/tiling.py `_streams`", "tests/unit/test_graph_split_scan.py, tests/fuzz/test_graphs_keep_meaning.py", unit="loop"),
    _row(
        "graph-split-scans", "gpu", "scans parts of long rows, each from what the parts before it come to, where rows are few", "known lengths; each element needs the scan at its own place alone; sums change their order",
        "graph/passes/split_scan.py", "tests/unit/test_graph_split_scan.py, tests/fuzz/test_graphs_keep_meaning.py", unit="loop",
    ),
    _row(
        "graph-sum-moments", "cpu gpu", "sums a row for its mean, then the squares of what is left, where a program holds the row", "the reduction is Welford's, of numbers one by one; sums change their order",
        "graph/passes/moments.py", "tests/unit/test_graph_moments.py, tests/fuzz/test_graphs_keep_meaning.py", unit="reduction",
    ),
    _row(
        "graph-reuse-memory", "cpu gpu", "lets a result take the memory of a tensor that is dead where it is made", "nobody reads the memory any more; where an operand dies there, each program reads what it writes, and no more, before it writes",
        "graph/planning/settle.py, `KernelCode.reusable`", "tests/unit/test_graph_memory.py, tests/fuzz/test_graphs_keep_meaning.py", unit="tensor",
    ),
    _row(
        "graph-cut-arena", "cpu gpu", "takes several arenas in place of one, each for as long as its tensors live", "the library's allocator gives memory to later work, on a GPU of the same stream",
        "graph/planning/settle.py, graph/planning/memory.py `cut`", "tests/unit/test_graph_memory.py, tests/fuzz/test_graphs_keep_meaning.py", unit="graph",
    ),
    _row("graph-drop-copies", "cpu gpu", "reads what a copy is of in its place, so that both are not saved for gradients", "nobody writes to either; results of a graph keep memory of their own", "graph/torch/partition.py", "tests/graph/test_torch_memory.py", unit="graph"),
    _row("graph-narrow-places", "cpu gpu", "saves the places of maxima in their windows, in 8 bits, for the gradient of max pooling, and not what is pooled", "a maximum lies in its window, which has at most 127 elements", "graph/torch/partition.py", "tests/graph/test_torch_memory.py", unit="graph"),
    _row("graph-recompute-biases", "cpu gpu", "computes the biases of attention again for its gradients, where a few numbers make them, and does not save them", "arguments make them, by operations on single elements, views and constants, at most 64; they take at least four times the bytes of these arguments", "graph/torch/again.py", "tests/graph/test_torch_again.py", unit="graph"),
    _row("graph-recompute-rows", "cpu gpu", "loads rows of a table at known places for gradients again, as those of positions, and does not save them", "the table is an argument, the places come of numbers alone", "graph/torch/again.py", "tests/graph/test_torch_again.py", unit="graph"),
    _row("graph-sum-windows", "cpu", "computes the gradients of depthwise convolutions' weights by sums over windows that nobody writes out", "known sizes; bf16, or windows of at least 16 elements; sums change their order", "graph/torch/windows.py", "tests/graph/test_torch_windows.py", unit="graph"),
    _row("graph-drop-masks", "cpu gpu", "lets attention be causal, or without a mask, where its mask is known when a graph is compiled, and says just that", "all numbers of the mask are computed, and compared", "graph/torch/masks.py", "tests/graph/test_torch_masks.py", unit="graph"),
    _row(
        "graph-break-launches", "cpu gpu", "starts kernels in two calls of native code in place of one, between which memory goes back", "the launches and their order stay the same", "graph/planning/breaks.py, graph/planning/settle.py",
        "tests/unit/test_graph_memory.py, tests/fuzz/test_graphs_keep_meaning.py", unit="graph",
    ),
    _row("graph-share-pages", "gpu", "lets small tensors that are saved for gradients share pages of the library's allocator", "known sizes; the program itself gets none of them; they begin at multiples of 16 bytes", "graph/planning/pages.py", "tests/graph/test_torch_memory.py", unit="page"),
    _row("graph-order-steps", "cpu gpu", "runs the kernels and calls of a graph in an order in which less memory is held", "no step passes one that it depends on, nor one with an effect", "graph/planning/order.py", "tests/unit/test_graph_step_order.py, tests/fuzz/test_graphs_keep_meaning.py", unit="graph"),
    _row(
        "graph-join-gradients", "cpu", "computes all gradients of attention by one program for each head of keys", "sums in memory are of the type that is added up; no two programs add to one element", "graph/passes/split_attention.py", "tests/unit/test_graph_attention_grads.py", unit="op",
    ),
)  # fmt: skip

GPU = (
    _row(
        "cluster-partition", "gpu", "cuts a program's tiles into parts, one for each CTA of a cluster",
        "CTAs exchange nothing; each array is only read or only written", "analysis/dimensions.py, the checks in passes/gpu_scheduling/clusters.py",
        "tests/unit/test_clusters.py, tests/gpu/test_clusters_gpu.py",
    ),
    _row(
        "cluster-multicast", "gpu", "loads a tile that is the same in all CTAs of a cluster once",
        "offsets do not depend on the CTA's rank", "passes/gpu_scheduling/clusters.py `_reached`", "tests/unit/test_clusters.py",
        unit="load",
    ),
    _row(
        "descriptor-to-tma", "gpu", "loads blocks of descriptors by the TMA unit",
        "base, extents and strides are arguments or constants; the last offset is a multiple of 16 bytes",
        "passes/gpu_movement/tensor_maps.py, axis analysis", "tests/unit/test_tensor_maps.py, tests/gpu/test_tensor_maps_gpu.py", unit="load", takes_room=True,
    ),
    _row(
        "tma-store", "gpu", "stores blocks of descriptors by the TMA unit", "as descriptor-to-tma; rows end at multiples of 16 bytes",
        "passes/gpu_movement/tensor_maps.py; the `precondition`", "tests/unit/test_tensor_maps.py, tests/gpu/test_tensor_maps_gpu.py", unit="store", takes_room=True,
    ),
    _row(
        "pointer-to-tma", "gpu", "loads tiles of pointers for MMAs by the TMA unit",
        "the pointers are a strided view of an array; nothing that is written overlaps with it",
        "analysis/strided_views.py; at each launch the module's `precondition`", "tests/unit/test_pointer_to_tma.py, tests/fuzz/test_strided_views.py",
        unit="loop", takes_room=True,
    ),
    _row(
        "persistent-programs", "gpu", "lets a CTA run several programs, so that one loads while another one stores",
        "programs do not wait for one another; one store ends each", "passes/gpu_scheduling/persist.py; the `precondition`",
        "tests/unit/test_persist.py, tests/gpu/test_persist_gpu.py", takes_room=True,
    ),
    _row(
        "mma", "gpu", "multiplies tiles by matrix instructions of a warp", "an instruction for the types and the depth",
        "`GpuFacts.find_mma`", f"tests/lang/test_dot.py, {DOTS}", unit="dot", takes_room=True,
    ),
    _row(
        "wgmma", "gpu", "multiplies tiles by matrix instructions of warpgroups", "operands fill swizzled rows of shared memory",
        "passes/gpu_layout/warpgroup.py `_plan`", f"tests/lang/test_dot_orders.py, {DOTS}", unit="dot", takes_room=True,
    ),
    _row("operand-order", "gpu", "writes operands of MMAs that a loop computes to shared memory in the order in which they were loaded, or along the weights of a word", "MMAs of warpgroups read 16-bit elements in either order", "passes/gpu_layout/mma_operands.py `computed_order`", f"tests/lang/test_dot_orders.py, tests/unit/test_copied_operands.py, {DOTS}, {KERNELS}", unit="operand", takes_room=True),
    _row("computed-operands", "gpu", "computes an operand of an MMA from what is loaded in the operand's layout: rows times a decay", "the dot alone uses it, and few warps hold the same elements", "passes/gpu_layout/computed_operands.py `computable`", f"tests/filecheck/accelerate/operands.gir, {KERNELS}", unit="dot", takes_room=True),
    _row("operand-casts", "gpu", "reads an operand of an MMA as it was loaded, in the operand's layout, and casts it to a narrower type there", "dots alone use the cast, in the same loop; few warps read the same elements", "passes/gpu_layout/accelerate.py `_reads_narrowed`", f"tests/filecheck/accelerate/operands.gir, {DOTS}, {KERNELS}", unit="operand", takes_room=True),
    _row("shared-operands", "gpu", "keeps an operand of an MMA that a loop does not change in shared memory, where registers have no room for it", "the operand is computed before the loop", "passes/gpu_layout/accelerate.py `_holds`", f"tests/filecheck/accelerate/operands.gir, {DOTS}, {KERNELS}", unit="operand", takes_room=True),
    _row("repeated-loads", "gpu", "loads once what a tile of pointers repeats in runs along a dimension, as words of several weights", "pointers and masks are equal in aligned runs; the load is not volatile", "passes/gpu_layout/repeated_loads.py `_runs`", f"tests/filecheck/repeated-loads.tir, {KERNELS}", unit="load", takes_room=True),
    _row("sink-past-loops", "gpu", "computes pointers, masks and their like after a loop where they are only needed there", "cheap to compute, without effects, used below the loop alone", "passes/gpu_layout/assign.py `crosses_loop`", f"{DOTS}, {KERNELS}", unit="op"),
    _row("whole-sectors", "gpu", "stores small tiles in another layout where the lanes of an instruction would write parts of sectors: results of MMAs, rows that are scanned", "any layout is right", "passes/gpu_layout/assign.py `_store_layout`", f"tests/filecheck/assign-layouts.gir, {KERNELS}", unit="store"),
    _row("longer-stores", "gpu", "exchanges elements within warps before a small tile is stored, if an instruction then writes longer pieces of rows", "any layout is right", "passes/gpu_layout/assign.py `_store_layout`", f"tests/filecheck/assign-layouts.gir, {KERNELS}", unit="store"),
    _row("nearest-dimension", "gpu", "lets lanes run along the dimension with the nearest addresses, where none is known to be contiguous: the pixels of a convolution", "any layout is right", "analysis/steps.py", f"tests/filecheck/coalesce.tir, tests/unit/test_steps.py, {KERNELS}", unit="access"),
    _row("partial-copies", "gpu", "copies whole vectors ahead of a loop's iterations where rows may end within one: reads the bytes in front of that end, and writes zeros behind them", "the load feeds dots alone and its mask ends once in each vector; zeros lie behind it", "analysis/prefixes.py; passes/gpu_layout/coalesce.py `_copies_partially`", f"tests/filecheck/coalesce/partial-copies.tir, tests/lang/test_descriptor_extents.py, {KERNELS}", unit="load"),
    _row("scattered-columns", "gpu", "loads a number for each column of an MMA's result once, and exchanges them, where they lie apart in memory", "the load is not volatile; it is used as rows of tiles alone", "passes/gpu_layout/anchors.py `_is_scattered`", f"{DOTS}, {KERNELS}", unit="load", takes_room=True),
    _row("fma-in-place", "gpu", "lets FMAs of dots read operands from the buffers that their loads fill, so that copies run ahead as for MMAs", "both operands are loaded, perhaps transposed; large ones by copies of 16 bytes, for this dot alone", "passes/gpu_layout/accelerate.py `_place_operands`", f"tests/filecheck/accelerate.gir, tests/unit/test_gpu_dots_by_fma.py, {KERNELS}", unit="dot", takes_room=True),
    _row(
        "ldmatrix", "gpu", "reads fragments of MMAs from shared memory by ldmatrix", "the layout has rows of 16 bytes",
        "layout/matrix_ops.py", "tests/unit/test_simt_shared.py", takes_room=True,
    ),
    _row("stmatrix", "gpu", "writes fragments of MMAs to shared memory by stmatrix", "the layout has rows of 16 bytes", "layout/matrix_ops.py", "tests/unit/test_simt_shared.py", takes_room=True),
    _row(
        "warp-exchanges", "gpu", "lets the threads of each warp wait for themselves alone where a conversion through shared memory keeps elements in their warps", "no other warp holds what a warp stores", "layout/convert.py `is_within_warps`", f"tests/filecheck/barriers.gir, tests/unit/test_synchronization.py, {KERNELS}", takes_room=True,
    ),
    _row(
        "prefetch", "gpu", "streams loads of loops without MMAs through rings of each thread's own", "addresses are pure; no store of the loop writes what is loaded", "passes/gpu_loops/private.py `_is_simple`, passes/gpu_loops/streams.py `require_ahead`", f"tests/unit/test_gpu_passes_prefetch.py, {KERNELS}", unit="loop", takes_room=True,
    ),
    _row("short-loops", "gpu", "gives loops that stream a version for one iteration, which loads to registers", "the bounds say whether there is one iteration", "passes/gpu_loops/short.py `_one_iteration`", f"tests/unit/test_gpu_passes_prefetch.py, tests/filecheck/schedule-streams.gir, {KERNELS}", unit="loop"),
    _row(
        "transpose-buffers", "gpu", "gives an operand that a loop transposes a ring of three buffers", "a warpgroup meets the others when its MMA of two iterations before is done", "passes/gpu_scheduling/transpose_buffers.py", "tests/unit/test_transpose_role.py", unit="loop", takes_room=True,
    ),
    _row(
        "transpose-role", "gpu", "lets warps of their own transpose an operand of MMAs", "the loop's one MMA only adds up; both rings have room", "passes/gpu_loops/transpose_role.py `transposition_of`", "tests/unit/test_transpose_role.py", takes_room=True,
    ),
    _row(
        "warp-specialize", "gpu", "runs a producer that loads and consumers that compute in warps of their own",
        "the producer computes its scalars alone; loads do not see what the program writes in between",
        "passes/gpu_loops/producer.py `Needs`, passes/gpu_loops/ordering.py", "tests/unit/test_specialize.py, tests/unit/test_while_roles.py", takes_room=True,
    ),
    _row(
        "software-pipeline", "gpu", "copies tiles of later iterations to rings while this one computes", "addresses and masks are pure; programs do not wait for others in the loop", "passes/gpu_loops/streams.py `slice_of`", f"{DOTS}, {KERNELS}", unit="loop", takes_room=True,
    ),
    _row(
        "direct-reads", "gpu", "reads tiles that the TMA unit wrote in the layout that their users need", "all users convert them to that layout", "passes/gpu_loops/rings.py `read_as_needed`", f"{DOTS}, {KERNELS}", unit="loop", takes_room=True,
    ),
    _row(
        "register-prefetch", "gpu", "loads an iteration ahead what loops with MMAs read besides operands", "addresses are pure; the loop writes through other arguments", "passes/gpu_loops/streams.py `require_ahead`", f"{DOTS}, {KERNELS}", unit="loop", takes_room=True,
    ),
    _row("shared-prefetch", "gpu", "copies to rings the large tiles that loops with MMAs read besides operands", "as register-prefetch; threads copy whole vectors", "passes/gpu_loops/plan.py `_may_be_buffered`", f"{DOTS}, {KERNELS}", unit="loop", takes_room=True),
    _row("refill-in-place", "gpu", "lets CTAs of one or two warps fill a buffer again as soon as it has been read, with one buffer less", "all reads are to registers, and stand before the copies; a barrier in between", "ops/schedule.py `_verify_copy`; the checker of synchronisation", f"tests/filecheck/schedule-loops/refill.gir, tests/filecheck/expand-loops/refill.gir, {DOTS}, {KERNELS}", unit="loop", takes_room=True),
    _row(
        "mma-across-iterations", "gpu", "lets MMAs that only add up run on into the next iteration", "only the next MMA reads a sum; operands come through rings", "passes/gpu_loops/chains.py `accumulating`", DOTS, unit="loop", takes_room=True,
    ),
    _row(
        "mma-chains", "gpu", "shifts the last MMA of a chain by one iteration, beside the work on the first one's result", "only the next MMA reads the sum; where other warps load, one MMA alone depends on no other; its buffers live one iteration longer", "passes/gpu_loops/chains.py `shiftable`", "tests/unit/test_gpu_passes_chains.py, tests/unit/test_chained_roles.py", unit="loop", takes_room=True,
    ),
    _row(
        "loop-split", "gpu", "makes two loops of one whose branch flips once", "the condition compares the index with a fixed value", "passes/gpu_mma/split_loops.py `flip_of`", "tests/unit/test_split_loops.py", unit="loop",
    ),
    _row(
        "mma-early-start", "gpu", "moves an MMA of warpgroups up to where its operands are there",
        "no op that it passes makes, writes or waits for an operand", "passes/gpu_mma/async_mma.py `_latest_need`", "tests/filecheck/async-mma/mmas.gir",
        unit="MMA",
    ),
    _row(
        "async-mma", "gpu", "lets MMAs of warpgroups run until somebody looks at their results",
        "no op before the wait writes to operands or looks at results", "passes/gpu_mma/waits.py `_must_wait`", "tests/filecheck/async-mma/mmas.gir, tests/unit/test_async_mma.py",
        unit="block",
    ),
    _row(
        "early-release", "gpu", "gives a buffer back to the producer right after its last reading",
        "no reading of the buffer is still on its way", "passes/gpu_mma/async_mma.py `_give_back_early`; the synchronisation checker",
        "tests/filecheck/async-mma/buffers.gir, tests/gpu/test_pointer_to_tma_gpu.py", unit="arrival",
    ),
    _row(
        "awaited-reads", "gpu", "waits for what was read of a buffer to come to registers before it is given back, not by a fence",
        "all reads of the buffer stand before the arrival, in its block", "passes/gpu_mma/async_mma.py `_await_reads`",
        "tests/unit/test_ring_reads.py", unit="arrival",
    ),
    _row("known-registers", "gpu", "drops comparisons that are known for a register's elements in all threads: blocks of a triangular mask off its diagonal", "the registers' bounds, or what is left of them when they are divided, decide", "backends/gpu/elementwise.py `_compared`, `_and_bounds`", f"tests/unit/test_simt_masks.py, {KERNELS}", unit="op"),
    _row("compare-differences", "gpu", "compares what registers have in common with a number once, and the difference with constants: `columns == label`", "equality modulo a power of two", "the registers' known offsets", f"tests/unit/test_simt_masks.py, {KERNELS}", unit="op"),
    _row(
        "share-parts", "gpu", "lets each thread of a reduction or scan over warps combine the parts of a few results for all threads",
        "results in the same order of combination in all threads; shared memory for the results", "analysis/scratch.py `shares_parts`, backends/gpu/reduce.py, backends/gpu/scan_warps.py",
        f"tests/unit/test_simt_reduce.py, tests/unit/test_scan_lowering.py, {KERNELS}", unit="reduction",
    ),
    _row("byte-casts", "gpu", "widens 8-bit integers to fp16 and bf16 by permutations of bytes and a subtraction", "bytes stand four to a register, as they came from memory; each step is exact", "backends/gpu/casts.py `_bytes`", f"tests/unit/test_simt_casts.py, {DOTS}, {KERNELS}", unit="cast"),
    _row("small-casts", "gpu", "converts integers that are known to be small to fp16 and bf16 by an addition to a float's bits and a subtraction", "the value lies in [-512, 511] for fp16, in [-2^22, 2^22) by way of fp32; each step is exact", "backends/gpu/casts.py `_small`; analysis/ranges.py", f"tests/unit/test_simt_casts.py, {KERNELS}", unit="cast"),
    _row("joint-divisions", "gpu", "tests once whether all 64-bit indices of a thread and their divisor fit 32 bits, where LLVM tests and divides one after the other; a quotient and a remainder are one division", "the divisor is positive, as of all indices; others divide in 64 bits", "backends/gpu/divisions.py `_joint`", f"tests/unit/test_simt_divisions.py, {KERNELS}", unit="op"),
    _row("warp-reductions", "gpu", "reduces words over a warp by one instruction: integers, extrema of floats, and the index of an extremum", "the region is one op, or keeps the greater number and its index, of equal ones the lower; all lanes reduce together", "analysis/extremum.py, which tries all orders; backends/gpu/warp_reduce.py", f"tests/unit/test_warp_reductions.py, {KERNELS}", unit="op"),
    _row("wide-products", "gpu", "multiplies the 32-bit factors of a 64-bit offset, of which one counts bytes, by the instruction that adds the product to a pointer", "both were extended from int32; the first still fits when it counts bytes", "backends/gpu/addresses.py `_narrow_factors`; analysis/ranges.py", f"tests/unit/test_gpu_addresses.py, {KERNELS}", unit="pointer"),
    _row("raise-occupancy", "gpu", "assembles with a few registers less where an SM then holds a CTA more, twice the CTAs of a loop, or 64 warps of code that seldom calls; small products by FMAs ask for several CTAs", "next to nothing spills", "what ptxas reports, backends/gpu/lowering.py `_has_small_products`", "tests/unit/test_raise_occupancy.py", takes_room=True),
    _row("spill-little", "gpu", "keeps the CTAs that an SM is to hold where few instructions move spilled registers", "no matrix products; up to 3 % of the instructions of loops, 1 % of straight-line code", "what ptxas reports", "tests/unit/test_raise_occupancy.py", takes_room=True),
)  # fmt: skip

CPU = (
    _row(
        "exchange-partners", "cpu", "reads the other element of each pair where it lies, not by the exclusive or of both: sorts, `topk`, `flip`",
        "an exclusive or of all elements along an axis of two, and of one of them", "backends/cpu/exchange_partners.py `_axis_of_pairs`", f"tests/filecheck/exchange-partners.tir, tests/lang/test_order.py, {KERNELS}", unit="op",
    ),
    _row(
        "narrow-accumulators", "cpu", "carries through a loop what is left of a tile after the reduction that alone uses it",
        "both combine by one associative op; the tile starts neutral", "backends/cpu/narrow_accumulators.py `_reduction`",
        f"tests/lang/test_reductions.py, {KERNELS}", unit="loop",
    ),
    _row(
        "blocked-iterations", "cpu", "takes a few vectors of carried tiles through several iterations in registers, before the next vectors",
        "the loop writes nothing; each element that it carries depends on those at the same place alone", "backends/cpu/blocked_iterations.py `_by_element`",
        f"tests/unit/test_cpu_blocked_iterations.py, {KERNELS}", unit="loop",
    ),
    _row(
        "narrow-tiles", "cpu", "cuts off the end of the tiles of dots that a mask with a constant bound leaves out",
        "no effect depends on what is cut off: stores leave it out, dots multiply zero by zero", "backends/cpu/narrow_tiles.py `_Ends`, analysis/dimensions.py",
        f"tests/filecheck/narrow-tiles.tir, tests/unit/test_cpu_narrow_tiles.py, {KERNELS}", unit="dimension",
    ),
    _row(
        "scalar-inductions", "cpu", "carries a scalar in place of a tile that only gains the same amount everywhere",
        "the gain is uniform", "backends/cpu/induction.py `_uniform`", f"tests/unit/test_cpu_control.py, {KERNELS}", unit="loop",
    ),
    _row(
        "dot-chains", "cpu", "runs dots that add to one accumulator as one", "nothing between them writes memory or reads the accumulator",
        "backends/cpu/dot.py `_is_chained`", "tests/unit/test_cpu_dot.py", unit="dot",
    ),
    _row(
        "prepack-k", "cpu", "packs the operands of all steps of a loop before it multiplies",
        "the loop only accumulates dots; operands do not depend on the accumulators", "backends/cpu/k_loops.py `accumulated_dots`",
        "tests/unit/test_cpu_prepack.py, tests/lang/test_dot.py", unit="loop",
    ),
    _row(
        "store-fusion", "cpu", "computes an accumulator block by block in the loop that stores it",
        "one store alone uses the accumulator, element by element, and nothing is written before", "backends/cpu/k_loops.py `only_store`",
        "tests/unit/test_cpu_prepack.py", unit="dot",
    ),
    _row(
        "shared-panels", "cpu", "keeps packed operands for the programs that need the same",
        "tags are all that addresses and masks are computed from; nothing in the launch writes to the array", "backends/cpu/pack_cache.py `tags_of`; each launch",
        "tests/unit/test_cpu_dot.py, tests/unit/test_cpu_prepack.py", unit="operand",
    ),
    _row("operands-in-place", "cpu", "multiplies operands where they lie in memory", "rows are contiguous; masks are looked at when it runs", "backends/cpu/operands.py `in_place`", "tests/unit/test_cpu_dot.py, tests/unit/test_cpu_prepack.py", unit="operand"),
    _row("few-rows", "cpu", "reads B of a dot of few rows as it is computed, along k if memory is contiguous along k, instead of packing it", "the rows are one block of accumulators; masks are looked at when it runs", "backends/cpu/few_rows.py `read_once`", "tests/unit/test_cpu_few_rows.py", unit="dot"),
    _row("scaled-accumulators", "cpu", "scales a carried accumulator in its own memory before a dot adds to it", "nothing else needs the old value", "backends/cpu/dot.py `_scaled_in_place`", "tests/lang/test_chains.py, tests/unit/test_cpu_dot.py", unit="accumulator"),
    _row(
        "zero-start", "cpu", "lets the first iteration of a loop start from zero instead of clearing the accumulator",
        "the accumulator starts at zero and a dot alone adds to it", "backends/cpu/control.py `starts_at_zero`", "tests/unit/test_cpu_dot.py",
        unit="accumulator",
    ),
    _row(
        "amx-tiles", "cpu", "multiplies bf16, fp8 and int8 on the matrix unit", "extents are multiples of a tile; accumulators are exact for the types",
        "backends/cpu/dot_plan.py `_refusal`", "tests/unit/test_cpu_dot.py", unit="dot",
    ),
    _row(
        "bf16-pairs", "cpu", "multiplies pairs of bf16 by AVX512-BF16", "the depth is even", "backends/cpu/dot_plan.py `_refusal`",
        "tests/unit/test_cpu_dot.py", unit="dot",
    ),
    _row(
        "int8-quads", "cpu", "multiplies four bytes at a time by VNNI", "the depth is a multiple of four", "backends/cpu/dot_plan.py `_refusal`",
        "tests/unit/test_cpu_dot.py", unit="dot",
    ),
    _row(
        "int8-pairs", "cpu", "multiplies two bytes at a time, widened to 16 bits, by AVX2 or AVX-512", "the depth is even", "backends/cpu/dot_plan.py `_refusal`",
        "tests/unit/test_cpu_dot.py", unit="dot",
    ),
    _row(
        "load-fusion", "cpu", "loads in the loop that stores, not before", "the load goes to the same addresses, or to another argument",
        "backends/cpu/aliases.py; each launch compares the arrays", "tests/unit/test_cpu_order.py", unit="load",
    ),
    _row(
        "memo-buffers", "cpu", "memoises in a buffer, while a loop computes it, what a later loop needs again",
        "the loop visits each element once", "backends/cpu/fusion.py `_memoise`", f"tests/unit/test_cpu_codegen.py, {KERNELS}", unit="op",
    ),
    _row(
        "mask-split", "cpu", "runs vectors for which a mask holds as a whole in a loop without it",
        "the mask compares what grows by one with what does not grow, or is the same along the vectors", "backends/cpu/bounds.py `prefix_masks`", f"tests/unit/test_cpu_rows.py, {KERNELS}",
        unit="mask",
    ),
    _row(
        "mask-ends", "cpu", "ends loops, also those of a product's rows and columns, where a mask leaves out all that follows",
        "a store has no effect there; a reduction reads equal numbers there, and one more has changed nothing", "backends/cpu/mask_ends.py",
        f"tests/unit/test_cpu_mask_ends.py, {KERNELS}", unit="loop",
    ),
    _row(
        "scan-positions", "cpu", "folds comparisons of the positions that a scan carries along, and carries them in 32 bits",
        "positions grow along the axis and do not wrap; the region yields one of the two that it gets; elements are combined in order",
        "backends/cpu/scan_positions.py `_is_position`", f"tests/unit/test_cpu_scan_positions.py, {KERNELS}", unit="op",
    ),
    _row("scan-columns", "cpu", "walks down the columns of a narrow tile together, in vectors of as many as are left", "columns are scanned apart from each other; a row has at most eight vectors", "backends/cpu/scan.py `_columns`", f"tests/unit/test_cpu_scans.py, {KERNELS}", unit="op"),
    _row(
        "scan-stores", "cpu", "stores what a scan gives in the scan's own loop, without a buffer in between",
        "nothing else needs the results or has an effect in between; the launch checks that the arrays do not overlap",
        "backends/cpu/scan_stores.py `joined`", f"tests/unit/test_cpu_scans.py, {KERNELS}", unit="op",
    ),
    _row(
        "plain-atomics", "cpu", "changes memory without atomic instructions, and a vector at a time where addresses are consecutive, in launches that run in one thread",
        "no other kernel with atomics runs in this process, none starts before this one has ended, and this one waits for nobody; scope \"sys\" keeps atomic instructions", "backends/cpu/exclusive.py", f"tests/unit/test_cpu_atomics.py, tests/lang/test_memory.py, {KERNELS}", unit="op",
    ),
    _row(
        "whole-stores", "cpu", "stores without a mask where it is true in all lanes, on machines whose stores under masks are slow",
        "the mask is tested at run time", "backends/cpu/memory.py `store_at`", f"tests/unit/test_cpu_codegen.py, {KERNELS}", unit="store",
    ),
    _row(
        "branchless-lanes", "cpu", "reads and writes lanes of a vector of addresses without a branch for each, on machines that cannot leave out some of them",
        "a lane that the mask leaves out has the address of 64 bytes on the stack instead of its own", "backends/cpu/memory.py `_readable`", f"tests/unit/test_cpu_codegen.py, {KERNELS}", unit="access",
    ),
    _row("vector-unroll", "cpu", "takes several vectors a trip of a loop that does little", "trips are independent", "backends/cpu/loops.py `each`", f"tests/unit/test_cpu_rows.py, {KERNELS}", unit="loop"),
    _row(
        "transposed-tiles", "cpu", "reads tiles along the contiguous dimension and transposes blocks in registers", "extents are multiples of a vector",
        "backends/cpu/transpose.py `transposed_dimension`", "tests/unit/test_cpu_codegen.py", unit="tile",
    ),
    _row(
        "aligned-stores", "cpu", "stores the first elements of a long row apart, so that vectors lie at multiples of their size",
        "vectors may start at any element", "backends/cpu/fusion.py `any_start`", "tests/unit/test_cpu_rows.py", unit="store",
    ),
    _row(
        "streaming-stores", "cpu", "stores past the caches what is much larger than they are", "the launch does not read the array",
        "backends/cpu/effects.py `_stream`", "tests/lang/test_streams.py", unit="store",
    ),
    _row(
        "streaming-tiles", "cpu", "stores tiles of several rows past the caches, too", "a branch asks whether each row begins at a cache line",
        "backends/cpu/effects.py `_stream`", "tests/unit/test_cpu_streams.py", unit="store",
    ),
    _row(
        "tile-prefetch", "cpu", "prefetches the next program's tiles while one is stored past the caches", "a prefetch has no effect on results",
        "backends/cpu/row_prefetch.py `next_tiles`", "tests/unit/test_cpu_streams.py", unit="store",
    ),
    _row(
        "row-prefetch", "cpu", "prefetches the row of the next program while this one computes", "a prefetch has no effect on results",
        "backends/cpu/row_prefetch.py", "tests/unit/test_cpu_rows.py", unit="reduction",
    ),
    _row(
        "whole-tiles", "cpu", "reduces a tile, or packs it, without masks that hold for all of its columns, or elements, and without `% n` below n",
        "a branch asks whether they do", "backends/cpu/whole_tiles.py, backends/cpu/pack_cache.py `unless_packed`", "tests/unit/test_cpu_whole_tiles.py, tests/unit/test_cpu_prepack.py", unit="tile",
    ),
    _row(
        "llvm-passes", "cpu", "lets LLVM turn stack slots into registers and simplify", "what LLVM promises", "LLVM", KERNELS,
    ),
)  # fmt: skip
