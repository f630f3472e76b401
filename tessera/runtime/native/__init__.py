"""Launches in native code: LLVM IR binds the arguments, finds the kernel and starts it without Python."""
