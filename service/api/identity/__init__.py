"""The identity of callers: API keys, tokens of an issuer, and the rates at which they may ask."""
