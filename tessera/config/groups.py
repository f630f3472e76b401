"""Defines the groups of knobs: type, environment names, default and documentation of each knob."""

from __future__ import annotations

import os

from tessera.config.optimizations import OptimizationsKnob
from tessera.config.types import (
    Absent,
    BoolKnob,
    CallableKnob,
    ClassKnob,
    Group,
    HookKnob,
    IntKnob,
    PathKnob,
    StrKnob,
)


class Runtime(Group):
    __slots__ = ()
    title = "runtime"
    interpret = BoolKnob(
        False, "TESSERA_INTERPRET", "TRITON_INTERPRET", doc="run kernels with the NumPy interpreter"
    )
    debug = BoolKnob(
        False,
        "TESSERA_DEBUG",
        "TRITON_DEBUG",
        doc="device asserts and overflow checks",
        key=True,
        once=True,
    )
    check = BoolKnob(
        False,
        "TESSERA_CHECK",
        doc="check bounds, NaN, overflow and assertions in every launch, in a build for the CPU or on the interpreter",
    )
    check_page = StrKnob(
        None,
        "TESSERA_CHECK_PAGE",
        doc="write a page about the first failure of a checked launch to this file",
    )
    num_threads = IntKnob(
        None,
        "TESSERA_NUM_THREADS",
        doc="threads of a CPU launch; None: all usable cores, of a container no more than its CPU quota",
        once=True,
    )
    default_backend = StrKnob(
        None,
        "TESSERA_DEFAULT_BACKEND",
        "TRITON_DEFAULT_BACKEND",
        doc="cpu or cuda; None: by the arguments",
        once=True,
    )
    device = StrKnob(
        None,
        "TESSERA_DEVICE",
        doc="cpu, cuda, interpreter or simt (a simulated GPU) for all launches; None: by the arguments",
        once=True,
    )
    errors = StrKnob(
        "text",
        "TESSERA_ERRORS",
        doc="the form in which errors are printed: text, or json for editors and other programs",
        choices=("text", "json"),
    )
    override_arch = StrKnob(
        None,
        "TESSERA_OVERRIDE_ARCH",
        "TRITON_OVERRIDE_ARCH",
        doc="compile for this architecture, e.g. sm80",
        key=True,
    )
    launch_enter_hook = HookKnob("called with the launch metadata before each launch")
    launch_exit_hook = HookKnob(
        "called with the launch metadata after each launch, last added first", reverse=True
    )
    kernel_load_start_hook = HookKnob(
        "called with (module, function, name, metadata_group, hash) before a kernel is loaded"
    )
    kernel_load_end_hook = HookKnob(
        "called with the same after loading, last added first", reverse=True
    )
    kernel_unload_hook = HookKnob("accepted; kernels stay loaded until the process ends")
    jit_cache_hook = CallableKnob(
        None, doc="called before a kernel is compiled; a true result skips the compilation"
    )
    jit_post_compile_hook = CallableKnob(None, doc="called after a kernel was compiled")
    add_stages_inspection_hook = CallableKnob(
        None,
        doc="called as hook(backend, stages, options, language, target) before the stages run, which it may replace; "
        "called as hook() for a (key, hash) that tells its kernels from others in the cache",
    )


class Cache(Group):
    __slots__ = ()
    title = "cache"
    home_dir = PathKnob(
        lambda _: os.path.expanduser("~"), "TESSERA_HOME", "TRITON_HOME", doc="parent of .tessera/"
    )
    dir = PathKnob(
        lambda g: os.path.join(g.home_dir, ".tessera", "cache"),
        "TESSERA_CACHE_DIR",
        "TRITON_CACHE_DIR",
        doc="compiled kernels",
    )
    shared_dir = PathKnob(
        None, "TESSERA_CACHE_SHARED", doc="a read-only cache that is looked into second"
    )
    trust = BoolKnob(
        False,
        "TESSERA_CACHE_TRUST",
        doc="use cache folders and compiled kernels of other users, too, and those that every user may write",
    )
    dump_dir = PathKnob(
        lambda g: os.path.join(g.home_dir, ".tessera", "dump"),
        "TESSERA_DUMP_DIR",
        "TRITON_DUMP_DIR",
        doc="where compilation.dump_ir writes the stages",
    )
    override_dir = PathKnob(
        lambda g: os.path.join(g.home_dir, ".tessera", "override"),
        "TESSERA_OVERRIDE_DIR",
        "TRITON_OVERRIDE_DIR",
        doc="where compilation.override looks for stages",
    )
    manager_class = ClassKnob(
        None,
        "TESSERA_CACHE_MANAGER",
        "TRITON_CACHE_MANAGER",
        doc="keeps compiled kernels in place of tessera's own cache: a class with `get_file` and `put`, made for a key",
    )
    remote_manager_class = ClassKnob(
        None,
        "TESSERA_REMOTE_CACHE_BACKEND",
        "TRITON_REMOTE_CACHE_BACKEND",
        doc="what the manager triton.runtime.cache:RemoteCacheManager asks for files that it has not: a class with "
        "`get` and `put`, made for a key",
    )


