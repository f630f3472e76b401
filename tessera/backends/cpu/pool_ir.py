"""Contains the thread pool's native code as LLVM IR text: workers, launch and hand-off. `pool.py` compiles and drives
it.

One structure per pool, its hot words on cache lines of their own:

    remaining  chunks of the present grid that nobody has claimed; 0 = no work. Workers sleep on it (futex).
    done       finished chunks; the launching thread sleeps on it
    fn … gz    the job. Written by the launcher while remaining == 0; a worker reads it only after a successful claim,
               and the job cannot end before the claimed chunk is done, so what it reads is never torn or stale.

A claim is `remaining: r -> r - 1` by compare-and-exchange and gives chunk number nchunks - r: chunks are claimed in
increasing order. No generation counter is needed: a claim that succeeds is by definition one of the present job.
"""

from __future__ import annotations

import platform

from tessera.backends.cpu.interrupt import interrupt_ir

FIELDS = (  # name, type; `_` fields pad to cache lines
    ("remaining", "i32"),
    ("_0", "[60 x i8]"),
    ("done", "i32"),
    ("waiting", "i32"),
    ("_1", "[56 x i8]"),
    ("fn", "ptr"),
    ("args", "ptr"),
    ("n", "i64"),
    ("chunk", "i64"),
    ("nchunks", "i32"),
    ("gx", "i32"),
    ("gy", "i32"),
    ("gz", "i32"),
    ("arena", "ptr"),
    ("stride", "i64"),
    ("launches", "i64"),
    ("lock", "i32"),
    ("threads", "i32"),
    ("asleep", "i32"),
    ("status", "i32"),
    ("_2", "[40 x i8]"),
)
POOL_BYTES = 256

# What a kernel gets as its fourth argument.
# gridx, gridy, gridz, thread_index, scratch, bytes, status, started; of interrupt.py: seen, attention, poll
CONTEXT_TYPE = "{ i32, i32, i32, i32, ptr, i64, ptr, i32, i32, ptr, ptr }"

LARGE_PAGE, MADV_HUGEPAGE = 2 << 20, 14
STACK_BYTES = 16 << 20  # kernels keep tile buffers on the stack; only touched pages cost memory
CHUNKS_PER_THREAD = 8
OUT_OF_MEMORY = -12
TOO_MANY_PROGRAMS = -75  # 2^63 or more

PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()", 202),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)", 98),
}

