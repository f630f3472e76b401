"""A small program of PTX, and whether ptxas is there."""

from __future__ import annotations

from tessera.backends.nvidia import ptxas
from tessera.errors import ToolNotFound

PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p) {
  .reg .b64 %rd<3>;
  .reg .b32 %r<3>;
  .shared .align 4 .b8 tile[256];
  ld.param.u64 %rd1, [p];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r1, %tid.x;
  st.shared.u32 [tile], %r1;
  bar.sync 0;
  ld.shared.u32 %r2, [tile+4];
  st.global.u32 [%rd2], %r2;
  ret;
}
"""


def has_ptxas() -> bool:
    try:
        ptxas.find_tool("ptxas")
    except ToolNotFound:
        return False
    return True
