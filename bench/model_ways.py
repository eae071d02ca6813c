"""The ways in which models.py runs a model: Deepwell in a precision, PyTorch eager, torch.compile, and torch.compile over linears of row-scaled fp8.

A way makes of a work something that runs: ``Running``, whose ``once`` gives the seconds of a call, or of a token of each text. Nothing is measured here but that.
"""
import copy
import time

FP8_LARGEST = 448.0
# The mode of torch.compile by what bounds the work: CUDA graphs where launches do.
MODES = {"products": "default", "launches": "reduce-overhead", "decode": "reduce-overhead"}


class Running:
    """first: seconds to the first result. result: the tensors that are compared, [rows, ..]. once: a function of nothing to seconds. ids: of generation, the first id of each text."""

    def __init__(self, first, once, result=None, ids=None, mode=None, report=None):
        self.first, self.once, self.result, self.ids, self.mode, self.report = first, once, result, ids, mode, report


class Clock:
    def __init__(self, torch, device):
        self.torch, self.device, self.cuda = torch, device, device.type == "cuda"

    def wait(self):
        if self.cuda:
            self.torch.cuda.synchronize()

    def spent(self, call):
        """Seconds of a call, and what it gives."""
        self.wait()
        start = time.perf_counter()
        value = call()
        self.wait()
        return time.perf_counter() - start, value

    def back_to_back(self, call, least=0.03):
        """A function to the seconds of a call, of as many back to back as take a moment."""
        call()
        calls = max(1, int(least / self.spent(call)[0]))

        def many():
            for _ in range(calls):
                call()
        return lambda: self.spent(many)[0] / calls


def part_of(model, path):
    for name in path.split(".") if path else ():
        model = getattr(model, name)
    return model


def picked(result, work):
    return [getattr(result, name) for name in work.results]


# ---- Deepwell ----

class Deepwell:
    def __init__(self, clock, model, source, precision):
        self.clock, self.model, self.source, self.precision, self.captured = clock, model, source, precision, None

    def forward(self, work, given):
        import deepwell
        part = part_of(self.model, work.part)

        def start():
            module = deepwell.optimize(part, precision=self.precision, strict=True)
            return module, picked(module(**given), work)
        first, (module, result) = self.clock.spent(start)

        def report():
            return deepwell.compile(deepwell.capture(part, given), precision=self.precision, device=self.clock.device).report(**given)
        return Running(first, self.clock.back_to_back(lambda: module(**given)), result, report=report)

    def engine(self, ids):
        import deepwell
        if self.captured is None:
            example = {"input_ids": ids[:, :24].expand(2, -1) if len(ids) == 1 else ids[:2, :24]}
            if self.source:
                example = {**self.source(2), "decoder_input_ids": example["input_ids"]}
            example["use_cache"] = False        # the engine has caches of its own; a window's that the model returned would end the lengths there
            self.captured = deepwell.capture(self.model, example)
        return deepwell.compile(self.captured, precision=self.precision, device=self.clock.device)

    def generate(self, work, ids):
        more = self.source(len(ids)) if self.source else {}
        made = {}

        def start():
            made["engine"] = self.engine(ids)
            return made["engine"].generate(ids, work.new, **more)
        first, result = self.clock.spent(start)
        engine = made["engine"]

        def step():
            """Of the text that begins last, so that no prompt is read meanwhile: the time of its last token less that of its first, over the tokens between."""
            stamps = [[] for _ in range(len(ids))]
            engine.generate(ids, work.new, on_token=lambda row, id: stamps[row].append(time.perf_counter()), **more)
            last = max(stamps, key=lambda times: times[0])
            return (last[-1] - last[0]) / (len(last) - 1)
        once = step if work.new > 1 else self.clock.back_to_back(lambda: engine.generate(ids, 1, **more))
        if work.new == 1 and ids.shape[1] <= 1024 and not more:
            logits = [engine(input_ids=ids[:2]).logits[:, -1]]
        else:
            logits = None
        sizes = dict(keys=ids.shape[1]) if work.new > 1 else dict(prefill=ids.shape[1])
        return Running(first, once, logits, result[:, ids.shape[1]], report=lambda: engine.report(texts=len(ids), **sizes))


# ---- PyTorch ----

