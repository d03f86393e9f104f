"""Laws of noise and of privacy losses, and their Rényi divergences."""
