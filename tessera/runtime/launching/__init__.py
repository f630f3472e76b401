"""What `jit` is made of: the interface of launchable objects, binding, hooks, asynchronous compilation."""
