"""The parts of `jit` are here: the interface of launchable objects, binding, hooks, asynchronous compilation."""
