"""Contains the native code of a repeated launch as LLVM IR text: it binds the arguments, finds the kernel and launches
it.

Equal keys (see bind_ir) mean the same kernel. Whatever this code does not know (another argument type, a new key,
hooks, a changed knob) goes to `fallback(key or None, grid, *args, **kwargs)`, the complete path in Python, which may
add or renew the entry of the key.
"""

from __future__ import annotations

import re

from tessera.runtime.arguments.aliasing import AT_MOST, MOST_PAIRS, UNKNOWN
from tessera.runtime.arguments.torch_layout import LAYOUT
from tessera.runtime.native.aliasing_ir import TEXT as OVERLAP
from tessera.runtime.native.array_ir import TEXT as ARRAY
from tessera.runtime.native.bind_ir import (
    BUCKETS,
    CONSTANT,
    CURSOR,
    DEFAULT,
    DEVICE_PLACE,
    ENTRY,
    EXTRA_UNITS,
    FIXED,
    HEAD,
    KEYED,
    MAP_BUCKETS,
    MAP_ENTRY,
    MAPS,
    NUMBER,
    POINTER_MODE,
    READ_INTEGER,
    READ_NUMPY,
    READ_ONLY,
    READ_REAL,
    READ_TENSOR,
    READ_TRUTH,
    ROW,
    TAGS,
)
from tessera.runtime.native.bind_ir import TEXT as BIND
from tessera.runtime.native.compound_ir import TEXT as COMPOUND
from tessera.runtime.native.find_ir import TEXT as FIND
from tessera.runtime.native.launcher_ir import HEADER
from tessera.runtime.native.start_ir import TEXT as START

TUPLE_FLAG = 1 << 26  # CPython's Py_TPFLAGS_TUPLE_SUBCLASS
_STRUCTURES = {
    "HEAD": HEAD, "ENTRY": ENTRY, "ROW": ROW, "CURSOR": CURSOR, "MAPS": MAPS, "MAP_ENTRY": MAP_ENTRY, "LAYOUT": LAYOUT,
    "NUMBER": NUMBER,
}  # fmt: skip
_INTEGERS = {  # the other fields are pointers
    "HEAD.count", "ENTRY.hash", "ENTRY.words", "ENTRY.cuda", "ENTRY.globals_count", "ENTRY.picks_count", "ENTRY.made",
    "ROW.kind", "NUMBER.kind", "CURSOR.place", "CURSOR.room", "CURSOR.strided", "MAPS.maps", "MAPS.used",
    "MAPS.extents", "MAP_ENTRY.hash", "MAP_ENTRY.maps", "MAP_ENTRY.blocks",
    *(f"LAYOUT.{field}" for field in LAYOUT),
}  # fmt: skip

