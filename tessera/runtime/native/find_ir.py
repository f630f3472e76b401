"""Contains the native code, as LLVM IR text, that finds the entry of a launch by its key, and the tensor maps by
theirs.
"""

from __future__ import annotations

TEXT = r"""
; Hash of a key, (address, words) → hash, here and for Python, which inserts entries.
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

; The entry of a key, or null.
define internal ptr @find(ptr %d, ptr %key, i64 %words) nounwind {
entry:
  %h3 = call i64 @fast_hash(ptr %key, i64 %words)
  %table = HEAD.table %d
  %slot = and i64 %h3, LAST_BUCKET
  %ba = getelementptr ptr, ptr %table, i64 %slot
  %first = load ptr, ptr %ba
  %bytes = shl i64 %words, 3
  br label %chain
chain:
  %e = phi ptr [%first, %entry], [%following, %advance]
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

; The same objects still where the kernel found what it was compiled with: in dictionaries by name, or in cells?
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
  %i1 = add i64 %i, 1
  %iscell = icmp eq ptr %name, null
  br i1 %iscell, label %cell, label %dict
cell:
  %held = call ptr @PyCell_Get(ptr %scope)
  call void @Py_DecRef(ptr %held)
  br label %compare
dict:
  %found = call ptr @PyDict_GetItemWithError(ptr %scope, ptr %name)
  br label %compare
compare:
  %now = phi ptr [%held, %cell], [%found, %dict]
  %eq = icmp eq ptr %now, %seen
  br i1 %eq, label %same, label %no
same:
  br label %head
no:
  ret i1 false
}


; The tensor maps of a launch into memory of 128 bytes each, into *which their number and, unless null, function and
; launch template of another kernel, into *blocks the extents of the grid. 0: good, 1: let Python see to it, 2: an
; exception is set.
define internal i32 @maps(ptr %maps, ptr %slots, ptr %picks, ptr %extents, ptr %out, ptr %which, ptr %blocks) nounwind {
entry:
  %argument = alloca ptr
  %n = MAPS.used %maps
  %numbers = MAPS.arguments %maps
  %en = MAPS.extents %maps
  %all = add i64 %n, %en
  %key = alloca i64, i64 %all
  %size = shl i64 %all, 3
  %esize = shl i64 %en, 3
  %eto = getelementptr i64, ptr %key, i64 %n
  call void @llvm.memcpy.p0.p0.i64(ptr %eto, ptr %extents, i64 %esize, i1 false)
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %head]
  %na = getelementptr i64, ptr %numbers, i64 %i
  %argument_number = load i64, ptr %na
  %pa = getelementptr i64, ptr %picks, i64 %argument_number
  %p = load i64, ptr %pa
  %sa = getelementptr i64, ptr %slots, i64 %p
  %v = load i64, ptr %sa
  %ka = getelementptr i64, ptr %key, i64 %i
  store i64 %v, ptr %ka
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %n
  br i1 %more, label %head, label %search
search:
  %asked = phi i1 [false, %head], [true, %again]
  %h = call i64 @fast_hash(ptr %key, i64 %all)
  %chains = MAPS.chains %maps
  %slot = and i64 %h, LAST_CHAIN
  %ca = getelementptr ptr, ptr %chains, i64 %slot
  %first = load ptr, ptr %ca
  br label %chain
chain:
  %e = phi ptr [%first, %search], [%following, %advance]
  %end = icmp eq ptr %e, null
  br i1 %end, label %none, label %check
check:
  %eh = MAP_ENTRY.hash %e
  %heq = icmp eq i64 %eh, %h
  br i1 %heq, label %deep, label %advance
deep:
  %ek = MAP_ENTRY.key %e
  %c = call i32 @memcmp(ptr %ek, ptr %key, i64 %size)
  %equal = icmp eq i32 %c, 0
  br i1 %equal, label %found, label %advance
advance:
  %following = MAP_ENTRY.next %e
  br label %chain
found:
  %count = MAP_ENTRY.maps %e
  store i64 %count, ptr %which
  %function = MAP_ENTRY.function %e
  %fa = getelementptr ptr, ptr %which, i64 1
  store ptr %function, ptr %fa
  %config = MAP_ENTRY.config %e
  %ga = getelementptr ptr, ptr %which, i64 2
  store ptr %config, ptr %ga
  %data = MAP_ENTRY.data %e
  %bytes = shl i64 %count, 7
  call void @llvm.memcpy.p0.p0.i64(ptr %out, ptr %data, i64 %bytes, i1 false)
  %number = MAP_ENTRY.blocks %e
  %limited = icmp ne i64 %number, 0
  %bx = load i64, ptr %extents
  %extents1 = getelementptr i64, ptr %extents, i64 1
  %by = load i64, ptr %extents1
  %extents2 = getelementptr i64, ptr %extents, i64 2
  %bz = load i64, ptr %extents2
  %cx = select i1 %limited, i64 %number, i64 %bx
  %cy = select i1 %limited, i64 1, i64 %by
  %cz = select i1 %limited, i64 1, i64 %bz
  store i64 %cx, ptr %blocks
  %blocks1 = getelementptr i64, ptr %blocks, i64 1
  store i64 %cy, ptr %blocks1
  %blocks2 = getelementptr i64, ptr %blocks, i64 2
  store i64 %cz, ptr %blocks2
  ret i32 0
none:
  br i1 %asked, label %python, label %ask
python:
  ret i32 1
ask:
  %words = call ptr @PyBytes_FromStringAndSize(ptr %key, i64 %size)
  %failed = icmp eq ptr %words, null
  br i1 %failed, label %bad, label %call
bad:
  ret i32 2
call:
  store ptr %words, ptr %argument
  %f = MAPS.learn %maps
  %r = call ptr @PyObject_Vectorcall(ptr %f, ptr %argument, i64 1, ptr null)
  call void @Py_DecRef(ptr %words)
  %raised = icmp eq ptr %r, null
  br i1 %raised, label %bad, label %learnt
learnt:
  %truth = call i32 @PyObject_IsTrue(ptr %r)
  call void @Py_DecRef(ptr %r)
  %there = icmp eq i32 %truth, 1
  br i1 %there, label %again, label %python
again:
  br label %search
}
"""