class Compilation(Group):
    __slots__ = ()
    title = "compilation"
    always_compile = BoolKnob(
        False,
        "TESSERA_ALWAYS_COMPILE",
        "TRITON_ALWAYS_COMPILE",
        doc="do not read compiled kernels from the cache",
    )
    dump_ir = BoolKnob(
        False,
        "TESSERA_KERNEL_DUMP",
        "TRITON_KERNEL_DUMP",
        doc="write each stage into cache.dump_dir",
    )
    override = BoolKnob(
        False,
        "TESSERA_KERNEL_OVERRIDE",
        "TRITON_KERNEL_OVERRIDE",
        doc="take stages found in cache.override_dir",
    )
    verify = BoolKnob(False, "TESSERA_VERIFY", doc="run the IR verifier between passes")
    disable = OptimizationsKnob(
        None,
        "TESSERA_DISABLE",
        doc="optimisations to leave out (comma list of the names in docs/optimizations.md, or all)",
        key=True,
    )
    opt_limit = IntKnob(
        None,
        "TESSERA_OPT_LIMIT",
        doc="stop after so many applications of optimisations in this process, and print each; -1: print only. "
        "Compiled kernels are then neither read from the cache nor kept there",
    )
    strict = BoolKnob(
        False,
        "TESSERA_STRICT",
        doc="a fault in an optimisation is an error; else the kernel is compiled without it, with a warning",
        key=True,
    )
    check_synchronization = BoolKnob(
        False,
        "TESSERA_CHECK_SYNCHRONIZATION",
        doc="check that accesses to shared memory are ordered in finished GPU IR; TESSERA_VERIFY does so, too",
    )
    time = BoolKnob(False, "TESSERA_TIME", doc="print the time of each stage and pass")
    print_after = StrKnob(
        None, "TESSERA_PRINT_AFTER", doc="print the IR after these passes (comma list, or all)"
    )
    store_binary_only = BoolKnob(
        False,
        "TESSERA_STORE_BINARY_ONLY",
        "TRITON_STORE_BINARY_ONLY",
        doc="keep no texts in the cache",
    )
    disable_line_info = BoolKnob(
        False,
        "TESSERA_DISABLE_LINE_INFO",
        "TRITON_DISABLE_LINE_INFO",
        doc="no source lines in code",
        key=True,
    )
    budget = IntKnob(
        900,
        "TESSERA_COMPILE_BUDGET",
        doc="seconds after which a compilation is given up; 0: no limit",
    )
    allow_non_constexpr_globals = BoolKnob(
        False,
        "TESSERA_ALLOW_NON_CONSTEXPR_GLOBALS",
        "TRITON_ALLOW_NON_CONSTEXPR_GLOBALS",
        doc="kernels may read any global",
        key=True,
    )
    front_end_debugging = BoolKnob(
        False,
        "TESSERA_FRONT_END_DEBUGGING",
        "TRITON_FRONT_END_DEBUGGING",
        doc="let exceptions of the front end through as they are, and leave tracebacks whole",
    )
    instrumentation_mode = StrKnob(
        "",
        "TESSERA_INSTRUMENTATION_MODE",
        "TRITON_INSTRUMENTATION_MODE",
        doc='"trace": kernels record what their warps do and when (docs/profiling.md); "lines": '
        "the interpreter shows each line to debuggers, as it does by itself if one is there",
        key=True,
        once=True,
    )
    use_ir_loc = StrKnob(
        None,
        "TESSERA_USE_IR_LOC",
        "USE_IR_LOC",
        doc="line information refers to the IR of this level, which is written into cache.dump_dir",
        key=True,
        choices=("tir", "gir", "ttir", "ttgir"),
    )
    listener = CallableKnob(
        None,
        doc="called after each compilation with src, metadata, metadata_group, times, cache_hit",
    )
    enable_asan = Absent('`debug="check"` (TESSERA_CHECK=1) finds accesses out of bounds')
    dump_ir_extract_di_local_variables = Absent(
        "code has line information, but no variables; TESSERA_PRINT_AFTER shows their names in the IR"
    )


