"""A model to serve where there is none: random Qwen2 weights and a byte-level BPE tokenizer, made
on the spot.

What is measured is the engine, not the answers, so weights may be random; the size is chosen so
that the cost of a prefill is felt. The tokenizer is trained on the words below: each of them, with
the blank before it, is exactly one token, so a text of n of them has n tokens. Among the tokens
that a grammar allows, the model always prefers the longest: the answers that the bench forces come
out in the tokens that the same text has in the next prompt, so that their blocks are hit there, as
with a real model. Same code, same files: the folder is named by a hash of all that goes into it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

HIDDEN_SIZE = 512
MAX_CONTEXT_TOKENS = 32_768

_VOCABULARY = (
    "file line test build error branch commit module import return value string number list "
    "index table query cache block session turn engine token prompt model server client "
    "request answer state queue order forecast memory prefix result output input reader "
    "writer parser render layout button style theme color width height start stop check fetch "
    "merge update insert delete select create remove apply change review release version "
    "package library function method class object field record schema column folder path name "
    "type size count limit offset buffer stream socket thread process signal event handler "
    "worker target source header footer config option default setting secret public private "
    "static shared local remote global unique sorted random simple double single second "
    "minute hour before after during under above below between within without small large "
    "short long early late first last next other same different every some none more less "
    "most"
)
WORDS = tuple(_VOCABULARY.split())
"""Each is one token of the tiny model's tokenizer, with the blank that comes before it."""

SYNTAX = (
    "<tool_call>",
    "</tool_call>",
    '\n{"name": "',
    '", "arguments": {"',
    '": "',
    '", "',
    '"}}\n',
)
"""What a tool call consists of beside names and values: a token each."""

NAMES = (
    "system user assistant tool command description text file_path pattern prompt Bash Read "
    "Edit Write Grep Glob Agent Task WebFetch WebSearch exec shell git go npm npx python "
    "pytest cargo make docker sed grep rg cat ls head tail find gh curl node mypy ruff cd "
    "status diff log run test build install compose"
)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{%- if message['content'] %}{{ message['content'] }}{% endif -%}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{{ '<tool_call>\n{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' }}"
    "{{- call['function']['arguments'] | tojson }}{{ '}\n</tool_call>' }}"
    "{%- endfor -%}"
    "{{ '<|im_end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}"
)
"""Renders a tool call the way vLLM's hermes grammar makes the model write it. Tools are left out
on purpose: their schemas differ from turn to turn here and would break the shared prefix."""


def ensure_model(folder: Path, layers: int) -> Path:
    """The tiny model's folder below folder, made if it is not there yet (about 10 s)."""
    recipe = json.dumps(
        [HIDDEN_SIZE, layers, MAX_CONTEXT_TOKENS, WORDS, SYNTAX, NAMES, CHAT_TEMPLATE]
    )
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    model = folder / f"tiny-qwen2-{layers}x{HIDDEN_SIZE}-{digest}"
    if not (model / "config.json").exists():
        partial = folder / f"{model.name}.{os.getpid()}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _write_weights(partial, _write_tokenizer(partial), layers)
        for file in partial.iterdir():
            file.chmod(0o644)  # safetensors writes 0600, and a container's user differs
        if not model.exists():
            partial.rename(model)
    return model.resolve()


def _write_tokenizer(folder: Path) -> list[str]:
    """Writes the tokenizer's files and returns the text of each token, by id."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    )
    words = " ".join(("", *WORDS, *NAMES.split()))
    tokenizer.train_from_iterator([words, NAMES.replace(" ", "\n")], trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in SYNTAX])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return [tokenizer.decode([i], skip_special_tokens=False) for i in range(len(fast))]


def _write_weights(folder: Path, tokens: list[str], layers: int) -> None:
    """Writes config.json and random weights of a Qwen2 that prefers long tokens, and never a blank
    for its own sake."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=-(-len(tokens) // 64) * 64,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=HIDDEN_SIZE * 4,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=MAX_CONTEXT_TOKENS,
        eos_token_id=2,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    preference = torch.tensor([float(len(text)) if text.strip() else -9.0 for text in tokens])
    with torch.no_grad():
        # Feature 0 is the same for every token and no layer adds to it: at the head it works as a
        # bias.
        model.model.embed_tokens.weight[:, 0] = 1.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
        model.lm_head.weight[:, 0] = -9.0
        model.lm_head.weight[: len(tokens), 0] = preference
    model.save_pretrained(folder)
