"""Contains the native launcher's code as LLVM IR text: it unpacks Python arguments, releases the GIL and launches.

One piece of code serves every signature: what differs lies in a `bytes` object that is the builtin function's `self`:
the descriptor below, then one kind byte per argument. So a new signature costs microseconds, not a compilation.

    HEADER  entry      address of cuLaunchKernelEx or of the thread pool's launch
            check      address of cuPointerGetAttribute, or 0 not to check pointers
            none       the object None
            int        the type int
            data_ptr   the interned string "data_ptr"
            overflow   OverflowError
            value      ValueError
            type       TypeError
            host       what to raise for a host pointer
            count      number of arguments

Integers of 8, 16 and 32 bits share one case: kind byte = bits | 64 (signed) or bits | 128 (unsigned).
"""

from __future__ import annotations

HEADER = ("entry", "check", "none", "int", "data_ptr", "overflow", "value", "type", "host", "count")
HEADER_BYTES = 8 * len(HEADER)

POINTER, MEMORY, F16, BF16, F32, F64, I1, I64, U64 = range(9)
SIGNED, UNSIGNED = 64, 128

TEXT = r"""
declare i64 @PyLong_AsLongLong(ptr)
declare i64 @PyLong_AsUnsignedLongLong(ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromLong(i64)
declare ptr @PyNumber_Index(ptr)
declare double @PyFloat_AsDouble(ptr)
declare i32 @PyFloat_Pack2(double, ptr, i32)
declare i32 @PyObject_IsTrue(ptr)
declare ptr @PyObject_VectorcallMethod(ptr, ptr, i64, ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyErr_Occurred()
declare void @PyErr_Clear()
declare ptr @PyErr_Format(ptr, ptr, ...)
declare ptr @PyBytes_AsString(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)

@few = private constant [48 x i8] c"the launcher takes %zd arguments, but got %zd\00\00\00"
@fit = private constant [48 x i8] c"argument %zd: %R does not fit in %s%d\00\00\00\00\00\00\00\00\00\00\00"
@int = private constant [8 x i8] c"int\00\00\00\00\00"
@uint = private constant [8 x i8] c"uint\00\00\00\00"
@neg = private constant [56 x i8] c"the grid's extents must be in 0 ... 2147483647, not %R\00\00"
@cpu = private constant [72 x i8] c"Pointer argument (at %zd) cannot be accessed from the GPU (cpu tensor?)\00"

; The address of a pointer-like object into *slot; false if an exception is set.
define internal i1 @pointer(ptr %d, ptr %o, i64 %i, ptr %slot) nounwind {
entry:
  %self = alloca ptr, align 8
  %none = HEADER none
  %isnone = icmp eq ptr %o, %none
  br i1 %isnone, label %null, label %typed
null:
  store i64 0, ptr %slot
  ret i1 true
typed:
  %ta = getelementptr i8, ptr %o, i64 TYPE_OFFSET
  %t = load ptr, ptr %ta
  %int = HEADER int
  %isint = icmp eq ptr %t, %int
  br i1 %isint, label %raw, label %object
raw:
  %v = call ptr @PyLong_AsVoidPtr(ptr %o)
  store ptr %v, ptr %slot
  %zero = icmp eq ptr %v, null
  br i1 %zero, label %maybe, label %good
maybe:
  %e = call ptr @PyErr_Occurred()
  %ok = icmp eq ptr %e, null
  ret i1 %ok
good:
  ret i1 true
object:
  %name = HEADER data_ptr
  store ptr %o, ptr %self
  %r = call ptr @PyObject_VectorcallMethod(ptr %name, ptr %self, i64 1, ptr null)
  %failed = icmp eq ptr %r, null
  br i1 %failed, label %bad, label %got
bad:
  ret i1 false
got:
  %w = call ptr @PyLong_AsVoidPtr(ptr %r)
  call void @Py_DecRef(ptr %r)
  store ptr %w, ptr %slot
  %zero1 = icmp eq ptr %w, null
  br i1 %zero1, label %maybe, label %device
device:
  %check = HEADER check
  %unchecked = icmp eq ptr %check, null
  br i1 %unchecked, label %good, label %ask
ask:
  ; 3 = CU_POINTER_ATTRIBUTE_DEVICE_POINTER; result 1 = CUDA_ERROR_INVALID_VALUE: not the driver's memory. Other
  ; failures (no context in this thread) are left for the launch to report.
  %wi = ptrtoint ptr %w to i64
  %res = call i32 %check(ptr %self, i32 3, i64 %wi)
  switch i32 %res, label %good [ i32 0, label %mapped  i32 1, label %host ]
mapped:
  %m = load ptr, ptr %self
  store ptr %m, ptr %slot
  ret i1 true
host:
  %h = HEADER host
  %x = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %h, ptr @cpu, i64 %i)
  ret i1 false
}

; All arguments into slots; pointers[i] = where argument i's value lies. False if an exception is set.
define internal i1 @unpack(ptr %d, ptr %objects, ptr %slots, ptr %pointers) nounwind {
entry:
  %count = HEADER count
  %kinds = getelementptr i8, ptr %d, i64 HEADER_BYTES
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %next]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %done
done:
  ret i1 true
body:
  %oa = getelementptr ptr, ptr %objects, i64 %i
  %o = load ptr, ptr %oa
  %slot = getelementptr i64, ptr %slots, i64 %i
  %pa = getelementptr ptr, ptr %pointers, i64 %i
  store ptr %slot, ptr %pa
  %ka = getelementptr i8, ptr %kinds, i64 %i
  %kind = load i8, ptr %ka
  switch i8 %kind, label %narrow [
    i8 0, label %ptr
    i8 1, label %memory
    i8 2, label %real
    i8 3, label %real
    i8 4, label %real
    i8 5, label %real
    i8 6, label %truth
    i8 7, label %wide
    i8 8, label %uwide
  ]
next:
  %i1 = add i64 %i, 1
  br label %head
fail:
  ret i1 false

ptr:
  %got = call i1 @pointer(ptr %d, ptr %o, i64 %i, ptr %slot)
  br i1 %got, label %next, label %fail
memory:
  %place = call ptr @PyLong_AsVoidPtr(ptr %o)
  store ptr %place, ptr %pa
  %absent = icmp eq ptr %place, null
  br i1 %absent, label %suspect, label %next
truth:
  %t = call i32 @PyObject_IsTrue(ptr %o)
  %t64 = zext i32 %t to i64
  store i64 %t64, ptr %slot
  %terr = icmp slt i32 %t, 0
  br i1 %terr, label %fail, label %next
wide:
  %l = call i64 @PyLong_AsLongLong(ptr %o)
  store i64 %l, ptr %slot
  %lm = icmp eq i64 %l, -1
  br i1 %lm, label %suspect, label %next
uwide:
  %ix = call ptr @PyNumber_Index(ptr %o)
  %ixbad = icmp eq ptr %ix, null
  br i1 %ixbad, label %fail, label %uwide1
uwide1:
  %u = call i64 @PyLong_AsUnsignedLongLong(ptr %ix)
  call void @Py_DecRef(ptr %ix)
  store i64 %u, ptr %slot
  %um = icmp eq i64 %u, -1
  br i1 %um, label %suspect, label %next
suspect:
  %e = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %e, null
  br i1 %fine, label %next, label %fail

narrow:
  %n = call i64 @PyLong_AsLongLong(ptr %o)
  %nm = icmp eq i64 %n, -1
  br i1 %nm, label %nsuspect, label %nrange
nsuspect:
  %ne = call ptr @PyErr_Occurred()
  %nfine = icmp eq ptr %ne, null
  br i1 %nfine, label %nrange, label %fail
nrange:
  %bits8 = and i8 %kind, 63
  %bits = zext i8 %bits8 to i64
  %rest = sub i64 64, %bits
  %up = shl i64 %n, %rest
  %sback = ashr i64 %up, %rest
  %uback = lshr i64 %up, %rest
  %sign = and i8 %kind, 64
  %signed = icmp ne i8 %sign, 0
  %back = select i1 %signed, i64 %sback, i64 %uback
  store i64 %back, ptr %slot
  %same = icmp eq i64 %back, %n
  br i1 %same, label %next, label %over
over:
  %oe = HEADER overflow
  %word = select i1 %signed, ptr @int, ptr @uint
  %bits32 = trunc i64 %bits to i32
  %x = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %oe, ptr @fit, i64 %i, ptr %o, ptr %word, i32 %bits32)
  br label %fail

real:
  %f = call double @PyFloat_AsDouble(ptr %o)
  %fm = fcmp oeq double %f, -1.0
  br i1 %fm, label %fsuspect, label %rounded
fsuspect:
  %fe = call ptr @PyErr_Occurred()
  %ffine = icmp eq ptr %fe, null
  br i1 %ffine, label %rounded, label %fail
rounded:
  store i64 0, ptr %slot
  switch i8 %kind, label %double [ i8 2, label %half  i8 3, label %brain  i8 4, label %single ]
half:
  %p = call i32 @PyFloat_Pack2(double %f, ptr %slot, i32 1)
  %big = icmp slt i32 %p, 0
  br i1 %big, label %infinite, label %next
infinite:
  ; too large to be finite: IEEE rounding gives infinity where Python raises
  call void @PyErr_Clear()
  %isneg = fcmp olt double %f, 0.0
  %inf = select i1 %isneg, i16 -1024, i16 31744
  store i16 %inf, ptr %slot
  br label %next
brain:
  %b = fptrunc double %f to float
  %bi = bitcast float %b to i32
  %bt = lshr i32 %bi, 16
  store i32 %bt, ptr %slot
  br label %next
single:
  %s = fptrunc double %f to float
  store float %s, ptr %slot
  br label %next
double:
  store double %f, ptr %slot
  br label %next
}

; The leading arguments into lead[0..5]; false if an exception is set.
define internal i1 @leading(ptr %d, ptr %objects, i64 %given, ptr %lead) nounwind {
entry:
  %count = HEADER count
  %wanted = add i64 %count, 6
  %right = icmp eq i64 %given, %wanted
  br i1 %right, label %grid, label %wrong
wrong:
  %te = HEADER type
  %x = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %te, ptr @few, i64 %wanted, i64 %given)
  br label %fail
fail:
  ret i1 false
grid:
  %i = phi i64 [0, %entry], [%i1, %gridok]
  %oa = getelementptr ptr, ptr %objects, i64 %i
  %o = load ptr, ptr %oa
  %v = call i64 @PyLong_AsLongLong(ptr %o)
  %la = getelementptr i64, ptr %lead, i64 %i
  store i64 %v, ptr %la
  %in = icmp ule i64 %v, 2147483647
  br i1 %in, label %gridok, label %out
out:
  %e = call ptr @PyErr_Occurred()
  %set = icmp ne ptr %e, null
  br i1 %set, label %fail, label %range
range:
  %ve = HEADER value
  %y = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %ve, ptr @neg, ptr %o)
  br label %fail
gridok:
  %i1 = add i64 %i, 1
  %gridmore = icmp slt i64 %i1, 3
  br i1 %gridmore, label %grid, label %handle
handle:
  %j = phi i64 [3, %gridok], [%j1, %handleok]
  %pa = getelementptr ptr, ptr %objects, i64 %j
  %p = load ptr, ptr %pa
  %h = call ptr @PyLong_AsVoidPtr(ptr %p)
  %ha = getelementptr i64, ptr %lead, i64 %j
  store ptr %h, ptr %ha
  %z = icmp eq ptr %h, null
  br i1 %z, label %zero, label %handleok
zero:
  %e1 = call ptr @PyErr_Occurred()
  %set1 = icmp ne ptr %e1, null
  br i1 %set1, label %fail, label %handleok
handleok:
  %j1 = add i64 %j, 1
  %more = icmp slt i64 %j1, 6
  br i1 %more, label %handle, label %done
done:
  ret i1 true
}

; CUlaunchConfig: the kernel's template with the grid's extents, each times the blocks of a program, and the stream
define internal void @configure(ptr %config, ptr %template, ptr %extents, ptr %stream) nounwind {
entry:
  call void @llvm.memcpy.p0.p0.i64(ptr %config, ptr %template, i64 56, i1 false)
  br label %extent
extent:
  %k = phi i64 [0, %entry], [%k1, %extent]
  %ga = getelementptr i64, ptr %extents, i64 %k
  %g = load i64, ptr %ga
  %ca = getelementptr i32, ptr %config, i64 %k
  %m = load i32, ptr %ca
  %g32 = trunc i64 %g to i32
  %gm = mul i32 %g32, %m
  store i32 %gm, ptr %ca
  %k1 = add i64 %k, 1
  %again = icmp slt i64 %k1, 3
  br i1 %again, label %extent, label %go
go:
  %place = getelementptr i8, ptr %config, i64 32
  store ptr %stream, ptr %place
  ret void
}

define ptr @launch_cuda(ptr %self, ptr %objects, i64 %given) nounwind {
entry:
  %lead = alloca [6 x i64], align 8
  %config = alloca { i32, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, i32, i32 }, align 8
PREPARE
ready:
CALL_LEAD
  %template = load ptr, ptr %l5
  call void @configure(ptr %config, ptr %template, ptr %lead, ptr %stream)
  %state = call ptr @PyEval_SaveThread()
  %rc = call i32 %entry_(ptr %config, ptr %function, ptr %pointers, ptr null)
  call void @PyEval_RestoreThread(ptr %state)
  br label %return
return:
  %code = phi i32 [0, %empty], [%rc, %ready]
  %long = sext i32 %code to i64
  %result = call ptr @PyLong_FromLong(i64 %long)
  ret ptr %result
}

define ptr @launch_cpu(ptr %self, ptr %objects, i64 %given) nounwind {
entry:
  %lead = alloca [6 x i64], align 8
PREPARE
ready:
CALL_LEAD
  %scratch = load i64, ptr %l5
  %x = trunc i64 %gx to i32
  %y = trunc i64 %gy to i32
  %z = trunc i64 %gz to i32
  %state = call ptr @PyEval_SaveThread()
  %rc = call i32 %entry_(ptr %stream, ptr %function, ptr %slots, i32 %x, i32 %y, i32 %z, i64 %scratch)
  call void @PyEval_RestoreThread(ptr %state)
  %odd = icmp ne i32 %rc, 0
  br i1 %odd, label %status, label %ran
status:
  ; interrupted: the exception is there
  %raised = call ptr @PyErr_Occurred()
  %interrupted = icmp ne ptr %raised, null
  br i1 %interrupted, label %fail, label %ran
ran:
  br label %return
return:
  %code = phi i32 [0, %empty], [%rc, %ran]
  %long = sext i32 %code to i64
  %result = call ptr @PyLong_FromLong(i64 %long)
  ret ptr %result
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""

# Shared by both entries: read the leading arguments, unpack the others, leave at once for an empty grid.
PREPARE = r"""
  %d = call ptr @PyBytes_AsString(ptr %self)
  %led = call i1 @leading(ptr %d, ptr %objects, i64 %given, ptr %lead)
  br i1 %led, label %arguments, label %fail
