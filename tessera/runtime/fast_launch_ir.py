"""The native code of a repeated launch, as LLVM IR text: find the kernel, evaluate the grid, launch.

Equal keys (see fast_bind_ir) mean the same kernel. Whatever this code does not know (another argument type, a new key,
hooks, a changed knob) goes to `fallback(key or None, grid, *args, **kwargs)`, the complete path in Python, which may
add or renew the entry of the key.
"""

from __future__ import annotations

import re

from tessera.runtime.fast_bind_ir import (
    BUCKETS,
    CONSTANT,
    DEFAULT,
    DEVICE_PLACE,
    ENTRY,
    FIXED,
    HEAD,
    KEYED,
    POINTER_MODE,
    ROW,
    TAGS,
)
from tessera.runtime.fast_bind_ir import TEXT as BIND
from tessera.runtime.fast_overlap_ir import TEXT as OVERLAP
from tessera.runtime.launcher_ir import HEADER
from tessera.runtime.overlap import AT_MOST, MOST_PAIRS, UNKNOWN

TEXT = r"""
; The entry of a key, or null.
define internal ptr @find(ptr %d, ptr %key, i64 %words) nounwind {
entry:
  br label %mix
mix:
  %i = phi i64 [0, %entry], [%i1, %mix]
  %h = phi i64 [%words, %entry], [%h3, %mix]
  %wa = getelementptr i64, ptr %key, i64 %i
  %w = load i64, ptr %wa
  %h1 = xor i64 %h, %w
  %h2 = mul i64 %h1, -7046029254386353131
  %hs = lshr i64 %h2, 29
  %h3 = xor i64 %h2, %hs
  %i1 = add i64 %i, 1
  %go = icmp slt i64 %i1, %words
  br i1 %go, label %mix, label %mixed
mixed:
  %table = HEAD.table %d
  %slot = and i64 %h3, LAST_BUCKET
  %ba = getelementptr ptr, ptr %table, i64 %slot
  %first = load ptr, ptr %ba
  %bytes = shl i64 %words, 3
  br label %chain
chain:
  %e = phi ptr [%first, %mixed], [%following, %advance]
  %end = icmp eq ptr %e, null
  br i1 %end, label %none, label %check
none:
  ret ptr null
check:
  %eh = ENTRY.hash %e
  %heq = icmp eq i64 %eh, %h3
  br i1 %heq, label %sized, label %advance
sized:
  %ew = ENTRY.words %e
  %weq = icmp eq i64 %ew, %words
  br i1 %weq, label %deep, label %advance
deep:
  %ek = ENTRY.key %e
  %c = call i32 @memcmp(ptr %ek, ptr %key, i64 %bytes)
  %equal = icmp eq i32 %c, 0
  br i1 %equal, label %found, label %advance
found:
  ret ptr %e
advance:
  %following = ENTRY.next %e
  br label %chain
}

; Hash of a key in a bytes object: (address, words) → hash, for Python, which inserts entries.
define i64 @fast_hash(ptr %key, i64 %words) nounwind {
entry:
  br label %mix
mix:
  %i = phi i64 [0, %entry], [%i1, %mix]
  %h = phi i64 [%words, %entry], [%h3, %mix]
  %wa = getelementptr i64, ptr %key, i64 %i
  %w = load i64, ptr %wa
  %h1 = xor i64 %h, %w
  %h2 = mul i64 %h1, -7046029254386353131
  %hs = lshr i64 %h2, 29
  %h3 = xor i64 %h2, %hs
  %i1 = add i64 %i, 1
  %go = icmp slt i64 %i1, %words
  br i1 %go, label %mix, label %mixed
mixed:
  ret i64 %h3
}

; Captured globals still the same objects?
define internal i1 @unchanged(ptr %e) nounwind {
entry:
  %n = ENTRY.globals_count %e
  %rows = ENTRY.globals %e
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %same]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
done:
  ret i1 true
body:
  %at = mul i64 %i, 3
  %ra = getelementptr ptr, ptr %rows, i64 %at
  %scope = load ptr, ptr %ra
  %rb = getelementptr ptr, ptr %ra, i64 1
  %name = load ptr, ptr %rb
  %rc = getelementptr ptr, ptr %ra, i64 2
  %seen = load ptr, ptr %rc
  %now = call ptr @PyDict_GetItemWithError(ptr %scope, ptr %name)
  %i1 = add i64 %i, 1
  %eq = icmp eq ptr %now, %seen
  br i1 %eq, label %same, label %no
same:
  br label %head
no:
  ret i1 false
}

; The grid's extents. 0: good, 1: let Python see to it, 2: an exception is set.
define internal i32 @extents(ptr %d, ptr %grid, ptr %values, ptr %out) nounwind {
entry:
  %held = alloca ptr
  %argument = alloca ptr
  store ptr null, ptr %held
  store i64 1, ptr %out
  %out1 = getelementptr i64, ptr %out, i64 1
  store i64 1, ptr %out1
  %out2 = getelementptr i64, ptr %out, i64 2
  store i64 1, ptr %out2
  %tuple = HEAD.tuple %d
  %list = HEAD.list %d
  br label %kind
kind:
  %g = phi ptr [%grid, %entry], [%made, %called]
  %ta = getelementptr i8, ptr %g, i64 TYPE_OFFSET
  %t = load ptr, ptr %ta
  %za = getelementptr i8, ptr %g, i64 AFTER_TYPE
  %istuple = icmp eq ptr %t, %tuple
  br i1 %istuple, label %intuple, label %nottuple
intuple:
  %ti = getelementptr i8, ptr %g, i64 TUPLE_ITEMS
  br label %items
nottuple:
  %islist = icmp eq ptr %t, %list
  br i1 %islist, label %inlist, label %function
inlist:
  %la = getelementptr i8, ptr %za, i64 8
  %li = load ptr, ptr %la
  br label %items
function:
  %again = load ptr, ptr %held
  %already = icmp ne ptr %again, null
  br i1 %already, label %no, label %first
first:
  %callable = call i32 @PyCallable_Check(ptr %g)
  %is = icmp ne i32 %callable, 0
  br i1 %is, label %bound, label %no
bound:
  %dict = call ptr @PyDict_New()
  %dnull = icmp eq ptr %dict, null
  br i1 %dnull, label %raised, label %fill0
fill0:
  %n = HEAD.count %d
  %names = HEAD.names %d
  br label %fill
fill:
  %j = phi i64 [0, %fill0], [%j1, %filled]
  %more = icmp slt i64 %j, %n
  br i1 %more, label %put, label %call
put:
  %na = getelementptr ptr, ptr %names, i64 %j
  %name = load ptr, ptr %na
  %va = getelementptr ptr, ptr %values, i64 %j
  %v = load ptr, ptr %va
  %rc = call i32 @PyDict_SetItem(ptr %dict, ptr %name, ptr %v)
  %j1 = add i64 %j, 1
  %put_failed = icmp ne i32 %rc, 0
  br i1 %put_failed, label %dropdict, label %filled
filled:
  br label %fill
dropdict:
  call void @Py_DecRef(ptr %dict)
  ret i32 2
call:
  store ptr %dict, ptr %argument
  %made = call ptr @PyObject_Vectorcall(ptr %g, ptr %argument, i64 1, ptr null)
  call void @Py_DecRef(ptr %dict)
  store ptr %made, ptr %held
  %mnull = icmp eq ptr %made, null
  br i1 %mnull, label %raised, label %called
called:
  br label %kind
raised:
  ret i32 2
items:
  %first_item = phi ptr [%ti, %intuple], [%li, %inlist]
  %size = load i64, ptr %za
  %empty = icmp slt i64 %size, 1
  br i1 %empty, label %no, label %some
some:
  %over = icmp sgt i64 %size, 3
  %count = select i1 %over, i64 3, i64 %size
  br label %read
read:
  %i = phi i64 [0, %some], [%i1, %good]
  %ia = getelementptr ptr, ptr %first_item, i64 %i
  %o = load ptr, ptr %ia
  %x = call i64 @PyLong_AsLongLong(ptr %o)
  %xa = getelementptr i64, ptr %out, i64 %i
  store i64 %x, ptr %xa
  %in = icmp ule i64 %x, 2147483647
  br i1 %in, label %good, label %out_of_range
out_of_range:
  call void @PyErr_Clear()
  br label %no
good:
  %i1 = add i64 %i, 1
  %next = icmp slt i64 %i1, %count
  br i1 %next, label %read, label %finish
no:
  br label %finish
finish:
  %code = phi i32 [0, %good], [1, %no]
  %mine = load ptr, ptr %held
  %nothing = icmp eq ptr %mine, null
  br i1 %nothing, label %leave, label %release
release:
  call void @Py_DecRef(ptr %mine)
  br label %leave
leave:
  ret i32 %code
}

; The current stream into *out. 0: good, 1: let Python see to it, 2: an exception is set.
define internal i32 @stream(ptr %d, ptr %e, ptr %out) nounwind {
entry:
  %argument = alloca ptr
  %f = ENTRY.stream %e
  %none = icmp eq ptr %f, null
  br i1 %none, label %default, label %ask
default:
  ; no torch when the entry was made: its stream counts once it is imported
  store ptr null, ptr %out
  %modules = HEAD.modules %d
  %torch = HEAD.torch %d
  %now = call ptr @PyDict_GetItemWithError(ptr %modules, ptr %torch)
  %imported = icmp ne ptr %now, null
  %code = zext i1 %imported to i32
  ret i32 %code
ask:
  %device = ENTRY.device %e
  store ptr %device, ptr %argument
  %r = call ptr @PyObject_Vectorcall(ptr %f, ptr %argument, i64 1, ptr null)
  %failed = icmp eq ptr %r, null
  br i1 %failed, label %bad, label %got
bad:
  ret i32 2
got:
  %s = call ptr @PyLong_AsVoidPtr(ptr %r)
  call void @Py_DecRef(ptr %r)
  store ptr %s, ptr %out
  %zero = icmp eq ptr %s, null
  br i1 %zero, label %suspect, label %good
suspect:
  %e1 = call ptr @PyErr_Occurred()
  %set = icmp ne ptr %e1, null
  br i1 %set, label %bad, label %good
good:
  ret i32 0
}

; Run: picked slots in order, to the driver or the thread pool. The status.
define internal i32 @start(ptr %e, ptr %slots, ptr %extents, ptr %stream) nounwind {
entry:
  %config = alloca { i32, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, i32, i32 }, align 8
  %count = ENTRY.picks_count %e
  %picks = ENTRY.picks %e
  %cuda = ENTRY.cuda %e
  %entry_ = ENTRY.entry %e
  %function = ENTRY.function %e
  %template = ENTRY.config %e
  %pool = ENTRY.pool %e
  %oncuda = icmp ne i64 %cuda, 0
  %packed = alloca i64, i64 %count, align 16
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %placed]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %ready
body:
  %pa = getelementptr i64, ptr %picks, i64 %i
  %p = load i64, ptr %pa
  %sa = getelementptr i64, ptr %slots, i64 %p
  %to = getelementptr i64, ptr %packed, i64 %i
  %i1 = add i64 %i, 1
  br i1 %oncuda, label %pointer, label %value
pointer:
  store ptr %sa, ptr %to
  br label %placed
value:
  %v = load i64, ptr %sa
  store i64 %v, ptr %to
  br label %placed
placed:
  br label %head
ready:
  %state = call ptr @PyEval_SaveThread()
  br i1 %oncuda, label %gpu, label %cpu
gpu:
  call void @llvm.memcpy.p0.p0.i64(ptr %config, ptr %template, i64 56, i1 false)
  br label %extent
extent:
  %k = phi i64 [0, %gpu], [%k1, %extent]
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
  %st = getelementptr i8, ptr %config, i64 32
  store ptr %stream, ptr %st
  %rc1 = call i32 %entry_(ptr %config, ptr %function, ptr %packed, ptr null)
  br label %done
cpu:
  %scratch = ptrtoint ptr %template to i64
  %gx = load i64, ptr %extents
  %gya = getelementptr i64, ptr %extents, i64 1
  %gy = load i64, ptr %gya
  %gza = getelementptr i64, ptr %extents, i64 2
  %gz = load i64, ptr %gza
  %x = trunc i64 %gx to i32
  %y = trunc i64 %gy to i32
  %z = trunc i64 %gz to i32
  %rc2 = call i32 %entry_(ptr %pool, ptr %function, ptr %packed, i32 %x, i32 %y, i32 %z, i64 %scratch)
  br label %done
done:
  %rc = phi i32 [%rc1, %go], [%rc2, %cpu]
  call void @PyEval_RestoreThread(ptr %state)
  ret i32 %rc
}

; A launch whose entry is known; *out: the compiled kernel, a new reference. 0: done, 1: let Python see to it, 2: an
; exception is set.
define internal i32 @repeat(ptr %d, ptr %e, ptr %objects, ptr %values, ptr %slots, ptr %out) nounwind {
entry:
  %stream = alloca ptr
  %argument = alloca ptr
  %extents = alloca [3 x i64]
  %hl = HEAD.hooks %d
  %hsa = getelementptr i8, ptr %hl, i64 AFTER_TYPE
  %hn = load i64, ptr %hsa
  %nohooks = icmp eq i64 %hn, 0
  br i1 %nohooks, label %globals, label %python
python:
  ret i32 1
globals:
  %same = call i1 @unchanged(ptr %e)
  br i1 %same, label %grid, label %python
grid:
  %go = load ptr, ptr %objects
  %gc = call i32 @extents(ptr %d, ptr %go, ptr %values, ptr %extents)
  switch i32 %gc, label %fail [ i32 0, label %sized  i32 1, label %python ]
fail:
  ret i32 2
sized:
  %compiled = ENTRY.compiled %e
  call void @Py_IncRef(ptr %compiled)
  store ptr %compiled, ptr %out
  %gx = load i64, ptr %extents
  %gya = getelementptr i64, ptr %extents, i64 1
  %gy = load i64, ptr %gya
  %gza = getelementptr i64, ptr %extents, i64 2
  %gz = load i64, ptr %gza
  %zx = icmp eq i64 %gx, 0
  %zy = icmp eq i64 %gy, 0
  %zz = icmp eq i64 %gz, 0
  %zxy = or i1 %zx, %zy
  %zero = or i1 %zxy, %zz
  br i1 %zero, label %done, label %device
device:
  store ptr null, ptr %stream
  %cuda = ENTRY.cuda %e
  %oncuda = icmp ne i64 %cuda, 0
  br i1 %oncuda, label %streamed, label %run
streamed:
  %sc = call i32 @stream(ptr %d, ptr %e, ptr %stream)
  switch i32 %sc, label %drop [ i32 0, label %run  i32 1, label %later ]
later:
  call void @Py_DecRef(ptr %compiled)
  ret i32 1
drop:
  call void @Py_DecRef(ptr %compiled)
  ret i32 2
run:
  %s = load ptr, ptr %stream
  %rc = call i32 @start(ptr %e, ptr %slots, ptr %extents, ptr %s)
  %bad = icmp ne i32 %rc, 0
  br i1 %bad, label %report, label %done
report:
  %rc64 = sext i32 %rc to i64
  %code = call ptr @PyLong_FromLong(i64 %rc64)
  store ptr %code, ptr %argument
  %f = ENTRY.fail %e
  %fr = call ptr @PyObject_Vectorcall(ptr %f, ptr %argument, i64 1, ptr null)
  call void @Py_DecRef(ptr %code)
  %raised = icmp eq ptr %fr, null
  br i1 %raised, label %drop, label %forgiven
forgiven:
  call void @Py_DecRef(ptr %fr)
  br label %done
done:
  ret i32 0
}

; builtin(grid, *args, **kwargs)
define ptr @fast_launch(ptr %self, ptr %objects, i64 %given, ptr %names) nounwind {
entry:
  %place = alloca i64
  %used = alloca i64
  %context = alloca ptr
  %compiled = alloca ptr
  %d = call ptr @PyBytes_AsString(ptr %self)
  %none = HEAD.none %d
  %n = HEAD.count %d
  %nokw = icmp eq ptr %names, null
  br i1 %nokw, label %arity, label %size
size:
  %kwn = call i64 @PyTuple_Size(ptr %names)
  br label %arity
arity:
  %kw = phi i64 [0, %entry], [%kwn, %size]
  %np = sub i64 %given, 1
  %least = icmp sge i64 %np, 0
  %most = icmp sle i64 %np, %n
  %right = and i1 %least, %most
  br i1 %right, label %room, label %python
python:
  %r0 = call ptr @slow(ptr %d, ptr %none, ptr %objects, i64 %given, i64 %kw, ptr %names)
  ret ptr %r0
room:
  %values = alloca ptr, i64 %n
  %slots = alloca i64, i64 %n
  %sizes = alloca i64, i64 %n
  %n2 = shl i64 %n, 1
  %kw3 = mul i64 %kw, 3
  %k1 = add i64 %n2, 2
  %kall = add i64 %k1, %kw3
  %key = alloca i64, i64 %kall
  %given_values = getelementptr ptr, ptr %objects, i64 1
  %pbytes = shl i64 %np, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %values, ptr %given_values, i64 %pbytes, i1 false)
  %defaults = HEAD.defaults %d
  %missing = sub i64 %n, %np
  %mbytes = shl i64 %missing, 3
  %vm = getelementptr ptr, ptr %values, i64 %np
  %dm = getelementptr ptr, ptr %defaults, i64 %np
  call void @llvm.memcpy.p0.p0.i64(ptr %vm, ptr %dm, i64 %mbytes, i1 false)
  store i64 0, ptr %used
  br i1 %nokw, label %classify0, label %named
named:
  %options = getelementptr i64, ptr %key, i64 %k1
  %kwok = call i1 @keywords(ptr %d, ptr %objects, i64 %given, i64 %kw, ptr %names, ptr %values, ptr %options, ptr %used)
  br i1 %kwok, label %classify0, label %python
classify0:
  store i64 0, ptr %place
  %modes = HEAD.modes %d
  br label %classify
classify:
  %j = phi i64 [0, %classify0], [%j1, %classified]
  %more = icmp slt i64 %j, %n
  br i1 %more, label %argument1, label %placed
argument1:
  %va = getelementptr ptr, ptr %values, i64 %j
  %o = load ptr, ptr %va
  %unbound = icmp eq ptr %o, null
  br i1 %unbound, label %python, label %argument2
argument2:
  %ma = getelementptr i64, ptr %modes, i64 %j
  %mode = load i64, ptr %ma
  %jk = shl i64 %j, 1
  %jk2 = add i64 %jk, 2
  %kp = getelementptr i64, ptr %key, i64 %jk2
  %sp = getelementptr i64, ptr %slots, i64 %j
  %zp = getelementptr i64, ptr %sizes, i64 %j
  %fine = call i1 @classify(ptr %d, ptr %o, i64 %mode, ptr %kp, ptr %sp, ptr %zp, ptr %place)
  %j1 = add i64 %j, 1
  br i1 %fine, label %classified, label %python
classified:
  br label %classify
placed:
  %where = load i64, ptr %place
  %ondevice = icmp eq i64 %where, DEVICE_PLACE
  br i1 %ondevice, label %marked, label %relate
relate:
  %relations = call i64 @relate(ptr %d, ptr %values, ptr %slots, ptr %sizes, i64 %n)
  %odd = icmp slt i64 %relations, 0
  br i1 %odd, label %python, label %marked
marked:
  %related = phi i64 [0, %placed], [%relations, %relate]
  %high = shl i64 %related, 8
  %key0 = or i64 %where, %high
  store i64 %key0, ptr %key
  store ptr null, ptr %context
  %ca = HEAD.context %d
  %current = load ptr, ptr %ca
  %cpu = icmp eq i64 %where, 1
  %nocuda = icmp eq ptr %current, null
  %skip = or i1 %cpu, %nocuda
  br i1 %skip, label %lookup, label %ask
ask:
  %ignored = call i32 %current(ptr %context)
  br label %lookup
lookup:
  %cx = load ptr, ptr %context
  %key1 = getelementptr i64, ptr %key, i64 1
  store ptr %cx, ptr %key1
  %ow = load i64, ptr %used
  %words = add i64 %k1, %ow
  %e = call ptr @find(ptr %d, ptr %key, i64 %words)
  %unknown = icmp eq ptr %e, null
  br i1 %unknown, label %miss, label %hit
miss:
  %kbytes = shl i64 %words, 3
  %ko = call ptr @PyBytes_FromStringAndSize(ptr %key, i64 %kbytes)
  %kfail = icmp eq ptr %ko, null
  br i1 %kfail, label %fail, label %miss1
miss1:
  %r1 = call ptr @slow(ptr %d, ptr %ko, ptr %objects, i64 %given, i64 %kw, ptr %names)
  call void @Py_DecRef(ptr %ko)
  ret ptr %r1
fail:
  ret ptr null
hit:
  %epa = HEAD.epoch %d
  %epoch = load i64, ptr %epa
  %made = ENTRY.made %e
  %current_epoch = icmp eq i64 %epoch, %made
  br i1 %current_epoch, label %held, label %miss
held:
  ; Grid functions and other threads may renew or drop the entry: what it points at must live until the launch is done.
  %parts = ENTRY.parts %e
  call void @Py_IncRef(ptr %parts)
  %code = call i32 @repeat(ptr %d, ptr %e, ptr %objects, ptr %values, ptr %slots, ptr %compiled)
  call void @Py_DecRef(ptr %parts)
  %result = load ptr, ptr %compiled
  switch i32 %code, label %fail [ i32 0, label %done  i32 1, label %python ]
done:
  ret ptr %result
}
"""


