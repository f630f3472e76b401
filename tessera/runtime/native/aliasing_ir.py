"""Contains the native code, as LLVM IR text, that finds which arrays of a launch alias each other (`aliasing`)."""

from __future__ import annotations

TEXT = r"""
; The relations of all pairs of pointers (aliasing.relations); negative: only bounds say that some overlap.
define i64 @fast_relations(ptr %slots, ptr %sizes, i64 %n) nounwind {
entry:
  %starts = alloca i64, i64 %n
  %lengths = alloca i64, i64 %n
  br label %outer
outer:
  %j = phi i64 [0, %entry], [%j1, %next]
  %count = phi i64 [0, %entry], [%count1, %next]
  %pair = phi i64 [0, %entry], [%pair1, %next]
  %bits = phi i64 [0, %entry], [%bits1, %next]
  %more = icmp slt i64 %j, %n
  br i1 %more, label %read, label %done
done:
  ret i64 %bits
read:
  %sa = getelementptr i64, ptr %slots, i64 %j
  %za = getelementptr i64, ptr %sizes, i64 %j
  %z = load i64, ptr %za
  %pointer = icmp sge i64 %z, 0
  br i1 %pointer, label %take, label %next
take:
  %s = load i64, ptr %sa
  %ta = getelementptr i64, ptr %starts, i64 %count
  store i64 %s, ptr %ta
  %la = getelementptr i64, ptr %lengths, i64 %count
  store i64 %z, ptr %la
  %count2 = add i64 %count, 1
  br label %inner
inner:
  %i = phi i64 [0, %take], [%i1, %body]
  %p = phi i64 [%pair, %take], [%p1, %body]
  %b = phi i64 [%bits, %take], [%b1, %body]
  %again = icmp slt i64 %i, %count
  br i1 %again, label %body, label %next
body:
  %ia = getelementptr i64, ptr %starts, i64 %i
  %x = load i64, ptr %ia
  %ka = getelementptr i64, ptr %lengths, i64 %i
  %k = load i64, ptr %ka
  %equal = icmp eq i64 %x, %s
  %below = icmp ult i64 %x, %s
  %up = sub i64 %s, %x
  %down = sub i64 %x, %s
  %distance = select i1 %below, i64 %up, i64 %down
  %given = select i1 %below, i64 %k, i64 %z
  %length = and i64 %given, LESS_MARK
  %mark = and i64 %given, AT_MOST
  %inside = icmp ugt i64 %length, %distance
  %partly = select i1 %inside, i64 2, i64 0
  %found = select i1 %equal, i64 1, i64 %partly
  %null1 = icmp eq i64 %x, 0
  %null2 = icmp eq i64 %s, 0
  %null = or i1 %null1, %null2
  %relation = select i1 %null, i64 0, i64 %found
  %over = icmp sgt i64 %p, LAST_PAIR
  %place = select i1 %over, i64 LAST_PAIR, i64 %p
  %at = shl i64 %place, 1
  %mine = shl i64 %relation, %at
  %b0 = or i64 %b, %mine
  %bound = icmp ne i64 %mark, 0
  %over2 = icmp eq i64 %relation, 2
  %doubt = and i1 %bound, %over2
  %sign = select i1 %doubt, i64 LOWEST_WORD, i64 0
  %b1 = or i64 %b0, %sign
  %p1 = add i64 %p, 1
  %i1 = add i64 %i, 1
  br label %inner
next:
  %count1 = phi i64 [%count, %read], [%count2, %inner]
  %pair1 = phi i64 [%pair, %read], [%p, %inner]
  %bits1 = phi i64 [%bits, %read], [%b, %inner]
  %j1 = add i64 %j, 1
  br label %outer
}

; The same, exactly; negative: let Python see to it.
define internal i64 @relate(ptr %d, ptr %values, ptr %slots, ptr %sizes, i64 %n, i64 %units) nounwind {
entry:
  %coarse = call i64 @fast_relations(ptr %slots, ptr %sizes, i64 %units)
  %sure = icmp sge i64 %coarse, 0
  br i1 %sure, label %known, label %ask
known:
  ret i64 %coarse
ask:
  %f = HEAD.relations %d
  %o = call ptr @PyObject_Vectorcall(ptr %f, ptr %values, i64 %n, ptr null)
  %failed = icmp eq ptr %o, null
  br i1 %failed, label %odd, label %number
odd:
  call void @PyErr_Clear()
  ret i64 -1
number:
  %exact = call i64 @PyLong_AsLongLong(ptr %o)
  call void @Py_DecRef(ptr %o)
  ret i64 %exact
}
"""
