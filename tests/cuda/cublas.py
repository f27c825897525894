#!/usr/bin/env python3
"""What cuBLAS does with FP8 at the shapes of bench/cuda's 8192 rows: a yardstick, run beside it.

Needs PyTorch, whose scaled product of E4M3 matrices (one scale a matrix, BF16 results) is
cuBLASLt's. Prints nothing but a note where there is none.
"""
import sys

SHAPES = [  # name, rows, m, k, products in a row
    ("wq_b", 8192, 32768, 1280, 1),
    ("wo_a, a group of 8", 8192, 1024, 4096, 8),
    ("wo_b", 8192, 5120, 8192, 1),
    ("experts' up, all uses as one matrix", 7 * 8192, 2304, 5120, 2),
    ("experts' down, all uses as one matrix", 7 * 8192, 5120, 2304, 1),
    ("experts' up, 128 uses each", 128, 2304, 5120, 2 * 384),
    ("experts' down, 128 uses each", 128, 5120, 2304, 384),
]


def seconds(torch, run, calls):
    times = []
    run()
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / calls)
    return sorted(times)[2]


def main():
    try:
        import torch
    except ImportError:
        print("cuBLAS: no PyTorch here")
        return 0
    one = torch.ones((), device="cuda")

    def codes(rows, k):
        return torch.randn(rows, k, device="cuda", dtype=torch.bfloat16).to(torch.float8_e4m3fn)

    for name, rows, m, k, count in SHAPES:
        some = min(count, 32)  # matrices, visited in turn
        x, w = codes(rows, k), [codes(m, k).t() for _ in range(some)]

        def run():
            for i in range(some):
                torch._scaled_mm(x, w[i], scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

        graph = torch.cuda.CUDAGraph()
        run()
        with torch.cuda.graph(graph):
            run()
        took = seconds(torch, graph.replay, max(1, int(2e13 / (2 * rows * m * k * some))))
        rate = 2 * rows * m * k * some / took * 1e-12
        print(f"cuBLAS FP8 {name}: {m}x{k}, {rows} rows {1e6 * took / some:10.1f} us {rate:8.1f} TFLOP/s")
    return 0


sys.exit(main())