TEXT = r"""
%pool = type { POOL_TYPE }
%ctx = type CONTEXT_TYPE
declare i64 @syscall(i64, ...)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_attr_init(ptr)
declare i32 @pthread_attr_setstacksize(ptr, i64)
declare i32 @pthread_attr_destroy(ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare ptr @aligned_alloc(i64, i64)
declare i32 @madvise(ptr, i64, i32)
declare void @free(ptr)
declare { i64, i1 } @llvm.smul.with.overflow.i64(i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
PAUSE_DECLARATION
@moment = private constant [2 x i64] [i64 0, i64 100000000]

; Run chunks of the present job until none is left. `index` is the thread's number; 0 is the launching thread.
define internal void @work(ptr %p, i32 %index) nounwind {
entry:
  %c = alloca %ctx, align 8
  %previous = alloca i64, align 8
  store i64 0, ptr %previous
  call void @begin_looking(ptr %c)
  br label %look
look:
  %r = load atomic i32, ptr %p acquire, align 4
  %none = icmp eq i32 %r, 0
  br i1 %none, label %out, label %claim
claim:
  %r1 = sub i32 %r, 1
  %x = cmpxchg ptr %p, i32 %r, i32 %r1 acq_rel acquire
  %won = extractvalue { i32, i1 } %x, 1
  br i1 %won, label %run, label %look
run:
  %nchunks = LOAD nchunks
  %n = LOAD n
  %chunk = LOAD chunk
  %i = sub i32 %nchunks, %r
  %i64 = zext i32 %i to i64
  %begin = mul i64 %i64, %chunk
  %stop = add i64 %begin, %chunk
  %over = icmp ugt i64 %stop, %n
  %end = select i1 %over, i64 %n, i64 %stop
  %fn = LOAD fn
  %args = LOAD args
  %arena = LOAD arena
  %stride = LOAD stride
  %index64 = zext i32 %index to i64
  %offset = mul i64 %stride, %index64
  %scratch = getelementptr i8, ptr %arena, i64 %offset
  %gx = LOAD gx
  %gy = LOAD gy
  %gz = LOAD gz
  %status = ADDRESS status
; `started` lives on between chunks of one launch; a launch may follow another while this thread is in here.
  %startedp = getelementptr %ctx, ptr %c, i32 0, i32 7
  %kept = load i32, ptr %startedp
  %launch = LOAD launches
  %earlier = load i64, ptr %previous
  %same = icmp eq i64 %launch, %earlier
  %started = select i1 %same, i32 %kept, i32 0
  store i64 %launch, ptr %previous
  call void @fill(ptr %c, i32 %gx, i32 %gy, i32 %gz, i32 %index, ptr %scratch, i64 %stride, ptr %status)
  store i32 %started, ptr %startedp
  %interrupted = call i1 @stopped(ptr %c)
  br i1 %interrupted, label %ran, label %execute
execute:
  call void %fn(ptr %args, i64 %begin, i64 %end, ptr %c)
  br label %ran
ran:
  %done = ADDRESS done
  %before = atomicrmw add ptr %done, i32 1 seq_cst
  %now = add i32 %before, 1
  %last = icmp eq i32 %now, %nchunks
  br i1 %last, label %finish, label %look
finish:
  %wa = ADDRESS waiting
  %w = load atomic i32, ptr %wa seq_cst, align 4
  %sleeps = icmp ne i32 %w, 0
  br i1 %sleeps, label %wake, label %look
wake:
  %k = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %done, i32 129, i32 1)
  br label %look
out:
  ret void
}

define internal void @fill(ptr %c, i32 %gx, i32 %gy, i32 %gz, i32 %t, ptr %s, i64 %b, ptr %st) alwaysinline nounwind {
  store i32 %gx, ptr %c, align 8
  %c1 = getelementptr %ctx, ptr %c, i32 0, i32 1
  store i32 %gy, ptr %c1, align 4
  %c2 = getelementptr %ctx, ptr %c, i32 0, i32 2
  store i32 %gz, ptr %c2, align 8
  %c3 = getelementptr %ctx, ptr %c, i32 0, i32 3
  store i32 %t, ptr %c3, align 4
  %c4 = getelementptr %ctx, ptr %c, i32 0, i32 4
  store ptr %s, ptr %c4, align 8
  %c5 = getelementptr %ctx, ptr %c, i32 0, i32 5
  store i64 %b, ptr %c5, align 8
  %c6 = getelementptr %ctx, ptr %c, i32 0, i32 6
  store ptr %st, ptr %c6, align 8
  %c7 = getelementptr %ctx, ptr %c, i32 0, i32 7
  store i32 0, ptr %c7, align 8
  ret void
}

; A worker's life: spin shortly for work, then sleep until `remaining` is no longer 0.
define internal ptr @worker(ptr %record) nounwind {
entry:
  %set = alloca [128 x i8], align 8
  call void @llvm.memset.p0.i64(ptr %set, i8 -1, i64 128, i1 false)
  %m = call i32 @pthread_sigmask(i32 0, ptr %set, ptr null)
  %p = load ptr, ptr %record
  %ia = getelementptr i8, ptr %record, i64 8
  %index = load i32, ptr %ia
  %asleep = ADDRESS asleep
  br label %spin
spin:
  %k = phi i32 [0, %entry], [0, %busy], [0, %sleep], [%k1, %idle]
  %r = load atomic i32, ptr %p monotonic, align 4
  %work = icmp ne i32 %r, 0
  br i1 %work, label %busy, label %idle
busy:
  call void @work(ptr %p, i32 %index)
  br label %spin
idle:
  PAUSE
  %k1 = add i32 %k, 1
  %tired = icmp ugt i32 %k1, SPINS
  br i1 %tired, label %sleep, label %spin
sleep:
  %s0 = atomicrmw add ptr %asleep, i32 1 seq_cst
  %w = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %p, i32 128, i32 0, ptr null)
  %s1 = atomicrmw sub ptr %asleep, i32 1 seq_cst
  br label %spin
}

; A pool of `threads`, the caller of launch counted; null if there is no memory. Fewer if no more can be started.
define ptr @tessera_pool_create(i32 %threads) nounwind {
entry:
  %attr = alloca [128 x i8], align 16
  %id = alloca i64, align 8
  %t64 = zext i32 %threads to i64
  %records = mul i64 %t64, 64
  %bytes = add i64 %records, POOL_BYTES
  %p = call ptr @aligned_alloc(i64 64, i64 %bytes)
  %null = icmp eq ptr %p, null
  br i1 %null, label %out, label %init
init:
  call void @llvm.memset.p0.i64(ptr %p, i8 0, i64 %bytes, i1 false)
  %ta = ADDRESS threads
  %a0 = call i32 @pthread_attr_init(ptr %attr)
  %a1 = call i32 @pthread_attr_setstacksize(ptr %attr, i64 STACK_BYTES)
  br label %next
next:
  %i = phi i32 [1, %init], [%i1, %started]
  store i32 %i, ptr %ta
  %more = icmp slt i32 %i, %threads
  br i1 %more, label %start, label %end
start:
  %i64 = zext i32 %i to i64
  %at = mul i64 %i64, 64
  %off = add i64 %at, POOL_BYTES
  %record = getelementptr i8, ptr %p, i64 %off
  store ptr %p, ptr %record
  %ra = getelementptr i8, ptr %record, i64 8
  store i32 %i, ptr %ra
  %e = call i32 @pthread_create(ptr %id, ptr %attr, ptr @worker, ptr %record)
  %failed = icmp ne i32 %e, 0
  br i1 %failed, label %end, label %started
started:
  %h = load i64, ptr %id
  %d = call i32 @pthread_detach(i64 %h)
  %i1 = add i32 %i, 1
  br label %next
end:
  %a2 = call i32 @pthread_attr_destroy(ptr %attr)
  br label %out
out:
  ret ptr %p
}

define i32 @tessera_pool_threads(ptr %p) nounwind {
  %t = LOAD threads
  ret i32 %t
}

; Run fn over the whole grid; returns what the kernel stored into *status, OUT_OF_MEMORY or TOO_MANY_PROGRAMS.
define i32 @tessera_pool_launch(ptr %p, ptr %fn, ptr %args, i32 %gx, i32 %gy, i32 %gz, i64 %scratch) nounwind {
entry:
  %c = alloca %ctx, align 8
  %own = alloca i32, align 4
  %x = zext i32 %gx to i64
  %y = zext i32 %gy to i64
  %z = zext i32 %gz to i64
  %xy = mul i64 %x, %y
  %product = call { i64, i1 } @llvm.smul.with.overflow.i64(i64 %xy, i64 %z)
  %n = extractvalue { i64, i1 } %product, 0
  %wraps = extractvalue { i64, i1 } %product, 1
  br i1 %wraps, label %endless, label %counted
endless:
  ret i32 TOO_MANY_PROGRAMS
counted:
  %empty = icmp eq i64 %n, 0
  br i1 %empty, label %nothing, label %take
nothing:
  ret i32 0
take:
  call void @begin_looking(ptr %c)
  %lock = ADDRESS lock
  %t = cmpxchg ptr %lock, i32 0, i32 1 acquire monotonic
  %mine = extractvalue { i32, i1 } %t, 1
  br i1 %mine, label %arena, label %alone

; Another thread's launch has the pool: run here, with scratch of our own, rather than wait for it.
alone:
  store i32 0, ptr %own
  %padded = add i64 %scratch, 127
  %rounded = and i64 %padded, -64
  %mem = call ptr @aligned_alloc(i64 64, i64 %rounded)
  %nomem = icmp eq ptr %mem, null
  br i1 %nomem, label %oom, label %alonerun
alonerun:
  call void @fill(ptr %c, i32 %gx, i32 %gy, i32 %gz, i32 0, ptr %mem, i64 %scratch, ptr %own)
  call void %fn(ptr %args, i64 0, i64 %n, ptr %c)
  call void @free(ptr %mem)
  %ownstatus = load i32, ptr %own
  ret i32 %ownstatus
oom:
  ret i32 OUT_OF_MEMORY

arena:
  %stridea = ADDRESS stride
  %stride = load i64, ptr %stridea
  %threads = LOAD threads
  %small = icmp ugt i64 %scratch, %stride
  br i1 %small, label %grow, label %ready
grow:
  %arenaa = ADDRESS arena
  %old = load ptr, ptr %arenaa
  call void @free(ptr %old)
  %up = add i64 %scratch, 4095
  %new = and i64 %up, -4096
  %t64 = zext i32 %threads to i64
  %total = mul i64 %new, %t64
; In large pages where it is large: tiles of panels then miss the translation caches less.
  %large = icmp uge i64 %total, LARGE_PAGE
  %page = select i1 %large, i64 LARGE_PAGE, i64 4096
  %page1 = sub i64 %page, 1
  %over = add i64 %total, %page1
  %mask = sub i64 0, %page
  %size = and i64 %over, %mask
  %got = call ptr @aligned_alloc(i64 %page, i64 %size)
  %advised = call i32 @madvise(ptr %got, i64 %size, i32 MADV_HUGEPAGE)
  store ptr %got, ptr %arenaa
  %lost = icmp eq ptr %got, null
  %stride1 = select i1 %lost, i64 0, i64 %new
  store i64 %stride1, ptr %stridea
  br i1 %lost, label %lostmem, label %ready
lostmem:
  store atomic i32 0, ptr %lock release, align 4
  ret i32 OUT_OF_MEMORY
ready:
  %status = ADDRESS status
  store i32 0, ptr %status
  %one = icmp eq i64 %n, 1
  %solo = icmp eq i32 %threads, 1
  %inline = or i1 %one, %solo
  br i1 %inline, label %here, label %publish
here:
  %ar = LOAD arena
  %st = load i64, ptr %stridea
  call void @fill(ptr %c, i32 %gx, i32 %gy, i32 %gz, i32 0, ptr %ar, i64 %st, ptr %status)
  call void %fn(ptr %args, i64 0, i64 %n, ptr %c)
  br label %unlock

publish:
  %parts = mul i32 %threads, CHUNKS_PER_THREAD
  %parts64 = zext i32 %parts to i64
  %n1 = add i64 %n, %parts64
  %n2 = sub i64 %n1, 1
  %chunk = udiv i64 %n2, %parts64
  %m1 = add i64 %n, %chunk
  %m2 = sub i64 %m1, 1
  %nchunks64 = udiv i64 %m2, %chunk
  %nchunks = trunc i64 %nchunks64 to i32
  STORE fn %fn
  STORE args %args
  STORE n %n
  STORE chunk %chunk
  STORE nchunks %nchunks
  %launches = LOAD launches
  %launches1 = add i64 %launches, 1
  STORE launches %launches1
  STORE gx %gx
  STORE gy %gy
  STORE gz %gz
  %done = ADDRESS done
  %waiting = ADDRESS waiting
  store atomic i32 0, ptr %waiting monotonic, align 4
  store atomic i32 0, ptr %done monotonic, align 4
  call void @fill(ptr %c, i32 %gx, i32 %gy, i32 %gz, i32 0, ptr null, i64 0, ptr %status)
  store atomic i32 %nchunks, ptr %p seq_cst, align 4
  %sleepers = ADDRESS asleep
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %any = icmp ne i32 %asleep, 0
  br i1 %any, label %wake, label %join
wake:
  %others = sub i32 %nchunks, 1
  %w = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %p, i32 129, i32 %others)
  br label %join
join:
  call void @work(ptr %p, i32 0)
  br label %look
look:
  %k = phi i32 [0, %join], [%k1, %pause]
  %d = load atomic i32, ptr %done acquire, align 4
  %complete = icmp eq i32 %d, %nchunks
  br i1 %complete, label %unlock, label %pause
pause:
  PAUSE
  %k1 = add i32 %k, 1
  %tired = icmp ugt i32 %k1, SPINS
  br i1 %tired, label %announce, label %look
announce:
  store atomic i32 1, ptr %waiting seq_cst, align 4
  br label %sleep
sleep:
  %d1 = load atomic i32, ptr %done seq_cst, align 4
  %complete1 = icmp eq i32 %d1, %nchunks
  br i1 %complete1, label %unlock, label %wait
wait: ; for a moment: a signal to another thread does not end it
  %w1 = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %done, i32 128, i32 %d1, ptr @moment)
  %looked = call i1 @stopped(ptr %c)
  br label %sleep
unlock:
  %result = load atomic i32, ptr %status acquire, align 4
  store atomic i32 0, ptr %lock release, align 4
  ret i32 %result
}
"""


