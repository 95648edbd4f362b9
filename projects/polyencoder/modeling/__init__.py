"""The architectures: bi-, poly-, cross- and late-interaction encoders, ConveRT."""
