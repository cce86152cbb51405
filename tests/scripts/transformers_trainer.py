"""The Trainer of transformers."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback, TrainerCallback

set_seed(0)
config = BertConfig(
    vocab_size=128,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=32,
)
model = BertForSequenceClassification(config)
rows = [
    {"input_ids": torch.randint(128, (16,)), "attention_mask": torch.ones(16, dtype=torch.long), "labels": row % 2}
    for row in range(96)
]


class Print(TrainerCallback):
    """Print each loss."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Print it to the last bit."""
        if "loss" in logs:
            print(state.global_step, float(logs["loss"]).hex())


arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    num_train_epochs=1,
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    use_cpu=True,
    logging_strategy="steps",
)
trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[Print()])
trainer.remove_callback(PrinterCallback)
trainer.train()
