"""Names of the language's surface that several tests go through."""

# ruff: noqa: SIM905
from __future__ import annotations

MODES = ("rn", "rz", "rd", "ru")


LIBDEVICE = (
    "floor ceil trunc rint nearbyint round sqrt rsqrt cbrt rcbrt exp exp2 exp10 expm1 log log2 log10 log1p logb sin "
    "cos tan sinpi cospi asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfcx erfinv erfcinv normcdf "
    "normcdfinv lgamma tgamma j0 j1 y0 y1 cyl_bessel_i0 cyl_bessel_i1 abs atan2 copysign fdim fmod remainder hypot "
    "rhypot nextafter fma norm3d rnorm3d norm4d rnorm4d pow ldexp scalbn jn yn fast_sinf fast_cosf fast_tanf "
    "fast_expf fast_exp10f fast_logf fast_log2f fast_log10f fast_powf fast_dividef fast_tanhf saturatef rsqrt_rn "
    "rcp64h ilogb signbit isnan isinf finitef isfinited llrint llround clz popc ffs brev byte_perm mulhi mul24 hadd "
    "rhadd sad int2double_rn uint2double_rn int_as_float float_as_int uint_as_float float_as_uint longlong_as_double "
    "double_as_longlong hiloint2double double2loint double2hiint div_rn"
).split()


LIBDEVICE += [
    f"{name}_{mode}"
    for name in (
        "rcp sqrt add sub mul div fma double2float double2int double2uint float2int float2uint float2ll float2ull "
        "double2ll double2ull int2float uint2float ll2float ull2float ll2double ull2double"
    ).split()
    for mode in MODES
]
