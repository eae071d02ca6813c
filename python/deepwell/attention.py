"""``attn_implementation="deepwell"`` for models of transformers: their attention becomes ``deepwell.ops.attention``, the rest stays PyTorch's."""
from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, nn

from . import ops
from .errors import Unsupported

NAME = "deepwell"


def _joined(mask: Optional[Tensor], bias: Optional[Tensor]) -> Optional[Tensor]:
    """A mask, which is bool or added, and a bias as one."""
    if mask is None or bias is None:
        return bias if mask is None else mask
    return bias.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else bias + mask


def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Optional[Tensor], dropout: float = 0.0, scaling: Optional[float] = None,
           is_causal: Optional[bool] = None, position_bias: Optional[Tensor] = None, softcap: Optional[float] = None, s_aux: Optional[Tensor] = None,
           **options: Any) -> tuple[Tensor, None]:
    """What transformers calls: query [b,h,s,d], key and value [b,g,t,d] -> [b,s,h,d]. Windows are in the mask, as they are for its own sdpa."""
    if dropout > 0:
        raise Unsupported("attention of deepwell has no dropout: call model.eval(), or set attention_dropout=0")
    if options.get("output_attentions"):
        raise Unsupported("attention of deepwell gives no weights: load the model with attn_implementation='eager' for output_attentions")
    if options.get("cache") is not None:
        raise Unsupported("attention of deepwell reads no paged cache of transformers' continuous batching: use attn_implementation='sdpa' for that")
    causal = is_causal if is_causal is not None else bool(getattr(module, "is_causal", True))
    causal = causal and query.shape[2] > 1 and attention_mask is None
    if causal and key.shape[2] > query.shape[2]:   # the first run beside a cache of fixed size: what lies behind is empty
        key, value = key[:, :, :query.shape[2]], value[:, :, :query.shape[2]]
        position_bias = position_bias[..., :query.shape[2]] if position_bias is not None else None
    made = ops.attention(query, key, value, _joined(attention_mask, position_bias), causal, scaling, 0, softcap or 0.0, s_aux)
    return made.transpose(1, 2).contiguous(), None


def register_attention(name: str = NAME) -> None:
    """Makes ``attn_implementation=name`` known to transformers, with the masks that its sdpa gets.

    >>> deepwell.register_attention()
    >>> model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="deepwell").eval()
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, sdpa_mask)
