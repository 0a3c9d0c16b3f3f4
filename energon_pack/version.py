"""The version of this package, for modules below its door."""

VERSION = "0.1.0"
