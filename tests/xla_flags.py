"""How the suite's programs are compiled: cheaply, since nearly all of a cold run is compiling.

A release of XLA dies of a flag that it does not know: jaxlib 0.11 has fused kernels of one kind
alone, and no flag that chooses.
"""

from importlib.metadata import version

HAS_EMITTERS = tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)

# Without LLVM's optimizer a cold run takes a third less (CPU seconds of tests/relations/test_dtype,
# jaxkv's six: 68, then 47), and without fused kernels, in one part, 30 % less again (40, then
# 28.5); with loops as they were written, whose simplifying is a fifth of what then is left, up to
# 13 % less (tests/prefix/test_store: 30, then 26).
CHEAP = (
    "--xla_backend_optimization_level=0",
    *(["--xla_cpu_use_fusion_emitters=false"] if HAS_EMITTERS else []),
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_disable_hlo_passes=while-loop-invariant-code-motion,simplify-while-loops",
)
# Compiler options of a test that looks at fused kernels, as users' programs have them.
FUSED = {"xla_cpu_use_fusion_emitters": True} if HAS_EMITTERS else {}
