"""Every shipped variant of every kernel, compiled ahead of time for sm_90; spilled registers are counted. No GPU is needed.

    python -m decoder.gpu.compile              all variants, as a table; exit code 1 where one spills
    python -m decoder.gpu.compile --widest     the variants with the most live values only, one of each kernel at least

variants        what GpuHead launches for SHAPES, buckets of 1 to 64 states, 4 and 8 bits, weights of 16 and 32 bits
compiled        one variant through the whole compiler, with what ptxas says of it

The signatures are those that a launch makes: pointers are divisible by 16, integers are not specialised (do_not_specialize in
the kernels). Not here: launching (the kernels' own modules).
"""

# mypy: disable-error-code="import-not-found,import-untyped,no-any-unimported,attr-defined"

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from decoder.gpu import queries, rerank, scan, select, walk
from decoder.gpu.head import BEAM, LARGEST, PLACES, RERANK, SAMPLES
from decoder.gpu.launch import Launch
from decoder.gpu.layout import blocks_of
from decoder.gpu.results import kept_of

SHAPES = ((49_152, 576), (128_256, 2_048), (128_256, 4_096), (256_000, 4_096))
"""(V, d) of the benchmark."""
BUCKETS = (1, 32, 64)
"""Of each number of padded columns, the smallest bucket: 1 to 16 share one."""
WEIGHTS = ("bf16", "fp16", "fp32")
TARGET = GPUTarget("cuda", 90, 32)


class Variant(NamedTuple):
    """One compiled form of a kernel. types: of the arguments that are no constants, in order."""

    kernel: Any
    types: tuple[str, ...]
    launch: Launch

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.kernel.__name__).strip("_")

    @property
    def key(self) -> tuple[object, ...]:
        """What tells two variants apart."""
        return (self.name, self.types, *self.launch.constants.items(), self.launch.warps, self.launch.stages)


class Usage(NamedTuple):
    """What ptxas says of a variant, bytes but for registers."""

    registers: int
    spilled: int
    stack: int
    shared: int


def variants(*, widest: bool = False) -> list[Variant]:
    """Every variant once. widest: only those of the widest layer, the largest bucket, 4 bits, soft-capped, bfloat16."""
    shapes = SHAPES[-1:] if widest else SHAPES
    found: dict[tuple[object, ...], Variant] = {}
    for vocab, dim in shapes:
        for bits in (4,) if widest else (4, 8):
            for variant in _of_layer(vocab, dim, bits, widest=widest):
                found.setdefault(variant.key, variant)
    return list(found.values())


