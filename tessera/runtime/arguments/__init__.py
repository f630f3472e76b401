"""Handles the arguments of a launch: arrays of any library, their memory, types and specialisation keys."""
