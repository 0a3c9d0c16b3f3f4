"""Check that a trainer trains on packs as on their samples: it takes a step of two packs with unequal trained tokens.

    trainer ─its loader's dealing─► who reads which rows
            ─its collator, get_batch_samples, training_step─► the loss of the step ◄─compared─ each sample alone

One batch would show nothing. With two, the loss is right only if it is divided by the trained tokens of the whole step.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch

from energon_pack.errors import PackError, amount
from energon_pack.trainers.check_dealing import check_packs_dealt_to_ranks, find_setting_that_breaks_packs
from energon_pack.trainers.collator import Collator, WeightedLossMixin, refuse_pair_dataset
from energon_pack.trainers.samples_alone import LossSumsAlone, describe_host_reads, run_samples_alone
from energon_pack.training.encoded import TrainingPack
from energon_pack.training.forward_inputs import MixingError
from energon_pack.training.layout import IGNORE
from energon_pack.training.restored_model import without_dropout

__all__ = ["check_trainer"]

#: packs of each rank from which two with unequal trained tokens are chosen
_CANDIDATE_PACKS = 8
#: relative difference of losses that counts as rounding: in float32, and in shorter types
_TOLERANCE, _SHORT_TOLERANCE = 1e-4, 2e-2


def check_trainer(trainer: Any) -> str:
    """Compare a trainer's loss over two packs with the samples alone. Call it on all ranks, just before `train()`.

    Both packs go through the trainer's own loader, collator, denominator, attention and backward. Nothing is learned:
    gradients are set to None afterwards.

    Returns:
        A line that says ✓, the loss and its difference, how packs are dealt to ranks, and how often a forward waits for
        the host to read something.

    Raises:
        PackError: something is lost on the way. The message says what is lost, and which line cures it.
    """
    if told := find_setting_that_breaks_packs(trainer):
        raise PackError(f"{type(trainer).__name__}: {told}")
    if getattr(trainer.args, "use_liger_kernel", False):  # as `train()` does first; doing it twice changes nothing
        from transformers.integrations.liger import apply_liger_kernel

        apply_liger_kernel(trainer.model, getattr(trainer.args, "liger_kernel_config", None))
    loader = _loader(trainer)
    collate = getattr(loader, "base_dataloader", loader).collate_fn  # ms-swift's dispatcher has a loader inside
    collator = _collator(collate)
    refuse_pair_dataset(collator.packs)
    if collator.weights and not isinstance(trainer, WeightedLossMixin):
        raise PackError(f"{type(trainer).__name__}: its loss ignores the weights of tokens: weighted(trainer)")
    dealt = check_packs_dealt_to_ranks(trainer, loader)
    rows = _rows_to_compare(trainer, collator, loader)
    step = _run_step(trainer, collate, rows)
    alone = run_samples_alone(trainer, collator, rows)
    told = step.compare(alone, trainer)
    return f"✓ {type(trainer).__name__}: {told}; {dealt}; {describe_host_reads(trainer, collator, rows)}"


def _loader(trainer: Any) -> Any:
    try:
        return trainer.get_train_dataloader()
    except ValueError as error:
        if "remove_unused_columns" not in str(error):
            raise
        raise PackError(
            f"{type(trainer).__name__}: remove_unused_columns=True takes the columns away that name packs:"
            " remove_unused_columns=False"
        ) from None


def _collator(collate: Any) -> Collator:
    """Return the collator of packs inside the wrappers of a trainer; PackError: there is none."""
    inner = collate
    while inner is not None and not isinstance(inner, Collator):
        inner = inner.func if isinstance(inner, partial) else getattr(inner, "data_collator", None)
    if inner is None:
        name = getattr(collate, "__qualname__", type(collate).__name__)
        raise PackError(
            f"batches are made by {name}, without what keeps packs right: data_collator=packs.collator(model)"
        )
    return inner


# --------------------------------------------------------------------------------------------------- the step itself


@dataclass(frozen=True)
class TrainerStep:
    """The trainer's loss for a step, and the number of trained tokens of each of this rank's packs."""

    loss: float
    num_trained: list[int]

    def compare(self, alone: LossSumsAlone, trainer: Any) -> str:
        """Return a text that this loss equals that of samples alone; PackError: it differs, with cause and cure."""
        total = _summed_over_ranks(trainer, [self.loss, 1.0, *alone.sums_to_add_over_ranks])
        loss, summed, trained = total[0] / total[1], total[2], total[3]
        expected, means, added = summed / trained, total[4] / total[5], total[4] / total[1]
        weights = [one for one in trainer.model.parameters() if one.is_floating_point()]
        is_short = torch.is_autocast_enabled() or any(torch.finfo(one.dtype).eps > 1e-6 for one in weights)
        same = (_SHORT_TOLERANCE if is_short else _TOLERANCE) * max(1.0, abs(expected))
        samples = amount(int(total[6]), "sample")
        losses = f"{loss:.5f}, its {samples} alone {expected:.5f}"
        if abs(loss - expected) <= same and abs(loss - expected) <= max(abs(loss - means), 1e-6):
            packs = " and ".join(map(str, self.num_trained))
            return f"a step of packs with {packs} trained tokens has the loss {losses} (|Δ| {abs(loss - expected):.1e})"
        where = f"{type(trainer).__name__}: the loss of a step is {losses}"
        if abs(loss - means) <= same:
            raise PackError(f"{where}: it is the mean of the packs' means; {_denominator_fix(trainer)}")
        if abs(loss - added) <= same:
            raise PackError(
                f"{where}: the packs' means are added up, for the model knows no num_items_in_batch;"
                " compute_loss_func=packs.loss_func() in place of model_accepts_loss_kwargs"
            )
        raise PackError(
            f"{where}: members see each other, or the loss is another one than cross entropy (label smoothing, an"
            " auxiliary loss, a patched model): guard(model, packs.encoder) says whether the model keeps them apart"
        )


def _denominator_fix(trainer: Any) -> str:
    """Return the line of code that corrects the loss's denominator."""
    if any(kind.__module__.startswith("trl.") for kind in type(trainer).__mro__):
        return "after it is made: trainer.model_accepts_loss_kwargs = True"
    return "compute_loss_func=packs.loss_func(), or after it is made: trainer.compute_loss_func = packs.loss_func()"


