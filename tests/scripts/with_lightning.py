"""Lightning's module and Trainer."""

import logging
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")


class Module(lightning.LightningModule):
    """A classifier."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, number):
        """Return the loss of a batch."""
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.layers(inputs), labels)
        print(number, loss.item().hex())
        return loss

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


lightning.seed_everything(0, verbose=False)
loader = DataLoader(TensorDataset(torch.randn(240, 32), torch.randint(10, (240,))), batch_size=8)
trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Module(), loader)
