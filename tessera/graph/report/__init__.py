"""Reports what became of a graph: its steps with bytes, operations and times, as text, JSON and a page."""