fail:
  ret ptr null
arguments:
  %count = HEADER count
  %slots = alloca i64, i64 %count, align 16
  %pointers = alloca ptr, i64 %count, align 16
  %rest = getelementptr ptr, ptr %objects, i64 6
  %good = call i1 @unpack(ptr %d, ptr %rest, ptr %slots, ptr %pointers)
  br i1 %good, label %size, label %fail
size:
  %gx = load i64, ptr %lead
  %l1 = getelementptr i64, ptr %lead, i64 1
  %gy = load i64, ptr %l1
  %l2 = getelementptr i64, ptr %lead, i64 2
  %gz = load i64, ptr %l2
  %c1 = icmp eq i64 %gx, 0
  %c2 = icmp eq i64 %gy, 0
  %c3 = icmp eq i64 %gz, 0
  %c12 = or i1 %c1, %c2
  %none = or i1 %c12, %c3
  br i1 %none, label %empty, label %ready
empty:
  br label %return
"""

CALL_LEAD = r"""
  %l3 = getelementptr i64, ptr %lead, i64 3
  %stream = load ptr, ptr %l3
  %l4 = getelementptr i64, ptr %lead, i64 4
  %function = load ptr, ptr %l4
  %l5 = getelementptr i64, ptr %lead, i64 5
  %entry_ = HEADER entry
"""


def launcher_ir() -> str:
    """The module's text. The type of an object lies at a place that depends on the Python build."""
    text = TEXT.replace("PREPARE", PREPARE).replace("CALL_LEAD", CALL_LEAD)
    lines: list[str] = []
    for number, line in enumerate(text.splitlines()):
        words = line.split()
        if len(words) == 4 and words[2] == "HEADER":
            kind = "i64" if words[3] == "count" else "ptr"
            lines.append(
                f"  %H{number} = getelementptr i8, ptr %d, i64 {8 * HEADER.index(words[3])}"
            )
            lines.append(f"  {words[0]} = load {kind}, ptr %H{number}")
        else:
            lines.append(line)
    # The last fields of `object` are its reference count and type; free-threaded builds have more before them.
    offset = object.__basicsize__ - 8
    return (
        "\n".join(lines)
        .replace("HEADER_BYTES", str(HEADER_BYTES))
        .replace("TYPE_OFFSET", str(offset))
    )
