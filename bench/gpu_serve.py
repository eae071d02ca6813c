"""Texts together on a GPU: what a token of all of them takes by the clock, in a service of Deepwell (deepwell.serve) and in engine.generate, on random weights, in turns.

    python bench/gpu_serve.py [--model llama-1b] [--precision bf16] [--beside 'role:cache=fp8,bf16'] [--texts 1,16,64] [--prompt 512] [--tokens 96] [--rounds 3] [--device cuda] [--small]

Milliseconds a step: of the text that begins last the time of its last token less that of its first, over the tokens between, so no prompt is read meanwhile. "waits" is the service without lookahead;
"draws" has texts at temperature 0.8 with top_p 0.95. --beside: another precision of the same weights, in turns; then of both the service alone. first: milliseconds until each text has its first token;
run: what the service says is the median of its runs. Shapes are those of bench/model_rows.py.
"""
import argparse
import asyncio
import statistics
import time


RUN_TOKENS = 2048


def stamps_of(serve, engine, prompts, tokens, run_tokens, how, options):
    """The times at which each text's tokens came, from when all were submitted; and the service's facts."""
    async def read(stream, begin):
        return [time.perf_counter() - begin async for event in stream if event.id is not None]

    async def run():
        async with serve.Service(engine, rows=len(prompts), context=len(prompts[0]) + tokens, run_tokens=run_tokens, share=False, **options) as service:
            begin = time.perf_counter()
            stamps = await asyncio.gather(*[read(service.submit(prompt, tokens, **how), begin) for prompt in prompts])
            return stamps, service.facts()
    return asyncio.run(run())


def step_and_first(stamps):
    last = max(stamps, key=lambda times: times[0])
    return 1e3 * (last[-1] - last[0]) / (len(last) - 1), 1e3 * last[0]


class Served:
    def __init__(self, name, how=None, **options):
        self.name, self.how, self.options, self.facts = name, how or {}, options, {}

    def turn(self, engine, prompts, tokens):
        import deepwell
        stamps, self.facts = stamps_of(deepwell.serve, engine, prompts, tokens, RUN_TOKENS, self.how, self.options)
        return step_and_first(stamps)


class Beside(Served):
    """The service of another engine."""
    def __init__(self, engine, name):
        super().__init__(name)
        self.engine = engine

    def turn(self, engine, prompts, tokens):
        return super().turn(self.engine, prompts, tokens)


class Generated:
    name, facts = "engine.generate", {}

    def turn(self, engine, prompts, tokens):
        import torch
        stamps, begin = [[] for _ in prompts], time.perf_counter()
        engine.generate(torch.tensor(prompts), tokens, on_token=lambda row, id: stamps[row].append(time.perf_counter() - begin))
        return step_and_first(stamps)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="llama-1b")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--beside", default=None)
    parser.add_argument("--texts", default="1,16,64")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu, to try it")
    parser.add_argument("--small", action="store_true", help="a model of the same kind that runs anywhere")
    arguments = parser.parse_args()
    import deepwell
    import deepwell.serve
    import torch
    import transformers
    from model_rows import MODELS
    model_class, config = MODELS[arguments.model].make(transformers, arguments.small)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if arguments.device == "cuda" else "cpu"):
        model = model_class(config).eval().requires_grad_(False)
    torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = None
    ids = torch.randint(0, model.config.vocab_size, (max(map(int, arguments.texts.split(","))), arguments.prompt), generator=torch.Generator().manual_seed(1))
    start = time.perf_counter()
    captured = deepwell.capture(model, {"input_ids": ids[:2, :24].to(model.device)})
    engine = deepwell.compile(captured, precision=arguments.precision, device=arguments.device)
    beside = deepwell.compile(captured, precision=arguments.beside, device=arguments.device) if arguments.beside else None
    print(f"{arguments.model} {arguments.precision} on {arguments.device}, compiled in {time.perf_counter() - start:.1f} s; prompts of {arguments.prompt} ids, {arguments.tokens} new ones, "
          f"medians of {arguments.rounds} rounds in turns", flush=True)
    print(f"{'texts':>5} {'way':20} {'ms a step':>10} {'first ms':>9} {'tokens/s':>9} {'run ms':>8}")
    for count in map(int, arguments.texts.split(",")):
        ways = [Served("service"), Served("service waits", lookahead=False), Served("service draws", {"temperature": 0.8, "top_p": 0.95}), Generated()]
        if beside is not None:
            ways = [Served(arguments.precision[:16]), Beside(beside, arguments.beside)]
        prompts, times = ids[:count].tolist(), {way.name: [] for way in ways}
        for way in ways:
            way.turn(engine, prompts, 4)
        for _ in range(arguments.rounds):
            for way in ways:
                times[way.name].append(way.turn(engine, prompts, arguments.tokens))
        for way in ways:
            step, first = (statistics.median(column) for column in zip(*times[way.name]))
            print(f"{count:5} {way.name:20} {step:10.3f} {first:9.1f} {1e3 * count / step:9.0f} {1e3 * way.facts.get("run_s_median", 0):8.3f}", flush=True)


if __name__ == "__main__":
    main()