def fast_launch_ir() -> str:
    """The functions' text, to be appended to the launcher's module (`unpack` and the declarations are there)."""
    type_offset = object.__basicsize__ - 8  # the type is the last field of `object`
    numbers = {
        "TYPE_OFFSET": type_offset, "AFTER_TYPE": type_offset + 8, "BASE_FIELD": type_offset + 40,
        "TUPLE_ITEMS": tuple.__basicsize__,
        "ROW_BYTES": 8 * len(ROW), "HEADER_BYTES": 8 * len(HEADER), "MINI_BYTES": 8 * len(HEADER) + 8,
        "COUNT_OFFSET": 8 * HEADER.index("count"), "LAST_BUCKET": BUCKETS - 1,
        **{f"TAG.{k}": v for k, v in TAGS.items()},
        "MODE.DEFAULT": DEFAULT, "MODE.CONSTANT": CONSTANT, "MODE.FIXED": FIXED, "MODE.POINTER": POINTER_MODE,
        "MODE.KEYED": KEYED,
        "DEVICE_PLACE": DEVICE_PLACE, "UNKNOWN_SIZE": UNKNOWN, "LAST_PAIR": MOST_PAIRS - 1,
        "AT_MOST": AT_MOST, "LESS_MARK": ~AT_MOST, "LOWEST_WORD": -(1 << 63),
    }  # fmt: skip
    lines: list[str] = []
    for number, line in enumerate((BIND + OVERLAP + TEXT).splitlines()):
        words = line.split()
        if len(words) == 4 and words[1] == "=" and words[2].split(".")[0] in _STRUCTURES:
            structure, field = words[2].split(".")
            at = 8 * _STRUCTURES[structure].index(field)
            kind = "i64" if field in _INTEGERS else "ptr"
            lines.append(f"  %F{number} = getelementptr i8, ptr {words[3]}, i64 {at}")
            lines.append(f"  {words[0]} = load {kind}, ptr %F{number}")
        else:
            lines.append(line)
    return re.sub(
        r"\b(?:TAG\.\w+|MODE\.\w+|[A-Z]+_[A-Z]+)\b", lambda m: str(numbers[m[0]]), "\n".join(lines)
    )


_STRUCTURES = {"HEAD": HEAD, "ENTRY": ENTRY, "ROW": ROW}
_INTEGERS = {"count", "hash", "words", "cuda", "globals_count", "picks_count", "made"}
