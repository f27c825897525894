"""llguidance and XGrammar behind one interface, for bench/grammar_peer.py and
tools/grammar-verdicts.py. Each schema runs in a process of its own with a bound on its processor
time, because a compile cannot be stopped from Python and some take minutes."""
import json
import os
import resource
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import llguidance
import llguidance.numpy
import numpy as np
import xgrammar as xgr
from tokenizers import Tokenizer

STOP = "<｜end▁of▁sentence｜>"
SLOW = 0.5  # seconds: what took longer to compile is not compiled again
now = time.thread_time  # what others do on a busy machine is left out, as in bench/grammar.c


def text_of(data):
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


class LLGuidance:
    name = "llguidance"
    bounded = True  # its compiles are short: it needs no process of its own where times do not count

    def __init__(self, tokenizer):
        self.tok = llguidance.LLTokenizer(tokenizer.to_str(), eos_token=tokenizer.token_to_id(STOP))
        size = tokenizer.get_vocab_size()
        self.bits = np.zeros((1, (size + 31) // 32), dtype=np.int32)

    def compile(self, schema):
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
        if self.start(grammar).is_error():
            raise ValueError(self.start(grammar).get_error())
        return grammar

    def start(self, grammar):
        return llguidance.LLMatcher(self.tok, grammar)

    def mask(self, matcher):
        llguidance.numpy.fill_next_token_bitmask(matcher, self.bits)

    def push(self, matcher, token):
        return matcher.consume_token(token)

    def ended(self, matcher):
        return matcher.is_accepting()


class XGrammar:
    name = "xgrammar"
    bounded = False

    def __init__(self, tokenizer):
        size, self.stop = tokenizer.get_vocab_size(), tokenizer.token_to_id(STOP)
        vocab = [tokenizer.id_to_token(i) or "" for i in range(size)]
        info = xgr.TokenizerInfo(vocab, xgr.VocabType.BYTE_LEVEL, vocab_size=size,
                                 stop_token_ids=[self.stop])
        self.compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.bits = xgr.allocate_token_bitmask(1, size)

    def compile(self, schema):
        return self.compiler.compile_json_schema(schema, strict_mode=False)

    def start(self, grammar):
        return xgr.GrammarMatcher(grammar)

    def mask(self, matcher):
        matcher.fill_next_token_bitmask(self.bits)

    def push(self, matcher, token):
        return matcher.accept_token(token)

    def ended(self, matcher):
        return matcher.accept_token(self.stop)


PEERS = (LLGuidance, XGrammar)


def open_tokenizer(path):
    return Tokenizer.from_file(os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path)


def read_items(path, tokenizer, keep=lambda number: True):
    """The lines of a file of schemas, each with the ids of its instances."""
    items = []
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f):
            if keep(number):
                item = json.loads(line)
                for test in item["tests"]:
                    test["ids"] = tokenizer.encode(text_of(test["data"]),
                                                   add_special_tokens=False).ids
                items.append(item)
    return items


def follow(peer, grammar, ids, masks):
    """Whether it takes the ids as a whole; the seconds of each mask go to `masks` unless None."""
    matcher = peer.start(grammar)
    for token in ids:
        if masks is not None:
            begin = now()
            peer.mask(matcher)
            masks.append(now() - begin)
        if not peer.push(matcher, token):
            return False
    return bool(peer.ended(matcher))


def try_item(peer, item, passes, timed):
    """{"refused": why} or {"compile": seconds, "masks": [seconds], "results": [bool, ...]}: masks of
    valid instances, best of some passes."""
    text, best, times, results = json.dumps(item["schema"]), float("inf"), None, []
    for _ in range(passes):
        begin = now()
        try:
            grammar = peer.compile(text)
        except Exception as e:  # each has exceptions of its own
            return {"refused": str(e)[:200]}
        best = min(best, now() - begin)
        masks, results = [], []
        for test in item["tests"]:
            results.append(follow(peer, grammar, test["ids"],
                                  masks if timed and test["valid"] else None))
        times = masks if times is None else list(map(min, times, masks))
        if best > SLOW:
            break
    return {"compile": best, "masks": times, "results": results}


def run_apart(peer, item, passes, timed, limit):
    """try_item in a process of its own; {"stopped": why} if it used more than `limit` seconds of
    processor time or died of itself."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # their warnings
            used = time.process_time()
            resource.setrlimit(resource.RLIMIT_CPU, (int(used + limit) + 1, int(used + limit) + 2))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with os.fdopen(writer, "w") as out:
                json.dump(try_item(peer, item, passes, timed), out)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as f:
        text = f.read()
    _, status = os.waitpid(child, 0)
    if status == 0 and text:
        return json.loads(text)
    if os.WIFSIGNALED(status):
        signal = os.WTERMSIG(status)
        return {"stopped": "time" if signal in (9, 24) else f"signal {signal}"}
    return {"stopped": "died"}


def keep(file, peer, item, found):
    """A line of verdicts, as tools/grammar-verdicts.py reads them again."""
    kept = {k: v for k, v in found.items() if k in ("refused", "stopped", "results")}
    print(json.dumps({"peer": peer.name, "name": item["name"], **kept}), file=file, flush=True)


def versions():
    from importlib.metadata import version
    return [(name, version(name)) for name in ("llguidance", "xgrammar")]
