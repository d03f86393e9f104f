"""Plans from targets: allocation, least noise, comparison, SafeTab."""
