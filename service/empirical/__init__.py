"""Privacy loss measured from outputs: the published estimates, certified lower bounds, and simulated experiments.

The functions are pure: they take arrays and a random generator. Their results come from true counts and are themselves
not protected.
"""
