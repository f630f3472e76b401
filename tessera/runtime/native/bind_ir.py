"""Contains the native code, as LLVM IR text, that binds and classifies the arguments of a launch.

One piece of code serves every kernel function. What differs lies in structures of 8-byte fields:

    HEAD   of a kernel function: a `bytes` object, the builtin function's `self`
    ENTRY  of a compiled specialisation, written by Python after the launch that compiled or found it
    ROW    of an array type: how to read address, element type and place of its objects (array_ir)
    NUMBER of a scalar type of NumPy: which Python number stands for its objects
    CURSOR where the next unit goes
    MAPS   the tensor maps of a compiled specialisation (start_ir)

Arguments become units of two key words, a slot for the value and the size of the memory behind it: one unit each;
tuples and descriptors those of `compound_ir`. The key words say what the value is (TAGS), and its element type or
compile-time value. In front of them come the place of the first array, with the relations of
the pointers (`aliasing`) from bit 8 on, and the CUDA context, after them three words per option: its name and two words
as for a compile-time value. `fast_path_ir` looks kernels up by this key.
"""

from __future__ import annotations

from tessera.runtime.native.launcher_ir import HEADER

HEAD = (
    *HEADER,  # as the launcher's: `unpack` converts arguments of annotated parameters; count: parameters
    "epoch",  # address of the count of knob changes
    "table",  # address of BUCKETS pointers to entries
    "hooks",  # the list of pre-run hooks: any sends the launch to Python
    "fallback", "names", "defaults", "modes", "rows",
    "numbers",  # address of the NUMBERs of scalar types, ended by a null
    "context",  # address of a pointer to cuCtxGetCurrent, null where CUDA is not in use
    "options",  # address of interned names of launch options, null at the end
    "true", "float", "tuple", "list", "modules", "torch",
    "relations",  # relations(*values) → int, for what the storages' sizes do not tell
    "strides",  # strides(*values) → whether the kernel is told how the elements of strided arrays lie
    # reader(array) → (address, dtype, on CUDA, bytes of the storage, bytes from the address on, READ_ONLY | STRIDED)
    "reader",
    "descriptor",  # the type TensorDescriptor
    "attributes",  # address of the interned names of its fields, DESCRIPTOR_FIELDS
)  # fmt: skip
ENTRY = (
    "next", "hash", "words", "key", "made", "compiled", "cuda", "entry", "function", "config", "pool", "stream",
    "device", "fail", "globals", "globals_count", "picks", "picks_count",
    "maps",  # address of MAPS, or null
    "enter",  # enter(grid x, y, z, stream, *values) → what `leave` gets after the launch; or null
    "leave",
    "parts",  # a Python object that keeps alive what these fields point at
)  # fmt: skip
ROW = (
    "type", "kind",
    "layout",  # address of torch_layout.LAYOUT, or null
    "data_ptr", "dtype", "dtype_closure", "is_cuda", "is_cuda_closure", "storage", "nbytes",
)  # fmt: skip
NUMBER = ("type", "kind")
CURSOR = (
    "key", "slot", "size", "place", "room",
    "strided",  # not 0: an array has elements that do not lie one behind the other
)  # fmt: skip
MAPS = (
    "maps",  # how many
    "used",  # how many arguments they are made from
    "arguments",  # address of their numbers among the kernel's run-time arguments
    "extents",  # how many of the grid's extents they depend on
    "chains",  # address of MAP_BUCKETS pointers to MAP_ENTRY
    "learn",  # learn(bytes of the arguments' values) → whether the maps are in the table now
)
MAP_ENTRY = (
    "next", "hash", "key",
    "data", "maps",  # the encoded maps, and how many
    "blocks",  # to start, 0 for one each program
    "function", "config",  # of the kernel that runs instead, or null
)  # fmt: skip
BUCKETS, MAP_BUCKETS = 256, 64
READ_NUMPY, READ_TENSOR, READ_PYTHON = range(3)
# NumPy's scalars are read as the Python number of their value.
READ_INTEGER, READ_REAL, READ_TRUTH = range(3)
DESCRIPTOR_FIELDS = ("base", "shape", "strides", "block_shape", "padding", "round_f32_to_tf32")
EXTRA_UNITS = 64  # for the items of tuples and descriptors; launches with more go through Python

