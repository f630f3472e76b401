"""Launches in native code: LLVM IR that binds arguments, finds the kernel and starts it without Python."""
