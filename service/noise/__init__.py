"""Exact integer noise for counts, and exact selection; pure, apart from the keystream of random bits that is read."""

from service.noise.attempts import Attempts, NoiseKey
from service.noise.keystream import Keystream
from service.noise.sampler import add_noise, sample
from service.noise.selection import select
from service.privacy.laws.noise_law import NoiseLaw

__all__ = ["Attempts", "Keystream", "NoiseKey", "NoiseLaw", "add_noise", "sample", "select"]
