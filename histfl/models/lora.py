"""Low-rank adaptation of a pretrained transformer for classification (HIST, appendix on LoRA).

The transformer is frozen. Beside each adapted layer W runs a pair of thin matrices,

    y = W z + (alpha / rank) B A z,    A [rank, inputs], B [outputs, rank],

a network with one hidden layer of `rank` neurons: the rank indices are the units that HIST deals out.
A cell that holds 4 of 16 trains 4 rows of each A and the 4 columns of each B that belong to them, as a model
of rank 4: at the scale alpha / 4, which is `method.scale = 1`, the default here. So the change that the merged model
makes to W, at alpha / 16, is the mean of the cells' changes. At one scale for all it would be their sum: each cell,
which does not see what the others have added, would adapt W in full, and the merged model N times too far.
Deviation: the paper's mask (B S_l A) says nothing of a scale, and leaves alpha / 16 to every cell: `method.scale = 0`.
The linear head on top is trained and averaged as any parameter that every cell holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from histfl.data.text import PADDING, load_transformer
from histfl.errors import UsageError, in_one_line, missing_extra

Head = Literal["trained", "frozen"]
Pooling = Literal["mean", "last"]
BaseDtype = Literal["float32", "bfloat16"]
DEFAULT_BASE = "gpt2"
OTHER_BASES = "use a model such as GPT-2, Llama, Qwen, BERT or RoBERTa, or fewer tokens if it has a window"
STATE_LENGTH = 4.0  # of what the head reads: one learning rate (about 0.1) then suits head and pairs


def lora(
    input_shape: Sequence[int],
    num_classes: int,
    sample_inputs: torch.Tensor | None = None,
    data_dir: Path | str | None = None,
    base: str = DEFAULT_BASE,
    rank: int = 16,
    alpha: float = 4.0,
    target_modules: Sequence[str] = (),
    head: Head = "trained",
    pooling: Pooling = "mean",
    base_dtype: BaseDtype = "float32",
) -> nn.Module:
    """A LoRA classifier of texts [length] on the pretrained model `base` (hub name, local folder, or folder beside the data sets).

    `target_modules` are the layers that get a pair, by the end of their names; by default the attention
    projections that peft names for the architecture (`c_attn` for GPT-2, `q_proj` and `v_proj` for Llama,
    `query` and `value` for BERT). A text's state is the `mean` over its tokens or the `last` token's; the head
    reads it standardised by a few texts, `sample_inputs` [sample, length]. The frozen base computes in
    `base_dtype`; adapters and head are always float32. GPT-2 small with rank 16 on `c_attn` trains
    589,824 numbers in its pairs.
    """
    for name, value, choices in (
        ("head", head, Head),
        ("pooling", pooling, Pooling),
        ("base_dtype", base_dtype, BaseDtype),
    ):
        if value not in get_args(choices):
            raise UsageError(f"model.{name} = {value!r}; use {' or '.join(get_args(choices))}")
    if rank < 1 or alpha <= 0:
        raise UsageError(f"model.rank = {rank}, model.alpha = {alpha}; both must be positive")
    if len(input_shape) != 1:
        raise UsageError(
            f"model lora takes token ids [length], not samples of shape {tuple(input_shape)}; use a text data "
            "set such as 20newsgroups"
        )
    transformer = load_transformer(
        base, data_dir, dtype=getattr(torch, base_dtype), attn_implementation="eager"
    )
    longest = getattr(transformer.config, "max_position_embeddings", None) or input_shape[0]
    if input_shape[0] > longest:
        raise UsageError(f"data.max_length = {input_shape[0]}, but {base} reads {longest} tokens at most")
    adapted = add_lora(transformer, rank=rank, alpha=alpha, target_modules=target_modules)
    return LoraClassifier(adapted, num_classes, sample_inputs, head=head, pooling=pooling)


def add_lora(
    transformer: nn.Module, *, rank: int, alpha: float, target_modules: Sequence[str] = ()
) -> nn.Module:
    """Put LoRA pairs, B at zero, beside the target layers of `transformer` in place, and freeze the rest."""
    try:
        import peft
    except ImportError as error:
        raise missing_extra("the model lora", "lora", error) from None
    layers = {type(module).__name__ for module in transformer.modules()}
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=list(target_modules) or None,
        fan_in_fan_out="Conv1D" in layers,  # GPT-2 stores its weights [inputs, outputs]
    )
    try:
        adapted: nn.Module = peft.inject_adapter_in_model(config, transformer)
    except ValueError as error:
        wanted = list(target_modules) or f"those that peft knows for {type(transformer).__name__}"
        raise UsageError(
            f"no layer to adapt with model.target_modules = {wanted} ({error}); name the attention projections, "
            "for example ['q_proj', 'v_proj']"
        ) from None
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()  # small steps would be lost in half precision
    return adapted


def rank_axes(model: nn.Module) -> Mapping[str, Sequence[tuple[str, int]]]:
    """The rank axes of every LoRA pair in `model`: adapted layer -> ((A's name, 0), (B's name, 1))."""
    names = {name for name, _ in model.named_parameters()}
    found = {}
    for down in sorted(names):
        layer, middle, adapter = down.partition(".lora_A.")
        up = f"{layer}.lora_B.{adapter}"
        if middle and up in names:
            found[layer] = ((down, 0), (up, 1))
    return found


class LoraClassifier(nn.Module):
    """An adapted transformer and a linear head: token ids [sample, length] -> scores [sample, class].

    The head reads a text's state less a mean, over a spread, at one length: the states of all texts share a
    large part, in decoders a few entries of it dwarf all others, and plain SGD would learn little else.
    Mean and spread are constants, taken from a few `texts` [sample, length]; without any, states stay as they are.

    Texts are padded at the end with `PADDING`. All masks are tensor operations, so that many clients'
    samples can pass through at once (`torch.func.vmap`): the frozen layers then see them as one batch.
    """

    scale_of_submodels = 1.0  # where `method.scale` does not say

    def __init__(
        self,
        transformer: Any,
        num_classes: int,
        texts: torch.Tensor | None,
        *,
        head: Head = "trained",
        pooling: Pooling = "mean",
    ) -> None:
        super().__init__()
        self.base = transformer.eval()
        config = transformer.config
        if getattr(config, "is_encoder_decoder", False):
            raise UsageError(
                f"{type(transformer).__name__} has an encoder and a decoder; use a model with one of them"
            )
        config.use_cache = False
        if getattr(transformer, "pooler", None) is not None:
            transformer.pooler = None  # the head reads the token states instead
        self.causal = any(getattr(module, "is_causal", False) for module in transformer.modules())
        self.last_token = pooling == "last"
        self.head = nn.Linear(config.hidden_size, num_classes).requires_grad_(head == "trained")
        self.mean: torch.Tensor
        self.spread: torch.Tensor
        self.register_buffer("mean", torch.zeros(config.hidden_size))
        self.register_buffer("spread", torch.ones(config.hidden_size))
        if texts is not None:
            self._check_masks(texts.shape[1])
            self.standardise(texts)

    def train(self, mode: bool = True) -> LoraClassifier:
        """The frozen base always runs as in evaluation: its dropout belongs to its own training."""
        super().train(mode)
        self.base.eval()
        return self

    def unit_axes(self) -> Mapping[str, Sequence[tuple[str, int]]]:
        """The unit groups, so that no tracing is needed: HIST cuts the rank."""
        return rank_axes(self)

    @torch.no_grad()
    def standardise(self, tokens: torch.Tensor) -> None:
        """Take mean and spread of a text's state from these texts [sample, length], as the model is now."""
        states = self._states(tokens)
        self.mean.copy_(states.mean(dim=0))
        if len(states) > 1:
            self.spread.copy_(states.std(dim=0).clamp(min=1e-6))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        state = (self._states(tokens) - self.mean) / self.spread
        return self.head(STATE_LENGTH * nn.functional.normalize(state, dim=1))  # type: ignore[no-any-return]

    def _states(self, tokens: torch.Tensor) -> torch.Tensor:
        """One state a text, [sample, width]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        lengths = (tokens != PADDING).sum(dim=1, keepdim=True).clamp(min=1)
        present = places < lengths
        states: torch.Tensor = self.base(
            input_ids=tokens.clamp(min=0), attention_mask=self._attention(places, present)
        ).last_hidden_state.to(self.head.weight.dtype)
        read = (places == lengths - 1 if self.last_token else present).to(states.dtype)
        return ((read / read.sum(dim=1, keepdim=True)).unsqueeze(1) @ states).squeeze(1)

    def _attention(self, places: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """What is added to attention scores, [sample or 1, 1, query or 1, key]: 0, or -large where hidden.

        A causal model's tokens look back only, so that padding at the end is hidden from them anyway.
        """
        seen = (places <= places[:, None])[None, None] if self.causal else present[:, None, None]
        dtype = next(self.base.parameters()).dtype
        hidden = torch.zeros((), dtype=dtype, device=places.device)
        return torch.where(seen, hidden, torch.finfo(dtype).min)

    @torch.no_grad()
    def _check_masks(self, length: int) -> None:
        """A UsageError where the base has its own idea of masks, such as a window, and reads padded texts otherwise."""
        kind, weight = type(self.base).__name__, next(self.base.parameters())
        full = torch.arange(length, device=weight.device) % self.base.get_input_embeddings().num_embeddings
        half = full[: (length + 1) // 2]
        padded = torch.stack([full, nn.functional.pad(half, (0, length - len(half)), value=PADDING)])
        try:
            ours = self._states(padded)
            alone = [
                self.base(input_ids=text[None], attention_mask=torch.ones_like(text)[None]).last_hidden_state
                for text in (full, half)
            ]
        except Exception as error:
            raise UsageError(
                f"{kind} cannot be used as a base ({in_one_line(error)}); {OTHER_BASES}"
            ) from error
        theirs = torch.cat([states[:, -1] if self.last_token else states.mean(dim=1) for states in alone])
        off = ((ours - theirs).norm(dim=1) / theirs.norm(dim=1)).max().item()
        if not off <= max(1e-3, 6 * torch.finfo(weight.dtype).eps):  # NaN neither
            raise UsageError(
                f"{kind} cannot be used as a base: with our masks its states of texts of {length} tokens are off by "
                f"{off:.2g} of their length; {OTHER_BASES}"
            )
