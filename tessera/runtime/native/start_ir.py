"""Contains the native code, as LLVM IR text, that evaluates the grid, asks for the stream and starts a kernel."""

from __future__ import annotations

TEXT = r"""
declare ptr @PyLong_FromVoidPtr(ptr)

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
  %int = HEAD.int %d
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
  %size1 = sub i64 %size, 1
  %some = icmp ult i64 %size1, 3
  br i1 %some, label %read, label %no
read:
  %i = phi i64 [0, %items], [%i1, %good]
  %ia = getelementptr ptr, ptr %first_item, i64 %i
  %o = load ptr, ptr %ia
  %ota = getelementptr i8, ptr %o, i64 TYPE_OFFSET
  %ot = load ptr, ptr %ota
  %isint = icmp eq ptr %ot, %int
  %safe = or i1 %isint, %istuple
  br i1 %safe, label %number, label %no
number:
  ; an exact int, or nothing that runs here could change the sequence
  %x = call i64 @PyLong_AsLongLong(ptr %o)
  %xa = getelementptr i64, ptr %out, i64 %i
  store i64 %x, ptr %xa
  ; what no driver starts more of along this axis: beyond it, Python says what is wrong, if anything
  %is0 = icmp eq i64 %i, 0
  %most = select i1 %is0, i64 2147483647, i64 65535
  %in = icmp ule i64 %x, %most
  br i1 %in, label %good, label %out_of_range
out_of_range:
  call void @PyErr_Clear()
  br label %no
good:
  %i1 = add i64 %i, 1
  %next = icmp slt i64 %i1, %size
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

; What the hook before a launch returns, a new reference; null: an exception is set.
define internal ptr @enter(ptr %d, ptr %hook, ptr %extents, ptr %stream, ptr %values) nounwind {
entry:
  %n = HEAD.count %d
  %all = add i64 %n, 4
  %args = alloca ptr, i64 %all
  br label %number
number:
  %i = phi i64 [0, %entry], [%i1, %number]
  %ga = getelementptr i64, ptr %extents, i64 %i
  %g = load i64, ptr %ga
  %o = call ptr @PyLong_FromLong(i64 %g)
  %to = getelementptr ptr, ptr %args, i64 %i
  store ptr %o, ptr %to
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, 3
  br i1 %more, label %number, label %handle
handle:
  %so = call ptr @PyLong_FromVoidPtr(ptr %stream)
  %sa = getelementptr ptr, ptr %args, i64 3
  store ptr %so, ptr %sa
  %rest = getelementptr ptr, ptr %args, i64 4
  %bytes = shl i64 %n, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %rest, ptr %values, i64 %bytes, i1 false)
  br label %check
check:
  %j = phi i64 [0, %handle], [%j1, %checked]
  %ca = getelementptr ptr, ptr %args, i64 %j
  %c = load ptr, ptr %ca
  %missing = icmp eq ptr %c, null
  br i1 %missing, label %release, label %checked
checked:
  %j1 = add i64 %j, 1
  %again = icmp slt i64 %j1, 4
  br i1 %again, label %check, label %call
call:
  %found = call ptr @PyObject_Vectorcall(ptr %hook, ptr %args, i64 %all, ptr null)
  br label %release
release:
  %r = phi ptr [null, %check], [%found, %call]
  br label %drop
drop:
  %k = phi i64 [0, %release], [%k1, %drop]
  %da = getelementptr ptr, ptr %args, i64 %k
  %x = load ptr, ptr %da
  call void @Py_DecRef(ptr %x)
  %k1 = add i64 %k, 1
  %on = icmp slt i64 %k1, 4
  br i1 %on, label %drop, label %done
done:
  ret ptr %r
}

; Run: picked slots in order, to the driver or the thread pool. The status.
define internal i32 @start(ptr %e, ptr %function, ptr %template, ptr %slots, ptr %extents, ptr %stream, ptr %maps,
                           i64 %map_count) nounwind {
entry:
  %config = alloca { i32, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, i32, i32 }, align 8
  %count = ENTRY.picks_count %e
  %picks = ENTRY.picks %e
  %cuda = ENTRY.cuda %e
  %entry_ = ENTRY.entry %e
  %pool = ENTRY.pool %e
  %oncuda = icmp ne i64 %cuda, 0
  %room = add i64 %count, %map_count
  %packed = alloca i64, i64 %room, align 16
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
  %first_map = getelementptr i64, ptr %packed, i64 %count
  br label %map
map:
  %q = phi i64 [0, %ready], [%q1, %mapped]
  %another = icmp slt i64 %q, %map_count
  br i1 %another, label %mapped, label %launch
mapped:
  %qa = getelementptr ptr, ptr %first_map, i64 %q
  %q128 = shl i64 %q, 7
  %ma = getelementptr i8, ptr %maps, i64 %q128
  store ptr %ma, ptr %qa
  %q1 = add i64 %q, 1
  br label %map
launch:
  %state = call ptr @PyEval_SaveThread()
  br i1 %oncuda, label %gpu, label %cpu
gpu:
  call void @configure(ptr %config, ptr %template, ptr %extents, ptr %stream)
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
  %rc = phi i32 [%rc1, %gpu], [%rc2, %cpu]
  call void @PyEval_RestoreThread(ptr %state)
  ret i32 %rc
}
"""
