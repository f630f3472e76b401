"""Valid text for every opcode: bodies of a kernel whose arguments are `ARGUMENTS`."""

from __future__ import annotations

import tessera.layout  # registers how layouts are read
from tessera.ops import MATH_OPS

assert tessera.layout

SHARED = "shared<4x8xfp32, ll<[4,8] offset=[[0,1],[0,2],[0,4],[1,0],[2,0]]>>"
TURNED = "shared<8x4xfp32, ll<[8,4] offset=[[1,0],[2,0],[4,0],[0,1],[0,2]]>>"
RING = SHARED.replace("<4x8", "<3x4x8", 1)
REGISTERS = "tile<8xi32, ll<[8] register=[[1]] lane=[[2],[4]]>>"

ARGUMENTS = (
    "%i: i32, %j: i32, %u: u32, %l: i64, %f: fp32, %g: fp32, %c: i1, %p: *fp32, %q: *i32, "
    "%ti: tile<8xi32>, %tj: tile<8xi32>, %tf: tile<8xfp32>, %tg: tile<8xfp32>, %tc: tile<8xi1>, "
    "%tp: tile<8x*fp32>, %tq: tile<8x*i32>, %m: tile<4x8xfp32>, %n: tile<8x4xfp32>, %sq: tile<4x4xfp32>, "
    "%mp: tile<4x8x*fp32>, %mc: tile<4x8xi1>"
)

DESCRIPTOR = "%d: desc<4x8xfp32> = make_descriptor %p, [%i, %j], [%l, %l] {block_shape=[4, 8]}\n"
ROW = "%d: desc<1x8xfp32> = make_descriptor %p, [%i, %j], [%l, %l] {block_shape=[1, 8]}\n"
ALLOC = f"%s: {SHARED} = local_alloc _\n"
COPY = ALLOC + "%k: token = async_copy %mp, %s, _, _, _\n"
PRODUCT = (
    f"%s: {TURNED} = local_alloc %n\n"
    "%x: tile<4x4xfp32> = wgmma %m, %s, %sq {instruction='wgmma', warpgroups=[1, 1], pending=1}\n"
)
BARS = "%b: shared<4xi64, ll<[4] offset=[[1],[2]]>> = local_alloc _\n"
TEAMS = "warp_specialize {registers=[40, 232, 0]}" + " () {\nyield []\n}" * 3 + "\n"
SUM = "(%a: fp32, %b: fp32) {\n%s: fp32 = add %a, %b\nyield [%s]\n}\n"


def _binary(*opcodes: str, operands: str = "%ti, %tj", type: str = "tile<8xi32>") -> dict[str, str]:
    return {name: f"%x: {type} = {name} {operands}\n" for name in opcodes}


PLACE = "%o: *i64 = bitcast %p\n%k: *i64 = trace_begin %o, %i, %j {warp=4, warps=9, tag=77}\n"

