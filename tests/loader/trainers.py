"""Trains as users of a trainer do, whole and from its checkpoints; prints which samples each batch of this rank had.

Usage: trainers.py RANK RANKS DIRECTORY TRAINER...
Prints a line of JSON: of each trainer, of each of its trainings, [epoch, samples] of each batch.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.data import Dataset, IterableDataset, WeightedRandomSampler

from forebay.torch import DataLoader

SAMPLES, BATCH, EPOCHS, SEED = 23, 3, 3, 5
# On two ranks an epoch has four batches: in the middle of the second one, and at its end.
STEPS = (6, 8)

Seen = list[tuple[int, list[int]]]


class TrainerSamples(Dataset[Any]):
    """Each sample is its index."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, float]:
        self.reads += 1
        return {"x": float(index)}


class EndlessSampler(IterableDataset[Any]):
    """In no order that could be known."""

    def __iter__(self) -> Iterator[dict[str, float]]:
        return iter([{"x": 0.0}])

    def __len__(self) -> int:
        return 1


class TinyModel(nn.Module):
    """Remembers what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append([int(one) for one in x.tolist()])
        return {"loss": self.linear(x[:, None].float()).square().mean()}


def lightning(root: Path) -> dict[str, Seen]:
    """PyTorch Lightning, which saves after every second step, and at the end of an epoch."""
    import pytorch_lightning as pl
    from pytorch_lightning.callbacks import ModelCheckpoint

    from forebay.lightning import DataLoader as Loader

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = TinyModel()
            self.epochs: list[int] = []

        def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
            self.epochs.append(self.current_epoch)
            loss: torch.Tensor = self.model(**batch)["loss"]
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-4)

    def fit(state: Path | None = None, **options: Any) -> Seen:
        saving: list[Any] = [
            ModelCheckpoint(root, "{step}", save_top_k=-1, every_n_train_steps=2, auto_insert_metric_name=False),
            ModelCheckpoint(root, "epoch-{epoch}", save_top_k=-1, save_on_train_epoch_end=True, auto_insert_metric_name=False),
        ]
        shown = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        options = {"max_epochs": EPOCHS, "callbacks": [] if state or options else saving, **shown, **options}
        trainer = pl.Trainer(accelerator="cpu", devices=distributed.get_world_size(), strategy="ddp", default_root_dir=root, **options)
        module = Module()
        trainer.fit(module, Loader(TrainerSamples(), BATCH, shuffle=True, seed=SEED, report=False), ckpt_path=state)
        return list(zip(module.epochs, module.model.seen, strict=True))

    found = {"whole": fit(), "limited": fit(limit_train_batches=2, enable_checkpointing=False)}
    found |= {str(step): fit(root / f"{step}.ckpt") for step in STEPS}
    return found | {"epoch": fit(root / "epoch-1.ckpt")}


def accelerate(root: Path) -> dict[str, Seen]:
    """Accelerate, which is told when to save."""
    from accelerate import Accelerator

    from forebay.accelerate import prepare

    def train(state: str = "", skip: int = 0, **options: Any) -> Seen:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
        samples = TrainerSamples()
        own = DataLoader(samples, **{"batch_size": BATCH, "shuffle": True, "seed": SEED, "report": False, **options})
        model, loader = accelerator.prepare(TinyModel(), prepare(accelerator, own))
        if state:
            accelerator.load_state(str(root / state))
        is_whole = not (state or skip)
        seen: Seen = []
        for epoch in range(1 if skip else loader.iteration, EPOCHS):
            loader.set_epoch(epoch)
            skipping, skip = skip, 0
            for batch in accelerator.skip_first_batches(loader, skipping) if skipping else loader:
                batches = len(seen) % len(own)
                with accelerator.accumulate(model):
                    accelerator.backward(model(**batch)["loss"])
                    # Every third one, and the last of an epoch.
                    assert not is_whole or accelerator.sync_gradients == (batches % 3 == 2 or batches == len(own) - 1)
                seen.append((epoch, accelerator.unwrap_model(model).seen[-1]))
                if is_whole and len(seen) in STEPS:
                    accelerator.save_state(str(root / str(len(seen))))
            if is_whole and epoch == 1:
                accelerator.save_state(str(root / "epoch"))
        assert samples.reads == sum(len(batch) for _, batch in seen), "what is skipped is not read"
        return seen

    found = {"whole": train()}
    found |= {state: train(state) for state in (*map(str, STEPS), "epoch")}
    # As if each were the only rank.
    return found | {"skipped": train(skip=2), "alone": train(str(STEPS[0]), batch_size=5, rank=0, world_size=1)}


def transformers(root: Path) -> dict[str, Seen]:
    """transformers' Trainer, which saves after every second step."""
    from transformers import TrainingArguments

    from forebay.transformers import Trainer

    class Weighted(Trainer):
        def _get_train_sampler(self, *_: object) -> Any:  # noqa: ANN401  (torch's)
            return WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)

    def refused(kind: type[Trainer], samples: Any) -> str:  # noqa: ANN401  (some dataset)
        try:
            kind(
                TinyModel(), TrainingArguments(output_dir=str(root), use_cpu=True, report_to=[]), train_dataset=samples
            ).get_train_dataloader()
        except (TypeError, ValueError) as error:
            return str(error)
        return "not refused"

    assert refused(Weighted, TrainerSamples()).startswith("WeightedRandomSampler is an order that the loader does not have"), (
        "its own order"
    )
    assert refused(Trainer, EndlessSampler()) == "not refused", "transformers' own loader reads it"

    def train(state: Path | None = None) -> Seen:
        arguments = TrainingArguments(
            output_dir=str(root),
            per_device_train_batch_size=BATCH,
            num_train_epochs=EPOCHS,
            save_strategy="no" if state else "steps",
            save_steps=2,
            use_cpu=True,
            ddp_backend="gloo",
            data_seed=SEED,
            report_to=[],
            logging_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        model, samples = TinyModel(), TrainerSamples()
        trainer = Trainer(model, arguments, train_dataset=samples, loader_options={"report": False})
        trainer.train(resume_from_checkpoint=str(state) if state else None)
        assert samples.reads == sum(len(batch) for batch in model.seen), "what was had is not read again"
        first = int(state.name.partition("-")[2]) if state else 0
        # The trainer does not say which epoch a batch is of.
        batches = len(trainer.get_train_dataloader())
        return [((first + number) // batches, batch) for number, batch in enumerate(model.seen)]

    return {"whole": train()} | {str(step): train(root / f"checkpoint-{step}") for step in STEPS}


TRAINERS: dict[str, Callable[[Path], dict[str, Seen]]] = {
    "lightning": lightning,
    "accelerate": accelerate,
    "transformers": transformers,
}


def main() -> None:
    """See above."""
    rank, ranks, directory, *names = sys.argv[1:]
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": "0"}
    # Nobody listens there: the ranks have met when a trainer looks for them.
    os.environ |= {**place, "TORCHELASTIC_RUN_ID": "tests", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    root = Path(directory)
    distributed.init_process_group("gloo", init_method=(root / "store").as_uri(), rank=int(rank), world_size=int(ranks))
    found = {}
    for name in names:
        (root / name).mkdir(exist_ok=True)
        torch.manual_seed(0)
        found[name] = TRAINERS[name](root / name)
    print(json.dumps(found), flush=True)
    distributed.destroy_process_group()
    # What three trainers have imported ends the interpreter by abort() now and then, which says nothing of what was
    # asked.
    os._exit(0)


if __name__ == "__main__":
    main()
