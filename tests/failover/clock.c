/* A wall clock that is wrong by what a file says, for one host of a campaign: preloaded by its processes.
 *
 * ANGARIUM_FAILOVER_CLOCK names the file; it holds seconds as text, and is looked at ten times a second. Clocks that
 * count from the start of the machine stay what they are.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static _Atomic long looked_at, offset;

static long wrong_by(void) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    long tenths = now.tv_sec * 10 + now.tv_nsec / 100000000;
    if (tenths != atomic_load(&looked_at)) {
        atomic_store(&looked_at, tenths);
        const char *place = getenv("ANGARIUM_FAILOVER_CLOCK");
        int file = place ? open(place, O_RDONLY | O_CLOEXEC) : -1;
        if (file >= 0) {
            char text[32] = {0};
            if (read(file, text, sizeof text - 1) > 0) atomic_store(&offset, atol(text));
            close(file);
        }
    }
    return atomic_load(&offset);
}

int clock_gettime(clockid_t clock, struct timespec *found) {
    int failed = (int)syscall(SYS_clock_gettime, clock, found);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) found->tv_sec += wrong_by();
    return failed;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
    int failed = (int)syscall(SYS_gettimeofday, found, zone);
    if (!failed && found) found->tv_sec += wrong_by();
    return failed;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
