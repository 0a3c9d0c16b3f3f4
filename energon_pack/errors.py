"""Errors a user can mend. The command line shows their text as one line and exits with `exit_code`."""


class PackError(ValueError):
    """Refused or wrong input: names the offending value and the knob to turn."""

    exit_code = 1


class SamplesLost(PackError):
    """More samples lost to bad data than `max_skipped` allows, or a whole modality lost."""

    exit_code = 3
