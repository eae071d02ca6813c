"""Inputs for a module that was given none: from its configuration (transformers) or from its first layers. Traces nothing but a dry run on fake tensors.

Sizes are 3 and 21, which no layer has, so that no size is taken for a constant by accident.
"""
from __future__ import annotations

import inspect
from typing import Any, Iterator

import torch
from torch import nn

from .errors import Invalid

BATCH, LENGTH, OTHER_LENGTH = 3, 21, 17

Call = tuple[tuple[Any, ...], dict[str, Any]]


def infer_inputs(model: nn.Module) -> Call:
    """Arguments that ``model.forward`` takes. Raises Invalid, saying what to pass, where the module does not say."""
    if hasattr(getattr(model, "config", None), "model_type"):
        return (), _transformers_inputs(model)
    return _plain_inputs(model)


# ---- transformers ----

def _config_of(config: Any, *names: str) -> Any:
    """The first of these attributes of a configuration or of the parts it is made of."""
    for part in (config, *(getattr(config, p, None) for p in ("vision_config", "text_config", "audio_config", "encoder", "decoder"))):
        for name in names:
            value = getattr(part, name, None)
            if value is not None:
                return value
    return None


def _ids(config: Any, length: int) -> torch.Tensor:
    vocabulary = _config_of(config, "vocab_size") or 100
    return torch.randint(0, int(vocabulary), (BATCH, length))


def _pixels(config: Any, dtype: torch.dtype) -> torch.Tensor:
    side = _config_of(config, "image_size", "input_size") or 224
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    return torch.randn(BATCH, int(_config_of(config, "num_channels") or 3), int(height), int(width), dtype=dtype)


def _features(config: Any, dtype: torch.dtype) -> torch.Tensor:
    bins = _config_of(config, "num_mel_bins", "feature_size", "input_feat_per_channel") or 80
    positions = _config_of(config, "max_source_positions")
    if getattr(config, "model_type", "") in ("whisper",) and positions:
        return torch.randn(BATCH, int(bins), 2 * int(positions), dtype=dtype)
    return torch.randn(BATCH, 8 * LENGTH, int(bins), dtype=dtype)


def _transformers_inputs(model: nn.Module) -> dict[str, Any]:
    config = model.config
    parameters = inspect.signature(model.forward).parameters
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    main = getattr(model, "main_input_name", "input_ids")
    call: dict[str, Any] = {}
    for name in dict.fromkeys((main, "input_ids" if "input_ids" in parameters else main, "pixel_values" if "pixel_values" in parameters else main)):
        if name not in parameters:
            continue
        if name == "input_ids" and (name == main or not _optional_text(config)):
            call[name] = _ids(config, LENGTH)
        elif name == "pixel_values" and (name == main or _has_vision(config)):
            call[name] = _pixels(config, dtype)
        elif name == "input_features":
            call[name] = _features(config, dtype)
        elif name == "input_values":
            strides = _config_of(config, "conv_stride") or [1]
            samples = 1
            for stride in strides:
                samples *= int(stride)
            call[name] = torch.randn(BATCH, samples * LENGTH, dtype=dtype)
    if not call:
        raise Invalid(f"{type(model).__name__} takes '{main}', which cannot be made from its configuration; pass example inputs: "
                      f"dw.capture(model, example_inputs)")
    if "decoder_input_ids" in parameters and getattr(config, "is_encoder_decoder", False):
        call["decoder_input_ids"] = _ids(config, OTHER_LENGTH)
    if "use_cache" in parameters:
        call["use_cache"] = False
    return call


def _has_vision(config: Any) -> bool:
    return getattr(config, "vision_config", None) is not None


def _optional_text(config: Any) -> bool:
    return getattr(config, "text_config", None) is None and getattr(config, "vocab_size", None) is None


# ---- other modules ----

_ID_NAMES = {"input_ids", "ids", "tokens", "token_ids", "idx"}
_MASK_NAMES = {"attention_mask", "mask", "padding_mask"}


def _first_layers(model: nn.Module) -> Iterator[nn.Module]:
    for module in model.modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LayerNorm, nn.MultiheadAttention)):
            yield module


def _image_side(model: nn.Module) -> int:
    for module in model.modules():
        for name in ("image_size", "img_size", "input_size"):
            value = getattr(module, name, None)
            if isinstance(value, (tuple, list)) and value:
                value = value[-1]
            if isinstance(value, int) and value > 0:
                return value
    return 224


def _candidates(model: nn.Module) -> Iterator[torch.Tensor]:
    """What the first layers would take, in the order in which they were registered."""
    seen = set()
    for layer in _first_layers(model):
        dtype = next((p.dtype for p in layer.parameters()), torch.float32)
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            key, made = "ids", lambda: torch.randint(0, layer.num_embeddings, (BATCH, LENGTH))
        elif isinstance(layer, nn.Linear):
            key, made = ("linear", layer.in_features), lambda: torch.randn(BATCH, LENGTH, layer.in_features, dtype=dtype)
        elif isinstance(layer, nn.LayerNorm):
            key, made = ("linear", layer.normalized_shape[-1]), lambda: torch.randn(BATCH, LENGTH, *layer.normalized_shape, dtype=dtype)
        elif isinstance(layer, nn.MultiheadAttention):
            key, made = ("linear", layer.embed_dim), lambda: torch.randn(BATCH, LENGTH, layer.embed_dim, dtype=dtype)
        else:
            side = _image_side(model)
            sizes = {nn.Conv1d: (8 * LENGTH,), nn.Conv2d: (side, side), nn.Conv3d: (8, side, side)}[type(layer) if type(layer) in (nn.Conv1d, nn.Conv2d, nn.Conv3d) else nn.Conv2d]
            key, made = ("conv", layer.in_channels, sizes), lambda: torch.randn(BATCH, layer.in_channels, *sizes, dtype=dtype)
        if key not in seen:
            seen.add(key)
            yield made()
    first = next(model.parameters(), None)
    if first is not None and first.dim() == 2 and not seen:
        yield torch.randn(BATCH, LENGTH, first.shape[1], dtype=first.dtype)
        yield torch.randn(BATCH, LENGTH, first.shape[0], dtype=first.dtype)


def _runs(model: nn.Module, args: tuple[Any, ...]) -> str | None:
    """None when the module takes these arguments; else why not."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
            model(*[mode.from_tensor(a) for a in args])
    except Exception as error:      # whatever a module raises at inputs that are not its
        return f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
    return None


def _plain_inputs(model: nn.Module) -> Call:
    try:
        parameters = [p for p in inspect.signature(model.forward).parameters.values()
                      if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):
        parameters = []
    what = f"{type(model).__name__}.forward({', '.join(p.name for p in parameters)})"
    others = [p.name for p in parameters[1:] if p.name not in _MASK_NAMES]
    if len(parameters) != 1 and others:
        raise Invalid(f"{what}: the module does not say what '{others[0]}' is; pass example inputs: dw.capture(model, ({', '.join(p.name for p in parameters)}))")
    reasons = []
    for candidate in _candidates(model):
        masks = [torch.ones(candidate.shape[:2], dtype=torch.int64) for p in parameters[1:]]
        reason = _runs(model, (candidate, *masks))
        if reason is None:
            return (candidate, *masks), {}
        reasons.append(f"{tuple(candidate.shape)} {str(candidate.dtype).removeprefix('torch.')}: {reason}")
    tried = "; tried " + "; ".join(reasons[:3]) if reasons else "; it has no layer that tells (Embedding, Linear, Conv, LayerNorm)"
    raise Invalid(f"{what}: no input could be inferred{tried}. Pass example inputs: dw.capture(model, x)")
