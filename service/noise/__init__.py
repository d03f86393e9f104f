"""Exact noise on counts: integer samplers, pure but for the entropy that they are handed."""

from service.noise.attempts import Attempts
from service.noise.keystream import Keystream
from service.noise.sampler import add_noise, sample
from service.privacy.laws.noise_law import NoiseLaw

__all__ = ["Attempts", "Keystream", "NoiseLaw", "add_noise", "sample"]