def supported() -> bool:
    """Whether this machine can have a pool: Linux futexes on x86-64 or AArch64."""
    return platform.system() == "Linux" and platform.machine() in PAUSE


def pool_ir(spins: int) -> str:
    """The module's text; a thread looks for work `spins` times before it sleeps."""
    declaration, pause, futex = PAUSE[platform.machine()]
    index = {name: i for i, (name, _) in enumerate(FIELDS)}
    types = dict(FIELDS)
    lines: list[str] = []
    for number, line in enumerate((TEXT + interrupt_ir()).splitlines()):
        words = line.split()
        if "LOAD" in words:
            field = words[-1]
            lines.append(f"  %A{number} = getelementptr %pool, ptr %p, i32 0, i32 {index[field]}")
            lines.append(f"  {words[0]} = load {types[field]}, ptr %A{number}")
        elif "ADDRESS" in words:
            lines.append(
                f"  {words[0]} = getelementptr %pool, ptr %p, i32 0, i32 {index[words[-1]]}"
            )
        elif words and words[0] == "STORE":
            lines.append(
                f"  %A{number} = getelementptr %pool, ptr %p, i32 0, i32 {index[words[1]]}"
            )
            lines.append(f"  store {types[words[1]]} {words[2]}, ptr %A{number}")
        else:
            lines.append(line)
    text = "\n".join(lines)
    for name, value in (
        ("POOL_TYPE", ", ".join(kind for _, kind in FIELDS)),
        ("CONTEXT_TYPE", CONTEXT_TYPE),
        ("PAUSE_DECLARATION", declaration),
        ("PAUSE", pause),
        ("FUTEX", str(futex)),
        ("SPINS", str(spins)),
        ("LARGE_PAGE", str(LARGE_PAGE)),
        ("MADV_HUGEPAGE", str(MADV_HUGEPAGE)),
        ("POOL_BYTES", str(POOL_BYTES)),
        ("STACK_BYTES", str(STACK_BYTES)),
        ("CHUNKS_PER_THREAD", str(CHUNKS_PER_THREAD)),
        ("OUT_OF_MEMORY", str(OUT_OF_MEMORY)),
        ("TOO_MANY_PROGRAMS", str(TOO_MANY_PROGRAMS)),
    ):
        text = text.replace(name, value)
    return text
