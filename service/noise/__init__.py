"""Exact integer noise for counts. The samplers are pure, apart from the keystream of random bits that they read."""

from service.noise.attempts import Attempts, NoiseKey
from service.noise.keystream import Keystream
from service.noise.sampler import add_noise, sample
from service.privacy.laws.noise_law import NoiseLaw

__all__ = ["Attempts", "Keystream", "NoiseKey", "NoiseLaw", "add_noise", "sample"]
