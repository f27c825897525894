"""Reads a Prometheus text with prometheus_client's own parser and checks what the format demands.

    parse_metrics.py FILE     exit status 0 = well, 1 = a fault (on standard error), 77 = no parser

Run by tests/server/test_metrics.c, and by tests of the running server through check().
"""
import math
import sys


def samples_of(text):
    """{(name, sorted labels): value}, every family by its parser."""
    from prometheus_client.parser import text_string_to_metric_families

    families = list(text_string_to_metric_families(text))
    names = [f.name for f in families]
    assert len(names) == len(set(names)), f"families named twice: {names}"
    found = {}
    for family in families:
        assert family.documentation, f"{family.name} has no help"
        assert family.type in ("counter", "gauge", "histogram"), (family.name, family.type)
        for s in family.samples:
            key = (s.name, tuple(sorted(s.labels.items())))
            assert key not in found, f"sample twice: {key}"
            assert "model_name" in s.labels, key
            assert s.name.startswith("vllm:") == ("engine" in s.labels), key
            assert not math.isnan(s.value), key
            if family.type != "gauge":
                assert s.value >= 0, key
            if family.type == "counter":
                assert s.name.endswith("_total"), key
            found[key] = s.value
        if family.type == "histogram":
            check_histogram(family)
    return found


def check_histogram(family):
    series = {}
    for s in family.samples:
        labels = tuple(sorted((k, v) for k, v in s.labels.items() if k != "le"))
        series.setdefault(labels, {"buckets": []})
        if s.name == family.name + "_bucket":
            series[labels]["buckets"].append((float(s.labels["le"]), s.value))
        else:
            series[labels][s.name[len(family.name):]] = s.value
    for labels, h in series.items():
        where = f"{family.name}{labels}"
        bounds = [b for b, _ in h["buckets"]]
        counts = [c for _, c in h["buckets"]]
        assert bounds == sorted(set(bounds)) and bounds[-1] == math.inf, where
        assert counts == sorted(counts), f"{where}: {counts}"
        assert counts[-1] == h["_count"], where
        assert "_sum" in h, where


def check(text):
    assert text.endswith("\n"), "the text does not end with a newline"
    found = samples_of(text)
    assert found, "no samples"
    return found


if __name__ == "__main__":
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        sys.exit(77)
    for name, value in check(open(sys.argv[1], encoding="utf-8").read()).items():
        print(name[0], dict(name[1]), value)
