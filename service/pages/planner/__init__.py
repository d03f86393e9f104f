"""The planner's page: from margins of error to plans with their costs."""
