/* take-gpu-memory BYTES: takes all memory of the first GPU but BYTES, says so, and keeps it until
 * standard input ends. */
#include <cuda_runtime.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define SMALLEST ((size_t)1 << 20)

int
main(int argc, char **argv)
{
    const size_t leave = argc > 1 ? (size_t)strtoull(argv[1], NULL, 10) : 0;
    size_t free_bytes, total_bytes, most = SIZE_MAX;

    while (most >= SMALLEST) {
        void *memory;

        if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess)
            return 1;
        if (free_bytes < leave + SMALLEST)
            break;

        size_t bytes = free_bytes - leave < most ? free_bytes - leave : most;

        if (cudaMalloc(&memory, bytes) == cudaSuccess)
            continue;
        (void)cudaGetLastError();
        most = bytes / 2;
    }
    puts("taken");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
