"""The planner's page: from targets to plans with their costs."""