SAMPLES: dict[str, str] = {
    "trace_begin": PLACE,
    "trace_record": PLACE + "trace_record %k, %i, %j {event=3, index=2}\n",
    "trace_end": PLACE + "trace_end %k, %j, %i\n",
    "tensor_copy": DESCRIPTOR + ALLOC + BARS + "tensor_copy %d, [%i, %j], %s, %b, %i\n",
    "warp_specialize": TEAMS,
    "cta_id": "%x: i32 = cta_id\n",
    "num_ctas": "%x: i32 = num_ctas\n",
    **_binary("add", "sub", "mul", "rem", "and", "or", "xor", "shl", "shr", "min", "max", "mulhi"),
    **_binary("pow", "atan2", "remainder", "copysign", operands="%f, %g", type="fp32"),
    **_binary(*MATH_OPS, operands="%tf", type="tile<8xfp32>"),
    **_binary("neg", "abs", operands="%tf", type="tile<8xfp32>"),
    "div": "%x: fp32 = div %f, %g {exact=True}\n",
    "const": "%x: tile<8xfp32> = const {value=float('-0x1.8000000000000p+0')}\n"
    "%y: fp64 = const {value=float('inf')}\n%z: i1 = const {value=True}\n%w: u8 = const {value=255}\n",
    "cmp": "%x: tile<8xi1> = cmp %tf, %tg {predicate='ne'}\n",
    "select": "%x: tile<8xfp32> = select %tc, %tf, %tg\n%y: *fp32 = select %c, %p, %p\n",
    "fma": "%x: fp32 = fma %f, %g, %f\n",
    "directed": "%x: fp32 = directed [%f, %g] {function='add', direction='rz'}\n",
    "isnan": "%x: tile<8xi1> = isnan %tf\n",
    "popc": "%x: i32 = popc %l\n",
    "clz": "%x: i32 = clz %u\n",
    "cast": "%x: tile<8xfp16> = cast %tf {rounding='rtz'}\n%y: fp8e4nv = cast %f\n%z: i64 = cast %p\n",
    "bitcast": "%x: tile<8xi32> = bitcast %tf\n%y: *i8 = bitcast %p\n",
    "addptr": "%x: tile<8x*fp32> = addptr %tp, %ti\n%y: *fp32 = addptr %p, %u\n",
    "hint": "%x: tile<8xi32> = hint %ti {divisibility=[16], contiguity=[8]}\n",
    # tiles
    "program_id": "%x: i32 = program_id {axis=2}\n",
    "num_programs": "%x: i32 = num_programs {axis=0}\n",
    "cta_rank": "%x: i32 = cta_rank {ctas=2}\n",
    "arange": "%x: tile<8xi32> = arange {start=-4, end=4}\n",
    "splat": "%x: tile<4x2x*fp32> = splat %p\n",
    "broadcast": "%y: tile<1x8xfp32> = expand_dims %tf {axis=0}\n%x: tile<4x8xfp32> = broadcast %y\n",
    "expand_dims": "%x: tile<8x1xi32> = expand_dims %ti {axis=1}\n",
    "reshape": "%x: tile<2x16xfp32> = reshape %m {reorder=True}\n%y: tile<32xfp32> = reshape %x\n",
    "trans": "%x: tile<8x4xfp32> = trans %m {order=[1, 0]}\n",
    "join": "%x: tile<8x2xfp32> = join %tf, %tg\n%y: tile<2xi32> = join %i, %j\n",
    "split": "%y: tile<4x2xi32> = reshape %ti\n%a: tile<4xi32>, %b: tile<4xi32> = split %y\n",
    "gather": "%x: tile<8xfp32> = gather %tf, %ti {axis=0}\n",
    "histogram": "%x: tile<16xi32> = histogram %ti, %tc {bins=16}\n%y: tile<4xi32> = histogram %ti, _ {bins=4}\n",
    "dot": "%x: tile<4x4xfp32> = dot %m, %n, %sq {precision='tf32'}\n",
    "reduce": "%x: tile<4xfp32> = reduce [%m] {axis=1} " + SUM,
    "scan": "%x: tile<8xfp32> = scan [%tf] {axis=0, reverse=True} " + SUM,
    # memory
    "load": "%x: tile<8xfp32> = load %tp, %tc, %tf {cache='.cg', eviction='evict_last'}\n"
    "%y: fp32 = load %p, _, _ {volatile=True}\n%z: tile<8xi32> = load %tq, %tc, _\n",
    "store": "store %tp, %tf, %tc {cache='.wb'}\nstore %p, %f, _\n",
    "atomic_rmw": "%x: tile<8xi32> = atomic_rmw %tq, %ti, %tc {kind='max', sem='relaxed', scope='cta'}\n",
    "atomic_cas": "%x: i32 = atomic_cas %q, %i, %j {scope='sys'}\n",
    "make_descriptor": DESCRIPTOR,
    "descriptor_load": DESCRIPTOR + "%x: tile<4x8xfp32> = descriptor_load %d, [%i, %j]\n",
    "descriptor_store": DESCRIPTOR + "descriptor_store %d, [%i, %j], %m {kind='add'}\n",
    "descriptor_gather": ROW + "%x: tile<8x8xfp32> = descriptor_gather %d, %ti, %j\n",
    "descriptor_scatter": ROW
    + "%x: tile<8x8xfp32> = descriptor_gather %d, %ti, %j\ndescriptor_scatter %d, %ti, %j, %x\n",
    "inline_asm": "%x: tile<8xi32> = inline_asm [%ti] {asm='not.b32 $0, $1;', constraints='=r,r', pack=1}\n",
    "volatile_asm": "%x: tile<8xi32> = volatile_asm [%ti] {asm='not.b32 $0, $1;', constraints='=r,r'}\n",
    "special_register": "%x: i64 = special_register {name='globaltimer'}\n",
    "grid_dependency": "grid_dependency {kind='wait'}\n",
    "assert": "assert %tc {message='it\\'s \"wrong\",\\nsee {here}'}\n",
    "print": "print [%i, %tf] {prefix=' x: ', hex=True}\nprint []\n",
    "check": "check %tc, [%l, %tf, %i] {kind='not-finite', message='m', labels=['`x`']}\n",
    "breakpoint": "breakpoint [%i, %tf] {labels=['n', 'x'], constants=[['B', 4]]}\nbreakpoint [] {stops=False}\n",
    "barrier": "barrier\n",
    "warp_barrier": "warp_barrier\n",
    "assume": "assume %c\n",
    # control flow
    "func": "",
    "return": "",
    "call": "%x: fp32 = call [%f, %g] {callee='plus'}\n",
    "yield": "if %c () {\nyield []\n} () {\nyield []\n}\n",
    "if": "%x: i32, %y: fp32 = if %c () {\nyield [%i, %f]\n} () {\nyield [%j, %g]\n}\n",
    "for": "%x: fp32, %y: tile<8xfp32> = for %i, %j, %i, [%f, %tf] {num_stages=3, flatten=True} "
    "(%k: i32, %a: fp32, %b: tile<8xfp32>) {\nyield [%a, %b]\n}\n",
    "while": "%x: i32 = while [%i] (%a: i32) {\n%t: i1 = cmp %a, %j {predicate='lt'}\ncondition %t, [%a]\n} "
    "(%b: i32) {\n%n2: i32 = add %b, %b\nyield [%n2]\n}\n",
    "condition": "while [] () {\ncondition %c, []\n} () {\nyield []\n}\n",
    # the GPU level
    "convert_layout": f"%x: {REGISTERS} = convert_layout %ti\n",
    "local_alloc": ALLOC + f"%t: {SHARED} = local_alloc %m {{offset=128}}\n",
    "local_index": f"%r: {RING} = local_alloc _\n%x: {SHARED} = local_index %r, %i\n",
    "local_trans": ALLOC + f"%x: {TURNED} = local_trans %s {{order=[1, 0]}}\n",
    "local_load": ALLOC + "%x: tile<4x8xfp32> = local_load %s, _\n",
    "local_store": ALLOC + "local_store %m, %s\n",
    "async_copy": ALLOC + "%x: token = async_copy %mp, %s, %mc, %m, %c {cache='.cg'}\n",
    "async_commit": COPY + "%x: token = async_commit [%k]\n",
    "async_wait": COPY
    + "%e: token = async_commit [%k]\n%w: token = async_wait [%e] {pending=0}\n"
    + "%x: tile<4x8xfp32> = local_load %s, %w\n",
    "mbarrier_init": BARS + "mbarrier_init [%b] {counts=[2]}\n",
    "mbarrier_arrive": BARS + ALLOC + "mbarrier_arrive %b, %i, %c, [%s], [] {groups=True}\n",
    "mbarrier_arrive_expect_tx": BARS + "mbarrier_arrive_expect_tx %b, %i {bytes=1024}\n",
    "async_copy_mbarrier_arrive": BARS + "async_copy_mbarrier_arrive %b, %i\n",
    "mbarrier_wait": BARS + "mbarrier_wait %b, %i, %j {data=True}\n",
    "ping_pong": "ping_pong {kind='begin'}\n",
    "mma": "%x: tile<4x4xfp32> = mma %m, %n, %sq {instruction='mma.m16n8k8.f32.tf32.tf32'}\n",
    "wgmma": PRODUCT,
    "wgmma_wait": PRODUCT + "%y: tile<4x4xfp32> = wgmma_wait %x, []\n",
}  # fmt: skip

PLUS = (
    "func {name='plus', kernel=False, returns=[!fp32]} (%a: fp32, %b: fp32) {\n"
    "%s: fp32 = add %a, %b\nreturn [%s]\n}\n"
)


def kernel(body: str, arguments: str = ARGUMENTS) -> str:
    """Text of a module with one kernel, and the function `plus` that it may call."""
    function = f"func {{name='k'}} ({arguments}) {{\n{body}return []\n}}\n"
    return f"module {{num_warps=4, target='cuda:90'}} {{\n{PLUS}{function}}}\n"
