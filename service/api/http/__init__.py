"""The surroundings of every request: bodies, limits, problems, paging, metrics, helper processes."""
