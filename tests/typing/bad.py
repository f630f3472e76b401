"""A program with mistakes: type checkers must refuse each marked line, and no other."""

import numpy as np

import tessera
import tessera.language as tl


@tessera.jit
def add(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(axis=0, dim=1) * BLOCK + tl.arange(0, BLOCK)  # refused
    x = tl.load(x_ptr + i, maks=i < n)  # refused
    y = tl.load()  # refused
    z = tl.sum(x, dim=0)  # refused
    z = tl.zeros((BLOCK,))  # refused
    z = tl.arrange(0, BLOCK)  # refused
    z = tl.zeros((BLOCK,), tl.flaot32)  # refused
    z = tl.zeros((BLOCK,), "float32")  # refused
    z = tl.dot(x, y, precision="ieee")  # refused
    x = tl.load(x_ptr + i, mask=i < n)
    z = x.sum(dim=0)  # refused
    z = (x + 1).to(tl.float16, bitcst=True)  # refused
    z = x.reshape(4, 4).trnas()  # refused
    z = (2 * x)[:, None].cumsum(0, revers=True)  # refused
    z = x.to()  # refused
    d = tl.make_tensor_descriptor(x_ptr, [n], [1], [BLOCK])
    z = d.load([0], mask=x)  # refused
    d.stroe([0], x)  # refused
    z = tl.atomic_add(out_ptr, 1, order="relaxed")  # refused
    tl.store(out_ptr + i, x, other=0)  # refused
    tl.store(out_ptr + i)  # refused
    tl.store(out_ptr + i, z)


x, out = np.zeros(8, np.float32), np.zeros(8, np.float32)
add[(1,)](x, out, 8, BLOCK=8)
add[(1,)](BLOKC=3)  # refused
add[(1,)](x, out, 8, BLOKC=8)  # refused
add[(1,)](x, out, 8)  # refused
add[(1,)](x, out, 8, 8, 3)  # refused
tessera.Config({"BLOCK": 8}, num_wraps=4)  # refused
tessera.autotune([], key=["n"], restore_vale=["out"])  # refused
tessera.jit(do_not_specialise=["n"])  # refused
add["1"](x, out, 8, BLOCK=8)  # refused
add[(1.5,)](x, out, 8, BLOCK=8)  # refused
add[lambda: (1,)](x, out, 8, BLOCK=8)  # refused
add[lambda meta: "1"](x, out, 8, BLOCK=8)  # refused
add.warmup(x, out, 8, BLOCK=8, grid=(1,)).asmm  # refused
add.explain(x, out, 8, BLOCK=8, grid=(1,)).rooflin  # refused
add.explain(x, out, 8, BLOCK=8, grid=(1,)).roofline.measurd  # refused
add.trace[(1,)](x, out, 8, BLOCK=8).roless  # refused
tessera.nextpower_of_2(3)  # refused
tessera.testing.do_bnech(lambda: None)  # refused
