"""Tells what names of CUDA, NumPy, torch and Python are called in a kernel: a remedy, and the names that it is for."""

from __future__ import annotations


def _by_name(rows: dict[str, str]) -> dict[str, str]:
    return {name: remedy for remedy, names in rows.items() for name in names.split()}


_DTYPES = {
    "write `tl.float16`": "fp16 f16 half",
    "write `tl.float32`": "fp32 f32 float",
    "write `tl.float64`": "fp64 f64 double",
    "write `tl.bfloat16`": "bf16",
    "write `tl.int8`": "i8 char byte",
    "write `tl.int16`": "i16 short",
    "write `tl.int32`": "i32 int",
    "write `tl.int64`": "i64 long",
    "write `tl.uint8`": "u8 uchar",
    "write `tl.uint16`": "u16 ushort",
    "write `tl.uint32`": "u32 uint",
    "write `tl.uint64`": "u64 ulong",
    "write `tl.int1`": "bool bool_ bit",
}
_SHARED = {  # of modules and tiles alike
    "write `tl.dot(a, b)`": "matmul mm bmm gemm einsum",
    "write `tl.maximum(x, 0)`": "relu",
    "compute it with `tl.erf(x)`": "gelu",
    "write `x * tl.sigmoid(x)`": "silu swish",
    "reduce with `tl.sum(x, axis) / n`": "mean average nanmean var std",
    "write `tl.sqrt(tl.sum(x * x, axis))`": "norm",
    "write `tl.max(mask.to(tl.int32), axis)`": "any",
    "write `tl.min(mask.to(tl.int32), axis)`": "all",
    "write `tl.reduce(x, axis, multiply)` with a function `multiply` under `@tessera.jit`": "prod",
    "write `tl.cat(a, b, dim=0)`": "concatenate concat hstack vstack",
    "write `tl.join(a, b)`, which adds a last dimension": "stack",
    "write `tl.trans(x)`": "transpose t swapaxes",
    "write `x.to(dtype)`": "astype type_as",
    "write `tl.reshape(x, shape)`": "view_as flatten_to",
    "write `x.shape[0]` or `x.numel`": "size",
    "write `len(x.shape)`": "ndim dim ndimension",
    "leave it out: a tile has no strides": "contiguous is_contiguous ascontiguousarray",
    "leave it out: values do not change": "clone copy detach",
    "leave it out: kernels move no data between devices": "cpu cuda device",
    "choose element by element with `tl.where`": "masked_fill select masked_select nonzero",
    "assign the result: `x = x + y`": "add_ sub_ mul_ div_ fill_ zero_",
    "write `tl.extra.libdevice.pow(x, y)`": "power",
    "write `x * x`": "square",
    "write `tl.where(x > 0, 1, 0) - tl.where(x < 0, 1, 0)`": "sign",
}  # fmt: skip
_NO_THREADS = (
    "a program has no threads of its own: `tl.program_id(axis)` counts programs, and `tl.arange(0, n)` "
    "gives the offsets of a tile's elements"
)
OPERATIONS = _by_name({
    **_DTYPES,
    **_SHARED,
    "write `tl.full(shape, 1, dtype)`": "ones ones_like",
    "write `tl.full(shape, value, dtype)`": "full_like constant",
    "write `tl.zeros(shape, dtype)`": "empty empty_like",
    "compute it from `tl.arange(0, n)`": "linspace range_like eye tril triu",
    "write `tl.program_id(axis)`": "block_id blockIdx block_idx bid pid",
    "write `tl.num_programs(axis)`": "grid_dim gridDim num_blocks",
    _NO_THREADS: "thread_id threadIdx thread_idx lane_id warp_id block_dim blockDim",
    "leave it out: the compiler synchronises threads where needed; `tl.debug_barrier()` is for debugging":
        "syncthreads __syncthreads barrier syncwarp",
    "leave it out: the compiler places tiles in shared memory": "shared shared_memory smem local_array",
    "write `tl.device_print(\"x\", x)`": "printf print",
})  # fmt: skip
_COUNTED = (
    "write `for i in tl.static_range(len(xs))` and `xs[i]`; a comprehension has `range(len(xs))`"
)
PYTHON = _by_name({
    "write `tl.abs(x)`": "abs",
    "write `tl.sum(x, axis)`": "sum",
    "write `tl.extra.libdevice.rint(x)`": "round",
    "write `tl.exp2(y * tl.log2(x))`, or multiply": "pow",
    "write `x // y` and `x % y`": "divmod",
    _COUNTED: "enumerate zip",
    "write a list comprehension": "map filter",
    "write `xs[::-1]`": "reversed",
    "write `tl.sort(x)`": "sorted",
    "compare: `x != 0`": "bool",
    "print values with `tl.device_print`": "str repr format",
    "compute with two tiles, of the real and of the imaginary parts": "complex",
    "write `tl.max(mask.to(tl.int32), axis)`": "any",
    "write `tl.min(mask.to(tl.int32), axis)`": "all",
    "use a tuple, or a NamedTuple": "dict set frozenset",
    "compare `x.dtype`": "type",
    "pass the value as an argument": "input",
    "a kernel sees no files: read them before the launch, and pass an array": "open",
})  # fmt: skip
METHODS_ELSEWHERE = {**OPERATIONS, **_by_name({
    "write `.to(tl.float32)`": "float", "write `.to(tl.float16)`": "half", "write `.to(tl.float64)`": "double",
    "write `.to(tl.bfloat16)`": "bfloat16", "write `.to(tl.int32)`": "int", "write `.to(tl.int64)`": "long",
    "compare: `x != 0`": "bool",
    "a tile has no strides: pass those of the array as arguments": "stride strides",
    "an argument that is an array is a pointer here": "data_ptr data",
    "write `x.dtype.primitive_bitwidth // 8`": "itemsize element_size",
})}  # fmt: skip
