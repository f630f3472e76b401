"""Contains the native code, as LLVM IR text, for arguments of several units: tuples and descriptors.

A tuple is a unit with its length and type, then its items, which are compile-time values where the parameter is one. A
descriptor of rank r is 1 + 2 r units, which all reach the binary: the base with its element type, the extents with
those of the block, the strides; the first of these has padding and rounding in its key words.
"""

from __future__ import annotations

TEXT = r"""
declare ptr @PyObject_GetAttr(ptr, ptr)
declare i64 @PyType_GetFlags(ptr)

define internal void @advance(ptr %c) nounwind {
  %key = CURSOR.key %c
  %key1 = getelementptr i64, ptr %key, i64 2
  %slot = CURSOR.slot %c
  %slot1 = getelementptr i64, ptr %slot, i64 1
  %size = CURSOR.size %c
  %size1 = getelementptr i64, ptr %size, i64 1
  %room = CURSOR.room %c
  %room1 = sub i64 %room, 1
  store ptr %key1, ptr %c
  %sa = getelementptr i64, ptr %c, i64 1
  store ptr %slot1, ptr %sa
  %za = getelementptr i64, ptr %c, i64 2
  store ptr %size1, ptr %za
  %ra = getelementptr i64, ptr %c, i64 4
  store i64 %room1, ptr %ra
  ret void
}

; The units of one argument. False: let Python see to it.
define internal i1 @argument(ptr %d, ptr %o, i64 %mode, ptr %c) nounwind {
entry:
  %room = CURSOR.room %c
  %full = icmp slt i64 %room, 1
  br i1 %full, label %no, label %one
no:
  ret i1 false
one:
  %m = and i64 %mode, 255
  %ta = getelementptr i8, ptr %o, i64 TYPE_OFFSET
  %t = load ptr, ptr %ta
  %plain = HEAD.tuple %d
  %isplain = icmp eq ptr %t, %plain
  %constant = icmp eq i64 %m, MODE.CONSTANT
  %values = and i1 %isplain, %constant
  br i1 %values, label %tuple, label %single
single:
  %key = CURSOR.key %c
  %slot = CURSOR.slot %c
  %size = CURSOR.size %c
  %place = getelementptr i64, ptr %c, i64 3
  %leaf = call i1 @leaf(ptr %d, ptr %o, i64 %mode, ptr %key, ptr %slot, ptr %size, ptr %place)
  br i1 %leaf, label %done, label %several
done:
  call void @advance(ptr %c)
  ret i1 true
several:
  %default = icmp eq i64 %m, MODE.DEFAULT
  br i1 %default, label %typed, label %no
typed:
  %window = HEAD.descriptor %d
  %iswindow = icmp eq ptr %t, %window
  br i1 %iswindow, label %descriptor, label %other
descriptor:
  %dok = call i1 @descriptor(ptr %d, ptr %o, ptr %c)
  ret i1 %dok
other:
  %flags = call i64 @PyType_GetFlags(ptr %t)
  %bit = and i64 %flags, TUPLE_FLAG
  %istuple = icmp ne i64 %bit, 0
  br i1 %istuple, label %tuple, label %no
tuple:
  %tok = call i1 @tuple(ptr %d, ptr %o, ptr %t, i64 %m, ptr %c)
  ret i1 %tok
}

; `mode`: of the items.
define internal i1 @tuple(ptr %d, ptr %o, ptr %t, i64 %mode, ptr %c) nounwind {
entry:
  %za = getelementptr i8, ptr %o, i64 AFTER_TYPE
  %n = load i64, ptr %za
  %items = getelementptr i8, ptr %o, i64 TUPLE_ITEMS
  %key = CURSOR.key %c
  %high = shl i64 %n, 8
  %tag = or i64 %high, TAG.TUPLE
  store i64 %tag, ptr %key
  %val = getelementptr i64, ptr %key, i64 1
  store ptr %t, ptr %val
  %slot = CURSOR.slot %c
  store i64 0, ptr %slot
  %size = CURSOR.size %c
  store i64 -1, ptr %size
  call void @advance(ptr %c)
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %body]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
body:
  %xa = getelementptr ptr, ptr %items, i64 %i
  %x = load ptr, ptr %xa
  %ok = call i1 @argument(ptr %d, ptr %x, i64 %mode, ptr %c)
  %i1 = add i64 %i, 1
  br i1 %ok, label %head, label %no
done:
  ret i1 true
no:
  ret i1 false
}

; Items and length of a list or tuple.
define internal i1 @sequence(ptr %d, ptr %o, ptr %items, ptr %length) nounwind {
entry:
  %ta = getelementptr i8, ptr %o, i64 TYPE_OFFSET
  %t = load ptr, ptr %ta
  %za = getelementptr i8, ptr %o, i64 AFTER_TYPE
  %n = load i64, ptr %za
  store i64 %n, ptr %length
  %list = HEAD.list %d
  %islist = icmp eq ptr %t, %list
  br i1 %islist, label %inlist, label %other
inlist:
  %la = getelementptr i8, ptr %za, i64 8
  %l = load ptr, ptr %la
  store ptr %l, ptr %items
  ret i1 true
other:
  %flags = call i64 @PyType_GetFlags(ptr %t)
  %bit = and i64 %flags, TUPLE_FLAG
  %istuple = icmp ne i64 %bit, 0
  %first = getelementptr i8, ptr %o, i64 TUPLE_ITEMS
  store ptr %first, ptr %items
  ret i1 %istuple
}

; Item i, an int of at least 0; -1 for other values.
define internal i64 @extent(ptr %d, ptr %items, i64 %i) nounwind {
entry:
  %over = alloca i32
  %xa = getelementptr ptr, ptr %items, i64 %i
  %x = load ptr, ptr %xa
  %ta = getelementptr i8, ptr %x, i64 TYPE_OFFSET
  %t = load ptr, ptr %ta
  %int = HEAD.int %d
  %isint = icmp eq ptr %t, %int
  br i1 %isint, label %number, label %no
number:
  %v = call i64 @PyLong_AsLongLongAndOverflow(ptr %x, ptr %over)
  ret i64 %v
no:
  ret i64 -1
}

define internal i1 @descriptor(ptr %d, ptr %o, ptr %c) nounwind {
entry:
  %got = alloca [6 x ptr]
  store [6 x ptr] zeroinitializer, ptr %got
  %names = HEAD.attributes %d
  br label %get
get:
  %i = phi i64 [0, %entry], [%i1, %had]
  %na = getelementptr ptr, ptr %names, i64 %i
  %name = load ptr, ptr %na
  %x = call ptr @PyObject_GetAttr(ptr %o, ptr %name)
  %ga = getelementptr ptr, ptr %got, i64 %i
  store ptr %x, ptr %ga
  %missing = icmp eq ptr %x, null
  br i1 %missing, label %lacks, label %had
lacks:
  call void @PyErr_Clear()
  br label %drop0
had:
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, 6
  br i1 %more, label %get, label %all
all:
  %fine = call i1 @window(ptr %d, ptr %got, ptr %c)
  br label %drop0
drop0:
  %ok = phi i1 [false, %lacks], [%fine, %all]
  br label %drop
drop:
  %j = phi i64 [0, %drop0], [%j1, %drop]
  %da = getelementptr ptr, ptr %got, i64 %j
  %y = load ptr, ptr %da
  call void @Py_DecRef(ptr %y)
  %j1 = add i64 %j, 1
  %again = icmp slt i64 %j1, 6
  br i1 %again, label %drop, label %done
done:
  ret i1 %ok
}

; The units of a descriptor with these fields.
define internal i1 @window(ptr %d, ptr %got, ptr %c) nounwind {
entry:
  %shapes = alloca ptr
  %steps = alloca ptr
  %blocks = alloca ptr
  %n1 = alloca i64
  %n2 = alloca i64
  %n3 = alloca i64
  %base = load ptr, ptr %got
  %a1 = getelementptr ptr, ptr %got, i64 1
  %o1 = load ptr, ptr %a1
  %a2 = getelementptr ptr, ptr %got, i64 2
  %o2 = load ptr, ptr %a2
  %a3 = getelementptr ptr, ptr %got, i64 3
  %o3 = load ptr, ptr %a3
  %a4 = getelementptr ptr, ptr %got, i64 4
  %padding = load ptr, ptr %a4
  %a5 = getelementptr ptr, ptr %got, i64 5
  %rounded = load ptr, ptr %a5
  %bta = getelementptr i8, ptr %base, i64 TYPE_OFFSET
  %bt = load ptr, ptr %bta
  %key = CURSOR.key %c
  %slot = CURSOR.slot %c
  %size = CURSOR.size %c
  %place = getelementptr i64, ptr %c, i64 3
  %aok = call i1 @array(ptr %d, ptr %base, ptr %bt, ptr %key, ptr %slot, ptr %size, ptr %place)
  br i1 %aok, label %list, label %no
no:
  ret i1 false
list:
  ; after @array, which may call Python: from here on nothing can change the lists
  %s1 = call i1 @sequence(ptr %d, ptr %o1, ptr %shapes, ptr %n1)
  %s2 = call i1 @sequence(ptr %d, ptr %o2, ptr %steps, ptr %n2)
  %s3 = call i1 @sequence(ptr %d, ptr %o3, ptr %blocks, ptr %n3)
  %s12 = and i1 %s1, %s2
  %s123 = and i1 %s12, %s3
  br i1 %s123, label %ranks, label %no
ranks:
  %r1 = load i64, ptr %n1
  %r2 = load i64, ptr %n2
  %r3 = load i64, ptr %n3
  %r12 = icmp eq i64 %r1, %r2
  %r13 = icmp eq i64 %r1, %r3
  %some = icmp sgt i64 %r1, 0
  %room = CURSOR.room %c
  %units = shl i64 %r1, 1
  %fits = icmp slt i64 %units, %room
  %ok1 = and i1 %r12, %r13
  %ok2 = and i1 %some, %fits
  %ok = and i1 %ok1, %ok2
  br i1 %ok, label %rounding, label %no
rounding:
  %true = HEAD.true %d
  %tta = getelementptr i8, ptr %true, i64 TYPE_OFFSET
  %bool = load ptr, ptr %tta
  %rta = getelementptr i8, ptr %rounded, i64 TYPE_OFFSET
  %rt = load ptr, ptr %rta
  %isbool = icmp eq ptr %rt, %bool
  br i1 %isbool, label %first, label %no
first:
  %tag = load i64, ptr %key
  %dev = and i64 %tag, 6
  %high = shl i64 %r1, 8
  %t1 = or i64 %dev, %high
  %t2 = or i64 %t1, TAG.DESCRIPTOR
  store i64 %t2, ptr %key
  call void @advance(ptr %c)
  %shape = load ptr, ptr %shapes
  %strides = load ptr, ptr %steps
  %block = load ptr, ptr %blocks
  br label %extents
extents:
  %i = phi i64 [0, %first], [%i1, %extent1]
  %x = call i64 @extent(ptr %d, ptr %shape, i64 %i)
  %b = call i64 @extent(ptr %d, ptr %block, i64 %i)
  %xok = icmp ule i64 %x, 2147483647
  %bok = icmp ule i64 %b, 2147483647
  %xb = and i1 %xok, %bok
  br i1 %xb, label %extent1, label %no
extent1:
  %ekey = CURSOR.key %c
  %eslot = CURSOR.slot %c
  %esize = CURSOR.size %c
  store i64 TAG.BLOCK, ptr %ekey
  %eval = getelementptr i64, ptr %ekey, i64 1
  store i64 %b, ptr %eval
  store i64 %x, ptr %eslot
  store i64 -1, ptr %esize
  call void @advance(ptr %c)
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %r1
  br i1 %more, label %extents, label %moved0
moved0:
  %istrue = icmp eq ptr %rounded, %true
  %bit = zext i1 %istrue to i64
  %up = shl i64 %bit, 8
  %stag = or i64 %up, TAG.STRIDE
  br label %moved
moved:
  %j = phi i64 [0, %moved0], [%j1, %moved1]
  %look = phi ptr [%padding, %moved0], [null, %moved1]
  %v = call i64 @extent(ptr %d, ptr %strides, i64 %j)
  %vok = icmp sge i64 %v, 0
  br i1 %vok, label %moved1, label %no
moved1:
  %mkey = CURSOR.key %c
  %mslot = CURSOR.slot %c
  %msize = CURSOR.size %c
  store i64 %stag, ptr %mkey
  %mval = getelementptr i64, ptr %mkey, i64 1
  store ptr %look, ptr %mval
  store i64 %v, ptr %mslot
  store i64 -1, ptr %msize
  call void @advance(ptr %c)
  %j1 = add i64 %j, 1
  %again = icmp slt i64 %j1, %r1
  br i1 %again, label %moved, label %done
done:
  ret i1 true
}
"""
