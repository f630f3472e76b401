"""`triton.knobs`: the very module `tessera.knobs`, so that assignments reach the settings."""

import sys

from tessera import knobs

sys.modules[__name__] = knobs