TEXT = r"""
; A launch whose entry is known; *out: the compiled kernel, a new reference. 0: done, 1: let Python see to it, 2: an
; exception is set.
define internal i32 @repeat(ptr %d, ptr %e, ptr %objects, ptr %values, ptr %slots, ptr %out) nounwind {
entry:
  %stream = alloca ptr
  %argument = alloca ptr
  %extents = alloca [3 x i64]
  %blocks = alloca [3 x i64]
  %which = alloca [3 x i64]
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
  %own = ENTRY.function %e
  %own_template = ENTRY.config %e
  store ptr null, ptr %stream
  %cuda = ENTRY.cuda %e
  %oncuda = icmp ne i64 %cuda, 0
  br i1 %oncuda, label %streamed, label %run
streamed:
  %map_table = ENTRY.maps %e
  %unmapped = icmp eq ptr %map_table, null
  br i1 %unmapped, label %asked, label %mapped
mapped:
  ; a copy of the maps: other threads may drop them once the lock is released
  %mc = MAPS.maps %map_table
  %mb = shl i64 %mc, 7
  %memory = alloca i8, i64 %mb, align 64
  %picks = ENTRY.picks %e
  %mr = call i32 @maps(ptr %map_table, ptr %slots, ptr %picks, ptr %extents, ptr %memory, ptr %which, ptr %blocks)
  switch i32 %mr, label %drop [ i32 0, label %chosen  i32 1, label %later ]
chosen:
  %found_count = load i64, ptr %which
  %found1 = getelementptr ptr, ptr %which, i64 1
  %other = load ptr, ptr %found1
  %found2 = getelementptr ptr, ptr %which, i64 2
  %other_template = load ptr, ptr %found2
  %mine = icmp eq ptr %other, null
  %chosen_function = select i1 %mine, ptr %own, ptr %other
  %chosen_template = select i1 %mine, ptr %own_template, ptr %other_template
  br label %asked
asked:
  %map_data = phi ptr [null, %streamed], [%memory, %chosen]
  %map_count = phi i64 [0, %streamed], [%found_count, %chosen]
  %asked_function = phi ptr [%own, %streamed], [%chosen_function, %chosen]
  %asked_template = phi ptr [%own_template, %streamed], [%chosen_template, %chosen]
  %asked_grid = phi ptr [%extents, %streamed], [%blocks, %chosen]
  %sc = call i32 @stream(ptr %d, ptr %e, ptr %stream)
  switch i32 %sc, label %drop [ i32 0, label %run  i32 1, label %later ]
later:
  call void @Py_DecRef(ptr %compiled)
  ret i32 1
drop:
  call void @Py_DecRef(ptr %compiled)
  ret i32 2
run:
  %md = phi ptr [null, %device], [%map_data, %asked]
  %mn = phi i64 [0, %device], [%map_count, %asked]
  %fn = phi ptr [%own, %device], [%asked_function, %asked]
  %template = phi ptr [%own_template, %device], [%asked_template, %asked]
  %started_grid = phi ptr [%extents, %device], [%asked_grid, %asked]
  %s = load ptr, ptr %stream
  %enter = ENTRY.enter %e
  %unhooked = icmp eq ptr %enter, null
  br i1 %unhooked, label %launch, label %hooked
hooked:
  %metadata = call ptr @enter(ptr %d, ptr %enter, ptr %extents, ptr %s, ptr %values)
  %refused = icmp eq ptr %metadata, null
  br i1 %refused, label %drop, label %launch
launch:
  %about = phi ptr [null, %run], [%metadata, %hooked]
  %rc = call i32 @start(ptr %e, ptr %fn, ptr %template, ptr %slots, ptr %started_grid, ptr %s, ptr %md, i64 %mn)
  %bad = icmp ne i32 %rc, 0
  br i1 %bad, label %report, label %started
started:
  %entered = icmp ne ptr %about, null
  br i1 %entered, label %leave, label %done
leave:
  store ptr %about, ptr %argument
  %lf = ENTRY.leave %e
  %lr = call ptr @PyObject_Vectorcall(ptr %lf, ptr %argument, i64 1, ptr null)
  call void @Py_DecRef(ptr %about)
  %stayed = icmp eq ptr %lr, null
  br i1 %stayed, label %drop, label %left
left:
  call void @Py_DecRef(ptr %lr)
  br label %done
report:
  call void @Py_DecRef(ptr %about)
  ; an interrupted launch has raised already
  %e1 = call ptr @PyErr_Occurred()
  %set = icmp ne ptr %e1, null
  br i1 %set, label %drop, label %told
told:
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

; Whether the kernel is told how the elements of strided arrays lie.
define internal i1 @explained(ptr %d, ptr %values, i64 %n) nounwind {
entry:
  %f = HEAD.strides %d
  %o = call ptr @PyObject_Vectorcall(ptr %f, ptr %values, i64 %n, ptr null)
  %failed = icmp eq ptr %o, null
  br i1 %failed, label %odd, label %answer
odd:
  call void @PyErr_Clear()
  ret i1 false
answer:
  %true = HEAD.true %d
  %yes = icmp eq ptr %o, %true
  call void @Py_DecRef(ptr %o)
  ret i1 %yes
}

; builtin(grid, *args, **kwargs)
define ptr @fast_launch(ptr %self, ptr %objects, i64 %given, ptr %names) nounwind {
entry:
  %cursor = alloca [CURSOR_WORDS x i64]
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
  %most_units = add i64 %n, EXTRA_UNITS
  %slots = alloca i64, i64 %most_units
  %sizes = alloca i64, i64 %most_units
  %n2 = shl i64 %most_units, 1
  %kw3 = mul i64 %kw, 3
  %k1 = add i64 %n2, 2
  %kall = add i64 %k1, %kw3
  %key = alloca i64, i64 %kall
  %options = alloca i64, i64 %kw3
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
  %kwok = call i1 @keywords(ptr %d, ptr %objects, i64 %given, i64 %kw, ptr %names, ptr %values, ptr %options, ptr %used)
  br i1 %kwok, label %classify0, label %python
classify0:
  %units = getelementptr i64, ptr %key, i64 2
  store ptr %units, ptr %cursor
  %cslot = getelementptr i64, ptr %cursor, i64 1
  store ptr %slots, ptr %cslot
  %csize = getelementptr i64, ptr %cursor, i64 2
  store ptr %sizes, ptr %csize
  %cplace = getelementptr i64, ptr %cursor, i64 3
  store i64 0, ptr %cplace
  %croom = getelementptr i64, ptr %cursor, i64 4
  store i64 %most_units, ptr %croom
  %cstrided = getelementptr i64, ptr %cursor, i64 5
  store i64 0, ptr %cstrided
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
  %fine = call i1 @argument(ptr %d, ptr %o, i64 %mode, ptr %cursor)
  %j1 = add i64 %j, 1
  br i1 %fine, label %classified, label %python
classified:
  br label %classify
placed:
  %strided = CURSOR.strided %cursor
  %dense = icmp eq i64 %strided, 0
  br i1 %dense, label %told, label %explain
explain:
  %explained = call i1 @explained(ptr %d, ptr %values, i64 %n)
  br i1 %explained, label %told, label %python
told:
  %where = CURSOR.place %cursor
  %rest = CURSOR.room %cursor
  %count = sub i64 %most_units, %rest
  %ondevice = icmp eq i64 %where, DEVICE_PLACE
  br i1 %ondevice, label %marked, label %relate
relate:
  %relations = call i64 @relate(ptr %d, ptr %values, ptr %slots, ptr %sizes, i64 %n, i64 %count)
  %odd = icmp slt i64 %relations, 0
  br i1 %odd, label %python, label %marked
marked:
  %related = phi i64 [0, %told], [%relations, %relate]
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
  %end = CURSOR.key %cursor
  %obytes = shl i64 %ow, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %end, ptr %options, i64 %obytes, i1 false)
  %count2 = shl i64 %count, 1
  %fixed = add i64 %count2, 2
  %words = add i64 %fixed, %ow
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
        "CURSOR_WORDS": len(CURSOR), "EXTRA_UNITS": EXTRA_UNITS, "TUPLE_FLAG": TUPLE_FLAG,
        "LAST_CHAIN": MAP_BUCKETS - 1, "READ_NUMPY": READ_NUMPY, "READ_TENSOR": READ_TENSOR,
        "READ_ONLY": READ_ONLY, "NUMBER_BYTES": 8 * len(NUMBER), "READ_INTEGER": READ_INTEGER, "READ_REAL": READ_REAL,
        "READ_TRUTH": READ_TRUTH,
        "AT_MOST": AT_MOST, "LESS_MARK": ~AT_MOST, "LOWEST_WORD": -(1 << 63),
    }  # fmt: skip
    parts = "".join((BIND, ARRAY, COMPOUND, OVERLAP, FIND, START, TEXT))
    lines: list[str] = []
    for number, line in enumerate(parts.splitlines()):
        words = line.split()
        if len(words) == 4 and words[1] == "=" and words[2].split(".")[0] in _STRUCTURES:
            structure, field = words[2].split(".")
            at = 8 * _STRUCTURES[structure].index(field)
            kind = "i64" if words[2] in _INTEGERS else "ptr"
            lines.append(f"  %F{number} = getelementptr i8, ptr {words[3]}, i64 {at}")
            lines.append(f"  {words[0]} = load {kind}, ptr %F{number}")
        else:
            lines.append(line)
    return re.sub(
        r"\b(?:TAG\.\w+|MODE\.\w+|[A-Z]+_[A-Z]+)\b", lambda m: str(numbers[m[0]]), "\n".join(lines)
    )