def _rows_to_compare(trainer: Any, collator: Collator, loader: Any) -> list[Any]:
    """Return the two rows whose trained tokens differ most; each rank looks at other rows."""
    rank = trainer.accelerator.process_index
    data = trainer.train_dataset
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        numbers = [(rank * _CANDIDATE_PACKS + number) % len(data) for number in range(min(_CANDIDATE_PACKS, len(data)))]
        try:
            rows = [data[number] for number in numbers]
        except (KeyError, TypeError, ValueError) as error:
            raise PackError(
                f"{type(data).__name__} gives no rows ({error}): rows of packs are numbers, and there is nothing to"
                " tokenise in them: train on packs.as_dataset() itself"
            ) from error
    elif hasattr(data, "peek"):  # a stream of packs, which an iteration would take
        rows = data.peek(_CANDIDATE_PACKS)
    else:
        rows = [*islice(data, _CANDIDATE_PACKS)]
    if len(rows) < 2:
        raise PackError(f"{amount(len(rows), 'pack')}: two are needed, which share a step")
    packs = [collator.pack_of_row(row) for row in rows]
    by_trained = sorted(range(len(rows)), key=lambda i: _num_trained(packs[i]))
    least = next((i for i in by_trained if _num_trained(packs[i])), by_trained[0])
    if least == by_trained[-1]:
        raise PackError(f"no two of {amount(len(rows), 'pack')} have trained tokens")
    is_stream = not hasattr(data, "__len__")
    return [packs[i] if is_stream else rows[i] for i in (by_trained[-1], least)]


def _num_trained(pack: TrainingPack) -> int:
    return sum(int((member.tokens.labels != IGNORE).sum()) for member in pack.members)


def _run_step(trainer: Any, collate: Any, rows: Sequence[Any]) -> TrainerStep:
    """Run a step as the trainer's own loop does: count tokens, forward, scale, backward."""
    device = trainer.args.device
    with _temporary_accumulation(trainer, len(rows)), _without_deepspeed(trainer.accelerator):
        batches, num_items = trainer.get_batch_samples(iter([collate([row]) for row in rows]), len(rows), device)
        trained = [int((batch["labels"] != IGNORE).sum()) for batch in batches]
        losses = []
        for batch in batches:
            try:
                losses.append(float(trainer.training_step(trainer.model, batch, num_items)))
            except MixingError as error:
                raise PackError(f"{type(trainer).__name__}: {error}") from None
    return TrainerStep(sum(losses), trained)


@contextmanager
def _temporary_accumulation(trainer: Any, num: int) -> Iterator[None]:
    """Let the trainer accumulate `num` batches, without dropout; then restore modes and drop gradients."""
    model, name = trainer.model, "current_gradient_accumulation_steps"
    before, training = getattr(trainer, name, None), model.training
    model.to(trainer.args.device)
    setattr(trainer, name, num)
    try:
        with torch.random.fork_rng(), without_dropout(model):
            yield
    finally:
        setattr(trainer, name, before)
        model.train(training)
        for parameter in model.parameters():
            parameter.grad = None


@contextmanager
def _without_deepspeed(accelerator: Any) -> Iterator[None]:
    """Run backward without DeepSpeed while `train()` has not made its engine yet."""
    kind = str(getattr(accelerator, "distributed_type", ""))
    if not kind.endswith("DEEPSPEED") or accelerator.deepspeed_engine_wrapped is not None:
        yield
        return
    accelerator.backward = lambda loss, **_: loss.backward()
    try:
        yield
    finally:
        del accelerator.backward


def _summed_over_ranks(trainer: Any, numbers: Sequence[float]) -> list[float]:
    of_rank = torch.tensor(numbers, dtype=torch.float64, device=trainer.args.device)
    total: list[float] = trainer.accelerator.reduce(of_rank, "sum").tolist()
    return total
