"""The planner's page."""