HOST_PLACE, DEVICE_PLACE = 1, 2
READ_ONLY, STRIDED = 4, 8  # what `reader` says of an array
TAGS = {
    "NONE": 1, "ONE": 2, "BOOL": 3, "FLOAT": 4, "ANY": 5, "BLOCK": 6, "STRIDE": 7,
    "I32": 8, "I64": 10,  # + 1: divisible by 16
    # + 1: address divisible by 16, + 2: on a CUDA device, + 4: READ_ONLY, + 256 * min(storage's bytes >> 31, 15)
    "ARRAY": 32,
    "DESCRIPTOR": 48,  # + 2: on a CUDA device, + 4: READ_ONLY, + 256 * rank
    "C_INT": 64, "C_FLOAT": 65, "C_OBJECT": 66,  # compile-time: by value, by bits, by identity
    "TUPLE": 68,  # + 256 * length
}  # fmt: skip
# Low byte of a mode; next byte: kind.
DEFAULT, CONSTANT, FIXED, UNALIGNED, POINTER_MODE, KEYED, UNKEYED = range(7)

TEXT = r"""
declare i64 @PyLong_AsLongLongAndOverflow(ptr, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyBytes_FromStringAndSize(ptr, i64)
declare i64 @PyTuple_Size(ptr)
declare ptr @PyDict_New()
declare i32 @PyDict_SetItem(ptr, ptr, ptr)
declare ptr @PyDict_GetItemWithError(ptr, ptr)
declare ptr @PyCell_Get(ptr)
declare i32 @PyCallable_Check(ptr)
declare void @Py_IncRef(ptr)
declare ptr @PyFloat_FromDouble(double)
declare ptr @PyBool_FromLong(i64)
declare i32 @PyType_IsSubtype(ptr, ptr)
declare i32 @memcmp(ptr, ptr, i64)

; Two key words of a compile-time value; false: not one that can be compared natively.
define internal i1 @constant(ptr %d, ptr %o, ptr %key) nounwind {
entry:
  %over = alloca i32
  %val = getelementptr i64, ptr %key, i64 1
  %ta = getelementptr i8, ptr %o, i64 TYPE_OFFSET
  %t = load ptr, ptr %ta
  %int = HEAD.int %d
  %isint = icmp eq ptr %t, %int
  br i1 %isint, label %integer, label %other
integer:
  %v = call i64 @PyLong_AsLongLongAndOverflow(ptr %o, ptr %over)
  store i64 TAG.C_INT, ptr %key
  store i64 %v, ptr %val
  %ov = load i32, ptr %over
  %ok = icmp eq i32 %ov, 0
  ret i1 %ok
other:
  %float = HEAD.float %d
  %isf = icmp eq ptr %t, %float
  br i1 %isf, label %real, label %object
real:
  %f = call double @PyFloat_AsDouble(ptr %o)
  store i64 TAG.C_FLOAT, ptr %key
  store double %f, ptr %val
  ret i1 true
object:
  %number = call ptr @number(ptr %d, ptr %o, ptr %t)
  %isnumber = icmp ne ptr %number, null
  br i1 %isnumber, label %scalar, label %identity
scalar:
  %sok = call i1 @constant(ptr %d, ptr %number, ptr %key)
  call void @Py_DecRef(ptr %number)
  ret i1 %sok
identity:
  store i64 TAG.C_OBJECT, ptr %key
  store ptr %o, ptr %val
  ret i1 true
}

; Key words and slot of one argument; *size: bytes from a pointer to the end of its memory, AT_MOST added where that is
; a bound, -1 for other arguments. False: let Python see to it.
define internal i1 @leaf(ptr %d, ptr %o, i64 %mode, ptr %key, ptr %slot, ptr %size, ptr %place) nounwind {
entry:
  %over = alloca i32
  %value = alloca ptr
  %dummy = alloca ptr
  %mini = alloca [MINI_BYTES x i8], align 8
  %val = getelementptr i64, ptr %key, i64 1
  store i64 0, ptr %val
  store i64 -1, ptr %size
  %m = and i64 %mode, 255
  %constant = icmp eq i64 %m, MODE.CONSTANT
  br i1 %constant, label %const, label %runtime
const:
  %cok = call i1 @constant(ptr %d, ptr %o, ptr %key)
  ret i1 %cok
runtime:
  %ta = getelementptr i8, ptr %o, i64 TYPE_OFFSET
  %t = load ptr, ptr %ta
  %none = HEAD.none %d
  %isnone = icmp eq ptr %o, %none
  br i1 %isnone, label %absent, label %some
absent:
  store i64 TAG.NONE, ptr %key
  store i64 0, ptr %slot
  %nok = icmp ne i64 %m, MODE.KEYED
  ret i1 %nok
some:
  %int = HEAD.int %d
  %isint = icmp eq ptr %t, %int
  %annotated = icmp uge i64 %m, MODE.KEYED
  br i1 %annotated, label %convert, label %plain

plain:
  br i1 %isint, label %integer, label %notint
integer:
  %v = call i64 @PyLong_AsLongLongAndOverflow(ptr %o, ptr %over)
  store i64 %v, ptr %slot
  %ov = load i32, ptr %over
  %big = icmp ne i32 %ov, 0
  br i1 %big, label %no, label %ranged
no:
  ret i1 false
ranged:
  %raw = icmp eq i64 %m, MODE.POINTER
  br i1 %raw, label %any, label %width
any:
  store i64 UNKNOWN_SIZE, ptr %size
  store i64 TAG.ANY, ptr %key
  ret i1 true
width:
  %v32 = trunc i64 %v to i32
  %vs = sext i32 %v32 to i64
  %fits = icmp eq i64 %vs, %v
  %wide = select i1 %fits, i64 TAG.I32, i64 TAG.I64
  %low = and i64 %v, 15
  %div = icmp eq i64 %low, 0
  %isdefault = icmp eq i64 %m, MODE.DEFAULT
  %divkey = and i1 %div, %isdefault
  %divbit = zext i1 %divkey to i64
  %itag = or i64 %wide, %divbit
  %isone = icmp eq i64 %v, 1
  %unfixed = icmp ne i64 %m, MODE.FIXED
  %one = and i1 %isone, %unfixed
  %ntag = select i1 %one, i64 TAG.ONE, i64 %itag
  store i64 %ntag, ptr %key
  ret i1 true
notint:
  %float = HEAD.float %d
  %isfloat = icmp eq ptr %t, %float
  br i1 %isfloat, label %real, label %notreal
real:
  %isptr1 = icmp eq i64 %m, MODE.POINTER
  br i1 %isptr1, label %no, label %real1
real1:
  %f = call double @PyFloat_AsDouble(ptr %o)
  %f32 = fptrunc double %f to float
  store i64 0, ptr %slot
  store float %f32, ptr %slot
  store i64 TAG.FLOAT, ptr %key
  ret i1 true
notreal:
  %true = HEAD.true %d
  %istrue = icmp eq ptr %o, %true
  %tt = getelementptr i8, ptr %true, i64 TYPE_OFFSET
  %bool = load ptr, ptr %tt
  %isbool = icmp eq ptr %t, %bool
  br i1 %isbool, label %truth, label %arrays
truth:
  %isptr2 = icmp eq i64 %m, MODE.POINTER
  br i1 %isptr2, label %no, label %truth1
truth1:
  %bit = zext i1 %istrue to i64
  store i64 %bit, ptr %slot
  store i64 TAG.BOOL, ptr %key
  ret i1 true
arrays:
  %aok = call i1 @array(ptr %d, ptr %o, ptr %t, ptr %key, ptr %slot, ptr %size, ptr %place)
  br i1 %aok, label %trim, label %odd
odd:
  %number = call ptr @number(ptr %d, ptr %o, ptr %t)
  %isnumber = icmp ne ptr %number, null
  br i1 %isnumber, label %scalar, label %unlike
scalar:
  %sok = call i1 @leaf(ptr %d, ptr %number, i64 %mode, ptr %key, ptr %slot, ptr %size, ptr %place)
  call void @Py_DecRef(ptr %number)
  ret i1 %sok
unlike:
  ; numpy.float64 is a float
  %sub = call i32 @PyType_IsSubtype(ptr %t, ptr %float)
  %isreal = icmp ne i32 %sub, 0
  br i1 %isreal, label %real, label %no
trim:
  ; alignment counts only by the default rules
  %isdefault1 = icmp eq i64 %m, MODE.DEFAULT
  %tag = load i64, ptr %key
  %unaligned = and i64 %tag, -2
  %kept = select i1 %isdefault1, i64 %tag, i64 %unaligned
  store i64 %kept, ptr %key
  ret i1 true

convert:
  %realtype = HEAD.float %d
  %isreal0 = icmp eq ptr %t, %realtype
  %usual = or i1 %isint, %isreal0
  br i1 %usual, label %convert1, label %foreign
foreign:
  %number1 = call ptr @number(ptr %d, ptr %o, ptr %t)
  %isnumber1 = icmp ne ptr %number1, null
  br i1 %isnumber1, label %scalar1, label %convert1
scalar1:
  %sok1 = call i1 @leaf(ptr %d, ptr %number1, i64 %mode, ptr %key, ptr %slot, ptr %size, ptr %place)
  call void @Py_DecRef(ptr %number1)
  ret i1 %sok1
convert1:
  ; a number for a parameter whose annotation says the type: the launcher's own conversion, for one argument
  call void @llvm.memcpy.p0.p0.i64(ptr %mini, ptr %d, i64 HEADER_BYTES, i1 false)
  %ca = getelementptr i8, ptr %mini, i64 COUNT_OFFSET
  store i64 1, ptr %ca
  %ka = getelementptr i8, ptr %mini, i64 HEADER_BYTES
  %k64 = lshr i64 %mode, 8
  %k = trunc i64 %k64 to i8
  store i8 %k, ptr %ka
  store ptr %o, ptr %value
  %uok = call i1 @unpack(ptr %mini, ptr %value, ptr %slot, ptr %dummy)
  br i1 %uok, label %converted, label %unfit
unfit:
  call void @PyErr_Clear()
  ret i1 false
converted:
  %x = load i64, ptr %slot
  %xlow = and i64 %x, 15
  %xdiv = icmp eq i64 %xlow, 0
  %keyed = icmp eq i64 %m, MODE.KEYED
  %x1 = and i1 %xdiv, %keyed
  %x2 = and i1 %x1, %isint
  %xbit = zext i1 %x2 to i64
  store i64 %xbit, ptr %val
  store i64 TAG.ANY, ptr %key
  ret i1 true
}

; fallback(key, *objects), `key` borrowed.
define internal ptr @slow(ptr %d, ptr %key, ptr %objects, i64 %given, i64 %keywords, ptr %names) nounwind {
  %all = add i64 %given, %keywords
  %room = add i64 %all, 1
  %call = alloca ptr, i64 %room
  store ptr %key, ptr %call
  %rest = getelementptr ptr, ptr %call, i64 1
  %bytes = shl i64 %all, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %rest, ptr %objects, i64 %bytes, i1 false)
  %positional = add i64 %given, 1
  %f = HEAD.fallback %d
  %r = call ptr @PyObject_Vectorcall(ptr %f, ptr %call, i64 %positional, ptr %names)
  ret ptr %r
}

; Keyword arguments: into `values` by parameter, or option key words. False: let Python see to it.
define internal i1 @keywords(ptr %d, ptr %objects, i64 %given, i64 %count, ptr %names, ptr %values, ptr %options,
    ptr %used) nounwind {
entry:
  %n = HEAD.count %d
  %params = HEAD.names %d
  %first = sub i64 %given, 1
  %known = HEAD.options %d
  br label %head
head:
  %k = phi i64 [0, %entry], [%k1, %next]
  %at = phi ptr [%options, %entry], [%at1, %next]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %body, label %done
done:
  %from = ptrtoint ptr %options to i64
  %to = ptrtoint ptr %at to i64
  %bytes = sub i64 %to, %from
  %words = lshr i64 %bytes, 3
  store i64 %words, ptr %used
  ret i1 true
body:
  %na = getelementptr i8, ptr %names, i64 TUPLE_ITEMS
  %nb = getelementptr ptr, ptr %na, i64 %k
  %name = load ptr, ptr %nb
  %oi = add i64 %given, %k
  %oa = getelementptr ptr, ptr %objects, i64 %oi
  %o = load ptr, ptr %oa
  br label %param
param:
  %j = phi i64 [%first, %body], [%j1, %another]
  %within = icmp slt i64 %j, %n
  br i1 %within, label %compare, label %option
compare:
  %pa = getelementptr ptr, ptr %params, i64 %j
  %p = load ptr, ptr %pa
  %same = icmp eq ptr %p, %name
  %j1 = add i64 %j, 1
  br i1 %same, label %bind, label %another
another:
  br label %param
bind:
  %va = getelementptr ptr, ptr %values, i64 %j
  store ptr %o, ptr %va
  br label %next
option:
  %q = phi ptr [%known, %param], [%q1, %unlike]
  %qn = load ptr, ptr %q
  %match = icmp eq ptr %qn, %name
  br i1 %match, label %matched, label %unlike
unlike:
  %q1 = getelementptr ptr, ptr %q, i64 1
  %last = icmp eq ptr %qn, null
  br i1 %last, label %no, label %option
no:
  ret i1 false
matched:
  store ptr %name, ptr %at
  %cw = getelementptr i64, ptr %at, i64 1
  %cok = call i1 @constant(ptr %d, ptr %o, ptr %cw)
  br i1 %cok, label %next, label %no
next:
  %step = phi i64 [0, %bind], [3, %matched]
  %at1 = getelementptr i64, ptr %at, i64 %step
  %k1 = add i64 %k, 1
  br label %head
}

"""