class Autotuning(Group):
    __slots__ = ()
    title = "autotuning"
    print = BoolKnob(
        False,
        "TESSERA_PRINT_AUTOTUNING",
        "TRITON_PRINT_AUTOTUNING",
        doc="print the chosen configs and timings",
    )
    cache = BoolKnob(
        True, "TESSERA_CACHE_AUTOTUNING", "TRITON_CACHE_AUTOTUNING", doc="keep results on disk"
    )
    verify = BoolKnob(
        True,
        "TESSERA_TUNE_VERIFY",
        doc="compare every config's results with the first one's, drop wrong ones",
    )
    processes = IntKnob(
        None,
        "TESSERA_TUNE_PROCESSES",
        doc="processes that compile configs; None: by cores and configs, 0: none",
    )
    budget = IntKnob(
        None,
        "TESSERA_TUNE_BUDGET",
        doc="seconds after which tuning takes the best config so far; None: no limit",
    )
    listener = CallableKnob(
        None, doc="called with (fn, key, best_config, configs_timings, duration, cache_hit)"
    )


class Language(Group):
    __slots__ = ()
    title = "language"
    fp32_default = StrKnob(
        None,
        "TESSERA_F32_DEFAULT",
        "TRITON_F32_DEFAULT",
        doc="input precision of a dot of fp32 that names none",
        key=True,
        choices=("ieee", "tf32", "tf32x3"),
    )
    default_fp_fusion = BoolKnob(
        True,
        "TESSERA_DEFAULT_FP_FUSION",
        "TRITON_DEFAULT_FP_FUSION",
        doc="contract a*b+c to fma",
        key=True,
    )


class Nvidia(Group):
    __slots__ = ()
    title = "nvidia"
    ptxas = PathKnob(
        None, "TESSERA_PTXAS", "TRITON_PTXAS_PATH", doc="the PTX assembler to use", key=True
    )
    ptxas_blackwell = PathKnob(
        None,
        "TESSERA_PTXAS_BLACKWELL",
        "TRITON_PTXAS_BLACKWELL_PATH",
        doc="the PTX assembler to use for sm_100 and newer, if another one",
        key=True,
    )
    mock_ptx_version = StrKnob(
        None,
        "TESSERA_MOCK_PTX_VERSION",
        "TRITON_MOCK_PTX_VERSION",
        doc="the release of ptxas to suppose, e.g. 12.8; its own is not asked for",
        key=True,
    )
    cuobjdump = PathKnob(
        None, "TESSERA_CUOBJDUMP", "TRITON_CUOBJDUMP_PATH", doc="the cubin dumper to use"
    )
    nvdisasm = PathKnob(
        None, "TESSERA_NVDISASM", "TRITON_NVDISASM_PATH", doc="the SASS disassembler to use"
    )
    ptxas_options = StrKnob(
        None, "TESSERA_PTXAS_OPTIONS", "PTXAS_OPTIONS", doc="more ptxas arguments", key=True
    )
    ptxas_budget = IntKnob(
        300,
        "TESSERA_PTXAS_BUDGET",
        doc="seconds after which ptxas is stopped and the compilation given up; 0: only compilation.budget counts",
    )
    disable_ptxas_opt = BoolKnob(
        False, "TESSERA_DISABLE_PTXAS_OPT", "DISABLE_PTXAS_OPT", doc="assemble with -O0", key=True
    )
    dump_ptxas_log = BoolKnob(
        False, "TESSERA_DUMP_PTXAS_LOG", "TRITON_DUMP_PTXAS_LOG", doc="print the log of ptxas"
    )
    dump_nvptx = BoolKnob(False, "TESSERA_DUMP_NVPTX", "NVPTX_ENABLE_DUMP", doc="print the PTX")
    use_jitlink = BoolKnob(
        False,
        "TESSERA_USE_JITLINK",
        doc="assemble with the library nvJitLink where it is installed, not with ptxas: faster, but it ignores "
        "setmaxnreg and orders instructions differently",
        key=True,
    )
    jitlink_path = PathKnob(
        None, "TESSERA_JITLINK_PATH", doc="libnvJitLink.so, if not that of a wheel or of CUDA_HOME"
    )
    libcuda_path = PathKnob(
        None, "TESSERA_LIBCUDA_PATH", "TRITON_LIBCUDA_PATH", doc="libcuda.so.1 or its folder"
    )

    libdevice_path = PathKnob(
        None,
        "TESSERA_LIBDEVICE_PATH",
        "TRITON_LIBDEVICE_PATH",
        doc="accepted, without effect: functions of libdevice are written in the language, no bitcode is linked",
    )


