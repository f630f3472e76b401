"""Contains the native code, as LLVM IR text, that reads address, element type, device and size of an array.

A row of HEAD.rows tells how for each type: NumPy's arrays and torch's tensors by their fields (`torch_layout`), tensors
by torch's accessors where the fields are not known, other arrays by a Python function.
"""

from __future__ import annotations

TEXT = r"""
; Bytes of the array that a NumPy array is a view of, and in *left those from the view's address on; -1: it is a view of
; something else. Such a root is contiguous, so
; its size is the largest product of an extent and its stride.
define internal i64 @numpy_bytes(ptr %o, ptr %t, ptr %left) nounwind {
entry:
  br label %up
up:
  %a = phi ptr [%o, %entry], [%base, %array]
  %ba = getelementptr i8, ptr %a, i64 BASE_FIELD
  %base = load ptr, ptr %ba
  %root = icmp eq ptr %base, null
  br i1 %root, label %measure, label %view
view:
  %bta = getelementptr i8, ptr %base, i64 TYPE_OFFSET
  %bt = load ptr, ptr %bta
  %same = icmp eq ptr %bt, %t
  br i1 %same, label %array, label %foreign
array:
  br label %up
foreign:
  ret i64 -1
measure:
  %fields = getelementptr i8, ptr %a, i64 AFTER_TYPE
  %na = getelementptr i64, ptr %fields, i64 1
  %n32 = load i32, ptr %na
  %n = sext i32 %n32 to i64
  %da = getelementptr i64, ptr %fields, i64 2
  %dims = load ptr, ptr %da
  %sa = getelementptr i64, ptr %fields, i64 3
  %strides = load ptr, ptr %sa
  br label %head
head:
  %i = phi i64 [0, %measure], [%i1, %body]
  %most = phi i64 [0, %measure], [%most1, %body]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
body:
  %xa = getelementptr i64, ptr %dims, i64 %i
  %x = load i64, ptr %xa
  %ya = getelementptr i64, ptr %strides, i64 %i
  %y = load i64, ptr %ya
  %xy = mul i64 %x, %y
  %larger = icmp sgt i64 %xy, %most
  %most1 = select i1 %larger, i64 %xy, i64 %most
  %i1 = add i64 %i, 1
  br label %head
done:
  %first = load i64, ptr %fields
  %oa = getelementptr i8, ptr %o, i64 AFTER_TYPE
  %from = load i64, ptr %oa
  %end = add i64 %first, %most
  %rest = sub i64 %end, %from
  store i64 %rest, ptr %left
  ret i64 %most
}


; Fields of an ordinary torch tensor; false: ask the accessors. *size: bytes from the address to the end of the storage.
define internal i1 @fields(ptr %o, ptr %row, ptr %address, ptr %dtype, ptr %device, ptr %bytes, ptr %size) nounwind {
entry:
  %l = ROW.layout %row
  %unknown = icmp eq ptr %l, null
  br i1 %unknown, label %no, label %look
no:
  ret i1 false
look:
  %impl_at = LAYOUT.impl %l
  %impl_a = getelementptr i8, ptr %o, i64 %impl_at
  %impl = load ptr, ptr %impl_a
  %noimpl = icmp eq ptr %impl, null
  br i1 %noimpl, label %no, label %tensor
tensor:
  %storage_at = LAYOUT.storage %l
  %storage_a = getelementptr i8, ptr %impl, i64 %storage_at
  %storage = load ptr, ptr %storage_a
  %nostorage = icmp eq ptr %storage, null
  br i1 %nostorage, label %no, label %stored
stored:
  %data_at = LAYOUT.data %l
  %data_a = getelementptr i8, ptr %storage, i64 %data_at
  %data = load i64, ptr %data_a
  %nbytes_at = LAYOUT.nbytes %l
  %nbytes_a = getelementptr i8, ptr %storage, i64 %nbytes_at
  %nbytes = load i64, ptr %nbytes_a
  %deleter_at = LAYOUT.deleter %l
  %deleter_a = getelementptr i8, ptr %storage, i64 %deleter_at
  %deleter = load i64, ptr %deleter_a
  %lazy_one = LAYOUT.lazy_deleter %l
  %offset_at = LAYOUT.offset %l
  %offset_a = getelementptr i8, ptr %impl, i64 %offset_at
  %offset = load i64, ptr %offset_a
  %numel_at = LAYOUT.numel %l
  %numel_a = getelementptr i8, ptr %impl, i64 %numel_at
  %numel = load i64, ptr %numel_a
  %code_at = LAYOUT.dtype %l
  %code_a = getelementptr i8, ptr %impl, i64 %code_at
  %code16 = load i16, ptr %code_a
  %code = zext i16 %code16 to i64
  %place_at = LAYOUT.device %l
  %place_a = getelementptr i8, ptr %impl, i64 %place_at
  %place8 = load i8, ptr %place_a
  %place = zext i8 %place8 to i64
  %host_code = LAYOUT.host_code %l
  %cuda_code = LAYOUT.cuda_code %l
  %onhost = icmp eq i64 %place, %host_code
  %oncuda = icmp eq i64 %place, %cuda_code
  %known_place = or i1 %onhost, %oncuda
  %nodata = icmp eq i64 %data, 0
  %empty = icmp slt i64 %numel, 1
  %lazy = icmp eq i64 %deleter, %lazy_one
  %strange = icmp ugt i64 %code, 255
  %odd1 = or i1 %nodata, %empty
  %odd2 = or i1 %lazy, %strange
  %odd3 = or i1 %odd1, %odd2
  %known = xor i1 %odd3, true
  %usual = and i1 %known, %known_place
  br i1 %usual, label %typed, label %no
typed:
  %sizes = LAYOUT.itemsizes %l
  %base = inttoptr i64 %sizes to ptr
  %item_a = getelementptr i8, ptr %base, i64 %code
  %item8 = load i8, ptr %item_a
  %item = zext i8 %item8 to i64
  %newtype = icmp eq i64 %item, 0
  br i1 %newtype, label %no, label %good
good:
  %skipped = mul i64 %item, %offset
  %first = add i64 %data, %skipped
  %left = sub i64 %nbytes, %skipped
  %dev = zext i1 %oncuda to i64
  store i64 %first, ptr %address
  store i64 %code, ptr %dtype
  store i64 %dev, ptr %device
  store i64 %nbytes, ptr %bytes
  store i64 %left, ptr %size
  %inside = icmp sge i64 %left, 0
  ret i1 %inside
}

; The same by torch's accessors; *size is a bound.
define internal i1 @accessors(ptr %d, ptr %o, ptr %row, ptr %address, ptr %dtype, ptr %device, ptr %bytes, ptr %size)
    nounwind {
entry:
  %read = ROW.data_ptr %row
  %p = call ptr %read(ptr %o, ptr null)
  %pnull = icmp eq ptr %p, null
  br i1 %pnull, label %bad, label %located
bad:
  call void @PyErr_Clear()
  ret i1 false
located:
  %w = call ptr @PyLong_AsVoidPtr(ptr %p)
  call void @Py_DecRef(ptr %p)
  store ptr %w, ptr %address
  %zero = icmp eq ptr %w, null
  br i1 %zero, label %suspect, label %addressed
suspect:
  %err = call ptr @PyErr_Occurred()
  %set = icmp ne ptr %err, null
  br i1 %set, label %bad, label %addressed
addressed:
  %getd = ROW.dtype %row
  %getdc = ROW.dtype_closure %row
  %dt = call ptr %getd(ptr %o, ptr %getdc)
  %dnull = icmp eq ptr %dt, null
  br i1 %dnull, label %bad, label %typed
typed:
  call void @Py_DecRef(ptr %dt)
  store ptr %dt, ptr %dtype
  %getc = ROW.is_cuda %row
  %getcc = ROW.is_cuda_closure %row
  %c = call ptr %getc(ptr %o, ptr %getcc)
  %cnull = icmp eq ptr %c, null
  br i1 %cnull, label %bad, label %placed
placed:
  call void @Py_DecRef(ptr %c)
  %true = HEAD.true %d
  %oncuda = icmp eq ptr %c, %true
  %dev = zext i1 %oncuda to i64
  store i64 %dev, ptr %device
  %gets = ROW.storage %row
  %st = call ptr %gets(ptr %o, ptr null)
  %snull = icmp eq ptr %st, null
  br i1 %snull, label %bad, label %stored
stored:
  %getn = ROW.nbytes %row
  %nb = call ptr %getn(ptr %st, ptr null)
  call void @Py_DecRef(ptr %st)
  %nnull = icmp eq ptr %nb, null
  br i1 %nnull, label %bad, label %sized
sized:
  %n = call i64 @PyLong_AsLongLong(ptr %nb)
  call void @Py_DecRef(ptr %nb)
  store i64 %n, ptr %bytes
  %most = or i64 %n, AT_MOST
  store i64 %most, ptr %size
  %negative = icmp slt i64 %n, 0
  %some = icmp sgt i64 %n, 0
  %vacant = and i1 %zero, %some  ; without memory: a meta tensor
  %odd = or i1 %negative, %vacant
  br i1 %odd, label %bad, label %done
done:
  ret i1 true
}

; The same by the Python function, which gives (address, dtype, on CUDA, bytes of the storage, bytes left, flags).
define internal i1 @reader(ptr %d, ptr %o, ptr %address, ptr %dtype, ptr %device, ptr %bytes, ptr %size, ptr %flags)
    nounwind {
entry:
  %argument = alloca ptr
  store ptr %o, ptr %argument
  %f = HEAD.reader %d
  %r = call ptr @PyObject_Vectorcall(ptr %f, ptr %argument, i64 1, ptr null)
  %failed = icmp eq ptr %r, null
  br i1 %failed, label %bad, label %items
bad:
  call void @PyErr_Clear()
  ret i1 false
items:
  %ia = getelementptr i8, ptr %r, i64 TUPLE_ITEMS
  %x0 = load ptr, ptr %ia
  %a1 = getelementptr ptr, ptr %ia, i64 1
  %x1 = load ptr, ptr %a1
  %a2 = getelementptr ptr, ptr %ia, i64 2
  %x2 = load ptr, ptr %a2
  %a3 = getelementptr ptr, ptr %ia, i64 3
  %x3 = load ptr, ptr %a3
  %a4 = getelementptr ptr, ptr %ia, i64 4
  %x4 = load ptr, ptr %a4
  %v0 = call ptr @PyLong_AsVoidPtr(ptr %x0)
  store ptr %v0, ptr %address
  store ptr %x1, ptr %dtype
  %true = HEAD.true %d
  %oncuda = icmp eq ptr %x2, %true
  %dev = zext i1 %oncuda to i64
  store i64 %dev, ptr %device
  %v3 = call i64 @PyLong_AsLongLong(ptr %x3)
  store i64 %v3, ptr %bytes
  %v4 = call i64 @PyLong_AsLongLong(ptr %x4)
  store i64 %v4, ptr %size
  %a5 = getelementptr ptr, ptr %ia, i64 5
  %x5 = load ptr, ptr %a5
  %v5 = call i64 @PyLong_AsLongLong(ptr %x5)
  store i64 %v5, ptr %flags
  call void @Py_DecRef(ptr %r)
  %e = call ptr @PyErr_Occurred()
  %set = icmp ne ptr %e, null
  br i1 %set, label %bad, label %done
done:
  ret i1 true
}

; The Python number of a NumPy scalar, a new reference; null for other objects.
define internal ptr @number(ptr %d, ptr %o, ptr %t) nounwind {
entry:
  %rows = HEAD.numbers %d
  br label %head
head:
  %row = phi ptr [%rows, %entry], [%following, %more]
  %rt = NUMBER.type %row
  %hit = icmp eq ptr %rt, %t
  br i1 %hit, label %known, label %miss
miss:
  %end = icmp eq ptr %rt, null
  br i1 %end, label %no, label %more
more:
  %following = getelementptr i8, ptr %row, i64 NUMBER_BYTES
  br label %head
known:
  %kind = NUMBER.kind %row
  switch i64 %kind, label %no [
    i64 READ_INTEGER, label %integer
    i64 READ_REAL, label %real
    i64 READ_TRUTH, label %truth
  ]
no:
  ret ptr null
integer:
  %i = call ptr @PyNumber_Index(ptr %o)
  br label %made
real:
  %f = call double @PyFloat_AsDouble(ptr %o)
  %fe = call ptr @PyErr_Occurred()
  %failed = icmp ne ptr %fe, null
  br i1 %failed, label %bad, label %boxed
boxed:
  %fo = call ptr @PyFloat_FromDouble(double %f)
  br label %made
truth:
  %b = call i32 @PyObject_IsTrue(ptr %o)
  %b64 = sext i32 %b to i64
  %bo = call ptr @PyBool_FromLong(i64 %b64)
  br label %made
made:
  %r = phi ptr [%i, %integer], [%fo, %boxed], [%bo, %truth]
  %lost = icmp eq ptr %r, null
  br i1 %lost, label %bad, label %good
good:
  ret ptr %r
bad:
  call void @PyErr_Clear()
  ret ptr null
}

; Key words, address and size (as for @leaf) of an array; the first array decides on *place, any may set what follows
; CURSOR.room there. False: not an array of a known type.
define internal i1 @array(ptr %d, ptr %o, ptr %t, ptr %key, ptr %slot, ptr %size, ptr %place) nounwind {
entry:
  %deva = alloca i64
  %bytesa = alloca i64
  %flagsa = alloca i64
  %val = getelementptr i64, ptr %key, i64 1
  store i64 0, ptr %flagsa
  %rows = HEAD.rows %d
  br label %head
head:
  %row = phi ptr [%rows, %entry], [%following, %more]
  %rt = ROW.type %row
  %hit = icmp eq ptr %rt, %t
  br i1 %hit, label %found, label %miss
miss:
  %end = icmp eq ptr %rt, null
  br i1 %end, label %no, label %more
more:
  %following = getelementptr i8, ptr %row, i64 ROW_BYTES
  br label %head
no:
  ret i1 false
found:
  %kind = ROW.kind %row
  switch i64 %kind, label %python [ i64 READ_NUMPY, label %host  i64 READ_TENSOR, label %tensor ]
host:
  ; NumPy's PyArrayObject_fields, which every extension module is compiled against: data first, descr five words on
  %da = getelementptr i8, ptr %o, i64 AFTER_TYPE
  %hdata = load i64, ptr %da
  %ea = getelementptr i64, ptr %da, i64 5
  %hdtype = load i64, ptr %ea
  ; flags: 1 elements in C order, 0x400 writable. Here: READ_ONLY, and 8 for strided arrays
  %fa = getelementptr i64, ptr %da, i64 6
  %f32 = load i32, ptr %fa
  %inverse = xor i32 %f32, -1
  %ro1 = lshr i32 %inverse, 8
  %ro = and i32 %ro1, READ_ONLY
  %st1 = shl i32 %inverse, 3
  %st = and i32 %st1, 8
  %fl32 = or i32 %ro, %st
  %fl = zext i32 %fl32 to i64
  store i64 %fl, ptr %flagsa
  store i64 %hdata, ptr %slot
  store i64 %hdtype, ptr %val
  store i64 0, ptr %deva
  %hbytes = call i64 @numpy_bytes(ptr %o, ptr %t, ptr %size)
  store i64 %hbytes, ptr %bytesa
  %foreign = icmp slt i64 %hbytes, 0
  br i1 %foreign, label %python, label %known
tensor:
  %fok = call i1 @fields(ptr %o, ptr %row, ptr %slot, ptr %val, ptr %deva, ptr %bytesa, ptr %size)
  br i1 %fok, label %known, label %asked
asked:
  %aok = call i1 @accessors(ptr %d, ptr %o, ptr %row, ptr %slot, ptr %val, ptr %deva, ptr %bytesa, ptr %size)
  br i1 %aok, label %known, label %no
python:
  %pok = call i1 @reader(ptr %d, ptr %o, ptr %slot, ptr %val, ptr %deva, ptr %bytesa, ptr %size, ptr %flagsa)
  br i1 %pok, label %known, label %no
known:
  %data = load i64, ptr %slot
  %device = load i64, ptr %deva
  %bytes = load i64, ptr %bytesa
  %units = lshr i64 %bytes, 31
  %huge = icmp ugt i64 %units, 15
  %capped = select i1 %huge, i64 15, i64 %units
  %width = shl i64 %capped, 8
  %low = and i64 %data, 15
  %al = icmp eq i64 %low, 0
  %a1 = zext i1 %al to i64
  %d2 = shl i64 %device, 1
  %flags = load i64, ptr %flagsa
  %readonly = and i64 %flags, READ_ONLY
  %strided = and i64 %flags, 8
  %sa = getelementptr i64, ptr %place, i64 2
  %others = load i64, ptr %sa
  %any = or i64 %others, %strided
  store i64 %any, ptr %sa
  %t0 = or i64 %a1, %readonly
  %t1 = or i64 %t0, %d2
  %t2 = or i64 %t1, %width
  %tag = or i64 %t2, TAG.ARRAY
  store i64 %tag, ptr %key
  %was = load i64, ptr %place
  %unset = icmp eq i64 %was, 0
  %here = add i64 %device, 1
  %now = select i1 %unset, i64 %here, i64 %was
  store i64 %now, ptr %place
  ret i1 true
}
"""
