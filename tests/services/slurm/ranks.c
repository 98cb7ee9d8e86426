/* ranks SECONDS MIB: each rank uses so much CPU time and memory, and all of them add up what they have.

   It tells the agent of its node when it works and how much it did, as an application would, if there is one:
   what it prints is the same without. */

#include <mpi.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static double used(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* HTTP on a socket of Unix without a file: docs/marks.md. */
static void tell(const char *path, const char *body) {
    struct sockaddr_un door = {.sun_family = AF_UNIX};
    const char *job = getenv("SLURM_JOB_ID");
    char *name = door.sun_path + 1; /* after a NUL */
    size_t most = sizeof door.sun_path - 1;
    int length = snprintf(name, most, "joblens-agent-%u-%s", (unsigned)getuid(), job ? job : "");
    size_t long_as = offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length;
    char text[1024];
    int channel = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(channel, (void *)&door, (socklen_t)long_as) == 0) {
        int size = snprintf(text, sizeof text, "POST %s HTTP/1.0\r\nContent-Length: %zu\r\n\r\n%s", path,
                            strlen(body), body);
        if (write(channel, text, (size_t)size) == size)
            while (read(channel, text, sizeof text) > 0) continue;
    }
    close(channel);
}

int main(int argc, char **argv) {
    int rank, size, done = 0;
    long mine = 0, sum = 0;
    char body[200];
    MPI_Request request;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    double seconds = argc > 1 ? atof(argv[1]) : 1.0;
    size_t bytes = (size_t)(argc > 2 ? atol(argv[2]) : 1) << 20;

    tell("/mark", "{\"text\": \"solve\", \"kind\": \"start\"}");
    char *held = malloc(bytes);
    memset(held, rank + 1, bytes);
    volatile unsigned long steps = 0;
    while (used() < seconds)
        for (int i = 0; i < 100000; i++) steps += 1;
    for (size_t at = 0; at < bytes; at += 1 << 20) mine += held[at];
    snprintf(body, sizeof body, "{\"name\": \"rank\", \"value\": %d, \"unit\": \"\"}", rank);
    tell("/fom", body);
    tell("/mark", "{\"text\": \"solve\", \"kind\": \"stop\"}");

    /* Who is first waits without using the CPU, which MPI_Allreduce would. */
    MPI_Iallreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD, &request);
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) usleep(10000);
    if (rank == 0) printf("%d ranks have %ld together\n", size, sum);
    MPI_Finalize();
    return 0;
}
