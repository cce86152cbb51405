"""Supervised fine-tuning by trl, with a model and a tokenizer made here."""

from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer

set_seed(0)
disable_progress_bars()
words = ["<pad>", "<eos>", "<unk>", *(f"word{index}" for index in range(60))]
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>")),
    pad_token="<pad>",
    eos_token="<eos>",
    unk_token="<unk>",
)
tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
config = LlamaConfig(
    vocab_size=len(words),
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=64,
    pad_token_id=0,
    eos_token_id=1,
)
texts = [" ".join(f"word{(row * 7 + index) % 60}" for index in range(20)) for row in range(96)]


class Print(TrainerCallback):
    """Print each loss."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Print it to the last bit."""
        if "loss" in logs:
            print(state.global_step, float(logs["loss"]).hex())


arguments = SFTConfig(
    output_dir="out",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    num_train_epochs=1,
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    use_cpu=True,
    max_length=32,
    bf16=False,
    gradient_checkpointing=False,
)
trainer = SFTTrainer(
    model=LlamaForCausalLM(config),
    args=arguments,
    train_dataset=Dataset.from_dict({"text": texts}),
    processing_class=tokenizer,
    callbacks=[Print()],
)
for callback in list(trainer.callback_handler.callbacks):
    if "Printer" in type(callback).__name__:
        trainer.remove_callback(callback)
trainer.train()
