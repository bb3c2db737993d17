"""What every layer has, by meaning: its state, its policy, how it is built, called and configured."""
