"""A tokenizer for the tiny models: 320 byte-level tokens, with a chat template.

Byte-level, so that a character outside ASCII takes several tokens and any bytes may come out.
"""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>")
VOCAB_SIZE = 320
CHAT_TEMPLATE = (
    "{% for message in messages %}<s>{{ message.role }}: {{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)
_TEXT = (
    "the pipeline sends the hidden state of the first stage to the next stage and the last stage "
    "draws the token that the client then reads as text while other prompts are on their way "
)


def write_tiny_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Trains and writes the tokenizer's files into `folder`; the same every time."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    pad, bos, eos = SPECIAL_TOKENS
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        chat_template=CHAT_TEMPLATE,
    )
    fast.save_pretrained(folder)
    return fast
