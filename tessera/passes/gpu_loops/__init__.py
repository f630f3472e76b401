"""Schedules loops on a GPU: a planner writes how an iteration overlaps with others, one expander rewrites the loop."""
