/* BT_CLONES compiles a hot loop for several instruction sets and picks one when the program starts.
 * Results are the same bits whichever runs: contraction is off, and sums have a fixed order. */
#ifndef BT_ENGINE_MODEL_CLONES_H
#define BT_ENGINE_MODEL_CLONES_H

/* AddressSanitizer starts too late for the resolvers that this needs. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
#define BT_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define BT_CLONES
#endif

#endif
