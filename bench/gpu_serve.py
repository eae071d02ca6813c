"""Many texts on a GPU: a service of Deepwell (deepwell.serve) beside transformers' continuous batching (generate_batch), and engine.generate, in turns on the same random weights.

    python bench/gpu_serve.py [--model llama-1b,gpt2] [--precision bf16] [--beside 'role:cache=fp8,bf16'] [--texts 1,16,64] [--prompt 512] [--tokens 96] [--rate 0] [--rounds 3] [--ways service,peer] [--long 0] [--for 0] [--device cuda] [--small]

All requests come at once, or with --rate N by a Poisson clock, N a second on average. A line for each way, medians of the rounds:

    step      milliseconds a token, of the text that begins last, from its first token to its last, so where all come at once no prompt is read meanwhile
    tokens/s  all tokens over the time from the first request to the last token
    first     milliseconds from a request to its first token: median, 99th percentile
    between   milliseconds between tokens of a text: median, 99th percentile
    host us   what the loop of the service works for a run, without what it waits
    waited    the share of runs that the host waited for: the next one was with the GPU before they ended, so it did not stand still between them
    busy      the share of the time between the first token of all and the last in which the GPU works, by events in front of each run and behind it (`device_s` of the facts)

The ways: "service"; "untimed", without those events; "waits", without lookahead; "draws", at temperature 0.8 with top_p 0.95; "penalties", the same with repetition 1.1, frequency 0.2 and five likeliest ids told; "invariant", of an engine compiled so; "beside", of one in the precision --beside, which is then measured with the service alone unless --ways says more; "generate", engine.generate; "peer". Shapes are those of bench/model_rows.py and Qwen3-0.6B's.
--long N, a multiple of 2048, the most tokens of a run: behind the other ways, what texts of the service notice while four prompts of N ids arrive, each when the one before has its first token: a line with the time between tokens meanwhile, and with
that of a run full of prompt: a prompt of N ids by itself over its runs, and its last run, which sees the most keys: what it takes longer than one of 2048 ids less.
--for N: no way begins after so many seconds, nor does --long. Ids are random, so no text shares a beginning.
"""
import argparse
import asyncio
import os
import random
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))     # also where PYTHONSAFEPATH is set

RUN_TOKENS = 2048
BEGIN = time.perf_counter()


def qwen3_small(transformers, small):
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=512) if small else dict(
        hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128, vocab_size=151936, tie_word_embeddings=True)
    return transformers.Qwen3ForCausalLM, transformers.Qwen3Config(max_position_embeddings=8192, **sizes)


def arrivals_of(count, rate):
    clock, at, times = random.Random(5), 0.0, []
    for _ in range(count):
        times.append(at)
        at += clock.expovariate(rate) if rate > 0 else 0.0
    return times