def fp8_linear(torch):
    """The class of a linear layer in e4m3: a scale for each row of the weight, and one for each token, taken as it comes; sums in fp32."""
    def rows_in_fp8(x):
        scales = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / FP8_LARGEST
        return (x.float() / scales).clamp(-FP8_LARGEST, FP8_LARGEST).to(torch.float8_e4m3fn), scales

    class Fp8Linear(torch.nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.weight = linear.weight         # that models look at, for its format
            weight, scales = rows_in_fp8(linear.weight.detach())
            self.register_buffer("weight8", weight)
            self.register_buffer("scales", scales.t().contiguous())
            self.bias = linear.bias

        def forward(self, x):
            elements, scales = rows_in_fp8(x.reshape(-1, x.shape[-1]))
            made = torch._scaled_mm(elements, self.weight8.t(), scale_a=scales, scale_b=self.scales, bias=self.bias, out_dtype=x.dtype, use_fast_accum=True)
            return made.view(*x.shape[:-1], made.shape[-1])
    return Fp8Linear


def with_fp8_linears(torch, model):
    """A copy of the model on the same parameters, whose linear layers are in fp8 where their sizes are multiples of 16. Experts stay as they are."""
    shared = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    made, kind = copy.deepcopy(model, shared), fp8_linear(torch)
    for module in list(made.modules()):
        for name, child in list(module.named_children()):
            if type(child) is torch.nn.Linear and child.in_features % 16 == 0 and child.out_features % 16 == 0 and child.weight.dtype == torch.bfloat16:
                setattr(module, name, kind(child))
    return made


class Torch:
    """mode None: eager."""

    def __init__(self, clock, model, source, compiled=False, mode=None):
        self.clock, self.torch, self.model, self.source, self.compiled, self.mode = clock, clock.torch, model, source, compiled, mode

    def mode_of(self, work):
        return None if not self.compiled else "default" if not self.clock.cuda else self.mode or MODES[work.kind]

    def made(self, module, work, dynamic=False):
        return self.torch.compile(module, mode=self.mode_of(work), dynamic=dynamic) if self.compiled else module

    def next(self):
        """What a CUDA graph has given may be written over."""
        if self.compiled and self.clock.cuda:
            self.torch.compiler.cudagraph_mark_step_begin()

    def forward(self, work, given):
        module = self.made(part_of(self.model, work.part), work)

        def call():
            self.next()
            return module(**given)
        first, result = self.clock.spent(lambda: [t.clone() for t in picked(call(), work)])
        return Running(first, self.clock.back_to_back(call), result, mode=self.mode_of(work))

    def generate(self, work, ids):
        return self.step(work, ids) if work.new > 1 else self.prompt(work, ids)

    def prompt(self, work, ids):
        module = self.made(self.model, work)
        given = {**self.source(len(ids)), "decoder_input_ids": ids} if self.source else {"input_ids": ids, "logits_to_keep": 1}

        def call():
            self.next()
            return module(**given, use_cache=True).logits[:, -1]
        first, logits = self.clock.spent(lambda: call().clone())
        return Running(first, self.clock.back_to_back(lambda: call().argmax(-1)), [logits[:2]], logits.argmax(-1), self.mode_of(work))

    def cache(self, work, ids, more):
        """Room for the prompt and what follows: of one size where it is compiled, else one that grows."""
        import transformers as tf
        config = self.model.config.get_text_config(decoder=True)
        if not self.compiled:
            cache = tf.DynamicCache(config=config)
            return tf.EncoderDecoderCache(cache, tf.DynamicCache(config=config)) if more else cache
        cache = tf.StaticCache(config=config, max_cache_len=ids.shape[1] + work.new)
        return tf.EncoderDecoderCache(cache, tf.StaticCache(config=config, max_cache_len=more["encoder_outputs"][0].shape[1])) if more else cache

    def rewind(self, cache, length, grown):
        """To the state behind the prompt; grown: that of a cache that grows, whose tensors are not written to."""
        for layer, state in zip(getattr(cache, "self_attention_cache", cache).layers, grown):
            if not self.compiled:
                layer.__dict__.update(state)
                continue
            layer.cumulative_length.fill_(length)
            if hasattr(layer, "cumulative_length_int"):
                layer.cumulative_length_int = length

    def step(self, work, ids):
        torch, more, key = self.torch, {}, "input_ids"
        if self.source:
            more, key = {"encoder_outputs": self.model.get_encoder()(**self.source(len(ids)))}, "decoder_input_ids"
        cache = self.cache(work, ids, more)

        def start():
            logits = self.model(**{key: ids}, **more, past_key_values=cache, use_cache=True, **({} if more else {"logits_to_keep": 1})).logits[:, -1]
            token = logits.argmax(-1, keepdim=True)
            grown = [dict(layer.__dict__) for layer in getattr(cache, "self_attention_cache", cache).layers]
            module = self.made(self.model, work, dynamic=None)

            def tokens(count):
                given = token
                for _ in range(count):
                    self.next()
                    given = module(**{key: given}, **more, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
                return given
            tokens(3)       # the second call records a CUDA graph, the third runs it
            return token, tokens, grown
        first, (token, tokens, grown) = self.clock.spent(start)

        def once():
            self.rewind(cache, ids.shape[1], grown)
            return self.clock.spent(lambda: tokens(work.new - 1))[0] / (work.new - 1)
        return Running(first, once, None, token[:, 0], self.mode_of(work))


def make(name, clock, model, source):
    """The way of a name: "eager", "compile", "compile MODE", "compile fp8", "deepwell PRECISION"; "deepwell.optimize PRECISION" generates by PyTorch's loop over the optimised module."""
    kind, _, rest = name.partition(" ")
    if kind == "deepwell":
        return Deepwell(clock, model, source, rest)
    if kind == "deepwell.optimize":
        import deepwell
        return Torch(clock, deepwell.optimize(model, precision=rest, strict=True), source)
    if kind == "eager":
        return Torch(clock, model, source)
    if kind != "compile":
        raise ValueError(f"no such way: {name}; there are eager, compile, compile MODE, compile fp8, deepwell PRECISION, deepwell.optimize PRECISION")
    return Torch(clock, with_fp8_linears(clock.torch, model) if rest == "fp8" else model, source, True, rest if rest not in ("", "fp8") else None)
