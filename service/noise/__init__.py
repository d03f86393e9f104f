"""Exact noise on counts: integer samplers, pure but for the entropy that they are handed."""

from service.noise.attempts import Attempts
from service.noise.keystream import Keystream
from service.noise.sampler import add_noise, sample
from service.privacy.law import Law

__all__ = ["Attempts", "Keystream", "Law", "add_noise", "sample"]
