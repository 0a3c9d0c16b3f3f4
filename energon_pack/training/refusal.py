"""Say that a model mixes the members of a batch, and where it first shows."""

from energon_pack.training.trial import Trial

#: where outputs are those of the members alone
_LOSS = (
    "Outputs agree, the loss does not: output_router_logits adds one over the routers of the whole row, and a"
    " loss_function may predict more than the next token (model.config.output_router_logits=False). "
)
_BACKWARD = "Outputs and loss agree, gradients do not: a kernel's backward has no mask, or a hook mixes gradients. "


def refusal(name: str, batch: str, trial: Trial, place: str | None) -> str:
    """Say what mixes, and where it first shows."""
    if trial.is_random:
        return (
            f"{name} draws random numbers in train() beside dropout, so that it can't be compared with its members"
            " alone; NEFTune's noise goes by the length of the row: leave it out (neftune_noise_alpha=None). "
        )
    shows = f"It first shows in {place}. " if place else ""
    is_quiet = trial.mixes and not trial.moved_others and trial.alone.has_outputs
    beside = "" if not is_quiet else _BACKWARD if trial.alone.has_loss else _LOSS
    return f"{name} mixes the members of {batch}{'' if trial.mixes else ' on another rank'}: {trial}. {shows}{beside}"
