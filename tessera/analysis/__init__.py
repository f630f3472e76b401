"""Analyses find facts about values that passes and back ends ask for (rank 3)."""
