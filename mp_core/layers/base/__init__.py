"""The base classes of every layer, one file per concern: state, policy, building, calls, configuration."""