class Simulator(Group):
    __slots__ = ()
    title = "simulator"
    capability = IntKnob(
        90, "TESSERA_SIMT_CAPABILITY", doc="compute capability of the simulated GPU, times ten"
    )
    num_ctas = IntKnob(
        1, "TESSERA_SIMT_CTAS", doc="CTAs of a cluster for kernels that do not say num_ctas"
    )
    seed = IntKnob(
        0, "TESSERA_SIMT_SEED", doc="draws which warps go first, and when copies complete"
    )
    latency = StrKnob(
        "random",
        "TESSERA_SIMT_LATENCY",
        doc="when asynchronous copies complete: eager (at once), late (when nothing else can go on) or random",
    )
    banks = BoolKnob(
        False, "TESSERA_SIMT_BANKS", doc="count and print bank conflicts of shared memory"
    )


class Redis(Group):
    __slots__ = ()
    title = "redis"
    key_format = StrKnob(
        "triton:{key}:{filename}",
        "TESSERA_REDIS_KEY_FORMAT",
        "TRITON_REDIS_KEY_FORMAT",
        doc="names of what triton.runtime.cache:RedisRemoteCacheBackend keeps",
    )
    host = StrKnob(
        "localhost", "TESSERA_REDIS_HOST", "TRITON_REDIS_HOST", doc="the server of the same"
    )
    port = IntKnob(6379, "TESSERA_REDIS_PORT", "TRITON_REDIS_PORT", doc="its port")


NOTHING_BUILT = "accepted, without effect: no C compiler is run"


class Build(Group):
    __slots__ = ()
    title = "build"
    cc = PathKnob(None, "CC", doc=NOTHING_BUILT)
    cudacrt_path = PathKnob(None, "TRITON_CUDACRT_PATH", doc=NOTHING_BUILT)
    cudart_path = PathKnob(None, "TRITON_CUDART_PATH", doc=NOTHING_BUILT)
    impl = Absent("no C compiler is run; launchers are made by `tessera.runtime.native.launcher`")
    backend_dirs = Absent("back ends are found by the entry points of the group `tessera.backends`")


# Groups of Triton's knobs that there are none of here -> why.
ABSENT_GROUPS = {
    "amd": "there is no back end for AMD GPUs yet",
    "proton": "proton is a profiler of its own; torch.profiler and nsys show kernels by name",
}


class Cpu(Group):
    __slots__ = ()
    title = "cpu"
    isa = StrKnob(
        None,
        "TESSERA_CPU",
        doc="native, generic, avx2, avx512, amx or an LLVM CPU name; None: native",
        key=True,
    )
    perf_map = BoolKnob(
        False,
        "TESSERA_PERF_MAP",
        doc="tell `perf` the names of kernels, in /tmp/perf-PID.map, and their lines and code, in /tmp/jit-PID.dump",
    )
    hide = StrKnob(
        "",
        "TESSERA_CPU_HIDE",
        doc="features of the processor to pass over, by how LLVM's names begin (comma list, e.g. avx512,amx): "
        "compile and refuse as a machine without them does",
        key=True,
    )