def _of_layer(vocab: int, dim: int, bits: int, *, widest: bool) -> Iterator[Variant]:
    types: tuple[str, ...]
    unit = 128 if bits == 4 else 64
    width, kept, blocks = -(-dim // unit) * unit, kept_of(vocab, RERANK), blocks_of(vocab)
    coded = ("*i8", "*fp32", "*fp32", "*i8", "*fp32", "*fp32", "*fp32")
    yield Variant(
        queries._quantise,
        (*["*fp32"] * 5, "*i8", "*fp32", "*fp32", "*fp32", "*i32", "*u8", "i32"),
        queries.quantise_launch(dim=dim, width=width, bits=bits),
    )
    for n in BUCKETS[-1:] if widest else BUCKETS:
        for matrix in ("bf16", "fp32"):
            types = ("*fp32", "*fp32", f"*{matrix}", "*fp32", "i32", "i32")
            yield Variant(queries._project, types, queries.project_launch(dim=dim, queries=n))
        for capped in (True,) if widest else (False, True):
            types = (*coded, "*fp32", "*i32", "*fp32", "i32", "i32", "i32", "fp32", "fp32")
            launch = scan.scan_launch(width=width, bits=bits, kept=kept, queries=n, capped=capped)
            yield Variant(scan._scan, types, launch)
    select_types = ("*fp32", "*i32", "*fp32", "*i32", "*fp32", "i32", "i32")
    groups = -(-blocks * kept // select.TILE)
    for size, keep in ((blocks * kept, RERANK), (groups * RERANK, RERANK), (PLACES, RERANK), (PLACES, LARGEST)):
        yield Variant(select._select, select_types, select.select_launch(size=size, keep=keep))
    for capped in (True,) if widest else (False, True):
        for weight in WEIGHTS[:1] if widest else WEIGHTS:
            types = (f"*{weight}", "*fp32", "*fp32", "*i32", "*fp32", "i32", "fp32", "fp32")
            yield Variant(rerank._score, types, rerank.score_launch(dim=dim, capped=capped))
        types = (*coded, "*i32", "*i32", "*fp32", "*i32", "*fp32", "*i32", "*i32", *["i32"] * 6, "fp32", "fp32")
        yield Variant(walk._expand, types, walk.expand_launch(width=width, bits=bits, capped=capped))
        types = (*coded, "*i32", "*i32", "*i32", "*fp32", *["i32"] * 4, "fp32", "fp32")
        yield Variant(walk._sample, types, walk.expand_launch(width=width, bits=bits, capped=capped))
    floats, whole = ["*fp32"] * 3, ["i32"] * 3
    order_types = ("*fp32", "*fp32", "*i32", *floats, "*u8", "*i32", "*i32", *whole, "fp32", "fp32")
    for keep, parts, samples in (
        (RERANK, blocks, 0),
        (RERANK, 1, SAMPLES),
        (LARGEST, blocks, 0),
        (LARGEST, 1, SAMPLES),
    ):
        launch = rerank.order_launch(keep=keep, parts=parts, samples=samples)
        yield Variant(rerank._order, order_types, launch)
    yield Variant(
        walk._frontier, ("*fp32", "*i32", "*i32", "*i32", "i32"), walk.frontier_launch(places=PLACES, beam=BEAM)
    )


def compiled(variant: Variant) -> Usage:
    """Compile one variant for TARGET and read what ptxas reports."""
    kernel, constants = variant.kernel, variant.launch.constants
    if not isinstance(kernel, triton.runtime.jit.JITFunction):
        raise RuntimeError(
            f"{variant.name} is interpreted (TRITON_INTERPRET was set when triton was imported), needed a compiled kernel. "
            "Run python -m decoder.gpu.compile in a process without TRITON_INTERPRET."
        )
    names = [name for name in kernel.arg_names if name not in constants]
    assert len(names) == len(variant.types), f"{variant.name}: {names} against {variant.types}"
    types = dict(zip(names, variant.types))
    places = {name: (kernel.arg_names.index(name),) for name in kernel.arg_names}
    source = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "constexpr") for name in kernel.arg_names},
        constexprs={places[name]: value for name, value in constants.items()},
        attrs={places[name]: [["tt.divisibility", 16]] for name in names if types[name].startswith("*")},
    )
    log = io.StringIO()
    knobs = triton.knobs
    with knobs.compilation.scope(), knobs.nvidia.scope(), contextlib.redirect_stdout(log):
        # A kernel from the cache would not pass through ptxas, whose log is wanted.
        knobs.compilation.always_compile = True
        knobs.nvidia.dump_ptxas_log = True
        binary = triton.compile(source, target=TARGET, options=variant.launch.options())
    return _usage(log.getvalue(), shared=binary.metadata.shared)


def _usage(log: str, *, shared: int) -> Usage:
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if registers is None or spills is None:
        raise RuntimeError(
            f"ptxas reported {log!r}, needed registers and spills. Its log has another form in this version."
        )
    stack, stores, loads = (int(number) for number in spills.groups())
    return Usage(int(registers[1]), stores + loads, stack, shared)


def line_of(variant: Variant, usage: Usage) -> str:
    """A row of the table."""
    constants = " ".join(f"{name}={value}" for name, value in variant.launch.constants.items())
    weight = next((kind[1:] for kind in variant.types if kind in ("*bf16", "*fp16")), "fp32")
    return (
        f"| {variant.name} | {weight} | {constants} | {variant.launch.warps} | {variant.launch.stages} "
        f"| {usage.registers} | {usage.spilled} | {usage.stack} | {usage.shared} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print the table; the exit code says whether anything spilled."""
    parser = argparse.ArgumentParser(prog="python -m decoder.gpu.compile", description=__doc__.splitlines()[0])
    parser.add_argument("--widest", action="store_true", help="only the variants with the most live values")
    wanted = variants(widest=parser.parse_args(arguments).widest)
    print(f"{len(wanted)} variants for sm_{TARGET.arch}, triton {triton.__version__}\n")
    print("| kernel | weights | constants | warps | stages | registers | spilled bytes | stack bytes | shared bytes |")
    print("|---|---|---|---|---|---|---|---|---|")
    spilled = 0
    for variant in wanted:
        usage = compiled(variant)
        spilled += usage.spilled > 0
        print(line_of(variant, usage), flush=True)
    print(f"\n{spilled} of {len(wanted)} variants spill registers")
    return 1 if spilled else 0


if __name__ == "__main__":
    sys.exit(main())
