"""Privacy loss measured from outputs: the published estimates, certified lower bounds, and simulated experiments.

Pure: arrays and a generator in, values out. Everything here is computed from true counts and is itself not protected.
"""