def served(engine, prompts, tokens, arrivals, how, options):
    """The times at which each text's tokens came, from the first request on; and the service's facts."""
    import deepwell.serve

    worked = []         # (when, device_s) at the first and the last token of each text

    async def read(service, prompt, begin, at):
        await asyncio.sleep(max(0.0, begin + at - time.perf_counter()))
        stamps = []
        async for event in service.submit(prompt, tokens, **how):
            if event.id is not None:
                stamps.append(time.perf_counter() - begin)
                if len(stamps) in (1, tokens):
                    worked.append((stamps[-1], service.facts()["device_s"]))
        return stamps

    async def run():
        async with deepwell.serve.Service(engine, rows=len(prompts), context=len(prompts[0]) + tokens, run_tokens=RUN_TOKENS, share=False, **{"times_device": True, **options}) as service:
            before, begin = service.facts(), time.perf_counter()
            stamps = await asyncio.gather(*[read(service, prompt, begin, at) for prompt, at in zip(prompts, arrivals)])
            after = service.facts()
            first, last = min(worked), max(worked)
            facts = {name: after[name] - before[name] for name in ("host_s", "wait_s", "waited_runs", "runs", "device_s")}
            return stamps, {**facts, "busy": (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else 0.0}
    return asyncio.run(run())


async def begun(texts, stamps):
    """Returns when each of these tasks has stamped a token; what one of them raises ends the others."""
    while not all(stamps):
        done, _ = await asyncio.wait(texts, timeout=1e-3, return_when=asyncio.FIRST_EXCEPTION)
        failed = [text for text in done if text.exception() is not None]
        if failed or (len(done) == len(texts) and not all(stamps)):
            for text in texts:
                text.cancel()
            raise failed[0].exception() if failed else RuntimeError("a text of the service ended without a token")


def crowded(engine, prompts, tokens, length):
    """Milliseconds between tokens of the prompts' texts while long prompts arrive; and of a run that is full of one: the mean of all of them, and the last, which sees the most keys."""
    import deepwell.serve
    long, stamps = (prompts[0] * (length // len(prompts[0]) + 1))[:length], [[] for _ in prompts]

    async def read(service, prompt, times):
        async for event in service.submit(prompt, tokens):
            times.append(time.perf_counter())

    async def first(service, begin, count=length):
        start = time.perf_counter()
        async for event in service.submit((long[begin:] + long[:begin])[:count], 1):
            return time.perf_counter() - start

    async def run():
        async with deepwell.serve.Service(engine, rows=len(prompts) + 1, context=max(len(prompts[0]) + tokens, length + 1), run_tokens=RUN_TOKENS, share=False) as service:
            texts = [asyncio.ensure_future(read(service, prompt, times)) for prompt, times in zip(prompts, stamps)]
            await begun(texts, stamps)
            begin = time.perf_counter()
            for turn in range(4):
                await first(service, turn)
            end, lasted = time.perf_counter(), not any(text.done() for text in texts)
            await asyncio.gather(*texts)
            shorter = length - RUN_TOKENS
            return begin, end, lasted, [await first(service, turn) for turn in range(3)], [await first(service, turn, shorter) if shorter else 0.0 for turn in range(3)]
    begin, end, lasted, alone, shorter = asyncio.run(run())
    between = [1e3 * (b - a) for times in stamps for a, b in zip(times, times[1:]) if begin <= a and b <= end]
    whole = 1e3 * statistics.median(alone)
    return between, whole / (length // RUN_TOKENS), whole - 1e3 * statistics.median(shorter), lasted


def print_crowded(count, length, between, run, last, lasted):
    if not between:
        print(f"{count:5} while 4 prompts of {length} ids arrive: all texts had ended before; more --tokens", flush=True)
        return
    print(f"{count:5} while 4 prompts of {length} ids arrive: between {percentile(between, 0.5):.3f} ms, p99 {percentile(between, 0.99):.3f}; a run of {RUN_TOKENS} ids of one {run:.3f}, its last one {last:.3f}, so p99 is "
          f"{percentile(between, 0.99) / run:.2f} and {percentile(between, 0.99) / last:.2f} of them" + ("" if lasted else "; some texts ended before: more --tokens"), flush=True)


def generated(engine, prompts, tokens):
    import torch
    stamps, begin = [[] for _ in prompts], time.perf_counter()
    engine.generate(torch.tensor(prompts), tokens, on_token=lambda row, id: stamps[row].append(time.perf_counter() - begin))
    return stamps, {}


def batched(model, prompts, tokens, arrivals):
    """By transformers' manager of continuous batching, which generate_batch uses; its graphs are captured before the clock runs. What it took of the device goes back, as services take their own."""
    import gc

    import torch
    import transformers
    config = transformers.GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    size = transformers.generation.ContinuousBatchingConfig(max_memory_percent=0.4)
    with model.continuous_batching_context_manager(generation_config=config, continuous_batching_config=size, block=True, timeout=5, warmup=True) as manager:
        begin, asked = time.perf_counter(), []
        for prompt, at in zip(prompts, arrivals):
            time.sleep(max(0.0, begin + at - time.perf_counter()))
            asked.append(manager.add_request(prompt, max_new_tokens=tokens, record_timestamps=True, eos_token_id=-1))
        done = {}
        while len(done) < len(asked):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                done[result.request_id] = result
            elif result is None and not manager.is_running():
                raise RuntimeError("transformers' loop ended")
    del manager
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    for result in done.values():
        if result.error is not None:
            raise RuntimeError(result.error)
    return [[stamp - begin for stamp in done[name].timestamps] for name in asked], {}


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def line_of(stamps, arrivals, facts):
    last = max(stamps, key=lambda times: times[0])
    first = [1e3 * (times[0] - at) for times, at in zip(stamps, arrivals)]
    between = [1e3 * (b - a) for times in stamps for a, b in zip(times, times[1:])]
    runs = facts.get("runs", 0)
    return {"step": 1e3 * (last[-1] - last[0]) / (len(last) - 1), "tokens/s": sum(map(len, stamps)) / max(times[-1] for times in stamps), "first": percentile(first, 0.5), "first99": percentile(first, 0.99),
            "between": percentile(between, 0.5), "between99": percentile(between, 0.99), "host us": 1e6 * facts["host_s"] / runs if runs else 0.0,
            "waited": facts["waited_runs"] / runs if runs else 0.0, "busy": facts["busy"] if facts.get("device_s") else None}


def print_lines(name, count, lines):
    mid = {key: statistics.median(line[key] for line in lines) if lines[0][key] is not None else None for key in lines[0]}
    busy = f"{mid['busy']:6.3f}" if mid["busy"] is not None else f"{'':6}"
    print(f"{count:5} {name:10} {mid['step']:8.3f} {mid['tokens/s']:9.0f} {mid['first']:9.1f} {mid['first99']:9.1f} {mid['between']:8.3f} {mid['between99']:9.3f} "
          + (f"{mid['host us']:8.1f} {mid['waited']:6.3f} {busy}" if mid["host us"] else f"{'':8} {'':6} {'':6}") + f" {len(lines):3}", flush=True)


def is_late(arguments):
    return arguments.until > 0 and time.perf_counter() - BEGIN > arguments.until


def measure(name, arguments, transformers, torch, deepwell):
    from model_rows import MODELS
    model_class, config = (qwen3_small if name == "qwen3-0.6b" else MODELS[name].make)(transformers, arguments.small)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if arguments.device == "cuda" else "cpu"):
        model = model_class(config).eval().requires_grad_(False)
    torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = None
    counts, chosen = list(map(int, arguments.texts.split(","))), arguments.ways.split(",")
    ids = torch.randint(0, model.config.vocab_size, (max(counts), arguments.prompt), generator=torch.Generator().manual_seed(1))
    start, engines = time.perf_counter(), {}
    graph = deepwell.capture(model, {"input_ids": ids[:2, :24].to(model.device)})
    for way in chosen + (["service"] if arguments.long else []):
        kind = way if way in ("invariant", "beside") else "plain"
        if way != "peer" and kind not in engines:
            engines[kind] = deepwell.compile(graph, precision=arguments.beside if kind == "beside" else arguments.precision, device=arguments.device, invariant=kind == "invariant")
    print(f"{name} {arguments.precision} on {torch.cuda.get_device_name() if arguments.device == 'cuda' else 'the CPU'}, compiled in {time.perf_counter() - start:.1f} s; prompts of {arguments.prompt} ids, "
          f"{arguments.tokens} new ones, " + (f"{arguments.rate:g} requests a second" if arguments.rate else "requests at once"))
    print(f"{'texts':>5} {'way':10} {'step':>8} {'tokens/s':>9} {'first':>9} {'.. p99':>9} {'between':>8} {'.. p99':>9} {'host us':>8} {'waited':>6} {'busy':>6} {'n':>3}", flush=True)
    for count in counts:
        prompts, arrivals = ids[:count].tolist(), arrivals_of(count, arguments.rate)
        turns = {"service": lambda n: served(engines["plain"], prompts, n, arrivals, {}, {}), "waits": lambda n: served(engines["plain"], prompts, n, arrivals, {}, {"lookahead": False}),
                 "untimed": lambda n: served(engines["plain"], prompts, n, arrivals, {}, {"times_device": False}),
                 "draws": lambda n: served(engines["plain"], prompts, n, arrivals, {"temperature": 0.8, "top_p": 0.95}, {}),
                 "penalties": lambda n: served(engines["plain"], prompts, n, arrivals, {"temperature": 0.8, "top_p": 0.95, "repetition": 1.1, "frequency": 0.2, "top_logprobs": 5}, {}), "invariant": lambda n: served(engines["invariant"], prompts, n, arrivals, {}, {}),
                 "beside": lambda n: served(engines["beside"], prompts, n, arrivals, {}, {}), "generate": lambda n: generated(engines["plain"], prompts, n), "peer": lambda n: batched(model, prompts, n, arrivals)}
        lines = {way: [] for way in chosen}
        try:
            for turn in range(1 + arguments.rounds):
                for way in chosen:
                    if way not in lines or is_late(arguments):
                        continue
                    try:
                        stamps, facts = turns[way](arguments.tokens if turn else 4)
                    except Exception as error:      # of the peer, or memory: the other ways go on
                        print(f"{count:5} {way:10} {type(error).__name__}: {str(error)[:200]}", flush=True)
                        del lines[way]
                        continue
                    if turn:
                        lines[way].append(line_of(stamps, [0.0] * count if way == "generate" else arrivals, facts))
            if arguments.long and not is_late(arguments):
                print_crowded(count, arguments.long, *crowded(engines["plain"], prompts, arguments.tokens, arguments.long))
        finally:                                    # an interrupt loses nothing that was measured
            for way, made in lines.items():
                if made:
                    print_lines(way, count, made)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="llama-1b")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--texts", default="1,16,64")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rate", type=float, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", help="another precision of the same weights")
    parser.add_argument("--ways", help="default: service,waits,draws,generate,peer; with --beside service,beside")
    parser.add_argument("--long", type=int, default=0)
    parser.add_argument("--for", dest="until", type=float, default=0)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu, to try it")
    parser.add_argument("--small", action="store_true", help="models of the same kind that run anywhere")
    arguments = parser.parse_args()
    if arguments.long < 0 or arguments.long % RUN_TOKENS:
        parser.error(f"--long {arguments.long}: take a multiple of {RUN_TOKENS}, so that each run of a prompt is a full one")
    arguments.ways = arguments.ways or ("service,beside" if arguments.beside else "service,waits,draws,generate,peer")
    import deepwell
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    for name in arguments.model.split(","):
        measure(name, arguments, transformers, torch, deepwell)
        if arguments.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
