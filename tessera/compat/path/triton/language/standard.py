"""`triton.language.standard`."""

# pyright: reportUnusedImport=false, reportPrivateUsage=false
from tessera.compat.absent import absent
from tessera.compat.adopt import adopt
from tessera.language import interleave, ravel, zeros, zeros_like
from tessera.language import standard as _standard

# Combine functions and helpers that kernels outside pass to `tl.reduce`, under Triton's names.
from tessera.language.reductions import _add as _sum_combine
from tessera.language.reductions import _any_max as _argmax_combine_tie_break_fast
from tessera.language.reductions import _any_min as _argmin_combine_tie_break_fast
from tessera.language.reductions import _first_max as _argmax_combine_tie_break_left
from tessera.language.reductions import _first_min as _argmin_combine_tie_break_left
from tessera.language.reductions import _max as _elementwise_max
from tessera.language.reductions import _min as _elementwise_min
from tessera.language.reductions import _mul as _prod_combine
from tessera.language.reductions import _or as _or_combine
from tessera.language.reductions import _xor as _xor_combine
from tessera.language.reductions import log2_of as _log2
from tessera.language.standard import *

__getattr__ = absent(__name__, _standard)
adopt(__name__)
